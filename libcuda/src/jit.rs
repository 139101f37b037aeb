//! Options of compilation and linking: buffers for what is said, and the time that it took.

use std::ffi::{c_int, c_uint, c_void};
use std::time::Duration;

use crate::{Result, INVALID_VALUE};

/// CUjit_option.
const WALL_TIME: c_int = 2;
const INFO_LOG: c_int = 3;
const INFO_LOG_BYTES: c_int = 4;
const ERROR_LOG: c_int = 5;
const ERROR_LOG_BYTES: c_int = 6;
/// The newest that is documented (CU_JIT_SPLIT_COMPILE).
const LAST: c_int = 34;

/// A buffer of the caller.
#[derive(Debug)]
struct Log {
    at: *mut u8,
    bytes: usize,
    /// Where the caller learns how much of it is used.
    used: *mut *mut c_void,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            at: std::ptr::null_mut(),
            bytes: 0,
            used: std::ptr::null_mut(),
        }
    }
}

impl Log {
    fn write(&self, text: &str) {
        let room = match self.at.is_null() {
            true => 0,
            false => self.bytes,
        };
        let n = text.len().min(room.saturating_sub(1));
        // SAFETY: the caller's buffer of so many bytes, and a value of its list of options.
        unsafe {
            if room > 0 {
                std::ptr::copy_nonoverlapping(text.as_ptr(), self.at, n);
                *self.at.add(n) = 0;
            }
            if !self.used.is_null() {
                *self.used = (n + usize::from(n > 0)) as *mut c_void;
            }
        }
    }
}

/// The options of a caller that say something here. The others (registers, levels of optimisation,
/// targets, caches) change nothing.
#[derive(Debug)]
pub(crate) struct Options {
    info: Log,
    error: Log,
    wall_time: *mut *mut c_void,
}

// SAFETY: pointers of the caller, who keeps what they point to as long as the options
// (`cuLinkCreate`).
unsafe impl Send for Options {}

impl Options {
    /// # Safety
    /// As many options and values as said; a buffer has the bytes that are said for it, and lives
    /// as long as this.
    pub(crate) unsafe fn read(
        count: c_uint,
        options: *const c_int,
        values: *mut *mut c_void,
    ) -> std::result::Result<Options, Result> {
        let mut all = Options {
            info: Log::default(),
            error: Log::default(),
            wall_time: std::ptr::null_mut(),
        };
        if count > 0 && (options.is_null() || values.is_null()) {
            return Err(INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: the caller's contract.
            let (option, slot, value) = unsafe { (*options.add(i), values.add(i), *values.add(i)) };
            match option {
                WALL_TIME => all.wall_time = slot,
                INFO_LOG => all.info.at = value.cast(),
                INFO_LOG_BYTES => (all.info.bytes, all.info.used) = (low(value), slot),
                ERROR_LOG => all.error.at = value.cast(),
                ERROR_LOG_BYTES => (all.error.bytes, all.error.used) = (low(value), slot),
                0..=LAST => {}
                _ => return Err(INVALID_VALUE),
            }
        }
        Ok(all)
    }

    /// Writes what went wrong, and what else there is to say.
    pub(crate) fn tell(&self, info: &str, error: &str, took: Duration) {
        self.info.write(info);
        self.error.write(error);
        if !self.wall_time.is_null() {
            // Milliseconds as a float in the value itself.
            let bits = (took.as_secs_f32() * 1000.0).to_bits();
            // SAFETY: a value of the caller's list of options.
            unsafe { *self.wall_time = bits as usize as *mut c_void };
        }
    }
}

/// A size, of which a caller may have written 32 bits alone.
fn low(value: *mut c_void) -> usize {
    value as usize as u32 as usize
}
