//! Linking of PTX texts to one module (`cuLink*`): names that are `.extern` in one are defined in
//! another.
//!
//! The result is an image of our own: the texts, which were found to fit, to be compiled when it is
//! loaded.
#![allow(clippy::disallowed_methods)] // Measures how long it takes, which callers may ask.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::time::Instant;

use ringbell_fatbin::{Fatbin, WRAPPER_MAGIC};
use ringbell_gpu::Linker;

use crate::gpu::capability;
use crate::image::image;
use crate::jit::Options;
use crate::module::{text, MOST_TEXT};
use crate::{
    call, lock, put, ready, say, Result, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_IMAGE,
    INVALID_PTX, INVALID_VALUE, NOT_SUPPORTED, NO_BINARY_FOR_GPU,
};

/// CUjitInputType.
const CUBIN: c_uint = 0;
const PTX: c_uint = 1;
const FATBINARY: c_uint = 2;
const OBJECT: c_uint = 3;
const LIBRARY: c_uint = 4;

/// A link that has begun.
struct State {
    options: Options,
    begun: Instant,
    texts: Vec<(String, String)>,
    /// Nothing after an error.
    linker: Option<Linker>,
    errors: String,
    /// The result, which lives as long as the state.
    image: Vec<u64>,
}

static STATES: Mutex<(usize, BTreeMap<usize, State>)> = Mutex::new((0x7000_0000, BTreeMap::new()));

fn with<R>(
    state: *mut c_void,
    f: impl FnOnce(&mut State) -> std::result::Result<R, Result>,
) -> std::result::Result<R, Result> {
    let mut all = lock(&STATES);
    f(all.1.get_mut(&(state as usize)).ok_or(INVALID_HANDLE)?)
}

impl State {
    /// Notes an error, after which nothing is linked any more.
    fn fail(&mut self, code: Result, why: &str) -> Result {
        say(&format!("cannot link: {why}"));
        self.errors.push_str(why);
        self.errors.push('\n');
        self.linker = None;
        self.tell("");
        code
    }

    fn tell(&self, info: &str) {
        self.options.tell(info, &self.errors, self.begun.elapsed());
    }

    fn add(&mut self, name: &str, text: String) -> std::result::Result<(), Result> {
        let linker = self.linker.as_mut().ok_or(INVALID_VALUE)?;
        if let Err(e) = linker.add(name, &text) {
            return Err(self.fail(INVALID_PTX, &e.to_string()));
        }
        self.texts.push((name.to_owned(), text));
        Ok(())
    }

    /// Adds what a type says of bytes.
    fn input(&mut self, kind: c_uint, bytes: &[u8], name: &str) -> std::result::Result<(), Result> {
        match kind {
            PTX => {
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
                match std::str::from_utf8(&bytes[..end]) {
                    Ok(text) if end <= MOST_TEXT => self.add(name, text.to_owned()),
                    _ => Err(self.fail(INVALID_PTX, &format!("{name} is no PTX text"))),
                }
            }
            FATBINARY => {
                let all = Fatbin::read(bytes)
                    .map_err(|e| self.fail(INVALID_IMAGE, &format!("{name}: {e}")))?;
                let ptx = all.ptx(capability() as u32);
                let ptx = ptx.map_err(|e| self.fail(NO_BINARY_FOR_GPU, &format!("{name}: {e}")))?;
                self.add(name, ptx)
            }
            CUBIN => {
                let why = format!("{name} has only SASS: link PTX, or a fat binary with PTX");
                Err(self.fail(NO_BINARY_FOR_GPU, &why))
            }
            OBJECT | LIBRARY => {
                let why = format!("{name} is an object of the host: link the PTX of it");
                Err(self.fail(NOT_SUPPORTED, &why))
            }
            _ => Err(INVALID_VALUE),
        }
    }

    fn complete(&mut self) -> std::result::Result<(), Result> {
        let linker = self.linker.take().ok_or(INVALID_IMAGE)?;
        if self.texts.is_empty() {
            return Err(self.fail(INVALID_VALUE, "nothing was added"));
        }
        let module = match linker.end() {
            Ok(module) => module,
            Err(e) => return Err(self.fail(INVALID_IMAGE, &e.to_string())),
        };
        self.image = image(&self.texts);
        let (texts, kernels) = (self.texts.len(), module.kernels().count());
        self.tell(&format!("{texts} texts linked, with {kernels} kernels\n"));
        Ok(())
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuLinkCreate_v2(
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
    state: *mut *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        let new = State {
            // SAFETY: the caller's options, which live as long as the state.
            options: unsafe { Options::read(count, options, values)? },
            begun: Instant::now(),
            texts: Vec::new(),
            linker: Some(Linker::new("linked module")),
            errors: String::new(),
            image: Vec::new(),
        };
        new.tell("");
        let mut all = lock(&STATES);
        all.0 += 16;
        let handle = all.0;
        all.1.insert(handle, new);
        // SAFETY: the caller's pointer.
        unsafe { put(state, handle as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuLinkAddData_v2(
    state: *mut c_void,
    kind: c_uint,
    data: *const c_void,
    bytes: usize,
    name: *const c_char,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's options, which say nothing that matters here.
        unsafe { Options::read(count, options, values)? };
        if data.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's string, or null.
        let name = unsafe { text(name) }.unwrap_or_else(|_| "<unnamed>".to_owned());
        // SAFETY: the caller's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) };
        with(state, |s| s.input(kind, unwrapped(bytes), &name))
    })
}

/// A fat binary behind the structure by which host code refers to it.
fn unwrapped(bytes: &[u8]) -> &[u8] {
    let magic = bytes
        .get(..4)
        .map(|m| u32::from_le_bytes(m.try_into().expect("four")));
    let inner = bytes
        .get(8..16)
        .map(|p| usize::from_ne_bytes(p.try_into().expect("eight")));
    let (Some(WRAPPER_MAGIC), Some(inner)) = (magic, inner) else {
        return bytes;
    };
    // SAFETY: the structure points to a fat binary, which has a header with its length.
    unsafe {
        let header = std::slice::from_raw_parts(inner as *const u8, 16);
        match Fatbin::len_of(header) {
            Ok(len) => std::slice::from_raw_parts(inner as *const u8, len as usize),
            Err(_) => bytes,
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuLinkAddFile_v2(
    state: *mut c_void,
    kind: c_uint,
    path: *const c_char,
    count: c_uint,
    options: *mut c_int,
    values: *mut *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: as in `cuLinkAddData`.
        unsafe { Options::read(count, options, values)? };
        // SAFETY: the caller's string.
        let path = unsafe { text(path)? };
        let bytes = std::fs::read(&path).map_err(|_| FILE_NOT_FOUND)?;
        with(state, |s| s.input(kind, &bytes, &path))
    })
}

/// The image, which `cuModuleLoadData` takes, and which lives as long as the state.
#[no_mangle]
pub unsafe extern "C" fn cuLinkComplete(
    state: *mut c_void,
    image: *mut *mut c_void,
    bytes: *mut usize,
) -> Result {
    call(|| {
        ready()?;
        with(state, |s| {
            s.complete()?;
            // SAFETY: the caller's pointers; the second may be null.
            unsafe {
                put(image, s.image.as_mut_ptr().cast())?;
                if !bytes.is_null() {
                    put(bytes, s.image.len() * 8)?;
                }
            }
            Ok(())
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuLinkDestroy(state: *mut c_void) -> Result {
    let removed = lock(&STATES).1.remove(&(state as usize));
    call(|| removed.map(drop).ok_or(INVALID_HANDLE))
}
