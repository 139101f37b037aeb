//! Topology files: SMI's list of wires as it is, and ours with names, rates and delays.
//!
//! SMI's (SC'19 §4.3) is an object of wires, `"NODE:PORT": "NODE:PORT"`, alone or as
//! `"connections"` beside `"fpgas"`, which names the nodes and their programs. A port is the number
//! at the end of its text (`ch2` is 2). Ranks follow the sorted names, as in SMI's generator.
//!
//! Ours lists nodes in the order of their ranks, and wires with what is known of them:
//!
//! ```json
//! {"name": "lab", "nodes": ["a", "b", {"name": "middle", "switch": true}],
//!  "wires": [{"ends": ["a:0", "middle:0"], "gbps": 40, "delay_ns": 120},
//!            {"ends": ["b:0", "middle:1"]}]}
//! ```
//!
//! `"torus": [2, 4]` or `"mesh": [2, 4]` says that the wires form one, with the ports of
//! [`Shape::Grid`]: it is checked, and allows routes by dimension.
//!
//! A text that does not begin with `{` is one of htsim's fat trees (`htsim.rs`).

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

pub use crate::file_error::FileError;
use crate::generate::generate;
use crate::htsim;
use crate::topology::{Builder, PortOf, Role, Shape, Topology, TopologyError, Wire, MAX_PORTS};

/// Ports of a node in SMI's list: as many as the mesh takes.
pub const SMI_PORTS: usize = 8;

impl From<serde_json::Error> for FileError {
    fn from(error: serde_json::Error) -> FileError {
        let (line, column) = (error.line(), error.column());
        let said = error.to_string();
        let place = format!(" at line {line} column {column}");
        let why = said.strip_suffix(&place).unwrap_or(&said).to_owned();
        FileError { line, column, why }
    }
}

/// Reads a topology; `name` is its name unless the text gives one.
///
/// # Errors
/// [`FileError`]: no JSON, another structure, or a rule of [`TopologyError`] that it breaks.
pub fn parse(name: &str, text: &str) -> Result<Topology, FileError> {
    if htsim::is_htsim(text) {
        return htsim::parse(name, text);
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let file = json.deserialize_map(FileVisitor { name })?;
    json.end()?;
    file.finish()
}

/// What a file has said.
struct File {
    builder: Builder,
    form: Option<Form>,
    /// The nodes that `nodes` or `fpgas` lists; with such a list, wires name no others.
    listed: Option<BTreeSet<String>>,
    grid: Option<(Vec<usize>, bool)>,
}

/// Whose form a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Smi,
    Ours,
}

impl File {
    /// Notes a key's form; mixing them is an error.
    fn is(&mut self, form: Form, key: &str) -> Result<(), String> {
        match self.form.replace(form) {
            Some(before) if before != form => Err(format!(
                "`{key}` among keys of the other form: `fpgas`, `connections` and plain wires are \
                 SMI's, `name`, `nodes`, `wires`, `torus` and `mesh` are ours"
            )),
            _ => Ok(()),
        }
    }

    /// Adds a wire; nodes that no list names exist by being named here.
    fn wire(
        &mut self,
        ends: [&str; 2],
        gbps: Option<f64>,
        delay_ns: Option<f64>,
    ) -> Result<(), String> {
        let first = self.port(ends[0])?;
        let ends = [first, self.port(ends[1])?];
        let wire = Wire {
            ends,
            gbps,
            delay_ns,
        };
        self.builder.wire(wire).map_err(|e| e.to_string())
    }

    fn port(&mut self, text: &str) -> Result<PortOf, String> {
        let (name, port) = split_port(text)?;
        let node = match self.builder.named(name) {
            Err(_) if self.listed.is_none() => self.builder.node(name, Role::End),
            known => known,
        };
        let node = node.map_err(|e| e.to_string())?;
        if self.form == Some(Form::Smi) && port >= SMI_PORTS as u64 {
            let node = name.into();
            let limit = SMI_PORTS;
            return Err(TopologyError::NoSuchPort { node, port, limit }.to_string());
        }
        self.builder.port(node, port).map_err(|e| e.to_string())
    }

    /// Adds the nodes of a list, which precedes the wires or names all that they have named.
    fn list(&mut self, name: &str, role: Role) -> Result<(), String> {
        checked_name(name)?;
        let listed = self.listed.get_or_insert_default();
        if !listed.insert(name.into()) {
            return Err(TopologyError::NameTwice(name.into()).to_string());
        }
        if self.builder.named(name).is_err() {
            self.builder.node(name, role).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Topology, FileError> {
        if self.form == Some(Form::Smi) {
            // By node and device, as SMI's route generator numbers them.
            let parts = |name: &str| name.split(':').map(str::to_owned).collect::<Vec<_>>();
            self.builder.sort_by_key(parts);
        }
        let topology = self.builder.build().map_err(FileError::whole)?;
        if let Some(listed) = &self.listed {
            let unlisted = topology.nodes().iter().find(|n| !listed.contains(&n.name));
            if let Some(node) = unlisted {
                let why = TopologyError::NoSuchNode(node.name.clone());
                return Err(FileError::whole(format!(
                    "{why} in `fpgas`, and a wire leads to it"
                )));
            }
        }
        match self.grid {
            None => Ok(topology),
            Some((sizes, wrapped)) => as_grid(topology, sizes, wrapped).map_err(FileError::whole),
        }
    }
}

/// The network as a torus or mesh, if its wires are one's.
fn as_grid(topology: Topology, sizes: Vec<usize>, wrapped: bool) -> Result<Topology, String> {
    let text = sizes
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join("x");
    let kind = match (wrapped, sizes.len()) {
        (true, 1) => "ring",
        (false, 1) => "bus",
        (true, _) => "torus",
        (false, _) => "mesh",
    };
    let name = format!("{kind}:{text}");
    let grid = generate(&name).map_err(|e| e.to_string())?;
    if topology.nodes().len() != grid.nodes().len() {
        let has = topology.nodes().len();
        return Err(format!(
            "the file has {has} nodes, and {name} has {}",
            grid.nodes().len()
        ));
    }
    for node in grid.ids() {
        for port in 0..MAX_PORTS as u8 {
            let leads = |t: &Topology| t.link(node, port).map(|l| t.to(l));
            let (here, there) = (leads(&topology), leads(&grid));
            if here != there {
                let to = |at: Option<PortOf>| {
                    at.map_or("nowhere".into(), |at| {
                        format!("to {}", topology.port_text(at))
                    })
                };
                let at = topology.port_text(PortOf { node, port });
                let (here, there) = (to(here), to(there));
                return Err(format!(
                    "no {name}: {at} leads {here}, and in a {kind} {there}"
                ));
            }
        }
    }
    Ok(topology.shaped(Shape::Grid { sizes, wrapped }))
}

/// `NODE:PORT` in its parts: the port is the number at the end of what follows the last colon.
///
/// # Errors
/// It has another form, in words.
pub fn split_port(text: &str) -> Result<(&str, u64), String> {
    let form = || format!("`{text}`: write a wire's end as NODE:PORT");
    let (name, port) = text.rsplit_once(':').ok_or_else(form)?;
    let digits = port.len() - port.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let number = &port[port.len() - digits..];
    checked_name(name)?;
    if number.is_empty() {
        return Err(form());
    }
    // A number beyond all numbers is beyond all ports.
    Ok((name, number.parse().unwrap_or(u64::MAX)))
}

/// A node's name: something visible, which a message can quote.
fn checked_name(name: &str) -> Result<(), String> {
    match name.is_empty() || name.chars().any(|c| c.is_control() || c.is_whitespace()) {
        true => Err(format!("`{}` is no name of a node", name.escape_debug())),
        false => Ok(()),
    }
}

struct FileVisitor<'a> {
    name: &'a str,
}

impl<'de> Visitor<'de> for FileVisitor<'_> {
    type Value = File;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object: SMI's wires, or `nodes` and `wires`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<File, A::Error> {
        let mut file = File {
            builder: Builder::new(self.name, MAX_PORTS),
            form: None,
            listed: None,
            grid: None,
        };
        while let Some(key) = map.next_key::<String>()? {
            let form = match key.as_str() {
                "fpgas" | "connections" => Form::Smi,
                "name" | "nodes" | "wires" | "torus" | "mesh" => Form::Ours,
                wire if wire.contains(':') => Form::Smi,
                other => {
                    return Err(A::Error::custom(format!(
                        "`{other}` is no key of a topology: SMI's have `fpgas`, `connections` or \
                         wires, ours `name`, `nodes`, `wires`, `torus` and `mesh`"
                    )))
                }
            };
            file.is(form, &key).map_err(A::Error::custom)?;
            match key.as_str() {
                "name" => {
                    let name: String = map.next_value()?;
                    checked_name(&name).map_err(A::Error::custom)?;
                    file.builder.set_name(name);
                }
                "nodes" => map.next_value_seed(Nodes(&mut file))?,
                "wires" => map.next_value_seed(Wires(&mut file))?,
                "torus" => file.grid = Some((map.next_value()?, true)),
                "mesh" => file.grid = Some((map.next_value()?, false)),
                "fpgas" => map.next_value_seed(Fpgas(&mut file))?,
                "connections" => map.next_value_seed(Connections(&mut file))?,
                wire => {
                    let to: String = map.next_value()?;
                    let added = file.wire([wire, &to], None, None);
                    added.map_err(A::Error::custom)?;
                }
            }
        }
        Ok(file)
    }
}

/// A node of ours: its name, or an object with it.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a node: its name, or {\"name\": ..., \"switch\": true}"
)]
enum NodeText {
    Name(String),
    Object(NodeObject),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeObject {
    name: String,
    #[serde(default)]
    switch: bool,
}

/// A wire of ours.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireText {
    ends: [String; 2],
    gbps: Option<f64>,
    delay_ns: Option<f64>,
}

/// Visitors that add to the file as they read, so that an error has its line.
macro_rules! part {
    ($name:ident, $deserialize:ident, $visit:ident<$access:ident>, $expecting:literal, $add:expr) => {
        struct $name<'a>(&'a mut File);

        impl<'de> DeserializeSeed<'de> for $name<'_> {
            type Value = ();

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
                deserializer.$deserialize(self)
            }
        }

        impl<'de> Visitor<'de> for $name<'_> {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }

            fn $visit<A: $access<'de>>(self, mut access: A) -> Result<(), A::Error> {
                let add: fn(&mut File, &mut A) -> Result<Option<()>, A::Error> = $add;
                while add(self.0, &mut access)?.is_some() {}
                Ok(())
            }
        }
    };
}

part!(
    Nodes,
    deserialize_seq,
    visit_seq<SeqAccess>,
    "a list of nodes",
    |file, list| {
        // An empty list is a list.
        file.listed.get_or_insert_default();
        let Some(node) = list.next_element::<NodeText>()? else {
            return Ok(None);
        };
        let (name, role) = match node {
            NodeText::Name(name) => (name, Role::End),
            NodeText::Object(node) if node.switch => (node.name, Role::Switch),
            NodeText::Object(node) => (node.name, Role::End),
        };
        if file.builder.has_wires() {
            return Err(A::Error::custom(
                "`nodes` stands behind `wires`; put it before",
            ));
        }
        file.list(&name, role).map(Some).map_err(A::Error::custom)
    }
);

part!(
    Wires,
    deserialize_seq,
    visit_seq<SeqAccess>,
    "a list of wires",
    |file, list| {
        let Some(wire) = list.next_element::<WireText>()? else {
            return Ok(None);
        };
        let ends = [wire.ends[0].as_str(), wire.ends[1].as_str()];
        let added = file.wire(ends, wire.gbps, wire.delay_ns);
        added.map(Some).map_err(A::Error::custom)
    }
);

part!(
    Fpgas,
    deserialize_map,
    visit_map<MapAccess>,
    "an object of nodes and programs",
    |file, map| {
        file.listed.get_or_insert_default();
        let Some((name, _program)) = map.next_entry::<String, IgnoredAny>()? else {
            return Ok(None);
        };
        file.list(&name, Role::End)
            .map(Some)
            .map_err(A::Error::custom)
    }
);

part!(
    Connections,
    deserialize_map,
    visit_map<MapAccess>,
    "an object of wires",
    |file, map| {
        let Some((from, to)) = map.next_entry::<String, String>()? else {
            return Ok(None);
        };
        let added = file.wire([&from, &to], None, None);
        added.map(Some).map_err(A::Error::custom)
    }
);
