//! Distinct users of a service, counted by the NIC for any TCP client: the NIC as an accelerator of
//! its own.
//!
//! A client without Ringbell (`nc` from netcat-openbsd, or a plain TCP socket) sends the 8-byte
//! number of a user for each event and closes its sending side. An engine on the path of the stream
//! keeps a HyperLogLog sketch (on-path model, FpgaNIC §3.5); at the end the NIC by itself sends the
//! result back over the connection (port `op_return` of the paper's Figure 5). No kernel and no GPU
//! memory take part.
//!
//! The client reaches the NIC over a TAP device in a network namespace of its own, which needs no
//! root where the system lets users have namespaces. Where it does not, the example says so and
//! sends from a second NIC over the in-memory switch.
//!
//! Run: `cargo run -p ringbell --example 10_distinct_users`
//!
//! Prints `EVENTS events of USERS users; the NIC estimates ...`; ends with an error when the
//! estimate is further off than four standard errors, or an event is missing.
#![allow(clippy::disallowed_methods)] // A program with deadlines on the host's clock.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, Error};
use ringbell::engines::hll::{HllConfig, HllEngine, HllSummary};
use ringbell::engines::{Direction, Return};
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::{Nic, NicBuilder};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 110, 2);
const HOST: &str = "10.78.110.1/24";
const PORT: u16 = 4810;
const LIMIT: Duration = Duration::from_secs(30);
/// Set in the copy of this program that runs inside the namespace.
const INSIDE: &str = "RINGBELL_EXAMPLE_INSIDE";

fn main() -> Result<(), Error> {
    let events = events(300_000, 40_000);
    if std::env::var_os(INSIDE).is_some() {
        let nic = server().port("tap:rbusers").tap_host(HOST).open()?;
        return serve(nic, &events, tcp_client);
    }
    // A copy of ourselves inside a new user and network namespace: there we may make a TAP device.
    let mut unshare = Command::new("unshare");
    unshare.args(["-r", "-n"]);
    let may = unshare
        .args(["test", "-w", "/dev/net/tun"])
        .stderr(Stdio::null())
        .status();
    if may.is_ok_and(|s| s.success()) {
        let status = Command::new("unshare")
            .args(["-r", "-n"])
            .arg(std::env::current_exe()?)
            .env(INSIDE, "1")
            .status()?;
        return match status.success() {
            true => Ok(()),
            false => Err(anyhow!(
                "the copy inside a network namespace ended with {status}"
            )),
        };
    }
    println!("no TAP device without privileges here: a second NIC is the client, over the in-memory switch");
    let switch = Arc::new(MemSwitch::private(2, 9000, Checksums::Omitted)?);
    let nic = server().switch(switch.clone(), 0).open()?;
    let client = Nic::builder().ip("10.78.110.3/24").transport("tcp");
    let client = client.switch(switch, 1).open()?;
    serve(nic, &events, move |bytes| nic_client(&client, bytes))
}

fn server() -> NicBuilder {
    Nic::builder().ip(format!("{SERVER}/24")).transport("tcp")
}

/// Users in a scrambled order, made by a multiplier: an example needs no generator.
fn events(n: u64, users: u64) -> Vec<u64> {
    let user = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 17;
    (0..n).map(|i| user(user(i) % users)).collect()
}

/// The service: accepts one connection, puts the engine on its path, and leaves the rest to the
/// NIC.
fn serve<C>(nic: Nic, events: &[u64], client: C) -> Result<(), Error>
where
    C: FnOnce(Vec<u8>) -> Result<Vec<u8>, Error> + Send,
{
    let listener = nic.listen(PORT)?;
    listener.set_timeout(LIMIT);
    let bytes: Vec<u8> = events.iter().flat_map(|e| e.to_le_bytes()).collect();
    let answer = std::thread::scope(|s| -> Result<Vec<u8>, Error> {
        let client = s.spawn(move || client(bytes));
        let socket = listener.accept()?;
        let engine = HllEngine::new(HllConfig {
            precision: 14,
            width: 8,
            image: false,
            ..HllConfig::default()
        })?;
        socket.attach_engine(Direction::Receive, Box::new(engine))?;
        socket.return_engine(Return::Result)?;
        client.join().map_err(|_| anyhow!("the client panicked"))?
    })?;
    let summary = HllSummary::read(&answer)
        .ok_or_else(|| anyhow!("the answer has {} bytes, which is no summary", answer.len()))?;
    let exact = events.iter().collect::<HashSet<_>>().len() as f64;
    let error = (summary.estimate - exact).abs() / exact;
    println!(
        "{} events of {exact} users; the NIC estimates {:.0}, {:.2}% off (standard error {:.2}%)",
        summary.items,
        summary.estimate,
        error * 100.0,
        summary.relative_error * 100.0
    );
    if summary.items != events.len() as u64 {
        return Err(anyhow!("the engine did not see every event once"));
    }
    match error < 4.0 * summary.relative_error {
        true => Ok(()),
        false => Err(anyhow!("the estimate is too far off")),
    }
}

/// Sends everything, closes the sending side, and returns the answer: by netcat, else by a socket.
fn tcp_client(bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    let help = Command::new("nc").arg("-h").output();
    let has_nc = help.is_ok_and(|o| String::from_utf8_lossy(&o.stderr).contains("-N"));
    if has_nc {
        println!("client: nc -N {SERVER} {PORT}");
        let mut nc = Command::new("nc")
            .args(["-N", "-w", "20", &SERVER.to_string(), &PORT.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdin = nc
            .stdin
            .take()
            .ok_or_else(|| anyhow!("nc has no standard input"))?;
        // The answer comes after the end of the stream, and fits into the pipe.
        stdin.write_all(&bytes)?;
        drop(stdin);
        return Ok(nc.wait_with_output()?.stdout);
    }
    println!("client: a plain TCP socket (netcat-openbsd is not installed)");
    let address = SocketAddrV4::new(SERVER, PORT).into();
    let mut socket = TcpStream::connect_timeout(&address, LIMIT)?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.write_all(&bytes)?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    Ok(answer)
}

/// The same from a NIC.
fn nic_client(nic: &Nic, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
    let out = nic.alloc::<u8>(bytes.len() as u64)?;
    out.write(0, &bytes)?;
    let socket = nic.connect((SERVER, PORT))?;
    socket.set_timeout(LIMIT);
    socket.send(&out)?;
    socket.shutdown()?;
    let mut answer = Vec::new();
    socket.reader(4096)?.read_to_end(&mut answer)?;
    Ok(answer)
}
