//! Tables and their proof as JSON, by which they travel to NICs and are checked again.
//!
//! Rows and columns are in the order of `nodes`; `next[node][destination]` is a port or null,
//! `layer[source][destination]` a layer, `channels` the channel of each layer by class. A channel
//! of the proof is written `NODE:PORT#NUMBER`: of the link that leaves there.

use serde::{Deserialize, Serialize};

use crate::file::{split_port, FileError};
use crate::proof::{Proof, BUBBLE_FORWARDING, BUBBLE_INJECTION};
use crate::tables::{Channel, Class, Tables};
use crate::topology::{NodeId, Topology};

/// Tables and proof in the form of the JSON text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Name of the topology.
    pub topology: String,
    /// Names of its nodes.
    pub nodes: Vec<String>,
    /// [`Tables::digest`] in hexadecimal, for comparison; it is not read.
    #[serde(default)]
    pub digest: String,
    channels: ByClass,
    next: Vec<Vec<Option<u8>>>,
    layer: Vec<Vec<u8>>,
    proof: ProofText,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ByClass {
    requests: Vec<u8>,
    acknowledgements: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum ProofText {
    Acyclic {
        order: Vec<String>,
    },
    Bubble {
        injection: u8,
        forwarding: u8,
        rings: Vec<Vec<String>>,
    },
}

impl Document {
    /// Of tables for a topology.
    pub fn of(topology: &Topology, tables: &Tables, proof: &Proof) -> Document {
        let names = topology.nodes().iter().map(|n| n.name.clone());
        let texts = |list: &[Channel]| list.iter().map(|c| c.text(topology)).collect();
        let row = |a: NodeId| (a, topology.ids());
        Document {
            topology: topology.name().into(),
            nodes: names.collect(),
            digest: format!("{:016x}", tables.digest()),
            channels: ByClass {
                requests: tables.channels(Class::Request).to_vec(),
                acknowledgements: tables.channels(Class::Acknowledgement).to_vec(),
            },
            next: topology
                .ids()
                .map(row)
                .map(|(a, ids)| ids.map(|b| tables.next(a, b)).collect())
                .collect(),
            layer: topology
                .ids()
                .map(row)
                .map(|(a, ids)| ids.map(|b| tables.layer(a, b)).collect())
                .collect(),
            proof: match proof {
                Proof::Acyclic { order } => ProofText::Acyclic {
                    order: texts(order),
                },
                Proof::Bubble { rings } => ProofText::Bubble {
                    injection: BUBBLE_INJECTION,
                    forwarding: BUBBLE_FORWARDING,
                    rings: rings.iter().map(|r| texts(r)).collect(),
                },
            },
        }
    }

    /// Reads the text; other keys than those of a document are passed over.
    ///
    /// # Errors
    /// No JSON, or another structure.
    pub fn parse(text: &str) -> Result<Document, FileError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The tables and the proof, which are still to be checked.
    ///
    /// # Errors
    /// Other nodes than the topology's, rows of another length, a channel that does not exist,
    /// other numbers of the bubble condition.
    pub fn read(&self, topology: &Topology) -> Result<(Tables, Proof), String> {
        let names = topology.nodes().iter().map(|n| &n.name);
        if !names.eq(&self.nodes) {
            return Err(format!(
                "the tables are for {} with {} nodes, other ones than those of {}",
                self.topology,
                self.nodes.len(),
                topology.name()
            ));
        }
        let n = self.nodes.len();
        let channels = [
            self.channels.requests.clone(),
            self.channels.acknowledgements.clone(),
        ];
        let mut tables = Tables::new(n, channels);
        let lengths = [
            (
                "next",
                self.next.len(),
                self.next.iter().position(|r| r.len() != n),
            ),
            (
                "layer",
                self.layer.len(),
                self.layer.iter().position(|r| r.len() != n),
            ),
        ];
        for (name, rows, other) in lengths {
            if rows != n {
                return Err(format!("`{name}` has {rows} rows for {n} nodes"));
            }
            if let Some(row) = other {
                let node = &self.nodes[row];
                return Err(format!("the row of {node} in `{name}` has not {n} entries"));
            }
        }
        for a in topology.ids() {
            for b in topology.ids() {
                let port = self.next[a.index()][b.index()];
                if port == Some(u8::MAX) {
                    let (a, b) = (&self.nodes[a.index()], &self.nodes[b.index()]);
                    return Err(format!("{a} forwards to {b} by port 255, which no NIC has"));
                }
                tables.set_next(a, b, port);
                tables.set_layer(a, b, self.layer[a.index()][b.index()]);
            }
        }
        let read = |list: &[String]| list.iter().map(|c| channel(topology, c)).collect();
        let proof = match &self.proof {
            ProofText::Acyclic { order } => Proof::Acyclic {
                order: read(order)?,
            },
            ProofText::Bubble {
                injection: BUBBLE_INJECTION,
                forwarding: BUBBLE_FORWARDING,
                rings,
            } => Proof::Bubble {
                rings: rings.iter().map(|r| read(r)).collect::<Result<_, _>>()?,
            },
            ProofText::Bubble {
                injection,
                forwarding,
                ..
            } => {
                return Err(format!(
                    "a proof for {injection} free slots at injection and {forwarding} at \
                     forwarding; this version proves {BUBBLE_INJECTION} and {BUBBLE_FORWARDING}"
                ))
            }
        };
        Ok((tables, proof))
    }
}

/// The channel of this text.
fn channel(topology: &Topology, text: &str) -> Result<Channel, String> {
    let parts = text.rsplit_once('#');
    let number = parts.and_then(|(_, n)| n.parse().ok());
    let (Some((at, _)), Some(number)) = (parts, number) else {
        return Err(format!(
            "`{text}` in the proof: write a channel as NODE:PORT#NUMBER"
        ));
    };
    let (name, port) = split_port(at)?;
    let node = topology.node_named(name);
    let port = u8::try_from(port).ok();
    let link = node.zip(port).and_then(|(n, p)| topology.link(n, p));
    match link {
        Some(link) => Ok(Channel { link, number }),
        None => Err(format!("`{text}` in the proof: no wire ends at {at}")),
    }
}
