//! Tests of the generated files against the tables, and of the C header against the compilers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::Status;

use super::stale;
use super::tables::{CODES, FIELDS, STRUCTURES};
use crate::workspace::{blocks, root, target};

#[test]
fn generated_files_are_not_stale() {
    assert_eq!(
        stale(),
        Vec::<&str>::new(),
        "run `cargo xtask gen` and commit the result"
    );
}

/// The header's expected values: expression in C, value.
fn expected() -> Vec<(String, u64)> {
    let mut rows = Vec::new();
    for c in CODES.iter().flat_map(|(_, table, _)| *table) {
        rows.push((format!("RB_{}", c.name), c.value));
    }
    for f in FIELDS.iter().flat_map(|(_, table)| *table) {
        rows.push((format!("RB_{}_MASK", f.name), f.mask()));
        rows.push((format!("RB_{}_WORD", f.name), u64::from(f.word)));
        rows.push((format!("RB_{}_SHIFT", f.name), u64::from(f.shift)));
        rows.push((format!("RB_{}_BITS", f.name), u64::from(f.bits)));
        // The helper macros' results, against Rust's with the same field.
        let sample = 0xa5c3_96f0_0f69_3c5a_u64;
        rows.push((
            format!("RB_PUT({}, {sample}ull)", f.name),
            f.put(sample & (f.mask() >> f.shift)),
        ));
        rows.push((format!("RB_GET({}, {sample}ull)", f.name), f.of(sample)));
    }
    for (reg, _, name, _) in Reg::ALL {
        rows.push((format!("RB_REG_{name}"), reg.offset() as u64));
    }
    for (_, s) in STRUCTURES {
        rows.push((format!("sizeof(struct {})", s.name), s.size as u64));
        for f in s.fields {
            let size = if f.ty == "u64" { 8 } else { 4 };
            rows.push((
                format!("offsetof(struct {}, {})", s.name, f.name),
                f.offset as u64,
            ));
            rows.push((
                format!("sizeof(((struct {} *)0)->{})", s.name, f.name),
                size,
            ));
        }
    }
    rows.push((
        "RB_DOORBELL(511)".into(),
        ringbell_nic_abi::bar::doorbell_offset(511) as u64,
    ));
    rows
}

/// Compiles a program that prints the header's values, and returns them by expression.
fn ask(compiler: &str, source_name: &str, flags: &[&str]) -> (BTreeMap<String, u64>, Vec<String>) {
    let dir = target()
        .join("abi-layout")
        .join(source_name.replace('.', "-"));
    std::fs::create_dir_all(&dir)
        .unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"ringbell_abi.h\"\nint main(void) {\n",
    );
    for (expression, _) in expected() {
        let _ = writeln!(
            source,
            "  printf(\"%s=%llu\\n\", \"{expression}\", (unsigned long long)({expression}));"
        );
    }
    for s in Status::ALL {
        let _ = writeln!(
            source,
            "  printf(\"text %s: %s\\n\", rb_status_name({0}), rb_status_text({0}));",
            s.code()
        );
    }
    source.push_str("  printf(\"text %s: \\n\", rb_status_name(255));\n  return 0;\n}\n");
    let file = dir.join(source_name);
    let program = dir.join("layout");
    std::fs::write(&file, source)
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
    let built = Command::new(compiler)
        .args(flags)
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("cuda-kernels/include"))
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|e| panic!("{compiler} does not start ({e}); install g++"));
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let ran = Command::new(&program)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    let (texts, values): (Vec<&str>, Vec<&str>) =
        printed.lines().partition(|l| l.starts_with("text "));
    let values = values
        .iter()
        .map(|l| {
            let (k, v) = l.rsplit_once('=').unwrap_or_else(|| panic!("printed {l}"));
            (
                k.to_string(),
                v.parse().unwrap_or_else(|e| panic!("{l}: {e}")),
            )
        })
        .collect();
    (values, texts.into_iter().map(str::to_string).collect())
}

fn header_agrees(compiler: &str, source_name: &str, flags: &[&str]) {
    let (said, texts) = ask(compiler, source_name, flags);
    for (expression, value) in expected() {
        assert_eq!(said.get(&expression), Some(&value), "{expression}");
    }
    for (s, text) in Status::ALL.iter().zip(&texts) {
        assert_eq!(*text, format!("text {s}"));
    }
    assert_eq!(texts.last().map(String::as_str), Some("text UNKNOWN: "));
}

#[test]
fn header_agrees_with_the_tables_in_cpp17() {
    header_agrees(
        "g++",
        "layout.cpp",
        &["-std=c++17", "-Wno-invalid-offsetof"],
    );
}

#[test]
fn header_agrees_with_the_tables_in_c99() {
    header_agrees("gcc", "layout.c", &["-std=c99", "-pedantic"]);
}

/// The tutorial's code compiles by clang. (nvcc reads the same blocks in `cargo xtask kernels`.)
#[test]
fn kernels_of_the_tutorial_compile_with_clang() {
    let blocks = blocks("docs/tutorial.md", "cuda").expect("kernels");
    let Some(clang) = super::ptx::clang() else {
        println!("SKIPPED: no clang 19. Debian: apt-get install clang-19");
        return;
    };
    let dir = target().join("tutorial");
    std::fs::create_dir_all(&dir).expect("a folder");
    for (i, block) in blocks.iter().enumerate() {
        let file = dir.join(format!("block_{i}.cu"));
        std::fs::write(&file, block).expect("written");
        let text = super::ptx::File::of(&file).make(&clang);
        let text = text.unwrap_or_else(|e| panic!("{e:#}"));
        assert!(text.contains(".entry "), "block {i} has no kernel");
    }
}
