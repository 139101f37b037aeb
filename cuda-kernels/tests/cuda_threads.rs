//! CUDA functions of threads, warps and memory, each by a kernel of its own of
//! `kernels/cuda_functions.cu`.
#![allow(unsafe_code)] // Loads kernels.

use std::collections::BTreeMap;

use crate::ptx_files::{launch, numbers, with_ptx, Io, Seen};
use ringbell_cuda_kernels::LaunchError;

const THREADS: usize = 80;

/// What thread `t` gets, of all threads' values.
type TeamCase = (&'static str, fn(usize, &[u64]) -> u64);

fn warp_of(t: usize) -> std::ops::Range<usize> {
    let start = t / 32 * 32;
    start..(start + 32).min(THREADS)
}

/// The value of lane `lane` of thread `t`'s warp; the thread's own where there is no such lane.
fn lane(t: usize, lane: usize, v: &[u64]) -> u64 {
    let at = t / 32 * 32 + lane;
    if lane < 32 && at < THREADS {
        v[at]
    } else {
        v[t]
    }
}

fn mask_where(t: usize, f: impl Fn(usize) -> bool) -> u64 {
    warp_of(t)
        .filter(|s| f(*s))
        .fold(0, |m, s| m | 1 << (s % 32))
}

fn over(t: usize, v: &[u64], f: impl Fn(u32, u32) -> u32) -> u64 {
    let warp = warp_of(t).map(|s| v[s] as u32);
    u64::from(warp.reduce(f).expect("a warp"))
}

const TEAMS: &[TeamCase] = &[
    ("shfl", |t, v| lane(t, (t % 32) ^ 5, v)),
    ("shfl_up", |t, v| {
        let l = t % 32;
        u64::from(lane(t, if l < 3 { l } else { l - 3 }, v) as u32)
    }),
    ("shfl_down", |t, v| {
        let l = t % 32;
        u64::from(lane(t, if l % 8 + 2 < 8 { l + 2 } else { l }, v) as u32)
    }),
    ("shfl_xor", |t, v| {
        let l = t % 32;
        lane(t, l ^ 9, v)
    }),
    ("ballot", |t, v| mask_where(t, |s| v[s] & 1 == 1)),
    ("any", |t, v| u64::from(warp_of(t).any(|s| v[s] % 31 == 0))),
    ("all", |t, v| u64::from(warp_of(t).all(|s| v[s] % 31 != 0))),
    ("activemask", |t, v| {
        if v[t] & 1 == 1 {
            mask_where(t, |s| v[s] & 1 == 1)
        } else {
            7
        }
    }),
    ("match_any", |t, v| mask_where(t, |s| v[s] % 5 == v[t] % 5)),
    ("match_any_ll", |t, v| {
        mask_where(t, |s| v[s] % 3 == v[t] % 3)
    }),
    ("match_all", |t, v| {
        let first = warp_of(t).start;
        let equal = t / 32 == 1 || warp_of(t).all(|s| v[s] as u32 == v[first] as u32);
        if equal {
            mask_where(t, |_| true)
        } else {
            0
        }
    }),
    ("reduce_add", |t, v| over(t, v, u32::wrapping_add)),
    ("reduce_min", |t, v| {
        over(t, v, |a, b| (a as i32).min(b as i32) as u32)
    }),
    ("reduce_max", |t, v| over(t, v, u32::max)),
    ("reduce_and", |t, v| {
        over(t, v, |a, b| (a | 0xff) & (b | 0xff))
    }),
    ("reduce_or", |t, v| {
        over(t, v, |a, b| a & 0x11111 | b & 0x11111)
    }),
    ("reduce_xor", |t, v| over(t, v, |a, b| a ^ b)),
    ("syncthreads_count", |_, v| {
        v.iter().take(THREADS).map(|v| v & 1).sum()
    }),
    ("syncthreads_and", |_, v| {
        u64::from(v.iter().take(THREADS).all(|v| *v as u32 != 0 || *v != 0))
    }),
    ("syncthreads_or", |_, v| {
        u64::from(v.iter().take(THREADS).any(|v| *v == 12345))
    }),
    ("syncwarp", |t, v| v[t]),
    ("built_in", |t, _| t as u64 + 8000 + 100_000 + 32 + 1),
    ("clock", |_, _| 1),
    ("spaces", |_, _| 1 + 4 + 8),
    ("loads", |t, v| v[t].wrapping_mul(6)),
    ("vector_loads", |t, v| {
        let bytes: Vec<u8> = v.iter().flat_map(|w| w.to_le_bytes()).collect();
        let short = i16::from_le_bytes([bytes[2 * t], bytes[2 * t + 1]]);
        let of_pair = v[t / 2 * 2 + 1].wrapping_add(u64::from(v[t / 2 * 2] as u32));
        of_pair
            .wrapping_add(bytes[t] as i8 as u64)
            .wrapping_add(short as u64)
    }),
    ("stores", |t, v| v[t]),
];

#[test]
fn functions_of_a_block_and_a_warp_give_what_their_threads_share() {
    let gpu = with_ptx("cuda_functions.ptx");
    let seen = Seen::of(&gpu, "t_");
    let inputs = numbers(THREADS, 3);
    let io = Io::new(&gpu, &inputs, THREADS * 8);
    for (name, reference) in TEAMS {
        let kernel = format!("t_{name}");
        seen.mark(&kernel);
        launch(&gpu, &kernel, 1, THREADS as u32, &io.args()).unwrap();
        for (t, got) in io.words().into_iter().enumerate() {
            let want = reference(t, &inputs);
            assert_eq!(got, want, "{name}: {got:#x}, not {want:#x} in thread {t}");
        }
    }
}

/// The word's value after one more operation; bits of the type's width.
type AtomicCase = (&'static str, u32, fn(u64, u64) -> u64);

const ATOMICS: &[AtomicCase] = &[
    ("add", 32, |p, v| p.wrapping_add(v)),
    ("add_int", 32, |p, v| p.wrapping_add(v)),
    ("add_u64", 64, |p, v| p.wrapping_add(v)),
    ("sub", 32, |p, v| p.wrapping_sub(v)),
    ("min", 32, |p, v| (p as i32).min(v as i32) as u32 as u64),
    ("max", 64, u64::max),
    ("and", 32, |p, v| p & (v | 0xf0f0_f0f0)),
    ("or", 64, |p, v| p | v & 0xf0f0),
    ("xor", 32, |p, v| p ^ v),
];

#[test]
fn atomic_functions_leave_what_their_operations_make_in_any_order() {
    let gpu = with_ptx("cuda_functions.ptx");
    let seen = Seen::of(&gpu, "a_");
    let inputs = numbers(THREADS + 1, 4);
    let start = inputs[THREADS];
    let run = |name: &str| {
        let kernel = format!("a_{name}");
        seen.mark(&kernel);
        let io = Io::new(&gpu, &inputs, 128 * 8);
        launch(&gpu, &kernel, 1, THREADS as u32, &io.args()).unwrap();
        let all = io.words();
        // The two words in global memory, what the threads were returned, and the word in shared
        // memory.
        ([all[0], all[1]], all[2..2 + THREADS].to_vec(), all[100])
    };
    for (name, width, apply) in ATOMICS {
        let cut = |v: u64| if *width == 64 { v } else { v & 0xffff_ffff };
        let (global, _, shared) = run(name);
        let fold = |from: u64, of: &mut dyn Iterator<Item = u64>| {
            of.fold(cut(from), |p, v| cut(apply(p, cut(v))))
        };
        assert_eq!(
            cut(shared),
            fold(start, &mut inputs[..THREADS].iter().copied()),
            "{name} in shared memory"
        );
        for (k, got) in global.into_iter().enumerate() {
            let mine = &mut inputs[..THREADS].iter().copied().skip(k).step_by(2);
            assert_eq!(cut(got), fold(0, mine), "{name} in global memory");
        }
    }
    let count = |v: &mut dyn Iterator<Item = u64>| {
        v.fold(BTreeMap::new(), |mut m: BTreeMap<u64, u32>, v| {
            *m.entry(v).or_default() += 1;
            m
        })
    };
    // Each value is returned once, or is what remains.
    let (_, old, shared) = run("exch");
    assert_eq!(
        count(&mut old.into_iter().chain([shared])),
        count(&mut inputs.iter().copied())
    );
    let (global, old, shared) = run("inc");
    let from = start as u32;
    let expect = |from: u32, n: usize| {
        (0..n).scan(from, |p, _| {
            let was = *p;
            *p = if was >= 50 { 0 } else { was + 1 };
            Some(u64::from(was))
        })
    };
    assert_eq!(
        count(&mut old.into_iter()),
        count(&mut expect(from, THREADS))
    );
    assert_eq!(shared, expect(from, THREADS + 1).last().unwrap());
    assert_eq!(global.map(|g| g & 0xffff_ffff), [40, 40]);
    let (global, _, _) = run("dec");
    // 0, 50, 49, ...: the 40th step down.
    assert_eq!(global.map(|g| g & 0xffff_ffff), [11, 11]);
    let (global, _, _) = run("add_float");
    for (k, got) in global.into_iter().enumerate() {
        // The values, as floats, were cut to a byte; what is not a number there became one of the
        // conversion's ends.
        let mine = inputs[..THREADS].iter().skip(k).step_by(2);
        let sum: i64 = mine.map(|v| i64::from((*v as f32) as i32 & 0xff)).sum();
        assert_eq!(f32::from_bits(got as u32), sum as f32);
    }
    let (global, _, _) = run("add_double");
    for (k, got) in global.into_iter().enumerate() {
        let mine = inputs[..THREADS].iter().skip(k).step_by(2);
        let sum: i64 = mine.map(|v| (*v as f64) as i64 & 0xffff).sum();
        assert_eq!(f64::from_bits(got), sum as f64);
    }
    for name in ["cas", "cas_16"] {
        let (_, old, shared) = run(name);
        let mask = if name == "cas" { u64::MAX } else { 0xffff };
        let one_of = |v: u64| inputs.iter().any(|i| i & mask == v);
        assert!(one_of(shared) && old.iter().all(|v| one_of(*v)));
        assert_ne!(shared, start & mask, "no exchange took place");
    }
}

#[test]
fn a_failed_assertion_ends_the_launch() {
    let gpu = with_ptx("cuda_functions.ptx");
    launch(&gpu, "print_and_assert", 1, 32, &[40i32.into()]).unwrap();
    match launch(&gpu, "print_and_assert", 1, 32, &[3i32.into()]) {
        Err(LaunchError::Failed { reason, .. }) => {
            assert!(reason.contains("thread (3,0,0)"), "{reason}");
            assert!(reason.contains("an assertion does not hold"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}
