//! Gives the shared object the name under which programs find it: that of CUDA 13's runtime. A link
//! of CUDA 12's name serves programs of that version.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcudart.so.13");
}
