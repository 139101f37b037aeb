//! Compiles the kernels for the emulated GPU.

use std::path::PathBuf;

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo:rerun-if-changed=include");
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-changed=build.rs");

    // One translation unit: its object holds `ringbell_module`, which Rust refers to, so that the
    // linker cannot drop the kernels that register themselves in static constructors.
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .include(root.join("include"))
        .file(root.join("kernels/module.cpp"))
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-fvisibility=hidden")
        .flag("-Wno-unknown-pragmas")
        .opt_level(2)
        .compile("ringbell_kernels");
}
