//! A kernel that can be launched: its code, what lies around it, and the extents of a launch.

use std::sync::Arc;

use super::Code;

/// A compiled kernel with the places of its module's variables.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) code: Arc<Code>,
    pub(crate) placement: Arc<Placement>,
    /// Addresses of the functions of the host that the code calls.
    pub(crate) helpers: &'static [usize],
}

impl std::ops::Deref for Kernel {
    type Target = Code;

    fn deref(&self) -> &Code {
        &self.code
    }
}

/// Where things lie in GPU memory.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Address of each of the module's variables; not used for those in shared memory.
    pub(crate) variables: Vec<u64>,
    /// First address and bytes of the memory.
    pub(crate) memory: (u64, u64),
}

/// Extents of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z; at most 1,024 together.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
}
