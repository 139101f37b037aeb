//! Operands of calls: Python objects whose memory the NIC reads or writes in place.
//!
//! Five kinds of objects have such memory: buffers of this package, objects with the buffer
//! protocol (numpy's arrays, `bytearray`, `array.array`, `memoryview`), those of CUDA's memory
//! (`cuda_array`), those that others read by DLPack, and arrays with `__array_interface__` and a
//! type that the buffer protocol cannot name (bfloat16 of `ml_dtypes`). Memory that is not
//! registered is registered at its first use, as a whole array or the storage of a tensor. That of
//! the host stays so (`kept`). CUDA's does not: freed memory may not stay mapped.
#![allow(unsafe_code)] // Registers memory that Python owns.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ringbell::abi::GpuVa;
use ringbell::memory::{HostRegion, MemoryError};
#[cfg(feature = "cuda")]
use ringbell::{gpu::ForeignRegion, parts::cuda_kernels::cuda::ForeignMemory};
use ringbell::{DataType, Nic, Span};

use crate::cuda_array::{self, CudaArray};
use crate::element::{by_name, of_format, unknown_type};
use crate::failure::{self, Failure};
use crate::kept::Kept;
use crate::memory::{DeviceBuffer, HostBuffer};
use crate::process::Owned;

/// What keeps an operand's memory in place: its bytes neither move nor go while this lives.
#[derive(Debug)]
enum View {
    /// An export of the buffer protocol.
    Buffer(#[allow(dead_code)] PyUntypedBuffer),
    Object(#[allow(dead_code)] Py<PyAny>),
}

/// CUDA's memory of another library.
#[derive(Debug, Clone, Copy)]
struct Foreign {
    /// The stream whose work must have ended before the NIC uses it.
    stream: Option<u64>,
}

/// Memory of a Python object.
#[derive(Debug)]
pub(crate) struct Operand {
    region: Option<Arc<Region>>,
    _view: View,
    va: u64,
    bytes: u64,
    pub(crate) dtype: DataType,
    read_only: bool,
    /// It lies in memory of this package's buffers.
    owned: bool,
    /// It is CUDA's memory, and not this package's.
    foreign: Option<Foreign>,
    /// Address and bytes of what is registered for it: the array's own, or a tensor's storage, so
    /// that its views share a registration.
    storage: (u64, u64),
}

impl Operand {
    /// The memory of an object.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Operand> {
        if let Ok(buffer) = object.cast::<DeviceBuffer>() {
            let buffer = buffer.get();
            let (va, bytes) = buffer.place()?;
            return Ok(Operand::new(object, va, bytes, buffer.dtype(), true));
        }
        if let Ok(buffer) = object.cast::<HostBuffer>() {
            let buffer = buffer.get();
            let (va, bytes) = buffer.place()?;
            return Ok(Operand::new(object, va, bytes, buffer.dtype(), true));
        }
        match PyUntypedBuffer::get(object) {
            Ok(view) => Operand::of_buffer(view),
            Err(why) => Operand::of_others(object, why),
        }
    }

    /// An object without the buffer protocol.
    fn of_others(object: &Bound<'_, PyAny>, why: PyErr) -> PyResult<Operand> {
        if let Some(interface) = cuda_array::described(object)? {
            let array = CudaArray::of(object, &interface)?;
            let mut operand = Operand::new(object, array.va, array.bytes, array.dtype, false);
            operand.read_only = array.read_only;
            operand.foreign = Some(Foreign {
                stream: array.stream,
            });
            return Ok(operand);
        }
        match object.hasattr(intern!(object.py(), "__dlpack__"))? && !is_array(object)? {
            true => Operand::of_buffer(by_dlpack(object)?),
            false => Operand::of_array(object, why),
        }
    }

    /// The memory of an object of which only the bytes matter: of any element type.
    pub(crate) fn of_bytes(object: &Bound<'_, PyAny>) -> PyResult<Operand> {
        let own = object.cast::<DeviceBuffer>().is_ok() || object.cast::<HostBuffer>().is_ok();
        match PyUntypedBuffer::get(object) {
            Ok(view) if !own => Operand::of_view(view, DataType::U8),
            Err(_)
                if cuda_array::described(object)?.is_none()
                    && object.hasattr(intern!(object.py(), "__dlpack__"))?
                    && !is_array(object)? =>
            {
                Operand::of_view(by_dlpack(object)?, DataType::U8)
            }
            _ => Operand::of(object),
        }
    }

    fn new(
        object: &Bound<'_, PyAny>,
        va: u64,
        bytes: u64,
        dtype: DataType,
        owned: bool,
    ) -> Operand {
        Operand {
            region: None,
            _view: View::Object(object.clone().unbind()),
            va,
            bytes,
            dtype,
            read_only: false,
            owned,
            foreign: None,
            storage: (va, bytes),
        }
    }

    /// A tensor's memory, which is contiguous: CUDA's where a stream is named, whose present work
    /// writes or reads it.
    pub(crate) fn of_tensor(
        tensor: &Bound<'_, PyAny>,
        va: u64,
        bytes: u64,
        stream: Option<u64>,
        dtype: DataType,
    ) -> PyResult<Operand> {
        let py = tensor.py();
        let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
        let start: u64 = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let len: u64 = storage.call_method0(intern!(py, "nbytes"))?.extract()?;
        let mut operand = Operand::new(tensor, va, bytes, dtype, false);
        operand.storage = (start, len);
        operand.foreign = stream.map(|handle| Foreign {
            stream: Some(handle),
        });
        Ok(operand)
    }

    fn of_buffer(view: PyUntypedBuffer) -> PyResult<Operand> {
        let (format, size) = (
            view.format().to_string_lossy().into_owned(),
            view.item_size(),
        );
        let dtype = of_format(&format, size);
        match dtype {
            Some(dtype) => Operand::of_view(view, dtype),
            None if !view.is_c_contiguous() => Err(not_contiguous()),
            None => Err(unknown_type(&format, size)),
        }
    }

    fn of_view(view: PyUntypedBuffer, dtype: DataType) -> PyResult<Operand> {
        if !view.is_c_contiguous() {
            return Err(not_contiguous());
        }
        let (va, bytes) = (
            view.buf_ptr().expose_provenance() as u64,
            view.len_bytes() as u64,
        );
        Ok(Operand {
            region: None,
            va,
            bytes,
            dtype,
            read_only: view.readonly(),
            owned: false,
            foreign: None,
            storage: (va, bytes),
            _view: View::Buffer(view),
        })
    }

    /// An array whose element type the buffer protocol has no code for.
    fn of_array(object: &Bound<'_, PyAny>, why: PyErr) -> PyResult<Operand> {
        let interface = object.getattr("__array_interface__");
        let Ok(interface) = interface.and_then(|i| Ok(i.cast_into::<PyDict>()?)) else {
            return Err(match why.is_instance_of::<PyTypeError>(object.py()) {
                true => no_memory(object),
                // Memory that cannot be used now: a memoryview that was released.
                false => why,
            });
        };
        let name: String = object.getattr("dtype")?.getattr("name")?.extract()?;
        let dtype = by_name(&name)?;
        let strides = interface.get_item("strides")?;
        if strides.is_some_and(|s| !s.is_none()) {
            return Err(not_contiguous());
        }
        let data = interface.get_item("data")?;
        let (va, read_only): (usize, bool) = data.ok_or(why)?.extract()?;
        let bytes: usize = object.getattr("nbytes")?.extract()?;
        let mut operand = Operand::new(object, va as u64, bytes as u64, dtype, false);
        operand.read_only = read_only;
        Ok(operand)
    }

    /// Elements.
    pub(crate) fn count(&self) -> u64 {
        self.bytes / self.dtype.bytes()
    }

    /// The memory as operations name it.
    pub(crate) fn span(&self) -> Span {
        Span::of(GpuVa(self.va), self.bytes)
    }

    /// Refuses memory that the program must not see changed.
    pub(crate) fn writable(self) -> PyResult<Operand> {
        match self.read_only {
            true => Err(PyBufferError::new_err(
                "the destination is read-only; give an array that can be written to",
            )),
            false => Ok(self),
        }
    }

    fn end(&self) -> u64 {
        self.va.saturating_add(self.bytes)
    }
}

/// Whether an object says where its memory is as numpy's arrays do.
fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.hasattr(intern!(object.py(), "__array_interface__"))
}

/// The memory of an object that another library made, in place, as numpy reads it: memory of the
/// host.
fn by_dlpack(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let py = object.py();
    let numpy = py.import(intern!(py, "numpy"))?;
    let array = numpy.call_method1(intern!(py, "from_dlpack"), (object,))?;
    PyUntypedBuffer::get(&array)
}

/// The error for an object whose elements the NIC cannot reach in place.
fn no_memory(object: &Bound<'_, PyAny>) -> PyErr {
    let given = object.get_type().name();
    let given = given.map_or_else(|_| "object".into(), |n| n.to_string());
    PyTypeError::new_err(format!(
        "the NIC uses an array's memory in place, and `{given}` has none that it can reach; make it an array first, such as numpy.array(x, dtype=\"float32\"), \
         array.array(\"f\", x), a bytearray, or a buffer of Nic.alloc_host, and read results from that"
    ))
}

fn not_contiguous() -> PyErr {
    PyBufferError::new_err(
        "the array is not contiguous in C's order; copy it first (`numpy.ascontiguousarray`, `tensor.contiguous()`)",
    )
}

/// What is registered.
#[derive(Debug)]
enum Memory {
    Host(HostRegion),
    #[cfg(feature = "cuda")]
    Cuda(ForeignRegion<ForeignMemory>),
}

impl Memory {
    fn va(&self) -> GpuVa {
        match self {
            Memory::Host(region) => region.va(),
            #[cfg(feature = "cuda")]
            Memory::Cuda(region) => region.va(),
        }
    }
}

/// A registration of Python's memory, shared by the operations that use it; it does not keep the
/// bytes.
#[derive(Debug)]
pub(crate) struct Region {
    /// `None` only while it is dropped.
    region: Option<Owned<Memory>>,
    registry: Weak<Registry>,
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else {
            return;
        };
        let Ok(start) = region.get().map(|r| r.va().0) else {
            return;
        };
        // Under the lock, so that no thread finds the bytes neither in the table nor free. Without
        // a registry no thread looks.
        let registry = self.registry.upgrade();
        let table = registry.as_ref().map(|r| r.lock());
        drop(region);
        if let Some(mut table) = table {
            table.remove(&start);
        }
    }
}

type Table = BTreeMap<u64, (u64, Weak<Region>)>;

/// Registrations of Python's memory with one NIC, by address. No thread takes the interpreter's
/// lock while it holds this one.
#[derive(Debug)]
pub(crate) struct Registry {
    nic: Owned<Nic>,
    /// Bytes and registration; they are disjoint. An entry whose registration is being dropped goes
    /// with its end.
    regions: Mutex<Table>,
    kept: Kept<Region>,
}

impl Registry {
    pub(crate) fn new(nic: Nic) -> Arc<Registry> {
        Arc::new(Registry {
            nic: Owned::new(nic),
            regions: Mutex::default(),
            kept: Kept::default(),
        })
    }

    pub(crate) fn nic(&self) -> PyResult<&Nic> {
        self.nic.get()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change of the table is one step, so a panic leaves it whole.
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the NIC know the operands' memory: finds the registration around each, or makes one.
    pub(crate) fn register(self: &Arc<Self>, operands: &mut [&mut Operand]) -> PyResult<()> {
        // Overlapping operands (an all-gather in place) are registered as one range, because no
        // byte is registered twice.
        if let [a, b] = operands {
            let overlap = a.va < b.end() && b.va < a.end();
            if overlap && !a.owned && !b.owned && a.storage != b.storage {
                let (start, end) = (a.va.min(b.va), a.end().max(b.end()));
                let region = match a.foreign.or(b.foreign) {
                    None => self.keep(start, end - start)?,
                    foreign => self.around(start, end - start, foreign)?,
                };
                a.region.clone_from(&region);
                b.region = region;
                return Ok(());
            }
        }
        for operand in operands.iter_mut() {
            if operand.bytes == 0 || operand.owned {
                continue;
            }
            let (start, len) = operand.storage;
            operand.region = match operand.foreign {
                None => self.keep(start, len)?,
                foreign => self.around(start, len, foreign)?,
            };
        }
        Ok(())
    }

    /// The registration of an array or of a tensor's storage, which lasts. One of freed memory does
    /// not count, although it may cover this one: it could cover a part of another one too.
    fn keep(self: &Arc<Self>, start: u64, len: u64) -> PyResult<Option<Arc<Region>>> {
        self.nic()?;
        let found = self.lock().get(&start).filter(|(l, _)| *l == len).cloned();
        if let Some(region) = found.and_then(|(_, region)| region.upgrade()) {
            return Ok(Some(region));
        }
        let region = self.around(start, len, None)?;
        // Not the registration of an array around it, which the program ends.
        let own = self.lock().get(&start).is_some_and(|(l, _)| *l == len);
        if let Some(region) = region.as_ref().filter(|_| own) {
            self.kept.keep(start, len, region.clone());
        }
        Ok(region)
    }

    /// The registration around a range; `None` when it lies in a buffer of this package.
    fn around(
        self: &Arc<Self>,
        va: u64,
        bytes: u64,
        foreign: Option<Foreign>,
    ) -> PyResult<Option<Arc<Region>>> {
        let nic = self.nic()?;
        wait_for_owner(nic, foreign)?;
        let end = va.saturating_add(bytes);
        // Their tensors may be gone.
        self.kept.forget(va, end);
        let mut table = loop {
            let table = self.lock();
            let last = table.range(..end).next_back();
            let Some((start, (len, region))) = last.filter(|(s, (len, _))| va < *s + len) else {
                break table;
            };
            let covered = *start <= va && end <= start + len;
            match region.upgrade() {
                Some(region) if covered => return Ok(Some(region)),
                Some(region) => {
                    // A last reference must not be dropped under the lock.
                    drop(table);
                    drop(region);
                    // The NIC names the overlap.
                    break self.lock();
                }
                // Another thread is ending it.
                None => drop(table),
            }
            std::thread::yield_now();
        };
        let info = nic.pointer_info(GpuVa(va));
        if info.is_some_and(|i| bytes <= i.region.len - i.offset) {
            return Ok(None);
        }
        let made = match foreign {
            None => register_host(nic, va, bytes),
            Some(_) => register_cuda(nic, va, bytes),
        };
        let region = match made {
            Ok(region) => region,
            Err(failure) => {
                // The exception is made with the interpreter's lock.
                drop(table);
                return Err(failure.raise());
            }
        };
        let region = Arc::new(Region {
            region: Some(Owned::new(region)),
            registry: Arc::downgrade(self),
        });
        table.insert(va, (bytes, Arc::downgrade(&region)));
        Ok(Some(region))
    }

    /// Memory that the NIC allocates. It may lie where an array was whose registration is still
    /// kept: that one is ended then.
    pub(crate) fn alloc_host(&self, bytes: usize) -> PyResult<ringbell::HostBuffer> {
        loop {
            match self.nic()?.alloc_host(bytes) {
                Err(MemoryError::Overlaps {
                    other, other_len, ..
                }) if self.kept.forget(other.0, other.0 + other_len) => {}
                made => return made.map_err(|e| failure::host(&e)),
            }
        }
    }

    /// A registration for as long as the result lives.
    pub(crate) fn pin(self: &Arc<Self>, mut operand: Operand) -> PyResult<Operand> {
        if operand.bytes == 0 {
            return Err(failure::argument("the array has no elements"));
        }
        self.register(&mut [&mut operand])?;
        Ok(operand)
    }
}

fn register_host(nic: &Nic, va: u64, bytes: u64) -> Result<Memory, Failure> {
    let start = std::ptr::with_exposed_provenance_mut(va as usize);
    let start = NonNull::new(start)
        .ok_or_else(|| Failure::argument("the array's memory is at address 0"))?;
    // SAFETY: each operation holds the object whose bytes these are, and without operations the NIC
    // does not touch them. The docstrings ask the program to share them as with a thread.
    let made = unsafe { nic.register_host(start, bytes as usize) };
    made.map(Memory::Host).map_err(|e| Failure::host(&e))
}

#[cfg(feature = "cuda")]
fn register_cuda(nic: &Nic, va: u64, bytes: u64) -> Result<Memory, Failure> {
    let gpu = nic.cuda().ok_or_else(no_cuda)?;
    // SAFETY: the operation or the `Registration` holds the array until this is dropped. The
    // docstrings ask the program to share it as with a kernel.
    let memory = unsafe { gpu.adopt(GpuVa(va), bytes) }.map_err(|e| Failure::host(&e))?;
    let region = nic.register_foreign(memory);
    region.map(Memory::Cuda).map_err(|e| Failure::host(&e))
}

#[cfg(not(feature = "cuda"))]
fn register_cuda(_nic: &Nic, _va: u64, _bytes: u64) -> Result<Memory, Failure> {
    Err(no_cuda())
}

fn no_cuda() -> Failure {
    Failure::argument(
        "the array is CUDA's memory, and the NIC's GPU is emulated; open the NIC with gpu=\"cuda\", or set RINGBELL_GPU=cuda",
    )
}

/// Waits for what the array's owner has under way on it, without the interpreter's lock.
#[cfg(feature = "cuda")]
fn wait_for_owner(nic: &Nic, foreign: Option<Foreign>) -> PyResult<()> {
    let stream = foreign.and_then(|f| f.stream);
    if let (Some(stream), Some(gpu)) = (stream, nic.cuda()) {
        // SAFETY: the array's owner names a stream of the primary context by the interface's
        // contract, and lives.
        let wait = || unsafe { gpu.wait_for_stream(stream) };
        Python::attach(|py| py.detach(wait)).map_err(|e| failure::host(&e))?;
    }
    Ok(())
}

#[cfg(not(feature = "cuda"))]
fn wait_for_owner(_nic: &Nic, _foreign: Option<Foreign>) -> PyResult<()> {
    Ok(())
}

/// A registration of an array's memory, until it is ended or dropped.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Registration {
    operand: Mutex<Option<Operand>>,
}

impl Registration {
    pub(crate) fn new(operand: Operand) -> Registration {
        Registration {
            operand: Mutex::new(Some(operand)),
        }
    }
}

#[pymethods]
impl Registration {
    /// Ends the registration; operations that use it keep it until they have ended.
    fn end(&self) {
        let mut operand = self.operand.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = operand.take();
        drop(operand);
        drop(ended);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) {
        self.end();
    }
}
