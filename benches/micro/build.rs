//! Tells the benchmarks by which profile they were built.

#[path = "../perf/profile.rs"]
mod profile;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../perf/profile.rs");
    profile::tell();
}
