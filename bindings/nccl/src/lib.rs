//! NCCL's network plug-in: point-to-point traffic of NCCL, from host memory, over sessions of a Ringbell NIC.
//!
//! NCCL loads the library (`NCCL_NET_PLUGIN`), finds one of the tables below, and calls its functions from its proxy threads. A device is a NIC
//! of this process. A connection is a session: the sender's messages go one way, each behind a header; the receiver's announcements of
//! receives go the other way.
//!
//! `abi`: NCCL's types. `calls`: the functions. `table`, `requests`: handles. `settings`, `device`: NICs. `memory`: registrations. `wire`: what
//! processes exchange. `introduce`, `establish`: listen, connect, accept. `link`: a session. `send`, `receive`: its ends. `log`, `failure`: what NCCL learns.
#![allow(unsafe_code)] // Exports the tables.

mod abi;
mod calls;
mod device;
mod establish;
mod failure;
mod introduce;
mod link;
mod log;
mod memory;
mod receive;
mod requests;
mod send;
mod settings;
mod table;
mod wire;

use abi::{Net, Net10, Properties11, Properties12, Rest};

/// `NCCL_NET` may ask for it.
const NAME: &std::ffi::CStr = c"Ringbell";

const REST: Rest = Rest {
    accept: calls::accept,
    reg_mr: calls::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: calls::dereg_mr,
    isend: calls::isend,
    irecv: calls::irecv,
    iflush: calls::iflush,
    test: calls::test,
    close_send: calls::close_send,
    close_recv: calls::close_recv,
    close_listen: calls::close_listen,
    device_mr: None,
    irecv_consumed: None,
    make_v_device: None,
};

#[no_mangle]
#[allow(non_upper_case_globals)] // NCCL's name.
static ncclNetPlugin_v10: Net10 = Net10 {
    name: NAME.as_ptr(),
    init: calls::init10,
    devices: calls::devices,
    properties: calls::properties10,
    listen: calls::listen10,
    connect: calls::connect10,
    rest: REST,
};

#[no_mangle]
#[allow(non_upper_case_globals)] // NCCL's name.
static ncclNetPlugin_v11: Net<Properties11> = Net {
    name: NAME.as_ptr(),
    init: calls::init,
    devices: calls::devices,
    properties: calls::properties11,
    listen: calls::listen,
    connect: calls::connect,
    rest: REST,
    finalize: calls::finalize,
    set_net_attr: calls::set_net_attr,
};

#[no_mangle]
#[allow(non_upper_case_globals)] // NCCL's name.
static ncclNetPlugin_v12: Net<Properties12> = Net {
    name: NAME.as_ptr(),
    init: calls::init,
    devices: calls::devices,
    properties: calls::properties12,
    listen: calls::listen,
    connect: calls::connect,
    rest: REST,
    finalize: calls::finalize,
    set_net_attr: calls::set_net_attr,
};
