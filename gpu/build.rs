//! A hash of this crate's sources and dependencies, so that code which another version has compiled
//! is not used.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut files = Vec::new();
    collect(&root.join("src"), &mut files);
    files.push(root.join("Cargo.toml"));
    files.sort();
    let mut hash = DefaultHasher::new();
    for f in files {
        std::fs::read(&f)
            .expect("part of the crate")
            .hash(&mut hash);
    }
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rerun-if-changed=Cargo.toml");
    println!(
        "cargo:rustc-env=RINGBELL_GPU_SOURCES={:016x}",
        hash.finish()
    );
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("part of the crate") {
        let path = entry.expect("part of the crate").path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}
