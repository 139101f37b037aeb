//! A resident kernel as a server: clients send operands, it reduces them and sends the result.
//!
//! The kernel in `server.cu` is launched once. One block accepts, receives, computes with
//! `gpu_local_reduce` and sends, until a client sends it the request to leave. The clients are
//! threads of the host with a NIC of their own. Each reply is compared with the NIC's own
//! reduction, bit for bit.
//!
//! Run: `cargo run -p ringbell --example 14_resident_server`
//!
//! Prints `3 clients, 12 requests served by one launch, 1 refused, 0 wrong`; ends with an error
//! otherwise.
#![allow(unsafe_code)] // Runs a kernel; the NIC's reduction takes pointers.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::abi::Status;
use ringbell::parts::onc_engines::reduce::fused;
use ringbell::{DataType, DeviceBuffer, GpuResult, Nic, ReduceOp, Socket};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[path = "../support/kernels.rs"]
mod kernels;

const SERVER: &str = "10.77.114.1";
const PORT: u16 = 14;
const ROOM: u64 = 4 << 20;
const CLIENTS: u64 = 3;

fn main() -> Result<(), Error> {
    let module = kernels::of("14_resident_server/server.cu");
    let open = |ip: &str| Nic::builder().ip(ip).open();
    let (server, client) = (open(SERVER)?, open("10.77.114.2")?);

    // The host opens the listening socket, and launches the kernel once.
    let listener = server.listen(PORT)?;
    let queue = server.create_queue()?;
    let (room, served, end) = (
        server.alloc::<u8>(ROOM)?,
        server.alloc::<u64>(1)?,
        server.alloc::<GpuResult>(1)?,
    );
    served.write(0, &[0])?;
    end.write(0, &[GpuResult::UNWRITTEN])?;
    let args = (
        &queue,
        listener.session(),
        &room,
        ROOM,
        60_000_000_u32,
        &served,
        &end,
    );
    // SAFETY: server.cu is ours, and the arguments have the types of its parameters.
    let resident = unsafe {
        let kernel = server.module(module)?.kernel("resident_server")?;
        kernel.launch(1, 128, args)?
    };

    let (mut right, mut wrong, mut refused) = (0_u64, 0, 0);
    for number in 0..CLIENTS {
        let mut client = Client::connect(&client)?;
        for (i, (dtype, op)) in [
            (DataType::F32, ReduceOp::Sum),
            (DataType::Bf16, ReduceOp::Max),
            (DataType::I64, ReduceOp::Prod),
            (DataType::F16, ReduceOp::Sum),
        ]
        .into_iter()
        .enumerate()
        {
            // Odd counts, and different operands for each client.
            let count = 1001 + 997 * i + number as usize;
            let sources: Vec<Vec<u8>> = (0..2 + number)
                .map(|s| {
                    noise(
                        number * 100 + i as u64 * 10 + s,
                        count * dtype.bytes() as usize,
                    )
                })
                .collect();
            match client.reduce(dtype.code(), op.code(), &sources, count)? {
                Ok(got) if got == expected(dtype, op, &sources, count) => right += 1,
                Ok(_) => wrong += 1,
                Err(status) => return Err(anyhow!("refused: {status}")),
            }
        }
        if number == 1 {
            // There is no such type: this client is refused, the next one is served.
            let answer = client.reduce(77, 1, &[vec![0; 8]], 1)?;
            refused += u32::from(answer == Err(Status::InvalidArgument));
        } else if number + 1 == CLIENTS {
            client.dismiss()?;
        }
    }

    resident.wait(Duration::from_secs(100))?;
    end.to_vec()?[0].check("resident server")?;
    let served = served.to_vec()?[0];
    println!(
        "{CLIENTS} clients, {served} requests served by one launch, {refused} refused, {wrong} wrong"
    );
    match (served == right, wrong, refused) {
        (true, 0, 1) => Ok(()),
        _ => Err(anyhow!("something is wrong: {right} right answers")),
    }
}

/// `header` of server.cu: before the operands of a request, and before the result of an answer.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    dtype: u32,
    op: u32,
    /// 0 asks the kernel to leave.
    sources: u32,
    status: u32,
    count: u64,
}

/// A thread of the host that talks to the kernel.
struct Client {
    socket: Socket,
    header: DeviceBuffer<Header>,
    data: DeviceBuffer<u8>,
}

impl Client {
    fn connect(nic: &Nic) -> Result<Client, Error> {
        Ok(Client {
            socket: nic.connect((SERVER.parse::<Ipv4Addr>()?, PORT))?,
            header: nic.alloc(1)?,
            data: nic.alloc(ROOM)?,
        })
    }

    fn reduce(
        &mut self,
        dtype: u8,
        op: u8,
        sources: &[Vec<u8>],
        count: usize,
    ) -> Result<Result<Vec<u8>, Status>, Error> {
        let request = Header {
            dtype: dtype.into(),
            op: op.into(),
            sources: sources.len() as u32,
            count: count as u64,
            ..Header::default()
        };
        self.header.write(0, &[request])?;
        self.socket.send(&self.header)?;
        let operands = sources.concat();
        self.data.write(0, &operands)?;
        self.socket.send(self.data.slice(..operands.len() as u64))?;

        self.socket.recv(&self.header)?;
        let status = u8::try_from(self.header.to_vec()?[0].status)?;
        match Status::from_code(status).ok_or_else(|| anyhow!("an unknown status"))? {
            Status::Ok => {}
            refused => return Ok(Err(refused)),
        }
        let mut result = vec![0; sources[0].len()];
        self.socket.recv(self.data.slice(..result.len() as u64))?;
        self.data.read(0, &mut result)?;
        Ok(Ok(result))
    }

    /// Asks the kernel to leave.
    fn dismiss(&self) -> Result<(), Error> {
        self.header.write(0, &[Header::default()])?;
        Ok(self.socket.send(&self.header)?)
    }
}

/// The NIC's result.
fn expected(dtype: DataType, op: ReduceOp, sources: &[Vec<u8>], count: usize) -> Vec<u8> {
    let mut out = vec![0; sources[0].len()];
    let from: Vec<*const u8> = sources.iter().map(|s| s.as_ptr()).collect();
    // SAFETY: every vector holds `count` elements of the type.
    unsafe { fused(dtype, op, &[out.as_mut_ptr()], &from, count, false) };
    out
}

/// Bytes without a pattern, the same on every run.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
