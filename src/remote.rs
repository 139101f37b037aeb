//! One-sided operations of host threads: put, get and atomics on memory of a session's peer.

use ringbell_gtlb::Access;
use ringbell_nic_abi::{Descriptor, GpuVa, Opcode, Rkey};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::buffer::{AllocError, DeviceBuffer, Plain};
use crate::socket::{SessionError, Socket, PIECE};
use crate::{Nic, Span};

/// Memory as peers name it: an address and its key. Plain data, to be sent to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct RemoteMemory {
    va: u64,
    bytes: u64,
    rkey: u32,
    reserved: u32,
}

impl RemoteMemory {
    /// Memory that a peer has named in another way than by sending this.
    pub fn new(va: GpuVa, bytes: u64, rkey: Rkey) -> RemoteMemory {
        RemoteMemory {
            va: va.0,
            bytes,
            rkey: rkey.0,
            reserved: 0,
        }
    }

    /// First byte, in the peer's kernels.
    pub fn va(&self) -> GpuVa {
        GpuVa(self.va)
    }

    /// Bytes from there to the end of the memory.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The key.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.rkey)
    }

    /// The memory from `offset` bytes on. The peer's NIC checks the bounds.
    #[must_use]
    pub fn at(self, offset: u64) -> RemoteMemory {
        RemoteMemory {
            va: self.va.saturating_add(offset),
            bytes: self.bytes.saturating_sub(offset),
            ..self
        }
    }
}

impl<T> DeviceBuffer<T> {
    /// What a peer needs for one-sided operations on this buffer. They need a buffer of
    /// [`Nic::alloc_remote`]; one of [`Nic::alloc`] takes puts alone.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory::new(self.va(), self.bytes(), self.region().rkey)
    }
}

impl Nic {
    /// As [`Nic::alloc`], in memory that peers with its key ([`DeviceBuffer::remote`]) may write,
    /// read and update. It is zeroed by the host: signals count from 0, and peers see no bytes of
    /// an earlier owner.
    ///
    /// # Errors
    /// As [`Nic::alloc`].
    pub fn alloc_remote<T: Plain>(&self, len: u64) -> Result<DeviceBuffer<T>, AllocError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let buffer = self.alloc_with(len, Access::REMOTE)?;
        let mut at = 0;
        while at < buffer.bytes() {
            let n = (buffer.bytes() - at).min(ZEROS.len() as u64);
            buffer.memory().write(at, &ZEROS[..n as usize])?;
            at += n;
        }
        Ok(buffer)
    }
}

impl Socket {
    /// Writes all bytes to the peer's memory, of any length, and returns when they are in place
    /// there. The peer does nothing for it. Transports `local`, `rdma` and
    /// `iwarp`.
    ///
    /// # Errors
    /// [`SessionError`]: the peer's NIC has refused key, right or bounds (`BAD_KEY`, `ACCESS_DENIED`, `OUT_OF_BOUNDS`), the transport
    /// has no such operation (`UNSUPPORTED`), the peer is gone, or it took longer than the
    /// time-out.
    pub fn put(&self, from: impl Into<Span>, to: RemoteMemory) -> Result<(), SessionError> {
        self.move_all("put", Opcode::Put, from.into(), to)
    }

    /// Reads as many bytes as the memory here holds.
    ///
    /// # Errors
    /// As [`Socket::put`].
    pub fn get(&self, into: impl Into<Span>, from: RemoteMemory) -> Result<(), SessionError> {
        self.move_all("get", Opcode::Get, into.into(), from)
    }

    /// Adds to the aligned 64-bit word at the start of `at`, and returns its value before. Atomic
    /// with respect to the peer's kernels and to other NICs.
    ///
    /// # Errors
    /// As [`Socket::put`]; `INVALID_ARGUMENT` when the address is no multiple of 8.
    pub fn fetch_add(&self, at: RemoteMemory, addend: u64) -> Result<u64, SessionError> {
        let d = Descriptor {
            operand: addend,
            ..on(Opcode::FetchAdd, at)
        };
        Ok(self.call("fetch-add", d)?.detail)
    }

    /// Replaces such a word by `swap` if it is equal to `compare`, and returns its value before.
    ///
    /// # Errors
    /// As [`Socket::fetch_add`].
    pub fn compare_swap(
        &self,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Result<u64, SessionError> {
        let d = Descriptor {
            operand: compare,
            local_va: GpuVa(swap),
            ..on(Opcode::CompareSwap, at)
        };
        Ok(self.call("compare-swap", d)?.detail)
    }

    fn move_all(
        &self,
        operation: &'static str,
        opcode: Opcode,
        local: Span,
        remote: RemoteMemory,
    ) -> Result<(), SessionError> {
        let mut done = 0;
        loop {
            let part = local.slice(done..(done + PIECE).min(local.bytes()));
            let d = Descriptor {
                local_va: part.va(),
                // At most `PIECE`.
                len: part.bytes() as u32,
                ..on(opcode, remote.at(done))
            };
            self.call(operation, d)?;
            done += part.bytes();
            if done == local.bytes() {
                return Ok(());
            }
        }
    }
}

fn on(opcode: Opcode, at: RemoteMemory) -> Descriptor {
    Descriptor {
        remote_va: at.va(),
        rkey: at.rkey(),
        ..Descriptor::new(opcode)
    }
}
