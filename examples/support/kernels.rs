//! The kernels of an example.

use std::path::{Path, PathBuf};

/// Those of a source in `examples/`, for an emulated GPU: the PTX beside it, which
/// `cargo xtask gen` makes. A program's own build makes it by `ringbell cc`.
pub(crate) fn of(source: &str) -> PathBuf {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    examples.join(source).with_extension("ptx")
}
