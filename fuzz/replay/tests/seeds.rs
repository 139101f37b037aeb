//! Every fuzz target takes its seeds without a panic. `cargo xtask fuzz` looks further.
#![allow(missing_docs, unused_attributes, unreachable_pub)] // The targets are programs of their own elsewhere.
#![allow(clippy::disallowed_methods, clippy::duplicate_mod, unsafe_code)] // As their own workspace has them.

// The targets name the fuzzer's crate; here its macro makes a function.
extern crate self as libfuzzer_sys;

/// In a module, so that the targets find it by their `use` alone.
mod by_name {
    /// A target's body as a function of the input: bytes, or text where the input is text.
    #[macro_export]
    macro_rules! fuzz_target {
        (|$input:ident: &str| $body:expr) => {
            pub(crate) fn run(bytes: &[u8]) {
                let Ok($input) = std::str::from_utf8(bytes) else {
                    return;
                };
                $body
            }
        };
        (|$input:ident: &[u8]| $body:expr) => {
            pub(crate) fn run($input: &[u8]) {
                $body
            }
        };
    }
}

fn replay(target: &str, run: fn(&[u8])) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../seeds")
        .join(target);
    let mut seen = 0;
    for seed in std::fs::read_dir(folder).expect("seeds") {
        let seed = seed.expect("an entry").path();
        println!("{}", seed.display());
        run(&std::fs::read(seed).expect("a seed"));
        seen += 1;
    }
    assert!(seen > 0, "{target} has no seeds");
}

macro_rules! targets {
    ($($path:literal $name:ident,)*) => { $(
        #[path = $path]
        mod $name;
    )*
        mod seeds_of {
            $(
                #[test]
                fn $name() {
                    super::replay(stringify!($name), super::$name::run);
                }
            )*
        }

        #[test]
        fn every_target_is_here() {
            let mut known = vec![$(stringify!($name)),*];
            known.sort_unstable();
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz_targets");
            let files = std::fs::read_dir(folder).expect("targets");
            let name = |file: std::fs::DirEntry| file.path().file_stem()?.to_str().map(str::to_owned);
            let mut there: Vec<_> = files.map(|f| name(f.expect("an entry")).expect("a name")).collect();
            there.sort_unstable();
            assert_eq!(known, there);
        }
    };
}

targets! {
    "../../fuzz_targets/bootstrap.rs" bootstrap,
    "../../fuzz_targets/fabric.rs" fabric,
    "../../fuzz_targets/iwarp.rs" iwarp,
    "../../fuzz_targets/mesh.rs" mesh,
    "../../fuzz_targets/one_sided.rs" one_sided,
    "../../fuzz_targets/pages.rs" pages,
    "../../fuzz_targets/program.rs" program,
    "../../fuzz_targets/ptx.rs" ptx,
    "../../fuzz_targets/routes.rs" routes,
    "../../fuzz_targets/sketch.rs" sketch,
    "../../fuzz_targets/texts.rs" texts,
    "../../fuzz_targets/traces.rs" traces,
    "../../fuzz_targets/transport.rs" transport,
    "../../fuzz_targets/verbs.rs" verbs,
    "../../fuzz_targets/wire.rs" wire,
}
