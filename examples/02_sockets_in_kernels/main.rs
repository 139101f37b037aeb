//! A client and a server whose sockets live in kernels (FpgaNIC, Figure 10).
//!
//! The kernels are in `figure10.cu`: the host loads them, starts each once, and takes no part in
//! the handshake or the transfer. Two NICs in one process stand for two machines.
//!
//! Run: `cargo run -p ringbell --example 02_sockets_in_kernels`. The program builds the kernels
//! with `ringbell cc`; yours would do so beforehand.
//!
//! Prints `1048576 bytes from kernel to kernel, 0 wrong`; ends with an error otherwise.
#![allow(unsafe_code)] // Runs kernels.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::{GpuResult, Nic};

#[path = "../support/kernels.rs"]
mod kernels;

const BYTES: u64 = 1 << 20;
const PORT: u32 = 4791;
const SERVER: &str = "10.77.102.1";

fn main() -> Result<(), Error> {
    let module = kernels::of("02_sockets_in_kernels/figure10.cu");
    let open = |ip: &str| Nic::builder().ip(ip).open();
    let (server, client) = (open(SERVER)?, open("10.77.102.2")?);

    // A kernel gets the handle of a queue, and from then on drives the NIC by itself.
    let (server_queue, client_queue) = (server.create_queue()?, client.create_queue()?);
    let (rcv_data, server_end, wrong) = (
        server.alloc::<u8>(BYTES)?,
        server.alloc::<GpuResult>(1)?,
        server.alloc::<u32>(1)?,
    );
    server_end.write(0, &[GpuResult::UNWRITTEN])?;
    let args = (&server_queue, PORT, &rcv_data, BYTES, &server_end, &wrong);
    // SAFETY: figure10.cu is ours, and the arguments have the types of its parameters.
    let serving = unsafe {
        server
            .module(&module)?
            .kernel("server")?
            .launch(1, 128, args)?
    };
    let (send_data, client_end) = (client.alloc::<u8>(BYTES)?, client.alloc::<GpuResult>(1)?);
    client_end.write(0, &[GpuResult::UNWRITTEN])?;
    let to: Ipv4Addr = SERVER.parse()?;
    let args = (&client_queue, to, PORT, &send_data, BYTES, &client_end);
    // SAFETY: as above.
    let sending = unsafe {
        client
            .module(&module)?
            .kernel("client")?
            .launch(1, 128, args)?
    };
    sending.wait(Duration::from_secs(60))?;
    serving.wait(Duration::from_secs(60))?;

    for (who, end) in [("client", client_end), ("server", server_end)] {
        let bytes = end.to_vec()?[0].check(who)?;
        if bytes != BYTES {
            return Err(anyhow!("{who}: {bytes} of {BYTES} bytes"));
        }
    }
    let counted = wrong.to_vec()?[0];
    println!("{BYTES} bytes from kernel to kernel, {counted} wrong");

    // The server's kernel has counted; the host checks the bytes itself.
    let (sent, received) = (send_data.to_vec()?, rcv_data.to_vec()?);
    match counted == 0 && sent == received {
        true => Ok(()),
        false => Err(anyhow!("the data that arrived is wrong")),
    }
}
