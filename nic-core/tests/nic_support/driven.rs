//! Helpers to drive any NIC by descriptors: how tests wait for it, and what they post.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(dead_code, unreachable_pub)] // Each test uses a part of this module.

use std::net::Ipv4Addr;
use std::time::Duration;

use ringbell_nic_abi::{Completion, Descriptor, Flags, GpuVa, Opcode, Rkey, SessionId, Status};
use ringbell_nic_core::{HostQueue, Nic};

/// Address at which descriptors place the memory of every test NIC; [`Driven::post`] translates it.
pub const BASE: GpuVa = GpuVa(0x7_0000_0000);

/// A NIC with memory behind it and a queue in front.
pub trait Driven {
    fn nic(&self) -> &Nic;
    fn queue(&self) -> &HostQueue;
    /// Posts a descriptor whose address lies behind [`BASE`].
    fn post(&self, d: &Descriptor) -> u32;
    /// Writes memory at an offset.
    fn poke(&self, offset: u64, bytes: &[u8]);
    /// Reads memory at an offset.
    fn peek(&self, offset: u64, len: usize) -> Vec<u8>;
}

/// Steps every NIC until all tickets have completed.
pub fn settle<H: Driven>(hosts: &[&H], tickets: &[(usize, u32)]) -> Vec<Completion> {
    let start = std::time::Instant::now();
    let mut out = vec![None; tickets.len()];
    while out.iter().any(Option::is_none) {
        for h in hosts {
            h.nic().step();
        }
        for (slot, (h, t)) in out.iter_mut().zip(tickets) {
            if slot.is_none() {
                *slot = hosts[*h].queue().poll(*t);
            }
        }
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "hung: {out:?}\n{}",
            hosts.iter().map(|h| h.nic().describe()).collect::<String>()
        );
    }
    out.into_iter().flatten().collect()
}

/// Steps every NIC until nothing has moved for a while.
pub fn quiesce<H: Driven>(hosts: &[&H]) {
    let mut idle = 0;
    while idle < 2000 {
        let moved = hosts.iter().fold(false, |m, h| h.nic().step() | m);
        idle = if moved { 0 } else { idle + 1 };
    }
}

/// Posts one descriptor and waits for it.
pub fn call<H: Driven>(hosts: &[&H], at: usize, d: &Descriptor) -> Completion {
    let t = hosts[at].post(d);
    settle(hosts, &[(at, t)])[0]
}

fn op(opcode: Opcode, session: SessionId) -> Descriptor {
    Descriptor {
        session,
        ..Descriptor::new(opcode)
    }
}

/// `SOCKET`.
pub fn socket() -> Descriptor {
    Descriptor::new(Opcode::Socket)
}
/// `LISTEN`.
pub fn listen(s: SessionId, port: u16) -> Descriptor {
    Descriptor {
        imm: port.into(),
        ..op(Opcode::Listen, s)
    }
}
/// `ACCEPT`.
pub fn accept(s: SessionId) -> Descriptor {
    op(Opcode::Accept, s)
}
/// `CONNECT`.
pub fn connect(s: SessionId, ip: Ipv4Addr, port: u16) -> Descriptor {
    Descriptor {
        operand: u32::from(ip).into(),
        imm: port.into(),
        ..op(Opcode::Connect, s)
    }
}
/// `SEND` from memory.
pub fn send(s: SessionId, offset: u64, len: u32) -> Descriptor {
    Descriptor {
        local_va: GpuVa(BASE.0 + offset),
        len,
        ..op(Opcode::Send, s)
    }
}
/// `SEND` of bytes inside the descriptor.
pub fn send_inline(s: SessionId, bytes: &[u8]) -> Descriptor {
    let mut d = op(Opcode::Send, s);
    d.flags = Flags::INLINE;
    d.inline_len = bytes.len() as u8;
    d.inline[..bytes.len()].copy_from_slice(bytes);
    d
}
/// `RECV` of exactly `len`.
pub fn recv(s: SessionId, offset: u64, len: u32) -> Descriptor {
    Descriptor {
        local_va: GpuVa(BASE.0 + offset),
        len,
        ..op(Opcode::Recv, s)
    }
}
/// `RECV` of what is there.
pub fn recv_some(s: SessionId, offset: u64, len: u32) -> Descriptor {
    Descriptor {
        flags: Flags::SOME,
        ..recv(s, offset, len)
    }
}
/// `SHUTDOWN`.
pub fn shutdown(s: SessionId) -> Descriptor {
    op(Opcode::Shutdown, s)
}
/// `CLOSE`.
pub fn close(s: SessionId) -> Descriptor {
    op(Opcode::Close, s)
}
/// `ABORT`.
pub fn abort(s: SessionId) -> Descriptor {
    op(Opcode::Abort, s)
}
/// With a time-out.
pub fn within(d: Descriptor, timeout_us: u32) -> Descriptor {
    Descriptor { timeout_us, ..d }
}

/// A one-sided operation on an offset of the peer's memory.
pub fn remote(opcode: Opcode, s: SessionId, rkey: Rkey, to: u64) -> Descriptor {
    Descriptor {
        session: s,
        rkey,
        remote_va: GpuVa(BASE.0 + to),
        ..Descriptor::new(opcode)
    }
}

/// `PUT` from memory.
pub fn put(s: SessionId, rkey: Rkey, from: u64, to: u64, len: u32) -> Descriptor {
    Descriptor {
        local_va: GpuVa(BASE.0 + from),
        len,
        ..remote(Opcode::Put, s, rkey, to)
    }
}

/// `GET` into memory.
pub fn get(s: SessionId, rkey: Rkey, from: u64, to: u64, len: u32) -> Descriptor {
    Descriptor {
        opcode: Opcode::Get,
        ..put(s, rkey, to, from, len)
    }
}

/// With a signal.
pub fn signalled(d: Descriptor, word: u32, value: u64) -> Descriptor {
    Descriptor {
        flags: d.flags.union(Flags::SIGNAL),
        imm: word,
        operand: value,
        ..d
    }
}

/// `FETCH_ADD`.
pub fn fetch_add(s: SessionId, rkey: Rkey, at: u64, addend: u64) -> Descriptor {
    Descriptor {
        operand: addend,
        ..remote(Opcode::FetchAdd, s, rkey, at)
    }
}

/// `COMPARE_SWAP`.
pub fn compare_swap(s: SessionId, rkey: Rkey, at: u64, compare: u64, swap: u64) -> Descriptor {
    Descriptor {
        operand: compare,
        local_va: GpuVa(swap),
        ..remote(Opcode::CompareSwap, s, rkey, at)
    }
}

/// A session id from a completion.
pub fn session_of(c: Completion) -> SessionId {
    assert_eq!(c.status, Status::Ok, "{c:?}");
    SessionId(c.detail as u32)
}

/// Listens on `port` at host `b`.
pub fn listener<H: Driven>(hosts: &[&H], b: usize, port: u16) -> SessionId {
    let l = session_of(call(hosts, b, &socket()));
    assert_eq!(call(hosts, b, &listen(l, port)).status, Status::Ok);
    l
}

/// A connection from `a` to `b`: (session at a, session at b).
pub fn connected<H: Driven>(hosts: &[&H], a: usize, b: usize, port: u16) -> (SessionId, SessionId) {
    let l = listener(hosts, b, port);
    let s = session_of(call(hosts, a, &socket()));
    let ip = hosts[b].nic().config().ip;
    let ta = hosts[a].post(&connect(s, ip, port));
    let tb = hosts[b].post(&accept(l));
    let done = settle(hosts, &[(a, ta), (b, tb)]);
    assert_eq!(done[0].status, Status::Ok, "{done:?}");
    let peer = session_of(done[1]);
    assert_eq!(call(hosts, b, &close(l)).status, Status::Ok);
    (s, peer)
}
