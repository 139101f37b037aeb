//! The JSON object of a measurement. Every `ringbell perf` keeps this schema; fields are added,
//! never renamed or removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{machine, Busy};

/// One measurement: what ran, where, and its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What ran, and where.
    pub meta: Meta,
    /// One row for each size (or each value of the parameter that was swept).
    pub rows: Vec<Row>,
}

/// What ran, and where. A number never stands without it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of Ringbell.
    pub version: String,
    /// Commit it was built from; `unknown` outside a git checkout.
    pub commit: String,
    /// Cargo's profile that it was built by: `dist` for published figures, `release`, `dev`; empty
    /// in older reports.
    #[serde(default)]
    pub profile: String,
    /// Name of the benchmark: `send-bw`.
    pub benchmark: String,
    /// Processor and kernel.
    pub machine: String,
    /// Cores this process may run on.
    pub cores: usize,
    /// NIC backend: `soft`, `rtl`, `pcie`; `none` when no NIC took part.
    pub nic: String,
    /// GPU: `emulated`, or its name; `none` when no GPU took part.
    pub gpu: String,
    /// Port: `mem`, `udp`, `tap:NAME`; `none`.
    pub port: String,
    /// Transport: `local`, `tcp`; `none`.
    pub transport: String,
    /// Who stepped the NIC: `waiter`, `thread` (a parked one of the NIC), `dedicated`; `none`.
    pub progress: String,
    /// How payload went between two NICs of this machine, seen from the one that measures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Payload>,
    /// Name of `rows[].parameter`, when something other than the size was swept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// Ranks, for a collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Description of the run and of its caller (host or kernel), in words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Peers that ran beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
    /// The machine's best values, measured in the same run.
    pub limits: Limits,
    /// Use of the cores during the run; none for a run too short to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
}

impl Meta {
    /// Meta data of a benchmark without NIC and GPU; a benchmark that uses them fills in theirs.
    pub fn new(benchmark: &str) -> Meta {
        let none = || "none".to_string();
        Meta {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: env!("RINGBELL_COMMIT").into(),
            profile: env!("RINGBELL_PROFILE").into(),
            benchmark: benchmark.into(),
            machine: machine::description(),
            cores: machine::cores().len().max(1),
            nic: none(),
            gpu: none(),
            port: none(),
            transport: none(),
            progress: none(),
            payload: None,
            parameter: None,
            ranks: None,
            notes: Vec::new(),
            peers: Vec::new(),
            limits: Limits::default(),
            busy: None,
        }
    }
}

/// A peer of a measurement: another library, which did the same in the same run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name: `NCCL`.
    pub name: String,
    /// Its version; none when it was not found.
    pub version: Option<String>,
    /// The file that it was loaded from.
    pub library: Option<String>,
    /// Variables of its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// Why rows are missing, if some are.
    pub why: Option<String>,
    /// One row for each size that it has done.
    pub rows: Vec<Row>,
}

/// Which way payload went between two NICs of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// `mapped`: copied out of memory that both NICs map. `staged`: through NIC memory.
    pub way: String,
    /// Bytes that this NIC has sent.
    pub sent_bytes: u64,
    /// Those of them that were staged.
    pub staged_bytes: u64,
    /// Bytes that the memory's own engine copied inside it, past host and NIC memory.
    pub direct_bytes: u64,
}

/// The machine's best values, measured in the same run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// One-copy memcpy of one thread, 10^9 payload bytes per second, at the largest size measured.
    pub memcpy_gbs: Option<f64>,
    /// The same by size in bytes: buffers of this size, copied again and again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memcpy_gbs_by_size: BTreeMap<u64, f64>,
    /// Half round trip between two cores over two cache lines, in nanoseconds; none on one core.
    pub cacheline_pingpong_ns: Option<f64>,
    /// Plain UDP sockets over the loopback with segmentation offload, one way, 10^9 bytes per
    /// second; where port `roce` is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_gbs: Option<f64>,
    /// The same both ways at once, each of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_each_way_gbs: Option<f64>,
    /// The same one way without offload, a call for each packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_by_packet_gbs: Option<f64>,
    /// Half round trip of 8 bytes between two plain UDP sockets, in nanoseconds; where port `roce`
    /// is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_pingpong_ns: Option<f64>,
}

impl Limits {
    /// memcpy of exactly this size, when it was measured.
    pub fn memcpy_at(&self, size_bytes: u64) -> Option<f64> {
        self.memcpy_gbs_by_size.get(&size_bytes).copied()
    }
}

/// One line of the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Which of several curves the row belongs to: `kernel`, `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Value of what was swept besides the size; `meta.parameter` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<f64>,
    /// Bytes of one message.
    pub size_bytes: u64,
    /// Operations that were timed: messages of a stream, calls of a collective.
    pub count: u64,
    /// Elements of one operation, for a collective: as many as a program passes to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elements: Option<u64>,
    /// Mean time of one message, microseconds (for latencies: half a round trip).
    pub time_us: f64,
    /// Median, microseconds. Where messages are in flight together (`send-bw`), of the mean time of
    /// a message in each window, so that it compares with `time_us`.
    pub p50_us: f64,
    /// 99th percentile, microseconds, of the same.
    pub p99_us: f64,
    /// Payload over time, 10^9 bytes per second.
    pub algbw_gbs: f64,
    /// Bandwidth that the wire carried, 10^9 bytes per second; equals `algbw_gbs` point to point.
    pub busbw_gbs: f64,
    /// An engine on the path: its speed alone, 10^9 bytes per second; `algbw_gbs` is the stream
    /// through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_gbs: Option<f64>,
    /// The same stream without the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_gbs: Option<f64>,
    /// The same stream counted by a kernel of the GPU instead of an engine; `meta.gpu` says which
    /// GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_gbs: Option<f64>,
    /// Wrong bytes found; none when data was not checked.
    pub wrong: Option<u64>,
}

impl Report {
    /// A report without rows.
    pub fn new(benchmark: &str) -> Report {
        Report {
            meta: Meta::new(benchmark),
            rows: Vec::new(),
        }
    }

    /// Wrong bytes in all rows.
    pub fn wrong(&self) -> u64 {
        self.rows.iter().filter_map(|r| r.wrong).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names that other programs rely on.
    #[test]
    fn schema_keeps_its_names() {
        let report = Report {
            meta: Meta::new("send-bw"),
            rows: vec![Row::default()],
        };
        let json = serde_json::to_value(&report).expect("a report has only plain values");
        for key in [
            "version",
            "commit",
            "profile",
            "machine",
            "cores",
            "nic",
            "gpu",
            "port",
            "transport",
            "progress",
        ] {
            assert!(!json["meta"][key].is_null(), "meta.{key}");
        }
        let limits = json["meta"]["limits"].as_object().expect("an object");
        assert!(limits.contains_key("memcpy_gbs") && limits.contains_key("cacheline_pingpong_ns"));
        let row = json["rows"][0].as_object().expect("an object");
        for key in [
            "size_bytes",
            "count",
            "time_us",
            "p50_us",
            "p99_us",
            "algbw_gbs",
            "busbw_gbs",
            "wrong",
        ] {
            assert!(row.contains_key(key), "rows[].{key}");
        }
        let back: Report = serde_json::from_value(json).expect("reads what it wrote");
        assert_eq!(back, report);
    }
}
