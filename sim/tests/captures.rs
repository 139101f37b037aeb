//! Captures of links: they repeat byte by byte, show both directions, and change nothing.

use std::time::Duration;

use pcap_file::pcapng::{Block, PcapNgReader};
use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_sim::{run, run_watched, Cluster, Failure, Plan, Profile, Watch};

use crate::bytes::Bytes;

fn plan() -> Plan {
    let profile = Profile::by_name("ideal").expect("it exists");
    let cluster = Cluster {
        loss: 0.01,
        seed: 5,
        ..Cluster::new(3, profile)
    };
    Plan {
        sizes: vec![1 << 10, 256 << 10],
        algo: Algorithm::Ring,
        ..Plan::new(CollectiveKind::AllReduce, cluster, 0)
    }
}

/// Time, whether the NIC sent it, and length of each frame.
fn frames(bytes: &[u8]) -> Vec<(Duration, bool, usize)> {
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption as Field;
    let mut reader = PcapNgReader::new(bytes).expect("a header");
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a block") {
            let out = packet.options.contains(&Field::Flags(2));
            assert!(out || packet.options.contains(&Field::Flags(1)));
            frames.push((packet.timestamp, out, packet.data.len()));
        }
    }
    frames
}

#[test]
fn a_capture_repeats_and_leaves_the_run_as_it_is() {
    let captured = || {
        let (one, two) = (Bytes::default(), Bytes::default());
        let watch = Watch::default().capture(0, one.clone());
        let report = run_watched(&plan(), watch.capture(2, two.clone()));
        (report.expect("it ends"), one.all(), two.all())
    };
    let first = captured();
    assert_eq!(captured(), first);
    let (report, one, two) = first;
    assert_ne!(one, two);
    assert_eq!(run(&plan()).expect("it ends"), report);
}

#[test]
fn captures_of_all_ranks_have_every_frame_that_was_sent() {
    let files = [(); 3].map(|()| Bytes::default());
    let mut watch = Watch::default();
    for (rank, file) in files.iter().enumerate() {
        watch = watch.capture(rank, file.clone());
    }
    let report = run_watched(&plan(), watch).expect("it ends");
    let all: Vec<_> = files.iter().map(|f| frames(&f.all())).collect();
    let sent: usize = all.iter().map(|f| f.iter().filter(|f| f.1).count()).sum();
    assert_eq!(sent as u64, report.counts.packets);
    assert!(report.counts.lost > 0, "{report:?}");
    for frames in &all {
        assert!(frames.is_sorted_by_key(|f| f.0));
        let last = frames.last().expect("a frame").0;
        // NICs are told whole nanoseconds, rounded up.
        assert!(
            last.as_nanos() as u64 <= report.counts.virtual_ns + 1,
            "{last:?}"
        );
        let heard = frames.iter().filter(|f| !f.1).count();
        assert!(heard > 0 && frames.iter().any(|f| f.2 > 4_000));
    }
}

#[test]
fn a_rank_that_is_not_there_cannot_be_captured() {
    let done = run_watched(&plan(), Watch::default().capture(3, Bytes::default()));
    let (rank, ranks) = (3, 3);
    assert_eq!(done, Err(Failure::Captured { rank, ranks }));
}
