//! Kernels: modules of a program, and launches that keep alive what their arguments point to.
#![allow(unsafe_code)] // Declares the functions that run a program's kernels.

use std::any::Any;
use std::net::Ipv4Addr;
use std::path::Path;

use ringbell_cuda_kernels::collective::CommHandle;
use ringbell_cuda_kernels::{
    Dim3, Gpu, GpuKind, KernelArg, Launch, LaunchError, LaunchShape, ModuleError, Stream,
};
use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{GpuVa, SessionId, StreamRef};
use ringbell_nic_core::HostQueue;

use crate::{DeviceBuffer, Nic, Span};

impl Nic {
    /// Loads kernels of a program, as `ringbell cc` builds them: PTX, or a fat binary that has PTX;
    /// on a real GPU also one for it, or a cubin. A path without an extension gets `.ptx` or
    /// `.fatbin`, whichever file there is; an emulated GPU prefers the first, a real one the
    /// second.
    ///
    /// # Errors
    /// [`ModuleError`]: the file is missing, or is no module for this GPU.
    ///
    /// # Safety
    /// The file is the program's own: its kernels can be launched from then on, by their names
    /// alone.
    pub unsafe fn module(&self, path: impl AsRef<Path>) -> Result<Module, ModuleError> {
        let path = path.as_ref();
        let mut endings = ["ptx", "fatbin"];
        if self.gpu().kind() != GpuKind::Emulated {
            endings.reverse();
        }
        let file = match path.extension() {
            Some(_) => path.to_owned(),
            None => {
                let files = endings.map(|e| path.with_extension(e));
                let [first, second] = files;
                match !first.exists() && second.exists() {
                    true => second,
                    false => first,
                }
            }
        };
        // SAFETY: the caller's contract.
        unsafe { self.gpu().load_module(&file)? };
        Ok(Module {
            gpu: self.gpu().clone(),
        })
    }

    /// A kernel of the SDK, or of a module that was loaded: see [`Module::kernel`].
    ///
    /// # Errors
    /// [`LaunchError::UnknownKernel`] lists those that there are.
    pub fn kernel(&self, name: &str) -> Result<Kernel, LaunchError> {
        self.gpu().find_kernel(name)?;
        Ok(Kernel {
            gpu: self.gpu().clone(),
            name: name.to_owned(),
            shared_bytes: None,
        })
    }
}

/// Kernels of a program, loaded into the GPU of a [`Nic`] for as long as the GPU lives.
#[derive(Debug, Clone)]
pub struct Module {
    gpu: Gpu,
}

impl Module {
    /// The kernel of a name (`extern "C" __global__ void name(...)`). Of several modules with a
    /// kernel of that name, the last one that was loaded runs.
    ///
    /// # Errors
    /// [`LaunchError::UnknownKernel`] lists those that there are.
    pub fn kernel(&self, name: &str) -> Result<Kernel, LaunchError> {
        self.gpu.find_kernel(name)?;
        Ok(Kernel {
            gpu: self.gpu.clone(),
            name: name.to_owned(),
            shared_bytes: None,
        })
    }
}

/// A kernel that can be launched.
///
/// ```
/// use ringbell::GpuResult;
/// # use ringbell::Nic;
/// # use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let nic = Nic::builder().ip("10.9.9.12/24").open()?;
/// let (queue, end) = (nic.create_queue()?, nic.alloc::<GpuResult>(1)?);
/// end.write(0, &[GpuResult::UNWRITTEN])?;
/// let nop = nic.kernel("rb_nop")?;
/// // SAFETY: the SDK's kernel, and the types of its parameters (kernels/sockets.cu).
/// let launch = unsafe { nop.launch(1, 1, (&queue, 3_u32, 0_u32, &end))? };
/// launch.wait(Duration::from_secs(10))?;
/// end.to_vec()?[0].check("nop")?;
/// # Ok(()) }
/// ```
///
/// A buffer that was dropped cannot be an argument:
/// ```compile_fail,E0382
/// # let nic = ringbell::Nic::builder().open().unwrap();
/// let status = nic.alloc::<u32>(1).unwrap();
/// let kernel = nic.kernel("rb_nop").unwrap();
/// drop(status);
/// let launch = unsafe { kernel.launch(1, 1, (&status,)) };
/// ```
#[derive(Debug, Clone)]
pub struct Kernel {
    gpu: Gpu,
    name: String,
    shared_bytes: Option<u32>,
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same kernel, launched with so many bytes of dynamic shared memory for each block
    /// (`extern __shared__`). Without it a block has none on a real GPU, and on an emulated one
    /// what the kernel's own leaves of 48 KiB.
    pub fn with_shared_bytes(self, bytes: u32) -> Kernel {
        Kernel {
            shared_bytes: Some(bytes),
            ..self
        }
    }

    /// Launches `grid` blocks of `block` threads (each a number or three), at once and on a GPU
    /// stream of its own. Arguments are a tuple in the order of the kernel's parameters. Buffers,
    /// queues, communicators and kernel streams given by reference live until the kernel has ended,
    /// also when they are dropped before.
    ///
    /// # Errors
    /// [`LaunchError`]: wrong number or size of arguments (on a real GPU, of the SDK's kernels only), or an impossible shape. How
    /// the kernel ends is the [`Launch`]'s.
    ///
    /// # Safety
    /// Arguments have the types of the kernel's parameters; the kernel stays within the memory that
    /// they point to; and what addresses and handles passed by value stand for lives until it has
    /// ended.
    pub unsafe fn launch(
        &self,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: impl KernelArgs,
    ) -> Result<Launch, LaunchError> {
        // SAFETY: the caller's contract.
        unsafe { self.launch_on(&self.gpu.stream(), grid, block, args) }
    }

    /// As [`launch`](Kernel::launch), behind the present work of a GPU stream. A stream that
    /// captures holds the kernel, and what its arguments point to, in the graph.
    ///
    /// # Errors
    /// As [`launch`](Kernel::launch).
    ///
    /// # Safety
    /// As [`launch`](Kernel::launch), for each replay.
    pub unsafe fn launch_on(
        &self,
        stream: &Stream,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: impl KernelArgs,
    ) -> Result<Launch, LaunchError> {
        let (values, kept) = args.into_parts();
        let captured = stream.is_capturing();
        let shape = LaunchShape {
            dynamic_shared: self.shared_bytes,
            ..LaunchShape::new(grid, block)
        };
        // SAFETY: the caller's contract.
        let launch = unsafe { stream.launch_shape(&self.name, shape, &values) }?;
        if captured {
            stream.keep(kept);
            return Ok(launch);
        }
        Ok(launch.keep(kept))
    }
}

/// A handle that keeps memory or a queue alive.
pub type Kept = Box<dyn Any + Send>;

/// A value that a kernel takes as a parameter. Structures of a program's own implement it with
/// [`KernelArg::Bytes`].
pub trait KernelParam {
    /// The value as the kernel gets it.
    fn value(&self) -> KernelArg;

    /// What must live until the kernel has ended; nothing for plain values.
    fn kept(&self) -> Option<Kept> {
        None
    }
}

macro_rules! plain {
    ($($ty:ty),+) => {
        $(impl KernelParam for $ty {
            fn value(&self) -> KernelArg {
                KernelArg::from(*self)
            }
        })+
    };
}
plain!(
    u32,
    u64,
    i32,
    i64,
    f32,
    f64,
    GpuVa,
    QueueHandle,
    StreamRef,
    CommHandle
);

impl KernelParam for KernelArg {
    fn value(&self) -> KernelArg {
        self.clone()
    }
}

/// `uint32_t`, as `gpu_connect` takes it.
impl KernelParam for Ipv4Addr {
    fn value(&self) -> KernelArg {
        u32::from(*self).into()
    }
}

/// `uint32_t`: the session of `gpu_send` and the like.
impl KernelParam for SessionId {
    fn value(&self) -> KernelArg {
        self.0.into()
    }
}

/// The address of a part of memory. What it is a part of is not kept.
impl KernelParam for Span {
    fn value(&self) -> KernelArg {
        self.va().into()
    }
}

/// The address of its first element.
impl<T> KernelParam for &DeviceBuffer<T> {
    fn value(&self) -> KernelArg {
        self.va().into()
    }

    fn kept(&self) -> Option<Kept> {
        Some(Box::new(self.allocation().clone()))
    }
}

/// `rb_queue`.
impl KernelParam for &HostQueue {
    fn value(&self) -> KernelArg {
        self.handle().into()
    }

    fn kept(&self) -> Option<Kept> {
        Some(Box::new((*self).clone()))
    }
}

/// The arguments of a kernel: a tuple of up to sixteen [`KernelParam`]s.
pub trait KernelArgs {
    /// The values in order, and what keeps alive what they point to.
    fn into_parts(self) -> (Vec<KernelArg>, Vec<Kept>);
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: KernelParam),*> KernelArgs for ($($name,)*) {
            #[allow(non_snake_case)] // A value is called as its type.
            fn into_parts(self) -> (Vec<KernelArg>, Vec<Kept>) {
                let ($($name,)*) = self;
                let kept: [Option<Kept>; _] = [$($name.kept()),*];
                (vec![$($name.value()),*], kept.into_iter().flatten().collect())
            }
        }
        tuples!(@shorter $($name)*);
    };
    (@shorter) => {};
    (@shorter $first:ident $($rest:ident)*) => { tuples!($($rest)*); };
}
tuples!(A B C D E F G H I J K L M N O P);

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)] // Waits with a deadline.

    use std::time::{Duration, Instant};

    use super::*;
    use crate::{AllocError, GpuResult};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A NIC that only its tests find, beside a small emulated GPU.
    fn nic(folder: &std::path::Path, ip: &str) -> Nic {
        let nic = Nic::builder().ip(ip).gpu("emulated").directory(folder);
        nic.gpu_memory(8 << 20).open().expect("a NIC")
    }

    #[test]
    fn memory_of_a_kernel_is_kept_until_it_has_ended() {
        const LARGE: u64 = 5 << 20;
        let folder = std::env::temp_dir().join(format!("rb-kernel-{}", std::process::id()));
        let (a, b) = (nic(&folder, "10.9.9.31/24"), nic(&folder, "10.9.9.32/24"));
        let listener = b.listen(7).expect("a free port");
        let client = a.connect("10.9.9.32:7").expect("connected");
        let server = listener.accept().expect("the client");

        let receive = b.kernel("rb_recv_all").expect("one of the SDK's");
        let (into, end) = (
            b.alloc::<u8>(LARGE).expect("room"),
            b.alloc::<GpuResult>(1).expect("room"),
        );
        let queue = b.create_queue().expect("a queue");
        let args = (&queue, server.session(), &into, LARGE, 0_u32, &end);
        // SAFETY: the arguments have the types of the kernel's parameters.
        let launch = unsafe { receive.launch(1, 32, args) }.expect("it starts");
        // The program gives up everything that the kernel uses.
        drop((into, queue));
        let full = b.alloc::<u8>(LARGE).expect_err("the kernel has the memory");
        assert!(matches!(full, AllocError::Gpu(_)), "{full}");

        let out = a.alloc::<u8>(LARGE).expect("room");
        client.send(&out).expect("the kernel receives");
        launch.wait(PATIENCE).expect("it ends");
        let ended = end.to_vec().expect("a copy")[0];
        assert_eq!(ended.check("receive").expect("success"), LARGE);
        drop(
            b.alloc::<u8>(LARGE)
                .expect("the kernel's memory is free again"),
        );

        // The same when the launch is dropped first: a later launch finds the kernel ended.
        let (into, queue) = (
            b.alloc::<u8>(LARGE).expect("room"),
            b.create_queue().expect("one"),
        );
        let args = (&queue, server.session(), &into, LARGE, 0_u32, &end);
        // SAFETY: as above.
        drop(unsafe { receive.launch(1, 32, args) }.expect("it starts"));
        drop((into, queue));
        client.send(&out).expect("the kernel receives");
        let nop = b.kernel("rb_nop").expect("one of the SDK's");
        let (queue, status) = (
            b.create_queue().expect("one"),
            b.alloc::<GpuResult>(1).expect("room"),
        );
        let deadline = Instant::now() + PATIENCE;
        while b.alloc::<u8>(LARGE).is_err() {
            assert!(Instant::now() < deadline, "the memory is not given back");
            // SAFETY: as above.
            let launch = unsafe { nop.launch(1, 1, (&queue, 1_u32, 0_u32, &status)) };
            launch.expect("it starts").wait(PATIENCE).expect("it ends");
        }
        drop((a, b, client, server, listener));
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn wrong_names_files_and_arguments_are_refused() {
        let folder = std::env::temp_dir().join(format!("rb-refused-{}", std::process::id()));
        let nic = nic(&folder, "10.9.9.33/24");
        let unknown = nic.kernel("no_such_kernel").expect_err("unknown");
        assert!(unknown.to_string().contains("rb_nop"), "{unknown}");
        // SAFETY: there is no such file.
        let missing = unsafe { nic.module("/no/such/module") }.expect_err("no file");
        assert!(
            missing.to_string().contains("/no/such/module.ptx"),
            "{missing}"
        );
        let nop = nic.kernel("rb_nop").expect("one of the SDK's");
        // SAFETY: refused before it runs.
        let short = unsafe { nop.launch(1, 1, (1_u32,)) }.expect_err("one argument");
        assert!(
            matches!(short, LaunchError::ArgumentCount { given: 1, .. }),
            "{short}"
        );
        let queue = nic.create_queue().expect("a queue");
        // SAFETY: as above.
        let wide = unsafe { nop.launch(1, 1, (&queue, 3_u64, 0_u32, GpuVa(0))) };
        let wide = wide.expect_err("8 bytes for 4");
        assert!(
            matches!(wide, LaunchError::ArgumentSize { index: 1, .. }),
            "{wide}"
        );
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn a_module_is_the_file_that_there_is_and_a_kernel_gets_the_shared_memory_it_asks_for() {
        let folder = std::env::temp_dir().join(format!("rb-module-{}", std::process::id()));
        let nic = nic(&folder, "10.9.9.34/24");
        std::fs::create_dir_all(&folder).expect("a folder");
        let old = folder.join("old.so");
        std::fs::write(&old, b"\x7fELF of an older version").expect("written");
        // SAFETY: it is refused.
        let refused = unsafe { nic.module(&old) }.expect_err("machine code");
        let words = ["old.so", "build it again with `ringbell cc`"];
        assert!(
            words.iter().all(|w| refused.to_string().contains(w)),
            "{refused}"
        );

        let text = ".version 8.3\n.target sm_90\n.address_size 64\n\
            .extern .shared .align 4 .b32 room[];\n\
            .visible .entry tell_bytes(.param .u64 to)\n{\n\
            .reg .u32 %r<3>;\n.reg .u64 %a<2>;\nld.param.u64 %a1, [to];\n\
            mov.u32 %r1, %dynamic_smem_size;\nst.global.u32 [%a1], %r1;\n\
            mov.u32 %r2, room;\nst.shared.u32 [%r2], %r1;\nret;\n}\n";
        let fatbin = ringbell_fatbin::of_ptx(&[(90, text)]);
        std::fs::write(folder.join("mine.fatbin"), fatbin).expect("written");
        // SAFETY: our own.
        let module = unsafe { nic.module(folder.join("mine")) }.expect("the fat binary");
        let kernel = module.kernel("tell_bytes").expect("it is there");
        let bytes = nic.alloc::<u32>(1).expect("room");
        for (kernel, want) in [
            (kernel.clone(), 48 << 10),
            (kernel.clone().with_shared_bytes(1000), 1000),
            (kernel.clone().with_shared_bytes(100 << 10), 100 << 10),
        ] {
            // SAFETY: the kernel's own parameter.
            let launch = unsafe { kernel.launch(1, 1, (&bytes,)) }.expect("it starts");
            launch.wait(PATIENCE).expect("it ends");
            assert_eq!(bytes.to_vec().expect("a copy"), [want]);
        }
        // SAFETY: refused.
        let many = unsafe { kernel.with_shared_bytes(300 << 10).launch(1, 1, (&bytes,)) };
        let many = many.expect_err("more than there is").to_string();
        assert!(many.contains("307200") && many.contains("232448"), "{many}");

        // PTX is preferred where both are.
        let other = text.replace("tell_bytes", "of_ptx");
        std::fs::write(folder.join("mine.ptx"), other).expect("written");
        // SAFETY: our own.
        let module = unsafe { nic.module(folder.join("mine")) }.expect("the PTX");
        module.kernel("of_ptx").expect("it is there");
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn values_have_the_bytes_of_their_parameters() {
        let (values, kept) =
            (7_u32, -1_i64, Ipv4Addr::new(10, 0, 0, 1), GpuVa(0x1000)).into_parts();
        let bytes: Vec<usize> = values.iter().map(KernelArg::size).collect();
        assert_eq!(bytes, [4, 8, 4, 8]);
        assert_eq!(values[2], KernelArg::U32(0x0a00_0001));
        assert!(kept.is_empty());
    }
}
