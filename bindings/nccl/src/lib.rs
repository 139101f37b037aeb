//! NCCL's network plug-in: traffic of NCCL, from host memory, over a Ringbell NIC.
//!
//! NCCL loads the library (`NCCL_NET_PLUGIN`), finds the newest tables that it knows of those
//! below, and calls their functions from its proxy threads. A device is a NIC of this process. Of
//! `ncclNet` a connection is a communicator of two NICs, whose messages the NICs match. Of
//! `ncclCollNet` a communicator is one of the NIC, which runs the collectives itself.
//!
//! `abi`: NCCL's types. `entry`, `calls`, `collnet`: the functions. `table`, `requests`: handles.
//! `settings`, `device`: NICs. `memory`: registrations. `wire`: what processes exchange.
//! `introduce`, `greet`, `establish`: listen, connect, accept. `peer`: a connection. `send`,
//! `receive`: its ends. `meeting`: how a communicator is made. `group`: its operations. `window`:
//! parts of a gather or scatter. `log`, `failure`: what NCCL learns.
#![allow(unsafe_code)] // Exports the tables.

mod abi;
mod calls;
mod collnet;
mod device;
mod entry;
mod establish;
mod failure;
mod greet;
mod group;
mod introduce;
mod log;
mod meeting;
mod memory;
mod peer;
mod receive;
mod requests;
mod send;
mod settings;
mod table;
mod window;
mod wire;

use abi::{CollNet, CollNet10, CollRest, Net, Net10, Properties11, Properties12, Rest};

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
    devices: entry::devices,
    properties: entry::properties10,
    listen: calls::listen10,
    connect: calls::connect10,
    rest: REST,
};

#[no_mangle]
#[allow(non_upper_case_globals)] // NCCL's name.
static ncclNetPlugin_v11: Net<Properties11> = Net {
    name: NAME.as_ptr(),
    init: calls::init,
    devices: entry::devices,
    properties: entry::properties11,
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
    devices: entry::devices,
    properties: entry::properties12,
    listen: calls::listen,
    connect: calls::connect,
    rest: REST,
    finalize: calls::finalize,
    set_net_attr: calls::set_net_attr,
};

const COLL_REST: CollRest = CollRest {
    connect: collnet::connect,
    reduce_support: collnet::reduce_support,
    reg_mr: collnet::reg_mr,
    reg_mr_dma_buf: None,
    dereg_mr: collnet::dereg_mr,
    iallreduce: collnet::iallreduce,
    iallgather: collnet::iallgather,
    ireducescatter: collnet::ireducescatter,
    iflush: collnet::iflush,
    test: collnet::test,
    close_coll: collnet::close_coll,
    close_listen: collnet::close_listen,
    make_v_device: None,
};

#[no_mangle]
#[allow(non_upper_case_globals)] // NCCL's name.
static ncclCollNetPlugin_v10: CollNet10 = CollNet10 {
    name: NAME.as_ptr(),
    init: collnet::init10,
    devices: entry::devices,
    properties: entry::properties10,
    listen: collnet::listen10,
    rest: COLL_REST,
};

#[no_mangle]
#[allow(non_upper_case_globals)] // NCCL's name.
static ncclCollNetPlugin_v11: CollNet<Properties11> = CollNet {
    name: NAME.as_ptr(),
    init: collnet::init,
    devices: entry::devices,
    properties: entry::properties11,
    listen: collnet::listen,
    rest: COLL_REST,
    finalize: collnet::finalize,
};

#[no_mangle]
#[allow(non_upper_case_globals)] // NCCL's name.
static ncclCollNetPlugin_v12: CollNet<Properties12> = CollNet {
    name: NAME.as_ptr(),
    init: collnet::init,
    devices: entry::devices,
    properties: entry::properties12,
    listen: collnet::listen,
    rest: COLL_REST,
    finalize: collnet::finalize,
};
