//! Tests of a process without file descriptors: its error names the remedy; ranks of one process
//! need few.
#![allow(clippy::disallowed_methods)] // Starts this program again, with a lower limit.

use crate::common;

use std::process::Command;
use std::time::Duration;

use common::{run, text};
use ringbell::nic::descriptors;
use ringbell::{CollectiveError, CommOptions, Communicator, Nic};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};

const RANKS: u32 = 8;
/// Marks the process with the low limit.
const CHILD: &str = "RINGBELL_TEST_DESCRIPTORS";

fn nics() -> Vec<Nic> {
    let open = |rank| {
        let nic = Nic::builder().ip(format!("10.77.129.{}/24", rank + 1));
        nic.gpu_memory(4 << 20).open().expect("a NIC")
    };
    (0..RANKS).map(open).collect()
}

/// The case of a library's user: no code has checked the limit before.
fn child() {
    let before = descriptors::open().expect("/proc");
    let nics = nics();
    let open = descriptors::open().expect("/proc");
    let options = CommOptions {
        init_timeout: Duration::from_secs(60),
        ..CommOptions::default()
    };
    let limit = |current| {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = Some(current);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("a lower soft limit");
    };
    // Enough for the bootstrap, and for some of the 56 sockets of the links.
    limit(open + 40);
    let e = Communicator::init_all(&nics, &options).expect_err("no room for all links");
    assert!(matches!(e, CollectiveError::Descriptors { .. }), "{e}");
    println!("refused: {e}");
    drop(nics);
    // The number in the message is enough, and not far too much.
    let needed = descriptors::needed_in_one_process(RANKS);
    limit(before + needed);
    let nics = self::nics();
    let comms = Communicator::init_all(&nics, &options).expect("room for all links");
    let used = descriptors::open().expect("/proc") - before;
    assert!((needed / 2..=needed).contains(&used), "{used} of {needed}");
    drop(comms);
    println!("used: {used} of {needed}");
}

#[test]
fn ranks_that_run_out_of_descriptors_report_it_at_once() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.env(CHILD, "1").args([
        "--exact",
        "descriptors::ranks_that_run_out_of_descriptors_report_it_at_once",
        "--nocapture",
    ]);
    let out = run(&mut again);
    let said = text(&out);
    assert_eq!(out.status.code(), Some(0), "{said}");
    for word in ["refused: no file descriptors", "ulimit -n", "used: "] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn perf_counts_the_descriptors_before_it_starts() {
    let perf = format!(
        "ulimit -n 200; exec {} perf all-reduce -R 12 --threads -b 4 -e 4 --no-limits",
        env!("CARGO_BIN_EXE_ringbell")
    );
    let out = run(Command::new("sh").args(["-c", &perf]));
    let said = text(&out);
    assert_eq!(out.status.code(), Some(4), "{said}");
    for word in [
        "12 ranks in one process",
        "this process may have 200",
        "ulimit -n",
        "--threads",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
}
