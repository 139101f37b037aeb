//! Memory that the NIC reaches: buffers of the host and of the GPU, and registrations of Python's
//! own arrays.
#![allow(unsafe_code)] // Exports memory by the buffer protocol.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use ringbell::DataType;

use crate::element::{described, Dtype};
use crate::failure;
use crate::process::Owned;

/// Shape of an array: a number of elements, or one for each dimension.
#[derive(FromPyObject)]
pub(crate) enum Shape {
    One(usize),
    Many(Vec<usize>),
}

impl Shape {
    /// The dimensions, and the bytes of an array of them.
    fn bytes(self, dtype: DataType) -> PyResult<(Vec<usize>, usize)> {
        let shape = match self {
            Shape::One(n) => vec![n],
            Shape::Many(all) => all,
        };
        let one = dtype.bytes() as usize;
        let bytes = shape.iter().try_fold(one, |b, n| b.checked_mul(*n));
        match bytes.filter(|b| *b > 0 && isize::try_from(*b).is_ok()) {
            Some(bytes) => Ok((shape, bytes)),
            None => Err(PyValueError::new_err(format!(
                "an array of shape {shape:?} has no elements, or more than memory can hold"
            ))),
        }
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // The value is only ever taken out as a whole.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn freed() -> PyErr {
    PyValueError::new_err("the buffer was freed; allocate another")
}

/// Host memory on pages of its own, which NICs of this host map: one copy moves a message.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct HostBuffer {
    buffer: Mutex<Option<Owned<ringbell::HostBuffer>>>,
    dtype: DataType,
    shape: Vec<isize>,
    strides: Vec<isize>,
    /// Views by the buffer protocol that were not given back.
    exports: AtomicUsize,
}

impl HostBuffer {
    /// Of memory that `alloc` makes, of so many bytes.
    pub(crate) fn new(
        shape: Shape,
        Dtype(dtype): Dtype,
        alloc: impl FnOnce(usize) -> PyResult<ringbell::HostBuffer>,
    ) -> PyResult<HostBuffer> {
        let (shape, bytes) = shape.bytes(dtype)?;
        let buffer = alloc(bytes)?;
        let shape: Vec<isize> = shape.iter().map(|n| *n as isize).collect();
        let mut strides = vec![dtype.bytes() as isize; shape.len()];
        for i in (1..shape.len()).rev() {
            strides[i - 1] = strides[i] * shape[i];
        }
        Ok(HostBuffer {
            buffer: Mutex::new(Some(Owned::new(buffer))),
            dtype,
            shape,
            strides,
            exports: AtomicUsize::new(0),
        })
    }

    pub(crate) fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Address and bytes.
    pub(crate) fn place(&self) -> PyResult<(u64, u64)> {
        let buffer = lock(&self.buffer);
        let buffer = buffer.as_ref().ok_or_else(freed)?.get()?;
        Ok((buffer.va().0, buffer.len()))
    }
}

#[pymethods]
impl HostBuffer {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        described(self.dtype).0
    }

    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.place().map(|(_, bytes)| bytes)
    }

    /// Whether views by the buffer protocol are in use.
    #[getter]
    fn in_use(&self) -> bool {
        self.exports.load(Ordering::Relaxed) > 0
    }

    /// Unregisters the memory and frees it now.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let mut buffer = lock(&self.buffer);
        // Relaxed: exports come and go with the interpreter's lock, which this thread holds.
        let views = self.exports.load(Ordering::Relaxed);
        if views > 0 {
            return Err(PyBufferError::new_err(format!(
                "{views} view(s) of the buffer are in use; drop the arrays made of it first"
            )));
        }
        let Some(buffer) = buffer.take() else {
            return Ok(());
        };
        let buffer = buffer.take()?;
        py.detach(|| buffer.free()).map_err(|e| failure::host(&e))
    }

    /// Exports the memory by the buffer protocol.
    ///
    /// # Safety
    /// The interpreter calls it, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let guard = lock(&this.buffer);
        let buffer = guard.as_ref().ok_or_else(freed)?.get()?;
        let wanted = |flag: c_int| flags & flag == flag;
        let format = described(this.dtype).1.as_ptr().cast_mut();
        // SAFETY: the interpreter gives a view to be filled. What it points to lives as long as
        // this object, to which `obj` is a reference; the memory does not move, and `free` refuses
        // while there are exports.
        unsafe {
            (*view).buf = buffer.as_ptr().cast();
            (*view).len = buffer.len() as isize;
            (*view).readonly = 0;
            (*view).itemsize = this.dtype.bytes() as isize;
            (*view).format = if wanted(ffi::PyBUF_FORMAT) {
                format
            } else {
                std::ptr::null_mut()
            };
            (*view).ndim = this.shape.len() as c_int;
            (*view).shape = match wanted(ffi::PyBUF_ND) {
                true => this.shape.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            };
            (*view).strides = match wanted(ffi::PyBUF_STRIDES) {
                true => this.strides.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            };
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
            (*view).obj = slf.clone().into_ptr();
        }
        this.exports.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes an export back.
    ///
    /// # Safety
    /// The interpreter calls it, once for each export.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Memory of the GPU, mapped in the GTLB and registered; its bytes are copied in and out.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct DeviceBuffer {
    buffer: Mutex<Option<Owned<ringbell::DeviceBuffer>>>,
    dtype: DataType,
    shape: Vec<usize>,
    /// Of a real GPU, where other libraries can use it.
    real: bool,
}

impl DeviceBuffer {
    pub(crate) fn new(
        nic: &ringbell::Nic,
        shape: Shape,
        Dtype(dtype): Dtype,
    ) -> PyResult<DeviceBuffer> {
        let (shape, bytes) = shape.bytes(dtype)?;
        let buffer = nic.alloc::<u8>(bytes as u64);
        let buffer = buffer.map_err(|e| failure::host(&e))?;
        Ok(DeviceBuffer {
            buffer: Mutex::new(Some(Owned::new(buffer))),
            dtype,
            shape,
            #[cfg(feature = "cuda")]
            real: nic.cuda().is_some(),
            #[cfg(not(feature = "cuda"))]
            real: false,
        })
    }

    pub(crate) fn dtype(&self) -> DataType {
        self.dtype
    }

    /// Address and bytes.
    pub(crate) fn place(&self) -> PyResult<(u64, u64)> {
        let buffer = lock(&self.buffer);
        let buffer = buffer.as_ref().ok_or_else(freed)?.get()?;
        Ok((buffer.va().0, buffer.bytes()))
    }
}

#[pymethods]
impl DeviceBuffer {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter(dtype)]
    fn dtype_name(&self) -> &'static str {
        described(self.dtype).0
    }

    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        self.place().map(|(_, bytes)| bytes)
    }

    /// Where it lies, for other libraries; only beside a real GPU.
    #[getter(__cuda_array_interface__)]
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if !self.real {
            let text = "the GPU is emulated: no library of CUDA can use its memory";
            return Err(PyAttributeError::new_err(text));
        }
        crate::cuda_array::describe(py, self.place()?.0, &self.shape, self.dtype)
    }

    /// Copies bytes from the host.
    #[pyo3(signature = (source, offset = 0))]
    fn write(&self, py: Python<'_>, source: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        // As bytes, for every element type; a copy, because another thread may change the array
        // meanwhile.
        let flat = py
            .import("builtins")?
            .getattr("memoryview")?
            .call1((source,))?;
        let flat = flat.call_method1("cast", ("B",))?;
        let bytes = PyBuffer::<u8>::get(&flat)?.to_vec(py)?;
        let buffer = lock(&self.buffer);
        let buffer = buffer.as_ref().ok_or_else(freed)?.get()?;
        let written = py.detach(|| buffer.write(offset, &bytes));
        written.map_err(|e| failure::argument(e.to_string()))
    }

    /// Copies bytes to the host.
    #[pyo3(signature = (offset = 0, nbytes = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        nbytes: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let buffer = lock(&self.buffer);
        let buffer = buffer.as_ref().ok_or_else(freed)?.get()?;
        let all = buffer.bytes();
        let len = nbytes.unwrap_or(all.saturating_sub(offset));
        if offset.checked_add(len).is_none_or(|end| end > all) {
            return Err(failure::argument(format!(
                "{len} bytes from {offset} on are no part of a buffer of {all} bytes"
            )));
        }
        PyBytes::new_with(py, len as usize, |into| {
            let read = buffer.read(offset, into);
            read.map_err(|e| failure::argument(e.to_string()))
        })
    }

    /// Unregisters the memory and frees it now.
    fn free(&self, py: Python<'_>) -> PyResult<()> {
        let buffer = lock(&self.buffer).take();
        if let Some(buffer) = buffer {
            let buffer = buffer.take()?;
            // Waits for DMA in flight.
            py.detach(|| drop(buffer));
        }
        Ok(())
    }
}
