//! Structures of the library against the installed `infiniband/verbs.h`: size and place of each
//! field that matters.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use crate::abi;

/// Rows of structure, field and place; without a field, of the size.
macro_rules! rows {
    ($($c:literal = $rust:ident { $($field:literal = $at:ident),* })*) => {
        vec![$(
            ($c, "", size_of::<abi::$rust>()),
            $(($c, $field, offset_of!(abi::$rust, $at)),)*
        )*]
    };
}

#[test]
fn structures_lie_as_the_header_says() {
    let folder = std::env::temp_dir().join(format!("ringbell-layout-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    let source = folder.join("layout.c");
    let include = "#include <infiniband/verbs.h>\n";
    std::fs::write(&source, include).expect("written");
    let check = Command::new("cc")
        .arg("-fsyntax-only")
        .arg(&source)
        .output();
    if !check.is_ok_and(|o| o.status.success()) {
        std::fs::remove_dir_all(&folder).expect("removed");
        println!(
            "skipped: no cc, or no infiniband/verbs.h. Debian: apt-get install gcc libibverbs-dev"
        );
        return;
    }
    let rows = rows! {
        "ibv_device" = Device { "node_type" = node_type, "name" = name, "ibdev_path" = ibdev_path }
        "ibv_context" = Context { "ops" = ops, "cmd_fd" = cmd_fd, "async_fd" = async_fd, "abi_compat" = abi_compat }
        "ibv_device_attr" = DeviceAttr {
            "node_guid" = node_guid, "vendor_id" = vendor, "max_qp" = qps, "device_cap_flags" = device_cap_flags, "max_sge" = sges,
            "max_cq" = tables, "max_qp_rd_atom" = depths, "atomic_cap" = atomic_cap, "max_ee" = absent, "max_srq" = srqs, "max_pkeys" = ends
        }
        "ibv_gid_entry" = GidEntry { "gid_index" = gid_index, "ndev_ifindex" = ndev_ifindex }
        "ibv_pd" = Pd { "handle" = handle }
        "ibv_ah" = Ah { "pd" = pd, "handle" = handle }
        "ibv_mr" = Mr { "addr" = addr, "length" = length, "lkey" = lkey, "rkey" = rkey }
        "ibv_comp_channel" = Channel { "fd" = fd, "refcnt" = refcnt }
        "ibv_cq" = Cq { "channel" = channel, "cq_context" = cq_context, "cqe" = cqe, "comp_events_completed" = comp_events_completed }
        "ibv_srq" = Srq { "srq_context" = srq_context, "pd" = pd, "events_completed" = events_completed }
        "ibv_srq_attr" = SrqAttr { "max_sge" = max_sge, "srq_limit" = srq_limit }
        "ibv_srq_init_attr" = SrqInitAttr { "attr" = attr }
        "ibv_qp" = Qp { "pd" = pd, "send_cq" = send_cq, "srq" = srq, "qp_num" = qp_num, "state" = state, "qp_type" = qp_type }
        "ibv_qp_cap" = QpCap { "max_inline_data" = max_inline_data }
        "ibv_qp_init_attr" = QpInitAttr { "srq" = srq, "cap" = cap, "qp_type" = qp_type, "sq_sig_all" = sq_sig_all }
        "ibv_ah_attr" = AhAttr { "dlid" = dlid, "is_global" = is_global, "port_num" = port_num }
        "ibv_qp_attr" = QpAttr {
            "path_mtu" = path_mtu, "rq_psn" = rq_psn, "dest_qp_num" = dest_qp_num, "qp_access_flags" = qp_access_flags, "cap" = cap,
            "ah_attr" = ah_attr, "alt_ah_attr" = alt_ah_attr, "pkey_index" = small, "rate_limit" = rate_limit
        }
        "verbs_context" = VerbsContext { "context" = context }
        "ibv_device_attr_ex" = DeviceAttrEx {
            "comp_mask" = comp_mask, "device_cap_flags_ex" = device_cap_flags_ex, "phys_port_cnt_ex" = phys_port_cnt_ex
        }
        "ibv_cq_ex" = CqEx { "comp_mask" = comp_mask, "status" = status, "wr_id" = wr_id, "start_poll" = ops }
        "ibv_cq_init_attr_ex" = CqInitAttrEx { "channel" = channel, "comp_vector" = comp_vector, "wc_flags" = wc_flags, "flags" = flags }
        "ibv_poll_cq_attr" = PollCqAttr { "comp_mask" = comp_mask }
        "ibv_qp_ex" = QpEx { "comp_mask" = comp_mask, "wr_id" = wr_id, "wr_flags" = wr_flags, "wr_atomic_cmp_swp" = ops }
        "ibv_qp_init_attr_ex" = QpInitAttrEx {
            "cap" = cap, "qp_type" = qp_type, "sq_sig_all" = sq_sig_all, "comp_mask" = comp_mask, "pd" = pd, "create_flags" = create_flags,
            "send_ops_flags" = send_ops_flags
        }
        "ibv_data_buf" = DataBuf { "length" = length }
        "ibv_sge" = Sge { "length" = len, "lkey" = lkey }
        "ibv_send_wr" = SendWr {
            "sg_list" = sg_list, "num_sge" = num_sge, "opcode" = opcode, "send_flags" = send_flags, "imm_data" = imm_data,
            "wr.rdma.remote_addr" = remote_addr, "wr.ud.ah" = remote_addr, "wr.ud.remote_qpn" = second, "wr.rdma.rkey" = second, "wr.atomic.compare_add" = second, "wr.atomic.swap" = swap,
            "wr.atomic.rkey" = atomic_rkey, "qp_type" = rest
        }
        "ibv_recv_wr" = RecvWr { "next" = next, "sg_list" = sg_list, "num_sge" = num_sge }
        "ibv_wc" = Wc { "status" = status, "byte_len" = byte_len, "imm_data" = imm_data, "qp_num" = qp_num, "src_qp" = src_qp, "wc_flags" = wc_flags, "sl" = sl }
    };
    let mut text =
        format!("#include <stddef.h>\n{include}#define IS(a, b) _Static_assert((a) == (b), #a)\n");
    for (structure, field, at) in &rows {
        // Writing to a string cannot fail.
        let _ = match *field {
            "" => writeln!(text, "IS(sizeof(struct {structure}), {at});"),
            field => writeln!(text, "IS(offsetof(struct {structure}, {field}), {at});"),
        };
    }
    let ops = [
        ("poll_cq", abi::OP_POLL_CQ),
        ("req_notify_cq", abi::OP_REQ_NOTIFY_CQ),
        ("post_srq_recv", abi::OP_POST_SRQ_RECV),
        ("post_send", abi::OP_POST_SEND),
        ("post_recv", abi::OP_POST_RECV),
    ];
    for (name, at) in ops {
        let _ = writeln!(
            text,
            "IS(offsetof(struct ibv_context_ops, {name}), {});",
            at * 8
        );
    }
    let extended = [
        ("create_cq_ex", abi::OP_CREATE_CQ_EX * 8),
        ("query_device_ex", abi::OP_QUERY_DEVICE_EX * 8),
        ("create_qp_ex", abi::OP_CREATE_QP_EX * 8),
        ("sz", offset_of!(abi::Extension, sz)),
    ];
    for (name, at) in extended {
        let _ = writeln!(text, "IS(offsetof(struct verbs_context, {name}), {at});");
    }
    let built = [
        "wr_atomic_cmp_swp",
        "wr_atomic_fetch_add",
        "wr_bind_mw",
        "wr_local_inv",
        "wr_rdma_read",
        "wr_rdma_write",
        "wr_rdma_write_imm",
        "wr_send",
        "wr_send_imm",
        "wr_send_inv",
        "wr_send_tso",
        "wr_set_ud_addr",
        "wr_set_xrc_srqn",
        "wr_set_inline_data",
        "wr_set_inline_data_list",
        "wr_set_sge",
        "wr_set_sge_list",
        "wr_start",
        "wr_complete",
        "wr_abort",
        "wr_atomic_write",
    ];
    let polled = [
        "start_poll",
        "next_poll",
        "end_poll",
        "read_opcode",
        "read_vendor_err",
        "read_byte_len",
        "read_imm_data",
        "read_qp_num",
        "read_src_qp",
        "read_wc_flags",
        "read_slid",
        "read_sl",
        "read_dlid_path_bits",
    ];
    for (i, name) in built.iter().enumerate() {
        let at = offset_of!(abi::QpEx, ops) + 8 * i;
        let _ = writeln!(text, "IS(offsetof(struct ibv_qp_ex, {name}), {at});");
    }
    for (i, name) in polled.iter().enumerate() {
        let at = offset_of!(abi::CqEx, ops) + 8 * i;
        let _ = writeln!(text, "IS(offsetof(struct ibv_cq_ex, {name}), {at});");
    }
    let ports = [
        ("port_cap_flags", offset_of!(abi::PortAttr, port_cap_flags)),
        ("pkey_tbl_len", offset_of!(abi::PortAttr, pkey_tbl_len)),
        ("active_width", offset_of!(abi::PortAttr, active_width)),
        ("link_layer", offset_of!(abi::PortAttr, link_layer)),
        ("port_cap_flags2", size_of::<abi::PortAttr>()),
    ];
    for (name, at) in ports {
        let _ = writeln!(text, "IS(offsetof(struct ibv_port_attr, {name}), {at});");
    }
    let smalls = [
        ("max_rd_atomic", offset_of!(abi::SmallQpAttr, max_rd_atomic)),
        ("port_num", offset_of!(abi::SmallQpAttr, port_num)),
        ("rnr_retry", offset_of!(abi::SmallQpAttr, rnr_retry)),
    ];
    for (name, at) in smalls {
        let at = at + offset_of!(abi::QpAttr, small);
        let _ = writeln!(text, "IS(offsetof(struct ibv_qp_attr, {name}), {at});");
    }
    std::fs::write(&source, text).expect("written");
    let checked = Command::new("cc")
        .arg("-fsyntax-only")
        .arg(&source)
        .output()
        .expect("cc");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}
