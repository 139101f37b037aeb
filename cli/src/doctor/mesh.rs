//! A rank's part of a mesh, by the variables of its job: network, wires, credit, routes.

use std::path::Path;

use ringbell::nic::PortSpec;
use ringbell_mesh::{MeshConfig, POLL_MAX};
use ringbell_routes::check::{check, Checked};
use ringbell_routes::named::{named, tables_of};
use ringbell_routes::route::{route, Routes, DEFAULT_CHANNELS};
use ringbell_routes::topology::{NodeId, Topology};

use super::check::{Check, Verdict};

const NAME: &str = "port mesh";

/// What the variables say; `None` where they name no mesh.
pub(super) fn mesh(var: impl Fn(&str) -> Option<String>) -> Option<Check> {
    let Ok(PortSpec::Mesh { topology }) = var("RINGBELL_PORT")?.parse() else {
        return None;
    };
    let rank = var("RINGBELL_RANK").and_then(|r| r.parse().ok());
    let wires = var("RINGBELL_WIRES").unwrap_or_default();
    let (tables, poll) = (var("RINGBELL_ROUTES"), var("RINGBELL_WIRE_POLL"));
    let tables = tables.as_deref();
    let found = judged(
        &topology,
        rank.unwrap_or(0),
        &wires,
        tables,
        poll.as_deref(),
    );
    Some(match found {
        Ok((found, used)) => Check::new(
            NAME,
            Verdict::Ok,
            found,
            used,
            "`ringbell regs` has the state of each wire while the NIC runs, as `Nic::ports`",
        ),
        Err(why) => Check::new(
            NAME,
            Verdict::Missing,
            topology,
            "nothing: a NIC is refused",
            why,
        ),
    })
}

fn judged(
    network: &str,
    rank: usize,
    wires: &str,
    tables: Option<&str>,
    poll: Option<&str>,
) -> Result<(String, String), String> {
    let topology = named(network).map_err(|why| why.to_string())?;
    let nodes = topology.ends().count();
    let node = topology.ends().nth(rank);
    let node = node.ok_or_else(|| {
        format!("{network} has {nodes} nodes with a rank, and none for rank {rank}")
    })?;
    let wires = wires_of(&topology, node, wires)?;
    let (routes, checked, from) = routes_of(&topology, tables)?;
    let mut config = MeshConfig::new(topology.clone(), node);
    if let Some(text) = poll {
        let number = text.parse().ok().filter(|n| (1..=POLL_MAX).contains(n));
        let wrong = || format!("RINGBELL_WIRE_POLL is `{text}`; give 1 to {POLL_MAX} packets");
        config.poll = number.ok_or_else(wrong)?;
    }
    let name = &topology.nodes()[node.index()].name;
    let found = format!("{network}, node {name}: {}", wires.join("; "));
    let used = format!(
        "routes {:016x} {from}, at most {} hops, on {} of {} channels, each with credit for {} packets; an output takes up to {} from one queue in a row",
        routes.tables.digest(),
        checked.longest,
        routes.tables.channel_count(),
        config.channels,
        config.depth,
        config.poll
    );
    Ok((found, used))
}

/// Each of the node's wires, with what it is over.
fn wires_of(topology: &Topology, node: NodeId, given: &str) -> Result<Vec<String>, String> {
    let given: Vec<(&str, &str)> = given.split(';').filter_map(|w| w.split_once('=')).collect();
    let wire = |link| {
        let (from, to) = (topology.from(link), topology.to(link));
        let port = from.port.to_string();
        let over = given.iter().find(|(n, _)| *n == port);
        let to = topology.port_text(to);
        match over {
            Some((_, over)) => Ok(format!("{port} -> {to} over {over}")),
            None => Err(format!(
                "no wire is given for port {port} -> {to}; name it in RINGBELL_WIRES"
            )),
        }
    };
    topology.leaving(node).map(wire).collect()
}

/// The tables of a file or those that a NIC computes, once the checker has accepted them.
fn routes_of(
    topology: &Topology,
    tables: Option<&str>,
) -> Result<(Routes, Checked, String), String> {
    let (routes, from) = match tables {
        Some(file) => {
            let given = tables_of(Path::new(file), topology).map_err(|why| why.to_string())?;
            (Routes::given(given), format!("of {file}"))
        }
        None => {
            let computed = route(topology, DEFAULT_CHANNELS).map_err(|why| why.to_string())?;
            (computed, "computed".into())
        }
    };
    let checked = check(topology, &routes.tables, &routes.proof, DEFAULT_CHANNELS);
    let checked =
        checked.map_err(|why| format!("the routes are refused: {}", why.text(topology)))?;
    Ok((routes, checked, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Option<Check> {
        mesh(|name| {
            let found = vars.iter().find(|(n, _)| *n == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_rank_of_a_mesh_sees_its_wires_and_routes() {
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[("RINGBELL_PORT", "roce")]), None);
        let port = ("RINGBELL_PORT", "mesh:bus:3");
        let (rank, one) = (("RINGBELL_RANK", "1"), "0=udp:10.0.0.2:1,10.0.0.1:2");
        let both = format!("{one};1=mem:/f:0");
        let good = with(&[port, rank, ("RINGBELL_WIRES", &both)]).expect("a mesh");
        assert_eq!(good.verdict, Verdict::Ok);
        assert_eq!(
            good.found,
            "bus:3, node n1: 0 -> n0:1 over udp:10.0.0.2:1,10.0.0.1:2; 1 -> n2:0 over mem:/f:0"
        );
        assert!(
            good.used
                .contains("computed, at most 2 hops, on 2 of 8 channels"),
            "{}",
            good.used
        );
        assert!(
            good.used.ends_with("takes up to 8 from one queue in a row"),
            "{}",
            good.used
        );
        let poll = ("RINGBELL_WIRE_POLL", "3");
        let good = with(&[port, rank, ("RINGBELL_WIRES", &both), poll]).expect("a mesh");
        assert!(good.used.contains("takes up to 3 from"), "{}", good.used);
        for (vars, why) in [
            (
                vec![
                    port,
                    rank,
                    ("RINGBELL_WIRES", &both),
                    ("RINGBELL_WIRE_POLL", "0"),
                ],
                "RINGBELL_WIRE_POLL is `0`; give 1 to 4096 packets",
            ),
            (
                vec![port, rank, ("RINGBELL_WIRES", one)],
                "no wire is given for port 1 -> n2:0",
            ),
            (vec![port, ("RINGBELL_RANK", "3")], "none for rank 3"),
            (vec![("RINGBELL_PORT", "mesh:star:3")], "star:3"),
            (
                vec![
                    port,
                    rank,
                    ("RINGBELL_WIRES", &both),
                    ("RINGBELL_ROUTES", "/nowhere.json"),
                ],
                "/nowhere.json",
            ),
        ] {
            let bad = with(&vars).expect("a mesh");
            assert!(
                bad.verdict == Verdict::Missing && bad.why.contains(why),
                "{bad:?}"
            );
        }
    }
}
