//! Tests of the C API from programs that gcc compiles as C99.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs.

use crate::common;
use crate::compile;
use crate::mock_driver;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{folder, has, succeed};
use compile::{c99, compile};
use mock_driver::under_mock;
use ringbell_routes::document::Document;
use ringbell_routes::named::named;
use ringbell_routes::proof::Proof;
use ringbell_routes::route::{route, Routes, DEFAULT_CHANNELS};

#[test]
fn communicators_in_c99_as_threads_and_as_processes_one_of_which_is_killed() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi-comm");
    let program = c99("comm", &dir);
    let said = succeed(Command::new(&program).arg(dir.join("local")));
    assert!(said.contains("all checks passed"), "{said}");
}

#[test]
fn kernels_streams_and_settings_in_c99_and_in_cpp() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let dir = folder("capi-streams");
    let module = module("push_pop");
    for program in [
        c99("streams", &dir),
        compile(&["g++", "-std=c++17", "-xc++"], "streams", &dir),
    ] {
        let said = succeed(Command::new(&program).arg(dir.join("local")).arg(&module));
        assert!(said.contains("all checks passed"), "{said}");
    }
}

/// Kernels of `tests/programs/`.
fn module(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    folder.join(name).with_extension("ptx")
}

#[test]
fn a_nic_that_is_closed_under_waiting_kernels_ends_them() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi-closing");
    let module = module("waiting");
    let mut program = Command::new(c99("closing", &dir));
    let said = succeed(program.arg(dir.join("local")).arg(module));
    assert!(said.contains("all checks passed"), "{said}");
}

/// Runs a program of `tests/programs/` that was compiled as C99, and as C++.
fn in_both_languages(name: &str) {
    if !has("gcc") || !has("g++") {
        return;
    }
    let dir = folder(&format!("capi-{name}"));
    for program in [
        c99(name, &dir),
        compile(&["g++", "-std=c++17", "-xc++"], name, &dir),
    ] {
        let said = succeed(Command::new(&program).arg(dir.join("local")));
        assert!(said.contains("all checks passed"), "{said}");
    }
}

#[test]
fn graphs_in_c99_and_in_cpp() {
    in_both_languages("graphs");
}

#[test]
fn engines_in_c99_and_in_cpp() {
    in_both_languages("engines");
}

#[test]
fn asynchronous_calls_in_c99_and_in_cpp() {
    in_both_languages("async");
}

#[test]
fn calls_of_more_than_four_gib_are_split_or_refused() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi-long");
    let said = succeed(Command::new(c99("long", &dir)).arg(dir.join("local")));
    if said.contains("SKIPPED") {
        eprintln!("{said}");
    }
    assert!(said.contains("all checks passed"), "{said}");
}

#[test]
fn a_c99_program_gets_the_documented_results() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi");
    let module = module("twice");
    let program = c99("capi", &dir);
    let meeting = dir.join("local");
    let said = succeed(Command::new(&program).arg(&meeting).arg(&module));
    assert!(said.contains("all checks passed"), "{said}");
}

#[test]
fn nics_of_c_programs_forward_for_each_other() {
    if !has("gcc") {
        return;
    }
    let dir = folder("capi-mesh");
    let bus = named("bus:3").expect("a name");
    let mut routes = route(&bus, DEFAULT_CHANNELS).expect("routes");
    let write = |name: &str, routes: &Routes| {
        let document = Document::of(&bus, &routes.tables, &routes.proof);
        let text = serde_json::to_string(&document).expect("JSON");
        std::fs::write(dir.join(name), text).expect("room");
        dir.join(name)
    };
    let tables = write("tables.json", &routes);
    let Proof::Acyclic { order } = &mut routes.proof else {
        panic!("a bus has no circle: {:?}", routes.proof);
    };
    order.reverse();
    let unproved = write("unproved.json", &routes);
    let said = succeed(Command::new(c99("mesh", &dir)).args([tables, unproved]));
    assert!(said.contains("all checks passed"), "{said}");
}

#[test]
fn c_programs_share_gpu_memory_between_processes() {
    if !has("gcc") {
        return;
    }
    under_mock("c_programs_share_gpu_memory_between_processes", "", || {
        let dir = folder("capi-ipc");
        let program = c99("ipc", &dir);
        let mock = std::env::var("LD_LIBRARY_PATH").expect("the mock driver's folder");
        let mut command = Command::new("env");
        command.arg(format!("LD_LIBRARY_PATH={mock}"));
        let said = succeed(command.arg(program).arg(dir.join("local")));
        assert!(said.contains("all checks passed"), "{said}");
    });
}
