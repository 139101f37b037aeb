//! Counts the distinct users of a log that an ordinary `nc` sends over TCP, and answers: the NIC as an
//! accelerator of its own (`op_return`, FpgaNIC §3.5).
//!
//! The kernel of this machine and `nc` are at one end of a TAP device, the NIC at the other. The log goes through
//! HyperLogLog and is kept nowhere; when its end has come the NIC sends the engine's result back by itself: neither
//! this program nor a kernel of the GPU receives a byte.
//!
//! Run: `cargo run --example 10_count_for_netcat`
//!
//! Needs no root where users may make namespaces (`unshare -r -n`) and open `/dev/net/tun`; else says so and ends
//! well. Where there is no `nc` that knows `-N`, a plain socket sends. Prints `N lines, M users; the NIC answers
//! ...`; ends with an error when the estimate is further off than four standard errors.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use ringbell::abi::{Completion, Descriptor, Opcode, SessionId, Status};
use ringbell::engines::hll::{HllConfig, HllEngine, HllSummary};
use ringbell::engines::{Direction, Return};
use ringbell::{HostQueue, Nic, NicOptions, PortSpec, TransportSpec};

type Error = Box<dyn std::error::Error>;

const NIC: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const PORT: u16 = 4797;
const LINES: u64 = 200_000;
/// Bytes of a line: a letter, six digits, and the line's end.
const LINE: usize = 8;
/// Nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Set for the process inside the namespace.
const INSIDE: &str = "RINGBELL_EXAMPLE_INSIDE";

fn main() -> Result<(), Error> {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    if let Err(e) = File::options().read(true).write(true).open("/dev/net/tun") {
        println!("skipped: this user cannot open /dev/net/tun ({e})");
        return Ok(());
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["-r", "-n"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|s| s.success()) {
        println!("skipped: this user may make no network namespace (unshare -r -n)");
        return Ok(());
    }
    let me = std::env::current_exe()?;
    match unshare().arg(me).env(INSIDE, "1").status()? {
        end if end.success() => Ok(()),
        end => Err(format!("inside the namespace: {end}").into()),
    }
}

/// The NIC, in a network namespace of its own.
fn inside() -> Result<(), Error> {
    let nic = Nic::open(NicOptions {
        ip: format!("{NIC}/24").parse()?,
        transport: TransportSpec::Tcp,
        port: PortSpec::Tap("rb0".into()),
        tap_host: Some("10.99.0.1/24".parse()?),
        ..NicOptions::default()
    })?;
    let queue = nic.create_queue()?;
    let listener = SessionId(call(&queue, &Descriptor::new(Opcode::Socket))?.detail as u32);
    call(
        &queue,
        &Descriptor {
            session: listener,
            imm: u32::from(PORT) | 4 << 16,
            ..Descriptor::new(Opcode::Listen)
        },
    )?;
    let log = log();
    let users = log.chunks(LINE).collect::<HashSet<_>>().len();
    let (answer, client) = std::thread::scope(|scope| -> Result<_, Error> {
        let client = scope.spawn(|| ask(&log).map_err(|e| e.to_string()));
        let accepted = call(
            &queue,
            &Descriptor {
                session: listener,
                timeout_us: PATIENCE.as_micros() as u32,
                ..Descriptor::new(Opcode::Accept)
            },
        )?;
        let session = SessionId(accepted.detail as u32);
        let engine = HllEngine::new(HllConfig {
            width: LINE,
            precision: 14,
            image: false,
            ..HllConfig::default()
        })?;
        // From the first byte on: nobody has received one yet.
        nic.soft()
            .attach_engine(session, Direction::Receive, Box::new(engine))?;
        nic.soft().return_engine(session, Return::Result)?;
        let answer = client.join().map_err(|_| "the client panicked")??;
        call(
            &queue,
            &Descriptor {
                session,
                ..Descriptor::new(Opcode::Close)
            },
        )?;
        Ok(answer)
    })?;
    let summary = HllSummary::read(&answer).ok_or("the answer is too short")?;
    let error = (summary.estimate - users as f64).abs() / users as f64;
    println!(
        "{LINES} lines, {users} users; the NIC answers {client}: {:.0} of {}, {:.2}% off (standard error {:.2}%)",
        summary.estimate,
        summary.items,
        error * 100.0,
        summary.relative_error * 100.0
    );
    match summary.items == LINES && error < 4.0 * summary.relative_error {
        true => Ok(()),
        false => Err("the NIC missed lines, or is too far off".into()),
    }
}

fn call(queue: &HostQueue, d: &Descriptor) -> Result<Completion, Error> {
    let done = queue.call(d)?;
    match done.status {
        Status::Ok => Ok(done),
        status => Err(format!("{:?}: {status}", d.opcode).into()),
    }
}

/// Who logged in, some of them often.
fn log() -> Vec<u8> {
    let user = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 70_001;
    (0..LINES)
        .flat_map(|i| format!("u{:06}\n", user(i)).into_bytes())
        .collect()
}

/// The answer, and who asked.
fn ask(log: &[u8]) -> Result<(Vec<u8>, &'static str), Error> {
    if let Some(answer) = netcat(log)? {
        return Ok((answer, "nc"));
    }
    let mut socket = TcpStream::connect_timeout(&(NIC, PORT).into(), PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.write_all(log)?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    Ok((answer, "a socket"))
}

/// `nc -N -w 30 10.99.0.2 4797 < log`; `None` where there is no such program, or one without `-N`.
fn netcat(log: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    let seconds = PATIENCE.as_secs().to_string();
    let started = Command::new("nc")
        .args(["-N", "-w", &seconds, &NIC.to_string(), &PORT.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut nc = match started {
        Ok(nc) => nc,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    // One that knows no -N ends at once, and does not read.
    let sent = nc.stdin.take().map(|mut input| input.write_all(log));
    let output = nc.wait_with_output()?;
    let answered = matches!(sent, Some(Ok(()))) && output.status.success();
    Ok(answered.then_some(output.stdout))
}
