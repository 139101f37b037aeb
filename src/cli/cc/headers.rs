//! The device headers, carried inside the program: `ringbell cc` needs no checkout.

use std::path::{Path, PathBuf};

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
    "ringbell_collective.cuh",
    "ringbell_comm.h",
    "ringbell_comm_handle.h",
    "ringbell_emu.h",
    "ringbell_fiber.h",
    "ringbell_move.cuh",
    "ringbell_platform.h",
    "ringbell_queue.h",
    "ringbell_reduce.cuh",
    "ringbell_slots.cuh",
    "ringbell_stream.cuh",
);

/// The headers in a folder of their own, which goes when this is dropped.
pub(super) struct Unpacked(PathBuf);

impl Unpacked {
    /// Writes the headers.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub(super) fn new() -> std::io::Result<Unpacked> {
        let base = std::env::temp_dir();
        let mut number = 0_u32;
        let dir = loop {
            let dir = base.join(format!("ringbell-cc-{}-{number}", std::process::id()));
            // Made anew: in a folder that anybody may write to, one that exists is somebody else's.
            match std::fs::create_dir(&dir) {
                Ok(()) => break dir,
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && number < 100 => {
                    number += 1
                }
                Err(e) => return Err(e),
            }
        };
        let unpacked = Unpacked(dir);
        for (name, text) in HEADERS {
            std::fs::write(unpacked.0.join(name), text)?;
        }
        Ok(unpacked)
    }

    /// The folder.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // A folder that stays behind costs a few kilobytes of /tmp.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_header_of_the_folder_is_carried() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda-kernels/include");
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
