//! Execution traces of Chakra (MLCommons; schemas 0.0.4 and 1.0.0, which have one `et_def.proto`).
//!
//! A rank has a file, `NAME.RANK.et`: messages of protocol buffers, each behind its length, a
//! `GlobalMetadata` and then `Node`s. A node waits for those of its dependencies. `COMP_NODE` keeps
//! a processor for its `duration_micros`: the host's is 0, and each stream of the GPU has one.
//! `COMM_SEND_NODE` and `COMM_RECV_NODE` have `comm_dst` or `comm_src`, `comm_size` and `comm_tag`,
//! `COMM_COLL_NODE` has `comm_type` and `comm_size`, the bytes that a rank gives.

use std::collections::BTreeMap;

use prost::Message;
use ringbell_nic_abi::CollectiveKind;

use super::needs::{circle, Need};
use super::schedule::{has_blocks, Op, Schedule, Work, ELEMENT};

/// The processor of communication, on which nothing is calculated: a message waits for its
/// dependencies, and not for what else a stream does.
const NETWORK: u8 = u8::MAX;
/// Most nodes of all files.
const NODES: usize = 1 << 24;
/// Bytes of a message or an operand are below this.
const BYTES: i64 = 1 << 48;
/// Longest protobuf message of a file.
const MESSAGE: u64 = 64 << 20;

/// What is wrong with the traces of some ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {}{what}", node.map_or(String::new(), |id| format!("node {id}: ")))]
pub struct ChakraError {
    /// The file.
    pub file: String,
    /// The node's `id`, where it is one's.
    pub node: Option<u64>,
    /// What is wrong, and what was expected.
    pub what: String,
}

#[derive(Clone, PartialEq, Message)]
struct GlobalMetadata {
    #[prost(string, tag = "1")]
    version: String,
}

/// A value of an attribute: of the kinds that the attributes above have.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int32, optional, tag = "7")]
    int32: Option<i32>,
    #[prost(int64, optional, tag = "9")]
    int64: Option<i64>,
    #[prost(uint32, optional, tag = "11")]
    uint32: Option<u32>,
    #[prost(uint64, optional, tag = "13")]
    uint64: Option<u64>,
    #[prost(bool, optional, tag = "27")]
    bool: Option<bool>,
    #[prost(string, optional, tag = "29")]
    string: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(uint64, repeated, tag = "4")]
    ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    data_deps: Vec<u64>,
    #[prost(uint64, tag = "7")]
    duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    attr: Vec<Attribute>,
}

/// `NodeType` of the schema.
const METADATA: i32 = 1;
const MEM_LOAD: i32 = 2;
const MEM_STORE: i32 = 3;
const COMP: i32 = 4;
const SEND: i32 = 5;
const RECV: i32 = 6;
const COLLECTIVE: i32 = 7;

/// `CollectiveCommType` of the schema, by its numbers.
const COLLECTIVES: [(&str, Option<CollectiveKind>); 10] = [
    ("ALL_REDUCE", Some(CollectiveKind::AllReduce)),
    ("REDUCE", Some(CollectiveKind::Reduce)),
    ("ALL_GATHER", Some(CollectiveKind::AllGather)),
    ("GATHER", None),
    ("SCATTER", None),
    ("BROADCAST", Some(CollectiveKind::Broadcast)),
    ("ALL_TO_ALL", Some(CollectiveKind::AllToAll)),
    ("REDUCE_SCATTER", Some(CollectiveKind::ReduceScatter)),
    ("REDUCE_SCATTER_BLOCK", Some(CollectiveKind::ReduceScatter)),
    ("BARRIER", Some(CollectiveKind::Barrier)),
];

impl Attribute {
    fn number(&self) -> Option<i64> {
        let unsigned = self.uint32.map(i64::from);
        let long = self.uint64.and_then(|n| i64::try_from(n).ok());
        (self.int64)
            .or(self.int32.map(i64::from))
            .or(unsigned)
            .or(long)
    }
}

impl Node {
    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attr.iter().find(|a| a.name == name)
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.number()
    }

    /// A number that must be there, from 0 to below a limit.
    fn needed(&self, name: &str, limit: i64) -> Result<u64, String> {
        match self.number(name) {
            Some(n) if (0..limit).contains(&n) => Ok(n as u64),
            Some(n) => Err(format!("`{name}` is {n}, expected 0 to {}", limit - 1)),
            None => Err(format!("{} has no `{name}`", self.name)),
        }
    }

    fn is_on_host(&self) -> bool {
        let attribute = self.attribute("is_cpu_op").and_then(|a| a.bool);
        attribute.unwrap_or(false)
    }

    /// What it does, of so many ranks.
    fn work(&self, ranks: usize) -> Result<Work, String> {
        match self.kind {
            METADATA => Ok(Work::Calc { ns: 0 }),
            COMP => self.takes(),
            MEM_LOAD | MEM_STORE => Err(format!("{}: remote memory is not simulated", self.name)),
            SEND => Ok(Work::Send {
                to: self.needed("comm_dst", ranks as i64)? as u32,
                bytes: self.needed("comm_size", BYTES)?,
                tag: self.tag()?.unwrap_or(0),
            }),
            RECV => Ok(Work::Recv {
                from: Some(self.needed("comm_src", ranks as i64)? as u32),
                bytes: self.needed("comm_size", BYTES)?,
                tag: Some(self.tag()?.unwrap_or(0)),
            }),
            // PyTorch's call, which launches the collective that follows it on a stream.
            COLLECTIVE if self.is_on_host() && self.number("comm_type").is_none() => self.takes(),
            COLLECTIVE => self.collective(ranks as u64),
            kind => Err(format!("{} has type {kind}, expected 1 to 7", self.name)),
        }
    }

    /// Its time on its processor.
    fn takes(&self) -> Result<Work, String> {
        match self.duration_micros.checked_mul(1_000) {
            Some(ns) if ns < u64::MAX / 1_000_000 => Ok(Work::Calc { ns }),
            _ => Err(format!("{}: `duration_micros` is too long", self.name)),
        }
    }

    fn tag(&self) -> Result<Option<u32>, String> {
        // An int32, as Chakra's feeder has it, which takes it for one without a sign.
        let short = self.attribute("comm_tag").and_then(|a| a.int32);
        if let Some(tag) = short {
            return Ok(Some(tag as u32));
        }
        let tag = self.number("comm_tag").map(u32::try_from).transpose();
        tag.map_err(|_| "`comm_tag` is no number of 32 bits".into())
    }

    fn collective(&self, ranks: u64) -> Result<Work, String> {
        let kind = self.needed("comm_type", COLLECTIVES.len() as i64)?;
        let (name, kind) = COLLECTIVES[kind as usize];
        let Some(kind) = kind else {
            return Err(format!("{name} is not simulated"));
        };
        if kind == CollectiveKind::Barrier {
            return Ok(Work::Collective { kind, bytes: 0 });
        }
        let given = self.needed("comm_size", BYTES)?;
        // nccl-tests counts an all-gather by its result.
        let all = match kind {
            CollectiveKind::AllGather => given.saturating_mul(ranks),
            _ => given,
        };
        let unit = ELEMENT * if has_blocks(kind) { ranks } else { 1 };
        let bytes = all.max(1).div_ceil(unit).saturating_mul(unit);
        Ok(Work::Collective { kind, bytes })
    }
}

impl Schedule {
    /// Reads the traces of ranks 0, 1, ...: the name and the bytes of each file.
    ///
    /// # Errors
    /// [`ChakraError`]: no such file, a node that is not simulated, or dependencies that are not
    /// there or close a circle.
    pub fn from_chakra(files: &[(String, Vec<u8>)]) -> Result<Schedule, ChakraError> {
        let mut ranks = Vec::with_capacity(files.len());
        let mut groups: Vec<BTreeMap<String, u64>> = Vec::new();
        let mut count = 0;
        for (file, bytes) in files {
            let nodes = nodes_of(file, bytes)?;
            count += nodes.len();
            if count > NODES {
                let what = format!("more than {NODES} nodes, expected fewer");
                return Err(whole(file, what));
            }
            let mut of_rank = BTreeMap::new();
            let is_one = |n: &&Node| n.kind == COLLECTIVE && n.number("comm_type").is_some();
            for node in nodes.iter().filter(is_one) {
                let group = node.attribute("pg_name").and_then(|a| a.string.clone());
                *of_rank.entry(group.unwrap_or_default()).or_default() += 1;
            }
            groups.push(of_rank);
            ranks.push(ops(file, &nodes, files.len())?);
        }
        // A group of some ranks would need a communicator of theirs, which no file describes.
        let other = groups.iter().position(|g| Some(g) != groups.first());
        if let Some(rank) = other {
            let [first, other] = [&groups[0], &groups[rank]];
            let names = first.keys().chain(other.keys());
            let name = names.into_iter().find(|n| first.get(*n) != other.get(*n));
            let times =
                |g: &BTreeMap<String, u64>| name.and_then(|n| g.get(n)).copied().unwrap_or(0);
            let what = format!(
                "{} collectives of the process group `{}`, where rank 0 has {}: \
                 groups of some of the ranks are not simulated",
                times(other),
                name.map_or("", String::as_str),
                times(first)
            );
            return Err(whole(&files[rank].0, what));
        }
        Ok(Schedule::of(ranks))
    }
}

fn whole(file: &str, what: String) -> ChakraError {
    let (file, node) = (file.into(), None);
    ChakraError { file, node, what }
}

/// The nodes of a file.
fn nodes_of(file: &str, bytes: &[u8]) -> Result<Vec<Node>, ChakraError> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(whole(file, "compressed; run gunzip first".into()));
    }
    let mut rest = bytes;
    let mut next = || -> Result<Option<&[u8]>, String> {
        if rest.is_empty() {
            return Ok(None);
        }
        let at = bytes.len() - rest.len();
        let len = prost::encoding::decode_varint(&mut rest);
        let len = len.ok().filter(|n| *n <= MESSAGE.min(rest.len() as u64));
        let Some(len) = len else {
            return Err(format!("no message at byte {at}, or the file ends in it"));
        };
        let (message, after) = rest.split_at(len as usize);
        rest = after;
        Ok(Some(message))
    };
    let first = next().map_err(|what| whole(file, what))?;
    let meta = first.and_then(|m| GlobalMetadata::decode(m).ok());
    if meta.is_none() {
        let what = "no trace of Chakra: it does not begin with a `GlobalMetadata`";
        return Err(whole(file, what.into()));
    }
    let mut nodes = Vec::new();
    while let Some(message) = next().map_err(|what| whole(file, what))? {
        let node = Node::decode(message);
        nodes.push(node.map_err(|e| whole(file, format!("node {}: {e}", nodes.len())))?);
    }
    Ok(nodes)
}

/// The operations of a rank, in the order of its file.
fn ops(file: &str, nodes: &[Node], ranks: usize) -> Result<Vec<Op>, ChakraError> {
    let wrong = |node: &Node, what: String| ChakraError {
        file: file.into(),
        node: Some(node.id),
        what,
    };
    let mut places = BTreeMap::new();
    for (node, place) in nodes.iter().zip(0_u32..) {
        if places.insert(node.id, place).is_some() {
            return Err(wrong(node, "this `id` is there twice".into()));
        }
    }
    let mut streams = BTreeMap::new();
    let mut ops = Vec::with_capacity(nodes.len());
    for node in nodes {
        let work = node.work(ranks).map_err(|what| wrong(node, what))?;
        let mut others = Vec::new();
        for dep in node.ctrl_deps.iter().chain(&node.data_deps) {
            let Some(&op) = places.get(dep) else {
                return Err(wrong(
                    node,
                    format!("it depends on node {dep}, which is not there"),
                ));
            };
            others.push(op);
        }
        others.sort_unstable();
        others.dedup();
        let needs = others.into_iter().map(|op| Need { op, begin: false });
        let cpu = match work {
            Work::Calc { .. } if node.is_on_host() => 0,
            Work::Calc { .. } => {
                let next = streams.len() + 1;
                let stream = node.number("stream").unwrap_or(0);
                *streams.entry(stream).or_insert(next)
            }
            _ => usize::from(NETWORK),
        };
        let is_stream = matches!(work, Work::Calc { .. });
        if is_stream && cpu >= usize::from(NETWORK) {
            return Err(wrong(node, format!("more than {} streams", NETWORK - 1)));
        }
        ops.push(Op {
            label: Some(format!("{} {}", node.id, node.name).into()),
            line: 0,
            work,
            cpu: cpu as u8,
            needs: needs.collect(),
        });
    }
    if let Some(all) = circle(ops.len(), |i| &ops[i].needs) {
        let ids: Vec<_> = all
            .iter()
            .map(|i| nodes[*i as usize].id.to_string())
            .collect();
        let what = format!("dependencies in a circle: {}", ids.join(", "));
        return Err(whole(file, what));
    }
    Ok(ops)
}

/// Why a schedule is no trace of Chakra.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank}: {what}")]
pub struct NotChakra {
    /// The rank.
    pub rank: usize,
    /// What its traces cannot say.
    pub what: String,
}

impl Schedule {
    /// The file of each rank, as [`from_chakra`](Schedule::from_chakra) and Chakra's own tools read
    /// it. Processor 0 is the host's, others are streams.
    ///
    /// # Errors
    /// [`NotChakra`]: times that are no whole microseconds, receives from any rank or of any tag,
    /// and operations that wait for the begin of others.
    pub fn to_chakra(&self) -> Result<Vec<Vec<u8>>, NotChakra> {
        let ranks = self.ranks().len() as u64;
        let of_rank = |(rank, ops): (usize, &Vec<Op>)| {
            let version = "1.0.0".into();
            let mut file = GlobalMetadata { version }.encode_length_delimited_to_vec();
            for (op, id) in ops.iter().zip(0..) {
                let node = node_of(op, id, ranks);
                let node = node.map_err(|what| NotChakra { rank, what })?;
                file.extend(node.encode_length_delimited_to_vec());
            }
            Ok(file)
        };
        self.ranks().iter().enumerate().map(of_rank).collect()
    }
}

/// A node for an operation, or what it cannot say.
fn node_of(op: &Op, id: u64, ranks: u64) -> Result<Node, String> {
    let attribute = |name: &str| Attribute {
        name: name.into(),
        ..Attribute::default()
    };
    let short = |name, value: u32| Attribute {
        int32: Some(value as i32),
        ..attribute(name)
    };
    let long = |name, value: u64| Attribute {
        int64: Some(value as i64),
        ..attribute(name)
    };
    if op.needs.iter().any(|n| n.begin) {
        return Err(format!(
            "{op}: it waits for a begin, and nodes wait for ends"
        ));
    }
    let mut duration_micros = 0;
    let mut attr = vec![Attribute {
        bool: Some(op.cpu == 0 && matches!(op.work, Work::Calc { .. })),
        ..attribute("is_cpu_op")
    }];
    if op.cpu > 0 && matches!(op.work, Work::Calc { .. }) {
        attr.push(long("stream", op.cpu.into()));
    }
    let kind = match op.work {
        Work::Calc { ns } if ns % 1_000 == 0 => {
            duration_micros = ns / 1_000;
            COMP
        }
        Work::Calc { .. } => return Err(format!("{op}: no whole microseconds")),
        Work::Send { to, bytes, tag } => {
            attr.extend([
                short("comm_dst", to),
                long("comm_size", bytes),
                short("comm_tag", tag),
            ]);
            SEND
        }
        Work::Recv {
            from: Some(from),
            bytes,
            tag: Some(tag),
        } => {
            attr.extend([
                short("comm_src", from),
                long("comm_size", bytes),
                short("comm_tag", tag),
            ]);
            RECV
        }
        Work::Recv { .. } => return Err(format!("{op}: a node names sender and tag")),
        Work::Collective { kind, bytes } => {
            let known = COLLECTIVES.iter().position(|(_, k)| *k == Some(kind));
            let Some(number) = known else {
                return Err(format!("{op}: no collective of Chakra"));
            };
            let given = match kind {
                CollectiveKind::AllGather => bytes / ranks,
                _ => bytes,
            };
            attr.extend([long("comm_type", number as u64), long("comm_size", given)]);
            COLLECTIVE
        }
    };
    Ok(Node {
        id,
        name: op.label.as_deref().unwrap_or("op").into(),
        kind,
        ctrl_deps: Vec::new(),
        data_deps: op.needs.iter().map(|n| n.op.into()).collect(),
        duration_micros,
        attr,
    })
}
