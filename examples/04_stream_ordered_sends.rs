//! Sends from the host's program, in the order of a stream, without a kernel of your own.
//!
//! The paper's host calls (FpgaNIC §A.1.1): each call queues a small kernel, or only words that the
//! stream stores and waits for, and returns at once. The program chooses no launch geometry, and
//! waits only at the end. A step that fails makes the later steps of its socket fail with the same
//! status, so one check at the end is enough.
//!
//! Run: `cargo run -p ringbell --example 04_stream_ordered_sends`
//!
//! Prints `8 messages of 262144 bytes queued without waiting, 0 wrong bytes`; ends with an error
//! otherwise.

use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::Nic;

const MESSAGES: u64 = 8;
const BYTES: u64 = 256 << 10;
const PORT: u16 = 4791;
const SERVER: &str = "10.77.104.1";
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Error> {
    let open = |ip: &str| Nic::builder().ip(ip).open();
    let (server, client) = (open(SERVER)?, open("10.77.104.2")?);
    let (mut serving, mut sending) = (server.socket_context(2)?, client.socket_context(1)?);

    // The server: the listener must be there before the client connects, all other calls are
    // queued.
    let inbox = server.alloc::<u8>(MESSAGES * BYTES)?;
    let mut listener = serving.socket()?;
    serving.listen(&mut listener, PORT, 1)?.wait(PATIENCE)?;
    let mut connection = serving.accept(&mut listener)?;
    let received = serving.recv(&mut connection, inbox.va(), MESSAGES * BYTES)?;
    let server_closed = serving.close(connection)?;

    // The client: it waits only after everything is queued.
    let outbox = client.alloc::<u8>(MESSAGES * BYTES)?;
    let data: Vec<u8> = (0..(MESSAGES * BYTES) as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    outbox.write(0, &data)?;
    let mut socket = sending.socket()?;
    let connected = sending.connect(&mut socket, SERVER.parse()?, PORT)?;
    let mut sent = Vec::new();
    for message in 0..MESSAGES {
        let part = outbox.slice(message * BYTES..(message + 1) * BYTES);
        sent.push(sending.send(&mut socket, part.va(), part.bytes())?);
    }
    let closed = sending.close(socket)?;

    connected.wait(PATIENCE)?;
    for message in &sent {
        message.wait(PATIENCE)?;
    }
    closed.wait(PATIENCE)?;
    received.wait(PATIENCE)?;
    server_closed.wait(PATIENCE)?;
    serving.close(listener)?.wait(PATIENCE)?;

    let mut seen = vec![0; data.len()];
    inbox.read(0, &mut seen)?;
    let wrong = data.iter().zip(&seen).filter(|(a, b)| a != b).count();
    println!("{MESSAGES} messages of {BYTES} bytes queued without waiting, {wrong} wrong bytes");
    match wrong {
        0 => Ok(()),
        _ => Err(anyhow!("the data that arrived is wrong")),
    }
}
