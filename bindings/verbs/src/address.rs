//! Address handles, for datagrams.
#![allow(unsafe_code)] // C: pointers of the program.

use std::ffi::c_int;

use ringbell_roce::verbs::{sender, AddressHandle, Gid, VerbsError, GRH_BYTES};

use crate::abi::{self, AhAttr, Wc};
use crate::objects;
use crate::refusal::{explain, refuse, set_errno};

#[repr(C)]
struct AhBox {
    front: abi::Ah,
    handle: AddressHandle,
}

/// The handle of a pointer.
///
/// # Safety
/// Null, or `ibv_create_ah` has made it.
pub(crate) unsafe fn of<'a>(ah: *const abi::Ah) -> Option<&'a AddressHandle> {
    // SAFETY: the caller's contract; the front is the first field.
    unsafe { ah.cast::<AhBox>().as_ref() }.map(|b| &b.handle)
}

/// `ibv_create_ah`.
#[no_mangle]
unsafe extern "C" fn ibv_create_ah(pd: *mut abi::Pd, attr: *mut AhAttr) -> *mut abi::Ah {
    fail!(object "create_ah");
    // SAFETY: the caller's variable.
    let attr = unsafe { &*attr };
    if attr.is_global == 0 || attr.sgid_index != 0 || attr.port_num != 1 {
        let why = "the peer is named by its GID (is_global), from our GID index 0, at port 1";
        return refuse(explain("ibv_create_ah", &VerbsError::Misuse(why)));
    }
    // SAFETY: a domain of ours.
    match unsafe { objects::pd(pd) }.create_ah(Gid(attr.dgid.0)) {
        Ok(handle) => Box::into_raw(Box::new(AhBox {
            front: abi::Ah {
                // SAFETY: as above.
                context: unsafe { (*pd).context },
                pd,
                handle: 0,
            },
            handle,
        }))
        .cast(),
        Err(e) => refuse(explain("ibv_create_ah", &e)),
    }
}

/// `ibv_destroy_ah`. Datagrams that were posted with it go on.
#[no_mangle]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut abi::Ah) -> c_int {
    // SAFETY: a handle of ours.
    drop(unsafe { Box::from_raw(ah.cast::<AhBox>()) });
    0
}

/// `ibv_init_ah_from_wc`: the sender of a datagram, by the header before it.
#[no_mangle]
unsafe extern "C" fn ibv_init_ah_from_wc(
    _: *mut abi::Context,
    port: u8,
    wc: *const Wc,
    grh: *const [u8; GRH_BYTES],
    to: *mut AhAttr,
) -> c_int {
    // SAFETY: the caller's completion and header.
    let (has_header, header) = unsafe { ((*wc).wc_flags & abi::WC_GRH != 0, &*grh) };
    let Some(gid) = sender(header).filter(|_| has_header && port == 1) else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // SAFETY: the caller's variable.
    unsafe {
        *to = AhAttr {
            dgid: abi::Gid(gid.0),
            hop_limit: u8::MAX,
            is_global: 1,
            port_num: port,
            ..abi::NOWHERE
        };
    }
    0
}

/// `ibv_create_ah_from_wc`.
#[no_mangle]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut abi::Pd,
    wc: *const Wc,
    grh: *const [u8; GRH_BYTES],
    port: u8,
) -> *mut abi::Ah {
    let mut attr = abi::NOWHERE;
    // SAFETY: the caller's objects.
    unsafe {
        match ibv_init_ah_from_wc((*pd).context, port, wc, grh, &raw mut attr) {
            0 => ibv_create_ah(pd, &raw mut attr),
            _ => std::ptr::null_mut(),
        }
    }
}
