//! RoCEv2: [queue pairs](qp) that exchange packets with their user, and [verbs] on host memory.
//!
//! A NIC's transport `rdma` is a user of the first, programs of libibverbs are users of the second.
//! The packets' formats are [`ringbell_net::wire::roce`]'s.

// One seed gives one trace of packets.
#![cfg_attr(not(test), warn(clippy::disallowed_types))]

pub mod qp;
pub mod verbs;
