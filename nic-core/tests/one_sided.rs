//! One-sided operations over `local`, `rdma` and `iwarp`: descriptors at one NIC, memory of the
//! other.

use crate::nic_support;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Flags, Opcode, Rkey, Status};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::HostBuffer;

/// Two NICs; peers may do everything in the second's memory, under the key returned.
fn pair(via: Via, dir: &TempDir) -> (Host, Host, Rkey) {
    pair_over(via, dir, None)
}

/// The same; with a seed the second's memory takes bytes late.
fn pair_over(via: Via, dir: &TempDir, slow: Option<u64>) -> (Host, Host, Rkey) {
    let target = Setup {
        access: Access::REMOTE,
        slow,
        ..Setup::new(dir, 2)
    };
    let [a, b] = via.hosts([Setup::new(dir, 1), target]);
    let rkey = b.rkey();
    (a, b, rkey)
}

over_each!(
    a_put_lands_and_its_signal_follows,
    every_size_is_put_and_got_as_in_plain_memory,
    words_are_updated_atomically_and_give_their_value_before,
    a_put_to_late_memory_ends_with_its_bytes_in_place,
    words_follow_the_bytes_of_late_memory,
);

/// Puts of all lengths, several under way; each one's bytes are compared when it has ended.
pub(crate) fn a_put_to_late_memory_ends_with_its_bytes_in_place(via: Via) {
    for seed in 0..8 {
        let dir = TempDir::new();
        let (a, b, rkey) = pair_over(via, &dir, Some(seed));
        let hosts = [&a, &b];
        let (s, _) = connected(&hosts, 0, 1, 7);
        let mut rng = Rng::new(seed);
        for _ in 0..12 {
            let mut open = Vec::new();
            let mut at = rng.below(100);
            for _ in 0..1 + rng.below(6) {
                let most = [8, 40, 3000, 200_000][rng.below(4) as usize];
                let len = 1 + rng.below(most) as u32;
                let data = rng.bytes(len as usize);
                a.poke(at, &data);
                open.push((a.post(&put(s, rkey, at, at, len)), at, data));
                at += u64::from(len) + rng.below(5000);
            }
            while !open.is_empty() {
                for h in hosts {
                    h.nic.step();
                }
                open.retain(|(ticket, at, data)| {
                    let Some(c) = a.queue.poll(*ticket) else {
                        return true;
                    };
                    assert_eq!((c.status, c.bytes), (Status::Ok, data.len() as u64));
                    assert!(b.peek(*at, data.len()) == *data, "seed {seed}: {c:?}");
                    false
                });
            }
        }
    }
}

/// The word lies in memory that the CPU reaches, and the bytes before it elsewhere.
pub(crate) fn words_follow_the_bytes_of_late_memory(via: Via) {
    let word_of = |h: &HostBuffer| {
        let mut word = [0; 8];
        h.read(0, &mut word).expect("inside");
        u64::from_le_bytes(word)
    };
    for seed in 0..30 {
        let dir = TempDir::new();
        let (a, b, rkey) = pair_over(via, &dir, Some(seed));
        let hosts = [&a, &b];
        let (s, _) = connected(&hosts, 0, 1, 7);
        let mut rng = Rng::new(seed);
        let words = b.nic.adopt_host(b.pd, vec![0; 4096], Access::REMOTE);
        let words = words.expect("registered");
        let info = b.nic.pointer_info(b.pd, words.va()).expect("registered");
        let key = info.region.rkey;
        for round in 1..20 {
            let most = [40, 3000, 100_000][rng.below(3) as usize];
            let len = 1 + rng.below(most) as u32;
            let data = rng.bytes(len as usize);
            a.poke(0, &data);
            let bytes = a.post(&put(s, rkey, 0, 4096, len));
            let mut d = match rng.below(3) {
                0 => fetch_add(s, key, 0, 1),
                // A signal alone, and one behind bytes of its own.
                n => signalled(put(s, key, 0, 0, (n as u32 - 1) * 9), 0, 1),
            };
            d.remote_va = words.va();
            if d.opcode == Opcode::Put {
                d.remote_va.0 += 64;
            }
            let after = a.post(&d);
            let mut ends = [None; 2];
            let mut is_seen = false;
            while ends.iter().any(Option::is_none) {
                for h in hosts {
                    h.nic.step();
                    if !is_seen && word_of(&words) == round {
                        is_seen = true;
                        assert!(b.peek(4096, data.len()) == data, "seed {seed}: {d:?}");
                    }
                }
                for (end, ticket) in ends.iter_mut().zip([bytes, after]) {
                    *end = end.or_else(|| a.queue.poll(ticket));
                }
            }
            assert!(is_seen, "seed {seed}");
            for c in ends.into_iter().flatten() {
                assert_eq!(c.status, Status::Ok, "seed {seed}: {c:?}");
            }
        }
    }
}

fn word(h: &Host, at: u64) -> u64 {
    u64::from_le_bytes(h.peek(at, 8).try_into().expect("8 bytes"))
}

pub(crate) fn a_put_lands_and_its_signal_follows(via: Via) {
    let dir = TempDir::new();
    let (a, b, rkey) = pair(via, &dir);
    let hosts = [&a, &b];
    let (s, _) = connected(&hosts, 0, 1, 7);
    a.poke(0, b"12345678");
    let done = call(&hosts, 0, &put(s, rkey, 0, 4096, 8));
    assert_eq!((done.status, done.bytes), (Status::Ok, 8));
    assert_eq!(b.peek(4096, 8), b"12345678");
    let mut d = signalled(remote(Opcode::Put, s, rkey, 8192), 2, 5);
    d.flags = d.flags.union(Flags::INLINE);
    d.inline_len = 3;
    d.inline[..3].copy_from_slice(b"abc");
    for round in 1..=2 {
        let done = call(&hosts, 0, &d);
        assert_eq!((done.status, done.bytes), (Status::Ok, 3));
        assert_eq!(b.peek(8192, 4), b"abc\0");
        assert_eq!(word(&b, 16), 5 * round);
    }
    // A signal alone, stored instead of added.
    let mut d = signalled(put(s, rkey, 0, 0, 0), 2, u64::MAX);
    d.flags = d.flags.union(Flags::SIGNAL_SET);
    assert_eq!(call(&hosts, 0, &d).status, Status::Ok);
    assert_eq!(word(&b, 16), u64::MAX);
    let c = a.nic.counters();
    assert_eq!(c.accepted, c.retired);
}

pub(crate) fn every_size_is_put_and_got_as_in_plain_memory(via: Via) {
    let dir = TempDir::new();
    let (a, b, rkey) = pair(via, &dir);
    let hosts = [&a, &b];
    let (s, _) = connected(&hosts, 0, 1, 7);
    let mut rng = Rng::new(17);
    let all = 8 << 20;
    // Words 0 to 63 of the region are for signals.
    let low = 512;
    let mut model = rng.bytes(all);
    b.poke(0, &model);
    let sizes = [
        0u32, 1, 7, 8, 31, 32, 33, 40, 41, 119, 120, 121, 4095, 65_535, 65_536, 65_537, 300_001,
        3_000_000,
    ];
    for round in 0..60 {
        let len = match round < sizes.len() {
            true => sizes[round],
            false => rng.below(200_000) as u32,
        };
        let room = all as u64 - low - u64::from(len);
        let (from, to) = (rng.below(room), low + rng.below(room));
        let data = rng.bytes(len as usize);
        a.poke(from, &data);
        let (n, value) = (rng.below(64) as u32, rng.below(u64::MAX));
        let done = call(&hosts, 0, &signalled(put(s, rkey, from, to, len), n, value));
        assert_eq!((done.status, done.bytes), (Status::Ok, len.into()), "{len}");
        model[to as usize..][..len as usize].copy_from_slice(&data);
        let at = n as usize * 8;
        let before = u64::from_le_bytes(model[at..at + 8].try_into().expect("8 bytes"));
        model[at..at + 8].copy_from_slice(&before.wrapping_add(value).to_le_bytes());
        assert!(b.peek(0, all) == model, "bytes differ after a put of {len}");

        let (from, to) = (rng.below(room), rng.below(room));
        let done = call(&hosts, 0, &get(s, rkey, from, to, len));
        assert_eq!((done.status, done.bytes), (Status::Ok, len.into()), "{len}");
        let got = a.peek(to, len as usize);
        assert!(got == model[from as usize..][..len as usize], "got {len}");
    }
}

pub(crate) fn words_are_updated_atomically_and_give_their_value_before(via: Via) {
    let dir = TempDir::new();
    let (a, b, rkey) = pair(via, &dir);
    let hosts = [&a, &b];
    let (s, _) = connected(&hosts, 0, 1, 7);
    let at = 4096 + 8;
    b.poke(at, &(u64::MAX - 1).to_le_bytes());
    let done = call(&hosts, 0, &fetch_add(s, rkey, at, 3));
    assert_eq!(
        (done.status, done.bytes, done.detail),
        (Status::Ok, 8, u64::MAX - 1)
    );
    assert_eq!(word(&b, at), 1);
    let done = call(&hosts, 0, &compare_swap(s, rkey, at, 2, 9));
    assert_eq!((done.status, done.detail, word(&b, at)), (Status::Ok, 1, 1));
    let done = call(&hosts, 0, &compare_swap(s, rkey, at, 1, 1 << 63));
    assert_eq!((done.status, done.detail), (Status::Ok, 1));
    assert_eq!(word(&b, at), 1 << 63);
    for off in 1..8 {
        let done = call(&hosts, 0, &fetch_add(s, rkey, at + off, 1));
        let va = BASE.0 + at + off;
        assert_eq!((done.status, done.detail), (Status::InvalidArgument, va));
    }
    assert_eq!(word(&b, at), 1 << 63);
}

#[test]
fn a_transport_without_one_sided_operations_says_so() {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let port = switch.port(usize::from(n) - 1).expect("port");
        Host::over(&Setup::new(&dir, n), Box::new(port), TcpConfig::default())
    };
    let (a, b) = (host(1), host(2));
    let hosts = [&a, &b];
    let (s, _) = connected(&hosts, 0, 1, 7);
    let all = [
        put(s, Rkey(1), 0, 0, 8),
        get(s, Rkey(1), 0, 0, 8),
        fetch_add(s, Rkey(1), 0, 1),
        compare_swap(s, Rkey(1), 0, 1, 2),
    ];
    for d in all {
        let done = call(&hosts, 0, &d);
        let opcode = d.opcode.code().into();
        assert_eq!((done.status, done.detail), (Status::Unsupported, opcode));
    }
    assert_eq!(call(&hosts, 0, &send_inline(s, b"x")).status, Status::Ok);
}
