//! What an operation of a kernel costs on the bus between GPU and host, counted on the emulated GPU
//! (docs/adr/0023): round trips are what the time of a small operation is made of, and they are the
//! same everywhere.
//!
//! The kernels' PTX counts for itself: before each ordered access stands code that adds to a
//! counter.
#![allow(unsafe_code)] // Launches kernels.

use crate::common;

use std::fmt::Write as _;

use common::{test_gpu, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::{Dim3, EmulatedGpu, LaunchShape, LoadedModule};

const T: u32 = 60_000_000;
const TIMES: u32 = 100;

/// A counter in the variable `bus`.
#[derive(Clone, Copy)]
enum Bus {
    /// Loads from the host's memory: a round trip each.
    Read,
    /// Loads of 16 bytes of completion lines: a round trip each, and the last one is needed.
    Look,
    /// Stores to the host's memory, without a wait.
    Store,
    /// Fences for the whole system.
    Fence,
    /// Those that wait for stores on their way to the host, about a round trip each.
    Stall,
    /// Accesses to the GPU's own memory that are waited for.
    Device,
    /// Stores since the last fence or answer.
    OnTheWay,
}
const COUNTERS: usize = 7;

/// Code that adds 1 to a counter.
fn add(counter: Bus) -> String {
    let at = counter as usize * 4;
    format!("ld.global.u32 n, [bus+{at}];\nadd.u32 n, n, 1;\nst.global.u32 [bus+{at}], n;\n")
}

fn clear(counter: Bus) -> String {
    format!("st.global.u32 [bus+{}], 0;\n", counter as usize * 4)
}

/// Code that counts what stands in a line of PTX. It is one thread's.
fn counts(line: &str) -> String {
    let has = |begin: &str, scope: &str| {
        let all = line.split([';', '{', ' ']);
        let mut ops = all.filter(|op| op.starts_with(begin));
        ops.any(|op| op.contains(scope))
    };
    let mut code = String::new();
    if has("fence.", ".sys") || has("st.release", ".sys") {
        let (way, stall) = (Bus::OnTheWay as usize * 4, Bus::Stall as usize * 4);
        code += &add(Bus::Fence);
        // One more stall if something is on the way.
        code += &format!(
            "ld.global.u32 n, [bus+{way}];\nmin.u32 n, n, 1;\nld.global.u32 m, [bus+{stall}];\n"
        );
        code += &format!("add.u32 n, n, m;\nst.global.u32 [bus+{stall}], n;\n");
        code += &clear(Bus::OnTheWay);
    }
    if has("st.", ".sys") {
        code += &add(Bus::Store);
        code += &add(Bus::OnTheWay);
    }
    if has("ld.", ".sys") && line.contains(".b128") {
        // An answer has come: what was stored before it has arrived.
        code += &add(Bus::Look);
        code += &clear(Bus::OnTheWay);
    } else if has("ld.", ".sys") {
        code += &add(Bus::Read);
    }
    if has("ld.", ".gpu") || has("atom.", ".gpu") || has("st.release", ".gpu") {
        code += &add(Bus::Device);
    }
    code
}

/// The kernels, with code that counts.
fn counting() -> String {
    let file = test_gpu::module_of("bus_traffic");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut counted = String::new();
    for line in text.lines() {
        let code = counts(line);
        if !code.is_empty() {
            writeln!(counted, "{{\n.reg .u32 n, m;\n{code}}}").unwrap();
        }
        writeln!(counted, "{line}").unwrap();
        if line.starts_with(".address_size") {
            writeln!(counted, ".global .align 4 .b32 bus[{COUNTERS}];").unwrap();
        }
    }
    counted
}

/// A GPU with the kernels, and a NIC.
struct Setting {
    gpu: EmulatedGpu,
    module: LoadedModule,
    nic: MockNic,
}

impl Setting {
    fn new() -> Setting {
        let gpu = test_gpu::emulated();
        let module = gpu.load_ptx("bus_traffic.ptx", &counting()).unwrap();
        let first = 0u32.wrapping_sub(64);
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 3, first, T, 1_000_000));
        Setting { gpu, module, nic }
    }

    /// What so many operations cost.
    fn run(&self, kernel: &str, own: bool, times: u32) -> [u32; COUNTERS] {
        let (bus, bytes) = self.module.variable("bus").unwrap();
        assert_eq!(bytes, 4 * COUNTERS as u64);
        self.gpu.write(bus, &[0; 4 * COUNTERS]).unwrap();
        let (buf, failed) = (self.gpu.alloc(64).unwrap(), self.gpu.alloc(4).unwrap());
        failed.write(0, &[1; 4]).unwrap();
        let args = [
            self.nic.handle(),
            u32::from(own).into(),
            times.into(),
            (&buf).into(),
            (&failed).into(),
        ];
        let shape = LaunchShape {
            grid: Dim3::ONE,
            block: Dim3::ONE,
            dynamic_shared: None,
        };
        let kernel = self.module.kernel(kernel).unwrap();
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe { kernel.launch(&self.gpu.stream(), shape, &args) };
        launch.unwrap().wait(PATIENCE).unwrap();
        assert_eq!(failed.load_u32(0).unwrap(), 0);
        let mut all = [0; 4 * COUNTERS];
        self.gpu.read(bus, &mut all).unwrap();
        std::array::from_fn(|i| u32::from_le_bytes(all[4 * i..][..4].try_into().unwrap()))
    }

    /// What `TIMES` operations cost beside what comes before them.
    fn counts(&self, kernel: &str, own: bool) -> [u32; COUNTERS] {
        let (few, many) = (
            self.run(kernel, own, TIMES),
            self.run(kernel, own, 2 * TIMES),
        );
        std::array::from_fn(|i| many[i].wrapping_sub(few[i]))
    }
}

/// On a queue for all, on one for the thread alone, and on the one for all again.
fn check(kernel: &str, reads: u32) {
    let setting = Setting::new();
    for own in [false, true, false] {
        let [read, _, store, fence, stall, device, _] = setting.counts(kernel, own);
        let all = setting.run(kernel, own, TIMES);
        assert!(
            all[Bus::Look as usize] >= TIMES,
            "each operation sees its line"
        );
        // Four pairs of words and the doorbell, behind one fence that nothing holds up.
        assert_eq!((store, fence, stall), (5 * TIMES, TIMES, 0), "own: {own}");
        assert_eq!(read, reads * TIMES, "own: {own}");
        let waits = if own { 0 } else { 4 * TIMES };
        assert_eq!(
            device, waits,
            "own: {own}: tail, released, swap, and the release"
        );
    }
}

#[test]
fn a_command_waits_for_nothing_on_the_bus_but_its_completion() {
    check("t_bus_nop", 0);
}

#[test]
fn a_small_send_waits_for_nothing_on_the_bus_but_its_completion() {
    check("t_bus_send", 0);
}

#[test]
fn a_completion_with_details_costs_one_more_read() {
    check("t_bus_socket", 1);
}
