//! The kernels as fat binaries for real GPUs, if the build had nvcc.

/// One `.cu` file, compiled for sm_80 and sm_90, with PTX for what comes later; compressed.
#[derive(Debug, Clone, Copy)]
pub struct Fatbin {
    /// Name of the source file without `.cu`.
    pub name: &'static str,
    /// What `cuModuleLoadData` takes.
    pub image: &'static [u8],
}

/// All of them; empty when the build found no nvcc (`NVCC`, `CUDA_HOME`, the path, or
/// `cargo xtask kernels` before the build).
pub fn fatbins() -> &'static [Fatbin] {
    static ALL: &[Fatbin] = include!(concat!(env!("OUT_DIR"), "/fatbins.rs"));
    ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic of the fat binary format.
    const MAGIC: [u8; 4] = [0x50, 0xed, 0x55, 0xba];

    #[test]
    fn nvcc_made_a_fat_binary_of_every_source() {
        if fatbins().is_empty() {
            println!(
                "skipped: the build found no nvcc (run `cargo xtask kernels`, then build again)"
            );
            return;
        }
        assert!(fatbins().iter().any(|f| f.name == "sockets"));
        for f in fatbins() {
            assert_eq!(f.image[..4], MAGIC, "{}", f.name);
        }
        // They travel inside every program: without compression they had six times as much.
        let bytes: usize = fatbins().iter().map(|f| f.image.len()).sum();
        assert!(bytes < 2 << 20, "{bytes} bytes");
    }
}
