//! Tests of the command beside a GPU by CUDA, over the mock driver.
#![cfg(feature = "cuda")]
#![allow(clippy::disallowed_methods)] // Starts the command.

use crate::common;
use crate::mock_driver;

use std::process::Command;

use mock_driver::under_mock;

/// Bytes that differ from place to place.
fn pattern(len: u64, seed: u64) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8)
        .collect()
}

#[test]
fn doctor_and_perf_use_the_gpu_that_is_there() {
    under_mock("doctor_and_perf_use_the_gpu_that_is_there", "", || {
        let ringbell = |args: &[&str]| {
            let out = Command::new(env!("CARGO_BIN_EXE_ringbell"))
                .args(args)
                .output()
                .expect("the program starts");
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let errors = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "{args:?}: {text}{errors}");
            text
        };
        let text = ringbell(&["doctor"]);
        assert!(
            text.contains("Mock GPU") && text.contains("→ copy engine on a side stream"),
            "{text}"
        );
        // The ways that were tried first, with the reasons, and the doorbells of a card.
        for part in [
            "no mapping could be made: GDRCopy: ",
            "mmap: ",
            "takes the BAR as I/O memory",
            "any process may use it",
            "the driver promises no atomics with the CPU",
            "writes from outside need a flush",
            "32 (CUDA_DEVICE_MAX_CONNECTIONS)",
            "every kernel is loaded when the GPU is opened",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        // Results measured and counted beside that GPU name it.
        let nop = ["perf", "nop", "-n", "20", "--json", "-"];
        let items = common::folder("cuda-hll").join("items");
        std::fs::write(&items, pattern(40_000, 3)).expect("a fresh folder");
        let hll = ["hll", "--json", items.to_str().expect("a plain name")];
        for args in [&nop[..], &hll] {
            let text = ringbell(args);
            let says = |gpu: &str| text.contains(&format!("\"gpu\": \"{gpu}"));
            assert!(says("Mock GPU") && !says("emulated"), "{args:?}: {text}");
        }
        let text = ringbell(&[&["--gpu", "emulated"], &nop[..]].concat());
        assert!(text.contains("\"gpu\": \"emulated\""), "{text}");
        let text = ringbell(&["--gpu", "emulated", "doctor"]);
        assert!(
            !text.contains("Mock GPU") && text.contains("--gpu"),
            "{text}"
        );
    });
}
