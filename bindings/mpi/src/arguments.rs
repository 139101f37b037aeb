//! Arguments of Fortran.
#![allow(unsafe_code)] // Reads the program's arguments.

use std::ffi::{c_int, c_void};

use crate::abi::{Abi, Handle, Tables};
use crate::collective::Buffer;
use crate::layer::Layer;

/// A buffer.
pub(crate) type Any = *mut c_void;
/// An argument of type INTEGER, by reference.
pub(crate) type Int = *const c_int;

/// Arguments of Fortran as C has them.
#[derive(Clone, Copy)]
pub(crate) struct Args(pub(crate) &'static Tables);

impl Args {
    /// Where the library below does not call our functions of C by itself.
    pub(crate) fn get() -> Option<Args> {
        let tables = &Layer::get()?.tables;
        (tables.abi != Abi::Mpich).then_some(Args(tables))
    }

    pub(crate) fn int(self, at: Int) -> c_int {
        // SAFETY: the program's argument.
        unsafe { *at }
    }

    pub(crate) fn any(self, at: Any) -> Any {
        self.0.buffer_of_fortran(at)
    }

    pub(crate) fn comm(self, at: Int) -> Handle {
        self.0.comm_of_fortran(self.int(at))
    }

    pub(crate) fn op(self, at: Int) -> Handle {
        self.0.op_of_fortran(self.int(at))
    }

    pub(crate) fn ty(self, at: Int) -> Handle {
        self.0.type_of_fortran(self.int(at))
    }

    pub(crate) fn buffer(self, at: Any, count: Int, ty: Int) -> Buffer {
        Buffer::new(self.any(at), self.int(count).into(), self.ty(ty))
    }
}
