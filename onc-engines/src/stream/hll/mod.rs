//! HyperLogLog: how many distinct items a stream has, in a few kilobytes (FpgaNIC §3.5, §A.3).
//!
//! # The algorithm
//!
//! Hash every item. Some bits of the hash choose one of m = 2^p registers, others give a *rank*:
//! one more than the zeros they begin with. A register keeps the highest rank it has seen. Among n
//! distinct items a rank of k occurs about n / 2^k times, so the registers tell the logarithm of n
//! / m, m times over, and repeated items change nothing (Flajolet, Fusy, Gandouet, Meunier,
//! *HyperLogLog*, 2007). The paper runs it with p = 16 on 64-bit Murmur3 hashes, at line rate on
//! the FPGA (Kulkarni et al., FPL 2020).
//!
//! # How it is made fast
//!
//! The registers are bytes. The lowest of them, the *floor*, is known at any time; an item whose
//! rank is not above it changes nothing in any register. That is a comparison of the hash with a
//! constant, so after n ≫ m items all but a few pass without a look at memory: the update runs at
//! the speed of the hash. What is left is gathered and compared, and the few registers that do rise
//! are changed one after the other, in the stream's order ([`Isa`]: AVX-512, AVX2 or scalar, the
//! same registers on all). The worst stream has few distinct items: the floor stays 0, every item
//! is gathered, at about a third of the speed; [`HllEngine`] declares its rate for that one.
//!
//! Three hashes are offered. [`HashKind::Mix`], the default, costs a fraction of the other two; the
//! accuracy run shows no difference between them. [`HashKind::DataSketches`] makes sketches that
//! merge with those of Apache DataSketches, in Spark, Druid or PostgreSQL.
//!
//! # How well it counts
//!
//! Two estimators read the registers, both without tables or thresholds between formulas:
//!
//! - A stream that was counted from its start in one sketch has a *history*: whenever a register
//!   rises, one over the probability of that is added (Ting, *Streamed approximate counting of
//!   distinct elements*, KDD 2014). Standard error 0.83/√m. It depends on the order of the items,
//!   not on how they were cut.
//! - After a merge or fold the registers alone count: Ertl's improved estimator (arXiv:1702.01284,
//!   Algorithm 6). Standard error 1.04/√m, the same for the same set of items in any order.
//!
//! Measured at p = 14, where 1.04/√m is 0.81%: root mean square of the error in units of that, by
//! registers / by history (`cargo bench --profile dist -p ringbell-micro --bench hll -- --billion`,
//! [`HashKind::Mix`]; biases are within what so few streams can tell; the other hashes are alike):
//!
//! | distinct | streams | random u64 | sequential u32 |
//! |---|---|---|---|
//! | 1 | 1000 | 0.003 / 0.000 | 0.003 / 0.000 |
//! | 10 | 1000 | 0.952 / 0.673 | 0.674 / 0.389 |
//! | 100 | 1000 | 0.721 / 0.588 | 0.655 / 0.530 |
//! | 1000 | 1000 | 0.694 / 0.548 | 0.689 / 0.581 |
//! | 10000 | 1000 | 0.717 / 0.579 | 0.728 / 0.561 |
//! | 50000 | 1000 | 0.825 / 0.659 | 0.806 / 0.629 |
//! | 10^5 | 1000 | 0.933 / 0.735 | 0.898 / 0.716 |
//! | 10^6 | 1000 | 0.991 / 0.802 | 1.031 / 0.808 |
//! | 10^7 | 300 | 1.038 / 0.778 | 1.089 / 0.821 |
//! | 10^8 | 60 | 0.882 / 0.770 | 1.075 / 0.735 |
//! | 10^9 | 20 | 1.003 / 0.951 | 0.895 / 0.738 |
//!
//! Below 2.5 m items the error is smaller than in the limit, because few registers were hit twice.
//! 4-byte items stop at 2^32 and 64-bit hashes saturate at about m · 2^43, so there is no
//! large-range correction to make: both estimators are right up to there.
//!
//! # What is here
//!
//! [`Sketch`] counts, merges, [folds](Sketch::folded) to a lower precision and bounds
//! [intersections](Sketch::intersection); [`Sketch::write`] and [`Sketch::read`] keep it,
//! [`Sketch::to_datasketches`] and [`Sketch::from_datasketches`] exchange it. [`HllEngine`] is the
//! sketch on the path of a stream. Nothing here is keyed: who knows the hash can choose items that
//! fool the estimate.

mod datasketches;
mod engine;
mod estimate;
mod hash;
mod image;
mod registers;
mod sketch;
#[cfg(test)]
mod tests;
mod update;

pub use datasketches::{DataSketchesError, DataSketchesForm};
pub use engine::{HllConfig, HllEngine, HllSummary, ENGINE_PRECISIONS};
pub use estimate::Bounds;
pub use hash::{HashKind, ItemHash};
pub use image::ImageError;
pub use sketch::{Sketch, SketchError, PRECISIONS, WIDTHS};
pub use update::Isa;
