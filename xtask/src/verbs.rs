//! Debian's programs of libibverbs over `ringbell verbs`: ibverbs-utils, perftest, the suite of
//! pyverbs, and the layers above verbs: UCX, Open MPI over it, libfabric.

#![allow(clippy::disallowed_methods)] // Runs programs, with deadlines.

use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use fs_err as fs;

use crate::steps::{self, command, Outcome, Running, Words as _};
use crate::workspace::{root, target};
use crate::{tools, workspace};

/// Arguments of `cargo xtask verbs`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build and run by the profile `dist`: for figures
    #[arg(long)]
    release: bool,
}

const PACKAGES: [&str; 3] = ["ibverbs-utils", "perftest", "python3-pyverbs"];
/// Longest time of one program.
const LIMIT: Duration = Duration::from_secs(40);
/// Where Debian's python3-pyverbs has rdma-core's suite.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// Programs that run as a pair, with arguments for both ends.
const PAIRS: [&str; 17] = [
    "ibv_rc_pingpong -g 0",
    "ibv_rc_pingpong -g 0 -e -s 65536 -n 200",
    "ibv_srq_pingpong -g 0",
    "ibv_ud_pingpong -g 0",
    "ibv_ud_pingpong -g 0 -e -s 1000 -n 200",
    "ib_write_bw -F -n 5000",
    "ib_write_bw -F -n 1000 -b -q 8",
    "ib_read_bw -F -n 5000",
    "ib_send_bw -F -n 5000",
    "ib_send_bw -F -n 1000 -s 8 -I 8",
    // Lost datagrams stay lost, and the program waits for all: no more than the receives that it
    // posts first.
    "ib_send_bw -c UD -F -n 400 -s 1024",
    "ib_atomic_bw -F -n 1000",
    "ib_write_lat -F -n 1000",
    "ib_read_lat -F -n 1000",
    "ib_send_lat -F -n 1000",
    "ib_send_lat -c UD -F -n 1000",
    "ib_atomic_lat -F -n 1000",
];

/// Those that run over IPv6 as well.
const PAIRS_OF_IPV6: [&str; 5] = [
    "ibv_rc_pingpong -g 0",
    "ibv_ud_pingpong -g 0 -e -s 1000 -n 200",
    "ib_write_bw -F -n 5000",
    "ib_read_lat -F -n 1000",
    "ib_send_lat -F -n 1000",
];

/// Runs the step of the tests, or all programs by the profile for figures.
pub(crate) fn run(args: &Args) -> Result<bool> {
    match args.release {
        true => {
            let built = workspace::dist(&["ringbell-cli", "ringbell-verbs"])?;
            steps::told("verbs", programs(&built)?)
        }
        false => steps::told("verbs", step()?),
    }
}

/// As a step of the tests.
pub(crate) fn step() -> Result<Outcome> {
    workspace::build()?;
    programs(&workspace::built())
}

/// What is missing, after an attempt to install it.
fn missing() -> Option<String> {
    let lacks = || {
        let pairs = PAIRS.iter().filter_map(|p| p.split(' ').next());
        let mut all = pairs.chain(["ibv_devinfo"]);
        let absent = all.find(|p| tools::find(p).is_none());
        absent.map(|p| format!("no {p}. Debian: apt-get install {}", PACKAGES.join(" ")))
    };
    if lacks().is_none() && Path::new(SUITE).is_dir() {
        return None;
    }
    tools::install(&PACKAGES);
    lacks()
}

fn programs(built: &Path) -> Result<Outcome> {
    if let Some(why) = missing() {
        return Ok(Outcome::Skipped(why));
    }
    let ringbell = &built.join("ringbell");
    let addr = "127.0.0.1";
    let nic = Nic { ringbell, addr };
    let mut rows = vec![("ibv_devinfo".to_string(), devinfo(nic)?)];
    for line in PAIRS {
        rows.push((line.into(), pair(nic, line).context(line)?));
    }
    if UdpSocket::bind("[::1]:0").is_ok() {
        let nic = Nic { addr: "::1", ..nic };
        rows.push(("ibv_devinfo over IPv6".into(), devinfo(nic)?));
        for line in PAIRS_OF_IPV6 {
            let name = format!("{line} over IPv6");
            let said = pair(nic, line).with_context(|| name.clone())?;
            rows.push((name, said));
        }
    } else {
        println!("SKIPPED: no IPv6 here");
    }
    rows.push(("a killed ib_write_bw".into(), killed(nic)?));
    injected(nic, &mut rows)?;
    layers(nic, &mut rows)?;
    if Path::new(SUITE).is_dir() {
        rows.push(("pyverbs' suite".into(), suite(nic)?));
    } else {
        println!("SKIPPED: no {SUITE}. Debian: apt-get install python3-pyverbs");
    }
    for (name, said) in rows {
        println!("{name:<44} {said}");
    }
    Ok(Outcome::Passed)
}

/// The command, and the address of its NICs.
#[derive(Clone, Copy)]
struct Nic<'a> {
    ringbell: &'a Path,
    addr: &'a str,
}

fn verbs(nic: Nic<'_>, program: &str) -> Command {
    faulty(nic, &[], program)
}

/// A program with faults.
fn faulty(nic: Nic<'_>, faults: &[&str], program: &str) -> Command {
    let mut c = Command::new(nic.ringbell);
    c.args(["verbs", "--addr", nic.addr]).args(faults);
    c.args(["--", program]);
    piped(&mut c);
    c
}

fn piped(c: &mut Command) -> &mut Command {
    c.stdout(Stdio::piped()).stderr(Stdio::piped())
}

/// Waits for a program's end; gives whether it is a good one, and the output.
fn end(program: Running) -> Result<(bool, String)> {
    let out = program.end(LIMIT)?;
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok((out.status.success(), text))
}

/// Runs a program to its end.
fn said(c: &mut Command) -> Result<(bool, String)> {
    end(Running::start(c)?)
}

fn devinfo(nic: Nic<'_>) -> Result<String> {
    let (good, text) = said(verbs(nic, "ibv_devinfo").arg("-v"))?;
    // The GID of IPv4 names it as a mapped one.
    let gid = text.lines().find(|l| l.contains("GID["));
    let is_ipv4 = gid.is_some_and(|l| l.contains(":ffff:"));
    ensure!(
        good && text.contains("ringbell0")
            && text.contains("PORT_ACTIVE")
            && is_ipv4 != nic.addr.contains(':'),
        "{text}"
    );
    Ok("ringbell0, PORT_ACTIVE".into())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts a server of perftest or ibverbs-utils, and waits until it listens.
fn server(nic: Nic<'_>, program: &str, args: &str, port: u16) -> Result<Running> {
    let mut c = verbs(nic, program);
    listening(
        Running::start(c.words(args).args(["-p", &port.to_string()]))?,
        port,
    )
}

/// A server that listens.
fn listening(mut server: Running, port: u16) -> Result<Running> {
    let until = Instant::now() + LIMIT;
    // Of a listening socket of either family.
    let state = format!(":{port:04X} ");
    let listens = || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
            let table = std::fs::read_to_string(file).unwrap_or_default();
            table.lines().any(|l| {
                let mut words = l.split_whitespace().skip(1);
                let local = words
                    .next()
                    .is_some_and(|w| format!("{w} ").ends_with(&state));
                local && words.nth(1) == Some("0A")
            })
        })
    };
    while !listens() {
        if server.has_ended()? {
            bail!("the server ended: {}", end(server)?.1);
        }
        ensure!(Instant::now() < until, "the server does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(server)
}

fn pair(nic: Nic<'_>, line: &str) -> Result<String> {
    let (program, args) = line.split_once(' ').context("arguments")?;
    let port = free_port()?;
    let server = server(nic, program, args, port)?;
    let mut client = verbs(nic, program);
    client.words(args).args(["-p", &port.to_string(), HOST]);
    figures(&both(nic, program, server, &mut client)?)
}

/// The last row of figures that a program prints: what begins with a number, or a time.
fn figures(text: &str) -> Result<String> {
    let is_row = |l: &&str| {
        let first = l.split_whitespace().next().unwrap_or_default();
        l.contains("usec/iter") || first.starts_with(|c: char| c.is_ascii_digit())
    };
    let row = text.lines().rfind(is_row);
    let row = row.with_context(|| format!("no figure in: {text}"))?;
    Ok(row.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Kills one end; the other must give it up. Its writes are always outstanding: a program that only
/// waits for messages would wait on, as with any card.
fn killed(nic: Nic<'_>) -> Result<String> {
    let args = "-F -D 30";
    let port = free_port()?;
    let mut server = server(nic, "ib_write_bw", args, port)?;
    let mut client = verbs(nic, "ib_write_bw");
    let client = Running::start(client.words(args).args(["-p", &port.to_string(), HOST]))?;
    std::thread::sleep(Duration::from_millis(1500));
    server.kill()?;
    let start = Instant::now();
    let (good, text) = end(client)?;
    // IBV_WC_RETRY_EXC_ERR.
    let expected = "Failed status 12";
    ensure!(!good && text.contains(expected), "the client said: {text}");
    Ok(format!(
        "{expected} (retries exceeded), after {:.1} s",
        start.elapsed().as_secs_f64()
    ))
}

/// Faults that the user asks for, as unmodified programs meet them.
fn injected(nic: Nic<'_>, rows: &mut Vec<(String, String)>) -> Result<()> {
    let with = |faults: &[&str], program: &str| faulty(nic, faults, program);
    let mut add = |name: &str, text: &str, expected: &str| -> Result<()> {
        ensure!(
            text.contains(expected),
            "{name}: no {expected:?} in: {text}"
        );
        rows.push((name.into(), expected.into()));
        Ok(())
    };
    // Each of the calls that the program makes once.
    for (call, expected) in [
        ("alloc_pd", "Couldn't allocate PD"),
        ("reg_mr", "Couldn't register MR"),
        ("create_cq", "Couldn't create CQ"),
        ("create_qp", "Couldn't create QP"),
        ("modify_qp", "Failed to modify QP to INIT"),
    ] {
        let fault = format!("{call}@1");
        let mut c = with(&["--fail", &fault], "ibv_rc_pingpong");
        let (good, text) = said(c.args(["-g", "0"]))?;
        ensure!(!good, "the program succeeds in spite of {fault}");
        add(&format!("--fail {fault}"), &text, expected)?;
    }
    let (good, text) = said(&mut with(&["--fail", "create_qc@1"], "true"))?;
    ensure!(!good, "an unknown name is taken: {text}");
    add("--fail create_qc@1", &text, "known are open_device")?;
    // A client with four queue pairs, whose server meets no fault.
    for (option, fault, expected) in [
        ("--fail", "create_qp@3", "Unable to create QP"),
        ("--fail", "post_send@300ms", "Couldn't post send"),
        ("--wc", "retry-exc:qp3@100", "Failed status 12"),
        ("--wc", "rem-op@300ms", "Failed status 11"),
    ] {
        let (program, args) = ("ib_write_bw", "-F -D 30 -q 4");
        let port = free_port()?;
        let server = server(nic, program, args, port)?;
        let mut c = with(&[option, fault], program);
        let (good, text) = said(c.words(args).args(["-p", &port.to_string(), HOST]))?;
        drop(server);
        ensure!(!good, "the program succeeds in spite of {fault}: {text}");
        add(&format!("{option} {fault}"), &text, expected)?;
    }
    let text = watched(&mut with(&["--event", "port-err@200ms"], "ibv_asyncwatch"))?;
    add("--event port-err@200ms", &text, "IBV_EVENT_PORT_ERR (10)")
}

/// Output of a program that prints events until it is ended, up to the first event.
fn watched(c: &mut Command) -> Result<String> {
    let until = Instant::now() + LIMIT;
    let file = folder()?.join("events");
    let _running = Running::start(c.stdout(fs::File::create(&file)?.into_parts().0))?;
    loop {
        let text = fs::read_to_string(&file)?;
        if text.contains("event_type") {
            return Ok(text);
        }
        ensure!(Instant::now() < until, "no event in: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where this step writes.
fn folder() -> Result<PathBuf> {
    let folder = target().join("verbs");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// UCX's two kinds of connections over verbs, as it names them; with no other, nothing of a program
/// passes by us.
const UCX: [&str; 2] = ["rc_v", "ud_v"];
/// Cases of `ucx_perftest`: test, bytes, iterations.
const UCX_CASES: [[&str; 3]; 6] = [
    ["tag_lat", "8", "1000"],
    ["tag_bw", "4096", "1000"],
    ["ucp_am_bw", "65536", "100"],
    ["ucp_put_bw", "8", "1000"],
    ["ucp_get", "4096", "200"],
    ["ucp_fadd", "8", "200"],
];
/// Where servers listen.
const HOST: &str = "127.0.0.1";

/// Libraries above verbs, by programs of theirs. One that is missing is skipped.
fn layers(nic: Nic<'_>, rows: &mut Vec<(String, String)>) -> Result<()> {
    let has = |program: &str, package: &str| {
        let found = tools::find(program).is_some();
        if !found {
            println!("SKIPPED: no {program}. Debian: apt-get install {package}");
        }
        found
    };
    if has("ucx_perftest", "ucx-utils") {
        let mut places = vec![nic];
        if UdpSocket::bind("[::1]:0").is_ok() {
            places.push(Nic { addr: "::1", ..nic });
        }
        for (nic, kind) in places.iter().flat_map(|nic| UCX.map(|kind| (*nic, kind))) {
            for case in UCX_CASES {
                let name = format!("ucx_perftest {} over {kind}, {}", case[0], nic.addr);
                let said = ucx(nic, &[], kind, case).and_then(|text| figures(&text));
                rows.push((name.clone(), said.context(name)?));
            }
        }
        ucx_events(nic, rows)?;
    }
    if has("mpirun.openmpi", "openmpi-bin") && has("mpicc.openmpi", "libopenmpi-dev") {
        for kind in UCX {
            let name = format!("Open MPI over {kind} of UCX");
            rows.push((
                name.clone(),
                mpi_over_ucx(nic, kind).with_context(|| name.clone())?,
            ));
        }
    }
    if has("fi_pingpong", "libfabric-bin") {
        let name = "fi_pingpong -e rdm over verbs;ofi_rxd";
        rows.push((name.into(), libfabric(nic).context(name)?));
    }
    Ok(())
}

/// Starts a client when its server listens, and waits for both; gives what the client said.
fn both(nic: Nic<'_>, program: &str, server: Running, client: &mut Command) -> Result<String> {
    let (good, text) = said(client).context("the client")?;
    ensure!(good, "the client: {text}");
    let (good, other) = end(server).context("the server")?;
    ensure!(good, "the server of {program} at {}: {other}", nic.addr);
    Ok(text)
}

/// What UCX says of asynchronous events: of whichever queue pair it has then, and of the device.
fn ucx_events(nic: Nic<'_>, rows: &mut Vec<(String, String)>) -> Result<()> {
    let any = [1, 2, 3, 4].map(|n| format!("qp-fatal:qp{n}@50")).join(",");
    for (fault, expected) in [
        (&*any, "local work queue catastrophic error on QPN"),
        ("device-fatal@50", "local catastrophic error"),
    ] {
        let text = ucx(nic, &["--event", fault], UCX[0], UCX_CASES[0])?;
        ensure!(
            text.contains(expected),
            "{fault}: no {expected:?} in: {text}"
        );
        rows.push((format!("--event {fault}, UCX"), expected.into()));
    }
    Ok(())
}

/// Runs `ucx_perftest`, whose client meets these faults; gives what the client said.
fn ucx(
    nic: Nic<'_>,
    faults: &[&str],
    kind: &str,
    [test, bytes, iterations]: [&str; 3],
) -> Result<String> {
    let program = "ucx_perftest";
    let port = free_port()?;
    let port_text = port.to_string();
    let of_ucx = |faults: &[&str]| {
        let mut c = faulty(nic, faults, program);
        c.env("UCX_TLS", kind).env("UCX_NET_DEVICES", "ringbell0:1");
        c.args(["-p", &port_text]);
        c
    };
    let server = listening(Running::start(&mut of_ucx(&[]))?, port)?;
    let args = [HOST, "-t", test, "-s", bytes, "-n", iterations, "-f"];
    both(nic, program, server, of_ucx(faults).args(args))
}

/// The random collectives of the tests of `ringbell mpi`, whose hash must be that of the same
/// program over Open MPI's own transports.
fn mpi_over_ucx(nic: Nic<'_>, kind: &str) -> Result<String> {
    let program = folder()?.join("random");
    let source = root().join("bindings/mpi/tests/random.c");
    let mut cc = Command::new("mpicc.openmpi");
    command(cc.args(["-O1", "-o"]).arg(&program).arg(source))?;
    let run = |settings: &str, through: Option<Nic<'_>>| {
        let mut c = Command::new("mpirun.openmpi");
        c.words("--oversubscribe -n 2").words(settings);
        if tools::is_root() {
            c.arg("--allow-run-as-root");
        }
        if let Some(nic) = through {
            c.arg(nic.ringbell)
                .args(["verbs", "--addr", nic.addr, "--"]);
        }
        c.arg(&program).args(["1", "40", "3000"]);
        let (good, text) = said(piped(&mut c))?;
        ensure!(good, "{text}");
        let lines = text.lines().filter(|l| !l.trim().is_empty());
        let mut hashes: Vec<_> = lines.map(str::to_string).collect();
        // The ranks print in any order.
        hashes.sort();
        Ok(hashes)
    };
    let settings = format!("--mca pml ucx --mca osc ^ucx --mca btl self -x UCX_TLS={kind},self -x UCX_NET_DEVICES=ringbell0:1");
    let alone = run("--mca pml ob1", None).context("alone")?;
    let ours = run(&settings, Some(nic))?;
    ensure!(
        !alone.is_empty() && alone == ours,
        "alone {alone:?}, over verbs {ours:?}"
    );
    Ok("40 random collectives as alone".into())
}

/// libfabric's messages to any peer, over its datagrams of verbs.
fn libfabric(nic: Nic<'_>) -> Result<String> {
    let program = "fi_pingpong";
    let args = "-p verbs;ofi_rxd -e rdm -I 100 -c";
    let port = free_port()?;
    let port_text = port.to_string();
    let mut start = verbs(nic, program);
    let server = Running::start(start.words(args).args(["-B", &port_text]))?;
    let server = listening(server, port)?;
    let mut client = verbs(nic, program);
    client.words(args).args(["-P", &port_text, HOST]);
    figures(&both(nic, program, server, &mut client)?)
}

/// Unpacks the suite, runs it, and tells what was skipped and why.
fn suite(nic: Nic<'_>) -> Result<String> {
    let folder = target().join("pyverbs/tests");
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(SUITE)? {
        let from = entry?.path();
        let name = from.file_name().unwrap_or_default();
        fs::copy(&from, folder.join(name))?;
    }
    let packed: Vec<PathBuf> = fs::read_dir(&folder)?
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "gz"))
        .collect();
    command(Command::new("gzip").args(["-d", "-f"]).args(packed))?;
    // Debian's own Python, for which pyverbs was built.
    let mut python = verbs(nic, "/usr/bin/python3");
    let (_, text) = said(python.arg(folder.join("run_tests.py")).arg("-v"))?;
    let mut skipped = BTreeMap::<&str, usize>::new();
    for line in text.lines() {
        if let Some((_, why)) = line.split_once("... skipped ") {
            *skipped.entry(why).or_default() += 1;
        }
    }
    for (why, count) in &skipped {
        println!("pyverbs: {count:>3} skipped: {why}");
    }
    let is_failure = |l: &&str| l.starts_with("ERROR: ") || l.starts_with("FAIL: ");
    if let Some(name) = text.lines().find(is_failure) {
        bail!("{name}, of pyverbs' suite:\n{text}");
    }
    let passed = text
        .lines()
        .filter(|l| *l == "ok" || l.ends_with(" ... ok"))
        .count();
    ensure!(
        passed >= 70,
        "only {passed} cases of pyverbs' suite passed:\n{text}"
    );
    let skips: usize = skipped.values().sum();
    Ok(format!("{passed} passed, {skips} skipped"))
}

#[cfg(test)]
mod tests {
    use super::figures;

    #[test]
    fn figures_of_both_kinds_of_programs_are_found() {
        let table = " #bytes #iterations t_min\n 2       1000          4.10 \n---\n";
        assert_eq!(figures(table).ok().as_deref(), Some("2 1000 4.10"));
        let ping = "1000 iters in 0.18 seconds = 183.22 usec/iter\n";
        assert_eq!(figures(ping).ok().as_deref(), Some(ping.trim()));
        assert!(figures("Couldn't connect").is_err());
    }
}
