//! Run-time compilation of the kernels (NVRTC), for a GPU that the embedded fat binaries do not
//! cover.
//!
//! The result is a cubin for this GPU, not PTX: a driver older than the compiler refuses its PTX.
#![allow(unsafe_code)] // Calls into libnvrtc.

use std::ffi::{c_char, CStr, CString};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

/// Sources and headers, as the build embedded them.
struct Source {
    name: &'static str,
    text: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/sources.rs"));

const NEEDED: [&str; 7] = [
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
];

/// Compiles all kernels for compute capability `major.minor`: name and cubin of each source.
///
/// # Errors
/// The missing part or the refusal, in words that complete "compiling them at run time ...".
pub(super) fn compile((major, minor): (i32, i32)) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    // SAFETY: loading the library runs its initialisers, which have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err("is not possible without libnvrtc".into());
    }
    // SAFETY: the library is there; symbols are only looked for.
    let has = |s: &&str| unsafe {
        sys::culib()
            .get::<*const std::ffi::c_void>(s.as_bytes())
            .is_ok()
    };
    if let Some(missing) = NEEDED.iter().find(|s| !has(s)) {
        return Err(format!("fails: libnvrtc is too old and has no {missing}"));
    }
    let arch = format!("--gpu-architecture=sm_{major}{minor}");
    let options = [arch.as_str(), "--std=c++17"];
    KERNELS
        .iter()
        .map(|source| Ok((source.name, compile_one(source, &options)?)))
        .collect()
}

/// Destroys the program on every way out.
struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn compile_one(source: &Source, options: &[&str]) -> Result<Vec<u8>, String> {
    let fails =
        |what: &str, r: nvrtcResult| format!("fails: {what} of {}.cu reported {r:?}", source.name);
    let c =
        |s: &str| CString::new(s).map_err(|_| format!("fails: {} has a zero byte", source.name));
    let text = c(source.text)?;
    let name = c(&format!("{}.cu", source.name))?;
    let headers = HEADERS
        .iter()
        .map(|h| Ok((c(h.name)?, c(h.text)?)))
        .collect::<Result<Vec<_>, String>>()?;
    let texts: Vec<*const c_char> = headers.iter().map(|h| h.1.as_ptr()).collect();
    let names: Vec<*const c_char> = headers.iter().map(|h| h.0.as_ptr()).collect();
    let mut program = Program(std::ptr::null_mut());
    // SAFETY: terminated strings that live until the program is destroyed, and as many headers as
    // said.
    let r = unsafe {
        sys::nvrtcCreateProgram(
            &mut program.0,
            text.as_ptr(),
            name.as_ptr(),
            headers.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    if r != nvrtcResult::NVRTC_SUCCESS {
        return Err(fails("nvrtcCreateProgram", r));
    }
    let options = options
        .iter()
        .map(|o| c(o))
        .collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    // SAFETY: a live program and terminated options, as many as said.
    let r =
        unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    if r != nvrtcResult::NVRTC_SUCCESS {
        return Err(format!(
            "{}\n{}",
            fails("nvrtcCompileProgram", r),
            log(&program)
        ));
    }
    let mut len = 0;
    // SAFETY: a compiled program and a live size.
    let r = unsafe { sys::nvrtcGetCUBINSize(program.0, &mut len) };
    if r != nvrtcResult::NVRTC_SUCCESS || len == 0 {
        return Err(fails("nvrtcGetCUBINSize", r));
    }
    let mut cubin = vec![0_u8; len];
    // SAFETY: the buffer has the size that was just asked for.
    let r = unsafe { sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()) };
    if r != nvrtcResult::NVRTC_SUCCESS {
        return Err(fails("nvrtcGetCUBIN", r));
    }
    Ok(cubin)
}

/// The compiler's log.
fn log(program: &Program) -> String {
    let mut len = 0;
    // SAFETY: a live program and a live size.
    let r = unsafe { sys::nvrtcGetProgramLogSize(program.0, &mut len) };
    if r != nvrtcResult::NVRTC_SUCCESS || len == 0 {
        return String::new();
    }
    let mut text = vec![0_u8; len];
    // SAFETY: the buffer has the size that was just asked for.
    let r = unsafe { sys::nvrtcGetProgramLog(program.0, text.as_mut_ptr().cast()) };
    if r != nvrtcResult::NVRTC_SUCCESS {
        return String::new();
    }
    text.push(0);
    CStr::from_bytes_until_nul(&text)
        .map(|t| t.to_string_lossy().into_owned())
        .unwrap_or_default()
}
