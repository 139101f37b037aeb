//! The thinnest whole path: a kernel's nop, send and receive against a NIC made of a thread.
#![allow(unsafe_code)] // Launches kernels.

use crate::common;

use common::{gpu, pattern, result, MockNic, Queue, PATIENCE};
use ringbell_nic_abi::Status;

#[test]
fn nop_send_and_receive() {
    let gpu = gpu();
    let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, 0, 20_000_000, 1_000_000));
    let out = gpu.alloc(4096).unwrap();
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe {
        gpu.launch(
            "rb_nop",
            1,
            1,
            &[nic.handle(), 100u32.into(), 0u32.into(), (&out).into()],
        )
    }
    .unwrap()
    .wait(PATIENCE)
    .unwrap();
    assert_eq!(result(&out, 0).status, Status::Ok);

    for (len, lanes) in [
        (1u64, 1u32),
        (8, 1),
        (40, 33),
        (41, 64),
        (100_000, 256),
        (3_000_000, 1024),
    ] {
        let (from, to) = (gpu.alloc(len).unwrap(), gpu.alloc(len).unwrap());
        let bytes = pattern(len as usize, lanes as u8);
        from.write(0, &bytes).unwrap();
        for (kernel, buffer) in [("rb_send_all", &from), ("rb_recv_all", &to)] {
            let args = [
                nic.handle(),
                5u32.into(),
                buffer.into(),
                len.into(),
                0u32.into(),
                (&out).into(),
            ];
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            unsafe { gpu.launch(kernel, 1, lanes, &args) }
                .unwrap()
                .wait(PATIENCE)
                .unwrap();
            let r = result(&out, 0);
            assert_eq!(
                (r.status, r.bytes),
                (Status::Ok, len),
                "{kernel} of {len} by {lanes}"
            );
        }
        let mut got = vec![0; len as usize];
        to.read(0, &mut got).unwrap();
        assert!(got == bytes, "{len} bytes by {lanes} lanes");
    }
}
