//! Random sequences of one-sided operations over `local`, `iwarp`, and `rdma` on bad wires, against
//! a plain model of memory. The fuzz target `one_sided` runs the same.

use crate::meshes_one_sided;
use crate::nic_support;
#[path = "nic_support/sequences.rs"]
mod sequences;

use nic_support::Via;
use ringbell_gtlb::testing::Rng;

fn random(via: Via, rounds: u64) {
    for seed in 0..rounds {
        let mut rng = Rng::new(seed);
        let records = rng.below(120) as usize;
        let bytes = rng.bytes(4 + 8 * records);
        sequences::run(via, &bytes);
    }
}

#[test]
fn sequences_over_local_end_as_in_a_plain_memory() {
    random(Via::Local, 80);
}

#[test]
fn sequences_over_rdma_on_bad_wires_end_as_in_a_plain_memory() {
    random(Via::Rdma, 80);
}

#[test]
fn sequences_over_iwarp_end_as_in_a_plain_memory() {
    random(Via::Iwarp, 80);
}

#[test]
fn sequences_over_a_mesh_end_as_in_a_plain_memory() {
    random(Via::Given(meshes_one_sided::one_hop), 40);
}
