//! Element types: the names that numpy gives them, and the formats of the buffer protocol.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;
use ringbell::DataType;

pub(crate) fn unknown_type(format: &str, size: usize) -> PyErr {
    PyTypeError::new_err(format!(
        "the NIC has no element type for format `{format}` of {size} bytes; it has {}",
        names()
    ))
}

/// Element type of a format of the `struct` module. The length of `l` depends on the prefix, so the
/// item's size decides.
pub(crate) fn of_format(format: &str, size: usize) -> Option<DataType> {
    let native = if cfg!(target_endian = "little") {
        '<'
    } else {
        '>'
    };
    let code = format.trim_start_matches(['@', '=', native]);
    Some(match (code, size) {
        ("e", 2) => DataType::F16,
        ("f", 4) => DataType::F32,
        ("d", 8) => DataType::F64,
        ("b", 1) => DataType::I8,
        ("B" | "c", 1) => DataType::U8,
        ("h", 2) => DataType::I16,
        ("H", 2) => DataType::U16,
        ("i" | "l", 4) => DataType::I32,
        ("I" | "L", 4) => DataType::U32,
        ("l" | "q", 8) => DataType::I64,
        ("L" | "Q", 8) => DataType::U64,
        _ => return None,
    })
}

/// Python's name of a type, and its code in the buffer protocol; bfloat16 has none, and goes as its
/// bits.
pub(crate) const fn described(dtype: DataType) -> (&'static str, &'static std::ffi::CStr) {
    match dtype {
        DataType::F16 => ("float16", c"e"),
        DataType::Bf16 => ("bfloat16", c"H"),
        DataType::F32 => ("float32", c"f"),
        DataType::F64 => ("float64", c"d"),
        DataType::I8 => ("int8", c"b"),
        DataType::I16 => ("int16", c"h"),
        DataType::U16 => ("uint16", c"H"),
        DataType::I32 => ("int32", c"i"),
        DataType::I64 => ("int64", c"q"),
        DataType::U8 => ("uint8", c"B"),
        DataType::U32 => ("uint32", c"I"),
        DataType::U64 => ("uint64", c"Q"),
    }
}

fn names() -> String {
    let all = DataType::ALL.iter().map(|d| described(*d).0);
    all.collect::<Vec<_>>().join(", ")
}

/// Element type by the name that numpy gives it.
pub(crate) fn by_name(name: &str) -> PyResult<DataType> {
    let found = DataType::ALL.iter().find(|d| described(**d).0 == name);
    found.copied().ok_or_else(|| {
        PyTypeError::new_err(format!(
            "the NIC has no element type `{name}`; it has {}",
            names()
        ))
    })
}

/// Element type of an argument: numpy's name, or an object that numpy or PyTorch has for the type
/// (`numpy.float32`, `array.dtype`, `torch.float32`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dtype(pub(crate) DataType);

impl Default for Dtype {
    fn default() -> Dtype {
        Dtype(DataType::F32)
    }
}

impl<'py> FromPyObject<'_, 'py> for Dtype {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Dtype> {
        let py = object.py();
        let named = match object.cast::<PyString>() {
            Ok(name) => name.to_str()?.to_owned(),
            // A class has the name of its arrays' type, an instance of `numpy.dtype` has one, and
            // PyTorch's print theirs.
            Err(_) => match object.getattr(intern!(py, "__name__")) {
                Ok(name) => name.extract()?,
                Err(_) => match object.getattr(intern!(py, "name")) {
                    Ok(name) => name.extract()?,
                    Err(_) => object.str()?.to_str()?.to_owned(),
                },
            },
        };
        by_name(named.strip_prefix("torch.").unwrap_or(&named)).map(Dtype)
    }
}
