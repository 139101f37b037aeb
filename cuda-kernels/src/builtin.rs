//! The SDK's own kernels: PTX text, and what callers must know of each.

/// A file of kernels.
pub(crate) struct BuiltinFile {
    /// Its name, for errors.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    /// SHA-256 of the text.
    pub(crate) hash: [u8; 32],
    pub(crate) kernels: &'static [BuiltinKernel],
}

/// A kernel.
pub(crate) struct BuiltinKernel {
    pub(crate) name: &'static str,
    /// Bytes of each parameter.
    pub(crate) arg_bytes: &'static [u32],
    /// Most threads of a block.
    pub(crate) max_threads: u64,
}

/// All files.
pub(crate) const FILES: &[BuiltinFile] = include!(concat!(env!("OUT_DIR"), "/ptx.rs"));

/// A kernel of any file.
#[cfg(feature = "cuda")]
pub(crate) fn kernel(name: &str) -> Option<&'static BuiltinKernel> {
    let mut all = FILES.iter().flat_map(|f| f.kernels);
    all.find(|k| k.name == name)
}

/// Names of all kernels, sorted.
#[cfg(feature = "cuda")]
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FILES
        .iter()
        .flat_map(|f| f.kernels)
        .map(|k| k.name)
        .collect();
    names.sort_unstable();
    names
}
