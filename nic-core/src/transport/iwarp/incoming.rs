//! The incoming direction of a connection: from the kernel's bytes to units whose payloads lie
//! where they belong.
//!
//! ```text
//! one system call:   rest of this unit's payload │ padding, CRC, next header
//!                    straight to its place       │ buffer
//! ```
//!
//! A unit is announced when its last byte is there and its CRC is right, never before. Short units
//! come several at once, by the buffer.
#![allow(unsafe_code)] // Places in memory that has no owner here.

use std::io;
use std::os::fd::OwnedFd;

use ringbell_gtlb::Fault;

use super::socket::{self, Places};
use crate::dma::DmaAccess;
use ringbell_gtlb::copy;
use ringbell_net::port::digest_memory;
use ringbell_net::wire::iwarp::ddp::{Header, UNTAGGED_BYTES};
use ringbell_net::wire::iwarp::mpa::{is_crc, padding, Crc, CRC_BYTES, LENGTH_BYTES};
use ringbell_net::wire::iwarp::terminate::Reason;

/// Bytes that are read beside a payload: a message that leaves by copies comes in one call.
const BUFFER: usize = 20 << 10;
/// From here on a payload's neighbour is probably as long: only its header is read with it.
const LONG: usize = 16 << 10;
/// Units, and bytes of long ones, of one service: then the peer gets its credit.
const BUDGET: usize = 64;
const BUDGET_BYTES: usize = 192 << 10;
/// The longest front of a payload that says where the rest goes.
const FRONT_MAX: usize = 64;

/// Takes units.
pub(super) trait Sink {
    /// Bytes at the front of the payload that [`Sink::begin`] needs; at most [`FRONT_MAX`].
    fn front(&self, header: &Header) -> usize;

    /// A unit has begun: its payload has this front, or all of it where that is shorter, and so
    /// many bytes behind it. `false`: it must wait, and is begun again later.
    ///
    /// # Errors
    /// The unit ends the connection.
    fn begin(&mut self, header: &Header, front: &[u8], rest: usize) -> Result<bool, Reason>;

    /// Adds the places of bytes `at..at + len` behind the front, as far as there is room in the
    /// list.
    ///
    /// # Errors
    /// The memory is gone.
    fn places(&mut self, at: usize, len: usize, places: &mut Places) -> Result<(), Fault>;

    /// The unit is there, and right.
    ///
    /// # Errors
    /// It ends the connection.
    fn end(&mut self) -> Result<(), Reason>;

    /// For the count of copied bytes.
    fn dma(&mut self) -> &mut dyn DmaAccess;
}

/// How a service has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// The kernel has nothing more.
    All,
    /// It may have more.
    More,
    /// The next unit must wait for something else than bytes.
    Waits,
}

/// Whether the unit in the buffer has begun.
enum Begun {
    Yes,
    /// Its header is not all there.
    Short,
    MustWait,
}

/// Why no more units come.
#[derive(Debug)]
pub(super) enum Broken {
    /// The peer has ended its direction.
    Ended,
    /// The connection.
    Socket(io::Error),
    /// What the peer sends: with the length of the unit and its header, where one was read.
    Peer(Reason, Option<(u16, Vec<u8>)>),
    /// Memory of a receive, in the middle of a unit.
    Memory(Fault),
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Broken {
        Broken::Memory(fault)
    }
}

/// A unit that has begun.
#[derive(Debug)]
struct Unit {
    length: u16,
    header: Header,
    /// Bytes behind the front.
    rest: usize,
    /// Those that are in their places.
    placed: usize,
    pad: usize,
    crc: Crc,
}

impl Unit {
    /// Bytes behind the payload.
    fn trailer(&self) -> usize {
        self.pad + CRC_BYTES
    }

    fn wrong(&self, reason: Reason) -> Broken {
        let mut header = Vec::new();
        self.header.emit(&mut header);
        // The DDP header ends where RDMAP's own word begins, which is in it.
        Broken::Peer(reason, Some((self.length, header)))
    }
}

/// What has come and was not announced.
#[derive(Debug)]
pub(super) struct Incoming {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    unit: Option<Unit>,
    pub(super) has_crc: bool,
    places: Places,
    /// The last call has emptied the kernel's queue.
    is_dry: bool,
    /// The peer has ended its direction: only a call tells when the queue is empty.
    pub(super) ended: bool,
}

impl Incoming {
    pub(super) fn new() -> Incoming {
        Incoming {
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            unit: None,
            has_crc: true,
            places: Places::new(),
            is_dry: false,
            ended: false,
        }
    }

    /// Whether a unit has begun and not ended.
    pub(super) fn is_inside(&self) -> bool {
        self.unit.is_some() || self.start < self.end
    }

    /// Takes what the kernel has, as far as one service goes.
    ///
    /// # Errors
    /// [`Broken`]: nothing more can come.
    pub(super) fn advance(
        &mut self,
        socket: &OwnedFd,
        sink: &mut impl Sink,
    ) -> Result<Read, Broken> {
        self.is_dry = false;
        let (mut units, mut payload) = (0, 0);
        loop {
            let have = self.end - self.start;
            let Some(unit) = &mut self.unit else {
                if units >= BUDGET || payload >= BUDGET_BYTES {
                    return Ok(Read::More);
                }
                match self.begin(sink)? {
                    Begun::Yes => {}
                    Begun::Short => {
                        if !self.read(socket, 0, sink)? {
                            return Ok(Read::All);
                        }
                    }
                    Begun::MustWait => return Ok(Read::Waits),
                }
                continue;
            };
            if unit.placed < unit.rest {
                if have > 0 {
                    self.place_buffered(sink)?;
                } else {
                    let left = unit.rest - unit.placed;
                    if !self.read(socket, left, sink)? {
                        return Ok(Read::All);
                    }
                }
                continue;
            }
            let trailer = unit.trailer();
            if have < trailer {
                if !self.read(socket, 0, sink)? {
                    return Ok(Read::All);
                }
                continue;
            }
            let bytes = &self.buffer[self.start..self.start + trailer];
            unit.crc.update(&bytes[..unit.pad]);
            if self.has_crc && !is_crc(&unit.crc, &bytes[unit.pad..]) {
                return Err(unit.wrong(Reason::Crc));
            }
            self.start += trailer;
            sink.end().map_err(|reason| unit.wrong(reason))?;
            payload += unit.rest;
            self.unit = None;
            units += 1;
        }
    }

    /// Begins the unit whose header lies in the buffer.
    fn begin(&mut self, sink: &mut impl Sink) -> Result<Begun, Broken> {
        let b = &self.buffer[self.start..self.end];
        if b.len() < LENGTH_BYTES + 1 {
            return Ok(Begun::Short);
        }
        let length = u16::from_be_bytes([b[0], b[1]]);
        let head = LENGTH_BYTES + Header::length(b[2]);
        let Some(of_unit) = usize::from(length).checked_sub(head - LENGTH_BYTES) else {
            return Err(Broken::Peer(Reason::Length, None));
        };
        if b.len() < head {
            return Ok(Begun::Short);
        }
        let header = Header::parse(&b[LENGTH_BYTES..head]).map_err(|why| {
            let unit = (length, b[LENGTH_BYTES..head].to_vec());
            Broken::Peer(Reason::of_header(why, b[2]), Some(unit))
        })?;
        let front = sink.front(&header).min(of_unit);
        debug_assert!(front <= FRONT_MAX);
        if b.len() < head + front {
            return Ok(Begun::Short);
        }
        let mut unit = Unit {
            length,
            header,
            rest: of_unit - front,
            placed: 0,
            pad: padding(length.into()),
            crc: Crc::default(),
        };
        if self.has_crc {
            unit.crc.update(&b[..head + front]);
        }
        let begun = sink.begin(&header, &b[head..head + front], unit.rest);
        if !begun.map_err(|reason| unit.wrong(reason))? {
            return Ok(Begun::MustWait);
        }
        self.start += head + front;
        self.unit = Some(unit);
        Ok(Begun::Yes)
    }

    /// Copies bytes of the payload that came by the buffer to their places.
    fn place_buffered(&mut self, sink: &mut impl Sink) -> Result<(), Broken> {
        let Some(unit) = &mut self.unit else {
            return Ok(());
        };
        let want = (unit.rest - unit.placed).min(self.end - self.start);
        self.places.clear();
        sink.places(unit.placed, want, &mut self.places)?;
        let bytes = &self.buffer[self.start..self.start + want];
        let mut done = 0;
        for (to, n) in self.places.first(want) {
            // SAFETY: the sink has found the place mapped just now; the buffer is ours and apart.
            unsafe { copy::copy(to, bytes[done..done + n].as_ptr(), n) };
            done += n;
        }
        if self.has_crc {
            unit.crc.update(&bytes[..done]);
        }
        sink.dma().count_copied(done as u64);
        self.start += done;
        unit.placed += done;
        Ok(())
    }

    /// Asks the kernel: for so many bytes of the payload, to their places, and for what follows.
    /// `false`: it has nothing.
    fn read(
        &mut self,
        socket: &OwnedFd,
        payload: usize,
        sink: &mut impl Sink,
    ) -> Result<bool, Broken> {
        if self.is_dry {
            return Ok(false);
        }
        self.buffer.copy_within(self.start..self.end, 0);
        (self.end, self.start) = (self.end - self.start, 0);
        self.places.clear();
        let mut behind = self.buffer.len() - self.end;
        if let Some(unit) = self.unit.as_ref().filter(|_| payload > 0) {
            sink.places(unit.placed, payload, &mut self.places)?;
            if unit.rest >= LONG {
                behind = unit.trailer() + LENGTH_BYTES + UNTAGGED_BYTES + FRONT_MAX;
            }
        }
        let placed = self.places.bytes();
        if placed == payload && self.places.has_room() {
            let room = &mut self.buffer[self.end..][..behind];
            self.places.add(room.as_mut_ptr(), room.len());
        }
        // SAFETY: the sink has found its places mapped just now; the rest is ours.
        let got = match unsafe { socket::receive(socket, &mut self.places) } {
            Ok(0) => return Err(Broken::Ended),
            Ok(got) => got,
            Err(e) if socket::must_wait(&e) => {
                self.is_dry = e.kind() == io::ErrorKind::WouldBlock;
                return Ok(!self.is_dry);
            }
            Err(e) => return Err(Broken::Socket(e)),
        };
        self.is_dry = got < self.places.bytes() && !self.ended;
        let in_place = got.min(placed);
        if let Some(unit) = self.unit.as_mut().filter(|_| in_place > 0) {
            if self.has_crc {
                for (at, n) in self.places.first(in_place) {
                    // SAFETY: the kernel has just written there.
                    unsafe { digest_memory(unit.crc.digest(), at, n) };
                }
            }
            unit.placed += in_place;
        }
        self.end += got - in_place;
        Ok(true)
    }
}
