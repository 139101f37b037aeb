//! Device headers, embedded in the program, so that `ringbell cc` needs no checkout.

use std::path::Path;

use anyhow::Result;

use crate::scratch::Folder;

macro_rules! headers {
    ($($name:literal),+ $(,)?) => {
        /// Name and text of each header.
        const HEADERS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../cuda-kernels/include/", $name))),)+
        ];
    };
}

headers!(
    "ringbell.cuh",
    "ringbell.h",
    "ringbell.hpp",
    "ringbell_abi.h",
    "ringbell_clang.h",
    "ringbell_collective.cuh",
    "ringbell_comm.h",
    "ringbell_comm_handle.h",
    "ringbell_emu.h",
    "ringbell_fiber.h",
    "ringbell_move.cuh",
    "ringbell_one_sided.cuh",
    "ringbell_platform.h",
    "ringbell_queue.h",
    "ringbell_reduce.cuh",
    "ringbell_slots.cuh",
    "ringbell_stream.cuh",
);

/// The headers in a folder of their own, which is removed when this is dropped.
pub(super) struct Unpacked(Folder);

impl Unpacked {
    /// Writes the headers.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub(super) fn new() -> Result<Unpacked> {
        let folder = Folder::of_files("cc")?;
        for (name, text) in HEADERS {
            std::fs::write(folder.path().join(name), text)?;
        }
        Ok(Unpacked(folder))
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_of_the_folder_is_carried() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda-kernels/include");
        let mut there: Vec<String> = std::fs::read_dir(dir)
            .expect("the folder")
            .map(|e| {
                e.expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        there.sort();
        let carried: Vec<&str> = HEADERS.iter().map(|(name, _)| *name).collect();
        assert_eq!(there, carried, "add the new header to the list above");
    }

    #[test]
    fn the_folder_goes_with_its_owner() {
        let unpacked = Unpacked::new().expect("written");
        let dir = unpacked.path().to_path_buf();
        assert!(dir.join("ringbell.cuh").is_file());
        drop(unpacked);
        assert!(!dir.exists());
    }
}
