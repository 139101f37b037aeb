//! Calls that are not there: each ends with `EOPNOTSUPP`, or as a device ends that lacks the
//! feature.
//!
//! The arguments are not looked at, so the functions have none: the caller's convention allows
//! that.
#![allow(unsafe_code)] // C: exported by name.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

use crate::refusal::{refuse, set_errno};

/// Defines calls that return an object, and give a null pointer.
macro_rules! no_object {
    ($($name:ident: $why:literal)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: ", $why)]
        #[no_mangle]
        extern "C" fn $name() -> *mut c_void {
            refuse(libc::EOPNOTSUPP)
        }
    )*};
}

/// Defines calls that return an error code.
macro_rules! no_call {
    ($($name:ident: $why:literal)*) => {$(
        #[doc = concat!("`", stringify!($name), "`: ", $why)]
        #[no_mangle]
        extern "C" fn $name() -> c_int {
            set_errno(libc::EOPNOTSUPP);
            libc::EOPNOTSUPP
        }
    )*};
}

/// Defines calls that release what cannot be had.
macro_rules! nothing {
    ($($name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[no_mangle]
        extern "C" fn $name() {}
    )*};
}

no_object! {
    ibv_import_device: "objects belong to their process."
    ibv_import_pd: "objects belong to their process."
    ibv_import_mr: "objects belong to their process."
    ibv_import_dm: "objects belong to their process."
    ibv_reg_dmabuf_mr: "memory is the host's."
}

no_call! {
    ibv_attach_mcast: "there is no multicast."
    ibv_detach_mcast: "there is no multicast."
    ibv_modify_srq: "shared receive queues have no limit event, and keep their size."
    ibv_query_ece: "there are no vendor options."
    ibv_set_ece: "there are no vendor options."
    ibv_resolve_eth_l2_from_gid: "the kernel resolves addresses."
}

nothing! {
    ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm
    ibv_copy_ah_attr_from_kern ibv_copy_path_rec_from_kern ibv_copy_path_rec_to_kern ibv_copy_qp_attr_from_kern
}

/// `ibv_rereg_mr`: -1 is `IBV_REREG_MR_ERR_INPUT`, after which the region is as it was.
#[no_mangle]
extern "C" fn ibv_rereg_mr() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// `ibv_fork_init`: nothing is pinned, so a child's copy harms nothing.
#[no_mangle]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED`.
#[no_mangle]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

/// `ibv_dontfork_range`.
#[no_mangle]
extern "C" fn ibv_dontfork_range() -> c_int {
    0
}

/// `ibv_dofork_range`.
#[no_mangle]
extern "C" fn ibv_dofork_range() -> c_int {
    0
}

/// `ibv_query_qp_data_in_order`: no promise that a later byte of a message lies in memory after an
/// earlier one.
#[no_mangle]
extern "C" fn ibv_query_qp_data_in_order() -> c_int {
    0
}

/// `ibv_get_sysfs_path`: the device has none.
#[no_mangle]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    null()
}

/// `ibv_read_sysfs_file`: the device has none.
#[no_mangle]
extern "C" fn ibv_read_sysfs_file() -> c_int {
    -1
}
