//! Check of GDRCopy: whether the CPU can reach a real GPU's memory by stores.

use ringbell::parts::cuda_kernels::gdrcopy::{GdrError, GdrMapper};

use super::check::{Check, Verdict};

const NAME: &str = "GDRCopy";
const ENGINE: &str =
    "a dma-buf or the copy engine for a real GPU's memory; nothing for the emulated GPU's";

pub(super) fn gdrcopy() -> Check {
    let mapper = match GdrMapper::open() {
        Ok(mapper) => mapper,
        Err(e @ GdrError::Driver { .. }) => {
            let found = "the library, without its kernel driver";
            return Check::new(NAME, Verdict::Instead, found, ENGINE, e.to_string());
        }
        Err(e) => {
            return Check::new(NAME, Verdict::Instead, "not usable", ENGINE, e.to_string());
        }
    };
    let driver = match mapper.driver_version() {
        Some((major, minor)) => format!("gdrdrv {major}.{minor}"),
        None => "no gdrdrv, by dma-buf".into(),
    };
    Check::new(
        NAME,
        Verdict::Ok,
        format!("{mapper:?}, {driver}"),
        "mappings of a real GPU's memory, unless RINGBELL_GPU_MEMORY says dmabuf, copy or slots",
        "stores through a mapping are quick; long reads go by the copy engine; neither was measured here yet",
    )
}
