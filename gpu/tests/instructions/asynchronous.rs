//! `cp.async`, `mbarrier`, `cp.async.bulk`, `bar.arrive`, `barrier.cluster`.

use ringbell_gpu::FaultKind;

use super::harness::{random, refused};
use super::launch::{findings, launch, module, try_launch};

/// Bytes of 32-bit words.
fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn noise(n: usize, seed: u64) -> Vec<u32> {
    let mut next = random(seed);
    (0..n).map(|_| next() as u32).collect()
}

#[test]
fn copies_fill_with_zeros_what_is_not_copied() {
    for (form, size) in [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)] {
        for given in 0..=size {
            let text = module(
                "",
                &format!(
                    ".shared .align 16 .b8 s[16]; st.shared.u64 [s], -1; st.shared.u64 [s+8], -1; mov.u32 %r1, {given};\n\
                     cp.async.{form}.shared.global.L2::128B [s], [%x0], {size}, %r1; cp.async.commit_group;\n\
                     cp.async.wait_group 0; cp.async.wait_all; ld.shared.v4.u32 {{%r2, %r3, %r4, %r5}}, [s];\n\
                     st.global.v4.u32 [%x0+16], {{%r2, %r3, %r4, %r5}};"
                ),
            );
            let mut words = noise(8, 3);
            let mut want = bytes(&words[..4]);
            for (i, b) in want.iter_mut().enumerate() {
                match i {
                    i if i < given => {}
                    i if i < size => *b = 0,
                    _ => *b = 255,
                }
            }
            launch(&text, 1, &mut words);
            assert_eq!(bytes(&words[4..]), want, "{form} {size} {given}");
        }
    }
}

#[test]
fn ignored_and_empty_sources_are_not_looked_at() {
    let text = module(
        "",
        ".shared .align 16 .b8 s[32]; st.shared.u64 [s], -1; st.shared.u64 [s+16], -1; setp.eq.u32 %p1, %r0, 0;\n\
         cp.async.ca.shared::cta.global [s], [0], 8, 0; cp.async.ca.shared.global.L2::cache_hint [s+16], [8], 8, %p1, %x0;\n\
         ld.shared.u64 %x2, [s]; ld.shared.u64 %x3, [s+16]; st.global.v2.u64 [%x0], {%x2, %x3};",
    );
    let mut words = noise(4, 5);
    launch(&text, 1, &mut words);
    assert_eq!(words, [0; 4]);
    // A source that is looked at is checked.
    let text = module(
        "",
        ".shared .align 16 .b8 s[32]; cp.async.ca.shared.global [s], [16], 8;",
    );
    let fault = try_launch(&text, 1, &mut words).unwrap_err();
    assert!(
        matches!(
            fault.kind,
            FaultKind::Access {
                address: 16,
                store: false,
                ..
            }
        ),
        "{fault:?}"
    );
    for form in [
        "cp.async.cg.shared.global [%r], [%r], 8;",
        "cp.async.ca.shared.global [%r], [%r], 12;",
    ] {
        refused(&form.replace("%r", "%at"), "copies");
    }
}

/// The barrier's phases by a model of numbers.
#[test]
fn mbarriers_count_arrivals_and_bytes() {
    let mut next = random(17);
    for round in 0..40 {
        let expected = 1 + next() % 5;
        let (mut pending, mut want, mut tx, mut phase) = (expected, expected, 0i64, 0u64);
        let mut text =
            format!(".shared .align 8 .b64 s; mbarrier.init.shared::cta.b64 [s], {expected};\n");
        let mut results = Vec::new();
        let mut states: Vec<(u64, u64)> = Vec::new();
        for step in 0..24usize {
            let settle = |pending: &mut u64, want: u64, tx: i64, phase: &mut u64| {
                if *pending == 0 && tx == 0 {
                    (*pending, *phase) = (want, *phase + 1);
                }
            };
            let state = states.len();
            match next() % 6 {
                0 | 1 if pending > 0 && state < 20 => {
                    let n = 1 + next() % pending;
                    let drops = next().is_multiple_of(4) && want > n && step.is_multiple_of(2);
                    let form = match (drops, n) {
                        (true, _) => "arrive_drop.release.cta",
                        (false, 1) => "arrive",
                        _ => "arrive.release.cta",
                    };
                    let count = if n == 1 {
                        String::new()
                    } else {
                        format!(", {n}")
                    };
                    text += &format!("mbarrier.{form}.shared.b64 %x{}, [s]{count};\n", 10 + state);
                    states.push((phase, pending));
                    pending -= n;
                    want -= if drops { n } else { 0 };
                }
                2 if pending > 0 && state < 20 && tx < 1000 => {
                    let n = next() % 64;
                    text += &format!(
                        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %x{}, [s], {n};\n",
                        10 + state
                    );
                    states.push((phase, pending));
                    (tx, pending) = (tx + n as i64, pending - 1);
                }
                3 => {
                    text += "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [s], 24;\n";
                    tx += 24;
                }
                4 => {
                    let n = if tx > 0 && next().is_multiple_of(2) {
                        tx
                    } else {
                        8
                    };
                    text +=
                        &format!("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [s], {n};\n");
                    tx -= n;
                }
                _ => {}
            }
            settle(&mut pending, want, tx, &mut phase);
            let parity = next() % 2;
            let form = ["test_wait", "try_wait"][step % 2];
            text += &format!(
                "mbarrier.{form}.parity.acquire.cta.shared::cta.b64 %p1, [s], {parity}; selp.u32 %r1, 1, 0, %p1;\n\
                 st.global.u32 [%x0+{}], %r1;\n",
                results.len() * 4
            );
            results.push((phase & 1 != parity) as u32);
            if let Some((of, left)) = states.last() {
                let at = results.len() * 4;
                let state = 9 + states.len();
                text += &format!(
                    "mbarrier.{form}.shared.b64 %p1, [s], %x{state}; selp.u32 %r1, 1, 0, %p1; st.global.u32 [%x0+{at}], %r1;\n\
                     mbarrier.pending_count.b64 %r1, %x{state}; st.global.u32 [%x0+{}], %r1;\n",
                    at + 4
                );
                results.push((*of != phase) as u32);
                results.push(*left as u32);
            }
        }
        text += "mbarrier.inval.shared.b64 [s];";
        let mut words = vec![7; results.len()];
        launch(&module("", &text), 1, &mut words);
        assert_eq!(words, results, "{round}\n{text}");
    }
}

/// A producer's warp and consumers, each waiting for the other through two barriers, as pipelines
/// are written.
#[test]
fn producers_and_consumers_wait_for_each_other() {
    let text = module(
        "",
        ".shared .align 16 .b8 s[128]; .shared .align 8 .b64 full; .shared .align 8 .b64 empty;\n\
         setp.ne.u32 %p1, %r0, 0; @%p1 bra ready;\n\
         mbarrier.init.shared::cta.b64 [full], 1; mbarrier.init.shared::cta.b64 [empty], 32; fence.mbarrier_init.release.cluster;\n\
         ready: bar.sync 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u64 %x4, %x0; setp.lt.u32 %p1, %r0, 32; @%p1 bra consume;\n\
         setp.ne.u32 %p1, %r0, 32; @%p1 bra end;\n\
         produce: and.b32 %r4, %r2, 1; xor.b32 %r4, %r4, 1;\n\
         again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [empty], %r4, 1000; @!%p2 bra again;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 128;\n\
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%x4], 128, [full];\n\
         add.u64 %x4, %x4, 128; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra produce; bra end;\n\
         consume: and.b32 %r4, %r2, 1; mov.u32 %r5, s; mul.lo.u32 %r6, %r0, 4; add.u32 %r5, %r5, %r6;\n\
         look: mbarrier.try_wait.parity.shared::cta.b64 %p2, [full], %r4; @!%p2 bra look;\n\
         ld.shared.u32 %r6, [%r5]; mad.lo.u32 %r3, %r3, 3, %r6; mbarrier.arrive.shared.b64 %x5, [empty];\n\
         add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 9; @%p1 bra consume; st.global.u32 [%x1+1152], %r3;\n\
         end:",
    );
    let mut words = noise(9 * 32 + 32, 21);
    let want: Vec<u32> = (0..32)
        .map(|i| {
            let all = (0..9).map(|k| words[k * 32 + i]);
            all.fold(0u32, |sum, w| sum.wrapping_mul(3).wrapping_add(w))
        })
        .collect();
    // Phases order what is before and behind them, also for checks.
    let found = findings(&text, 64, &mut words);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(words[9 * 32..], want);
    launch(&text, 64, &mut words);
    assert_eq!(words[9 * 32..], want);
}

#[test]
fn bulk_copies_and_reductions_leave_shared_memory() {
    type Reference = fn(u32, u32) -> u32;
    let forms: [(&str, Reference); 9] = [
        ("", |_, new| new),
        ("add.u32", |a, b| a.wrapping_add(b)),
        ("and.b32", |a, b| a & b),
        ("or.b32", |a, b| a | b),
        ("xor.b32", |a, b| a ^ b),
        ("min.s32", |a, b| (a as i32).min(b as i32) as u32),
        ("max.u32", u32::max),
        ("inc.u32", |a, b| if a >= b { 0 } else { a + 1 }),
        ("dec.u32", |a, b| if a == 0 || a > b { b } else { a - 1 }),
    ];
    for (form, reference) in forms {
        let copy = match form {
            "" => "cp.async.bulk.global.shared::cta.bulk_group [%x0+64], [s], 64;".to_owned(),
            form => format!(
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%x0+64], [s], 64;"
            ),
        };
        let text = module(
            "",
            &format!(
                ".shared .align 16 .b8 s[64]; ld.global.u32 %r1, [%x1]; mov.u32 %r2, s; mad.lo.u32 %r2, %r0, 4, %r2;\n\
                 st.shared.u32 [%r2], %r1; fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 ret;\n\
                 {copy} cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; cp.async.bulk.wait_group 0;"
            ),
        );
        let mut words = noise(32, 9);
        let want: Vec<u32> = (0..16)
            .map(|i| reference(words[16 + i], words[i]))
            .collect();
        launch(&text, 16, &mut words);
        assert_eq!(words[16..], want, "{form}");
    }
    // Sums of floating point; these are exact.
    let text = module(
        "",
        ".shared .align 16 .b8 s[16]; st.shared.v4.u32 [s], {0x3f800000, 0x40000000, 0xbf800000, 0x3c003c00};\n\
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%x0], [s], 16;\n\
         st.shared.v2.u64 [s], {0x3ff0000000000000, 0x4000000000000000};\n\
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f64 [%x0+16], [s], 16;\n\
         st.shared.v4.u32 [s], {0x3c004000, 0, 0x4000bc00, 0x3c003c00};\n\
         cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%x0+32], [s], 16;",
    );
    let mut words = [1f32, 2.0, 4.0, 0.0].map(f32::to_bits).to_vec();
    words.extend([
        0,
        0x3ff0_0000,
        0,
        0x3ff0_0000,
        0x3c00_3c00,
        0x3c00_3c00,
        0,
        0,
    ]);
    launch(&text, 1, &mut words);
    let sums = [2f32, 4.0, 3.0, f32::from_bits(0x3c00_3c00)].map(f32::to_bits);
    assert_eq!(words[..4], sums);
    assert_eq!(words[4..8], [0, 0x4000_0000, 0, 0x4008_0000]);
    assert_eq!(
        words[8..],
        [0x4000_4200, 0x3c00_3c00, 0x4000_bc00, 0x3c00_3c00]
    );
}

#[test]
fn bulk_copies_are_checked_to_the_unit() {
    let copy = |to: &str, from: &str, bytes: u32| {
        module(
            "",
            &format!(
                ".shared .align 16 .b8 s[64]; cp.async.bulk.global.shared::cta.bulk_group [{to}], [{from}], {bytes};"
            ),
        )
    };
    let fault = |text: &str| try_launch(text, 1, &mut [0; 8]).unwrap_err().kind;
    let access = |kind: FaultKind| match kind {
        FaultKind::Access {
            address,
            store,
            space,
            ..
        } => (address, store, space),
        other => panic!("{other:?}"),
    };
    // Shared memory has 64 bytes, and the words 32.
    assert_eq!(
        access(fault(&copy("%x0", "s+48", 32))),
        (64, false, "shared memory")
    );
    let (_, store, space) = access(fault(&copy("%x0", "s", 48)));
    assert_eq!((store, space), (true, "GPU memory"));
    assert_eq!(
        access(fault(&copy("%x0", "s+8", 16))),
        (8, false, "shared memory")
    );
    fault(&copy("%x0", "s", 20));
    try_launch(&copy("%x0", "s", 32), 1, &mut [0; 8]).unwrap();
}

#[test]
fn a_barrier_in_two_parts_counts_those_who_do_not_wait() {
    // Warp 1 writes and arrives; warp 0 waits and reads. Three times, with a barrier of all
    // between.
    let text = module(
        "",
        ".shared .b32 s[32]; mov.u32 %r9, 0;\n\
         again: and.b32 %r1, %r0, 31; mov.u32 %r2, s; mad.lo.u32 %r2, %r1, 4, %r2; setp.lt.u32 %p1, %r0, 32; @%p1 bra reads;\n\
         mad.lo.u32 %r3, %r9, 100, %r1; st.shared.u32 [%r2], %r3; bar.arrive 1, 64; bra both;\n\
         reads: bar.sync 1, 64; ld.shared.u32 %r3, [%r2]; mad.wide.u32 %x2, %r9, 128, %x1; st.global.u32 [%x2], %r3;\n\
         both: barrier.sync 0; add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 3; @%p1 bra again;",
    );
    let mut words = vec![0; 96];
    launch(&text, 64, &mut words);
    let want: Vec<u32> = (0..3)
        .flat_map(|k| (0..32).map(move |i| k * 100 + i))
        .collect();
    assert_eq!(words, want);
}

#[test]
fn a_cluster_of_one_block_has_a_barrier() {
    // The last thread leaves before the second barrier; others write between arriving and waiting.
    let text = module(
        "",
        ".shared .b32 s[64]; mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 4, %r2; st.shared.u32 [%r3], %r0;\n\
         barrier.cluster.arrive.release; mov.u32 %r4, 63; sub.u32 %r4, %r4, %r0; mad.lo.u32 %r4, %r4, 4, %r2;\n\
         barrier.cluster.wait.acquire; ld.shared.u32 %r5, [%r4]; st.global.u32 [%x1], %r5;\n\
         setp.eq.u32 %p1, %r0, 63; @%p1 ret; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;\n\
         mapa.shared::cluster.u32 %r6, %r3, 0; getctarank.shared::cluster.u32 %r7, %r6; ld.shared::cluster.u32 %r8, [%r6];\n\
         mapa.u64 %x5, %x0, 0; setp.ne.u64 %p2, %x5, %x0; @%p2 trap; add.u32 %r8, %r8, %r7; st.global.u32 [%x1+256], %r8;",
    );
    let mut words = vec![0; 128];
    launch(&text, 64, &mut words);
    let want: Vec<u32> = (0..64).rev().chain(0..63).chain([0]).collect();
    assert_eq!(words, want);
}

/// Each store and atomic operation counts its bytes at a barrier, which other threads wait for.
#[test]
fn stores_and_reductions_tell_a_barrier() {
    type Reference = fn(u32, u32) -> u32;
    let forms: [(&str, Reference); 10] = [
        ("add.u32", u32::wrapping_add),
        ("add.s32", u32::wrapping_add),
        ("and.b32", |a, b| a & b),
        ("or.b32", |a, b| a | b),
        ("xor.b32", |a, b| a ^ b),
        ("min.u32", u32::min),
        ("min.s32", |a, b| (a as i32).min(b as i32) as u32),
        ("max.s32", |a, b| (a as i32).max(b as i32) as u32),
        ("inc.u32", |a, b| if a >= b { 0 } else { a + 1 }),
        ("dec.u32", |a, b| if a == 0 || a > b { b } else { a - 1 }),
    ];
    // The first thread waits for all bytes, which the others and it bring about.
    let around = |bytes: u32, body: &str| {
        module(
            "",
            &format!(
                ".shared .align 16 .b8 s[1024]; .shared .align 8 .b64 all; mov.u32 %r9, s; mad.lo.u32 %r9, %r0, 16, %r9;\n\
                 mad.wide.u32 %x1, %r0, 16, %x0; ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%x1];\n\
                 st.shared.v4.u32 [%r9], {{%r1, %r2, %r3, %r4}}; setp.ne.u32 %p1, %r0, 0; @%p1 bra ready;\n\
                 mbarrier.init.shared.b64 [all], 1; mbarrier.arrive.expect_tx.shared.b64 %x9, [all], {bytes};\n\
                 ready: bar.sync 0; {body}\n\
                 look: mbarrier.try_wait.parity.shared.b64 %p2, [all], 0; @!%p2 bra look;\n\
                 ld.shared.v4.u32 {{%r1, %r2, %r3, %r4}}, [%r9]; st.global.v4.u32 [%x1], {{%r1, %r2, %r3, %r4}};"
            ),
        )
    };
    let run = |bytes: u32, body: &str, reference: &dyn Fn(&mut [u32])| {
        let text = around(32 * bytes, body);
        let mut words = noise(128, 31);
        let mut want = words.clone();
        want.chunks_mut(4).for_each(reference);
        launch(&text, 32, &mut words);
        assert_eq!(words, want, "{text}");
        // One byte less than is expected: the phase does not complete, and all threads wait.
        let late = around(32 * bytes + 1, body);
        let ends = std::panic::catch_unwind(|| try_launch(&late, 32, &mut noise(128, 31)));
        assert!(ends.is_err(), "{late}");
    };
    let told = "mbarrier::complete_tx::bytes";
    for (form, reference) in forms {
        run(
            4,
            &format!("red.async.relaxed.cluster.shared::cluster.{told}.{form} [%r9], %r2, [all];"),
            &|w| w[0] = reference(w[0], w[1]),
        );
    }
    run(
        8,
        &format!("mov.b64 %x2, {{%r3, %r4}}; red.async.relaxed.cluster.{told}.add.u64 [%r9], %x2, [all];"),
        &|w| {
            let wide = |w: &[u32]| u64::from(w[0]) | u64::from(w[1]) << 32;
            let sum = wide(w).wrapping_add(wide(&w[2..]));
            (w[0], w[1]) = (sum as u32, (sum >> 32) as u32);
        },
    );
    run(
        4,
        &format!("st.async.shared::cluster.{told}.u32 [%r9+4], %r1, [all];"),
        &|w| w[1] = w[0],
    );
    run(
        16,
        &format!("st.async.weak.{told}.v4.b32 [%r9], {{%r4, %r3, %r2, %r1}}, [all];"),
        &|w| w.reverse(),
    );
    run(
        16,
        &format!("mov.b64 %x2, {{%r1, %r3}}; st.async.{told}.v2.b64 [%r9], {{%x2, %x2}}, [all];"),
        &|w| (w[1], w[2], w[3]) = (w[2], w[0], w[2]),
    );
}
