//! Small kernels with one planted fault each, on a checked emulated GPU: each is named with its
//! line.
#![allow(unsafe_code)] // Loads and launches kernels that are wrong.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::test_gpu::emulated_only;
use crate::common::PATIENCE;
use ringbell_cuda_kernels::{Checks, EmulatedGpu, EmulatedGpuConfig, Gpu, KernelArg, LaunchError};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels")
}

/// The line and the check of each planted fault.
fn planted() -> BTreeMap<String, (usize, String)> {
    let text = std::fs::read_to_string(folder().join("misuse.cu")).unwrap();
    let marks = text.lines().enumerate().filter_map(|(i, line)| {
        let (kernel, check) = line.split_once("  // ")?.1.split_once(": ")?;
        Some((kernel.to_owned(), (i + 1, check.to_owned())))
    });
    marks.collect()
}

fn checked(checks: Checks) -> Gpu {
    let gpu = EmulatedGpu::new(EmulatedGpuConfig {
        memory_bytes: 32 << 20,
        checks,
        ..EmulatedGpuConfig::default()
    });
    let gpu = Gpu::from(gpu.expect("memory"));
    // SAFETY: its faults end launches, and nothing else.
    unsafe { gpu.load_module(&folder().join("misuse.ptx")) }.unwrap_or_else(|e| panic!("{e}"));
    gpu
}

/// What the pointers of a launch are.
#[derive(Clone, Copy, PartialEq)]
enum Given {
    /// Both are buffers.
    Buffers,
    /// The first is freed before.
    Freed,
    /// This address in place of the second.
    Second(u64),
    /// Both are buffers, of which the host writes the first alone.
    Unwritten,
    /// It does not end before the first buffer has this word of 64 bits at this offset.
    Until(u64, u64),
}

/// A launch of one of the kernels.
struct Case {
    kernel: &'static str,
    blocks: u32,
    threads: u32,
    n: u32,
    given: Given,
    /// Words that the message has beside the place.
    words: &'static str,
}

const fn case(
    kernel: &'static str,
    blocks: u32,
    threads: u32,
    n: u32,
    words: &'static str,
) -> Case {
    Case {
        kernel,
        blocks,
        threads,
        n,
        given: Given::Buffers,
        words,
    }
}

const fn given(case: Case, given: Given) -> Case {
    Case { given, ..case }
}

static HOST: [u64; 4] = [0; 4];

fn cases() -> Vec<Case> {
    let host = HOST.as_ptr() as u64;
    vec![
        case("m_beyond", 1, 32, 993, "thread (31,0,0)|: 0 bytes behind the 4,096 bytes allocated at 0x"),
        case("m_before", 1, 32, 4, "a load of 4 bytes at 0x"),
        case("m_one_byte", 1, 1, 4096, "a store of 1 bytes|: 0 bytes behind the 4,096"),
        case("m_far", 2, 32, 100_000_000, "outside of GPU memory"),
        given(case("m_freed", 1, 32, 0, "thread (0,0,0)|: 0 bytes into the 4,096 bytes that were allocated at|and freed since"), Given::Freed),
        case("m_shared_beyond", 1, 32, 15, "shared memory: 0 bytes behind variable `|m_shared_beyond|` of 64 bytes"),
        case("m_shared_before", 1, 32, 1, "thread (5,0,0)|shared memory: 4 bytes before variable `"),
        case("m_dynamic_beyond", 1, 32, (48 << 8) - 31, "thread (31,0,0)|bytes at 0xc000, outside of shared memory: 0 bytes behind the 49,152 bytes of dynamic shared memory"),
        case("m_local_beyond", 1, 32, 7, "thread (1,0,0)|load of 4 bytes at 0x20, outside of local memory: 0 bytes behind variable `__local_depot"),
        case("m_misaligned", 1, 1, 3, "a store of 8 bytes|not aligned in GPU memory"),
        case("m_shared_misaligned", 1, 32, 3, "not aligned in shared memory"),
        given(case("m_null", 1, 32, 3, "store of 4 bytes at 0x0,|thread (31,0,0)"), Given::Second(0)),
        case("m_variable_beyond", 1, 8, 8, "thread (0,0,0)|: 0 bytes behind variable `table` of 32 bytes"),
        case("m_constant_beyond", 1, 8, 0, "thread (6,0,0)|: 0 bytes behind variable `constants` of 24 bytes"),
        case("m_atomic_beyond", 1, 1, 1025, ": 4 bytes behind the 4,096"),
        case("m_vector_beyond", 1, 32, 224, "thread (31,0,0)|a load of 16 bytes|: 4,080 bytes into the 4,088"),
        given(case("m_host_pointer", 1, 1, 224, "outside of GPU memory"), Given::Second(host)),
        given(case("m_wrong_argument", 1, 1, 224, "at 0x400, outside of GPU memory"), Given::Second(1024)),
        case("m_generic_beyond", 1, 32, 17, "outside of shared memory: 0 bytes behind variable `"),
        case("m_local_of_another", 1, 32, 1, "thread (1,0,0)|outside of GPU memory"),
        case("m_freed_part", 1, 32, 1030, "thread (0,0,0)|: 0 bytes behind the 4,096"),
        case("m_bulk_beyond", 1, 1, 1020, "a store of 16 bytes|: 0 bytes behind the 4,096"),
        case("s_ended", 1, 64, 32, "thread (0,0,0)|of which 32 have ended"),
        case("s_two_places", 1, 32, 0, "thread (|lanes of one warp are at different instructions"),
        case("s_mask_without_self", 1, 32, 3, "mask 0x3, which lacks the thread's own lane, 2"),
        case("s_value_of_none", 1, 32, 20, "a value of lane 20, which is not in the mask 0xffff"),
        case("s_exchange_with_none", 1, 32, 0, "thread (8,0,0)|a value of lane 24, which is not in the mask 0xffffff"),
        case("s_value_of_ended", 1, 32, 5, "a value of lane 5, whose thread has ended"),
        case("s_odd_count", 1, 32, 20, "a barrier of 20 threads, which is no multiple of 32"),
        case("s_two_counts", 1, 64, 32, "a barrier of 64 threads, at which others wait for 32"),
        given(case("h_lock_twice", 1, 1, 0, "thread 0 loops|4 bytes at 0x|are 1 (0x1), until they are 0 (0x0), for its compare and swap (a lock); they are 0 bytes into the 4,096 bytes|else they wait for each other"), Given::Until(0, 0)),
        given(case("h_lock_order", 2, 1, 0, "block (0,0,0): thread 0|block (1,0,0): thread 0|are 1 (0x1)"), Given::Until(0, 0)),
        given(case("h_missed_signal", 1, 3, 3, "thread 0 loops|are 2 (0x2), until they are at least 3; they are 24 bytes into|no thread of these blocks can go on by itself: they depend on a store by the host, a NIC, another kernel or rank"), Given::Until(24, 3)),
        given(case("h_ticket", 1, 4, 1, "thread 2 loops|are 1 (0x1), until they are 2 (0x2)|thread 3 loops|until they are 3 (0x3)"), Given::Until(0, 2 << 32 | 4)),
        given(case("h_grid", 2, 32, 33, "blocks (0,0,0), (1,0,0): thread 0 loops|are 64 (0x40), until they are at least 66|threads 1–31 wait at barrier 0|for thread 0"), Given::Until(0, 66)),
        given(case("h_sleep", 1, 32, 50, "block (0,0,0)"), Given::Until(0, 1)),
        case("h_half", 1, 32, 8, "threads 0–7 wait|for threads 8–31|threads 8–31 wait at a warp operation of mask 0xffffffff|for threads 0–7"),
        case("h_named", 1, 64, 64, "threads 0–31 wait|, for others that have ended"),
        case("h_masks", 1, 32, 7, "thread 0 waits|mask 0x3|thread 1 waits|mask 0x7"),
        case("i_shared", 1, 32, 31, "thread (31,0,0)|a load|of shared memory, 4 of which were never written"),
        case("i_dynamic", 1, 32, 0, "thread (0,0,0)|shared memory, 4 of which were never"),
        case("i_counter", 1, 32, 1, "an atomic operation of 4 bytes"),
        given(case("i_global", 1, 32, 10, "thread (0,0,0)|4 of which were never"), Given::Unwritten),
        given(case("i_byte", 1, 8, 6, "1 of which were never"), Given::Unwritten),
        case("r_shared_write", 1, 64, 0, "thread (1,0,0)|races with a|by block (0,0,0), thread (0,0,0), |misuse.cu:"),
        case("r_neighbour", 1, 64, 1, "of shared memory races with"),
        case("r_loop", 1, 64, 2, "a store of 4 bytes|races with a load"),
        case("r_warp", 1, 32, 31, "races with"),
        case("r_blocks", 2, 32, 0, "block (1,0,0), thread (0,0,0)|by block (0,0,0), thread (0,0,0)"),
        case("r_half_atomic", 1, 32, 1, "races with"),
        case("r_plain_flag", 2, 1, 1, "an ordered load of 4 bytes|races with a store|block (1,0,0)"),
        case("r_no_fence", 2, 1, 1, "a load of 4 bytes|races with a store by block (1,0,0)"),
        case("r_no_acquire", 2, 1, 1, "load of 1 bytes|races with a store by block (1,0,0)"),
        case("r_scope", 2, 1, 1, "a load of 4 bytes|races with a store by block (1,0,0)"),
        case("r_lock", 2, 1, 1, "races with"),
        case("r_last_block", 4, 1, 1, "races with a store"),
    ]
}

impl Case {
    fn run(&self, gpu: &Gpu) -> Result<(), LaunchError> {
        let p = gpu.alloc(4096).unwrap();
        let q = gpu.alloc(4088).unwrap();
        p.write(0, &[0; 4096]).unwrap();
        if self.given != Given::Unwritten {
            q.write(0, &[0; 4088]).unwrap();
        }
        let mut args = [(&p).into(), (&q).into(), KernelArg::U32(self.n)];
        let mut kept = vec![p, q];
        match self.given {
            Given::Buffers | Given::Unwritten | Given::Until(..) => {}
            Given::Freed => drop(kept.remove(0)),
            Given::Second(address) => args[1] = KernelArg::U64(address),
        }
        // SAFETY: the kernel is checked, and the buffers outlive it or are to be missed.
        let launch = unsafe { gpu.launch(self.kernel, self.blocks, self.threads, &args) }?;
        let Given::Until(at, value) = self.given else {
            return launch.wait(PATIENCE);
        };
        let late = launch.wait(Duration::from_millis(600));
        let p = &kept[0];
        for _ in 0..1000 {
            p.store_u64(at, value).unwrap();
            if launch.wait(Duration::from_millis(20)).is_ok() {
                break;
            }
        }
        late
    }
}

#[test]
fn each_planted_fault_is_named_with_its_line() {
    if emulated_only("it has checks of its own") {
        return;
    }
    let planted = planted();
    let (mut wrong, mut named) = (Vec::new(), 0);
    for case in cases() {
        let gpu = checked(Checks::ALL);
        let (line, check) = &planted[case.kernel];
        let what = match case.run(&gpu) {
            Err(LaunchError::Failed { reason, .. }) => reason,
            Err(LaunchError::TimedOut { threads, .. }) => threads,
            other => format!("{other:?}"),
        };
        let place = format!("misuse.cu:{line} (");
        let tool = match check.as_str() {
            "memcheck" => "outside of|not aligned",
            other => other,
        };
        let tool = tool.split('|').any(|t| what.contains(t));
        let missing: Vec<&str> = case
            .words
            .split('|')
            .filter(|w| !what.contains(w))
            .collect();
        if what.contains(&place) && tool && missing.is_empty() {
            named += 1;
        } else {
            let kernel = case.kernel;
            wrong.push(format!(
                "{kernel}, {check} at {place}: `{what}` lacks {missing:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{named} are named:\n{}", wrong.join("\n"));
    assert_eq!(named, planted.len(), "every fault has its row in the table");
}

#[test]
fn kernels_without_a_fault_raise_no_alarm() {
    if emulated_only("it has checks of its own") {
        return;
    }
    let gpu = checked(Checks::ALL);
    for (kernel, blocks, threads, n) in [
        ("c_reduce", 3, 256, 2),
        ("c_lock", 4, 64, 3),
        ("c_grid", 4, 64, 5),
        ("c_chain", 20, 32, 1),
        ("c_last_block", 4, 64, 1),
        ("c_leader", 1, 96, 7),
        ("c_bytes", 1, 64, 9),
    ] {
        for _ in 0..2 {
            let ran = case(kernel, blocks, threads, n, "").run(&gpu);
            ran.unwrap_or_else(|e| panic!("{kernel}: {e}"));
        }
    }
}
