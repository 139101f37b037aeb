//! Settings of the driver, and faults that a test asks for.

use std::sync::OnceLock;

use crate::Result;

/// Settings, and faults that a test asks for.
#[derive(Debug, Default)]
pub struct Faults {
    /// `no-device`: a driver without a GPU.
    pub no_device: bool,
    /// `broken`: the driver cannot start, with an error that has no name.
    pub broken: bool,
    /// `old-driver`: for CUDA 11.8.
    pub old_driver: bool,
    /// `no-fatbin`: fat binaries hold nothing for this GPU.
    pub no_fatbin: bool,
    /// `no-ptx`: PTX is of a version that the driver does not know.
    pub no_ptx: bool,
    /// `no-nvrtc`: the run-time compiler knows no such GPU.
    pub no_nvrtc: bool,
    /// `slow-writes`: every copy to the GPU takes five milliseconds, so that a reader that does not
    /// wait for it sees the bytes from before.
    pub slow_writes: bool,
    /// `guard`: memory of the GPU ends a program that touches it from the host. Kernels, which run
    /// on the host here, may not use it either.
    pub guard: bool,
    /// `no-pinning`: the host has no memory to pin.
    pub no_pinning: bool,
    /// `dmabuf`: no fault, but a GPU whose dma-bufs the CPU can map.
    pub dmabuf: bool,
    /// `no-io-memory`: registers of a device cannot be registered.
    pub no_io_memory: bool,
    /// `kill=KERNEL`: that kernel ends with an error that no call recovers from.
    pub kill: Option<String>,
    /// `no-words`: streams have no memory operations.
    pub no_words: bool,
    /// `other-gpu`: the GPU has another name (UUID) than that of processes without this fault.
    pub other_gpu: bool,
    /// `no-ipc`: no memory can be shared with other processes.
    pub no_ipc: bool,
    /// `memory=BYTES`: of the GPU.
    pub memory: Option<u64>,
    /// `init=CODE`: what cuInit answers.
    pub init: Option<Result>,
    /// `context=CODE`: what making a context answers.
    pub context: Option<Result>,
    /// `image=CODE`: what loading a fat binary or PTX answers.
    pub image: Option<Result>,
    /// `capability=90`: compute capability, 10 × major + minor.
    pub capability: Option<i32>,
    /// `attribute=ID:VALUE`, any number of them: attributes of the device.
    pub attributes: Vec<(i32, i32)>,
    /// `sms=N`: multiprocessors.
    pub sms: Option<i32>,
    /// `may-wait`: calls that wait for all work in some drivers do so: allocations, registrations,
    /// new streams.
    pub may_wait: bool,
    /// `lazy-launch`: a function is loaded by cuFuncLoad, else by its first launch, not when it is
    /// looked for.
    pub lazy_launch: bool,
    /// `stack=KERNEL:BYTES`: that kernel needs so much stack.
    pub stack: Option<(String, i32)>,
    /// `patience=MS`: how long a call waits for all work before that is called a deadlock.
    pub patience_ms: Option<u64>,
    /// `ptx=FOLDER`: texts there are taken in place of those with the same kernels.
    pub ptx: Option<String>,
    /// `trace`: calls that have waited are said on standard error.
    pub trace: bool,
}

/// The number in a fault.
fn number<T: std::str::FromStr>(fault: &str, text: &str) -> T {
    text.parse()
        .unwrap_or_else(|_| panic!("RINGBELL_CUDA: `{fault}` needs a number"))
}

impl Faults {
    fn read() -> Faults {
        let mut f = Faults::default();
        let list = std::env::var(MOCK).or_else(|_| std::env::var(SETTINGS));
        let list = list.unwrap_or_default();
        for fault in list.split(',').filter(|s| !s.is_empty()) {
            match fault.split_once('=').unwrap_or((fault, "")) {
                ("no-device", _) => f.no_device = true,
                ("broken", _) => f.broken = true,
                ("old-driver", _) => f.old_driver = true,
                ("no-fatbin", _) => f.no_fatbin = true,
                ("no-ptx", _) => f.no_ptx = true,
                ("no-nvrtc", _) => f.no_nvrtc = true,
                ("slow-writes", _) => f.slow_writes = true,
                ("guard", _) => f.guard = true,
                ("no-pinning", _) => f.no_pinning = true,
                ("no-words", _) => f.no_words = true,
                ("other-gpu", _) => f.other_gpu = true,
                ("no-ipc", _) => f.no_ipc = true,
                ("dmabuf", _) => f.dmabuf = true,
                ("no-io-memory", _) => f.no_io_memory = true,
                ("kill", name) => f.kill = Some(name.to_owned()),
                ("memory", bytes) => f.memory = bytes.parse().ok(),
                ("init", code) => f.init = Some(number(fault, code)),
                ("context", code) => f.context = Some(number(fault, code)),
                ("image", code) => f.image = Some(number(fault, code)),
                ("capability", c) => f.capability = Some(number(fault, c)),
                ("sms", n) => f.sms = Some(number(fault, n)),
                ("attribute", both) => {
                    let (id, value) = both.split_once(':').unwrap_or_default();
                    f.attributes.push((number(fault, id), number(fault, value)));
                }
                ("stack", both) => {
                    let (kernel, bytes) = both.split_once(':').unwrap_or_default();
                    f.stack = Some((kernel.to_owned(), number(fault, bytes)));
                }
                ("patience", ms) => f.patience_ms = Some(number(fault, ms)),
                ("may-wait", _) => f.may_wait = true,
                ("lazy-launch", _) => f.lazy_launch = true,
                ("ptx", folder) => f.ptx = Some(folder.to_owned()),
                ("trace", _) => f.trace = true,
                // A misspelt fault would make its test pass for nothing.
                _ => panic!("RINGBELL_CUDA: `{fault}` is no setting of this driver"),
            }
        }
        f
    }
}

/// Settings of the driver as a test double, which their presence makes it.
pub(crate) const MOCK: &str = "RINGBELL_MOCK_CUDA";
/// The same settings, of the driver of users' programs.
const SETTINGS: &str = "RINGBELL_CUDA";

/// The faults that were asked for.
pub fn faults() -> &'static Faults {
    static FAULTS: OnceLock<Faults> = OnceLock::new();
    FAULTS.get_or_init(Faults::read)
}
