//! Two NICs over each transport, and models of engines' output for a stream.
#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.
#![allow(dead_code)] // Each test uses a part of it.

use std::net::Ipv4Addr;

use super::meshes::ends;
use super::nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{SessionId, Status};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::rdma::RdmaConfig;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::transport::udp::UdpConfig;
use ringbell_onc_engines::stream::{EngineError, Registry, StreamEngine};

/// Two NICs that reach each other.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) hosts: [Host; 2],
    _dir: TempDir,
}

pub(crate) fn local() -> Subject {
    let dir = TempDir::new();
    Subject {
        name: "local",
        hosts: [1, 2].map(|n| Host::new(&Setup::new(&dir, n))),
        _dir: dir,
    }
}

pub(crate) fn over(name: &'static str, faults: Option<Faults>) -> Subject {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = switch.port(usize::from(n) - 1).expect("port");
        let port: Box<dyn Port> = match faults {
            None => Box::new(port),
            Some(f) => {
                let seed = f.seed * 2 + u64::from(n);
                Box::new(
                    Impair::new(Box::new(port), Faults { seed, ..f }).expect("faults in range"),
                )
            }
        };
        let config = TcpConfig {
            rto_min: std::time::Duration::from_millis(20),
            ..TcpConfig::default()
        };
        Host::over(&setup, port, config)
    };
    Subject {
        name,
        hosts: [host(1), host(2)],
        _dir: dir,
    }
}

/// By RDMA over NICs that forward, so many hops apart.
fn over_mesh(name: &'static str, hops: usize) -> Subject {
    let dir = TempDir::new();
    let (ports, forwarders) = ends(hops, 1500, 0);
    let mut n = 0;
    let mut hosts = ports.map(|port| {
        n += 1;
        let setup = Setup::new(&dir, n);
        let config = RdmaConfig {
            seed: n.into(),
            ..RdmaConfig::default()
        };
        Host::with(&setup, |nic| with_rdma(&setup, nic, Box::new(port), config))
    });
    hosts[0].keep = Some(Box::new(forwarders));
    Subject {
        name,
        hosts,
        _dir: dir,
    }
}

/// Over plain datagrams.
fn over_udp() -> Subject {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = switch.port(usize::from(n) - 1).expect("port");
        let config = UdpConfig {
            seed: n.into(),
            ..UdpConfig::default()
        };
        Host::with(&setup, |nic| with_udp(&setup, nic, Box::new(port), config))
    };
    Subject {
        name: "udp",
        hosts: [host(1), host(2)],
        _dir: dir,
    }
}

fn over_iwarp() -> Subject {
    let dir = TempDir::new();
    let setups = [1, 2].map(|n| Setup::new(&dir, n));
    Subject {
        name: "iwarp",
        hosts: iwarp_hosts(Ipv4Addr::LOCALHOST.into(), true, setups),
        _dir: dir,
    }
}

pub(crate) fn all() -> [Subject; 6] {
    let bad = Faults {
        loss: 0.02,
        reorder: 0.1,
        duplicate: 0.05,
        seed: 9,
        ..Faults::default()
    };
    [
        local(),
        over("tcp", None),
        over("bad cable", Some(bad)),
        over_mesh("one hop", 1),
        over_udp(),
        over_iwarp(),
    ]
}

/// More hops apart. A thread steps the NICs between, so steps of these two alone say nothing.
pub(crate) fn far() -> [Subject; 2] {
    [over_mesh("two hops", 2), over_mesh("four hops", 4)]
}

impl Subject {
    /// Both.
    pub(crate) fn hosts(&self) -> [&Host; 2] {
        [&self.hosts[0], &self.hosts[1]]
    }

    /// Sends `data` from host 0 and receives `expect` bytes at host 1, both in random pieces.
    pub(crate) fn transfer(
        &self,
        (s, r): (SessionId, SessionId),
        data: &[u8],
        expect: usize,
        seed: u64,
    ) -> Vec<u8> {
        let hosts = &self.hosts();
        let mut rng = Rng::new(seed);
        hosts[0].poke(17, data);
        let (mut sent, mut got) = (0u64, 0u64);
        let mut sends = Vec::new();
        let mut receive = None;
        let start = std::time::Instant::now();
        while got < expect as u64 || !sends.is_empty() || sent < data.len() as u64 {
            if sent < data.len() as u64 && sends.len() < 8 {
                let longest = [1, 40, 3000, 200_000][rng.below(4) as usize];
                let n = (1 + rng.below(longest)).min(data.len() as u64 - sent);
                let inline = n <= 40 && rng.below(2) == 0;
                let d = if inline {
                    let at = sent as usize;
                    send_inline(s, &data[at..at + n as usize])
                } else {
                    send(s, 17 + sent, n as u32)
                };
                sends.push(hosts[0].post(&d));
                sent += n;
            }
            if receive.is_none() && got < expect as u64 {
                let n = (1 + rng.below(90_000)).min(expect as u64 - got) as u32;
                let to = (4 << 20) + got;
                let d = if rng.below(2) == 0 {
                    recv_some(r, to, n)
                } else {
                    recv(r, to, n)
                };
                receive = Some(hosts[1].post(&d));
            }
            for h in hosts {
                h.nic.step();
            }
            if let Some(c) = receive.and_then(|t| hosts[1].queue.poll(t)) {
                assert_eq!(c.status, Status::Ok, "{} {c:?}", self.name);
                got += c.bytes;
                receive = None;
            }
            sends.retain(|t| match hosts[0].queue.poll(*t) {
                None => true,
                Some(c) => {
                    assert_eq!(c.status, Status::Ok);
                    false
                }
            });
            // A transformed stream may end before all that was sent has been asked for.
            if got == expect as u64 && sent == data.len() as u64 && start.elapsed().as_secs() > 20 {
                panic!("{}: sends hang: {sends:?}", self.name);
            }
        }
        hosts[1].peek(4 << 20, expect)
    }
}

/// What an engine of this text makes of a stream, fed in one piece.
pub(crate) fn model(spec: &str, data: &[u8], end: bool) -> (Vec<u8>, Vec<u8>) {
    let mut engine = Registry::builtin().make(spec).expect("a good text");
    let mut out = Vec::new();
    engine.process(data, &mut out);
    if end {
        let _ = engine.finish(&mut out);
    }
    let mut result = Vec::new();
    engine.result(&mut result);
    (if engine.is_tap() { data.to_vec() } else { out }, result)
}

/// How an engine fails.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum How {
    /// It panics on the byte behind so many.
    After(usize),
    /// It panics at the end of the stream.
    AtTheEnd,
    /// It reports at the end of the stream that it has failed.
    Reported,
    /// It panics when it is asked for its result.
    WhenAsked,
}

/// Passes on what comes until it fails; a tap, or one that could change the stream.
pub(crate) struct Brittle {
    pub(crate) how: How,
    pub(crate) seen: usize,
    pub(crate) tap: bool,
}

/// One that could change the stream.
pub(crate) fn brittle(how: How) -> Box<Brittle> {
    Box::new(Brittle {
        how,
        seen: 0,
        tap: false,
    })
}

impl StreamEngine for Brittle {
    fn name(&self) -> &'static str {
        "brittle"
    }
    fn declared_rate(&self) -> f64 {
        1.0
    }
    fn is_tap(&self) -> bool {
        self.tap
    }
    fn output_bound(&self, input: usize) -> usize {
        input
    }
    fn process(&mut self, input: &[u8], out: &mut Vec<u8>) {
        self.seen += input.len();
        if !self.tap {
            out.extend_from_slice(input);
        }
        if matches!(self.how, How::After(n) if self.seen > n) {
            // As a panic, which would print where it happened.
            std::panic::resume_unwind(Box::new("enough"));
        }
    }
    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        assert!(self.how != How::AtTheEnd, "no end");
        match self.how {
            How::Reported => Err(EngineError::Failed {
                engine: "brittle",
                why: "as the test wants it",
            }),
            _ => Ok(()),
        }
    }
    fn result(&self, _into: &mut Vec<u8>) {
        assert!(self.how != How::WhenAsked, "no result");
    }
    fn reset(&mut self) {}
}
