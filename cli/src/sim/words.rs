//! What all reports have in common: the first and last lines as text, and the cluster as JSON.

use std::collections::BTreeMap;

use ringbell::comm::HostRanks;
use ringbell_sim::{Cluster, Counts, Measured, NetworkPlan, Projection};
use serde_json::{json, Value};

use super::fault;

/// What runs, on which network, with what costs and faults.
pub(super) fn head(what: &str, cluster: &Cluster) -> String {
    let p = &cluster.profile;
    let head = format!(
        "# ringbell sim {what}, {} ranks, seed {}, loss {}, congestion {}, repeat {}{}\n# network {}\n# profile {}: {} Gb/s, {} ns a link; {}\n",
        cluster.ranks,
        cluster.seed,
        cluster.loss,
        cluster.reaction.congestion,
        repeat(cluster),
        udp_ports(cluster),
        network(&cluster.network),
        p.name,
        p.link_gbps,
        p.link_delay_ns,
        p.source
    );
    let text = |value: Value| value.as_str().map_or(value.to_string(), str::to_string);
    let set = settings(cluster).map(|(name, value)| format!(" {name}={}", text(value)));
    let set: String = set.collect();
    let set = match set.is_empty() {
        true => set,
        false => format!("# settings{set}\n"),
    };
    head + &set + &fault::text_of_faults(cluster)
}

/// The settings of the communicator that were given, and their values.
fn settings(cluster: &Cluster) -> impl Iterator<Item = (&'static str, Value)> + '_ {
    let usual = Cluster::new(cluster.ranks, cluster.profile.clone()).settings;
    let value = |(name, value): (&'static str, u64)| match name {
        "host_ranks" => (name, hosts(&cluster.settings.host_ranks)),
        _ => (name, value.into()),
    };
    cluster.settings.unlike(&usual).into_iter().map(value)
}

/// One number, or those of hosts with different numbers of ranks as a text.
pub(super) fn hosts(host_ranks: &HostRanks) -> Value {
    match host_ranks.each() {
        Some(each) => each.into(),
        None => host_ranks.to_string().into(),
    }
}

/// What NICs send again, as `--repeat` names it.
fn repeat(cluster: &Cluster) -> &'static str {
    match cluster.reaction.selective {
        true => "selective",
        false => "go-back-n",
    }
}

/// Over how many UDP ports NICs spread packets, if over several.
fn udp_ports(cluster: &Cluster) -> String {
    match cluster.reaction.udp_ports {
        1 => String::new(),
        ports => format!(", {ports} UDP ports"),
    }
}

/// The network in words.
fn network(network: &NetworkPlan) -> String {
    let Some(topology) = &network.topology else {
        return "of one switch".into();
    };
    let (nodes, hosts) = (topology.nodes().len(), topology.ends().count());
    let (name, wires) = (topology.name(), topology.wires().len());
    if network.is_mesh() {
        let poll = network.wire_poll;
        return format!(
            "{name}: {nodes} NICs that forward for each other, {wires} wires; R is {poll}"
        );
    }
    let choice = match network.spray {
        true => "frames sprayed".into(),
        false => format!("hash seed {}", network.hash_seed),
    };
    let switches = nodes - hosts;
    format!("{name}: {hosts} hosts, {switches} switches, {wires} wires; {choice}")
}

/// Elements that were wrong, as nccl-tests writes it where none was compared.
pub(super) fn wrong(m: &Measured) -> String {
    match m.projection {
        Some(_) => "N/A".into(),
        None => m.wrong.to_string(),
    }
}

/// How the time of a size was found, where that was fast-forwarded.
pub(super) fn projection(m: &Measured) -> String {
    let Some(p) = m.projection else {
        return String::new();
    };
    format!(
        "# {} bytes: fast-forwarded from {:.2} us on, after {:.1}% of the steps; the time of a step varied by {:.2}%; tests hold such times to 1% of whole runs; --exact simulates all\n",
        m.bytes,
        fault::us(p.simulated_ns),
        100.0 * p.share,
        100.0 * p.spread,
    )
}

pub(super) fn json_of_projection(p: &Projection) -> Value {
    json!({
        "simulated_us": fault::us(p.simulated_ns),
        "steps_share": p.share,
        "step_time_spread": p.spread,
    })
}

/// How much happened, and how fast virtual time passed.
pub(super) fn foot(counts: &Counts, wall_s: f64) -> String {
    let virtual_s = counts.virtual_ns as f64 / 1e9;
    let Counts {
        events,
        packets,
        lost,
        hash,
        ..
    } = counts;
    let marked = switches(counts);
    format!(
        "# {events} events, {packets} frames, {lost} lost{marked}; {virtual_s:.6} virtual s in {wall_s:.3} s, {:.4} a second; hash {hash:016x}\n",
        virtual_s / wall_s.max(1e-9),
    )
}

/// What switches did besides losing frames, if they did.
pub(super) fn switches(counts: &Counts) -> String {
    match (counts.marked, counts.pauses) {
        (0, 0) => String::new(),
        (marked, pauses) => format!(
            ", {marked} marked, {pauses} pauses, longest queue {} bytes",
            counts.deepest
        ),
    }
}

/// The object of a report: the cluster, and what is the report's own.
pub(super) fn json(cluster: &Cluster, own: Value) -> Value {
    let whole = json!({
        "ranks": cluster.ranks,
        "topology": cluster.network.topology.as_ref().map(|t| t.name()),
        "hash_seed": cluster.network.hash_seed,
        "spray": cluster.network.spray,
        "wire_poll": cluster.network.is_mesh().then_some(cluster.network.wire_poll),
        "congestion": cluster.reaction.congestion.to_string(),
        "repeat": repeat(cluster),
        "udp_ports": cluster.reaction.udp_ports,
        "profile": cluster.profile.name,
        "settings": settings(cluster).collect::<BTreeMap<_, _>>(),
        "loss": cluster.loss,
        "seed": cluster.seed,
        "faults": fault::json_of_faults(cluster, &cluster.faults),
        "slow": fault::json_of_slow(cluster),
    });
    joined(whole, own)
}

/// What is a report's own, with how much happened.
pub(super) fn json_of_counts(own: Value, counts: &Counts, wall_s: f64) -> Value {
    let counts = json!({
        "events": counts.events,
        "frames": counts.packets,
        "frame_bytes": counts.bytes,
        "lost": counts.lost,
        "marked": counts.marked,
        "pauses": counts.pauses,
        "deepest_queue_bytes": counts.deepest,
        "virtual_ns": counts.virtual_ns,
        "wall_s": wall_s,
        "hash": format!("{:016x}", counts.hash),
    });
    joined(own, counts)
}

/// Two objects as one.
pub(super) fn joined(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}
