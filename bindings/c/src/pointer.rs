//! Checked pointers of C programs: tested for null, then trusted as far as the header says.
#![allow(unsafe_code)] // Reads and writes through pointers of another language.

use std::ffi::{c_char, CStr};

use crate::failure::Failure;

fn null(what: &str) -> Failure {
    Failure::argument(format!("{what} is a null pointer"))
}

/// A place for a result, checked before any work is done.
pub(super) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// # Safety
    /// `p` is null, or may be written to until the entry returns.
    pub(super) unsafe fn new(p: *mut T, what: &str) -> Result<Out<T>, Failure> {
        if p.is_null() {
            return Err(null(what));
        }
        Ok(Out(p))
    }

    pub(super) fn set(&self, value: T) {
        // SAFETY: by the contract of `new`. Unaligned, because C compilers accept unaligned
        // pointers.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// A place for a result that may be missing.
pub(super) struct OptionalOut<T>(*mut T);

impl<T: Copy> OptionalOut<T> {
    /// # Safety
    /// `p` is null, or may be written to until the entry returns.
    pub(super) unsafe fn new(p: *mut T) -> OptionalOut<T> {
        OptionalOut(p)
    }

    pub(super) fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: by the contract of `new`.
            unsafe { self.0.write_unaligned(value) }
        }
    }
}

/// A mandatory text.
///
/// # Safety
/// `p` is null, or a zero-terminated string that no thread changes meanwhile.
pub(super) unsafe fn text(p: *const c_char, what: &str) -> Result<String, Failure> {
    // SAFETY: by the caller's contract.
    let text = unsafe { optional_text(p, what) }?;
    text.ok_or_else(|| null(what))
}

/// An optional text.
///
/// # Safety
/// As for [`text`].
pub(super) unsafe fn optional_text(
    p: *const c_char,
    what: &str,
) -> Result<Option<String>, Failure> {
    if p.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and by the caller's contract a zero-terminated string.
    let text = unsafe { CStr::from_ptr(p) };
    let text = text
        .to_str()
        .map_err(|_| Failure::argument(format!("{what} is not UTF-8")))?;
    Ok(Some(text.to_owned()))
}

/// Bytes to read.
///
/// # Safety
/// `p` is null, or `bytes` bytes may be read from it for `'a`, and no thread changes them
/// meanwhile.
pub(super) unsafe fn input<'a>(
    p: *const u8,
    bytes: usize,
    what: &str,
) -> Result<&'a [u8], Failure> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if p.is_null() {
        return Err(null(what));
    }
    within_half(bytes, what)?;
    // SAFETY: not null, not too large, and by the caller's contract readable.
    Ok(unsafe { std::slice::from_raw_parts(p, bytes) })
}

/// Bytes to write.
///
/// # Safety
/// `p` is null, or `bytes` bytes may be written to it for `'a`, and no other thread uses them
/// meanwhile.
pub(super) unsafe fn output<'a>(
    p: *mut u8,
    bytes: usize,
    what: &str,
) -> Result<&'a mut [u8], Failure> {
    if bytes == 0 {
        return Ok(&mut []);
    }
    if p.is_null() {
        return Err(null(what));
    }
    within_half(bytes, what)?;
    // SAFETY: not null, not too large, and by the caller's contract writable. C does not promise
    // that the bytes were ever set; a Rust slice requires it, so they are.
    unsafe {
        p.write_bytes(0, bytes);
        Ok(std::slice::from_raw_parts_mut(p, bytes))
    }
}

fn within_half(bytes: usize, what: &str) -> Result<(), Failure> {
    if isize::try_from(bytes).is_ok() {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "{what}: {bytes} bytes are more than memory can hold"
    )))
}
