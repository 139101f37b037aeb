//! The program's elements of a call, and their copies to and from memory that the NIC shares with
//! peers.
//!
//! Elements of a derived type are packed by the library below. Memory of a GPU is copied by the
//! driver, which need not be known to the library below: elements of a derived type there are
//! packed in an image of their memory.
#![allow(unsafe_code)] // The program's memory, by its pointers.

use std::ffi::c_int;

use ringbell::Nic;

use crate::abi::Handle;
use crate::below::below;
use crate::device;
use crate::memory::{Memories, Place};

/// One side of an operation: the program's elements, which are `bytes` one behind the other for the
/// NIC.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) bytes: usize,
    pub(crate) elements: Elements,
    /// Copied in any case: it overlaps the other side, or is shorter than its block.
    pub(crate) apart: bool,
}

/// Where the program's elements are.
#[derive(Debug)]
pub(crate) enum Elements {
    None,
    /// One behind the other, in memory of the host.
    Plain(*mut u8),
    /// One behind the other, in memory of a GPU.
    Device(*mut u8),
    /// So many of a derived type, in either.
    Typed(*mut u8, i64, Handle),
    /// Blocks of their own places, each in its slot of so many bytes.
    Blocks(usize, Vec<(Elements, usize)>),
}

impl Side {
    pub(crate) const NONE: Side = Side {
        bytes: 0,
        elements: Elements::None,
        apart: false,
    };

    pub(crate) fn plain(at: *mut u8, bytes: usize) -> Side {
        Side {
            bytes,
            elements: Elements::plain(at),
            apart: false,
        }
    }

    /// Its place without a copy, where there is one.
    pub(crate) fn in_place(&self, memories: &Memories, nic: &Nic) -> Option<Place> {
        match self.elements {
            _ if self.bytes == 0 => Some(Place::nowhere()),
            Elements::Plain(at) if !self.apart => memories.place(nic, at, self.bytes),
            _ => None,
        }
    }
}

impl Elements {
    /// Elements one behind the other.
    pub(crate) fn plain(at: *mut u8) -> Elements {
        match device::holds(at) {
            true => Elements::Device(at),
            false => Elements::Plain(at),
        }
    }

    /// Copies them to scratch memory of at least as many bytes.
    ///
    /// # Errors
    /// A text: the GPU's driver refuses to copy.
    pub(crate) fn fill(&self, to: *mut u8, bytes: usize, own: Handle) -> Result<(), String> {
        match self {
            Elements::None => {}
            // SAFETY: the program's memory during its call, and the caller's.
            Elements::Plain(at) => unsafe { to.copy_from_nonoverlapping(*at, bytes) },
            // SAFETY: as before.
            Elements::Device(at) => unsafe { device::read(*at, to, bytes) }?,
            Elements::Typed(at, count, ty) => match Image::of(*at, *count, *ty) {
                Some(mut image) => {
                    image.read()?;
                    pack(image.base(), *count, *ty, to, bytes, own);
                }
                None => pack(*at, *count, *ty, to, bytes, own),
            },
            Elements::Blocks(stride, blocks) => {
                for (i, (block, bytes)) in blocks.iter().enumerate() {
                    block.fill(to.wrapping_add(i * stride), *bytes, own)?;
                }
            }
        }
        Ok(())
    }

    /// Copies them from scratch memory.
    ///
    /// # Errors
    /// As [`Elements::fill`].
    pub(crate) fn drain(&self, from: *const u8, bytes: usize, own: Handle) -> Result<(), String> {
        match self {
            Elements::None => {}
            // SAFETY: as in `fill`.
            Elements::Plain(at) => unsafe { at.copy_from_nonoverlapping(from, bytes) },
            // SAFETY: as in `fill`.
            Elements::Device(at) => unsafe { device::write(*at, from, bytes) }?,
            Elements::Typed(at, count, ty) => match Image::of(*at, *count, *ty) {
                Some(mut image) => {
                    // With what lies between the elements.
                    image.read()?;
                    unpack(from, bytes, image.base(), *count, *ty, own);
                    image.write()?;
                }
                None => unpack(from, bytes, *at, *count, *ty, own),
            },
            Elements::Blocks(stride, blocks) => {
                for (i, (block, bytes)) in blocks.iter().enumerate() {
                    block.drain(from.wrapping_add(i * stride), *bytes, own)?;
                }
            }
        }
        Ok(())
    }
}

/// Elements of a derived type one behind the other, by the library below.
fn pack(at: *const u8, count: i64, ty: Handle, to: *mut u8, bytes: usize, own: Handle) {
    let mut position = 0;
    let placed = Placed::of(at, count, ty);
    let (at, ty) = placed.as_ref().map_or((at, ty), |p| (p.base(), p.ty));
    type Pack =
        unsafe extern "C" fn(*const u8, c_int, Handle, *mut u8, c_int, *mut c_int, Handle) -> c_int;
    let pack: Pack = below!(
        "PMPI_Pack",
        fn(*const u8, c_int, Handle, *mut u8, c_int, *mut c_int, Handle) -> c_int
    );
    // SAFETY: the signature of MPI's standard; counts fit, which the caller has checked.
    unsafe {
        pack(
            at,
            count as c_int,
            ty,
            to,
            bytes as c_int,
            &raw mut position,
            own,
        )
    };
}

/// The reverse of [`pack`].
fn unpack(from: *const u8, bytes: usize, at: *mut u8, count: i64, ty: Handle, own: Handle) {
    let mut position = 0;
    let placed = Placed::of(at, count, ty);
    let (at, ty) = placed
        .as_ref()
        .map_or((at, ty), |p| (p.base().cast_mut(), p.ty));
    let unpack = below!(
        "PMPI_Unpack",
        fn(*const u8, c_int, *mut c_int, *mut u8, c_int, Handle, Handle) -> c_int
    );
    // SAFETY: as in `pack`.
    unsafe {
        unpack(
            from,
            bytes as c_int,
            &raw mut position,
            at,
            count as c_int,
            ty,
            own,
        )
    };
}

/// A type whose elements lie at absolute addresses (`MPI_BOTTOM`), as one with displacements from
/// an address: MPICH 4.0 packs nothing that begins at null.
struct Placed {
    ty: Handle,
    /// Nothing is read or written there.
    base: u8,
}

impl Placed {
    /// `None` of elements that lie elsewhere.
    fn of(at: *const u8, count: i64, ty: Handle) -> Option<Box<Placed>> {
        if !at.is_null() || count < 1 {
            return None;
        }
        let mut placed = Box::new(Placed { ty: 0, base: 0 });
        let length: c_int = 1;
        let start = (placed.base().addr() as isize).wrapping_neg();
        // SAFETY: the signatures of MPI's standard.
        unsafe {
            type Create = unsafe extern "C" fn(
                c_int,
                *const c_int,
                *const isize,
                Handle,
                *mut Handle,
            ) -> c_int;
            let create: Create = below!(
                "PMPI_Type_create_hindexed",
                fn(c_int, *const c_int, *const isize, Handle, *mut Handle) -> c_int
            );
            let made = &raw mut placed.ty;
            create(1, &raw const length, &raw const start, ty, made);
            below!("PMPI_Type_commit", fn(*mut Handle) -> c_int)(made);
        }
        Some(placed)
    }

    fn base(&self) -> *const u8 {
        &raw const self.base
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        // SAFETY: the signature of MPI's standard.
        unsafe { below!("PMPI_Type_free", fn(*mut Handle) -> c_int)(&raw mut self.ty) };
    }
}

/// The memory from the first to the last byte of elements of a derived type that lie on a GPU,
/// copied to the host.
struct Image {
    /// On the GPU.
    at: *mut u8,
    /// Bytes from the elements' base to `at`, as the type counts them.
    low: isize,
    copy: Vec<u8>,
}

impl Image {
    /// An image of the elements' memory, with nothing in it yet; `None` when they lie in memory of
    /// the host.
    fn of(base: *mut u8, count: i64, ty: Handle) -> Option<Image> {
        if !device::present() || count <= 0 {
            return None;
        }
        let (mut low, mut bytes, mut first, mut extent) = (0_isize, 0_isize, 0_isize, 0_isize);
        type Of = unsafe extern "C" fn(Handle, *mut isize, *mut isize) -> c_int;
        let of: Of = below!(
            "PMPI_Type_get_true_extent",
            fn(Handle, *mut isize, *mut isize) -> c_int
        );
        // SAFETY: the signature of MPI's standard.
        unsafe { of(ty, &raw mut low, &raw mut bytes) };
        let of: Of = below!(
            "PMPI_Type_get_extent",
            fn(Handle, *mut isize, *mut isize) -> c_int
        );
        // SAFETY: as before.
        unsafe { of(ty, &raw mut first, &raw mut extent) };
        // An extent may be negative: the last element lies first then.
        let steps = extent.checked_mul(isize::try_from(count - 1).ok()?)?;
        let (low, bytes) = (low + steps.min(0), bytes + steps.abs());
        let at = base.wrapping_offset(low);
        if bytes <= 0 || !device::holds(at) {
            return None;
        }
        let copy = vec![0; bytes as usize];
        Some(Image { at, low, copy })
    }

    /// What the library below takes as the elements' base.
    fn base(&mut self) -> *mut u8 {
        self.copy.as_mut_ptr().wrapping_offset(-self.low)
    }

    fn read(&mut self) -> Result<(), String> {
        // SAFETY: the elements' own memory, by the program's type, and the copy of as many bytes.
        unsafe { device::read(self.at, self.copy.as_mut_ptr(), self.copy.len()) }
    }

    fn write(&self) -> Result<(), String> {
        // SAFETY: as in `read`.
        unsafe { device::write(self.at, self.copy.as_ptr(), self.copy.len()) }
    }
}
