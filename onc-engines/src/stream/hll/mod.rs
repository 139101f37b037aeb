//! HyperLogLog.

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
pub use hash::HashKind;
pub use image::ImageError;
pub use sketch::{Sketch, SketchError, PRECISIONS, WIDTHS};
pub use update::Isa;
