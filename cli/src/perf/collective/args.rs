//! Arguments of a collective's measurement, and names in the form of the command line.

use ringbell::comm::{CollectiveKind, CollectiveSettings, HostRanks, WireType};
use ringbell::engines::{Place, Registry};
use ringbell::nic::{PortSpec, TransportSpec};
use ringbell::parts::nic_core::transport::Icrc;
use ringbell::parts::nic_core::ConfigError;
use ringbell::{Algorithm, DataType, ReduceOp};

use crate::report::{parse_size, OutputArgs, SweepArgs};
use crate::run::binding::BindTo;
use crate::run::mesh::NetworkArgs;

/// Arguments of `ringbell perf all-reduce` and the other collectives.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) sweep: SweepArgs,
    /// Ranks, each with a NIC and a GPU of its own [default: 2, or as many as a launcher has
    /// started]
    #[arg(short = 'R', long, visible_short_alias = 'g', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: Option<u32>,
    /// Type of the elements
    #[arg(short = 'd', long = "datatype", default_value = "f32", value_name = "f16|bf16|f32|f64|i8|i16|i32|i64|u8|u16|u32|u64", value_parser = dtype)]
    pub(crate) datatype: DataType,
    /// Reduction
    #[arg(short = 'o', long = "op", default_value = "sum", value_name = "sum|prod|min|max|and|or|xor", value_parser = redop)]
    pub(crate) op: ReduceOp,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long, default_value_t = 0, value_name = "RANK")]
    pub(crate) root: u32,
    /// Ranks are processes (the default; with the `local` transport as fast as threads)
    #[arg(long, conflicts_with = "threads")]
    pub(crate) procs: bool,
    /// Ranks are threads of this process
    #[arg(long)]
    pub(crate) threads: bool,
    /// What each rank's process binds itself to: `core` is a core of its own, for all its threads
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "none|core",
        conflicts_with = "threads"
    )]
    pub(crate) bind_to: BindTo,
    /// What carries the bytes: `local` from memory to memory on one host, `tcp`, `rdma` or `udp`
    /// (ACCL's: a lost packet ends the communicator) over the port, `iwarp` over the kernel's TCP,
    /// `auto` local first, then over port roce `rdma` on one host and `iwarp` to another host, and
    /// `tcp` over other ports
    #[arg(
        long,
        default_value = "auto",
        value_name = "auto|local|tcp|rdma|udp|iwarp"
    )]
    pub(crate) transport: TransportSpec,
    /// What carries the packets: `mem` an in-memory switch, `udp` VXLAN over UDP, `roce` the host's
    /// UDP, for rdma and udp, or its TCP, for iwarp, `none` [default: none; with --transport tcp,
    /// rdma or udp: mem; with iwarp: roce]
    #[arg(long, value_name = "none|mem|udp|roce")]
    pub(crate) port: Option<PortSpec>,
    #[command(flatten)]
    pub(crate) network: NetworkArgs,
    /// IP MTU of the port, in bytes [default: mem 9000; udp and roce what the ways to the other
    /// ranks carry]
    #[arg(long, value_name = "BYTES", value_parser = PortSpec::parse_mtu)]
    pub(crate) mtu: Option<u16>,
    /// The CRC of `rdma` and `iwarp`: `on`, `off` when all ranks say so, `auto` unless the ports
    /// share memory or are sockets of the loopback
    #[arg(long, default_value = "auto", value_name = "auto|on|off", value_parser = crate::open::icrc)]
    pub(crate) icrc: Icrc,
    /// Algorithm
    #[arg(long, default_value = "auto", value_name = "auto|direct|ring|recursive-doubling|all-gather-reduce|tree|flat|chain|linear|pairwise|hierarchical", value_parser = algo)]
    pub(crate) algo: Algorithm,
    /// Type that f32 elements have on the wire
    #[arg(long, default_value = "same", value_name = "same|bf16|f16", value_parser = wire)]
    pub(crate) wire: WireType,
    /// A thread of each NIC polls; who waits does not step it
    #[arg(long)]
    pub(crate) dedicated: bool,
    /// A kernel posts and waits, not the host
    #[arg(long)]
    pub(crate) from_kernel: bool,
    /// Engines at every rank's communicator, one behind the other, as in `checksum|hll:p=14`: taps
    /// only
    #[arg(long, value_name = "ENGINES", value_parser = engine)]
    pub(crate) engine: Option<String>,
    /// What the engines see: `input` and `output` each operation's source and result, `sent` and
    /// `received` the messages (none of which go directly then)
    #[arg(long, default_value = "output", value_name = "input|output|sent|received", value_parser = place, requires = "engine")]
    pub(crate) engine_at: Place,
    /// Source and destination are kernels' streams: a block of each rank's kernel pushes, another
    /// pops. For all-reduce, broadcast, reduce and send-recv
    #[arg(long, conflicts_with = "from_kernel")]
    pub(crate) streams: bool,
    /// Bytes of a stream's ring
    #[arg(long, default_value = "16K", value_name = "SIZE", requires = "streams", value_parser = parse_size)]
    pub(crate) ring: u64,
    /// Operations stand one behind the other in a stream of the GPU, and times are those of all by
    /// their number, as in nccl-tests. Without, the host posts one, waits for it, and times each
    #[arg(long, conflicts_with_all = ["streams", "from_kernel"])]
    pub(crate) queued: bool,
    /// A setting of the communicator, e.g. segment_bytes=64K or whole_sources=4K; may be given
    /// several times
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<Setting>,
    /// Print how a message of each size travels to another rank, and what each way would cost
    #[arg(long)]
    pub(crate) explain_protocol: bool,
    /// Do not measure first what this machine can do at best
    #[arg(long)]
    pub(crate) no_limits: bool,
    /// Time-out of each operation, in seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
    #[cfg(feature = "cuda")]
    #[command(flatten)]
    pub(crate) beside: super::beside::BesideArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// A name of the contract in the form of the command line.
pub(crate) fn spelled(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// A code of the contract by its name, in lower case and with hyphens.
fn by_name<T: Copy>(
    text: &str,
    what: &str,
    all: impl Iterator<Item = (T, &'static str)>,
) -> Result<T, String> {
    let mut names = Vec::new();
    for (value, name) in all {
        let name = spelled(name);
        if name == text {
            return Ok(value);
        }
        names.push(name);
    }
    let names = names.join(", ");
    Err(format!("`{text}` is not {what}; write one of {names}"))
}

pub(crate) fn dtype(text: &str) -> Result<DataType, String> {
    let all = DataType::ALL.iter().map(|d| (*d, d.name()));
    by_name(text, "a type of elements", all)
}

pub(crate) fn redop(text: &str) -> Result<ReduceOp, String> {
    let all = ReduceOp::ALL.iter().map(|o| (*o, o.name()));
    by_name(text, "a reduction", all)
}

pub(crate) fn algo(text: &str) -> Result<Algorithm, String> {
    let all = Algorithm::ALL.iter().filter(|a| **a != Algorithm::User);
    by_name(text, "an algorithm", all.map(|a| (*a, a.name())))
}

fn place(text: &str) -> Result<Place, String> {
    let all = [
        (Place::Input, "input"),
        (Place::Output, "output"),
        (Place::Sent, "sent"),
        (Place::Received, "received"),
    ];
    by_name(text, "a place of engines", all.into_iter())
}

/// A text that describes taps.
fn engine(text: &str) -> Result<String, String> {
    let made = Registry::builtin().make(text).map_err(|e| e.to_string())?;
    match made.is_tap() {
        true => Ok(text.into()),
        false => Err(format!(
            "`{text}` changes what passes, which operations cannot have; write taps, or give --wire bf16"
        )),
    }
}

fn wire(text: &str) -> Result<WireType, String> {
    let all = WireType::ALL.iter().map(|w| (*w, w.name()));
    by_name(text, "a wire type", all)
}

impl Args {
    /// Ranks that this command starts.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks.unwrap_or(2)
    }
}

pub(crate) fn name(kind: CollectiveKind) -> &'static str {
    use CollectiveKind as K;
    match kind {
        K::AllReduce => "all-reduce",
        K::ReduceScatter => "reduce-scatter",
        K::AllGather => "all-gather",
        K::Broadcast => "broadcast",
        K::Reduce => "reduce",
        K::AllToAll => "all-to-all",
        K::Gather => "gather",
        K::Scatter => "scatter",
        K::Barrier => "barrier",
        _ => "send-recv",
    }
}

/// `--set`: a name of [`CollectiveSettings::NAMES`], and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    name: String,
    value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Number(u64),
    /// Of `host_ranks`: the ranks of each host.
    Hosts(HostRanks),
}

impl Setting {
    /// Sets it among the others.
    ///
    /// # Errors
    /// As [`CollectiveSettings::set`].
    pub(crate) fn apply(&self, settings: &mut CollectiveSettings) -> Result<(), ConfigError> {
        match &self.value {
            Value::Number(value) => settings.set(&self.name, *value)?,
            Value::Hosts(hosts) => settings.host_ranks = hosts.clone(),
        }
        Ok(())
    }
}

/// Reads one.
pub(crate) fn setting(text: &str) -> Result<Setting, String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not NAME=VALUE"))?;
    let value = match name == "host_ranks" && value.contains(',') {
        true => Value::Hosts(value.parse()?),
        false => Value::Number(parse_size(value)?),
    };
    let name = name.to_string();
    let setting = Setting { name, value };
    // Name and value, each by itself; together they are checked when the communicator is made.
    let applied = setting.apply(&mut CollectiveSettings::default());
    applied.map_err(|e| e.why)?;
    Ok(setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_taps_at_a_place() {
        assert_eq!(place("sent"), Ok(Place::Sent));
        assert!(place("middle").expect_err("no place").contains("input"));
        assert!(engine("checksum|hll:p=10").is_ok());
        let e = engine("cast:f32-bf16").expect_err("not a tap");
        assert!(e.contains("--wire"), "{e}");
        assert!(engine("sha").expect_err("unknown").contains("checksum"));
    }

    #[test]
    fn names_are_those_of_the_contract() {
        assert_eq!(dtype("bf16"), Ok(DataType::Bf16));
        assert_eq!(algo("recursive-doubling"), Ok(Algorithm::RecursiveDoubling));
        assert_eq!(wire("f16"), Ok(WireType::F16));
        let e = redop("avg").expect_err("there is none");
        assert!(e.contains("sum, prod, min, max"), "{e}");
    }

    #[test]
    fn a_setting_is_a_name_and_a_value() {
        let s = setting("segment_bytes=64K").expect("a setting");
        let value = Value::Number(64 << 10);
        assert_eq!((s.name.as_str(), s.value), ("segment_bytes", value));
        let s = setting("host_ranks=3,2,4").expect("hosts");
        let mut settings = CollectiveSettings::default();
        s.apply(&mut settings).expect("valid");
        assert_eq!(settings.host_ranks, HostRanks::of_sizes(&[3, 2, 4]));
        assert!(setting("host_ranks=3,,4").is_err() && setting("segment_bytes=3,4").is_err());
        for (wrong, why) in [
            ("segment_bytes", "NAME=VALUE"),
            ("segment=1", "segment_bytes"),
            ("direct=2", "neither 0"),
            ("eager_max=lots", "lots"),
        ] {
            let e = setting(wrong).expect_err(wrong);
            assert!(e.contains(why), "{wrong}: {e}");
        }
    }
}
