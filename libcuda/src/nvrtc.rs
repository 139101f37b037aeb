//! A mock run-time compiler (`libnvrtc.so` is another name of this library). It checks its input as
//! far as that needs no compiler, and returns an empty cubin.

use std::ffi::{c_char, c_int, CStr};

use crate::faults;

/// nvrtcResult.
type Nvrtc = u32;
const INVALID_INPUT: Nvrtc = 3;
const INVALID_PROGRAM: Nvrtc = 4;
const INVALID_OPTION: Nvrtc = 5;
const COMPILATION: Nvrtc = 6;

const CUBIN: [u8; 64] = {
    let mut bytes = [0; 64];
    bytes[0] = 0x7f;
    bytes[1] = b'E';
    bytes[2] = b'L';
    bytes[3] = b'F';
    bytes
};
const LOG: &CStr = c"this compiler knows no such GPU";

/// A program: its text and the names of its headers.
#[derive(Debug)]
pub struct Program {
    text: String,
    headers: Vec<String>,
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut *mut Program,
    text: *const c_char,
    _name: *const c_char,
    count: c_int,
    headers: *const *const c_char,
    names: *const *const c_char,
) -> Nvrtc {
    if program.is_null() || text.is_null() || (count > 0 && (headers.is_null() || names.is_null()))
    {
        return INVALID_INPUT;
    }
    // SAFETY: terminated strings, as many as said.
    let string = |s: *const c_char| unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    let name = |i: usize| string(unsafe { *names.add(i) });
    let made = Program {
        text: string(text),
        headers: (0..count as usize).map(name).collect(),
    };
    // SAFETY: the caller's pointer.
    unsafe { program.write(Box::into_raw(Box::new(made))) };
    0
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcCompileProgram(
    program: *mut Program,
    count: c_int,
    options: *const *const c_char,
) -> Nvrtc {
    if program.is_null() {
        return INVALID_PROGRAM;
    }
    // SAFETY: made by `nvrtcCreateProgram`.
    let p = unsafe { &*program };
    let sm = (0..count as usize).any(|i| {
        // SAFETY: terminated strings, as many as said.
        let option = unsafe { CStr::from_ptr(*options.add(i)) };
        option.to_bytes() == b"--gpu-architecture=sm_90"
    });
    if !sm {
        return INVALID_OPTION;
    }
    let included = |line: &str| {
        let name = line.trim().strip_prefix("#include \"")?.strip_suffix('"')?;
        Some(name.to_owned())
    };
    let missing = p
        .text
        .lines()
        .filter_map(included)
        .any(|n| !p.headers.contains(&n));
    if missing || faults().no_nvrtc {
        return COMPILATION;
    }
    0
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut Program) -> Nvrtc {
    if program.is_null() {
        return INVALID_PROGRAM;
    }
    // SAFETY: the caller's pointer to a program of ours, or to null.
    unsafe {
        if !(*program).is_null() {
            drop(Box::from_raw(*program));
            *program = std::ptr::null_mut();
        }
    }
    0
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetCUBINSize(_program: *mut Program, bytes: *mut usize) -> Nvrtc {
    // SAFETY: the caller's pointer.
    unsafe { bytes.write(CUBIN.len()) };
    0
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetCUBIN(_program: *mut Program, cubin: *mut c_char) -> Nvrtc {
    // SAFETY: the caller's buffer of the size told before.
    unsafe { std::ptr::copy_nonoverlapping(CUBIN.as_ptr().cast(), cubin, CUBIN.len()) };
    0
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetProgramLogSize(
    _program: *mut Program,
    bytes: *mut usize,
) -> Nvrtc {
    // SAFETY: the caller's pointer.
    unsafe { bytes.write(LOG.count_bytes() + 1) };
    0
}

#[no_mangle]
pub unsafe extern "C" fn nvrtcGetProgramLog(_program: *mut Program, log: *mut c_char) -> Nvrtc {
    // SAFETY: the caller's buffer of the size told before.
    unsafe { std::ptr::copy_nonoverlapping(LOG.as_ptr(), log, LOG.count_bytes() + 1) };
    0
}
