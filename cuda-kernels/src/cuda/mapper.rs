//! The interface of mappings of GPU memory into the CPU's address space: GDRCopy, or a dma-buf.
//!
//! With a mapping the NIC writes GPU memory by plain stores, and without one by the copy engine.
//! Loads through most mappings wait for the GPU, line by line, so the copy engine serves longer
//! reads ([`READ_BY_MAPPING`]).

use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ringbell_nic_abi::GpuVa;

use crate::locks::lock;

/// Longest read, in bytes, that goes through a mapping that reads slowly: one line of a CPU's
/// cache, which costs about as much as a round trip over PCIe (3 µs, GDRCopy's README). Not
/// measured on a GPU yet.
pub(crate) const READ_BY_MAPPING: usize = 64;

/// Maps GPU memory for the CPU.
pub trait GpuMapper: Debug + Send + Sync {
    /// Name for messages, such as `GDRCopy 2.5`; of several mappers, the one in use.
    fn name(&self) -> String;

    /// Maps `len` bytes from `va`, both multiples of 64 KiB, of one allocation that lives longer
    /// than the mapping. A context of the GPU is current.
    ///
    /// # Errors
    /// The reason in words. The copy engine then serves the memory.
    fn map(&self, va: GpuVa, len: u64) -> Result<Box<dyn GpuMapping>, String>;
}

/// GPU memory mapped for the CPU. Offsets are inside it.
pub trait GpuMapping: Debug + Send + Sync {
    /// Stores bytes. They may wait in the CPU's write-combining buffers until
    /// [`GpuMapping::flush`].
    fn write(&self, offset: u64, from: &[u8]);
    /// Loads bytes; expensive, about a microsecond for each line (gdrcopy's README).
    fn read(&self, offset: u64, into: &mut [u8]);
    /// Makes everything stored so far visible to the GPU before any later store to host memory.
    fn flush(&self);
    /// Whether loads are as quick as from memory of the host.
    fn reads_quickly(&self) -> bool {
        false
    }
    /// The word at an aligned offset, where the memory is the host's own: the CPU's atomics on it
    /// are atomic there, and behind its earlier stores. Not where the mapping crosses a bus.
    fn word(&self, offset: u64) -> Option<NonNull<u64>> {
        let _ = offset;
        None
    }
}

/// A part of a mapping.
#[derive(Debug)]
pub(super) struct PartOf {
    pub(super) whole: Box<dyn GpuMapping>,
    /// Its first byte in the whole mapping.
    pub(super) start: u64,
}

impl GpuMapping for PartOf {
    fn write(&self, offset: u64, from: &[u8]) {
        self.whole.write(self.start + offset, from);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.whole.read(self.start + offset, into);
    }

    fn flush(&self) {
        self.whole.flush();
    }

    fn reads_quickly(&self) -> bool {
        self.whole.reads_quickly()
    }

    fn word(&self, offset: u64) -> Option<NonNull<u64>> {
        self.whole.word(self.start + offset)
    }
}

/// Several mappers: each allocation is mapped by the first that can.
#[derive(Debug, Default)]
pub struct FirstOf {
    mappers: Vec<Arc<dyn GpuMapper>>,
    /// Mappers that could not be opened, with the reason.
    missing: Vec<String>,
    /// Name of the one that has mapped last, and why those before it have not.
    last: Mutex<Option<String>>,
}

impl FirstOf {
    /// An empty list.
    pub fn new() -> FirstOf {
        FirstOf::default()
    }

    /// Appends a mapper, or the reason why the one of this name could not be opened.
    pub fn then(mut self, name: &str, mapper: Result<Arc<dyn GpuMapper>, String>) -> FirstOf {
        match mapper {
            Ok(mapper) => self.mappers.push(mapper),
            Err(why) => self.missing.push(format!("{name}: {why}")),
        }
        self
    }
}

impl GpuMapper for FirstOf {
    fn name(&self) -> String {
        let last = lock(&self.last);
        last.clone().unwrap_or_else(|| {
            let names: Vec<_> = self.mappers.iter().map(|m| m.name()).collect();
            names.join(" or ")
        })
    }

    fn map(&self, va: GpuVa, len: u64) -> Result<Box<dyn GpuMapping>, String> {
        let mut refused = self.missing.clone();
        for mapper in &self.mappers {
            match mapper.map(va, len) {
                Ok(mapping) => {
                    let name = match refused.is_empty() {
                        true => mapper.name(),
                        false => format!("{} ({})", mapper.name(), refused.join("; ")),
                    };
                    *lock(&self.last) = Some(name);
                    return Ok(mapping);
                }
                Err(why) => refused.push(format!("{}: {why}", mapper.name())),
            }
        }
        Err(refused.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Named(&'static str, bool);

    #[derive(Debug)]
    struct Nothing;

    impl GpuMapping for Nothing {
        fn write(&self, _: u64, _: &[u8]) {}
        fn read(&self, _: u64, _: &mut [u8]) {}
        fn flush(&self) {}
    }

    impl GpuMapper for Named {
        fn name(&self) -> String {
            self.0.into()
        }
        fn map(&self, _: GpuVa, _: u64) -> Result<Box<dyn GpuMapping>, String> {
            match self.1 {
                true => Ok(Box::new(Nothing)),
                false => Err("will not".into()),
            }
        }
    }

    fn of(mappers: &[Result<(&'static str, bool), &str>]) -> FirstOf {
        mappers.iter().fold(FirstOf::new(), |all, m| match m {
            Ok((name, works)) => all.then(name, Ok(Arc::new(Named(name, *works)))),
            Err(why) => all.then("GDRCopy", Err((*why).into())),
        })
    }

    #[test]
    fn the_first_working_mapper_is_named_with_the_reasons_against_earlier_ones() {
        let map = |m: &FirstOf| m.map(GpuVa(0), 1).map(drop);
        let first = of(&[Ok(("a", true)), Ok(("b", true))]);
        assert_eq!(first.name(), "a or b");
        assert_eq!(map(&first), Ok(()));
        assert_eq!(first.name(), "a");
        let second = of(&[Err("not installed"), Ok(("a", false)), Ok(("b", true))]);
        assert_eq!(map(&second), Ok(()));
        assert_eq!(second.name(), "b (GDRCopy: not installed; a: will not)");
        let none = of(&[Err("not installed"), Ok(("a", false))]);
        let why = "GDRCopy: not installed; a: will not";
        assert_eq!(map(&none), Err(why.into()));
        assert_eq!(map(&FirstOf::new()), Err(String::new()));
    }
}
