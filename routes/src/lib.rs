//! Routes of a network whose NICs forward: topologies, paths, virtual channels, and proofs.
//!
//! A [`Topology`](topology::Topology) comes from a file ([`mod@file`]) or a generator
//! ([`generate`]). [`route`](route::route) gives each node a table of ports and each pair a virtual
//! channel ([`tables`]), with a [`proof`] that packets cannot stop for ever. [`check`] judges both
//! by other code than made them. [`trees`] gives the tree of each root a channel, so that one
//! packet reaches many nodes.
//!
//! The crate knows no NIC. Its results are the same on every machine.
//!
//! ```
//! use ringbell_routes::{check::check, generate::generate, route::route};
//!
//! let torus = generate("torus:2x4")?;
//! let routes = route(&torus, 8)?;
//! let checked = check(&torus, &routes.tables, &routes.proof, 8);
//! assert_eq!(checked.map(|c| c.longest), Ok(3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bubble;
pub mod check;
pub mod document;
pub mod file;
mod file_error;
pub mod generate;
mod htsim;
mod layers;
pub mod load;
pub mod named;
mod nue;
mod order;
pub mod part;
mod paths;
pub mod proof;
pub mod route;
pub mod tables;
pub mod topology;
pub mod tree;
pub mod trees;
