//! What all reports have in common: the first and last lines as text, and the cluster as JSON.

use ringbell_sim::{Cluster, NetworkPlan};
use serde_json::{json, Value};

use super::fault;

/// What runs, on which network, with what costs and faults.
pub(super) fn head(what: &str, cluster: &Cluster) -> String {
    let p = &cluster.profile;
    let head = format!(
        "# ringbell sim {what}, {} ranks, seed {}, loss {}\n# network {}\n# profile {}: {} Gb/s, {} ns a link; {}\n",
        cluster.ranks,
        cluster.seed,
        cluster.loss,
        network(&cluster.network),
        p.name,
        p.link_gbps,
        p.link_delay_ns,
        p.source
    );
    head + &fault::text_of_faults(cluster)
}

/// The network in words.
fn network(network: &NetworkPlan) -> String {
    let Some(topology) = &network.topology else {
        return "of one switch".into();
    };
    let (nodes, hosts) = (topology.nodes().len(), topology.ends().count());
    format!(
        "{}: {hosts} hosts, {} switches, {} wires; hash seed {}",
        topology.name(),
        nodes - hosts,
        topology.wires().len(),
        network.hash_seed
    )
}

/// How much happened: events, frames, and lost ones; and how fast virtual time passed.
pub(super) fn foot(
    virtual_ns: u64,
    wall_s: f64,
    hash: u64,
    [events, frames, lost]: [u64; 3],
) -> String {
    let virtual_s = virtual_ns as f64 / 1e9;
    format!(
        "# {events} events, {frames} frames, {lost} lost; {virtual_s:.6} virtual s in {wall_s:.3} s, {:.4} a second; hash {hash:016x}\n",
        virtual_s / wall_s.max(1e-9),
    )
}

/// The object of a report: the cluster, and what is the report's own.
pub(super) fn json(cluster: &Cluster, own: Value) -> Value {
    let whole = json!({
        "ranks": cluster.ranks,
        "topology": cluster.network.topology.as_ref().map(|t| t.name()),
        "hash_seed": cluster.network.hash_seed,
        "profile": cluster.profile.name,
        "loss": cluster.loss,
        "seed": cluster.seed,
        "faults": fault::json_of_faults(cluster, &cluster.faults),
        "slow": fault::json_of_slow(cluster),
    });
    joined(whole, own)
}

/// Two objects as one.
pub(super) fn joined(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}
