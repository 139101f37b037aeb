//! Kernels of two ranks with one planted fault each in what they share with the NIC, on checked
//! emulated GPUs: each is named with its line, and what the NIC does with its operation.
#![allow(unsafe_code)] // Launches kernels that are wrong.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines.

use crate::communicators::{each, PATIENCE};
use crate::test_gpu;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringbell::gpu::EmulatedGpuConfig;
use ringbell::{CommOptions, Communicator, DeviceBuffer, Nic};
use ringbell_cuda_kernels::{Checks, LaunchError};

/// Words of 64 bits of a rank's window.
const WORDS: u64 = 1032;

fn source(extension: &str) -> PathBuf {
    let name = format!("cuda-kernels/tests/kernels/nic_misuse.{extension}");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The line and the check of each planted fault.
fn planted() -> BTreeMap<String, (usize, String)> {
    let text = std::fs::read_to_string(source("cu")).expect("part of the workspace");
    let marks = text.lines().enumerate().filter_map(|(i, line)| {
        let (kernel, check) = line.split_once("  // ")?.1.split_once(": ")?;
        Some((kernel.to_owned(), (i + 1, check.to_owned())))
    });
    marks.collect()
}

/// Two ranks with the kernels.
fn ranks(name: &str) -> Vec<Communicator> {
    let directory = std::env::temp_dir().join(format!("rb-checked-{name}-{}", std::process::id()));
    let open = |i: u8| {
        let nic = Nic::builder().ip(format!("10.67.0.{}/24", i + 1));
        let gpu = EmulatedGpuConfig {
            memory_bytes: 16 << 20,
            checks: Checks::ALL,
            ..EmulatedGpuConfig::default()
        };
        let nic = nic.gpu("emulated").emulated_gpu(gpu);
        let nic = nic.transport("local").directory(&directory);
        let nic = nic.open().expect("a NIC");
        // SAFETY: its faults end launches, and nothing else.
        unsafe { nic.gpu().load_module(&source("ptx")) }.unwrap_or_else(|e| panic!("{e}"));
        nic
    };
    let nics: Vec<Nic> = (0..2).map(open).collect();
    let options = CommOptions {
        init_timeout: PATIENCE,
        timeout: PATIENCE,
        ..CommOptions::default()
    };
    let comms = Communicator::init_all(&nics, &options).expect("all come");
    let _ = std::fs::remove_dir_all(&directory);
    comms
}

/// Runs a kernel on both ranks; what became of each launch, and the first word of `p`.
fn run(comms: &[Communicator], kernel: &str, hangs: bool) -> Vec<(Result<(), LaunchError>, u32)> {
    let threads = if kernel == "g_block" { 64 } else { 1 };
    let buffers = each(comms, |c| {
        let [p, q] = [1, 2].map(|seed: u32| {
            let b: DeviceBuffer<u32> = c.nic().alloc(1024).expect("memory");
            let data: Vec<u32> = (0..1024).map(|i| seed * 5000 + i).collect();
            b.write(0, &data).expect("fits");
            b
        });
        let words = c.alloc_symmetric::<u64>(WORDS).expect("same on all");
        words.write(0, &[0; WORDS as usize]).expect("fits");
        (p, q, words)
    });
    // The deadlock needs an end, which neither rank gets before both were told.
    let both = std::sync::Barrier::new(comms.len());
    let foreign: Vec<u64> = buffers.iter().map(|(p, ..)| p.va().0).rev().collect();
    each(comms, |c| {
        let (p, q, words) = &buffers[c.rank() as usize];
        c.barrier().expect("all come");
        let peers = foreign[c.rank() as usize];
        let args = (c.handle(), words.window(), words, p, q, peers, 1_u32);
        let launch = c.nic().kernel(kernel).expect("loaded");
        // SAFETY: the arguments have the types of the kernel's parameters, and outlive it.
        let launch = unsafe { launch.launch(1, threads, args) }.expect("a launch");
        let end = match hangs {
            false => launch.wait(PATIENCE),
            true => {
                let late = launch.wait(Duration::from_millis(700));
                both.wait();
                for word in [0_u64, 2] {
                    words.write(word, &[9_u64]).expect("fits");
                }
                let _ = launch.wait(PATIENCE);
                late
            }
        };
        let mut first = [0];
        p.read(0, &mut first).expect("fits");
        (end, first[0])
    })
}

/// Kernel, the rank that is told, and words that the message has beside the place.
#[rustfmt::skip]
const FAULTS: [(&str, usize, &str); 15] = [
    ("n_receive_read", 1, "a load of 4 bytes at 0x|races with a store by the NIC for a receive of a communicator of 4,096 bytes, posted by block (0,0,0), thread (0,0,0), "),
    ("n_send_written", 0, "a store of 4 bytes at 0x|races with a load by the NIC for a send of a communicator of 4,096 bytes, posted by"),
    ("n_put_source", 0, "races with a load by the NIC for a put of 4,096 bytes, posted by"),
    ("n_put_target", 1, "a load of 4 bytes|races with a store by the NIC for a peer"),
    ("n_get_target", 0, "races with a store by the NIC for a get of 4,096 bytes"),
    ("n_weak_flag", 1, "a load of 8 bytes|races with an atomic operation by the NIC for a peer"),
    ("n_relaxed_flag", 1, "a load of 4 bytes|races with a store by the NIC for a peer"),
    ("n_reduce_input", 1, "a store of 4 bytes|races with a load by the NIC for an all-reduce of 4,096 bytes, posted by"),
    ("n_reduce_output", 1, "a load of 4 bytes|races with a store by the NIC for an all-reduce of 4,096 bytes, posted by"),
    ("n_slot_reused", 0, "a store of 4 bytes|races with a load by the NIC for a send of a communicator"),
    ("n_received_twice", 1, "a load of 4 bytes|races with a store by the NIC for a receive"),
    ("n_wrong_request", 1, "a load of 4 bytes|races with a store by the NIC for a receive"),
    ("n_wrong_rank", 1, "a store of 4 bytes|outside of GPU memory"),
    ("n_missed_signal", 1, "thread 0 loops|8 bytes at 0x|are 1 (0x1)"),
    ("n_deadlock", 1, "thread 0 loops|8 bytes at 0x|are 0 (0x0)"),
];

#[test]
fn each_planted_fault_with_the_nic_is_named_with_its_line_and_operation() {
    if test_gpu::emulated_only("it has checks of its own") {
        return;
    }
    let planted = planted();
    let mut wrong = Vec::new();
    for (kernel, rank, words) in FAULTS {
        let (line, check) = &planted[kernel];
        let comms = ranks(kernel);
        // What is known of an earlier launch must not count for this one.
        if kernel == "n_send_written" || kernel == "n_put_source" {
            let before = run(&comms, "g_messages", false);
            assert!(before.iter().all(|(end, _)| end.is_ok()), "{before:?}");
        }
        let ends = run(&comms, kernel, check == "loops");
        let what = match &ends[rank].0 {
            Err(LaunchError::Failed { reason, .. }) => reason.clone(),
            Err(LaunchError::TimedOut { threads, .. }) => threads.clone(),
            other => format!("{other:?}"),
        };
        let check = match check.as_str() {
            "memcheck" => "outside of",
            other => other,
        };
        let place = format!("nic_misuse.cu:{line} (");
        let nic = format!("NIC 10.67.0.{}", rank + 1);
        let all = [check, &place, &nic];
        let missing: Vec<&str> = words
            .split('|')
            .chain(all)
            .filter(|w| !what.contains(w))
            .collect();
        if !missing.is_empty() {
            wrong.push(format!("{kernel}: `{what}` lacks {missing:?}"));
        }
        if let Err(e) = &ends[1 - rank].0 {
            // Both ranks wait for ever, or one misses the other's fault.
            if check != "loops" {
                wrong.push(format!("{kernel}: the other rank is told: {e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(FAULTS.len(), planted.len(), "every fault has its row");
}

#[test]
fn kernels_that_share_memory_with_the_nic_rightly_raise_no_alarm() {
    if test_gpu::emulated_only("it has checks of its own") {
        return;
    }
    let comms = ranks("good");
    for kernel in [
        "g_messages",
        "g_puts",
        "g_reductions",
        "g_block",
        "g_slots",
        "g_answers",
        "g_gets",
    ] {
        for (rank, (end, wrong)) in run(&comms, kernel, false).into_iter().enumerate() {
            end.unwrap_or_else(|e| panic!("{kernel}, rank {rank}: {e}"));
            assert_eq!(wrong, 0, "{kernel}, rank {rank}: wrong words");
        }
    }
}
