//! Figures of papers whose text states a number: what they measure, and what the text says; and
//! those of the hardware blocks that docs/results/hw has.
//!
//! A point has a number of the paper where its text, a table or a label states one. Nothing is
//! read off a picture.

use ringbell::comm::CollectiveKind;
use ringbell::Algorithm;

/// A figure of a paper.
#[derive(Debug)]
pub(super) struct Figure {
    /// As the command line names it.
    pub(super) name: &'static str,
    /// Its paper.
    pub(super) paper: &'static str,
    /// Its number, and what it shows.
    pub(super) title: &'static str,
    /// The built-in profile of the paper's cluster.
    pub(super) profile: &'static str,
    /// What runs.
    pub(super) work: Work,
    /// From left to right.
    pub(super) points: &'static [Point],
    /// The paper's sentence with its section, and what is taken from it.
    pub(super) stated: &'static str,
    /// Why ours differs, where it does by more than [`WIDE`](super::measure::WIDE).
    pub(super) differs: &'static str,
}

/// What is measured at each point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Work {
    /// Bus bandwidth of a collective.
    BusBandwidth(CollectiveKind, Algorithm),
    /// Time of a collective.
    Time(CollectiveKind, Algorithm),
    /// Bandwidth of one message from rank 0.
    Message,
    /// Time of a message from rank 0 and of one back.
    RoundTrip,
    /// Half of that.
    Latency,
}

/// A point of a figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) ranks: usize,
    /// The network of NICs that forward; none: one switch.
    pub(super) topology: Option<&'static str>,
    /// The rank to which messages go.
    pub(super) to: usize,
    pub(super) bytes: u64,
    /// The paper's number there, in the unit of the figure's work.
    pub(super) theirs: Option<f64>,
}

/// A figure that is not repeated.
#[derive(Debug)]
pub(super) struct Left {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
}

const fn ours(ranks: usize, bytes: u64) -> Point {
    Point {
        ranks,
        topology: None,
        to: 1,
        bytes,
        theirs: None,
    }
}

const fn both(ranks: usize, bytes: u64, theirs: f64) -> Point {
    Point {
        theirs: Some(theirs),
        ..ours(ranks, bytes)
    }
}

/// By so many hops of SMI's eight boards in a line.
const fn hops(to: usize, point: Point) -> Point {
    Point {
        to,
        ..over("bus:8", point)
    }
}

/// The same over NICs that forward for each other.
const fn over(topology: &'static str, point: Point) -> Point {
    Point {
        topology: Some(topology),
        ..point
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Line rate of 100 Gb/s, in GB/s.
const LINE: f64 = 12.5;

const HARDWARE: &str = "hardware blocks (docs/results/hw)";

/// 91% of 35 Gb/s, in GB/s.
const SMI_PEAK: f64 = 0.91 * 35.0 / 8.0;

/// All that are repeated.
pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "fpganic-5a",
        paper: "FpgaNIC (ATC 2022)",
        title: "Figure 5a: round trip by the size of the message",
        profile: "fpganic",
        work: Work::RoundTrip,
        points: &[
            both(2, 64, 3.1),
            both(2, 256, 3.1),
            both(2, 512, 3.1),
            ours(2, 4 * KIB),
            ours(2, 16 * KIB),
            ours(2, 64 * KIB),
        ],
        stated: "§3.2.2: \"For messages smaller than 1 KB, the RTT latency (roughly 3.1us) is dominated by the physical communication path (the Ethernet switch introduces an additional hop with roughly 1us latency)\"",
        differs: "the profile has 1 us for each way through the switch; the text gives no time for cables, transceivers and network stacks, which take the rest",
    },
    Figure {
        name: "fpganic-5b",
        paper: "FpgaNIC (ATC 2022)",
        title: "Figure 5b: throughput of 1 GB in packets of 1,500 bytes",
        profile: "fpganic",
        work: Work::Message,
        points: &[ours(2, 16 * MIB), ours(2, 128 * MIB), both(2, 1024 * MIB, LINE)],
        stated: "§3.2.2: for larger packets \"the achievable throughput is close to the 100Gbps channel capacity\"; taken as 100 Gb/s",
        differs: "",
    },
    Figure {
        name: "fpganic-7",
        paper: "FpgaNIC (ATC 2022)",
        title: "Figure 7: all-reduce of eight nodes by size",
        profile: "fpganic",
        work: Work::BusBandwidth(CollectiveKind::AllReduce, Algorithm::Ring),
        points: &[
            ours(8, 64 * KIB),
            ours(8, 256 * KIB),
            ours(8, MIB),
            ours(8, 4 * MIB),
            both(8, 16 * MIB, LINE),
            both(8, 64 * MIB, LINE),
        ],
        stated: "§3.4: \"FpgaNIC reaches the theoretical bus bandwidth when the data size is larger than 8MB\"; taken as 100 Gb/s at 16 and 64 MB",
        differs: "",
    },
    Figure {
        name: "fpganic-8",
        paper: "FpgaNIC (ATC 2022)",
        title: "Figure 8: all-reduce of 64 MB by the number of nodes",
        profile: "fpganic",
        work: Work::BusBandwidth(CollectiveKind::AllReduce, Algorithm::Ring),
        points: &[
            ours(2, 64 * MIB),
            ours(3, 64 * MIB),
            ours(4, 64 * MIB),
            ours(5, 64 * MIB),
            ours(6, 64 * MIB),
            ours(7, 64 * MIB),
            both(8, 64 * MIB, LINE),
        ],
        stated: "§3.4: FpgaNIC and NCCL \"reach the theoretical bus bandwidth with an increasing number of nodes\"; taken as 100 Gb/s at 8 nodes",
        differs: "",
    },
    Figure {
        name: "rtl-5a",
        paper: HARDWARE,
        title: "Fig. 5a: round trip by the size of the message",
        profile: "rtl",
        work: Work::RoundTrip,
        points: &[
            both(2, 64, 3.38),
            both(2, 512, 3.49),
            both(2, 2 * KIB, 3.88),
            both(2, 8 * KIB, 5.41),
            both(2, 32 * KIB, 11.56),
            both(2, 64 * KIB, 19.75),
        ],
        stated: "Fig. 5a: GPU to GPU and back, of two simulated `nic_top`",
        differs: "the wire of the hardware's simulations passes a segment of up to 64 KiB on when it is whole; packets here have 9 KB at most",
    },
    Figure {
        name: "rtl-7",
        paper: HARDWARE,
        title: "Fig. 7: all-reduce of eight NICs by size",
        profile: "rtl",
        work: Work::BusBandwidth(CollectiveKind::AllReduce, Algorithm::Ring),
        points: &[
            both(8, 16 * KIB, 1.73),
            both(8, 64 * KIB, 6.57),
            both(8, 256 * KIB, 13.42),
            both(8, MIB, 15.33),
            both(8, 4 * MIB, 15.66),
        ],
        stated: "Fig. 7: a ring of eight simulated `nic_top`, in one part up to 256 KiB, then in four",
        differs: "the block `ring` forwards partial results from the card's memory (30 cycles), and each frame here is fetched as from the GPU's (200); the NIC's messages, heads and acknowledgements besides",
    },
    Figure {
        name: "accl-6",
        paper: "ACCL (H2RC 2021)",
        title: "Figure 6: throughput of send and receive by size",
        profile: "accl",
        work: Work::Message,
        points: &[
            ours(2, 64 * KIB),
            ours(2, 256 * KIB),
            ours(2, MIB),
            ours(2, 4 * MIB),
            ours(2, 16 * MIB),
            both(2, 32 * MIB, 76.0 / 8.0),
        ],
        stated: "§VI-C1: \"ACCL delivers a higher peak throughput (76 Gbps)\"; taken for the longest message, 32 MB (§VI-A)",
        differs: "ACCL keeps what it receives in spare buffers of the card's memory and copies it from there (§V-A), and its controller is busy with each segment; the profile has no time for either",
    },
    Figure {
        name: "accl-8",
        paper: "ACCL (H2RC 2021)",
        title: "Figure 8: all-reduce of 8 MB by the number of ranks",
        profile: "accl",
        work: Work::Time(CollectiveKind::AllReduce, Algorithm::Ring),
        points: &[
            ours(3, 8 * MIB),
            ours(4, 8 * MIB),
            ours(5, 8 * MIB),
            ours(6, 8 * MIB),
            ours(7, 8 * MIB),
            ours(8, 8 * MIB),
        ],
        stated: "§VI-C3: \"we expect very little increase in runtime with increase in scale, which is what we observe\"; no time is stated",
        differs: "",
    },
    Figure {
        name: "acclplus-8",
        paper: "ACCL+ (OSDI 2024)",
        title: "Figure 8: throughput of send and receive by size",
        profile: "acclplus",
        work: Work::Message,
        points: &[
            ours(2, 64 * KIB),
            ours(2, 256 * KIB),
            ours(2, MIB),
            ours(2, 4 * MIB),
            ours(2, 16 * MIB),
            both(2, 64 * MIB, 95.0 / 8.0),
        ],
        stated: "§5: \"ACCL+ with RDMA achieves a peak throughput of 95 Gb/s\"; taken for the longest message here, as the text names no size",
        differs: "",
    },
    Figure {
        name: "acclplus-13-8k",
        paper: "ACCL+ (OSDI 2024)",
        title: "Figure 13: reduce of 8 KB by the number of ranks",
        profile: "acclplus",
        work: Work::Time(CollectiveKind::Reduce, Algorithm::Flat),
        points: &[
            ours(2, 8 * KIB),
            ours(3, 8 * KIB),
            ours(4, 8 * KIB),
            ours(5, 8 * KIB),
            ours(6, 8 * KIB),
            ours(7, 8 * KIB),
            ours(8, 8 * KIB),
        ],
        stated: "§5: all send to one, \"resulting in minimal latency increase across nodes\"; no time is stated",
        differs: "",
    },
    Figure {
        name: "acclplus-13-128k",
        paper: "ACCL+ (OSDI 2024)",
        title: "Figure 13: reduce of 128 KB by the number of ranks",
        profile: "acclplus",
        work: Work::Time(CollectiveKind::Reduce, Algorithm::Tree),
        points: &[
            ours(2, 128 * KIB),
            ours(3, 128 * KIB),
            ours(4, 128 * KIB),
            ours(5, 128 * KIB),
            ours(6, 128 * KIB),
            ours(7, 128 * KIB),
            ours(8, 128 * KIB),
        ],
        stated: "§5: by a binary tree, \"an increase in latency is observed after four nodes, stabilizing until eight nodes due to a consistent tree depth\"; no time is stated",
        differs: "",
    },
    Figure {
        name: "smi-9",
        paper: "SMI (SC 2019)",
        title: "Figure 9: bandwidth by size and hops",
        profile: "smi",
        work: Work::Message,
        points: &[
            hops(1, ours(8, 4 * KIB)),
            hops(1, ours(8, 64 * KIB)),
            hops(1, ours(8, MIB)),
            hops(1, both(8, 16 * MIB, SMI_PEAK)),
            hops(4, ours(8, 4 * KIB)),
            hops(4, ours(8, 64 * KIB)),
            hops(4, ours(8, MIB)),
            hops(4, both(8, 16 * MIB, SMI_PEAK)),
            hops(7, ours(8, 4 * KIB)),
            hops(7, ours(8, 64 * KIB)),
            hops(7, ours(8, MIB)),
            hops(7, both(8, 16 * MIB, SMI_PEAK)),
        ],
        stated: "§5.3.1: \"SMI approaches 91% of the peak bandwidth offered by the QSFP connection, which is 35 Gbit/s\" of payload, and \"larger network distance\" \"does not affect\" it; taken for the longest message here, as the text names no size",
        differs: "",
    },
    Figure {
        name: "smi-10",
        paper: "SMI (SC 2019)",
        title: "Figure 10: broadcast over a torus and a line, copied in transit where it is long",
        profile: "smi",
        work: Work::Time(CollectiveKind::Broadcast, Algorithm::Flat),
        points: SMI_NETWORKS,
        stated: "§5.3.4: \"SMI achieves similar performance independently of the considered connection topology\"; no time is stated",
        differs: "",
    },
    Figure {
        name: "smi-11",
        paper: "SMI (SC 2019)",
        title: "Figure 11: reduce over a torus and a line, all to the root as in SMI (§4.4)",
        profile: "smi",
        work: Work::Time(CollectiveKind::Reduce, Algorithm::Flat),
        points: SMI_NETWORKS,
        stated: "§5.3.4: the flow control \"is latency sensitive, therefore the time to completion increases with the diameter of the network\"; no time is stated",
        differs: "",
    },
    Figure {
        name: "smi-11-tree",
        paper: "SMI (SC 2019)",
        title: "Figure 11: the same by a tree, added up in transit where it is long",
        profile: "smi",
        work: Work::Time(CollectiveKind::Reduce, Algorithm::Tree),
        points: SMI_NETWORKS,
        stated: "§5.3.4: SMI \"does not yet implement tree-based collectives, resulting in a higher congestion in the root rank\"; no time is stated",
        differs: "",
    },
    Figure {
        name: "smi-table-3",
        paper: "SMI (SC 2019)",
        title: "Table 3: latency of a small message by hops",
        profile: "smi",
        work: Work::Latency,
        points: &[
            hops(1, both(8, 8, 0.801)),
            hops(4, both(8, 8, 2.896)),
            hops(7, both(8, 8, 5.103)),
        ],
        stated: "§5.3.2, Table 3; the profile's delay of a link is the step from 1 to 4 hops, so what is compared is the rest of 1 hop, and the step to 7",
        differs: "",
    },
];

/// The networks of SMI's collectives, with sizes of ours.
const SMI_NETWORKS: &[Point] = &[
    over("torus:2x2", ours(4, KIB)),
    over("torus:2x2", ours(4, 64 * KIB)),
    over("torus:2x2", ours(4, MIB)),
    over("bus:4", ours(4, KIB)),
    over("bus:4", ours(4, 64 * KIB)),
    over("bus:4", ours(4, MIB)),
    over("torus:2x4", ours(8, KIB)),
    over("torus:2x4", ours(8, 64 * KIB)),
    over("torus:2x4", ours(8, MIB)),
    over("bus:8", ours(8, KIB)),
    over("bus:8", ours(8, 64 * KIB)),
    over("bus:8", ours(8, MIB)),
];

const NO_NUMBER: &str = "the text has no number of it";
const NO_COSTS: &str = "the text has the time of no stage (device to host, host to host, host to device), only shares of a total: §4.2.4";

/// Those that are not, and why.
pub(super) const LEFT: &[Left] = &[
    Left {
        name: "fpganic-3",
        why: "reads of registers over PCIe, which is no message of a network; the text says \"under 1 microsecond\" (§3.2.1)",
    },
    Left {
        name: "fpganic-4",
        why: "transfers over PCIe, which have no rate here; the text says 12.6 GB/s from an A100 (§3.2.1), 10.6 GB/s from a Quadro (§A.1)",
    },
    Left {
        name: "fpganic-6",
        why: "throughput by slots of a GPU's buffer and by launches of kernels, which take no time here; the text has no number (§3.3)",
    },
    Left {
        name: "acclplus-9",
        why: NO_NUMBER,
    },
    Left {
        name: "acclplus-10",
        why: NO_NUMBER,
    },
    Left {
        name: "acclplus-11",
        why: NO_NUMBER,
    },
    Left {
        name: "acclplus-12",
        why: NO_NUMBER,
    },
    Left {
        name: "acclplus-14",
        why: NO_NUMBER,
    },
    Left {
        name: "acclplus-17",
        why: "a product of matrix and vector on processors, which takes no time here; its numbers stand on bars alone",
    },
    Left {
        name: "acclplus-18",
        why: "a model's layers on FPGAs, which take no time here; the text says \"two orders of magnitude\" (§6.2)",
    },
    Left {
        name: "fpga-mpi-6",
        why: "transfers inside a host, and the text has no number of them (§4.2.1)",
    },
    Left {
        name: "fpga-mpi-8",
        why: NO_COSTS,
    },
    Left {
        name: "fpga-mpi-10",
        why: "transfers inside a host; the text says 25% and 33% less latency, and no time (§4.2.4)",
    },
    Left {
        name: "fpga-mpi-11",
        why: NO_COSTS,
    },
    Left {
        name: "smi-table-4",
        why: "cycles of a router inside an FPGA, which are none here; docs/results/hw has those of the block `router`",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_numbers_have_a_sentence_with_a_section() {
        let figures = FIGURES.iter().map(|f| f.name);
        let names: Vec<_> = figures.chain(LEFT.iter().map(|l| l.name)).collect();
        let unique: HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(!unique.contains(&"all"));
        for f in FIGURES {
            let place = if f.profile == "rtl" { "Fig. " } else { "§" };
            assert!(f.stated.starts_with(place), "{}", f.name);
            assert!(!f.points.is_empty(), "{}", f.name);
        }
    }

    /// The page is written by `cargo xtask hw figures --update`, and may change.
    #[test]
    fn numbers_of_the_hardware_are_those_of_its_page() {
        let page = include_str!("../../../../docs/results/hw/README.md");
        for f in FIGURES.iter().filter(|f| f.paper == HARDWARE) {
            let (mark, _) = f.title.split_once(':').expect("a number and a colon");
            let (_, section) = page.split_once(&format!("## {mark}:")).expect(mark);
            for p in f.points {
                let begin = format!("| {} |", p.bytes);
                let row = section.lines().find(|l| l.starts_with(&begin));
                let theirs = p.theirs.expect("its simulation has each point");
                let cell = format!(" {theirs:.2} |");
                assert!(
                    row.is_some_and(|r| r.contains(&cell)),
                    "{begin}{cell} {row:?}"
                );
            }
        }
    }
}
