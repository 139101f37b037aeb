//! Engines of the C API: at a socket, at a queue's transfers, at a communicator.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use ringbell::abi::queue::QueueHandle;
use ringbell::abi::{EngineId, QueueId, SessionId};

use crate::communicator::COMMS;
use crate::context;
use crate::failure::{entry, Failure};
use crate::nic::NICS;
use crate::own_engine::Callbacks;
use crate::pointer::{optional_text, OptionalOut, Out};
use ringbell::engines::{
    Direction, EngineResult, EngineUseError, Place, Registry, Return, StreamEngine,
};
use ringbell::Nic;

/// `RB_ENGINE_RECEIVED`
const RECEIVED: u32 = 0;
/// `RB_ENGINE_SENT`
const SENT: u32 = 1;
/// `RB_ENGINE_INPUT`
const INPUT: u32 = 2;
/// `RB_ENGINE_OUTPUT`
const OUTPUT: u32 = 3;
/// `RB_ENGINE_PER_STREAM`
const PER_STREAM: u32 = 1;

/// `rb_engine_config`. Fields are only ever appended.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    size: usize,
    spec: *const c_char,
    place: u32,
    item_bytes: u32,
    flags: u32,
    reserved: u32,
    own: *const Callbacks,
}

/// Bytes of the structure before anything was appended to it.
const OLDEST: usize = std::mem::offset_of!(Config, own);

/// Where an engine comes from.
#[derive(Clone)]
enum Kind {
    /// The text that describes one of Ringbell's.
    Named(String),
    /// The program itself.
    Own(Callbacks),
}

/// The engine to be attached.
struct Wanted {
    kind: Kind,
    place: Place,
    item: usize,
    per_stream: bool,
}

impl Wanted {
    /// # Safety
    /// `p` is null, or valid for as many bytes as its `size` says, and its text is null or
    /// zero-terminated.
    unsafe fn read(p: *const Config) -> Result<Wanted, Failure> {
        if p.is_null() {
            return Err(Failure::argument("`config` is a null pointer"));
        }
        // SAFETY: `size` comes first in every version of the structure.
        let size = unsafe { p.cast::<usize>().read_unaligned() };
        if size != OLDEST && size != size_of::<Config>() {
            return Err(Failure::argument(format!(
                "config->size is {size}, not {}; zero the structure, set size = sizeof(rb_engine_config), and build against the header of this library",
                size_of::<Config>()
            )));
        }
        let mut c = MaybeUninit::<Config>::zeroed();
        // SAFETY: the caller vouches for `size` bytes, no more than the structure has. All zero is
        // a valid one: numbers and null pointers.
        let c = unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), c.as_mut_ptr().cast(), size);
            c.assume_init()
        };
        // SAFETY: the caller vouches for the text and the callbacks.
        let (spec, own) = unsafe {
            (
                optional_text(c.spec, "config->spec")?,
                Callbacks::read(c.own)?,
            )
        };
        let kind = match (spec, own) {
            (Some(spec), None) => Kind::Named(spec),
            (None, Some(own)) => Kind::Own(own),
            (Some(_), Some(_)) => {
                return Err(Failure::argument(
                    "config->spec and config->own are both set; an engine is one or the other",
                ))
            }
            (None, None) => {
                return Err(Failure::argument(
                    "config->spec is a null pointer, and so is config->own; set one of them",
                ))
            }
        };
        let place = match c.place {
            RECEIVED => Place::Received,
            SENT => Place::Sent,
            INPUT => Place::Input,
            OUTPUT => Place::Output,
            other => {
                return Err(Failure::argument(format!(
                    "config->place is {other}; use RB_ENGINE_RECEIVED, _SENT, _INPUT or _OUTPUT"
                )));
            }
        };
        if c.flags & !PER_STREAM != 0 {
            return Err(Failure::argument(format!(
                "config->flags is {:#x}; only RB_ENGINE_PER_STREAM is known",
                c.flags
            )));
        }
        Ok(Wanted {
            kind,
            place,
            item: c.item_bytes.max(1) as usize,
            per_stream: c.flags & PER_STREAM != 0,
        })
    }

    fn engine(&self) -> Result<Box<dyn StreamEngine>, Failure> {
        match &self.kind {
            Kind::Named(spec) => {
                let made = Registry::builtin().make(spec);
                made.map_err(|e| Failure::argument(format!("config->spec: {e}")))
            }
            Kind::Own(own) => own.engine(),
        }
    }

    /// A function that makes one for each stream; making one was tried.
    fn maker(&self) -> Result<impl Fn() -> Box<dyn StreamEngine> + Send + 'static, Failure> {
        self.engine()?;
        let (registry, kind) = (Registry::builtin(), self.kind.clone());
        Ok(move || match &kind {
            Kind::Named(spec) => registry.make(spec).expect("it was made before"),
            Kind::Own(own) => own.engine_or_failed(),
        })
    }

    /// Direction of the bytes at a socket or queue, where nothing else is set.
    fn direction(&self) -> Result<Direction, Failure> {
        match self.place {
            Place::Received => Ok(Direction::Receive),
            Place::Sent => Ok(Direction::Send),
            Place::Input | Place::Output => Err(Failure::argument(
                "RB_ENGINE_INPUT and RB_ENGINE_OUTPUT are places at a communicator; use RB_ENGINE_RECEIVED or RB_ENGINE_SENT",
            )),
        }
    }
}

/// Checks the arguments of every call that attaches.
///
/// # Safety
/// As for [`Wanted::read`]; `engine` is null or may be written to.
unsafe fn wanted(config: *const c_void, engine: *mut u32) -> Result<(Out<u32>, Wanted), Failure> {
    // SAFETY: by this function's contract.
    unsafe { Ok((Out::new(engine, "`engine`")?, Wanted::read(config.cast())?)) }
}

fn used(e: EngineUseError) -> Failure {
    Failure::argument(e.to_string())
}

fn on_queue(nic: &ringbell::Nic, queue: QueueId, wanted: &Wanted) -> Result<EngineId, Failure> {
    let direction = wanted.direction()?;
    let attached = match wanted.per_stream {
        true => nic.attach_queue_engines(queue, direction, wanted.maker()?),
        false => nic.attach_queue_engine(queue, direction, wanted.engine()?, wanted.item),
    };
    attached.map_err(used)
}

/// # Safety
/// `config` and `engine` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_engine_attach_socket(
    nic: *mut c_void,
    sock: u32,
    config: *const c_void,
    engine: *mut u32,
) -> i32 {
    entry("rb_engine_attach_socket", || {
        // SAFETY: by this function's contract.
        let (out, wanted) = unsafe { wanted(config, engine)? };
        if wanted.per_stream {
            return Err(Failure::argument(
                "RB_ENGINE_PER_STREAM: a socket is one stream; leave the flag out",
            ));
        }
        let nic = NICS.get(nic.addr())?;
        let (direction, made) = (wanted.direction()?, wanted.engine()?);
        let attached = nic.nic.attach_engine(SessionId(sock), direction, made);
        out.set(attached.map_err(used)?.0);
        Ok(())
    })
}

/// # Safety
/// `queue`, `config` and `engine` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_engine_attach_queue(
    nic: *mut c_void,
    queue: *const c_void,
    config: *const c_void,
    engine: *mut u32,
) -> i32 {
    entry("rb_engine_attach_queue", || {
        // SAFETY: by this function's contract.
        let (out, wanted) = unsafe { wanted(config, engine)? };
        let nic = NICS.get(nic.addr())?;
        if queue.is_null() {
            return Err(Failure::argument("`queue` is a null pointer"));
        }
        // SAFETY: not null, and by this function's contract a handle that rb_queue_create filled
        // in.
        let handle = unsafe { queue.cast::<QueueHandle>().read_unaligned() };
        out.set(on_queue(&nic.nic, QueueId(handle.queue), &wanted)?.0);
        Ok(())
    })
}

/// # Safety
/// `config` and `engine` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_engine_attach_context(
    context: *mut c_void,
    config: *const c_void,
    engine: *mut u32,
) -> i32 {
    entry("rb_engine_attach_context", || {
        // SAFETY: by this function's contract.
        let (out, wanted) = unsafe { wanted(config, engine)? };
        let (nic, queue) = context::queue_of(context.addr())?;
        out.set(on_queue(&nic.nic, queue, &wanted)?.0);
        Ok(())
    })
}

/// # Safety
/// `config` and `engine` are null or valid, as `ringbell.h` says.
#[no_mangle]
unsafe extern "C" fn rb_engine_attach_comm(
    comm: *mut c_void,
    config: *const c_void,
    engine: *mut u32,
) -> i32 {
    entry("rb_engine_attach_comm", || {
        // SAFETY: by this function's contract.
        let (out, wanted) = unsafe { wanted(config, engine)? };
        let comm = COMMS.get(comm.addr())?;
        let attached = match wanted.per_stream {
            true => comm.comm.attach_engines(wanted.place, wanted.maker()?),
            false => {
                let made = wanted.engine()?;
                comm.comm.attach_engine(wanted.place, made, wanted.item)
            }
        };
        out.set(attached.map_err(used)?.0);
        Ok(())
    })
}

/// `RB_RETURN_STREAM`
const RETURN_STREAM: u32 = 0;
/// `RB_RETURN_RESULT`
const RETURN_RESULT: u32 = 1;

#[no_mangle]
extern "C" fn rb_engine_return(nic: *mut c_void, sock: u32, what: u32) -> i32 {
    entry("rb_engine_return", || {
        let what = match what {
            RETURN_STREAM => Return::Stream,
            RETURN_RESULT => Return::Result,
            other => {
                return Err(Failure::argument(format!(
                    "`what` is {other}; use RB_RETURN_STREAM or RB_RETURN_RESULT"
                )))
            }
        };
        let nic = NICS.get(nic.addr())?;
        let returned = nic.nic.backend().return_engine(SessionId(sock), what);
        returned.map_err(used)
    })
}

/// The caller's buffer for a result.
struct Room {
    result: *mut u8,
    room: usize,
    bytes: OptionalOut<usize>,
    cut: OptionalOut<u64>,
}

impl Room {
    /// # Safety
    /// Each pointer is null or may be written to: `result` for `room` bytes.
    unsafe fn new(
        result: *mut c_void,
        room: usize,
        bytes: *mut usize,
        cut: *mut u64,
    ) -> Result<Room, Failure> {
        if result.is_null() && room > 0 {
            return Err(Failure::argument("`result` is a null pointer"));
        }
        // SAFETY: by this function's contract.
        let (bytes, cut) = unsafe { (OptionalOut::new(bytes), OptionalOut::new(cut)) };
        Ok(Room {
            result: result.cast(),
            room,
            bytes,
            cut,
        })
    }

    /// Stores as much as fits, and always the full length.
    fn store(&self, result: &EngineResult) {
        let n = result.bytes.len().min(self.room);
        self.bytes.set(result.bytes.len());
        self.cut.set(result.cut.unwrap_or(0) as u64);
        if n > 0 {
            // SAFETY: not null with room, and by the contract of `new` good for `room` bytes.
            unsafe { std::ptr::copy_nonoverlapping(result.bytes.as_ptr(), self.result, n) };
        }
    }

    /// As `store`; a result that does not fit whole is an error.
    fn take(&self, result: &EngineResult) -> Result<(), Failure> {
        self.store(result);
        match result.bytes.len() {
            n if n <= self.room => Ok(()),
            n => Err(Failure::argument(format!(
                "the result has {n} bytes, and there is room for {}; its beginning was stored",
                self.room
            ))),
        }
    }
}

/// Stores the result that `ask` gets from the NIC.
///
/// # Safety
/// As for [`Room::new`].
unsafe fn result(
    nic: *mut c_void,
    (result, room, bytes, cut): (*mut c_void, usize, *mut usize, *mut u64),
    ask: impl FnOnce(&Nic) -> Result<EngineResult, EngineUseError>,
) -> Result<(), Failure> {
    // SAFETY: by this function's contract.
    let out = unsafe { Room::new(result, room, bytes, cut)? };
    let nic = NICS.get(nic.addr())?;
    out.take(&ask(&nic.nic).map_err(used)?)
}

/// # Safety
/// Each pointer is null or may be written to: `result` for `room` bytes.
#[no_mangle]
unsafe extern "C" fn rb_engine_result(
    nic: *mut c_void,
    engine: u32,
    result: *mut c_void,
    room: usize,
    bytes: *mut usize,
    cut: *mut u64,
) -> i32 {
    let (out, id) = ((result, room, bytes, cut), EngineId(engine));
    let ask = |nic: &Nic| nic.engine_result(id);
    // SAFETY: by this function's contract.
    entry("rb_engine_result", || unsafe {
        self::result(nic, out, ask)
    })
}

/// # Safety
/// As for `rb_engine_result`.
#[no_mangle]
unsafe extern "C" fn rb_engine_result_of_socket(
    nic: *mut c_void,
    engine: u32,
    sock: u32,
    result: *mut c_void,
    room: usize,
    bytes: *mut usize,
    cut: *mut u64,
) -> i32 {
    let (out, id) = ((result, room, bytes, cut), EngineId(engine));
    let ask = |nic: &Nic| nic.engine_result_of(id, SessionId(sock));
    // SAFETY: by this function's contract.
    entry("rb_engine_result_of_socket", || unsafe {
        self::result(nic, out, ask)
    })
}

/// # Safety
/// As for `rb_engine_result`.
#[no_mangle]
unsafe extern "C" fn rb_engine_result_of_rank(
    nic: *mut c_void,
    engine: u32,
    rank: u32,
    result: *mut c_void,
    room: usize,
    bytes: *mut usize,
    cut: *mut u64,
) -> i32 {
    let (out, id) = ((result, room, bytes, cut), EngineId(engine));
    let ask = |nic: &Nic| nic.engine_result_of_rank(id, rank);
    // SAFETY: by this function's contract.
    entry("rb_engine_result_of_rank", || unsafe {
        self::result(nic, out, ask)
    })
}

/// # Safety
/// As for `rb_engine_result`.
#[no_mangle]
unsafe extern "C" fn rb_engine_detach(
    nic: *mut c_void,
    engine: u32,
    result: *mut c_void,
    room: usize,
    bytes: *mut usize,
    cut: *mut u64,
) -> i32 {
    entry("rb_engine_detach", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Room::new(result, room, bytes, cut)? };
        let nic = NICS.get(nic.addr())?;
        let last = nic.nic.detach_engine(EngineId(engine));
        // The engine is gone even when not all of its result fits.
        out.store(&last.map_err(used)?);
        Ok(())
    })
}
