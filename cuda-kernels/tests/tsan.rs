//! ThreadSanitizer on the device header: it is silent about the protocol, and it is not blind.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn build(name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let run = Command::new("g++")
        .args([
            "-std=c++20",
            "-O1",
            "-g",
            "-fsanitize=thread",
            "-pthread",
            "-Wno-unknown-pragmas",
            // g++ does not instrument a memcpy that it expands in place.
            "-fno-builtin",
        ])
        .args(flags)
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/tsan/peer.cpp"))
        .arg("-o")
        .arg(&out)
        .output()
        .expect("g++ is what builds this crate");
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    match run.status.success() {
        true => Ok(out),
        false => Err(text),
    }
}

/// Runs with a fixed address layout where that is possible: some kernels randomise more bits than
/// ThreadSanitizer's shadow allows.
fn run(program: &Path) -> Output {
    let fixed = Command::new("setarch").arg("-R").arg("true").status();
    let mut command = if fixed.is_ok_and(|s| s.success()) {
        let mut c = Command::new("setarch");
        c.arg("-R").arg(program);
        c
    } else {
        Command::new(program)
    };
    command.env("TSAN_OPTIONS", "halt_on_error=0 exitcode=66");
    command.output().expect("the program was just built")
}

#[test]
fn thread_sanitizer_finds_the_planted_race_and_no_other() {
    let clean = match build("tsan_clean", &[]) {
        Ok(program) => program,
        Err(text) if text.contains("tsan") => {
            println!(
                "skipped: g++ has no ThreadSanitizer here (libtsan; Debian: libtsan2): {text}"
            );
            return;
        }
        Err(text) => panic!("{text}"),
    };
    let planted = ["PUBLISH", "STREAM"].map(|what| {
        let flag = format!("-DRB_TEST_RELAXED_{what}");
        build(&format!("tsan_planted_{what}"), &[&flag]).unwrap()
    });

    let quiet = run(&clean);
    let text = String::from_utf8_lossy(&quiet.stderr);
    if text.contains("unexpected memory mapping") {
        println!("skipped: this kernel's address layout does not suit ThreadSanitizer, and setarch -R is not allowed");
        return;
    }
    assert!(quiet.status.success(), "{text}");
    let said = String::from_utf8_lossy(&quiet.stdout);
    assert!(said.contains("1200 transfers, 0 wrong"), "{said}");
    assert!(said.contains("3000 elements streamed, 0 wrong"), "{said}");

    for planted in planted {
        let loud = run(&planted);
        let text = String::from_utf8_lossy(&loud.stderr);
        assert_eq!(
            loud.status.code(),
            Some(66),
            "the planted relaxed store went unseen: {text}"
        );
        assert!(text.contains("data race"), "{text}");
    }
}
