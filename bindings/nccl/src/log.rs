//! NCCL's log, to which the plug-in writes (`NCCL_DEBUG`).
#![allow(unsafe_code)] // Calls NCCL's logger.

use std::ffi::{c_int, c_ulong, CString};
use std::sync::OnceLock;

use crate::abi::{Logger, LOG_INFO, LOG_WARN, SUBSYSTEM_ALL, SUBSYSTEM_INIT, SUBSYSTEM_NET};

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Writes to this logger from now on. The first one stays: it is a function of the process's NCCL.
pub(crate) fn set(logger: Option<Logger>) {
    if let Some(logger) = logger {
        let _ = LOGGER.set(logger);
    }
}

fn write(level: c_int, flags: c_ulong, text: &str) {
    let Some(logger) = LOGGER.get() else {
        if level == LOG_WARN {
            eprintln!("ringbell: {text}");
        }
        return;
    };
    let text = format!("NET/Ringbell : {text}").replace('\0', "");
    let Ok(text) = CString::new(text) else {
        return;
    };
    // SAFETY: a logger of NCCL, and a format whose one argument is a text.
    unsafe {
        logger(
            level,
            flags,
            c"ringbell".as_ptr(),
            0,
            c"%s".as_ptr(),
            text.as_ptr(),
        );
    }
}

/// Something failed.
pub(crate) fn warn(text: &str) {
    write(LOG_WARN, SUBSYSTEM_ALL, text);
}

/// For `NCCL_DEBUG=INFO`.
pub(crate) fn info(text: &str) {
    write(LOG_INFO, SUBSYSTEM_INIT | SUBSYSTEM_NET, text);
}
