//! Gives the shared object the name under which programs look for a driver: once it is loaded by
//! any path, each search for that name finds it, also that of the NIC's library beside a program's
//! runtime.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
}
