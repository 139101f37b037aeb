//! Bindings to the eight functions of NCCL that a measurement calls, found in a shared object at
//! run time. Signatures as in `nccl.h`; they are the same from NCCL 2.13 to 2.32.
#![allow(unsafe_code)] // A C library.

use std::ffi::{c_char, c_int, c_void, CStr};
use std::path::{Path, PathBuf};

use libloading::Library;
use ringbell::{DataType, ReduceOp};

/// `NCCL_UNIQUE_ID_BYTES`.
const ID_BYTES: usize = 128;

/// `ncclUniqueId`: where the ranks of a communicator meet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId {
    internal: [u8; ID_BYTES],
}

/// An error of NCCL.
#[derive(Debug, thiserror::Error)]
pub(super) enum NcclError {
    /// The loader could not load it.
    #[error("{} cannot be loaded: {why}", path.display())]
    Open { path: PathBuf, why: String },
    /// Not NCCL, or one older than 2.13.
    #[error("{} has no function {symbol}; it is not NCCL, or one older than 2.13", path.display())]
    Symbol { path: PathBuf, symbol: &'static str },
    /// It has no such elements or operation.
    #[error("NCCL has no {0}")]
    Lacks(&'static str),
    /// A call of it failed.
    #[error("{call}: {name} ({code}){detail}")]
    Call {
        call: &'static str,
        code: i32,
        /// Text of `ncclGetErrorString`.
        name: String,
        /// Text of `ncclGetLastError`, behind a colon.
        detail: String,
    },
}

type Comm = *mut c_void;

/// NCCL, loaded.
pub(super) struct Nccl {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        *mut c_void,
    ) -> c_int,
}

/// Finds a function, of the type that it is assigned to.
macro_rules! function {
    ($library:expr, $path:expr, $symbol:literal) => {
        // SAFETY: `nccl.h` declares it with the type of the field that it is assigned to.
        *unsafe { $library.get($symbol.as_bytes()) }.map_err(|_| NcclError::Symbol {
            path: $path.to_owned(),
            symbol: $symbol,
        })?
    };
}

impl Nccl {
    /// Loads it, for the rest of the process: it has threads of its own. The environment that it
    /// reads must be set before.
    pub(super) fn load(path: &Path) -> Result<Nccl, NcclError> {
        // SAFETY: the user names a library that they trust; NCCL's initialisers have no
        // preconditions.
        let library = unsafe { Library::new(path) }.map_err(|e| NcclError::Open {
            path: path.to_owned(),
            // `dlopen failed`, then the cause.
            why: std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string),
        })?;
        let nccl = Nccl {
            version: function!(library, path, "ncclGetVersion"),
            unique_id: function!(library, path, "ncclGetUniqueId"),
            init_rank: function!(library, path, "ncclCommInitRank"),
            destroy: function!(library, path, "ncclCommDestroy"),
            async_error: function!(library, path, "ncclCommGetAsyncError"),
            error_string: function!(library, path, "ncclGetErrorString"),
            last_error: function!(library, path, "ncclGetLastError"),
            all_reduce: function!(library, path, "ncclAllReduce"),
        };
        std::mem::forget(library);
        Ok(nccl)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), NcclError> {
        if code == 0 {
            return Ok(());
        }
        let text = |at: *const c_char| match at.is_null() {
            true => String::new(),
            // SAFETY: a terminated string of NCCL, which lives until this thread's next call.
            false => unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned(),
        };
        // SAFETY: any code may be asked about.
        let name = text(unsafe { (self.error_string)(code) });
        // SAFETY: NULL means the last error of all communicators.
        let detail = text(unsafe { (self.last_error)(std::ptr::null_mut()) });
        let detail = match detail.trim() {
            "" => String::new(),
            d => format!(": {d}"),
        };
        Err(NcclError::Call {
            call,
            code,
            name,
            detail,
        })
    }

    /// 23007 for 2.30.7.
    pub(super) fn version(&self) -> Result<i32, NcclError> {
        let mut version = 0;
        // SAFETY: the pointer is to a live integer.
        self.check("ncclGetVersion", unsafe { (self.version)(&mut version) })?;
        Ok(version)
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId {
            internal: [0; ID_BYTES],
        };
        // SAFETY: the pointer is to a live id.
        self.check("ncclGetUniqueId", unsafe { (self.unique_id)(&mut id) })?;
        Ok(id)
    }

    /// Comes up with the other ranks, on the GPU whose context is current. Waits for all of them.
    pub(super) fn init_rank(
        &self,
        ranks: u32,
        id: &UniqueId,
        rank: u32,
    ) -> Result<Communicator<'_>, NcclError> {
        let mut comm = std::ptr::null_mut();
        let (ranks, rank) = (ranks as c_int, rank as c_int);
        // SAFETY: the pointer is to a live handle; the id goes by value.
        let code = unsafe { (self.init_rank)(&mut comm, ranks, *id, rank) };
        self.check("ncclCommInitRank", code)?;
        Ok(Communicator { nccl: self, comm })
    }
}

/// A rank's communicator.
pub(super) struct Communicator<'a> {
    nccl: &'a Nccl,
    comm: Comm,
}

/// One operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct AllReduce {
    /// Address of the operand on the GPU.
    pub(super) src: u64,
    pub(super) dst: u64,
    pub(super) count: u64,
    pub(super) dtype: DataType,
    pub(super) op: ReduceOp,
}

impl Communicator<'_> {
    /// Queues an all-reduce on a stream.
    ///
    /// # Safety
    /// `stream` is a live stream of the context that was current when the communicator was made;
    /// `src` and `dst` are memory of its GPU for `count` elements, and stay so until the stream has
    /// come behind the operation.
    pub(super) unsafe fn all_reduce(
        &self,
        o: AllReduce,
        stream: *mut c_void,
    ) -> Result<(), NcclError> {
        let (dtype, op) = codes(o.dtype, o.op)?;
        // SAFETY: as the caller promises; a live communicator.
        let code = unsafe {
            (self.nccl.all_reduce)(
                o.src as *const c_void,
                o.dst as *mut c_void,
                o.count as usize,
                dtype,
                op,
                self.comm,
                stream,
            )
        };
        self.nccl.check("ncclAllReduce", code)
    }

    /// An error that came after the call that caused it had returned.
    pub(super) fn later_error(&self) -> Result<(), NcclError> {
        let mut later = 0;
        // SAFETY: a live communicator, and a live integer.
        let code = unsafe { (self.nccl.async_error)(self.comm, &mut later) };
        self.nccl.check("ncclCommGetAsyncError", code)?;
        self.nccl.check("a queued operation", later)
    }

    /// Ends it, with all ranks of the process.
    pub(super) fn destroy(self) -> Result<(), NcclError> {
        // SAFETY: a live communicator, destroyed once.
        let code = unsafe { (self.nccl.destroy)(self.comm) };
        self.nccl.check("ncclCommDestroy", code)
    }
}

/// `ncclDataType_t` and `ncclRedOp_t`.
pub(super) fn codes(dtype: DataType, op: ReduceOp) -> Result<(c_int, c_int), NcclError> {
    let dtype = match dtype {
        DataType::I8 => 0,
        DataType::U8 => 1,
        DataType::I32 => 2,
        DataType::U32 => 3,
        DataType::I64 => 4,
        DataType::U64 => 5,
        DataType::F16 => 6,
        DataType::F32 => 7,
        DataType::F64 => 8,
        DataType::Bf16 => 9,
        DataType::I16 | DataType::U16 => return Err(NcclError::Lacks("16-bit integers")),
    };
    let op = match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
            return Err(NcclError::Lacks("operations on bits"));
        }
    };
    Ok((dtype, op))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs no GPU: checks that a library of NVIDIA's has the functions that we call, under these
    /// names.
    #[test]
    #[ignore = "needs NVIDIA's libnccl.so.2, named by RINGBELL_NCCL"]
    fn a_library_of_nvidia_reports_its_version_and_makes_ids() {
        let path = std::env::var("RINGBELL_NCCL").expect("RINGBELL_NCCL names libnccl.so.2");
        let nccl = Nccl::load(Path::new(&path)).expect("it loads");
        let version = nccl.version().expect("a version");
        assert!(version > 21_300, "{version}");
        let (a, b) = (nccl.unique_id(), nccl.unique_id());
        let bytes = |id: Result<UniqueId, NcclError>| id.expect("an id").internal;
        assert_ne!(bytes(a), bytes(b));
    }

    #[test]
    fn a_missing_library_and_one_that_is_not_nccl_are_reported() {
        let e = Nccl::load(Path::new("/nonexistent/libnccl.so.2")).err();
        assert!(matches!(e, Some(NcclError::Open { .. })));
        let e = Nccl::load(Path::new("libc.so.6")).err().expect("no NCCL");
        assert!(e.to_string().contains("ncclGetVersion"), "{e}");
    }
}
