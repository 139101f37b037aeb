//! All integration tests of this package as one program, so that one program is linked.
//!
//! A file beside this one is a module. `cargo test -p PACKAGE --test all NAME` runs the tests whose
//! name contains NAME.
#![allow(clippy::duplicate_mod)] // Support that tests of other programs include brings along what it needs.

mod collective_support;
mod engine_support;
mod hostile_support;
mod iwarp_support;
#[macro_use]
mod nic_support;
#[macro_use]
mod port_rules;
mod qp_support;
mod scapy_support;
#[macro_use]
mod transport_rules;
#[macro_use]
mod transport_support;

mod collective_awaited;
mod collective_bits;
mod collective_blocks;
mod collective_direct;
mod collective_doubling;
mod collective_faults;
mod collective_fuzz;
mod collective_given;
mod collective_hierarchical;
mod collective_hostile;
mod collective_inbox;
mod collective_itself;
mod collective_lazy;
mod collective_lazy_windows;
mod collective_leaving;
mod collective_ops;
mod collective_ports;
mod collective_prepared;
mod collective_shapes;
mod collective_streamed;
mod collective_streams;
mod collective_threads;
mod collective_traces;
mod collectives;
mod credit;
mod engines;
mod engines_beside;
mod engines_collective;
mod engines_failing;
mod engines_queue;
mod engines_sender;
mod iwarp;
mod iwarp_one_sided;
mod iwarp_wire;
mod kernels_ring;
mod long_messages;
mod memory_kinds;
mod meshes;
mod meshes_cut;
mod meshes_one_sided;
mod meshes_sums;
mod meshes_trees;
mod networks;
mod nic_closing;
mod nic_faults;
mod nic_path;
mod one_sided;
mod one_sided_faults;
mod one_sided_sequences;
mod packets;
mod port_conformance;
mod rdma;
mod rdma_ipv6;
mod rdma_loss;
mod rdma_one_sided;
mod rdma_qp;
mod rdma_qp_repair;
mod rdma_sockets;
mod rdma_written;
mod rdma_written_hostile;
mod roce_wire;
mod shared_memory;
mod slow_memory;
mod staging;
mod swarm;
mod tcp;
mod tcp_fuzz;
mod tcp_hostile;
mod tcp_linux;
mod tcp_refused;
mod tcp_routes;
mod tcp_scapy;
mod tcp_windows;
mod transport_caps;
mod transport_conformance;
mod udp;
mod wrong_hops;
