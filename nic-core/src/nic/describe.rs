//! A NIC's description as text: settings, transports, counters, and per session its transport and
//! the reason.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::session_info::SessionInfo;
use crate::collective::CommInfo;
use crate::command::{Core, Counters};
use crate::config::NicConfig;
use crate::engine::EngineInfo;
use crate::network::{Network, NetworkCounters};
use crate::progress::ProgressStats;

fn describe_network(net: &Network, out: &mut String) {
    for (n, port) in net.describe_ports().iter().enumerate() {
        let c = &port.counters;
        let _ = writeln!(
            out,
            "port {n}: {}, MTU {}; frames: {} sent ({} B), {} lost, {} received ({} B), {} malformed, {} unauthenticated",
            port.name,
            port.mtu,
            c.tx_frames,
            c.tx_bytes,
            c.tx_dropped,
            c.rx_frames,
            c.rx_bytes,
            c.rx_malformed,
            c.rx_unauthenticated
        );
    }
    for route in net.routes() {
        let _ = writeln!(out, "route {route}");
    }
    let c = net.counters();
    if c != NetworkCounters::default() {
        let _ = writeln!(
            out,
            "frames for no transport: {} dropped, {} for other hosts; {} answers found no room",
            c.dropped, c.not_ours, c.replies_lost
        );
    }
}

/// What a description is made of.
pub(super) struct Facts<'a> {
    pub(super) config: &'a NicConfig,
    pub(super) progress: ProgressStats,
    pub(super) counters: Counters,
    pub(super) nic_memory: (u64, u64),
    pub(super) engines: Vec<EngineInfo>,
    pub(super) communicators: Vec<CommInfo>,
    pub(super) sessions: Vec<SessionInfo>,
}

/// The description, with what the core has besides.
pub(super) fn describe(facts: Facts<'_>, core: &Core) -> String {
    let transports = core.streams.transports.iter();
    let names: Vec<_> = transports.map(|t| t.caps().name).collect();
    let names = names.join(", ");
    let m = &core.memory.dma.memory;
    let (window, exports) = (m.window().is_some(), m.exports().len());
    let (n, p, c) = (facts.config, facts.progress, facts.counters);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "nic {} soft, progress {:?} (spin {}, {} parks, {} wakes)",
        n.ip, n.progress, p.spin, p.parks, p.wakes
    );
    let _ = writeln!(out, "transports in policy order: {names}");
    describe_network(&core.streams.network, &mut out);
    let _ = writeln!(
        out,
        "memory: {}, {exports} exports ({})",
        if window {
            "directly mapped"
        } else {
            "by DMA engine"
        },
        if exports > 0 {
            "local peers copy straight out of it: one copy for a matched receive, two when early"
        } else {
            "nothing to map: payloads for local peers go through NIC memory in two copies"
        }
    );
    let _ = writeln!(
        out,
        "descriptors: {} accepted, {} retired; payload: {} B sent, {} B received, {} B copied, {} B of them staged, {} B from memory to memory past the host",
        c.accepted, c.retired, c.tx_bytes, c.rx_bytes, c.copied_bytes, c.staged_bytes, c.direct_bytes
    );
    let (used, total) = facts.nic_memory;
    let _ = writeln!(
        out,
        "NIC memory: {used} of {total} B in use; nothing is pinned, so `ulimit -l` does not matter"
    );
    for e in facts.engines {
        let gbs = |r: Option<f64>| r.map_or("-".into(), |r| format!("{:.2}", r / 1e9));
        let _ = writeln!(
            out,
            "{}: {} on {} streams, {} B in, {} B out; {} GB/s measured, {} promised; the stream without it {}{}",
            e.id,
            e.name,
            e.streams.len(),
            e.bytes_in,
            e.bytes_out,
            gbs(e.rates.engine),
            gbs(Some(e.rates.declared)),
            gbs(e.rates.stream),
            match (e.failed, e.rates.is_bottleneck() || !e.rates.keeps_promise()) {
                (true, _) => "; FAILED, and a stream that it changes has ended",
                (false, true) => "; SLOW",
                (false, false) => "",
            }
        );
    }
    for i in facts.communicators {
        let c = i.counters;
        let _ = writeln!(
            out,
            "communicator {:#x}: rank {} of {}, {:?}; {} B of NIC memory; {} operations ended well, {} not; {} eager messages, {} by rendezvous",
            i.ctx, i.rank, i.ranks, i.status, i.nic_memory, c.completed, c.failed, c.eager, c.rendezvous
        );
    }
    for s in facts.sessions {
        let show = |a: Option<SocketAddr>| a.map_or("-".into(), |a| a.to_string());
        let _ = writeln!(
            out,
            "{}: {} over {}, {} -> {}, {} B sent, {} B received; {}",
            s.id,
            s.state,
            s.transport.unwrap_or("-"),
            show(s.local),
            show(s.peer),
            s.tx_bytes,
            s.rx_bytes,
            if s.why.is_empty() {
                "no transport chosen yet"
            } else {
                s.why
            }
        );
    }
    out
}
