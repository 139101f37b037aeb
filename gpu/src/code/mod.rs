//! Machine code of a kernel, which runs in any process of this host, and its form on disk.
//!
//! - `kernel`: the code at its place in a GPU memory;
//! - `wanted`: what its loops wait for; `lines`: what debuggers must know of it;
//! - `gdb`: the interface by which gdb learns of code that was compiled while the program runs.
#![allow(unsafe_code)] // Makes a function of bytes.

mod gdb;
mod kernel;
mod lines;
mod wanted;

use std::ffi::c_void;
use std::sync::OnceLock;

use cranelift_codegen::binemit::Reloc;
use cranelift_codegen::ir::{ExternalName, LibCall, StackSlot};
use cranelift_codegen::CompiledCode;
use memmap2::{Mmap, MmapMut};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::hooks::{Checks, Layout};
use crate::module::{Function, Parameter, Site};
pub(crate) use gdb::register;
use gdb::Registered;
pub(crate) use kernel::Placement;
pub use kernel::{Kernel, Shape};
pub(crate) use lines::{Lines, DISPATCH, ENTRY};
pub use wanted::Relation;
pub(crate) use wanted::{ones, Wanted};

/// Runs a thread until it waits, ends or fails, and says which.
pub(crate) type Entry = unsafe extern "C" fn(*mut c_void) -> u32;

/// What is known of a kernel when its code is complete.
pub(crate) struct Facts {
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) frame_words: u32,
    /// Where the stack begins in local memory; 0 without one.
    pub(crate) stack_begin: u32,
    /// It names memory whose size a launch decides.
    pub(crate) dynamic_shared: bool,
    pub(crate) sites: Vec<Site>,
    pub(crate) checks: Checks,
    /// Variables in shared and in local memory.
    pub(crate) layouts: [Layout; 2],
    /// Of code for debuggers, which has lines: where it keeps the thread.
    pub(crate) thread: Option<StackSlot>,
    /// What its loops wait for.
    pub(crate) wanted: Vec<Wanted>,
}

/// A kernel's machine code, and what a launch must know.
#[derive(Debug)]
pub struct Code {
    /// The kernel's name.
    pub name: String,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
    /// Most threads of a block, if the text says so.
    pub max_threads: Option<u32>,
    /// Bytes of static shared memory.
    pub shared_bytes: u32,
    /// Whether it uses dynamic shared memory.
    pub dynamic_shared: bool,
    /// Bytes of local memory of each thread.
    pub local_bytes: u32,
    pub(crate) frame_words: u32,
    pub(crate) stack_begin: u32,
    pub(crate) sites: Vec<Site>,
    /// Which it was compiled with. Such code is not kept.
    pub(crate) checks: Checks,
    /// Variables in shared and in local memory, for checks.
    pub(crate) layouts: [Layout; 2],
    calls: Vec<Call>,
    /// What its loops wait for.
    pub(crate) wanted: Vec<Wanted>,
    /// Of code for debuggers.
    pub(crate) lines: Option<Lines>,
    /// What debuggers know of it. Before the image, so that they forget it first.
    pub(crate) registered: OnceLock<Option<Registered>>,
    /// Set when perf has its name.
    pub(crate) mapped: OnceLock<()>,
    image: Mmap,
}

/// The head of the form on disk. Wanted values, parameters, sites, calls, rows of lines, frame,
/// name and code follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    wanted: u32,
    max_threads: u32,
    shared_bytes: u32,
    dynamic_shared: u32,
    local_bytes: u32,
    frame_words: u32,
    stack_begin: u32,
    parameters: u32,
    sites: u32,
    calls: u32,
    /// 0 without lines.
    rows: u32,
    frame_bytes: u32,
    thread: i32,
    name_bytes: u32,
    code_bytes: u32,
    _reserved: u32,
}

const MAGIC: [u8; 8] = *b"rb-code2";

/// Bytes and offset.
type Pair = [u32; 2];

/// A line of the text; number of a source file and 1, or 0; line in it; the same of its caller.
type Place = [u32; 5];

/// A call of a function that the processor lacks as an instruction: where its address stands, and
/// which it is.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Call {
    at: u32,
    function: u32,
}

/// Such functions, by number.
const CALLS: [(LibCall, fn() -> usize); 10] = [
    (LibCall::CeilF32, || ceil32 as *const () as usize),
    (LibCall::CeilF64, || ceil64 as *const () as usize),
    (LibCall::FloorF32, || floor32 as *const () as usize),
    (LibCall::FloorF64, || floor64 as *const () as usize),
    (LibCall::TruncF32, || trunc32 as *const () as usize),
    (LibCall::TruncF64, || trunc64 as *const () as usize),
    (LibCall::NearestF32, || nearest32 as *const () as usize),
    (LibCall::NearestF64, || nearest64 as *const () as usize),
    (LibCall::FmaF32, || fma32 as *const () as usize),
    (LibCall::FmaF64, || fma64 as *const () as usize),
];

macro_rules! functions {
    ($($name:ident = $float:ty, $f:ident($($a:ident),*));+ $(;)?) => {
        $(extern "C" fn $name(x: $float $(, $a: $float)*) -> $float { x.$f($($a),*) })+
    };
}
functions! {
    ceil32 = f32, ceil();
    ceil64 = f64, ceil();
    floor32 = f32, floor();
    floor64 = f64, floor();
    trunc32 = f32, trunc();
    trunc64 = f64, trunc();
    nearest32 = f32, round_ties_even();
    nearest64 = f64, round_ties_even();
    fma32 = f32, mul_add(a, b);
    fma64 = f64, mul_add(a, b);
}

impl Code {
    pub(crate) fn new(
        f: &Function,
        facts: Facts,
        compiled: &CompiledCode,
        lines: Option<Lines>,
    ) -> Result<Code, String> {
        let mut calls = Vec::new();
        for r in compiled.buffer.relocs() {
            use cranelift_codegen::FinalizedRelocTarget as Target;
            let number = match &r.target {
                Target::ExternalName(ExternalName::LibCall(c)) => {
                    CALLS.iter().position(|(known, _)| known == c)
                }
                _ => None,
            };
            match (r.kind, number) {
                (Reloc::Abs8, Some(n)) => calls.push(Call {
                    at: r.offset,
                    function: n as u32,
                }),
                _ => return Err(format!("the code needs {:?}", r.target)),
            }
        }
        Ok(Code {
            name: f.name.clone(),
            parameters: f.parameters(),
            max_threads: f.max_threads,
            shared_bytes: facts.shared_bytes,
            dynamic_shared: facts.dynamic_shared,
            local_bytes: facts.local_bytes,
            frame_words: facts.frame_words,
            stack_begin: facts.stack_begin,
            sites: facts.sites,
            checks: facts.checks,
            layouts: facts.layouts,
            image: map(compiled.code_buffer(), &calls).map_err(|e| e.to_string())?,
            calls,
            wanted: facts.wanted,
            lines,
            registered: OnceLock::new(),
            mapped: OnceLock::new(),
        })
    }

    /// Bytes of the parameters.
    pub fn parameter_bytes(&self) -> u32 {
        self.parameters.last().map_or(0, |p| p.offset + p.bytes)
    }

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.image.len()
    }

    /// Where the machine code lies, and its bytes.
    pub(crate) fn extent(&self) -> (u64, u64) {
        (self.image.as_ptr() as u64, self.image.len() as u64)
    }

    pub(crate) fn entry(&self) -> Entry {
        // SAFETY: the image begins with the function, which was compiled with this signature; it
        // stays mapped while the value lives, and threads run only under a handle of it.
        unsafe { std::mem::transmute::<*const u8, Entry>(self.image.as_ptr()) }
    }

    /// The form on disk, for [`Code::from_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let none = Lines::default();
        let lines = self.lines.as_ref().unwrap_or(&none);
        let head = Head {
            magic: MAGIC,
            wanted: self.wanted.len() as u32,
            max_threads: self.max_threads.unwrap_or(0),
            shared_bytes: self.shared_bytes,
            dynamic_shared: u32::from(self.dynamic_shared),
            local_bytes: self.local_bytes,
            frame_words: self.frame_words,
            stack_begin: self.stack_begin,
            parameters: self.parameters.len() as u32,
            sites: self.sites.len() as u32,
            calls: self.calls.len() as u32,
            rows: lines.rows.len() as u32,
            frame_bytes: lines.frame.len() as u32,
            thread: lines.thread,
            name_bytes: self.name.len() as u32,
            code_bytes: self.image.len() as u32,
            _reserved: 0,
        };
        let parameters = self.parameters.iter().map(|p| [p.bytes, p.offset]);
        let sites = self.sites.iter().map(|s| {
            let known = |place: Option<(u32, u32)>| place.map_or((0, 0), |(f, l)| (f + 1, l));
            let ((file, line), (from, at)) = (known(s.source), known(s.caller));
            [s.line, file, line, from, at]
        });
        let mut bytes = head.as_bytes().to_vec();
        bytes.extend_from_slice(self.wanted.as_bytes());
        bytes.extend_from_slice(parameters.collect::<Vec<Pair>>().as_bytes());
        bytes.extend_from_slice(sites.collect::<Vec<Place>>().as_bytes());
        bytes.extend_from_slice(self.calls.as_bytes());
        bytes.extend_from_slice(lines.rows.as_bytes());
        bytes.extend_from_slice(&lines.frame);
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(&self.image);
        bytes
    }

    /// Code that [`Code::to_bytes`] has written; `None` for bytes of another form. Running it is as
    /// safe as the bytes are its own: they must come from a place that this user alone can write.
    pub fn from_bytes(bytes: &[u8]) -> Option<Code> {
        let (head, rest) = Head::read_from_prefix(bytes).ok()?;
        if head.magic != MAGIC {
            return None;
        }
        let (wanted, rest) = rest.split_at_checked(head.wanted as usize * size_of::<Wanted>())?;
        let wanted = wanted.chunks_exact(size_of::<Wanted>());
        let wanted = wanted.map(|w| Wanted::read_from_bytes(w).ok());
        let (parameters, rest) =
            <[Pair]>::ref_from_prefix_with_elems(rest, head.parameters as usize).ok()?;
        let (sites, rest) =
            <[Place]>::ref_from_prefix_with_elems(rest, head.sites as usize).ok()?;
        let (calls, rest) = <[Call]>::ref_from_prefix_with_elems(rest, head.calls as usize).ok()?;
        let (rows, rest) = <[Pair]>::ref_from_prefix_with_elems(rest, head.rows as usize).ok()?;
        let (frame, rest) = rest.split_at_checked(head.frame_bytes as usize)?;
        let (name, code) = rest.split_at_checked(head.name_bytes as usize)?;
        let known = |c: &Call| {
            (c.function as usize) < CALLS.len()
                && c.at.checked_add(8).is_some_and(|e| e <= head.code_bytes)
        };
        if code.is_empty() || code.len() != head.code_bytes as usize || !calls.iter().all(known) {
            return None;
        }
        let parameters = parameters.iter();
        let sites = sites.iter();
        Some(Code {
            name: std::str::from_utf8(name).ok()?.to_owned(),
            parameters: parameters
                .map(|&[bytes, offset]| Parameter { bytes, offset })
                .collect(),
            max_threads: Some(head.max_threads).filter(|n| *n > 0),
            shared_bytes: head.shared_bytes,
            dynamic_shared: head.dynamic_shared != 0,
            local_bytes: head.local_bytes,
            frame_words: head.frame_words,
            stack_begin: head.stack_begin,
            sites: sites
                .map(|&[line, file, at, from, called]| Site {
                    line,
                    source: file.checked_sub(1).map(|f| (f, at)),
                    caller: from.checked_sub(1).map(|f| (f, called)),
                })
                .collect(),
            checks: Checks::default(),
            layouts: Default::default(),
            image: map(code, calls).ok()?,
            calls: calls.to_vec(),
            wanted: wanted.collect::<Option<Vec<Wanted>>>()?,
            lines: (!rows.is_empty()).then(|| Lines {
                rows: rows.to_vec(),
                frame: frame.to_vec(),
                thread: head.thread,
            }),
            registered: OnceLock::new(),
            mapped: OnceLock::new(),
        })
    }
}

/// Memory that can be executed and no longer written.
fn map(code: &[u8], calls: &[Call]) -> std::io::Result<Mmap> {
    let mut image = MmapMut::map_anon(code.len())?;
    image.copy_from_slice(code);
    for c in calls {
        let address = CALLS[c.function as usize].1();
        image[c.at as usize..][..8].copy_from_slice(&address.to_ne_bytes());
    }
    let image = image.make_exec()?;
    #[cfg(target_arch = "aarch64")]
    {
        extern "C" {
            /// Of the compiler's run-time library: instructions are fetched anew.
            fn __clear_cache(begin: *const u8, end: *const u8);
        }
        // SAFETY: the range is that of the mapping.
        unsafe { __clear_cache(image.as_ptr(), image.as_ptr().add(image.len())) };
    }
    Ok(image)
}
