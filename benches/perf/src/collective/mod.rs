//! Collectives of one rank: data that every rank can check, and the timed operation.

pub mod data;
pub mod rank;
