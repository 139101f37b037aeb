//! Files of kernels: which of them an emulated GPU runs.

use std::path::Path;

use ringbell_fatbin::{Fatbin, MAGIC};

use crate::gpu::ModuleError;

/// The newest architecture whose PTX is taken from a fat binary, as `libcuda` says it is.
const ARCHITECTURE: u32 = 90;

/// The first bytes of machine code: a shared object of the host, or a cubin.
const ELF: &[u8] = b"\x7fELF";

/// The PTX of a file's bytes, which errors call `name`.
///
/// # Errors
/// [`ModuleError::Load`]: what it is instead, and what to do.
pub(super) fn text(name: &Path, image: &[u8]) -> Result<String, ModuleError> {
    let refuse = |reason: String| ModuleError::Load {
        path: name.to_owned(),
        reason,
    };
    if image.starts_with(ELF) {
        let why = "it is machine code, and an emulated GPU runs PTX; build it again with `ringbell cc`, which writes PTX";
        return Err(refuse(why.to_owned()));
    }
    if image.starts_with(&MAGIC.to_le_bytes()) {
        let read = Fatbin::read(image).and_then(|all| all.ptx(ARCHITECTURE));
        return read.map_err(|e| refuse(e.to_string()));
    }
    // As a driver takes it, PTX may be a terminated string.
    let end = image.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    let text = std::str::from_utf8(&image[..end]);
    text.map(str::to_owned)
        .map_err(|_| refuse("it is neither PTX text nor a fat binary".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_found_in_text_and_fat_binaries_and_other_files_are_named() {
        let ptx = ".version 8.3\n";
        let name = Path::new("a/file");
        assert_eq!(text(name, ptx.as_bytes()).unwrap(), ptx);
        assert_eq!(text(name, b".version 8.3\n\0\0").unwrap(), ptx);
        let packed = ringbell_fatbin::of_ptx(&[(80, "old"), (90, ptx), (100, "new")]);
        assert_eq!(text(name, &packed).unwrap(), ptx);
        for (image, words) in [
            (&b"\x7fELF\x02\x01"[..], "build it again with `ringbell cc`"),
            (b"\xff\xfe\xfd", "neither PTX text nor a fat binary"),
            (&packed[..40], "damaged"),
        ] {
            let said = text(name, image).expect_err("refused").to_string();
            assert!(said.contains("a/file") && said.contains(words), "{said}");
        }
        let new = ringbell_fatbin::of_ptx(&[(100, "new")]);
        let said = text(name, &new).expect_err("refused").to_string();
        assert!(said.contains("sm_100 and newer"), "{said}");
    }
}
