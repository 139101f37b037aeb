//! The mailbox by which kernels tell the host values, on each kind of NIC.
#![allow(unsafe_code)] // Launches kernels.

use crate::test_gpu;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ringbell::abi::{EventKind, Status};
use ringbell::Nic;

const COUNT: u32 = 300;

static BUILDING: Mutex<()> = Mutex::new(());

fn told(kind: &str, ip: &str) {
    let gpu = match test_gpu::on_cuda() {
        true => "cuda:0",
        false => "auto",
    };
    let name = format!("mailbox-{kind}-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let nic = Nic::builder().nic(kind).ip(ip).directory(&folder);
    let nic = nic.gpu(gpu).gpu_memory(4 << 20).open().expect("a NIC");
    {
        // One file, and tests of one process.
        let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        test_gpu::load(nic.gpu(), "tell");
    }
    let queue = nic.create_queue().expect("a queue");
    let end = nic.alloc::<u32>(1).expect("memory");
    let first = u32::MAX - 20; // They wrap.
    let args = [
        queue.handle().into(),
        first.into(),
        COUNT.into(),
        (&end).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let kernel = unsafe { nic.gpu().launch("tell", 1, 1, &args) };
    kernel
        .expect("launched")
        .wait(Duration::from_secs(60))
        .expect("it ends");
    assert_eq!(end.to_vec().expect("read"), [u32::from(Status::Ok.code())]);
    // Each value once and in order, those that are the same as the one before as well.
    for i in 0..COUNT {
        let event = nic.poll_event().expect("an event for each value");
        let value = first.wrapping_add(i / 2);
        assert_eq!(event.kind, EventKind::Mailbox.code());
        assert_eq!((event.session, event.data), (i + 1, value.into()));
    }
    assert_eq!(nic.poll_event(), None);
    drop(nic);
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn what_a_kernel_tells_reaches_the_host_once_and_in_order() {
    told("soft", "10.78.0.1/24");
}

#[cfg(feature = "rtl")]
#[test]
fn what_a_kernel_tells_passes_the_register_file_of_the_hardware() {
    told("rtl", "10.78.0.2/24");
}
