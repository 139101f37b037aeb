//! Hostile programs at simulated hardware: it answers as the software NIC does, and goes on.
#![allow(unsafe_code)] // Writes entries and registers as a kernel does.
#![allow(clippy::disallowed_methods)] // Waits, as a kernel that is stopped between two stores.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ringbell::abi::bar::BAR_BYTES;
use ringbell::abi::descriptor::lap_bit;
use ringbell::abi::{Descriptor, Flags, GpuVa, Opcode, SessionId, Status};
use ringbell::{DeviceBuffer, HostQueue, Listener, Nic, Socket};

use super::{counts, stream, Folder};

/// No answer that comes later is an answer.
const LIMIT: Duration = Duration::from_secs(30);
const ROOM: u64 = 64 << 10;
const ENTRIES: u64 = 1_500;
/// Entries until the connection is made anew.
const ROUND: u64 = 30;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Two NICs of a kind, a queue at the first, and a connection between them.
struct Pair {
    link: (Socket, Socket),
    listener: Listener,
    /// For connections that entries make by chance.
    _other: Listener,
    queue: HostQueue,
    room: DeviceBuffer<u8>,
    nics: [Nic; 2],
    _folder: Folder,
}

impl Pair {
    fn new(kind: &str) -> Pair {
        let folder = Folder::new();
        let nics = [1, 2].map(|last| {
            let builder = Nic::builder().nic(kind).gpu("emulated");
            let builder = builder.gpu_memory(16 << 20).directory(&folder.0);
            let nic = builder.ip(format!("10.9.61.{last}/24")).open();
            nic.expect("a NIC")
        });
        let listener = nics[1].listen(70).expect("a free port");
        Pair {
            link: link(&nics, &listener),
            listener,
            _other: nics[1].listen(71).expect("a free port"),
            queue: nics[0].create_queue().expect("a queue"),
            room: nics[0].alloc(ROOM).expect("room"),
            nics,
            _folder: folder,
        }
    }

    fn renew(&mut self) {
        self.link = link(&self.nics, &self.listener);
    }

    /// An entry that is illegal, or legal by chance: the same for each kind of NIC but for
    /// addresses and the session.
    fn entry(&self, seed: u64, deadline_us: u64) -> [u64; 8] {
        let random = &mut Random(seed);
        let mut words = match random.below(4) {
            0 => std::array::from_fn(|_| random.next()),
            // An opcode, known or not, and rubbish in some other words.
            1 => {
                let mut words = [0; 8];
                words[0] = random.below(32);
                for _ in 0..random.below(4) {
                    words[random.below(8) as usize] ^= random.next();
                }
                words
            }
            _ => self.near(random).encode(0).0,
        };
        for _ in 0..random.one(&[0, 0, 1, 2]) {
            words[random.below(8) as usize] ^= 1 << random.below(64);
        }
        words[7] &= !(0xffff_ffff << 8);
        words[7] |= deadline_us << 8;
        words
    }

    /// A descriptor that could be right.
    fn near(&self, random: &mut Random) -> Descriptor {
        let va = self.room.va().0;
        let own = self.link.0.session().0;
        let last = Opcode::CompareSwap as u64;
        let opcode = Opcode::from_code(1 + random.below(last) as u8).expect("a code");
        let places = [
            0,
            1,
            va,
            va + 1,
            va + ROOM - 1,
            va + ROOM,
            va - 1,
            !0 >> 1,
            1 << 52,
        ];
        let lens = [0, 1, 40, 41, 64, 500, ROOM as u32, ROOM as u32 + 1, !0];
        Descriptor {
            flags: Flags(random.one(&[0, 0, 0, 1, 2, 4, 8, 255])),
            session: SessionId(random.one(&[own, own, own, 0, own + 1, 0x00ff_ffff])),
            inline_len: random.one(&[0, 0, 1, 8, 40]),
            local_va: GpuVa(random.one(&places)),
            remote_va: GpuVa(random.one(&places)),
            len: random.one(&lens),
            imm: random.one(&[0, 1, 71, 72, !0]),
            operand: random.one(&[0, 1, va, 0x0a09_3d02, !0 >> 1]),
            wr_id: random.next(),
            ..Descriptor::new(opcode)
        }
    }

    /// What the NIC answers: status, opcode, and the caller's number.
    fn answer(&self, words: [u64; 8]) -> (Status, u8, u64) {
        let ticket = self.queue.try_post_raw(words).expect("a free slot");
        let end = self.queue.wait(ticket, LIMIT).expect("an answer");
        (end.status, end.opcode, end.wr_id)
    }

    /// Shows that the NICs still work.
    fn works(&mut self) {
        self.renew();
        let data: Vec<u8> = (0..100_003_u32).map(|i| (i * 11) as u8).collect();
        stream((&self.nics[0], &self.nics[1]), &self.link, &data);
    }
}

fn link([from, to]: &[Nic; 2], listener: &Listener) -> (Socket, Socket) {
    let client = from.connect(&*format!("{}:70", to.ip().ip)).expect("there");
    let server = listener.accept().expect("it");
    client.set_timeout(LIMIT);
    server.set_timeout(LIMIT);
    (client, server)
}

#[test]
fn illegal_entries_are_answered_as_by_the_software_nic() {
    let mut pairs = [Pair::new("soft"), Pair::new("rtl")];
    let before = counts(&pairs[1].nics[0]).cycles.fetched;
    let waits = |s: Status| matches!(s, Status::Ok | Status::TimedOut);
    let by_key = |s: Status| matches!(s, Status::BadKey | Status::OutOfBounds);
    let mut refused = 0;
    for seed in 0..ENTRIES {
        if seed % ROUND == 0 {
            pairs.iter_mut().for_each(Pair::renew);
        }
        let ask = |pairs: &[Pair; 2], deadline| {
            [0, 1].map(|i: usize| pairs[i].answer(pairs[i].entry(seed, deadline)))
        };
        let entry = pairs[1].entry(seed, 0);
        let [mut soft, mut rtl] = ask(&pairs, 1_000);
        if soft != rtl {
            // What a peer refuses may come after a deadline: simulated hardware is slow.
            pairs.iter_mut().for_each(Pair::renew);
            [soft, rtl] = ask(&pairs, 2_000_000);
        }
        // Bytes without a receive wait in the hardware, or in the sender's memory.
        let is_sent = soft.1 == Opcode::Send as u8 && waits(soft.0) && waits(rtl.0);
        // A key that is guessed names another region: with hardware a NIC has one more.
        let is_guessed = (entry[2] | entry[4]) >> 32 != 0 && (by_key(soft.0) || by_key(rtl.0));
        if is_sent || is_guessed {
            pairs.iter_mut().for_each(Pair::renew);
        } else {
            assert_eq!(rtl, soft, "entry {seed}: {entry:x?}");
        }
        refused += u64::from(!waits(rtl.0));
    }
    assert!(refused > ENTRIES / 2, "{refused} of {ENTRIES}");
    pairs[1].works();
    let c = counts(&pairs[1].nics[0]);
    assert!(c.cycles.fetched - before >= ENTRIES, "{c:?}");
    assert_eq!((c.misjudged, c.cycles.strays), (0, 0));
}

/// Stores an entry's words but one, as a kernel that is stopped there, rings, and stores the last
/// word later.
#[test]
fn an_entry_is_taken_when_it_is_whole_whatever_the_doorbell_says() {
    let pair = Pair::new("rtl");
    let (mut random, h) = (Random(5), pair.queue.handle());
    let word = |va: u64, i: u64| {
        // SAFETY: kernels of the emulated GPU are threads of the host; the ring is mapped while the
        // queue lives.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>((va + 8 * i) as usize) }
    };
    let half = |va: u64| {
        // SAFETY: as above; a register of the BAR.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(va as usize) }
    };
    for round in 0..40_u64 {
        let ticket = half(h.tail).fetch_add(1, Ordering::AcqRel);
        let slot = u64::from(ticket) & ((1 << h.depth_log2) - 1);
        let d = Descriptor {
            wr_id: round,
            ..Descriptor::new(Opcode::Nop)
        };
        let entry = d.encode(lap_bit(ticket, h.depth_log2)).0;
        let last = random.below(8) as usize;
        for (i, value) in entry.into_iter().enumerate().filter(|(i, _)| *i != last) {
            word(h.sq + slot * 64, i as u64).store(value, Ordering::Release);
        }
        for _ in 0..3 {
            half(h.doorbell).store(random.next() as u32, Ordering::Release);
            std::thread::sleep(Duration::from_micros(300));
        }
        // The high half of the line's first word is the ticket and one.
        let done = word(h.cq + slot * 64, 0).load(Ordering::Acquire) >> 32;
        assert_ne!(
            done as u32,
            ticket.wrapping_add(1),
            "round {round}: taken too early"
        );
        word(h.sq + slot * 64, last as u64).store(entry[last], Ordering::Release);
        half(h.doorbell).store(ticket.wrapping_add(1), Ordering::Release);
        let end = pair.queue.wait(ticket, LIMIT).expect("an answer");
        assert_eq!((end.status, end.wr_id), (Status::Ok, round));
    }
}

/// What a kernel can store to: every word of the BAR.
#[test]
fn stores_to_any_register_leave_a_nic_that_works() {
    let mut pair = Pair::new("rtl");
    let (mut random, h) = (Random(6), pair.queue.handle());
    for _ in 0..30_000 {
        let offset = random.below(BAR_BYTES as u64 / 4) * 4;
        let value = random.next() as u32 >> random.one(&[0, 8, 16, 31]);
        let at = std::ptr::with_exposed_provenance::<AtomicU32>((h.bar + offset) as usize);
        // SAFETY: inside the BAR, which kernels of the emulated GPU have mapped.
        unsafe { &*at }.store(value, Ordering::Release);
    }
    let nop = pair.queue.call(&Descriptor::new(Opcode::Nop));
    assert_eq!(nop.expect("an answer").status, Status::Ok);
    pair.works();
}

/// Transfers in both directions with deadlines of microseconds, and ends of the peer in the middle
/// of them.
#[test]
fn operations_that_end_early_leave_a_nic_that_works() {
    let mut pair = Pair::new("rtl");
    let peer = pair.nics[1].create_queue().expect("a queue");
    let mut random = Random(7);
    for round in 0..60 {
        pair.renew();
        let session = pair.link.0.session();
        let some = |random: &mut Random, opcode| Descriptor {
            session,
            local_va: GpuVa(pair.room.va().0 + random.below(ROOM / 2)),
            len: 1 + random.below(ROOM / 2) as u32,
            timeout_us: 1 + random.below(3_000) as u32,
            ..Descriptor::new(opcode)
        };
        let tickets: Vec<u32> = (0..random.below(9))
            .map(|_| {
                let opcode = random.one(&[Opcode::Send, Opcode::Recv]);
                pair.queue
                    .try_post(&some(&mut random, opcode))
                    .expect("a free slot")
            })
            .collect();
        std::thread::sleep(Duration::from_micros(random.below(2_000)));
        if round % 2 == 0 {
            let abort = Descriptor {
                session: pair.link.1.session(),
                ..Descriptor::new(Opcode::Abort)
            };
            peer.call(&abort).expect("an answer");
        }
        for ticket in tickets {
            let end = pair.queue.wait(ticket, LIMIT);
            let status = end.unwrap_or_else(|e| panic!("round {round}: {e}")).status;
            let early = [
                Status::Ok,
                Status::TimedOut,
                Status::ConnectionReset,
                Status::NotConnected,
                Status::Aborted,
                Status::EndOfStream,
            ];
            assert!(early.contains(&status), "round {round}: {status:?}");
        }
    }
    pair.works();
    let c = counts(&pair.nics[0]);
    assert_eq!((c.misjudged, c.cycles.strays), (0, 0));
}
