//! The memory of a switch: one mapping, private to the process or shared through a memfd.
//!
//! ```text
//! 0      magic, version, ports, mtu, checksums, number of the switch (two words)
//! 64·(1+i)           port i: process that owns it (+0), whether it wants to be woken (+4)
//! RINGS + r·stride   ring r = from·ports + to: producer (+0), consumer (+128), slots (+256)
//! ```
//!
//! A private segment is reached by this process alone, so that the owner of a slot may use it as a
//! slice. A shared one may be written by a peer at any time: frames are copied out of and into it,
//! and every number read from it is checked.
#![allow(unsafe_code)] // Raw access to a mapping that another process may write.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{
    fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create, MemfdFlags, SealFlags,
};
use rustix::io::Errno;

use crate::port::{Checksums, MTU_MAX, MTU_MIN};
use crate::wire::ETHERNET_HEADER;

const MAGIC: u64 = 0x5242_4d45_4d53_5702; // "RBMEMSW", version 2
const LINE: usize = 64;
/// Most ports of one switch.
pub const PORTS_MAX: usize = 32;
const HEADER: usize = 4096;
const RING_HEADER: usize = 256;
const SLOT_LEN: usize = 8;
/// Bytes of slots per ring: few enough that frames are still in the L2 cache when they are read.
const RING_BYTES: usize = 128 << 10;
/// Least slots per ring.
const SLOTS_MIN: usize = 16;

/// A switch could not be made, attached or entered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The number of ports is out of range.
    #[error("a memory switch has 2 to {PORTS_MAX} ports, not {ports}")]
    Ports {
        /// Asked for.
        ports: usize,
    },
    /// The MTU is out of range.
    #[error("a memory switch carries an MTU of 576 to 9216 bytes, not {mtu}")]
    Mtu {
        /// Asked for.
        mtu: usize,
    },
    /// There is no such port.
    #[error("the memory switch has no port {port}; it has {ports}")]
    NoSuchPort {
        /// Asked for.
        port: usize,
        /// How many there are.
        ports: usize,
    },
    /// Another NIC owns the port.
    #[error("port {port} of the memory switch is taken; give each NIC a port of its own")]
    Taken {
        /// Asked for.
        port: usize,
    },
    /// The descriptor is no segment of a switch of this version.
    #[error(
        "the file descriptor is no memory switch of this version; pass the one of `MemSwitch::fd`"
    )]
    NotASwitch,
    /// A system call failed.
    #[error("cannot set up the memory switch: {0}")]
    Os(#[from] Errno),
    /// The mapping failed.
    #[error("cannot map the memory switch: {0}")]
    Map(#[source] std::io::Error),
}

/// Shape of a segment; every number in it is checked before use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) ports: usize,
    pub(super) mtu: usize,
    pub(super) checksums: Checksums,
}

impl Shape {
    fn slot_bytes(&self) -> usize {
        (SLOT_LEN + ETHERNET_HEADER + self.mtu).next_multiple_of(LINE)
    }
    pub(super) fn slots(&self) -> usize {
        let n = RING_BYTES / self.slot_bytes();
        1 << n.max(SLOTS_MIN).ilog2()
    }
    fn ring_stride(&self) -> usize {
        (RING_HEADER + self.slots() * self.slot_bytes()).next_multiple_of(4096)
    }
    fn bytes(&self) -> usize {
        HEADER + self.ports * self.ports * self.ring_stride()
    }
    fn check(&self) -> Result<(), SwitchError> {
        if !(2..=PORTS_MAX).contains(&self.ports) {
            return Err(SwitchError::Ports { ports: self.ports });
        }
        if !(MTU_MIN..=MTU_MAX).contains(&self.mtu) {
            return Err(SwitchError::Mtu { mtu: self.mtu });
        }
        Ok(())
    }
}

/// The mapping. Rings and words in it are reached by offset only.
#[derive(Debug)]
pub(super) struct Segment {
    map: memmap2::MmapRaw,
    shape: Shape,
    fd: Option<OwnedFd>,
}

impl Segment {
    /// A segment of this process alone.
    pub(super) fn private(shape: Shape) -> Result<Segment, SwitchError> {
        shape.check()?;
        let map = memmap2::MmapOptions::new()
            .len(shape.bytes())
            .map_anon()
            .map_err(SwitchError::Map)?
            .into();
        let seg = Segment {
            map,
            shape,
            fd: None,
        };
        seg.choose_id()?;
        Ok(seg)
    }

    /// A segment that other processes may attach to, with its size sealed.
    pub(super) fn shared(shape: Shape) -> Result<Segment, SwitchError> {
        shape.check()?;
        // No close-on-exec: the descriptor is made to be inherited by a child.
        let fd = memfd_create("ringbell-switch", MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, shape.bytes() as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = memmap2::MmapRaw::map_raw(&fd).map_err(SwitchError::Map)?;
        let seg = Segment {
            map,
            shape,
            fd: Some(fd),
        };
        let omitted = u64::from(shape.checksums == Checksums::Omitted);
        seg.word64(8).store(shape.ports as u64, Ordering::Relaxed);
        seg.word64(16).store(shape.mtu as u64, Ordering::Relaxed);
        seg.word64(24).store(omitted, Ordering::Relaxed);
        seg.choose_id()?;
        // Release: pairs with the Acquire load in `attach`.
        seg.word64(0).store(MAGIC, Ordering::Release);
        Ok(seg)
    }

    /// Maps a segment that [`Segment::shared`] made, here or in another process.
    pub(super) fn attach(fd: OwnedFd) -> Result<Segment, SwitchError> {
        // Without the seal the owner could shrink the file and kill us with SIGBUS.
        let seals = fcntl_get_seals(&fd).map_err(|_| SwitchError::NotASwitch)?;
        let len = rustix::fs::fstat(&fd)?.st_size as usize;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) || len < HEADER {
            return Err(SwitchError::NotASwitch);
        }
        let map = memmap2::MmapRaw::map_raw(&fd).map_err(SwitchError::Map)?;
        let mut seg = Segment {
            map,
            shape: Shape {
                ports: 0,
                mtu: 0,
                checksums: Checksums::Software,
            },
            fd: Some(fd),
        };
        // Acquire: pairs with the Release store in `shared`.
        if seg.word64(0).load(Ordering::Acquire) != MAGIC {
            return Err(SwitchError::NotASwitch);
        }
        let read = |at| usize::try_from(seg.word64(at).load(Ordering::Relaxed)).unwrap_or(0);
        let shape = Shape {
            ports: read(8),
            mtu: read(16),
            checksums: if read(24) == 1 {
                Checksums::Omitted
            } else {
                Checksums::Software
            },
        };
        shape.check()?;
        if shape.bytes() != len {
            return Err(SwitchError::NotASwitch);
        }
        seg.shape = shape;
        Ok(seg)
    }

    /// Numbers the switch, so that no two have the same names.
    fn choose_id(&self) -> Result<(), SwitchError> {
        let mut id = [0u8; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())?;
        for (at, half) in [(32, &id[..8]), (40, &id[8..])] {
            let word = half.iter().fold(0, |w, &b| w << 8 | u64::from(b));
            self.word64(at).store(word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The number of the switch.
    pub(super) fn id(&self) -> [u64; 2] {
        [32, 40].map(|at| self.word64(at).load(Ordering::Relaxed))
    }

    /// Whether the port's owner sleeps and wants to be woken.
    pub(super) fn armed(&self, port: usize) -> &AtomicU32 {
        self.word32(LINE * (1 + port) + 4)
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn is_private(&self) -> bool {
        self.fd.is_none()
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    #[inline]
    fn word64(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.map.len());
        // SAFETY: aligned and inside the mapping (asserted), which lives as long as self; words are
        // only ever accessed atomically.
        unsafe { &*self.map.as_ptr().add(at).cast::<AtomicU64>() }
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.map.len());
        // SAFETY: as in `word64`.
        unsafe { &*self.map.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Process that owns the port, 0 while it is free.
    pub(super) fn claimed(&self, port: usize) -> &AtomicU32 {
        self.word32(LINE * (1 + port))
    }

    fn ring_at(&self, from: usize, to: usize) -> usize {
        assert!(from < self.shape.ports && to < self.shape.ports);
        HEADER + (from * self.shape.ports + to) * self.shape.ring_stride()
    }
    /// The ring from one port to another.
    pub(super) fn ring(&self, from: usize, to: usize) -> Ring {
        Ring {
            at: self.ring_at(from, to),
            mask: self.shape.slots() as u64 - 1,
            stride: self.shape.slot_bytes(),
            room: ETHERNET_HEADER + self.shape.mtu,
        }
    }

    /// Frames ever put into the ring.
    pub(super) fn produced(&self, ring: &Ring) -> &AtomicU64 {
        self.word64(ring.at)
    }
    /// Frames ever taken out of it; on a line of its own, 128 B apart.
    pub(super) fn consumed(&self, ring: &Ring) -> &AtomicU64 {
        self.word64(ring.at + 128)
    }

    /// The slot of a ring that holds frame number `n`.
    pub(super) fn slot(&self, ring: &Ring, n: u64) -> Slot {
        let at = ring.at + RING_HEADER + (n & ring.mask) as usize * ring.stride;
        assert!(at + ring.stride <= self.map.len());
        Slot {
            // SAFETY: the slot lies inside the mapping (asserted).
            base: unsafe { self.map.as_mut_ptr().add(at) },
            room: ring.room,
        }
    }
}

/// Where a ring lies and how it is divided.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    at: usize,
    mask: u64,
    stride: usize,
    room: usize,
}

/// One slot: a 4-byte length, then the frame. Valid while its segment is mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    base: *mut u8,
    room: usize,
}

impl Slot {
    fn len_word(&self) -> &AtomicU32 {
        // SAFETY: slots are 64-byte aligned and mapped; the length is only accessed atomically.
        unsafe { &*self.base.cast::<AtomicU32>() }
    }
    /// Bytes of the frame; `None` when the number cannot be true.
    pub(super) fn len(&self) -> Option<usize> {
        let n = self.len_word().load(Ordering::Relaxed) as usize;
        (ETHERNET_HEADER..=self.room).contains(&n).then_some(n)
    }
    pub(super) fn set_len(&self, n: usize) {
        self.len_word()
            .store(n.min(self.room) as u32, Ordering::Relaxed);
    }

    /// The frame in place.
    ///
    /// # Safety
    /// The segment is private and mapped for `'a`, and the caller is the slot's only owner for
    /// `'a`: its producer before publishing it, or its consumer before returning it.
    pub(super) unsafe fn in_place<'a>(&self) -> &'a mut [u8] {
        // SAFETY: by contract no other code reaches these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(SLOT_LEN), self.room) }
    }

    /// Copies the frame out, for memory that a peer may write meanwhile.
    pub(super) fn copy_out(&self, into: &mut [u8]) {
        let n = into.len().min(self.room);
        // SAFETY: n bytes lie in the slot; raw copies make no claim that they hold still.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(SLOT_LEN), into.as_mut_ptr(), n) };
    }
    /// Copies a frame in and sets its length.
    pub(super) fn copy_in(&self, frame: &[u8]) {
        let n = frame.len().min(self.room);
        // SAFETY: as in `copy_out`.
        unsafe { std::ptr::copy_nonoverlapping(frame.as_ptr(), self.base.add(SLOT_LEN), n) };
        self.set_len(n);
    }
}
