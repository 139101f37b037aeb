//! Gives the tutorial's programs to their test.

use std::path::Path;

/// Writes each whole Rust program of the tutorial to a file: `tests/tutorial.rs` runs them as they
/// stand there.
fn tutorial() {
    const TUTORIAL: &str = "../docs/tutorial.md";
    println!("cargo::rerun-if-changed={TUTORIAL}");
    let (Ok(text), Ok(dir)) = (std::fs::read_to_string(TUTORIAL), std::env::var("OUT_DIR")) else {
        return;
    };
    let blocks = text.split("\n```rust").skip(1);
    let blocks = blocks.filter_map(|b| Some(b.split_once('\n')?.1.split_once("\n```")?.0));
    let programs = blocks.filter(|b| b.contains("\nfn main()"));
    for (i, program) in programs.enumerate() {
        let file = Path::new(&dir).join(format!("tutorial_{i}.rs"));
        if let Err(why) = std::fs::write(&file, program) {
            println!("cargo::warning=cannot write {}: {why}", file.display());
        }
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    tutorial();
}
