//! A client and a server whose sockets live in kernels (FpgaNIC, Figure 10).
//!
//! The kernels are in `figure10.cu`: the host loads them, starts each once, and takes no part in the
//! handshake or the transfer. Two NICs in one process stand for two machines.
//!
//! Run: `cargo build && cargo run --example 02_sockets_in_kernels`. The program builds the kernels with
//! `ringbell cc`; yours would do so beforehand.
//!
//! Prints `1048576 bytes from kernel to kernel, 0 wrong`; ends with an error otherwise.

use std::time::Duration;

use ringbell::abi::Status;
use ringbell::{DeviceBuffer, KernelArg, Nic, NicOptions};

#[path = "../support/kernels.rs"]
mod kernels;

type Error = Box<dyn std::error::Error>;

const BYTES: u64 = 1 << 20;
const PORT: u32 = 4791;
const SERVER: &str = "10.77.102.1";

fn main() -> Result<(), Error> {
    let module = kernels::build("02_sockets_in_kernels/figure10.cu")?;
    let open = |ip: &str| -> Result<Nic, Error> {
        let nic = Nic::open(NicOptions {
            ip: ip.parse()?,
            ..NicOptions::default()
        })?;
        nic.gpu().load_module(&module)?;
        Ok(nic)
    };
    let (server, client) = (open(SERVER)?, open("10.77.102.2")?);

    // A kernel gets the handle of a queue, and from then on drives the NIC by itself.
    let (server_queue, client_queue) = (server.create_queue()?, client.create_queue()?);
    let (rcv_data, server_end, wrong) = (server.alloc(BYTES)?, server.alloc(24)?, server.alloc(4)?);
    let serving = server.gpu().launch(
        "server",
        1,
        128,
        &[
            server_queue.handle().into(),
            PORT.into(),
            (&rcv_data).into(),
            BYTES.into(),
            (&server_end).into(),
            (&wrong).into(),
        ],
    )?;
    let (send_data, client_end) = (client.alloc(BYTES)?, client.alloc(24)?);
    let sending = client.gpu().launch(
        "client",
        1,
        128,
        &[
            client_queue.handle().into(),
            KernelArg::U32(u32::from(SERVER.parse::<std::net::Ipv4Addr>()?)),
            PORT.into(),
            (&send_data).into(),
            BYTES.into(),
            (&client_end).into(),
        ],
    )?;
    sending.wait(Duration::from_secs(60))?;
    serving.wait(Duration::from_secs(60))?;

    check("client", &client_end)?;
    check("server", &server_end)?;
    let mut counted = [0; 4];
    wrong.read(0, &mut counted)?;
    let counted = u32::from_le_bytes(counted);
    println!("{BYTES} bytes from kernel to kernel, {counted} wrong");

    // The server's kernel has counted; the host looks for itself.
    let (mut sent, mut received) = (vec![0; BYTES as usize], vec![0; BYTES as usize]);
    send_data.read(0, &mut sent)?;
    rcv_data.read(0, &mut received)?;
    match counted == 0 && sent == received {
        true => Ok(()),
        false => Err("the data that arrived is wrong".into()),
    }
}

/// Checks the `gpu_result` that a kernel left: status, session, bytes, detail.
fn check(who: &str, end: &DeviceBuffer) -> Result<(), Error> {
    let mut result = [0; 24];
    end.read(0, &mut result)?;
    let bytes = u64::from_le_bytes(result[8..16].try_into()?);
    match Status::from_code(result[0]) {
        Some(Status::Ok) if bytes == BYTES => Ok(()),
        Some(status) => Err(format!("{who}: {status}, {bytes} of {BYTES} bytes").into()),
        None => Err(format!("{who}: unknown status {}", result[0]).into()),
    }
}
