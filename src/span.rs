//! Parts of registered memory, for operations.

use std::ops::{Bound, RangeBounds};

use ringbell_nic_abi::{GpuVa, StreamRef};

use crate::{DeviceBuffer, HostBuffer, Nic, NicBuffer};

/// A part of a buffer in GPU, host or NIC memory: everything from an offset on. One call may name
/// memory of several kinds, and each rank may use another kind. Or a
/// [`KernelStream`](crate::KernelStream).
#[derive(Debug, Clone, Copy)]
pub struct Span {
    va: GpuVa,
    bytes: u64,
    /// `va` names a kernel's stream.
    stream: bool,
}

macro_rules! whole_buffer {
    ($($ty:ty),+) => {
        $(
            impl From<&$ty> for Span {
                fn from(b: &$ty) -> Span {
                    Span {
                        va: b.va(),
                        bytes: b.len(),
                        stream: false,
                    }
                }
            }
        )+
    };
}
whole_buffer!(HostBuffer, NicBuffer);

impl<T> From<&DeviceBuffer<T>> for Span {
    fn from(b: &DeviceBuffer<T>) -> Span {
        Span::of(b.va(), b.bytes())
    }
}

impl<T> DeviceBuffer<T> {
    /// A part of the buffer, by elements: `buffer.slice(16..)`, `buffer.slice(..64)`.
    ///
    /// # Panics
    /// When the range runs past the end of the buffer, or backwards.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Span {
        Span::from(self).part(range, size_of::<T>() as u64)
    }
}

impl Span {
    /// Empty: for the ranks that an operation gives no buffer to.
    pub const NONE: Span = Span {
        va: GpuVa(0),
        bytes: 0,
        stream: false,
    };

    /// A stream, as long as the data that passes through it.
    pub(crate) fn of_stream(s: StreamRef) -> Span {
        Span {
            va: GpuVa(s.word()),
            bytes: u64::MAX,
            stream: true,
        }
    }

    /// A part of this span, by bytes.
    ///
    /// # Panics
    /// When the range runs past the end, or backwards, or this is a stream.
    #[must_use]
    #[track_caller]
    pub fn slice(self, range: impl RangeBounds<u64>) -> Span {
        self.part(range, 1)
    }

    /// A part of this span, by elements of `size` bytes.
    #[track_caller]
    fn part(self, range: impl RangeBounds<u64>, size: u64) -> Span {
        assert!(
            !self.stream,
            "a stream has no offsets: pop what is to be skipped"
        );
        let start = match range.start_bound() {
            Bound::Included(at) => *at,
            Bound::Excluded(at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(at) => at.saturating_add(1),
            Bound::Excluded(at) => *at,
            Bound::Unbounded => self.bytes / size,
        };
        assert!(
            start <= end && end <= self.bytes / size,
            "{start}..{end} is no part of a buffer of {} elements of {size} bytes",
            self.bytes / size
        );
        Span {
            va: GpuVa(self.va.0 + start * size),
            bytes: (end - start) * size,
            stream: false,
        }
    }

    /// Bytes at an address of any kind of memory. The NIC refuses what is not registered.
    pub fn of(va: GpuVa, bytes: u64) -> Span {
        Span {
            va,
            bytes,
            stream: false,
        }
    }

    /// Memory of any kind at an address: from there to the end of the registration around it.
    /// `None` when no registration of `nic` covers the address.
    pub fn at(nic: &Nic, va: GpuVa) -> Option<Span> {
        let info = nic.pointer_info(va)?;
        let bytes = info.region.len - info.offset;
        Some(Span {
            va,
            bytes,
            stream: false,
        })
    }

    /// Its address in descriptors.
    pub fn va(&self) -> GpuVa {
        self.va
    }

    /// Bytes; of a stream, more than any operation moves.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether this is a kernel's stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside_their_span() {
        let all = Span::of(GpuVa(0x1000), 100);
        for (part, va, bytes) in [
            (all.slice(..), 0x1000, 100),
            (all.slice(10..), 0x100a, 90),
            (all.slice(..=9), 0x1000, 10),
            (all.slice(10..20).slice(5..), 0x100f, 5),
            (all.slice(100..), 0x1064, 0),
        ] {
            assert_eq!((part.va(), part.bytes()), (GpuVa(va), bytes));
        }
        #[allow(clippy::reversed_empty_ranges)] // Is what is refused.
        for wrong in [0..101, 101..101, 20..10] {
            assert!(std::panic::catch_unwind(|| all.slice(wrong)).is_err());
        }
        assert!(std::panic::catch_unwind(|| all.slice(..=u64::MAX)).is_err());
    }
}
