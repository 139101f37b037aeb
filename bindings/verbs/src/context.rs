//! Contexts: a program's view of the open device.
#![allow(unsafe_code)] // C: pointers of the program.

use std::mem::offset_of;
use std::sync::Arc;

use ringbell_roce::verbs::Context;

use crate::abi;
use crate::events::Events;

/// A context: the header's structure, and ours behind it. Programs have the address of the second
/// part of the first.
#[repr(C)]
pub(crate) struct ContextBox {
    pub(crate) front: abi::VerbsContext,
    pub(crate) context: Context,
    /// See [`header`].
    pub(crate) header: u8,
    pub(crate) events: Arc<Events>,
}

pub(crate) fn box_of(context: *mut abi::Context) -> *mut ContextBox {
    context
        .wrapping_byte_sub(offset_of!(ContextBox, front.context))
        .cast()
}

/// The box of a context.
///
/// # Safety
/// `ibv_open_device` has made it, and it was not closed.
pub(crate) unsafe fn of<'a>(context: *mut abi::Context) -> &'a Context {
    // SAFETY: the caller's contract.
    unsafe { &(*box_of(context)).context }
}

// Service levels of completions. Ethernet has none: mlx5 tells there which header a datagram has,
// and UCX up to 1.18 looks for it. 8 is UDP.
const HEADER_IPV6: u8 = 8 | 1;

const HEADER_IPV4: u8 = 8 | 2;

pub(crate) fn header_of(context: &Context) -> u8 {
    let gid = context.gid();
    // A GID with a UDP port stands in a header of version 6.
    let at = gid.endpoint().filter(|_| !gid.is_ours());
    match at {
        Some((at, _)) if at.is_ipv4() => HEADER_IPV4,
        _ => HEADER_IPV6,
    }
}

/// The service level of a received datagram's completion: the form of the header before it.
///
/// # Safety
/// As of [`of`].
pub(crate) unsafe fn header(context: *mut abi::Context) -> u8 {
    // SAFETY: the caller's contract.
    unsafe { (*box_of(context)).header }
}
