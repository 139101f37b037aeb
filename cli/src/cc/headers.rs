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
    "cuda/builtin_types.h",
    "cuda/cooperative_groups.h",
    "cuda/cooperative_groups/memcpy_async.h",
    "cuda/cooperative_groups/reduce.h",
    "cuda/cooperative_groups/scan.h",
    "cuda/cuda.h",
    "cuda/cudaTypedefs.h",
    "cuda/cuda_bf16.h",
    "cuda/cuda_fp16.h",
    "cuda/cuda_runtime.h",
    "cuda/cuda_runtime_api.h",
    "cuda/device_atomic_functions.h",
    "cuda/device_functions.h",
    "cuda/device_launch_parameters.h",
    "cuda/device_types.h",
    "cuda/host_defines.h",
    "cuda/math_constants.h",
    "cuda/math_functions.h",
    "cuda/rb/atomics.h",
    "cuda/rb/clusters.h",
    "cuda/rb/driver.h",
    "cuda/rb/half_bits.h",
    "cuda/rb/half_type.h",
    "cuda/rb/integers.h",
    "cuda/rb/library.h",
    "cuda/rb/loads.h",
    "cuda/rb/math.h",
    "cuda/rb/math/angles.h",
    "cuda/rb/math/pair.h",
    "cuda/rb/math/powers.h",
    "cuda/rb/math/remainders.h",
    "cuda/rb/math/single.h",
    "cuda/rb/math/special.h",
    "cuda/rb/math/tables.h",
    "cuda/rb/numbers.h",
    "cuda/rb/rounded.h",
    "cuda/rb/threads.h",
    "cuda/sm_30_intrinsics.h",
    "cuda/sm_60_atomic_functions.h",
    "cuda/vector_functions.h",
    "cuda/vector_types.h",
    "ringbell.cuh",
    "ringbell.h",
    "ringbell.hpp",
    "ringbell_abi.h",
    "ringbell_collective.cuh",
    "ringbell_comm.h",
    "ringbell_comm_handle.h",
    "ringbell_move.cuh",
    "ringbell_one_sided.cuh",
    "ringbell_platform.h",
    "ringbell_queue.h",
    "ringbell_reduce.cuh",
    "ringbell_slots.cuh",
    "ringbell_stream.cuh",
    "shmem/gin/barriers.h",
    "shmem/gin/comm.h",
    "shmem/gin/coop.h",
    "shmem/gin/gin.h",
    "shmem/nccl.h",
    "shmem/nccl_device.h",
    "shmem/nvshmem.h",
    "shmem/nvshmemx.h",
    "shmem/rb/atomics.h",
    "shmem/rb/calls.h",
    "shmem/rb/collectives.h",
    "shmem/rb/heap.h",
    "shmem/rb/host.h",
    "shmem/rb/names.h",
    "shmem/rb/on_stream.h",
    "shmem/rb/operations.h",
    "shmem/rb/refused.h",
    "shmem/rb/state.h",
    "shmem/rb/strided.h",
    "shmem/rb/teams.h",
    "shmem/rb/types.h",
    "shmem/rb/waits.h",
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
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("it is in the folder"))?;
            std::fs::write(path, text)?;
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
        let mut there = Vec::new();
        let mut folders = vec![std::path::PathBuf::from(dir)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_none_or(|e| e != "py") {
                    let name = path.strip_prefix(dir).expect("below it");
                    there.push(name.to_string_lossy().into_owned());
                }
            }
        }
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
