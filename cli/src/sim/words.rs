//! The first and last lines of a report as text: what was simulated, and how fast.

use ringbell_sim::{NetworkPlan, Plan};

use super::fault;

/// What runs, on which network, with what costs and faults.
pub(super) fn head(what: &str, plan: &Plan) -> String {
    let p = &plan.profile;
    let head = format!(
        "# ringbell sim {what}, {} ranks, seed {}, loss {}\n# network {}\n# profile {}: {} Gb/s, {} ns a link; {}\n",
        plan.ranks,
        plan.seed,
        plan.loss,
        network(&plan.network),
        p.name,
        p.link_gbps,
        p.link_delay_ns,
        p.source
    );
    head + &fault::text_of_faults(plan)
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
