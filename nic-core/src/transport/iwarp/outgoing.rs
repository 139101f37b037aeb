//! The outgoing direction of a connection: units that wait for the kernel, as bytes of ours and
//! spans of memory.
//!
//! Payloads in memory are neither copied nor kept: their addresses are looked up for each system
//! call, and their send retires when the kernel has taken the last byte. Their CRC is computed just
//! before the call, so that it is that of the bytes which leave, and they are read from memory
//! once.
#![allow(unsafe_code)] // Spans of memory that has no owner here.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use ringbell_gtlb::Fault;

use super::socket::{self, Places};
use crate::dma::{each_mapped, DmaAccess};
use crate::types::Buffer;
use ringbell_net::port::digest_memory;
use ringbell_net::wire::iwarp::ddp::{Header, TAGGED_BYTES};
use ringbell_net::wire::iwarp::mpa::{framed, padding, Crc, CRC_BYTES, UNIT_MAX};

/// From here on a payload leaves from its memory: a shorter one is copied, so that its send retires
/// at once.
pub(super) const BY_REFERENCE: usize = 16 << 10;
/// Most bytes of one Write.
pub(super) const WRITE_MAX: usize = UNIT_MAX - TAGGED_BYTES;
/// Bytes that may wait for the kernel before no more units are made.
pub(super) const WAITING_MAX: usize = 512 << 10;
/// Bytes of one system call, about: those whose CRC was computed are still in the cache.
const CALL_MAX: usize = 256 << 10;

/// A part of what waits.
#[derive(Debug)]
enum Part {
    /// Headers, copied payloads, padding and CRCs.
    Own(Vec<u8>),
    /// Payload in memory.
    Memory {
        buffer: Buffer,
        offset: u32,
        len: u32,
        /// Position of its stream behind it.
        until: u64,
        /// Bytes of padding behind it, and the state of its CRC. The next part begins with the
        /// room for both.
        pad: usize,
        crc: Option<u64>,
    },
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Own(bytes) => bytes.len(),
            Part::Memory { len, .. } => *len as usize,
        }
    }
}

/// The payload of a unit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Payload<'a> {
    /// It is copied.
    Bytes(&'a [u8]),
    /// It is copied behind bytes of ours.
    After(&'a [u8], &'a [u8]),
    /// It stays in memory, all of which has an address of the CPU, behind bytes of ours.
    Memory {
        first: &'a [u8],
        buffer: Buffer,
        offset: u32,
        len: u32,
        /// Position of its stream behind it.
        until: u64,
    },
}

/// Why bytes cannot leave.
#[derive(Debug)]
pub(super) enum Failed {
    /// The connection.
    Socket(io::Error),
    /// Memory of a payload that has begun to leave.
    Memory(Fault),
}

/// What waits for the kernel.
#[derive(Debug)]
pub(super) struct Outgoing {
    parts: VecDeque<Part>,
    /// Bytes of the first part that have left.
    done: usize,
    /// Bytes of all parts that have not.
    waiting: usize,
    places: Places,
    /// Position of the stream up to which payloads in memory have left.
    pub(super) left: u64,
    /// The kernel has taken all that it has room for: it says when there is more.
    pub(super) blocked: bool,
}

impl Outgoing {
    pub(super) fn new() -> Outgoing {
        Outgoing {
            parts: VecDeque::new(),
            done: 0,
            waiting: 0,
            places: Places::new(),
            left: 0,
            blocked: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether another unit may be made.
    pub(super) fn has_room(&self) -> bool {
        self.waiting < WAITING_MAX
    }

    /// Forgets everything that has not left.
    pub(super) fn clear(&mut self) {
        self.parts.clear();
        (self.done, self.waiting) = (0, 0);
    }

    /// The bytes at the end, to which more are added.
    fn own(&mut self) -> &mut Vec<u8> {
        if !matches!(self.parts.back(), Some(Part::Own(_))) {
            self.parts.push_back(Part::Own(Vec::new()));
        }
        match self.parts.back_mut() {
            Some(Part::Own(bytes)) => bytes,
            // It was just added.
            _ => unreachable!("the last part is of bytes"),
        }
    }

    /// Adds bytes that are no unit.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) {
        self.own().extend_from_slice(bytes);
        self.waiting += bytes.len();
    }

    /// Adds a unit, with its CRC if the connection has one.
    pub(super) fn add(&mut self, header: &Header, payload: Payload<'_>, has_crc: bool) {
        let mut crc = Crc::default();
        let (first, second, memory) = match payload {
            Payload::Bytes(b) => (b, &b[..0], 0),
            Payload::After(a, b) => (a, b, 0),
            Payload::Memory { first, len, .. } => (first, &first[..0], len as usize),
        };
        let unit = header.bytes() + first.len() + second.len() + memory;
        let pad = padding(unit);
        let own = self.own();
        let start = own.len();
        // A unit's length has 16 bits; the callers keep to it.
        own.extend((unit as u16).to_be_bytes());
        header.emit(own);
        own.extend_from_slice(first);
        own.extend_from_slice(second);
        if has_crc {
            crc.update(&own[start..]);
        }
        let mut tail = [0; 3 + CRC_BYTES];
        if let Payload::Memory {
            buffer,
            offset,
            len,
            until,
            ..
        } = payload
        {
            self.parts.push_back(Part::Memory {
                buffer,
                offset,
                len,
                until,
                pad,
                crc: has_crc.then(|| crc.state()),
            });
        } else if has_crc {
            crc.update(&tail[..pad]);
            tail[pad..pad + CRC_BYTES].copy_from_slice(&crc.finish());
        }
        self.own().extend_from_slice(&tail[..pad + CRC_BYTES]);
        self.waiting += framed(unit);
    }

    /// Hands the kernel what it takes. Returns whether it took anything.
    ///
    /// # Errors
    /// [`Failed`]: nothing more can leave.
    pub(super) fn flush(
        &mut self,
        socket: &OwnedFd,
        dma: &mut dyn DmaAccess,
    ) -> Result<bool, Failed> {
        let mut any = false;
        while !self.parts.is_empty() && !self.blocked {
            self.gather(dma).map_err(Failed::Memory)?;
            // SAFETY: bytes of ours that do not change before the call returns, and memory that was
            // found mapped just now.
            match unsafe { socket::send(socket, &mut self.places) } {
                Ok(n) => {
                    any |= n > 0;
                    // What the kernel did not take finds no room now.
                    self.blocked = n < self.places.bytes();
                    self.took(n, dma);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.blocked = true,
                Err(e) => return Err(Failed::Socket(e)),
            }
        }
        Ok(any)
    }

    /// Looks up where the next bytes lie, and completes the CRCs behind them.
    fn gather(&mut self, dma: &mut dyn DmaAccess) -> Result<(), Fault> {
        let places = &mut self.places;
        places.clear();
        let mut skip = self.done;
        let mut completed: Option<(usize, [u8; CRC_BYTES])> = None;
        for part in &mut self.parts {
            if let (Part::Own(bytes), Some((pad, crc))) = (&mut *part, completed.take()) {
                bytes[pad..pad + CRC_BYTES].copy_from_slice(&crc);
            }
            if !places.has_room() || places.bytes() >= CALL_MAX {
                return Ok(());
            }
            match part {
                Part::Own(bytes) => {
                    let rest = &bytes[skip..];
                    places.add(rest.as_ptr().cast_mut(), rest.len());
                }
                Part::Memory {
                    buffer,
                    offset,
                    len,
                    pad,
                    crc,
                    ..
                } => {
                    let (at, want) = (u64::from(*offset) + skip as u64, *len as usize - skip);
                    let (mut crc, mut added) = (crc.map(Crc::resume), 0);
                    let found = each_mapped(dma, buffer, at, want, |p, n| {
                        if places.has_room() {
                            places.add(p, n);
                            added += n;
                            if let Some(crc) = &mut crc {
                                // SAFETY: mapped, as `each_mapped` has found.
                                unsafe { digest_memory(crc.digest(), p, n) };
                            }
                        }
                    });
                    if found < want {
                        // It was mapped when the unit was made.
                        dma.span(buffer, at + found as u64)?;
                        return Err(Fault::NoTranslation { va: buffer.va });
                    }
                    if added < want {
                        return Ok(());
                    }
                    completed = crc.map(|mut crc| {
                        crc.update(&[0; 3][..*pad]);
                        (*pad, crc.finish())
                    });
                }
            }
            skip = 0;
        }
        Ok(())
    }

    /// The kernel has taken bytes.
    fn took(&mut self, mut n: usize, dma: &mut dyn DmaAccess) {
        self.waiting -= n;
        while let Some(part) = self.parts.front_mut() {
            let rest = part.len() - self.done;
            if n >= rest {
                n -= rest;
                if let Part::Memory { until, .. } = part {
                    self.left = *until;
                }
                self.parts.pop_front();
                self.done = 0;
                continue;
            }
            if let Part::Memory {
                buffer,
                offset,
                crc: Some(state),
                ..
            } = part
            {
                // What has left counts as it was; the rest may change until it leaves.
                let at = u64::from(*offset) + self.done as u64;
                let mut crc = Crc::resume(*state);
                each_mapped(dma, buffer, at, n, |p, n| {
                    // SAFETY: mapped, as `each_mapped` has found.
                    unsafe { digest_memory(crc.digest(), p, n) };
                });
                *state = crc.state();
            }
            self.done += n;
            return;
        }
    }
}
