//! An echo server inside one kernel, with 100 connections open at the same time.
//!
//! The server is `rb_echo_server` (`cuda-kernels/kernels/echo.cu`): one thread that accepts
//! connections and serves them all by non-blocking requests, as an event loop does on a CPU. The
//! clients are the 100 blocks of the kernel in `client.cu`. Each connection has a queue of its own,
//! so that a silent peer delays no other.
//!
//! Run: `cargo run -p ringbell --example 03_echo_server_100_connections`
//!
//! Prints `100 connections served, 0 failed; 6400000 bytes echoed, 0 wrong`; ends with an error
//! otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::nic::NicConfig;
use ringbell::parts::cuda_kernels::echo::{EchoConfig, EchoServer};
use ringbell::{GpuResult, HostQueue, KernelArg, Nic};

#[path = "../support/kernels.rs"]
mod kernels;

const CONNECTIONS: u32 = 100;
const ROUNDS: u32 = 4;
/// Bytes of one message.
const BYTES: u64 = 16_000;
const PORT: u16 = 7;
const SERVER: &str = "10.77.103.1";

fn main() -> Result<(), Error> {
    let module = kernels::of("03_echo_server_100_connections/client.cu");
    let (server, client) = (open(SERVER)?, open("10.77.103.2")?);

    // The host opens the listening socket; any kernel may use its number.
    // As many may wait to be accepted as there are clients.
    let listener = server.listen_with(PORT, CONNECTIONS as u16)?;
    let queues = queues(&server, CONNECTIONS + 1)?;
    let memory = server.alloc::<u8>(BYTES * u64::from(CONNECTIONS))?;
    let handles: Vec<_> = queues.iter().map(HostQueue::handle).collect();
    let echo = EchoServer::start(
        server.gpu(),
        &handles,
        memory.memory(),
        EchoConfig {
            listener: listener.session(),
            connections: CONNECTIONS,
            serve: u64::from(CONNECTIONS),
            chunk: BYTES,
            poll_us: 20_000,
            idle_limit_us: 30_000_000,
        },
    )?;

    // A kernel takes many handles as an array in GPU memory.
    let queues = self::queues(&client, CONNECTIONS)?;
    let mut bytes = Vec::new();
    for queue in &queues {
        bytes.extend(KernelArg::from(queue.handle()).to_bytes());
    }
    let handles = client.alloc::<u8>(bytes.len() as u64)?;
    handles.write(0, &bytes)?;
    let memory = client.alloc::<u8>(2 * BYTES * u64::from(CONNECTIONS))?;
    let (ends, wrong) = (
        client.alloc::<GpuResult>(CONNECTIONS.into())?,
        client.alloc::<u32>(1)?,
    );
    ends.write(0, &[GpuResult::UNWRITTEN; CONNECTIONS as usize])?;
    let (to, port): (Ipv4Addr, u32) = (SERVER.parse()?, PORT.into());
    let args = (&handles, to, port, &memory, BYTES, ROUNDS, &ends, &wrong);
    // SAFETY: client.cu is ours, the arguments have the types of its parameters, and `queues`
    // outlive the launch.
    let clients = unsafe {
        let kernel = client.module(&module)?.kernel("echo_client")?;
        kernel.launch(CONNECTIONS, 32, args)?
    };
    clients.wait(Duration::from_secs(100))?;
    let served = echo.wait(Duration::from_secs(100))?;

    for (i, result) in ends.to_vec()?.iter().enumerate() {
        result.check("client").map_err(|e| anyhow!("{i}: {e}"))?;
    }
    let counted = wrong.to_vec()?[0];
    println!(
        "{} connections served, {} failed; {} bytes echoed, {counted} wrong",
        served.served, served.failed, served.bytes
    );
    let all = u64::from(CONNECTIONS) * u64::from(ROUNDS) * BYTES;
    match (counted, served.failed, served.bytes == all) {
        (0, 0, true) => Ok(()),
        _ => Err(anyhow!("something is wrong; {all} bytes were expected")),
    }
}

fn open(ip: &str) -> Result<Nic, Error> {
    let limits = NicConfig {
        max_queues: 128,
        ..NicConfig::default()
    };
    Ok(Nic::builder().ip(ip).limits(limits).open()?)
}

fn queues(nic: &Nic, count: u32) -> Result<Vec<HostQueue>, Error> {
    (0..count).map(|_| Ok(nic.create_queue()?)).collect()
}
