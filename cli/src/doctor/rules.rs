//! Checks of the properties of GPU, driver and environment that decide how kernels and NIC may run
//! side by side (ADR 26).

use ringbell::parts::cuda_kernels::cuda::{
    Capabilities, ComputeMode, CudaGpu, WriteOrder, CONNECTIONS_VARIABLE,
};

use super::check::{Check, Verdict};

pub(super) fn checks(cuda: &CudaGpu) -> Vec<Check> {
    of(&cuda.capabilities())
}

fn of(gpu: &Capabilities) -> Vec<Check> {
    vec![
        sharing(gpu),
        atomics(gpu),
        order(gpu),
        work_queues(gpu),
        loading(gpu),
    ]
}

/// Which processes may use it, and for how long at a time.
fn sharing(gpu: &Capabilities) -> Check {
    const NAME: &str = "GPU sharing";
    let instead =
        |found: &str, used: &str, why: &str| Check::new(NAME, Verdict::Instead, found, used, why);
    if gpu.watchdog {
        return instead(
            "a watchdog ends kernels after a few seconds",
            "kernels, as long as none waits longer",
            "a screen hangs on this GPU (KERNEL_EXEC_TIMEOUT), and a kernel that waits too long loses the whole context: set time-outs of queues and calls below a second, or use a GPU without a screen",
        );
    }
    match gpu.compute_mode {
        ComputeMode::OneProcess if gpu.mps != Some(true) => instead(
            "one process at a time may use it",
            "this process; ranks as threads, not as processes",
            "compute mode EXCLUSIVE_PROCESS: a second process gets CUDA_ERROR_DEVICE_UNAVAILABLE; `nvidia-smi -c 0` (as root) lets all in",
        ),
        ComputeMode::Prohibited => instead(
            "no process may use it",
            "nothing",
            "compute mode PROHIBITED; `nvidia-smi -c 0` (as root) lets all in",
        ),
        _ if gpu.wsl => instead(
            "Windows holds it (WSL)",
            "kernels, whose launches the driver may put off",
            "under WSL launches are batched, and of two kernels that wait for each other one may not have started: use a Linux driver for NICs beside this GPU",
        ),
        _ => {
            let mut found = String::from("any process may use it, as long as it wants");
            if gpu.mps == Some(true) {
                found.push_str("; by the Multi-Process Service");
            }
            if gpu.partition {
                found.push_str("; a part of a GPU");
            }
            let why = match gpu.mps {
                Some(true) => "kernels of several processes run at the same time; one that fails ends all clients of the service",
                _ => "kernels of several processes take turns: ranks on one GPU that wait for each other are quicker as threads of one process, or under the Multi-Process Service",
            };
            let used = format!(
                "{} multiprocessors, {} copy engines",
                gpu.multiprocessors, gpu.copy_engines
            );
            Check::new(NAME, Verdict::Ok, found, used, why)
        }
    }
}

/// Memory that CPU and kernels share.
fn atomics(gpu: &Capabilities) -> Check {
    const NAME: &str = "GPU and host memory";
    let host = &gpu.host_access;
    let place = match (host.unified_addresses, host.same_pointer) {
        (true, true) => "one address space, registered memory at the host's addresses",
        (true, false) => "one address space, registered memory elsewhere for kernels",
        (false, _) => "address spaces of their own",
    };
    let found = match (host.native_atomics, host.compare_and_swap) {
        (true, _) | (_, Some(true)) => "atomic for CPU and GPU",
        (false, Some(false)) => "a kernel's atomics are none for the CPU",
        (false, None) => "the driver promises no atomics with the CPU",
    };
    Check::new(
        NAME,
        Verdict::Ok,
        found,
        "kernels' tickets in GPU memory, a ring of its own for host threads",
        format!("{place}; no word there is changed by both with atomics, so that nothing depends on the bus"),
    )
}

/// Writes to GPU memory that do not come from its kernels.
fn order(gpu: &Capabilities) -> Check {
    const NAME: &str = "GPU write order";
    let rdma = &gpu.direct_rdma;
    let found = match rdma.write_order {
        WriteOrder::None => "writes from outside need a flush",
        WriteOrder::Owner => "its kernels see writes from outside in order",
        WriteOrder::AllDevices => "all GPUs see writes from outside in order",
    };
    let mut why = String::from("a completion is stored to host memory when the copies before it have ended, or, where memory is mapped, when a byte has been read back");
    why.push_str(match (rdma.supported, rdma.host_flush) {
        (false, _) => "; no other device can reach this GPU's memory",
        (true, true) => "; other devices can reach it, and the host could flush their writes",
        (true, false) => "; other devices can reach it, and the host cannot flush their writes",
    });
    Check::new(
        NAME,
        Verdict::Ok,
        found,
        "an event or a read before each completion",
        why,
    )
}

/// Hardware queues that streams share.
fn work_queues(gpu: &Capabilities) -> Check {
    const NAME: &str = "GPU work queues";
    let used = "streams made ahead; copies of a higher priority, which have theirs";
    match gpu.connections {
        Some(n) if n < 8 => Check::new(
            NAME,
            Verdict::Instead,
            format!("{n} for all streams ({CONNECTIONS_VARIABLE})"),
            used,
            format!("a kernel that waits holds up kernels of other streams behind it, until its deadline ends it with TIMED_OUT; unset {CONNECTIONS_VARIABLE}, or set it to 32"),
        ),
        Some(n) => Check::new(
            NAME,
            Verdict::Ok,
            format!("{n} ({CONNECTIONS_VARIABLE})"),
            used,
            "kernels that wait for each other are in streams of their own, up to so many of them",
        ),
        None => Check::new(
            NAME,
            Verdict::Ok,
            "as many as the driver takes (8)",
            used,
            format!("with more than 8 kernels that wait, one may hold up another until its deadline: set {CONNECTIONS_VARIABLE}=32 before the program starts"),
        ),
    }
}

fn loading(gpu: &Capabilities) -> Check {
    let found = match gpu.lazy_loading {
        Some(true) => "lazy",
        Some(false) => "eager (CUDA_MODULE_LOADING)",
        None => "the driver does not say",
    };
    Check::new(
        "GPU kernel loading",
        Verdict::Ok,
        found,
        "every kernel is loaded when the GPU is opened",
        "the first launch of a kernel that is not loaded yet waits for all others; kernels of other libraries in the same program need CUDA_MODULE_LOADING=EAGER",
    )
}

#[cfg(test)]
mod tests {
    use ringbell::parts::cuda_kernels::cuda::{DirectRdma, HostAccess};

    use super::*;

    fn h200() -> Capabilities {
        Capabilities {
            multiprocessors: 132,
            copy_engines: 3,
            compute_mode: ComputeMode::Shared,
            watchdog: false,
            integrated: false,
            host_access: HostAccess {
                unified_addresses: true,
                same_pointer: true,
                native_atomics: false,
                compare_and_swap: None,
            },
            direct_rdma: DirectRdma {
                supported: true,
                host_flush: true,
                write_order: WriteOrder::Owner,
            },
            mps: Some(false),
            lazy_loading: Some(true),
            connections: None,
            wsl: false,
            partition: false,
        }
    }

    #[test]
    fn limits_on_programs_are_reported_with_a_remedy() {
        type Change = fn(&mut Capabilities);
        let cases: [(Change, &str, &str); 5] = [
            (|f| f.watchdog = true, "GPU sharing", "time-outs"),
            (
                |f| f.compute_mode = ComputeMode::OneProcess,
                "GPU sharing",
                "nvidia-smi -c 0",
            ),
            (
                |f| f.compute_mode = ComputeMode::Prohibited,
                "GPU sharing",
                "nvidia-smi -c 0",
            ),
            (|f| f.wsl = true, "GPU sharing", "Linux driver"),
            (
                |f| f.connections = Some(1),
                "GPU work queues",
                "TIMED_OUT; unset CUDA_DEVICE_MAX_CONNECTIONS",
            ),
        ];
        for (change, name, words) in cases {
            let mut gpu = h200();
            change(&mut gpu);
            let checks = of(&gpu);
            let check = checks.iter().find(|c| c.name == name).expect("a line");
            assert_eq!(check.verdict, Verdict::Instead, "{check:?}");
            assert!(check.why.contains(words), "{check:?}");
        }
    }

    #[test]
    fn a_sound_machine_passes_every_rule() {
        let mut gpu = h200();
        for swaps in [None, Some(false), Some(true)] {
            gpu.host_access.compare_and_swap = swaps;
            assert_eq!(atomics(&gpu).verdict, Verdict::Ok);
        }
        gpu.compute_mode = ComputeMode::OneProcess;
        gpu.mps = Some(true);
        gpu.connections = Some(32);
        for check in of(&gpu) {
            assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
        }
    }
}
