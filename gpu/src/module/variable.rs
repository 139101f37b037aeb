//! A variable (§5.4), and what it is filled with.

use super::types::Space;

/// A variable of a module or of a function (§5.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the text.
    pub name: String,
    pub(crate) space: Space,
    /// Bytes; 0 for an array without a size, which is the launch's dynamic shared memory.
    pub bytes: u32,
    /// Alignment in bytes.
    pub align: u32,
    /// Initial value, shorter than `bytes` if zeros follow.
    pub initial: Vec<u8>,
    /// Addresses in the initial value: offset, variable, and what is added.
    pub(crate) pointers: Vec<(u32, u32, i64)>,
    /// What a function's parameter is; `None` for all other variables.
    pub(crate) formal: Option<Formal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formal {
    Argument,
    Result,
}

impl Variable {
    /// Whether it lies in GPU memory, so that the loader must find a place for it.
    pub fn is_global(&self) -> bool {
        matches!(self.space, Space::Global | Space::Const)
    }

    /// Its initial bytes, when the module's variables lie at `addresses`.
    pub fn image(&self, addresses: &[u64]) -> Vec<u8> {
        let mut bytes = self.initial.clone();
        bytes.resize(self.bytes as usize, 0);
        for (at, target, add) in &self.pointers {
            let address = addresses[*target as usize].wrapping_add_signed(*add);
            let at = *at as usize;
            bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        bytes
    }
}
