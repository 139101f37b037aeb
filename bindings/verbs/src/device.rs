//! The device, its one port, and contexts.
#![allow(unsafe_code)] // C: pointers of the program.

use std::ffi::{c_char, c_int, c_void};
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use ringbell_roce::verbs::{
    Context, ContextConfig, OpenError, CQ_ENTRIES_MAX, DEPTH_MAX, MESSAGE_MAX, QPS_MAX,
    QP_LIMITS_MAX,
};

use crate::abi::{self, AsyncEvent, DeviceAttr, DeviceAttrEx, DeviceEnds, Gid, GidEntry, PortAttr};
use crate::context::{box_of, header_of, of, ContextBox};
use crate::events::{self, Events};
use crate::refusal::{refuse, say, set_errno};
use crate::{extended_cq, extended_qp, interface, post, settings};

const NODE_CA: c_int = 1;
const TRANSPORT_IB: c_int = 0;
const PORT_DOWN: c_int = 1;
const PORT_ACTIVE: c_int = 4;
const MTU_4096: c_int = 5;
const LINK_LAYER_ETHERNET: u8 = 2;
/// The port's own physical state "link up", and 4 lanes of 25 Gb/s: plausible, since programs print
/// them.
const LINK_UP: u8 = 5;
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const ATOMIC_GLOBAL: c_int = 2;
/// IBV_DEVICE_SYS_IMAGE_GUID and IBV_DEVICE_RC_RNR_NAK_GEN.
const CAPABILITIES: u32 = 1 << 11 | 1 << 12;
/// IBV_PORT_IP_BASED_GIDS and IBV_PORT_CM_SUP is not there.
const PORT_CAPABILITIES: u32 = 1 << 26;
const GID_TYPE_ROCE_V2: u32 = 2;
/// An organisation's number from the space of local ones.
const VENDOR: u32 = 0x02_5242;
const NAME: &[u8] = b"ringbell0";

/// The device, which lives as long as the process.
struct Shared(*mut abi::Device);

// SAFETY: it is never written after it was made.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn device() -> *mut abi::Device {
    static DEVICE: OnceLock<Shared> = OnceLock::new();
    let made = DEVICE.get_or_init(|| {
        let mut d = Box::new(abi::Device {
            ops: [0; 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: [0; abi::SYSFS_NAME],
            dev_name: [0; abi::SYSFS_NAME],
            dev_path: [0; abi::SYSFS_PATH],
            ibdev_path: [0; abi::SYSFS_PATH],
        });
        for (to, from) in d.name.iter_mut().zip(NAME) {
            *to = *from as c_char;
        }
        d.dev_name = d.name;
        Shared(Box::into_raw(d))
    });
    made.0
}

/// `ibv_get_device_list`: our device alone.
#[no_mangle]
extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::Device {
    let list = Box::new([device(), null_mut()]);
    if !count.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *count = 1 };
    }
    Box::into_raw(list).cast()
}

/// `ibv_free_device_list`.
#[no_mangle]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::Device) {
    if !list.is_null() {
        // SAFETY: `ibv_get_device_list` has made it.
        drop(unsafe { Box::from_raw(list.cast::<[*mut abi::Device; 2]>()) });
    }
}

/// `ibv_get_device_name`.
#[no_mangle]
unsafe extern "C" fn ibv_get_device_name(device: *mut abi::Device) -> *const c_char {
    // SAFETY: a device of the list.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_index`: the kernel knows no such device.
#[no_mangle]
extern "C" fn ibv_get_device_index(_: *mut abi::Device) -> c_int {
    -1
}

/// `ibv_get_device_guid`: derived from the address, in the space of local ones.
#[no_mangle]
extern "C" fn ibv_get_device_guid(_: *mut abi::Device) -> u64 {
    let address = settings::config().map(|c| c.address.to_canonical());
    match address {
        Ok(IpAddr::V6(ip)) => {
            // Its interface identifier.
            let [_, _, _, _, _, _, _, _, id @ ..] = ip.octets();
            u64::from_ne_bytes(id)
        }
        Ok(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            u64::from_ne_bytes([0x02, 0x52, 0x42, 0xff, a, b, c, d])
        }
        Err(_) => 0,
    }
}

/// `ibv_open_device`.
#[no_mangle]
extern "C" fn ibv_open_device(device: *mut abi::Device) -> *mut abi::Context {
    crate::faults::start();
    fail!(object "open_device");
    let config = match settings::config() {
        Ok(config) => config,
        Err(text) => {
            say(text);
            return refuse(libc::EINVAL);
        }
    };
    let context = match shared(&config) {
        Ok(context) => context,
        Err(error) => {
            say(&error);
            return refuse(match error {
                OpenError::System(e) => e.raw_os_error().unwrap_or(libc::EIO),
                _ => libc::EADDRNOTAVAIL,
            });
        }
    };
    let Ok(events) = Events::new() else {
        return refuse(libc::EMFILE);
    };
    let mut ops = [std::ptr::null::<c_void>(); 32];
    ops[abi::OP_POLL_CQ] = post::poll_cq as *const c_void;
    ops[abi::OP_REQ_NOTIFY_CQ] = post::req_notify_cq as *const c_void;
    ops[abi::OP_POST_SRQ_RECV] = post::post_srq_recv as *const c_void;
    ops[abi::OP_POST_SEND] = post::post_send as *const c_void;
    ops[abi::OP_POST_RECV] = post::post_recv as *const c_void;
    let mut extended = [std::ptr::null::<c_void>(); 39];
    extended[abi::OP_CREATE_CQ_EX] = extended_cq::create as *const c_void;
    extended[abi::OP_QUERY_DEVICE_EX] = query_device_ex as *const c_void;
    extended[abi::OP_CREATE_QP_EX] = extended_qp::create as *const c_void;
    let made = Box::into_raw(Box::new(ContextBox {
        front: abi::VerbsContext {
            extension: abi::Extension {
                // The header's inline functions answer EOPNOTSUPP for the others, or fall back.
                ops: extended,
                // Programs of newer headers learn by it which calls there cannot be.
                sz: size_of::<abi::VerbsContext>(),
            },
            context: abi::Context {
                device,
                ops,
                // There is no device file, but a program may duplicate what it finds here.
                cmd_fd: events.fd(),
                async_fd: events.fd(),
                num_comp_vectors: 1,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                abi_compat: abi::EXTENDED,
            },
        },
        header: header_of(&context),
        context,
        events,
    }));
    // SAFETY: it was just made.
    unsafe {
        let context = &raw mut (*made).front.context;
        (*made).events.belong_to(context.addr());
        context
    }
}

/// The process's context. The device has one address, so that what is opened several times can be
/// connected to itself.
fn shared(config: &ContextConfig) -> Result<Context, OpenError> {
    static OPEN: Mutex<Option<Context>> = Mutex::new(None);
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(context) = &*open {
        return Ok(context.clone());
    }
    let context = Context::open(config)?;
    *open = Some(context.clone());
    Ok(context)
}

/// `ibv_close_device`. The socket stays open until the process ends.
#[no_mangle]
unsafe extern "C" fn ibv_close_device(context: *mut abi::Context) -> c_int {
    // SAFETY: `ibv_open_device` has made it.
    drop(unsafe { Box::from_raw(box_of(context)) });
    0
}

/// `ibv_get_async_event`: waits until there is one, unless the program has set the descriptor not
/// to.
#[no_mangle]
unsafe extern "C" fn ibv_get_async_event(context: *mut abi::Context, to: *mut AsyncEvent) -> c_int {
    // SAFETY: a context of ours; its events outlive the wait, whatever becomes of it.
    let events = unsafe { (*box_of(context)).events.clone() };
    match events.next() {
        Some(event) => {
            // SAFETY: the caller's variable.
            unsafe { *to = event };
            0
        }
        None => -1,
    }
}

/// `ibv_ack_async_event`.
#[no_mangle]
extern "C" fn ibv_ack_async_event(_: *mut c_void) {}

/// `ibv_query_device`.
#[no_mangle]
unsafe extern "C" fn ibv_query_device(_: *mut abi::Context, to: *mut DeviceAttr) -> c_int {
    fail!("query_device");
    let guid = ibv_get_device_guid(null_mut());
    let max = &QP_LIMITS_MAX;
    let count = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as c_char;
    }
    let depth = c_int::from(DEPTH_MAX);
    let attr = DeviceAttr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX >> 8,
        page_size_cap: 0xffff_f000,
        vendor: [VENDOR, 0, 0],
        qps: [QPS_MAX as c_int, count(max.sends)],
        device_cap_flags: CAPABILITIES,
        sges: [count(max.send_pieces), count(max.send_pieces)],
        tables: [1 << 16, count(CQ_ENTRIES_MAX), 1 << 20, 0xffff],
        depths: [depth, 0, c_int::MAX, depth, 0],
        atomic_cap: ATOMIC_GLOBAL,
        // Address handles without a limit of ours, and nothing else of these.
        absent: [0, 0, 0, 0, 0, 0, 0, 0, 1 << 20, 0, 0],
        srqs: [1 << 16, count(max.receives), count(max.receive_pieces)],
        ends: DeviceEnds {
            max_pkeys: 1,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
        },
    };
    // SAFETY: the caller's variable.
    unsafe { *to = attr };
    0
}

/// `ibv_query_device_ex`: the device's attributes, and of the others the number of ports.
unsafe extern "C" fn query_device_ex(
    context: *mut abi::Context,
    _: *const c_void,
    to: *mut DeviceAttrEx,
    size: usize,
) -> c_int {
    if size < size_of::<DeviceAttrEx>() {
        // The program's header is older: it falls back to what it knows.
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the caller's variable, of so many bytes; zeros are valid for it.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        (*to).phys_port_cnt_ex = 1;
        (*to).device_cap_flags_ex = CAPABILITIES.into();
        ibv_query_device(context, &raw mut (*to).orig_attr)
    }
}

/// `ibv_query_port`, without the last field of newer headers, which their inline function has
/// cleared.
#[no_mangle]
unsafe extern "C" fn ibv_query_port(_: *mut abi::Context, port: u8, to: *mut PortAttr) -> c_int {
    fail!("query_port");
    if port != 1 {
        return libc::EINVAL;
    }
    let attr = PortAttr {
        state: match events::is_active() {
            true => PORT_ACTIVE,
            false => PORT_DOWN,
        },
        max_mtu: MTU_4096,
        active_mtu: active_mtu(),
        gid_tbl_len: 1,
        port_cap_flags: PORT_CAPABILITIES,
        max_msg_sz: MESSAGE_MAX,
        counters: [0; 2],
        pkey_tbl_len: 1,
        lids: [0; 2],
        subnet: [0; 5],
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: LINK_UP,
        link_layer: LINK_LAYER_ETHERNET,
        flags: 0,
    };
    // SAFETY: the caller's variable.
    unsafe { *to = attr };
    0
}

/// Code of the largest payload that our interface's packets carry.
fn active_mtu() -> c_int {
    let config = settings::config().unwrap_or_default();
    let address = config.address.to_canonical();
    let carried = interface::mtu(address, config.scope);
    let carried = carried.unwrap_or(match address.is_loopback() {
        // Any address of 127.0.0.0/8 is one, and no interface's own.
        true => 65_535,
        false => 1_500,
    });
    let mtu = config.mtu.map_or(carried, |asked| asked.min(carried));
    // IP, UDP, and the longest headers of RoCEv2.
    let headers = if address.is_ipv6() { 48 } else { 28 };
    let payload = mtu.saturating_sub(headers + 64);
    (1..=MTU_4096)
        .rev()
        .find(|code| 128_usize << code <= payload)
        .unwrap_or(1)
}

/// `ibv_query_gid`: there is one.
#[no_mangle]
unsafe extern "C" fn ibv_query_gid(
    context: *mut abi::Context,
    port: u8,
    index: c_int,
    to: *mut Gid,
) -> c_int {
    if let Some(code) = crate::faults::fails("query_gid") {
        set_errno(code);
        return -1;
    }
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: a context of ours, and the caller's variable.
    unsafe { *to = Gid(of(context).gid().0) };
    0
}

/// `_ibv_query_gid_ex`.
#[no_mangle]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut abi::Context,
    port: u32,
    index: u32,
    to: *mut GidEntry,
    flags: u32,
    size: usize,
) -> c_int {
    fail!("query_gid");
    if port != 1 || flags != 0 || size < size_of::<GidEntry>() {
        return libc::EINVAL;
    }
    if index != 0 {
        return libc::ENODATA;
    }
    // SAFETY: a context of ours, and the caller's variable of at least this length (checked).
    unsafe { *to = entry(context) };
    0
}

unsafe fn entry(context: *mut abi::Context) -> GidEntry {
    GidEntry {
        // SAFETY: the caller's contract.
        gid: Gid(unsafe { of(context) }.gid().0),
        gid_index: 0,
        port_num: 1,
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: 0,
    }
}

/// `_ibv_query_gid_table`.
#[no_mangle]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut abi::Context,
    to: *mut GidEntry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 || size < size_of::<GidEntry>() {
        return -(libc::EINVAL as isize);
    }
    if room == 0 {
        return -(libc::EINVAL as isize);
    }
    // SAFETY: as above.
    unsafe { *to = entry(context) };
    1
}

/// `ibv_query_gid_type`, of the private interface: `ibv_devinfo -v` calls it. 1 is RoCEv2 there.
#[no_mangle]
unsafe extern "C" fn ibv_query_gid_type(
    _: *mut abi::Context,
    port: u8,
    index: u32,
    kind: *mut c_int,
) -> c_int {
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's variable.
    unsafe { *kind = 1 };
    0
}

/// `ibv_query_pkey`: the default partition, in network order.
#[no_mangle]
unsafe extern "C" fn ibv_query_pkey(
    _: *mut abi::Context,
    port: u8,
    index: c_int,
    to: *mut u16,
) -> c_int {
    if port != 1 || index != 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the caller's variable.
    unsafe { *to = 0xffff };
    0
}

/// `ibv_get_pkey_index`.
#[no_mangle]
extern "C" fn ibv_get_pkey_index(_: *mut abi::Context, port: u8, key: u16) -> c_int {
    match (port, key) {
        (1, 0xffff) => 0,
        _ => -1,
    }
}
