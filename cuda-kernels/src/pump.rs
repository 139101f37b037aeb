//! The host's end of a byte ring in GPU memory, whose other end is a kernel of `kernels/nc.cu`.
#![allow(unsafe_code)] // Launches the SDK's kernels.

use std::borrow::Borrow;

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{SessionId, Status};

use crate::{Gpu, GpuBuffer, GpuError, KernelArg, Launch, LaunchError};

// Offsets of `nc_ring` in kernels/nc.cu.
const PRODUCED: u64 = 0;
const CONSUMED: u64 = 128;
const END: u64 = 256;
const STOP: u64 = 260;
const STATUS: u64 = 264;
const DONE: u64 = 268;
const DETAIL: u64 = 272;
const CONTROL_BYTES: u64 = 320;

/// Time-outs of a pump.
#[derive(Debug, Clone, Copy)]
pub struct PumpTimes {
    /// Of one operation of the kernel; when receiving, also how late [`Pump::stop`] is seen. µs.
    pub operation_us: u32,
    /// How long nothing may happen before the kernel gives up. µs.
    pub idle_limit_us: u64,
}

/// Why a pump could not be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PumpError {
    /// Memory.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// One direction of a connection: a ring in GPU memory, a kernel at one end and the host at the
/// other.
///
/// `R` owns the ring: the allocation alone, or a value that also keeps it registered with the NIC.
#[derive(Debug)]
pub struct Pump<R = GpuBuffer> {
    ring: R,
    control: GpuBuffer,
    launch: Launch,
    /// The host's own index, in bytes.
    at: u64,
}

impl<R: Borrow<GpuBuffer>> Pump<R> {
    /// Starts to move the bytes that arrive on `session` into the ring; take them out with
    /// [`Pump::take`]. `ring` must be registered with the NIC. The queue must serve nothing else.
    ///
    /// # Errors
    /// [`PumpError`].
    pub fn receive(
        gpu: &Gpu,
        queue: QueueHandle,
        session: SessionId,
        ring: R,
        times: PumpTimes,
    ) -> Result<Pump<R>, PumpError> {
        Pump::start(gpu, "rb_nc_receive", queue, session, ring, times)
    }

    /// Starts to send the bytes that [`Pump::put`] puts into the ring.
    ///
    /// # Errors
    /// [`PumpError`].
    pub fn send(
        gpu: &Gpu,
        queue: QueueHandle,
        session: SessionId,
        ring: R,
        times: PumpTimes,
    ) -> Result<Pump<R>, PumpError> {
        Pump::start(gpu, "rb_nc_send", queue, session, ring, times)
    }

    fn start(
        gpu: &Gpu,
        kernel: &str,
        queue: QueueHandle,
        session: SessionId,
        ring: R,
        times: PumpTimes,
    ) -> Result<Pump<R>, PumpError> {
        let control = gpu.alloc(CONTROL_BYTES)?;
        control.write(0, &[0; CONTROL_BYTES as usize])?;
        let args: [KernelArg; 7] = [
            queue.into(),
            session.0.into(),
            ring.borrow().into(),
            ring.borrow().len().into(),
            (&control).into(),
            times.operation_us.into(),
            times.idle_limit_us.into(),
        ];
        // SAFETY: the kernel's own parameters; the pump owns ring and control words.
        let launch = unsafe { gpu.launch(kernel, 1, 1, &args) }?;
        Ok(Pump {
            ring,
            control,
            launch,
            at: 0,
        })
    }

    /// Copies out arrived bytes, as many as `into` holds; 0 when none have arrived.
    ///
    /// # Errors
    /// [`GpuError`] never for a pump that [`Pump::receive`] made.
    pub fn take(&mut self, into: &mut [u8]) -> Result<usize, GpuError> {
        // Acquire: pairs with the kernel's Release store, so the bytes are there.
        let have = self.control.load_u64(PRODUCED)? - self.at;
        let n = have.min(into.len() as u64);
        self.copy(n, |ring, at, done, len| {
            ring.read(at, &mut into[done..done + len])
        })?;
        self.at += n;
        // Release: the kernel may then overwrite the bytes.
        self.control.store_u64(CONSUMED, self.at)?;
        Ok(n as usize)
    }

    /// Puts bytes into the ring, as many as there is room for; 0 when it is full.
    ///
    /// # Errors
    /// [`GpuError`] never for a pump that [`Pump::send`] made.
    pub fn put(&mut self, from: &[u8]) -> Result<usize, GpuError> {
        let used = self.at - self.control.load_u64(CONSUMED)?;
        let n = (self.ring.borrow().len() - used).min(from.len() as u64);
        self.copy(n, |ring, at, done, len| {
            ring.write(at, &from[done..done + len])
        })?;
        self.at += n;
        self.control.store_u64(PRODUCED, self.at)?;
        Ok(n as usize)
    }

    /// Calls `piece(ring, ring offset, bytes done, bytes)` for `n` bytes at the host's index, which
    /// may wrap once.
    fn copy(
        &self,
        n: u64,
        mut piece: impl FnMut(&GpuBuffer, u64, usize, usize) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let start = self.at % self.ring.borrow().len();
        let first = n.min(self.ring.borrow().len() - start);
        piece(self.ring.borrow(), start, 0, first as usize)?;
        piece(self.ring.borrow(), 0, first as usize, (n - first) as usize)
    }

    /// Ends the stream: the kernel sends the rest of the ring and half-closes.
    ///
    /// # Errors
    /// As for [`Pump::put`].
    pub fn end(&self) -> Result<(), GpuError> {
        self.control.store_u32(END, 1)
    }

    /// Tells the kernel to leave.
    ///
    /// # Errors
    /// As for [`Pump::put`].
    pub fn stop(&self) -> Result<(), GpuError> {
        self.control.store_u32(STOP, 1)
    }

    /// The kernel's status and detail word, once it has ended; bytes received before are still in
    /// the ring. `Ok` means the end of the stream.
    ///
    /// # Errors
    /// As for [`Pump::put`].
    pub fn ended(&self) -> Result<Option<(Status, u64)>, GpuError> {
        // Acquire: pairs with the kernel's Release store of `done`.
        if self.control.load_u32(DONE)? == 0 {
            return Ok(None);
        }
        let code = self.control.load_u32(STATUS)?;
        let status = u8::try_from(code).ok().and_then(Status::from_code);
        Ok(Some((
            status.unwrap_or(Status::NicSilent),
            self.control.load_u64(DETAIL)?,
        )))
    }

    /// The kernel, to be waited for before the ring is deregistered.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }
}
