//! Structures of `infiniband/verbs.h`, as far as programs see them. `tests/layout.rs` compares
//! sizes and places with the installed header.
//!
//! Long structures are in groups, with the same layout: every group begins and ends where its
//! neighbours do.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) const SYSFS_NAME: usize = 64;
pub(crate) const SYSFS_PATH: usize = 256;

/// `union ibv_gid`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Gid(pub(crate) [u8; 16]);

/// `struct ibv_device`.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) ops: [usize; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [c_char; SYSFS_NAME],
    pub(crate) dev_name: [c_char; SYSFS_NAME],
    pub(crate) dev_path: [c_char; SYSFS_PATH],
    pub(crate) ibdev_path: [c_char; SYSFS_PATH],
}

/// An entry of `struct ibv_context_ops`, of any type.
pub(crate) type Operation = *const c_void;

/// `struct ibv_context`.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Device,
    pub(crate) ops: [Operation; 32],
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) abi_compat: *mut c_void,
}

// Places in `ibv_context_ops` of the calls that are inline functions of the header.
pub(crate) const OP_POLL_CQ: usize = 11;
pub(crate) const OP_REQ_NOTIFY_CQ: usize = 12;
pub(crate) const OP_POST_SRQ_RECV: usize = 20;
pub(crate) const OP_POST_SEND: usize = 25;
pub(crate) const OP_POST_RECV: usize = 26;

/// The fields of `struct verbs_context` before its `struct ibv_context`: new calls come in front.
#[repr(C)]
pub(crate) struct Extension {
    pub(crate) ops: [Operation; 39],
    pub(crate) sz: usize,
}

/// `struct verbs_context`.
#[repr(C)]
pub(crate) struct VerbsContext {
    pub(crate) extension: Extension,
    pub(crate) context: Context,
}

// Places in `Extension::ops`.
pub(crate) const OP_CREATE_CQ_EX: usize = 25;
pub(crate) const OP_QUERY_DEVICE_EX: usize = 27;
pub(crate) const OP_CREATE_QP_EX: usize = 33;
/// `__VERBS_ABI_IS_EXTENDED`.
pub(crate) const EXTENDED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

/// `struct ibv_device_attr`.
#[repr(C)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    /// vendor_id, vendor_part_id, hw_ver.
    pub(crate) vendor: [u32; 3],
    /// max_qp, max_qp_wr.
    pub(crate) qps: [c_int; 2],
    pub(crate) device_cap_flags: c_uint,
    /// max_sge, max_sge_rd.
    pub(crate) sges: [c_int; 2],
    /// max_cq, max_cqe, max_mr, max_pd.
    pub(crate) tables: [c_int; 4],
    /// max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom.
    pub(crate) depths: [c_int; 5],
    pub(crate) atomic_cap: c_int,
    /// max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp,
    /// max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr.
    pub(crate) absent: [c_int; 11],
    /// max_srq, max_srq_wr, max_srq_sge.
    pub(crate) srqs: [c_int; 3],
    pub(crate) ends: DeviceEnds,
}

/// The last fields of `struct ibv_device_attr`.
#[repr(C)]
pub(crate) struct DeviceEnds {
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `struct ibv_device_attr_ex`; between its fields are those of features that are not there.
#[repr(C)]
pub(crate) struct DeviceAttrEx {
    pub(crate) orig_attr: DeviceAttr,
    pub(crate) comp_mask: u32,
    pub(crate) absent: [u32; 11],
    pub(crate) device_cap_flags_ex: u64,
    pub(crate) absent_too: [u32; 27],
    pub(crate) phys_port_cnt_ex: u32,
}

/// `struct _compat_ibv_port_attr`: `struct ibv_port_attr` without its last field.
#[repr(C)]
pub(crate) struct PortAttr {
    pub(crate) state: c_int,
    pub(crate) max_mtu: c_int,
    pub(crate) active_mtu: c_int,
    pub(crate) gid_tbl_len: c_int,
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    /// bad_pkey_cntr, qkey_viol_cntr.
    pub(crate) counters: [u32; 2],
    pub(crate) pkey_tbl_len: u16,
    /// lid, sm_lid.
    pub(crate) lids: [u16; 2],
    /// lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply.
    pub(crate) subnet: [u8; 5],
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
pub(crate) struct GidEntry {
    pub(crate) gid: Gid,
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

/// `struct ibv_async_event`, whose first field is an object's address or the port's number.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct AsyncEvent {
    pub(crate) element: u64,
    pub(crate) code: c_int,
}

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) context: *mut Context,
    pub(crate) handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
    pub(crate) channel: *mut Channel,
    pub(crate) cq_context: *mut c_void,
    pub(crate) handle: u32,
    pub(crate) cqe: c_int,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) comp_events_completed: u32,
    pub(crate) async_events_completed: u32,
}

/// `struct ibv_cq_ex`.
#[repr(C)]
pub(crate) struct CqEx {
    pub(crate) base: Cq,
    pub(crate) comp_mask: u32,
    pub(crate) status: c_uint,
    pub(crate) wr_id: u64,
    pub(crate) ops: [Operation; 18],
}

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
pub(crate) struct CqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut Channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
    pub(crate) parent_domain: *mut Pd,
}

/// `struct ibv_poll_cq_attr`.
#[repr(C)]
pub(crate) struct PollCqAttr {
    pub(crate) comp_mask: u32,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut Context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

/// `struct ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    pub(crate) qp_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) handle: u32,
    pub(crate) qp_num: u32,
    pub(crate) state: c_uint,
    pub(crate) qp_type: c_uint,
    pub(crate) mutex: libc::pthread_mutex_t,
    pub(crate) cond: libc::pthread_cond_t,
    pub(crate) events_completed: u32,
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct QpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_qp_init_attr_ex`: it begins as `struct ibv_qp_init_attr`, whose padding it uses.
#[repr(C)]
pub(crate) struct QpInitAttrEx {
    pub(crate) objects: [*mut c_void; 4],
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut Pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    /// max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn.
    pub(crate) absent: [u32; 11],
    pub(crate) send_ops_flags: u64,
}

/// `struct ibv_qp_ex`.
#[repr(C)]
pub(crate) struct QpEx {
    pub(crate) base: Qp,
    pub(crate) comp_mask: u64,
    pub(crate) wr_id: u64,
    pub(crate) wr_flags: c_uint,
    pub(crate) ops: [Operation; 21],
}

/// `struct ibv_data_buf`.
#[repr(C)]
pub(crate) struct DataBuf {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AhAttr {
    pub(crate) dgid: Gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    /// The end of `struct ibv_global_route`.
    pub(crate) pad: u8,
    pub(crate) dlid: u16,
    /// sl, src_path_bits, static_rate.
    pub(crate) subnet: [u8; 3],
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// An address that names no peer.
pub(crate) const NOWHERE: AhAttr = AhAttr {
    dgid: Gid([0; 16]),
    flow_label: 0,
    sgid_index: 0,
    hop_limit: 0,
    traffic_class: 0,
    pad: 0,
    dlid: 0,
    subnet: [0; 3],
    is_global: 0,
    port_num: 0,
};

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct QpAttr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: QpCap,
    pub(crate) ah_attr: AhAttr,
    pub(crate) alt_ah_attr: AhAttr,
    pub(crate) small: SmallQpAttr,
    pub(crate) rate_limit: u32,
}

/// The narrow fields of `struct ibv_qp_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SmallQpAttr {
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    /// en_sqd_async_notify, sq_draining.
    pub(crate) draining: [u8; 2],
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    /// alt_port_num, alt_timeout.
    pub(crate) alternate: [u8; 2],
}

/// `struct ibv_sge`.
pub(crate) type Sge = ringbell_roce::verbs::Sge;

/// `struct ibv_send_wr`.
#[repr(C)]
pub(crate) struct SendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut SendWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    /// Immediate data in network order, or the key to invalidate.
    pub(crate) imm_data: u32,
    /// remote_addr of both `rdma` and `atomic`; the address handle of `ud`.
    pub(crate) remote_addr: u64,
    /// rkey of `rdma` in its first half; compare_add of `atomic`; remote_qpn and remote_qkey of
    /// `ud`.
    pub(crate) second: [u32; 2],
    /// swap of `atomic`.
    pub(crate) swap: u64,
    /// rkey of `atomic`.
    pub(crate) atomic_rkey: u32,
    pub(crate) rest: [u64; 7],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct RecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RecvWr,
    pub(crate) sg_list: *mut Sge,
    pub(crate) num_sge: c_int,
}

// Flags of `struct ibv_wc`.
pub(crate) const WC_GRH: c_uint = 1;
pub(crate) const WC_WITH_IMM: c_uint = 2;
pub(crate) const WC_WITH_INV: c_uint = 8;

/// `struct ibv_wc`.
#[repr(C)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    /// Immediate data in network order, or the key that was invalidated.
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}
