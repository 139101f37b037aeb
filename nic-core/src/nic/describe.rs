//! A NIC's description as text: settings, transports, counters, and per session its transport and
//! the reason.

use std::fmt::Write as _;
use std::net::SocketAddr;

use super::Nic;
use crate::network::{Network, NetworkCounters};

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

pub(super) fn describe(nic: &Nic) -> String {
    let (names, window, exports) = nic.core(|c| {
        let names: Vec<_> = c.streams.transports.iter().map(|t| t.name()).collect();
        let m = &c.memory.dma.memory;
        (names.join(", "), m.window().is_some(), m.exports().len())
    });
    let (n, p, c) = (nic.config(), nic.progress_stats(), nic.counters());
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "nic {} soft, progress {:?} (spin {}, {} parks, {} wakes)",
        n.ip, n.progress, p.spin, p.parks, p.wakes
    );
    let _ = writeln!(out, "transports in policy order: {names}");
    nic.core(|c| describe_network(&c.streams.network, &mut out));
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
    let (used, total) = nic.nic_memory();
    let _ = writeln!(
        out,
        "NIC memory: {used} of {total} B in use; nothing is pinned, so `ulimit -l` does not matter"
    );
    for e in nic.engines() {
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
    for id in nic.communicators() {
        let Ok(i) = nic.communicator_info(id) else {
            continue;
        };
        let c = i.counters;
        let _ = writeln!(
            out,
            "communicator {:#x}: rank {} of {}, {:?}; {} B of NIC memory; {} operations ended well, {} not; {} eager messages, {} by rendezvous",
            i.ctx, i.rank, i.ranks, i.status, i.nic_memory, c.completed, c.failed, c.eager, c.rendezvous
        );
    }
    for s in nic.sessions() {
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
