//! Tests of progress: a posted operation continues although its caller makes no further call.
//!
//! The caller of rank 1 posts and stops. It resumes only after the blocking call of rank 0 has
//! ended, so that only rank 1's NIC itself can have done its part.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::communicators;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use communicators::{gpu_choice, options, ranks};
use ringbell::{Communicator, DeviceBuffer, Nic, Operation, ReduceOp, UniqueId};

/// Elements of each round: within one record, within one segment, and more than that.
const COUNTS: [u64; 3] = [1, 3000, 300_000];
/// Rounds of each way.
const ROUNDS: u32 = 20;
/// Long enough for a NIC without work to fall asleep; shorter or longer only makes the test easier.
const ASLEEP: Duration = Duration::from_millis(8);

/// Time-out of rank 0's calls: no round needs a hundredth of it.
const LIMIT: Duration = Duration::from_secs(20);

/// Parameters of a round: the operation, and whether the caller waits until the NIC sleeps before
/// it posts.
fn shape(round: u32) -> (u64, bool) {
    (
        COUNTS[round as usize % COUNTS.len()],
        round.is_multiple_of(2),
    )
}

fn sum(src: &DeviceBuffer, dst: &DeviceBuffer, count: u64) -> Operation {
    Operation::all_reduce::<i32>(src, dst, count, ReduceOp::Sum)
}

fn memory(c: &Communicator) -> (DeviceBuffer, DeviceBuffer) {
    let bytes = COUNTS[2] * 4;
    let (src, dst) = (
        c.nic().alloc::<u8>(bytes).expect("memory"),
        c.nic().alloc::<u8>(bytes).expect("memory"),
    );
    let mine = (c.rank() as i32 + 1).to_ne_bytes();
    src.write(0, &mine.repeat(COUNTS[2] as usize))
        .expect("it fits");
    (src, dst)
}

fn check(dst: &DeviceBuffer, count: u64) {
    let mut got = vec![0; count as usize * 4];
    dst.read(0, &mut got).expect("inside");
    assert!(got == 3_i32.to_ne_bytes().repeat(count as usize));
}

/// Rank 0: `post` lets rank 1 post, `go_on` lets it resume.
fn lead(c: &Communicator, mut post: impl FnMut(u32), mut go_on: impl FnMut()) {
    let (src, dst) = memory(c);
    for round in 0..ROUNDS {
        let (count, _) = shape(round);
        post(round);
        let operation = sum(&src, &dst, count).timeout(LIMIT);
        let start = Instant::now();
        let done = c.run(&operation);
        let state = || c.nic().describe();
        assert!(done.is_ok(), "round {round}: {done:?}\n{}", state());
        // Shortly before its time-out a NIC probes whether the others live, which wakes them.
        let asked = start.elapsed() > LIMIT / 2;
        assert!(!asked, "round {round}: rank 1's NIC slept\n{}", state());
        check(&dst, count);
        go_on();
    }
}

/// Rank 1: posts, and steps nothing until it may.
fn follow(
    c: &Communicator,
    mut may_post: impl FnMut() -> Option<u32>,
    mut may_go_on: impl FnMut(),
) {
    let (src, dst) = memory(c);
    while let Some(round) = may_post() {
        let (count, asleep) = shape(round);
        if asleep {
            std::thread::sleep(ASLEEP);
        }
        let request = c.post(&sum(&src, &dst, count)).expect("posted");
        may_go_on();
        request.wait().expect("it has ended");
        check(&dst, count);
    }
}

#[test]
fn a_caller_that_posts_and_stops_holds_no_other_thread_up() {
    let r = ranks("stopped", 2);
    let comms = Communicator::init_all(&r.nics, &options()).expect("all come");
    std::thread::scope(|s| {
        let ((post, posts), (go, goes)) = (mpsc::channel(), mpsc::channel());
        let (a, b) = (&comms[0], &comms[1]);
        s.spawn(move || {
            let go_on = || goes.recv().unwrap_or(());
            follow(b, || posts.recv().ok(), go_on);
        });
        let post = move |round| post.send(round).expect("rank 1 lives");
        lead(a, post, || go.send(()).expect("rank 1 lives"));
    });
}

fn nic(n: u8, directory: &std::path::Path) -> Nic {
    let nic = Nic::builder().ip(format!("10.66.7.{n}/24"));
    let nic = nic.gpu(gpu_choice()).gpu_memory(16 << 20);
    let nic = nic.transport("local").directory(directory);
    nic.open().expect("a NIC")
}

struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const ID: &str = "RB_TEST_PROGRESS_ID";
const DIRECTORY: &str = "RB_TEST_PROGRESS_DIRECTORY";

/// Rank 1 of the test below, in a process of its own: each line of its input is a permission.
#[test]
#[ignore = "the second process of the test below"]
fn the_process_that_stops() {
    let id: UniqueId = std::env::var(ID)
        .expect("set by the test")
        .parse()
        .expect("an id");
    let directory = std::env::var_os(DIRECTORY).expect("set by the test");
    let nic = nic(2, directory.as_ref());
    let c = Communicator::init(&nic, &id, 2, 1, &options()).expect("both come");
    let mut lines = BufReader::new(std::io::stdin()).lines();
    let mut line = move || lines.next()?.ok();
    let line = std::cell::RefCell::new(&mut line);
    follow(
        &c,
        || (line.borrow_mut())()?.parse().ok(),
        || drop((line.borrow_mut())()),
    );
}

#[test]
fn a_caller_that_posts_and_stops_holds_no_other_process_up() {
    let id = UniqueId::create().expect("an id");
    // The id is random, and the NIC makes the folder.
    let directory = Folder(std::env::temp_dir().join(format!("rb-progress-{id}")));
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--exact",
            "progress::the_process_that_stops",
            "--ignored",
            "--nocapture",
        ])
        .env(ID, id.to_string())
        .env(DIRECTORY, &directory.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let input = std::cell::RefCell::new(child.stdin.take().expect("piped"));
    let nic = nic(1, &directory.0);
    let c = Communicator::init(&nic, &id, 2, 0, &options()).expect("both come");
    let say = |text: String| {
        let mut input = input.borrow_mut();
        writeln!(input, "{text}").and_then(|()| input.flush())
    };
    lead(
        &c,
        |round| say(round.to_string()).expect("rank 1 lives"),
        || say("go on".into()).expect("rank 1 lives"),
    );
    drop(input);
    assert!(child.wait().expect("ends").success());
}
