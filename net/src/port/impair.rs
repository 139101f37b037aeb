//! Fault injection around any port: loss, reordering, duplication, corruption, delay and a rate
//! limit.
//!
//! Packets are impaired on their way out, like a queueing discipline; wrap both ends for both ways.
//! One seeded generator decides everything and time is an argument, so a run can be repeated.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{
    is_frame, Arrived, Batch, Capabilities, Checksums, Destination, MacAddr, Port, PortCounters,
    RefusedBy,
};
use crate::wire::udp::MARKED;
use crate::wire::ETHERNET_HEADER;
use crate::NicTime;

/// Packets that may be under way in the impaired cable; then the port pushes back.
const IN_FLIGHT_MAX: usize = 4_096;

/// Faults of the cable. Probabilities are 0 to 1, per frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Faults {
    /// The frame is lost.
    pub loss: f64,
    /// The frame is held back by [`Faults::reorder_by`], so that later ones overtake it.
    pub reorder: f64,
    /// How long a reordered frame is held back.
    pub reorder_by: Duration,
    /// The frame arrives twice.
    pub duplicate: f64,
    /// One bit of the frame is flipped.
    pub corrupt: f64,
    /// Every frame takes this long.
    pub delay: Duration,
    /// And up to this much longer, evenly distributed.
    pub jitter: Duration,
    /// Bits per second that the cable carries.
    pub rate_bps: Option<u64>,
    /// IPv4 packets that must wait longer than this for the cable are marked, if their transport
    /// knows ECN (RFC 3168 §5), as a switch does it.
    pub mark_beyond: Option<Duration>,
    /// Seed of all decisions.
    pub seed: u64,
}

impl Default for Faults {
    /// A perfect cable; reordered frames, once asked for, are held back by 200 µs.
    fn default() -> Faults {
        Faults {
            loss: 0.0,
            reorder: 0.0,
            reorder_by: Duration::from_micros(200),
            duplicate: 0.0,
            corrupt: 0.0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate_bps: None,
            mark_beyond: None,
            seed: 0,
        }
    }
}

/// A port cannot be impaired like that.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImpairError {
    /// A probability is not between 0 and 1.
    #[error("{name} is a probability from 0 to 1, not {value}")]
    Probability {
        /// Which.
        name: &'static str,
        /// As given.
        value: f64,
    },
    /// The rate is zero.
    #[error("a rate of 0 bit/s carries nothing; leave it out for no limit")]
    Rate,
    /// No checksum would detect the corruption.
    #[error("this port omits checksums, so corruption would reach the application; make it with software checksums")]
    NoChecksums,
}

/// What the cable did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Impaired {
    /// Frames lost.
    pub lost: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames sent twice.
    pub duplicated: u64,
    /// Frames with a bit flipped.
    pub corrupted: u64,
    /// Frames marked.
    pub marked: u64,
}

/// What travels by a cable, with where it goes.
#[derive(Debug)]
struct Cable {
    faults: Faults,
    rng: u64,
    /// What is under way, by the time it leaves and the order it came in.
    queue: BTreeMap<(NicTime, u64), (Destination, Vec<u8>)>,
    sequence: u64,
    line_free: NicTime,
    done: Impaired,
}

impl Cable {
    fn new(faults: Faults, checksums: Checksums) -> Result<Cable, ImpairError> {
        let probabilities = [
            ("loss", faults.loss),
            ("reorder", faults.reorder),
            ("duplicate", faults.duplicate),
            ("corrupt", faults.corrupt),
        ];
        for (name, value) in probabilities {
            if !(0.0..=1.0).contains(&value) {
                return Err(ImpairError::Probability { name, value });
            }
        }
        if faults.rate_bps == Some(0) {
            return Err(ImpairError::Rate);
        }
        if faults.corrupt > 0.0 && checksums == Checksums::Omitted {
            return Err(ImpairError::NoChecksums);
        }
        Ok(Cable {
            faults,
            rng: faults.seed,
            queue: BTreeMap::new(),
            sequence: 0,
            line_free: NicTime(0),
            done: Impaired::default(),
        })
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= IN_FLIGHT_MAX
    }

    /// SplitMix64 (Steele et al., OOPSLA 2014): small, seeded, good enough for dice.
    fn random(&mut self) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.rng ^ (self.rng >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn happens(&mut self, probability: f64) -> bool {
        // Nothing is drawn for what is switched off, so that faults do not disturb each other.
        probability > 0.0 && ((self.random() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// Sends a packet on its way.
    fn put(&mut self, now: NicTime, mut to: Destination, bytes: &mut [u8]) {
        let f = self.faults;
        // Of a frame, the frame check sequence, which we do not carry, guards the Ethernet header.
        let guarded = match to {
            Destination::Link(_) => ETHERNET_HEADER,
            Destination::Socket { .. } => 0,
        };
        let mut due = now;
        if let Some(bps) = f.rate_bps {
            let on_wire = (bytes.len() as u64 * 8).saturating_mul(1_000_000_000) / bps;
            self.line_free = NicTime(self.line_free.max(now).0.saturating_add(on_wire));
            due = self.line_free;
            let waits = f.mark_beyond.is_some_and(|max| now.plus(max) < due);
            if waits && mark(&mut to, bytes) {
                self.done.marked += 1;
            }
        }
        if self.happens(f.loss) {
            self.done.lost += 1;
            return;
        }
        if self.happens(f.corrupt) && bytes.len() > guarded {
            let bits = (bytes.len() - guarded) as u64 * 8;
            let bit = (self.random() % bits) as usize;
            bytes[guarded + bit / 8] ^= 1 << (bit % 8);
            self.done.corrupted += 1;
        }
        due = due.plus(f.delay);
        if !f.jitter.is_zero() {
            let span = u64::try_from(f.jitter.as_nanos()).unwrap_or(u64::MAX);
            due = NicTime(due.0.saturating_add(self.random() % span.max(1)));
        }
        let twice = self.happens(f.duplicate);
        if self.happens(f.reorder) {
            self.done.reordered += 1;
            due = due.plus(f.reorder_by);
        }
        self.enqueue(due, to, bytes);
        if twice {
            self.done.duplicated += 1;
            self.enqueue(due, to, bytes);
        }
    }

    fn enqueue(&mut self, due: NicTime, to: Destination, bytes: &[u8]) {
        self.sequence += 1;
        self.queue
            .insert((due, self.sequence), (to, bytes.to_vec()));
    }

    /// Hands over what is due, until `send` has no room.
    fn release(&mut self, now: NicTime, mut send: impl FnMut(&Destination, &[u8]) -> bool) {
        while let Some(first) = self.queue.first_entry() {
            let (to, bytes) = first.get();
            if first.key().0 > now || !send(to, bytes) {
                return;
            }
            first.remove();
        }
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.queue.first_key_value().map(|((due, _), _)| *due)
    }

    fn describe(&self, inner: &str) -> String {
        let f = &self.faults;
        format!(
            "{inner} with loss {} reorder {} duplicate {} corrupt {} seed {}",
            f.loss, f.reorder, f.duplicate, f.corrupt, f.seed
        )
    }
}

/// Marks a packet whose transport knows ECN. `false`: it does not, or was marked before.
fn mark(to: &mut Destination, packet: &mut [u8]) -> bool {
    match to {
        Destination::Link(_) => mark_frame(packet),
        Destination::Socket { ecn, .. } => {
            let may = matches!(*ecn, 1 | 2);
            *ecn |= if may { MARKED } else { 0 };
            may
        }
    }
}

/// Marks the IPv4 packet of an Ethernet frame, if its transport knows ECN (RFC 3168 §5), as a
/// switch does it; its checksum follows. `false`: it does not, or was marked before.
pub fn mark_frame(frame: &mut [u8]) -> bool {
    frame.get_mut(ETHERNET_HEADER..).is_some_and(mark_ipv4)
}

/// Marks an IPv4 packet, as [`mark`] does.
fn mark_ipv4(packet: &mut [u8]) -> bool {
    let Some(header) = packet.get_mut(..20).filter(|h| h[0] == 0x45) else {
        return false;
    };
    let (before, ecn) = (header[1], header[1] & MARKED);
    if ecn == 0 || ecn == MARKED {
        return false;
    }
    header[1] |= MARKED;
    // The checksum follows by RFC 1624 §3, equation 3.
    let sum = u16::from_be_bytes([header[10], header[11]]);
    let mut new = u32::from(!sum) + u32::from(!u16::from(before)) + u32::from(header[1]);
    new = (new & 0xffff) + (new >> 16);
    new = (new & 0xffff) + (new >> 16);
    header[10..12].copy_from_slice(&(!(new as u16)).to_be_bytes());
    true
}

/// A port behind a bad cable. Packets of a batch leave one by one.
pub struct Impair {
    inner: Box<dyn Port>,
    cable: Cable,
    /// The packet being written, and where it goes.
    scratch: Box<[u8]>,
    dst: MacAddr,
    /// The packet that the cable hands over.
    batch: Batch,
    /// Packets whose length none of the port has.
    dropped: u64,
}

impl Impair {
    /// Puts a bad cable on a port.
    ///
    /// # Errors
    /// [`ImpairError`] names the setting that makes no sense.
    pub fn new(inner: Box<dyn Port>, faults: Faults) -> Result<Impair, ImpairError> {
        let able = inner.capabilities();
        let header = if able.medium.has_frames() {
            ETHERNET_HEADER
        } else {
            0
        };
        Ok(Impair {
            cable: Cable::new(faults, able.checksums)?,
            scratch: vec![0; header + able.mtu].into(),
            inner,
            dst: MacAddr::default(),
            batch: Batch::new(),
            dropped: 0,
        })
    }

    /// What the cable did so far.
    pub fn impaired(&self) -> Impaired {
        self.cable.done
    }

    /// Hands over the packets whose time has come.
    fn release(&mut self, now: NicTime) {
        let (inner, batch) = (&mut self.inner, &mut self.batch);
        self.cable.release(now, |to, packet| {
            batch.clear();
            batch.put(packet);
            batch.end();
            inner.send(now, to, batch, 0) == batch.len()
        });
    }
}

impl Port for Impair {
    fn describe(&self) -> String {
        self.cable.describe(&self.inner.describe())
    }

    fn report(&self) -> Vec<String> {
        self.inner.report()
    }
    fn no_way(&self, to: Option<MacAddr>) -> Option<String> {
        self.inner.no_way(to)
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        self.inner.mtu_to(to)
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        self.inner.receive(now)
    }

    fn tx_frame(&mut self, _now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        if self.cable.is_full() {
            return None;
        }
        self.dst = dst;
        Some(&mut self.scratch)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        if !is_frame(len, self.capabilities().mtu) {
            self.dropped += 1;
            return;
        }
        let to = Destination::Link(self.dst);
        self.cable.put(now, to, &mut self.scratch[..len]);
        self.release(now);
    }
    fn send(&mut self, now: NicTime, to: &Destination, batch: &Batch, from: usize) -> usize {
        let mut taken = 0;
        for packet in from..batch.len() {
            if self.cable.is_full() {
                break;
            }
            taken += 1;
            if batch.copy_to(packet, &mut self.scratch) {
                let packet = &mut self.scratch[..batch.len_of(packet)];
                self.cable.put(now, *to, packet);
            } else {
                self.dropped += 1;
            }
        }
        self.release(now);
        taken
    }

    fn flush(&mut self, now: NicTime) {
        self.release(now);
        self.inner.flush(now);
    }
    fn next_timer(&self) -> Option<NicTime> {
        NicTime::earliest([self.cable.next_timer(), self.inner.next_timer()])
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.inner.poll_fds(fds);
    }
    fn next_refused(&mut self) -> Option<RefusedBy> {
        self.inner.next_refused()
    }
    fn counters(&self) -> PortCounters {
        let inner = self.inner.counters();
        PortCounters {
            tx_dropped: inner.tx_dropped + self.cable.done.lost + self.dropped,
            ..inner
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::mem::{mac_of, MemPort, MemSwitch};

    fn cable(faults: Faults) -> (Impair, MemPort) {
        let sw = MemSwitch::private(2, 1500, Checksums::Software).unwrap(); // numbers in range
        let (a, b) = (sw.port(0).unwrap(), sw.port(1).unwrap()); // free ports
        (Impair::new(Box::new(a), faults).unwrap(), b) // the test's faults make sense
    }

    /// Sends `n` numbered frames, 1 µs apart; gives the numbers in order of arrival.
    fn run(faults: Faults, n: u16) -> (Vec<u16>, Impaired) {
        let (mut a, mut b) = cable(faults);
        let mut got = Vec::new();
        let mut now = NicTime(0);
        let mut sent = 0;
        while sent < n || a.next_timer().is_some() {
            if sent < n {
                let room = a.tx_frame(now, mac_of(1)).unwrap(); // far fewer than fit
                room[..60].fill(0);
                room[..6].copy_from_slice(&mac_of(1).0);
                room[20..22].copy_from_slice(&sent.to_be_bytes());
                a.tx_commit(now, 60);
                sent += 1;
            }
            a.flush(now);
            while let Some(f) = b.receive(now) {
                got.push(u16::from_be_bytes([f[20], f[21]]));
            }
            now.0 += 1_000;
        }
        (got, a.impaired())
    }

    #[test]
    fn each_fault_has_its_own_effect_only() {
        let all: Vec<u16> = (0..1000).collect();
        assert_eq!(run(Faults::default(), 1000).0, all);

        let (got, did) = run(
            Faults {
                loss: 0.1,
                seed: 1,
                ..Faults::default()
            },
            1000,
        );
        assert_eq!(got.len() as u64, 1000 - did.lost);
        assert!((60..140).contains(&did.lost) && got.is_sorted());

        let (mut got, did) = run(
            Faults {
                reorder: 0.1,
                seed: 2,
                ..Faults::default()
            },
            1000,
        );
        assert!((60..140).contains(&did.reordered) && !got.is_sorted());
        got.sort_unstable();
        assert_eq!(got, all);

        let (mut got, did) = run(
            Faults {
                duplicate: 0.1,
                seed: 3,
                ..Faults::default()
            },
            1000,
        );
        assert_eq!(got.len() as u64, 1000 + did.duplicated);
        got.dedup();
        assert_eq!(got, all);

        let jitter = Duration::from_micros(50);
        let (mut got, _) = run(
            Faults {
                delay: jitter,
                jitter,
                seed: 4,
                ..Faults::default()
            },
            1000,
        );
        assert!(!got.is_sorted());
        got.sort_unstable();
        assert_eq!(got, all);
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        let faults = Faults {
            loss: 0.05,
            reorder: 0.1,
            duplicate: 0.02,
            seed: 9,
            ..Faults::default()
        };
        assert_eq!(run(faults, 2000), run(faults, 2000));
        assert_ne!(run(faults, 2000), run(Faults { seed: 10, ..faults }, 2000));
    }

    #[test]
    fn a_rate_limit_spaces_frames() {
        // 60 bytes at 48 Mb/s take 10 µs each.
        let (mut a, mut b) = cable(Faults {
            rate_bps: Some(48_000_000),
            ..Faults::default()
        });
        for _ in 0..5 {
            a.tx_frame(NicTime(0), mac_of(1)).unwrap()[..6].copy_from_slice(&mac_of(1).0); // room
            a.tx_commit(NicTime(0), 60);
        }
        for i in 1..=5u64 {
            assert_eq!(a.next_timer(), Some(NicTime(i * 10_000)));
            a.flush(NicTime(i * 10_000));
            assert!(b.receive(NicTime(0)).is_some() && b.receive(NicTime(0)).is_none());
        }
    }

    #[test]
    fn invalid_faults_are_refused() {
        let sw = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
        let of = |f| Impair::new(Box::new(sw.port(0).unwrap()), f).err(); // freed after each call
        assert_eq!(
            of(Faults {
                corrupt: 0.1,
                ..Faults::default()
            }),
            Some(ImpairError::NoChecksums)
        );
        assert!(matches!(
            of(Faults {
                loss: 5.0,
                ..Faults::default()
            }),
            Some(ImpairError::Probability { name: "loss", .. })
        ));
        assert_eq!(
            of(Faults {
                rate_bps: Some(0),
                ..Faults::default()
            }),
            Some(ImpairError::Rate)
        );
    }
}
