//! Arrays of CUDA's memory that describe themselves by `__cuda_array_interface__` (CuPy, Numba,
//! PyTorch), of versions 2 and 3.

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ringbell::DataType;

use crate::element::{by_name, unknown_type};

/// Where such an array lies.
#[derive(Debug)]
pub(crate) struct CudaArray {
    pub(crate) va: u64,
    pub(crate) bytes: u64,
    pub(crate) dtype: DataType,
    pub(crate) read_only: bool,
    /// Handle of the stream whose present work writes or reads it.
    pub(crate) stream: Option<u64>,
}

/// The description of an object; `None` when it has none.
pub(crate) fn described<'py>(object: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let name = intern!(object.py(), "__cuda_array_interface__");
    // PyTorch's tensors have the attribute, and raise for those of the host.
    match object.getattr(name) {
        Ok(interface) => Ok(Some(interface.cast_into()?)),
        Err(_) => Ok(None),
    }
}

fn field<'py>(from: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let value = from.get_item(name)?;
    value.ok_or_else(|| PyTypeError::new_err(format!("`__cuda_array_interface__` has no `{name}`")))
}

fn given<'py>(from: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(from.get_item(name)?.filter(|v| !v.is_none()))
}

impl CudaArray {
    /// Reads a description.
    ///
    /// # Errors
    /// `TypeError`, `ValueError` or `BufferError`: a field is missing or none that the NIC can use.
    pub(crate) fn of(object: &Bound<'_, PyAny>, from: &Bound<'_, PyDict>) -> PyResult<CudaArray> {
        let version: i64 = field(from, "version")?.extract()?;
        if !matches!(version, 2 | 3) {
            let text = format!("`__cuda_array_interface__` of version {version}; there is 2 and 3");
            return Err(PyTypeError::new_err(text));
        }
        if given(from, "mask")?.is_some() {
            let text = "the array has a mask; give its data and its mask apart";
            return Err(PyBufferError::new_err(text));
        }
        let dtype = element(object, &field(from, "typestr")?.extract::<String>()?)?;
        let shape: Vec<u64> = field(from, "shape")?.extract()?;
        let elements = shape.iter().try_fold(1, |n: u64, d| n.checked_mul(*d));
        let bytes = elements.and_then(|n| n.checked_mul(dtype.bytes()));
        let (va, read_only): (u64, bool) = field(from, "data")?.extract()?;
        let bytes = bytes.filter(|b| va.checked_add(*b).is_some());
        let bytes = bytes.ok_or_else(|| {
            PyValueError::new_err(format!(
                "shape {shape:?} from {va:#x} on is more than memory can hold"
            ))
        })?;
        if bytes > 0 && va == 0 {
            return Err(PyValueError::new_err("the array's memory is at address 0"));
        }
        if let Some(strides) = given(from, "strides")? {
            contiguous(&shape, &strides.extract::<Vec<i64>>()?, dtype)?;
        }
        let stream = given(from, "stream")?.map(|s| s.extract::<u64>());
        let stream = stream.transpose()?;
        if stream == Some(0) {
            let text =
                "stream 0 of `__cuda_array_interface__` names no stream; it is 1, 2 or a handle";
            return Err(PyValueError::new_err(text));
        }
        Ok(CudaArray {
            va,
            bytes,
            dtype,
            read_only,
            stream,
        })
    }
}

/// The element type, of numpy's type string.
fn element(object: &Bound<'_, PyAny>, typestr: &str) -> PyResult<DataType> {
    let native = if cfg!(target_endian = "little") {
        '<'
    } else {
        '>'
    };
    let code = typestr.strip_prefix([native, '|', '=']).unwrap_or(typestr);
    Ok(match code {
        "f2" => DataType::F16,
        "f4" => DataType::F32,
        "f8" => DataType::F64,
        "i1" => DataType::I8,
        "i2" => DataType::I16,
        "u2" => DataType::U16,
        "i4" => DataType::I32,
        "i8" => DataType::I64,
        "u1" => DataType::U8,
        "u4" => DataType::U32,
        "u8" => DataType::U64,
        // What numpy says of types that it does not know, as bfloat16: the object names it.
        "V2" => {
            let dtype = object.getattr(intern!(object.py(), "dtype"))?;
            let name = dtype.getattr(intern!(object.py(), "name"));
            by_name(
                &name
                    .and_then(|n| n.extract::<String>())
                    .unwrap_or_else(|_| typestr.into()),
            )?
        }
        _ => {
            let digits = code.trim_start_matches(|c: char| !c.is_ascii_digit());
            return Err(unknown_type(typestr, digits.parse().unwrap_or(0)));
        }
    })
}

/// Refuses strides other than those of C's order.
fn contiguous(shape: &[u64], strides: &[i64], dtype: DataType) -> PyResult<()> {
    let mut step = dtype.bytes();
    let mut fits = shape.len() == strides.len();
    for (length, stride) in shape.iter().zip(strides).rev() {
        // A dimension of one element is never stepped over.
        fits &= *length <= 1 || u64::try_from(*stride) == Ok(step);
        step = step.saturating_mul(*length);
    }
    match fits || shape.contains(&0) {
        true => Ok(()),
        false => Err(PyBufferError::new_err(
            "the array is not contiguous in C's order; copy it first (`cupy.ascontiguousarray`, `tensor.contiguous()`)",
        )),
    }
}

/// The description of memory of this package.
pub(crate) fn describe<'py>(
    py: Python<'py>,
    va: u64,
    shape: &[usize],
    dtype: DataType,
) -> PyResult<Bound<'py, PyDict>> {
    let code = match dtype {
        DataType::F16 => "<f2",
        DataType::F32 => "<f4",
        DataType::F64 => "<f8",
        DataType::I8 => "|i1",
        DataType::I16 => "<i2",
        DataType::U16 => "<u2",
        DataType::I32 => "<i4",
        DataType::I64 => "<i8",
        DataType::U8 => "|u1",
        DataType::U32 => "<u4",
        DataType::U64 => "<u8",
        // As its bits: readers know no string for it.
        DataType::Bf16 => "<V2",
    };
    let made = PyDict::new(py);
    made.set_item("version", 3)?;
    made.set_item("shape", PyTuple::new(py, shape)?)?;
    made.set_item("typestr", code)?;
    made.set_item("data", (va, false))?;
    made.set_item("strides", py.None())?;
    // The NIC's work on it has ended when an operation has.
    made.set_item("stream", py.None())?;
    Ok(made)
}
