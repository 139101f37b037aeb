//! The tutorial's own kernel, built by `ringbell cc` and run: what a reader types works.

use std::process::Command;
use std::time::Duration;

use ringbell::abi::{Completion, Descriptor, GpuVa, Opcode, SessionId, Status};
use ringbell::{HostQueue, Nic, NicOptions};

fn open(ip: &str, discovery: &std::path::Path) -> Nic {
    let mut options = NicOptions {
        ip: ip.parse().expect("an address"),
        ..NicOptions::default()
    };
    // A folder of its own: other tests run at the same time, with the same addresses.
    options.local.directory = Some(discovery.join("nics"));
    Nic::open(options).expect("a NIC")
}

fn call(queue: &HostQueue, d: &Descriptor) -> Completion {
    let done = queue.call(d).expect("the NIC answers");
    assert_eq!(done.status, Status::Ok, "{:?}", d.opcode);
    done
}

#[test]
fn the_kernel_of_the_tutorial_adds_up_what_it_receives() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tutorial");
    std::fs::create_dir_all(&dir).expect("a folder");
    let tutorial = include_str!("../docs/tutorial.md");
    let source = tutorial
        .split_once("```cuda\n")
        .and_then(|(_, rest)| rest.split_once("```"))
        .expect("the tutorial shows a kernel")
        .0;
    let file = dir.join("sum.cu");
    std::fs::write(&file, source).expect("written");
    let built = Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .args(["cc", "--no-nvcc"])
        .arg(&file)
        .output()
        .expect("the program starts");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );

    let (server, client) = (open("10.77.0.1/24", &dir), open("10.77.0.2/24", &dir));
    let host = server.create_queue().expect("a queue");
    let listener = SessionId(call(&host, &Descriptor::new(Opcode::Socket)).detail as u32);
    let on = |session, opcode| Descriptor {
        session,
        ..Descriptor::new(opcode)
    };
    call(
        &host,
        &Descriptor {
            imm: 7000,
            ..on(listener, Opcode::Listen)
        },
    );

    client
        .gpu()
        .load_module(&dir.join("sum.so"))
        .expect("loads");
    let queue = client.create_queue().expect("a queue");
    let alloc = |nic: &Nic, bytes| nic.alloc(bytes).expect("memory");
    let (input, output, end) = (alloc(&client, 4000), alloc(&client, 4), alloc(&client, 24));
    let kernel = client
        .gpu()
        .launch(
            "sum",
            1,
            128,
            &[
                queue.handle().into(),
                0x0a4d_0001_u32.into(),
                7000_u32.into(),
                (&input).into(),
                1000_u64.into(),
                (&output).into(),
                (&end).into(),
            ],
        )
        .expect("launched");

    let peer = SessionId(call(&host, &on(listener, Opcode::Accept)).detail as u32);
    let memory = alloc(&server, 4000);
    let numbers: Vec<u8> = (0..1000_u16)
        .flat_map(|i| f32::from(i).to_le_bytes())
        .collect();
    memory.write(0, &numbers).expect("written");
    let transfer = |opcode, len| Descriptor {
        local_va: GpuVa(memory.va().0),
        len,
        ..on(peer, opcode)
    };
    call(&host, &transfer(Opcode::Send, 4000));
    call(&host, &transfer(Opcode::Recv, 4));
    kernel
        .wait(Duration::from_secs(30))
        .expect("the kernel ends");
    let mut sum = [0; 4];
    memory.read(0, &mut sum).expect("read");
    assert_eq!(f32::from_le_bytes(sum), 499_500.0);
    let mut status = [0; 4];
    end.read(0, &mut status).expect("read");
    assert_eq!(u32::from_le_bytes(status), u32::from(Status::Ok.code()));
}
