//! One-sided operations between NICs for which others forward, at one, two and four hops.

use ringbell_nic_core::transport::rdma::RdmaConfig;

use crate::meshes::{patient_ends, PATIENCE};
use crate::nic_support::*;
use crate::{one_sided, one_sided_faults};

/// The NICs at the ends of a line. A close gives up after 5 s by default, and a connection whose
/// peer acknowledges nothing is reset then: less than a busy machine may take for a megabyte here.
fn over(hops: usize, setups: [Setup; 2]) -> [Host; 2] {
    let (ports, forwarders) = patient_ends(hops, 4_096);
    let mut ports = ports.into_iter();
    let mut hosts = setups.map(|mut setup| {
        setup.queue.default_timeout_us = 50_000_000;
        setup.nic.linger = PATIENCE;
        let port = ports.next().expect("two ends");
        let config = RdmaConfig {
            seed: setup.nic.ip.octets()[3].into(),
            give_up: PATIENCE,
            ..RdmaConfig::default()
        };
        Host::with(&setup, |nic| with_rdma(&setup, nic, Box::new(port), config))
    });
    hosts[0].keep = Some(Box::new(forwarders));
    hosts
}

pub(crate) fn one_hop(setups: [Setup; 2]) -> [Host; 2] {
    over(1, setups)
}

fn two_hops(setups: [Setup; 2]) -> [Host; 2] {
    over(2, setups)
}

fn four_hops(setups: [Setup; 2]) -> [Host; 2] {
    over(4, setups)
}

macro_rules! over {
    ($at:ident by $hosts:ident: $($file:ident::$name:ident),+ $(,)?) => {
        mod $at {
            $(#[test] fn $name() { super::$file::$name(super::Via::Given(super::$hosts)); })+
        }
    };
}

over!(one by one_hop:
    one_sided::a_put_lands_and_its_signal_follows,
    one_sided::every_size_is_put_and_got_as_in_plain_memory,
    one_sided::words_are_updated_atomically_and_give_their_value_before,
    one_sided_faults::keys_rights_and_bounds_are_checked_at_the_target,
    one_sided_faults::hostile_descriptors_retire_and_write_only_where_the_key_allows,
    one_sided_faults::a_region_is_freed_while_puts_and_gets_are_under_way,
    one_sided_faults::operations_time_out_and_late_answers_are_dropped,
    one_sided_faults::requests_wait_until_their_session_is_accepted_and_end_with_the_peer,
    one_sided_faults::a_close_waits_for_what_was_posted_before,
);

// Without those of thousands of operations, each with a deadline that nodes between, which are
// stepped by a thread, may miss on a busy machine.
over!(two by two_hops:
    one_sided::a_put_lands_and_its_signal_follows,
    one_sided::every_size_is_put_and_got_as_in_plain_memory,
    one_sided::words_are_updated_atomically_and_give_their_value_before,
    one_sided_faults::keys_rights_and_bounds_are_checked_at_the_target,
    one_sided_faults::a_region_is_freed_while_puts_and_gets_are_under_way,
    one_sided_faults::requests_wait_until_their_session_is_accepted_and_end_with_the_peer,
    one_sided_faults::a_close_waits_for_what_was_posted_before,
);

over!(four by four_hops:
    one_sided::a_put_lands_and_its_signal_follows,
    one_sided::every_size_is_put_and_got_as_in_plain_memory,
    one_sided::words_are_updated_atomically_and_give_their_value_before,
    one_sided_faults::keys_rights_and_bounds_are_checked_at_the_target,
    one_sided_faults::requests_wait_until_their_session_is_accepted_and_end_with_the_peer,
    one_sided_faults::a_close_waits_for_what_was_posted_before,
);
