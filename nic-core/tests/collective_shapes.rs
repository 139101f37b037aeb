//! Every shape of a collective ends: no ranks deadlock, for any scarce resource.
//!
//! The checker proves it of the programs and of what the executor holds. Here the executor runs
//! them: every collective, algorithm and number of ranks, with messages converted and as they are,
//! with buffers for messages that come early, with one, and with none.

use crate::collective_support;

use collective_support::{Call, Wire, World};
use ringbell_nic_abi::{Algorithm, CollectiveKind, Status, WireType};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_onc_engines::program::algorithms;

/// Runs every shape for these ranks; returns those that did not end well.
fn stuck(ranks: usize, settings: &CollectiveSettings, counts: &[u64]) -> Vec<String> {
    let mut w = World::new(ranks, Wire::Local, settings);
    let (mut out, mut ctx) = (Vec::new(), 7);
    let all: Vec<usize> = (0..ranks).collect();
    for kind in CollectiveKind::ALL {
        let over_messages = algorithms(*kind)
            .iter()
            .filter(|a| **a != Algorithm::Direct);
        for algo in over_messages {
            for wire in [WireType::Same, WireType::Bf16] {
                for count in counts {
                    let call = Call::new(*kind, *count).algo(*algo).wire(wire);
                    let ends = w.call(&call.root(ranks as u32 - 1).within(1_000_000));
                    if ends.iter().all(|c| c.status == Status::Ok) {
                        continue;
                    }
                    let status = ends[0].status;
                    out.push(format!(
                        "{kind:?} {algo:?} {ranks} ranks {wire:?} count {count} eager_max {} eager_buffers {}: {status:?}",
                        settings.eager_max, settings.eager_buffers
                    ));
                    ctx += 1;
                    w.comms = w.communicator(ctx, &all, settings);
                }
            }
        }
    }
    out
}

/// Settings under which something is scarce. A chunk of a few elements is several segments.
fn scarce() -> Vec<CollectiveSettings> {
    let base = CollectiveSettings {
        direct: false,
        segment_bytes: 64,
        ..CollectiveSettings::default()
    };
    [(0, 1, 1), (64, 1, 2), (8 << 10, 16, 4)]
        .map(
            |(eager_max, eager_buffers, segments_in_flight)| CollectiveSettings {
                eager_max,
                eager_buffers,
                segments_in_flight,
                ..base.clone()
            },
        )
        .into()
}

fn search(ranks: impl Iterator<Item = usize>, counts: &[u64]) {
    let mut all = Vec::new();
    for ranks in ranks {
        for settings in scarce() {
            all.extend(stuck(ranks, &settings, counts));
        }
    }
    assert!(all.is_empty(), "{} shapes:\n{}", all.len(), all.join("\n"));
}

#[test]
fn no_shape_waits_for_itself() {
    search([2, 3, 4, 7, 8, 11, 16].into_iter(), &[37]);
}

/// All numbers of ranks up to 16, and lengths of a part of a chunk to several segments of each.
#[test]
#[ignore = "takes a minute; the search above has the numbers of ranks at which something changes"]
fn no_shape_of_any_length_waits_for_itself() {
    search(2..=16, &[0, 1, 15, 37, 600]);
}
