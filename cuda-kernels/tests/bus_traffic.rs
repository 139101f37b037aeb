//! What an operation of a kernel costs on the bus between GPU and host, counted on the emulated GPU (docs/adr/0023):
//! round trips are what the time of a small operation is made of, and they are the same everywhere.
#![allow(unsafe_code)] // Launches kernels.

use crate::common;

use common::{MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::{Gpu, KernelArg};

const T: u32 = 60_000_000;
const TIMES: u32 = 100;

/// Of `TIMES` operations: reads, stores, fences, fences that wait, accesses to GPU memory; looks; failures.
type Counts = [u32; 7];

/// On a queue for all, on one for the thread alone, and on the one for all again.
fn counts(kernel: &str, args: impl Fn(&Gpu) -> Vec<KernelArg>) -> [Counts; 3] {
    let gpu: Gpu = common::test_gpu::emulated().into();
    common::test_gpu::load(&gpu, "bus_traffic");
    let first = 0u32.wrapping_sub(64);
    let nic = MockNic::start(&gpu, Queue::new(&gpu, 3, first, T, 1_000_000));
    let out = gpu.alloc(4096).unwrap();
    let mut all = vec![nic.handle(), TIMES.into()];
    all.extend(args(&gpu));
    all.push((&out).into());
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe { gpu.launch(kernel, 1, 1, &all) }.unwrap();
    launch.wait(PATIENCE).unwrap();
    std::array::from_fn(|i| std::array::from_fn(|j| out.load_u32((i * 7 + j) as u64 * 4).unwrap()))
}

fn check(counts: [Counts; 3], reads: u32) {
    for (which, [read, store, fence, stall, device, look, failed]) in counts.into_iter().enumerate()
    {
        assert_eq!(failed, 0);
        assert!(look >= TIMES, "each operation sees its line");
        let own = which == 1;
        // Four pairs of words and the doorbell, behind one fence that nothing holds up.
        assert_eq!((store, fence, stall), (5 * TIMES, TIMES, 0), "{which}");
        assert_eq!(read, reads * TIMES, "{which}");
        let waits = if own { 0 } else { 4 * TIMES };
        assert_eq!(
            device, waits,
            "{which}: tail, released, swap, and the release"
        );
    }
}

#[test]
fn a_command_waits_for_nothing_on_the_bus_but_its_completion() {
    check(counts("t_bus_nop", |_| Vec::new()), 0);
}

#[test]
fn a_small_send_waits_for_nothing_on_the_bus_but_its_completion() {
    let buf = std::cell::OnceCell::new();
    let of = |gpu: &Gpu| {
        let buf = buf.get_or_init(|| gpu.alloc(4096).unwrap());
        vec![buf.into()]
    };
    check(counts("t_bus_send", of), 0);
}

#[test]
fn a_completion_with_details_costs_one_more_read() {
    check(counts("t_bus_socket", |_| Vec::new()), 1);
}
