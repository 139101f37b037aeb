//! The linker's settings of the plug-in.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // NCCL closes the library with its last communicator, and threads of the NIC, or destructors of
    // thread-local values, may still run in it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
