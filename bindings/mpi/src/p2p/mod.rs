//! Messages between two ranks, when `ringbell mpi --p2p` asks for them.
//!
//! Every call of these on a communicator is taken, or none: a receive from any rank must see
//! messages of one path only. They are messages of the NIC, which matches them; here is what is
//! MPI's. `context` and `ranks`: communicators. `transfer`: the NIC's operations, and memory;
//! derived types are packed by the library below. `operation` is what the program waits for,
//! `persistent` and `requests` are the calls that start and end requests, `calls` and `fortran`
//! what is exported.
#![allow(unsafe_code)] // The program's pointers.
#![allow(clippy::disallowed_methods)] // Waits, and a thread.

mod calls;
mod context;
mod fortran;
mod operation;
mod persistent;
mod ranks;
mod requests;
mod transfer;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ringbell::comm::MessageId;
use ringbell::{Communicator, Nic};

use crate::abi::{Abi, Handle, Tables};
use crate::below::{below, find, find_next};
use crate::collective::Buffer;
use crate::elements::Elements;
use crate::imports;
use crate::layer::{agreed, Beside, Layer};
use crate::trace;
use context::Contexts;
use operation::{Envelope, Op};
use persistent::Persistents;
use ranks::Context;
use transfer::{Mode, Receive, Send, Source, Transfers, Wanted};

/// How long a call waits before it lets the library below move its own messages.
const SLICE: Duration = Duration::from_micros(500);

/// How often the thread looks whether a call has advanced the transfers, and whether there is
/// something to move.
const LOOK: Duration = Duration::from_millis(1);

/// Messages between two ranks.
#[derive(Debug)]
pub(crate) struct Messages {
    transfers: Mutex<Transfers>,
    /// Counts steps of the transfers by calls.
    steps: AtomicU64,
    over: AtomicBool,
    contexts: Contexts,
    /// Messages of matched probes, by the program's handle.
    probed: Mutex<Vec<Option<Probed>>>,
    persistents: Persistents,
}

/// A message of a matched probe.
#[derive(Debug)]
struct Probed {
    /// The communicator, whose error handler is asked.
    comm: Handle,
    context: Arc<Context>,
    envelope: Envelope,
    bytes: u64,
    message: MessageId,
}

/// Whether the program asks for them, on this rank.
fn is_wanted() -> bool {
    std::env::var_os("RINGBELL_MPI_P2P").is_some_and(|v| v != "0")
}

/// Why they cannot be taken.
fn refusal(tables: &Tables) -> Option<&'static str> {
    match tables.abi {
        // Its functions call those of C by names that cannot be taken.
        Abi::Mpich => imports::any(|name| {
            (name.starts_with("mpi_") || name.starts_with("pmpir_")) && name.contains("_f08")
        })
        .then_some("the program uses MPICH's mpi_f08"),
        Abi::OpenMpi => None,
        Abi::Standard => (!find_next(c"mpi_send_").is_null())
            .then_some("the program uses MPI's functions of Fortran with MPI 5's ABI"),
    }
}

static MESSAGES: OnceLock<Messages> = OnceLock::new();

/// Those of this process, where they are taken.
fn messages() -> Option<&'static Messages> {
    MESSAGES.get()
}

/// Messages between two ranks, where all ranks ask for them. All of them call it.
pub(crate) fn take(
    tables: &Tables,
    nic: &Nic,
    world: &Communicator,
) -> Option<&'static dyn Beside> {
    let wanted = is_wanted();
    let refusal = refusal(tables).filter(|_| wanted);
    if let Some(why) = refusal {
        trace::say(format_args!("messages between ranks are handed on: {why}"));
    }
    if !agreed(tables, tables.world, wanted && refusal.is_none()) {
        return None;
    }
    // On a queue of its own: a collective that waits keeps its place in the world's.
    let made = world.split(Some(0), 0).map_err(|e| e.to_string());
    let made = made
        .and_then(|comm| Messages::new(tables, nic, comm.ok_or("no communicator for messages")?));
    if let Err(why) = &made {
        trace::say(format_args!("messages between ranks are handed on: {why}"));
    }
    let all = agreed(tables, tables.world, made.is_ok());
    let messages = made.ok().filter(|_| all)?;
    Some(MESSAGES.get_or_init(|| messages))
}

/// Why a call is not taken.
enum Refused {
    /// A wrong argument, which the library below reports; or nothing to do with this path, as a
    /// rank that is none.
    HandOn,
    /// Of a derived type, and longer than the library below packs.
    TooLong,
    /// Memory of a GPU that the driver does not copy.
    NoCopy(String),
}

impl Beside for Messages {
    fn start(&'static self, layer: &'static Layer) {
        let moving = move || {
            let mut seen = 0;
            // Relaxed: the loop ends a moment later.
            while !self.over.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
                // Relaxed: it only counts.
                let steps = self.steps.load(Ordering::Relaxed);
                if steps == seen {
                    if let Ok(mut transfers) = self.transfers.try_lock() {
                        if transfers.has_news() {
                            transfers.advance(&layer.memories);
                        }
                    }
                }
                seen = steps;
            }
        };
        let thread = std::thread::Builder::new().name("ringbell-p2p".into());
        if let Err(error) = thread.spawn(moving) {
            trace::say(format_args!(
                "no thread for messages: {error}; ranks inside the library below do not answer"
            ));
        }
    }

    fn knows(&self, comm: Handle) -> bool {
        self.contexts.get(comm).is_some()
    }

    /// What is under way on it ends as before.
    fn forget(&self, comm: Handle) {
        self.contexts.remove(comm);
    }

    fn progress(&self, layer: &Layer) {
        let mut transfers = self.lock();
        transfers.advance(&layer.memories);
        let finished = std::mem::take(&mut transfers.finished);
        drop(transfers);
        // Relaxed: it only counts.
        self.steps.fetch_add(1, Ordering::Relaxed);
        for f in finished {
            f.finish(layer);
        }
    }

    /// First all that the program was told is sent leaves, on every rank. Each helps the others
    /// until then.
    fn end(&self, layer: &Layer, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut all_left: Option<Handle> = None;
        while Instant::now() < deadline {
            self.progress(layer);
            match &mut all_left {
                None if self.lock().has_left() => {
                    let mut request: Handle = 0;
                    // SAFETY: the signature of MPI's standard.
                    unsafe {
                        below!("PMPI_Ibarrier", fn(Handle, *mut Handle) -> c_int)(
                            layer.tables.world,
                            &raw mut request,
                        );
                    }
                    all_left = Some(request);
                }
                None => {}
                Some(request) => {
                    let mut flag = 0;
                    // SAFETY: as before; room for any status.
                    unsafe {
                        let mut status = [0_u64; 8];
                        below!("PMPI_Test", fn(*mut Handle, *mut c_int, *mut u64) -> c_int)(
                            request,
                            &raw mut flag,
                            status.as_mut_ptr(),
                        );
                    }
                    if flag != 0 {
                        break;
                    }
                }
            }
            std::thread::yield_now();
        }
        // Relaxed: see `start`.
        self.over.store(true, Ordering::Relaxed);
        self.lock().close();
    }
}

impl Messages {
    /// Over a communicator of all ranks that nothing else uses.
    fn new(tables: &Tables, nic: &Nic, comm: Communicator) -> Result<Messages, String> {
        Ok(Messages {
            contexts: Contexts::new(tables.world, tables.own, comm.rank(), comm.size()),
            transfers: Mutex::new(Transfers::new(nic, &comm)?),
            steps: AtomicU64::new(0),
            over: AtomicBool::new(false),
            probed: Mutex::default(),
            persistents: Persistents::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Transfers> {
        self.transfers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something may have moved, and lets the library below move, too.
    fn idle(&self, layer: &Layer) {
        self.lock().wait(SLICE);
        layer.progress_below();
    }

    fn complete(&self, layer: &Layer, op: &Op) {
        loop {
            self.progress(layer);
            if op.is_done() {
                return;
            }
            self.idle(layer);
        }
    }

    fn wanted(
        layer: &Layer,
        context: &Arc<Context>,
        source: c_int,
        tag: c_int,
    ) -> Result<Wanted, Refused> {
        let (any_source, any_tag) = layer.tables.any();
        let source = match source {
            s if s == any_source => None,
            s if context.world_rank(s).is_none() => return Err(Refused::HandOn),
            s => Some(s as u32),
        };
        let tag = match tag {
            t if t == any_tag => None,
            t if t < 0 => return Err(Refused::HandOn),
            t => Some(t),
        };
        Ok(Wanted {
            context: context.clone(),
            source,
            tag,
        })
    }

    /// Begins a send.
    fn send(
        &self,
        layer: &Layer,
        mode: Mode,
        buffer: Buffer,
        (context, to, tag): (&Context, c_int, c_int),
        op: Arc<Op>,
    ) -> Result<u64, Refused> {
        let (to, bytes) = sendable(layer, context, &buffer, to, tag)?;
        let source = match buffer.elements(layer) {
            Elements::Plain(at) if mode != Mode::Buffered => Source::Program(at),
            elements => {
                let mut packed = vec![0; bytes as usize];
                let filled = elements.fill(packed.as_mut_ptr(), packed.len(), layer.tables.own);
                filled.map_err(Refused::NoCopy)?;
                Source::Heap(packed)
            }
        };
        let mut transfers = self.lock();
        let op = match mode {
            Mode::Standard | Mode::Synchronous => Some(op),
            // The program is told at once.
            Mode::Buffered => {
                transfers.sent(Some(op), None);
                None
            }
        };
        let send = Send {
            op,
            source,
            bytes,
            synchronous: mode == Mode::Synchronous,
        };
        transfers.send(&layer.memories, (to, context.id, tag), send);
        drop(transfers);
        self.progress(layer);
        Ok(bytes)
    }

    /// Begins a receive.
    fn receive(
        &self,
        layer: &Layer,
        buffer: Buffer,
        (context, source, tag): (&Arc<Context>, c_int, c_int),
        op: Arc<Op>,
    ) -> Result<(), Refused> {
        let wanted = Messages::wanted(layer, context, source, tag)?;
        let receive = receivable(layer, &buffer, op)?;
        self.lock().receive(&wanted, receive);
        self.progress(layer);
        Ok(())
    }

    /// Gives a message of a matched probe its receive, and says on which communicator it was.
    fn receive_probed(
        &self,
        layer: &Layer,
        buffer: Buffer,
        message: *mut c_void,
        op: Arc<Op>,
    ) -> Result<Handle, Refused> {
        let receive = receivable(layer, &buffer, op)?;
        // SAFETY: the program's handle.
        let handle = unsafe { layer.tables.read(message, 0) };
        let found = handle.wrapping_sub(layer.tables.first_message());
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let found = probed.get_mut(found).and_then(Option::take);
        let found = found.ok_or(Refused::HandOn)?;
        drop(probed);
        // SAFETY: as before.
        unsafe { layer.tables.write(message, 0, layer.tables.no_message()) };
        let about = (found.context, found.envelope, found.bytes);
        let message = found.message;
        self.lock()
            .deliver(&layer.memories, message, receive, about);
        self.progress(layer);
        Ok(found.comm)
    }

    /// The communicator of a message of ours, and its context's number; `None` of another's.
    fn probed_on(&self, layer: &Layer, message: *const c_void) -> Option<(Handle, u32)> {
        // SAFETY: the program's handle.
        let handle = unsafe { layer.tables.read(message, 0) };
        let found = handle.wrapping_sub(layer.tables.first_message());
        let probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let found = probed.get(found)?.as_ref()?;
        Some((found.comm, found.context.id))
    }

    /// What a probe finds, as the end of an operation.
    fn probe(&self, layer: &Layer, wanted: &Wanted) -> Option<Op> {
        self.progress(layer);
        let (envelope, bytes) = self.lock().look(wanted)?;
        Some(Op::found(envelope, bytes))
    }

    /// What a matched probe finds on a communicator, taken out, and its handle.
    fn probe_matched(&self, layer: &Layer, comm: Handle, wanted: &Wanted) -> Option<(Op, Handle)> {
        self.progress(layer);
        let (envelope, bytes, message) = self.lock().take(wanted)?;
        let op = Op::found(envelope, bytes);
        let probed = Probed {
            comm,
            context: wanted.context.clone(),
            envelope,
            bytes,
            message,
        };
        Some((op, self.keep(layer, probed)))
    }

    /// Why no message comes any more.
    fn lost(&self) -> Option<String> {
        self.lock().lost()
    }

    /// Keeps a message for [`Messages::receive_probed`], and gives its handle.
    fn keep(&self, layer: &Layer, message: Probed) -> Handle {
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let at = probed.iter().position(Option::is_none);
        let at = at.unwrap_or_else(|| {
            probed.push(None);
            probed.len() - 1
        });
        probed[at] = Some(message);
        layer.tables.first_message() + at
    }
}

/// The rank of `MPI_COMM_WORLD` that a send is for, and its bytes.
fn sendable(
    layer: &Layer,
    context: &Context,
    buffer: &Buffer,
    to: c_int,
    tag: c_int,
) -> Result<(u32, u64), Refused> {
    let to = context.world_rank(to).ok_or(Refused::HandOn)?;
    let bytes = judged(layer, buffer)?;
    match tag >= 0 {
        true => Ok((to, bytes)),
        false => Err(Refused::HandOn),
    }
}

fn receivable(layer: &Layer, buffer: &Buffer, op: Arc<Op>) -> Result<Receive, Refused> {
    Ok(Receive {
        op,
        to: buffer.elements(layer),
        room: judged(layer, buffer)?,
    })
}

/// Bytes of a buffer's elements.
fn judged(layer: &Layer, buffer: &Buffer) -> Result<u64, Refused> {
    let bytes = buffer.bytes(layer).ok_or(Refused::HandOn)?;
    let packed = layer.tables.plain(buffer.ty).is_none();
    // The library below packs no more.
    if packed && bytes > i32::MAX as u64 {
        trace::say(format_args!(
            "a message of {bytes} bytes of a derived type: with --p2p it has at most 2 GiB - 1"
        ));
        return Err(Refused::TooLong);
    }
    Ok(bytes)
}

impl Tables {
    /// `MPI_ANY_SOURCE` and `MPI_ANY_TAG`.
    pub(crate) fn any(&self) -> (c_int, c_int) {
        match self.abi {
            Abi::OpenMpi => (-1, -1),
            Abi::Mpich => (-2, -1),
            Abi::Standard => (-1, -2),
        }
    }

    /// A handle in the program's memory, at an index.
    ///
    /// # Safety
    /// There is one.
    pub(crate) unsafe fn read(&self, at: *const c_void, index: usize) -> Handle {
        // SAFETY: the caller's contract.
        unsafe {
            match self.abi {
                Abi::Mpich => *at.cast::<u32>().add(index) as usize,
                Abi::OpenMpi | Abi::Standard => *at.cast::<usize>().add(index),
            }
        }
    }

    /// Writes a handle.
    ///
    /// # Safety
    /// As [`Tables::read`].
    pub(crate) unsafe fn write(&self, at: *mut c_void, index: usize, handle: Handle) {
        // SAFETY: the caller's contract.
        unsafe {
            match self.abi {
                Abi::Mpich => *at.cast::<u32>().add(index) = handle as u32,
                Abi::OpenMpi | Abi::Standard => *at.cast::<usize>().add(index) = handle,
            }
        }
    }

    /// Bytes of a handle in the program's arrays.
    fn bytes_of_handle(&self) -> usize {
        match self.abi {
            Abi::Mpich => 4,
            Abi::OpenMpi | Abi::Standard => 8,
        }
    }

    /// `MPI_PROC_NULL`.
    fn no_rank(&self) -> c_int {
        match self.abi {
            Abi::Mpich => -1,
            Abi::OpenMpi => -2,
            Abi::Standard => -3,
        }
    }

    /// `MPI_MESSAGE_NULL`.
    fn no_message(&self) -> Handle {
        match self.abi {
            Abi::Mpich => 0x2c00_0000,
            Abi::OpenMpi => find(c"ompi_message_null").addr(),
            Abi::Standard => 0x128,
        }
    }

    /// `MPI_REQUEST_NULL`.
    fn no_request(&self) -> Handle {
        match self.abi {
            Abi::Mpich => 0x2c00_0000,
            Abi::OpenMpi => find(c"ompi_request_null").addr(),
            Abi::Standard => 0x180,
        }
    }

    /// The first handle of messages of our own: a kind that MPICH does not have, an address that no
    /// memory has.
    fn first_message(&self) -> Handle {
        match self.abi {
            Abi::Mpich => 0x7800_0000,
            Abi::OpenMpi | Abi::Standard => 0x7800_0000_0000_0000,
        }
    }
}

/// What a call needs that is taken.
struct Taken {
    layer: &'static Layer,
    messages: &'static Messages,
    context: Arc<Context>,
    comm: Handle,
}

/// Whether a call on this communicator is taken.
fn taken(comm: Handle, call: &'static str) -> Option<Taken> {
    let layer = Layer::get()?;
    let messages = messages()?;
    let comm = layer.tables.handle(comm);
    let Some(context) = messages.contexts.get(comm) else {
        let why = "a communicator between two groups, of MPI_Comm_idup, or with other jobs";
        trace::note(call, Some(why), 0);
        return None;
    };
    Some(Taken {
        layer,
        messages,
        context,
        comm,
    })
}

impl Elements {
    /// Copies so many bytes to them, which may end within an element.
    fn drain_some(&self, from: *const u8, bytes: usize, layer: &Layer) -> Result<(), String> {
        let own = layer.tables.own;
        let Elements::Typed(at, _, ty) = self else {
            return self.drain(from, bytes, own);
        };
        let one = Buffer::new(at.cast(), 1, *ty);
        let Some(size) = one.bytes(layer).filter(|s| *s > 0) else {
            return Ok(());
        };
        let whole = bytes / size as usize;
        let elements = Elements::Typed(*at, whole as i64, *ty);
        elements.drain(from, whole * size as usize, own)?;
        let rest = bytes % size as usize;
        if rest > 0 {
            // The element as it is, with a new start.
            let last = one.part(layer, whole as i64, 1).elements(layer);
            let mut packed = vec![0_u8; size as usize];
            last.fill(packed.as_mut_ptr(), packed.len(), own)?;
            // SAFETY: the bytes received have that many behind the whole elements.
            unsafe {
                let tail = from.add(bytes - rest);
                packed.as_mut_ptr().copy_from_nonoverlapping(tail, rest);
            }
            last.drain(packed.as_ptr(), packed.len(), own)?;
        }
        Ok(())
    }
}

/// The program has made a communicator.
fn made(comm: Handle) {
    let (Some(layer), Some(messages)) = (Layer::get(), messages()) else {
        return;
    };
    let comm = layer.tables.handle(comm);
    if comm != layer.tables.no_comm {
        messages.contexts.adopt(layer, comm);
    }
}
