//! NCCL's interfaces of network plug-ins (`ncclNet`, `ncclCollNet`), versions 10 to 12, as its
//! documentation and headers describe it: types and numbers.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    SystemError = 2,
    InternalError = 3,
    InvalidArgument = 4,
    InvalidUsage = 5,
    RemoteError = 6,
}

/// `NCCL_PTR_HOST`.
pub(crate) const PTR_HOST: c_int = 1;
/// Bytes of a handle (`NCCL_NET_HANDLE_MAXSIZE`).
pub(crate) const HANDLE_BYTES: usize = 128;
/// Requests that a communicator must have under way (`NCCL_NET_MAX_REQUESTS`).
pub(crate) const REQUESTS: usize = 32;
/// Levels and subsystems of NCCL's log.
pub(crate) const LOG_WARN: c_int = 2;
pub(crate) const LOG_INFO: c_int = 3;
pub(crate) const SUBSYSTEM_INIT: c_ulong = 0x1;
pub(crate) const SUBSYSTEM_NET: c_ulong = 0x10;
pub(crate) const SUBSYSTEM_ALL: c_ulong = !0;
/// `NCCL_NET_ID_UNDEF`.
pub(crate) const ID_UNDEFINED: i16 = -1;

/// `ncclDebugLogger_t`.
pub(crate) type Logger = unsafe extern "C" fn(
    level: c_int,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    format: *const c_char,
    ...
);

/// `ncclNetCommConfig_t` of versions 10 to 12.
#[repr(C)]
pub(crate) struct CommConfig {
    pub(crate) traffic_class: c_int,
}

/// `ncclNetVDeviceProps_t`: devices that are one.
#[repr(C)]
pub(crate) struct VDevice<const DEVICES: usize> {
    pub(crate) count: c_int,
    pub(crate) devices: [c_int; DEVICES],
}

/// `ncclNetProperties_t`; the versions differ in the number of devices and in the end.
#[repr(C)]
pub(crate) struct Properties<const DEVICES: usize, End> {
    pub(crate) name: *const c_char,
    pub(crate) pci_path: *const c_char,
    pub(crate) guid: u64,
    pub(crate) ptr_support: c_int,
    pub(crate) reg_is_global: c_int,
    pub(crate) force_flush: c_int,
    /// Mb/s.
    pub(crate) speed: c_int,
    pub(crate) port: c_int,
    /// Microseconds; 0 is NCCL's default.
    pub(crate) latency: f32,
    pub(crate) max_comms: c_int,
    pub(crate) max_recvs: c_int,
    pub(crate) device_type: c_int,
    pub(crate) device_version: c_int,
    pub(crate) virtual_device: VDevice<DEVICES>,
    pub(crate) max_p2p_bytes: usize,
    pub(crate) max_coll_bytes: usize,
    pub(crate) end: End,
}

/// End of version 11's properties.
#[repr(C)]
pub(crate) struct End11 {
    pub(crate) max_multi_request_size: c_int,
}

/// End of version 12's properties.
#[repr(C)]
pub(crate) struct End12 {
    pub(crate) max_multi_request_size: c_int,
    pub(crate) rail: i16,
    pub(crate) plane: i16,
}

/// End of version 10's properties.
#[repr(C)]
pub(crate) struct End10;

pub(crate) type Properties10 = Properties<4, End10>;
pub(crate) type Properties11 = Properties<4, End11>;
pub(crate) type Properties12 = Properties<8, End12>;

type Result = c_int;
type Void = *mut c_void;

/// The functions that all versions have, from `accept` on.
#[repr(C)]
pub(crate) struct Rest {
    pub(crate) accept: unsafe extern "C" fn(Void, *mut Void, *mut Void) -> Result,
    pub(crate) reg_mr: unsafe extern "C" fn(Void, Void, usize, c_int, *mut Void) -> Result,
    pub(crate) reg_mr_dma_buf:
        Option<unsafe extern "C" fn(Void, Void, usize, c_int, u64, c_int, *mut Void) -> Result>,
    pub(crate) dereg_mr: unsafe extern "C" fn(Void, Void) -> Result,
    pub(crate) isend:
        unsafe extern "C" fn(Void, Void, usize, c_int, Void, Void, *mut Void) -> Result,
    pub(crate) irecv: unsafe extern "C" fn(
        Void,
        c_int,
        *const Void,
        *const usize,
        *const c_int,
        *const Void,
        *const Void,
        *mut Void,
    ) -> Result,
    pub(crate) iflush: unsafe extern "C" fn(
        Void,
        c_int,
        *const Void,
        *const c_int,
        *const Void,
        *mut Void,
    ) -> Result,
    pub(crate) test: unsafe extern "C" fn(Void, *mut c_int, *mut c_int) -> Result,
    pub(crate) close_send: unsafe extern "C" fn(Void) -> Result,
    pub(crate) close_recv: unsafe extern "C" fn(Void) -> Result,
    pub(crate) close_listen: unsafe extern "C" fn(Void) -> Result,
    pub(crate) device_mr: Option<unsafe extern "C" fn(Void, Void, *mut Void) -> Result>,
    pub(crate) irecv_consumed: Option<unsafe extern "C" fn(Void, c_int, Void) -> Result>,
    pub(crate) make_v_device: Option<unsafe extern "C" fn(*mut c_int, Void) -> Result>,
}

/// `ncclNet_v11_t` and `ncclNet_v12_t`, whose functions differ in what `properties` fills.
#[repr(C)]
pub(crate) struct Net<P> {
    pub(crate) name: *const c_char,
    pub(crate) init: unsafe extern "C" fn(
        *mut Void,
        u64,
        *const CommConfig,
        Option<Logger>,
        *const c_void,
    ) -> Result,
    pub(crate) devices: unsafe extern "C" fn(*mut c_int) -> Result,
    pub(crate) properties: unsafe extern "C" fn(c_int, *mut P) -> Result,
    pub(crate) listen: unsafe extern "C" fn(Void, c_int, *mut c_void, *mut Void) -> Result,
    pub(crate) connect:
        unsafe extern "C" fn(Void, c_int, *mut c_void, *mut Void, *mut Void) -> Result,
    pub(crate) rest: Rest,
    pub(crate) finalize: unsafe extern "C" fn(Void) -> Result,
    pub(crate) set_net_attr: unsafe extern "C" fn(Void, *const c_void) -> Result,
}

// SAFETY: it holds pointers to functions and to a text that never change.
unsafe impl<P> Sync for Net<P> {}

/// `ncclNet_v10_t`, of NCCL 2.25 to 2.27: without contexts.
#[repr(C)]
pub(crate) struct Net10 {
    pub(crate) name: *const c_char,
    pub(crate) init: unsafe extern "C" fn(Option<Logger>, *const c_void) -> Result,
    pub(crate) devices: unsafe extern "C" fn(*mut c_int) -> Result,
    pub(crate) properties: unsafe extern "C" fn(c_int, *mut Properties10) -> Result,
    pub(crate) listen: unsafe extern "C" fn(c_int, *mut c_void, *mut Void) -> Result,
    pub(crate) connect:
        unsafe extern "C" fn(c_int, *const CommConfig, *mut c_void, *mut Void, *mut Void) -> Result,
    pub(crate) rest: Rest,
}

// SAFETY: as for `Net`.
unsafe impl Sync for Net10 {}

/// `ncclNetSGE_t`: registered bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) memory: Void,
    pub(crate) address: Void,
    pub(crate) size: usize,
}

/// The functions of `ncclCollNet` that all versions have, from `connect` on.
#[repr(C)]
pub(crate) struct CollRest {
    pub(crate) connect:
        unsafe extern "C" fn(*const *const c_void, c_int, c_int, Void, *mut Void) -> Result,
    pub(crate) reduce_support: unsafe extern "C" fn(c_int, c_int, *mut c_int) -> Result,
    pub(crate) reg_mr: unsafe extern "C" fn(Void, Void, usize, c_int, *mut Void) -> Result,
    pub(crate) reg_mr_dma_buf:
        Option<unsafe extern "C" fn(Void, Void, usize, c_int, u64, c_int, *mut Void) -> Result>,
    pub(crate) dereg_mr: unsafe extern "C" fn(Void, Void) -> Result,
    pub(crate) iallreduce: unsafe extern "C" fn(
        Void,
        Void,
        Void,
        usize,
        c_int,
        c_int,
        Void,
        Void,
        *mut Void,
    ) -> Result,
    pub(crate) iallgather: unsafe extern "C" fn(
        Void,
        Void,
        c_int,
        *const Piece,
        usize,
        usize,
        usize,
        Void,
        *mut Void,
    ) -> Result,
    pub(crate) ireducescatter: unsafe extern "C" fn(
        Void,
        c_int,
        *const Piece,
        Void,
        usize,
        usize,
        usize,
        c_int,
        c_int,
        Void,
        *mut Void,
    ) -> Result,
    pub(crate) iflush: unsafe extern "C" fn(Void, Void, c_int, Void, *mut Void) -> Result,
    pub(crate) test: unsafe extern "C" fn(Void, *mut c_int, *mut c_int) -> Result,
    pub(crate) close_coll: unsafe extern "C" fn(Void) -> Result,
    pub(crate) close_listen: unsafe extern "C" fn(Void) -> Result,
    pub(crate) make_v_device: Option<unsafe extern "C" fn(*mut c_int, Void) -> Result>,
}

/// `ncclCollNet_v11_t` and `ncclCollNet_v12_t`, whose functions differ in what `properties` fills.
#[repr(C)]
pub(crate) struct CollNet<P> {
    pub(crate) name: *const c_char,
    pub(crate) init: unsafe extern "C" fn(*mut Void, u64, Option<Logger>) -> Result,
    pub(crate) devices: unsafe extern "C" fn(*mut c_int) -> Result,
    pub(crate) properties: unsafe extern "C" fn(c_int, *mut P) -> Result,
    pub(crate) listen: unsafe extern "C" fn(Void, c_int, *mut c_void, *mut Void) -> Result,
    pub(crate) rest: CollRest,
    pub(crate) finalize: unsafe extern "C" fn(Void) -> Result,
}

// SAFETY: as for `Net`.
unsafe impl<P> Sync for CollNet<P> {}

/// `ncclCollNet_v10_t`: without contexts.
#[repr(C)]
pub(crate) struct CollNet10 {
    pub(crate) name: *const c_char,
    pub(crate) init: unsafe extern "C" fn(Option<Logger>) -> Result,
    pub(crate) devices: unsafe extern "C" fn(*mut c_int) -> Result,
    pub(crate) properties: unsafe extern "C" fn(c_int, *mut Properties10) -> Result,
    pub(crate) listen: unsafe extern "C" fn(c_int, *mut c_void, *mut Void) -> Result,
    pub(crate) rest: CollRest,
}

// SAFETY: as for `Net`.
unsafe impl Sync for CollNet10 {}
