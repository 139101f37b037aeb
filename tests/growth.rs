//! Growth and merger of communicators: ranks as threads, a NIC each, and processes that end.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::communicators;

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use communicators::{each, gpu_choice, options, PATIENCE};
use ringbell::job::{BootstrapError, BootstrapServer, Member};
use ringbell::nic::NicConfig;
use ringbell::{CollectiveError, CommOptions, Communicator, Nic, Operation, ReduceOp, UniqueId};

const SHORT: Duration = Duration::from_millis(300);

fn nic(id: &UniqueId, rank: u32) -> Nic {
    let nic = Nic::builder().rank(id, rank).gpu(gpu_choice());
    nic.gpu_memory(1 << 20).open().expect("a NIC")
}

/// A job of so many ranks.
fn job(ranks: u32) -> (UniqueId, Vec<Communicator>) {
    let id = UniqueId::create().expect("a port");
    (id, joined(&id, ranks))
}

/// The ranks of a job that is served.
fn joined(id: &UniqueId, ranks: u32) -> Vec<Communicator> {
    std::thread::scope(|s| {
        let init = |rank| {
            let comm = move || Communicator::init(&nic(id, rank), id, ranks, rank, &options());
            s.spawn(comm)
        };
        let all: Vec<_> = (0..ranks).map(init).collect();
        let comms = all.into_iter().map(|t| t.join().expect("no panic"));
        comms.collect::<Result<_, _>>().expect("all come")
    })
}

/// A new rank of the job.
fn join(id: &UniqueId, options: &CommOptions) -> Result<Communicator, CollectiveError> {
    let member = Member::join_running(id, options.init_timeout)?;
    let nic = Nic::builder().member(&member).gpu(gpu_choice());
    let nic = nic.gpu_memory(1 << 20).open().expect("a NIC");
    Communicator::join(&nic, member, options)
}

/// The communicators of old ranks that grow, and of new ones.
fn grown(id: &UniqueId, old: &[Communicator], new: u32) -> Vec<Communicator> {
    let ranks = old.len() as u32 + new;
    std::thread::scope(|s| {
        let mut all: Vec<_> = old
            .iter()
            .map(|c| s.spawn(move || c.grow(ranks, PATIENCE)))
            .collect();
        all.extend((0..new).map(|_| s.spawn(|| join(id, &options()))));
        let all = all.into_iter().map(|t| t.join().expect("no panic"));
        let mut all: Vec<_> = all.collect::<Result<_, _>>().expect("all come");
        all.sort_unstable_by_key(Communicator::rank);
        all
    })
}

/// Sums ranks with an all-reduce, which checks the size, too.
fn sums(comms: &[Communicator]) {
    let n = comms.len() as u64;
    each(comms, |c| {
        assert_eq!(u64::from(c.size()), n);
        for count in [1, 1000] {
            let x = c.nic().alloc::<u64>(count).expect("memory");
            x.write(0, &vec![u64::from(c.rank()) + 1; count as usize])
                .expect("fits");
            c.all_reduce::<u64>(&x, &x, count, ReduceOp::Sum)
                .expect("all come");
            let got = x.to_vec().expect("a copy");
            assert_eq!(got, vec![n * (n + 1) / 2; count as usize]);
        }
    });
}

#[test]
fn one_rank_grows_to_two_and_further_and_every_generation_works() {
    let (id, one) = job(1);
    let two = grown(&id, &one, 1);
    sums(&two);
    let five = grown(&id, &two, 3);
    sums(&five);
    for c in &five {
        assert_eq!(c.job_ranks(), [0, 1, 2, 3, 4]);
    }
    sums(&two);
    sums(&one);
}

#[test]
fn a_rank_grows_more_often_than_its_nic_has_queues() {
    // Few queues and so few growths: each opens a NIC, which over simulated hardware takes seconds.
    let limits = NicConfig {
        max_queues: 8,
        ..NicConfig::default()
    };
    let id = UniqueId::create().expect("a port");
    let nic = Nic::builder().rank(&id, 0).gpu(gpu_choice());
    let nic = nic.gpu_memory(1 << 20).limits(limits).open();
    let one = Communicator::init(&nic.expect("a NIC"), &id, 1, 0, &options()).expect("alone");
    let one = [one];
    for _ in 0..12 {
        let two = grown(&id, &one, 1);
        assert_eq!(two.len(), 2);
    }
    sums(&one);
}

#[test]
fn a_restarted_rank_rejoins_while_the_others_run() {
    let (id, mut comms) = job(3);
    sums(&comms);
    // Rank 1 ends, the others continue without it, and a new process takes a place.
    drop(comms.remove(1));
    let left = each(&comms, |c| c.shrink(PATIENCE).expect("two are left"));
    sums(&left);
    let again = grown(&id, &left, 1);
    assert_eq!(again[0].job_ranks(), [0, 2, 3], "its number is a new one");
    sums(&again);
}

#[test]
fn ranks_that_do_not_come_are_an_error_on_all_and_the_old_communicator_works_on() {
    let (id, comms) = job(2);
    let errors = each(&comms, |c| c.grow(4, SHORT).expect_err("none comes"));
    for e in errors {
        let text = e.to_string();
        assert!(text.contains("0 of 2 new rank(s)"), "{text}");
        assert!(text.contains("works on"), "{text}");
    }
    sums(&comms);
    // A process without the job's secret is refused, and named where the growth fails.
    let forged = UniqueId::new(id.address(), [7; 16]);
    let e = Member::join_running(&forged, SHORT).expect_err("no secret");
    assert!(matches!(e, BootstrapError::WrongSecret { .. }), "{e}");
    let e = each(&comms, |c| c.grow(3, SHORT).expect_err("none comes"));
    let text = e[0].to_string();
    assert!(text.contains("without this job's secret"), "{text}");
    // Ranks that want different sizes, or none.
    let e = each(&comms, |c| {
        c.grow(3 + c.rank(), PATIENCE).expect_err("they differ")
    });
    assert!(e[1].to_string().contains("same number"), "{}", e[1]);
    let e = comms[0].grow(2, PATIENCE).expect_err("has two");
    assert!(e.to_string().contains("cannot grow to 2"), "{e}");
    // A new rank that no communicator wants.
    let patient = CommOptions {
        init_timeout: SHORT,
        ..options()
    };
    let e = join(&id, &patient).expect_err("not wanted");
    assert!(e.to_string().contains("call grow"), "{e}");
    sums(&grown(&id, &comms, 1));
    sums(&comms);
}

#[test]
fn a_rank_that_ends_during_a_growth_is_named() {
    let (_, mut comms) = job(3);
    let last = comms.remove(2);
    let start = Instant::now();
    std::thread::scope(|s| {
        for c in &comms {
            s.spawn(move || {
                let e = c.grow(4, PATIENCE).expect_err("rank 2 ends");
                assert!(matches!(
                    &e,
                    CollectiveError::Bootstrap(BootstrapError::Gone { ranks, .. }) if *ranks == [2]
                ), "{e}");
            });
        }
        drop(last);
    });
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_new_rank_that_ends_after_it_was_taken_in_is_an_error_on_all() {
    let (id, comms) = job(2);
    let member = Member::join_running(&id, PATIENCE).expect("joins");
    std::thread::scope(|s| {
        for c in &comms {
            s.spawn(move || c.grow(3, PATIENCE).expect_err("rank 2 has ended"));
        }
        // It is taken in, with a part that no version understands, and ends.
        let round = member.enter(&[1, 2, 3], PATIENCE).expect("taken in");
        assert_eq!(round.parts.len(), 3);
        drop(member);
    });
    sums(&comms);
    sums(&grown(&id, &comms, 1));
}

#[test]
fn operations_of_the_old_communicator_end_while_it_grows() {
    let (id, comms) = job(2);
    let halves: Vec<_> = (0..2)
        .map(|i| {
            let x = comms[i].nic().alloc::<f32>(1000).expect("memory");
            x.write(0, &[i as f32 + 1.0; 1000]).expect("fits");
            x
        })
        .collect();
    // Rank 0 has posted its half before the growth; rank 1 posts after it.
    let sum = |i: usize| Operation::all_reduce::<f32>(&halves[i], &halves[i], 1000, ReduceOp::Sum);
    let first = comms[0].post(&sum(0)).expect("posted");
    let three = grown(&id, &comms, 1);
    let second = comms[1].post(&sum(1)).expect("posted");
    sums(&three);
    std::thread::scope(|s| {
        s.spawn(|| first.wait().expect("both came"));
        s.spawn(|| second.wait().expect("both came"));
    });
    assert_eq!(halves[0].to_vec().expect("a copy"), [3.0; 1000]);
}

#[test]
fn the_bootstrap_moves_to_new_ranks_too() {
    let (id, comms) = job(2);
    let mut four = grown(&id, &comms, 2);
    drop(comms);
    sums(&four);
    // The old ranks end, and with rank 0 the standby server that would be first.
    let gone: Vec<_> = four.drain(..2).collect();
    drop(gone);
    let left = each(&four, |c| c.shrink(PATIENCE).expect("two are left"));
    assert_eq!(left[0].job_ranks(), [2, 3]);
    sums(&left);
    let now = left[0].job_id().expect("rank 2 serves");
    let three = grown(&now, &left, 1);
    assert_eq!(three[0].job_ranks(), [2, 3, 4]);
    sums(&three);
}

/// The process that served ends while the ranks live, and no round of theirs comes in between.
#[test]
fn new_ranks_find_the_job_when_its_first_server_has_ended() {
    let server = BootstrapServer::start(([127, 0, 0, 1], 0).into(), None).expect("a port");
    let comms = joined(&server.id(), 2);
    sums(&comms);
    drop(server);
    let now = comms[1].job_id().expect("rank 0 takes over");
    let four = grown(&now, &comms, 2);
    sums(&four);
}

const KILLED: &str = "RINGBELL_TEST_KILLED_RANK";

/// The process of `a_killed_rank_leaves_no_directory`: rank 1 of the job.
#[test]
#[ignore = "started by a_killed_rank_leaves_no_directory"]
fn the_rank_that_is_killed() {
    let id = std::env::var(KILLED).expect("an id");
    let id: UniqueId = id.parse().expect("an id");
    let _nic = nic(&id, 1);
    // Any NIC that another process opens may remove what is left of this one, so a look after its
    // end comes too late.
    assert!(id.local_directory().join("10.77.0.2.sock").exists());
    println!("\nready");
    std::thread::sleep(PATIENCE);
}

#[test]
fn a_killed_rank_leaves_no_directory() {
    let killed = |id: &UniqueId| {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "growth::the_rank_that_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env(KILLED, id.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.map_while(Result::ok).any(|l| l == "ready");
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(ready, "it has opened its NIC");
    };
    let new = || UniqueId::create().expect("a port");
    // All ranks are killed: the next job removes what they have left, and nothing that a living
    // process holds.
    let (ended, living, next) = (new(), new(), new());
    killed(&ended);
    let left = ended.local_directory();
    let other = nic(&living, 0);
    assert!(living.local_directory().is_dir() && !left.exists());
    // One of two is killed: the other removes the directory when it leaves.
    let first = nic(&next, 0);
    killed(&next);
    let left = next.local_directory();
    drop(first);
    assert!(!left.exists() && living.local_directory().is_dir());
    drop(other);
    assert!(!living.local_directory().exists());
}

#[test]
fn two_communicators_of_a_job_become_one() {
    let (id, comms) = job(4);
    let parts = each(&comms, |c| {
        // Ranks 3 and 1; ranks 2 and 0.
        let part = c.split(Some(c.rank() % 2), -(c.rank() as i32));
        part.expect("all call it").expect("a colour")
    });
    let ranks = |of: usize| parts[of].job_ranks().to_vec();
    let (even, odd) = (ranks(0), ranks(1));
    let merged = each(&parts, |c| {
        let others = if c.job_ranks() == even { &odd } else { &even };
        c.merge(others).expect("all call it")
    });
    assert_eq!(merged[0].job_ranks(), [2, 0, 3, 1]);
    let mut merged = merged;
    merged.sort_unstable_by_key(Communicator::rank);
    sums(&merged);
    // One half grows first, and its new rank takes part.
    let mut grown_even = grown(&id, &[parts[2].clone(), parts[0].clone()], 1);
    let even = grown_even[0].job_ranks().to_vec();
    assert_eq!(even, [2, 0, 4]);
    grown_even.extend([parts[3].clone(), parts[1].clone()]);
    let mut five = each(&grown_even, |c| {
        let others = if c.job_ranks() == even { &odd } else { &even };
        c.merge(others).expect("all call it")
    });
    assert_eq!(five[0].job_ranks(), [2, 0, 4, 3, 1]);
    five.sort_unstable_by_key(Communicator::rank);
    sums(&five);
    // A side that does not come is named.
    let patient = CommOptions {
        init_timeout: SHORT,
        ..options()
    };
    let id = UniqueId::create().expect("a port");
    let alone = Communicator::init(&nic(&id, 0), &id, 1, 0, &patient).expect("alone");
    let e = alone.merge(&[0]).expect("with itself");
    assert_eq!(e.size(), 1);
}
