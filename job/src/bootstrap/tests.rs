//! Tests of the bootstrap: ranks as threads, over real sockets.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use super::*;
use crate::id::UniqueId;

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// A time-out longer than any test.
const HOURS: Duration = Duration::from_secs(3600);
/// A time-out for calls that are to fail by it.
const SHORT: Duration = Duration::from_millis(150);

fn server() -> BootstrapServer {
    BootstrapServer::start((Ipv4Addr::LOCALHOST, 0).into(), None).expect("a free port")
}

/// Runs `f` as each of `ranks` of `n`.
fn each<R: Send>(ranks: &[u32], f: impl Fn(u32) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let f = &f;
        let threads: Vec<_> = ranks.iter().map(|r| s.spawn(move || f(*r))).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a rank panicked"))
            .collect()
    })
}

#[test]
fn all_get_the_same_table_again_and_again_with_a_new_number_each_time() {
    let server = server();
    let all = [0, 1, 2, 3, 4];
    let rounds = each(&all, |rank| {
        let m = Member::join(&server.id(), rank, 5, PATIENCE).expect("joins");
        let round = |i: u8| {
            m.all_gather(&all, 0, &[rank as u8 * 7 + i; 3], PATIENCE)
                .expect("all are here")
        };
        let out = (round(0), round(1));
        m.barrier(&all, 1, PATIENCE).expect("all are here");
        out
    });
    for (a, b) in &rounds {
        assert_eq!((a, b), (&rounds[0].0, &rounds[0].1));
        assert_ne!(a.id, b.id);
        assert_eq!(a.parts[3], (3, vec![21; 3]));
        assert_eq!(b.parts[4], (4, vec![29; 3]));
    }
}

#[test]
fn parts_of_the_job_meet_without_the_others() {
    let server = server();
    let ids = each(&[0, 1, 2, 3], |rank| {
        let m = Member::join(&server.id(), rank, 4, PATIENCE).expect("joins");
        let members = [rank % 2, rank % 2 + 2];
        let r = m
            .all_gather(&members, 9, &[rank as u8], PATIENCE)
            .expect("both are here");
        assert_eq!(
            r.parts,
            members.map(|x| (x, vec![x as u8])).to_vec(),
            "rank {rank}"
        );
        r.id
    });
    assert!(ids[0] == ids[2] && ids[1] == ids[3] && ids[0] != ids[1]);
}

#[test]
fn a_missing_rank_is_named_on_every_rank_with_the_refused_joins() {
    let server = server();
    let id = server.id();
    let errors = each(&[0, 2], |rank| {
        let m = Member::join(&id, rank, 3, PATIENCE).expect("joins");
        if rank == 0 {
            let e = Member::join(&id, 1, 4, PATIENCE).expect_err("another size");
            assert!(e.to_string().contains("4 ranks, but it has 3"), "{e}");
        }
        m.all_gather(&[0, 1, 2], 0, &[], SHORT * 3)
            .expect_err("rank 1 never came")
    });
    for e in errors {
        assert!(
            matches!(&e, BootstrapError::Missing { ranks, .. } if *ranks == [1]),
            "{e}"
        );
        assert!(e.to_string().contains("rank(s) 1 within"), "{e}");
    }
}

#[test]
fn a_duplicate_rank_and_a_wrong_secret_are_refused_with_the_reason() {
    let server = server();
    let id = server.id();
    let _first = Member::join(&id, 0, 2, PATIENCE).expect("joins");
    let twice = Member::join(&id, 0, 2, PATIENCE).expect_err("taken");
    assert!(
        twice.to_string().contains("rank 0 was given twice"),
        "{twice}"
    );
    let other = UniqueId::new(id.address(), [9; 16]);
    let wrong = Member::join(&other, 1, 2, PATIENCE).expect_err("another job");
    assert!(wrong.to_string().contains("secret"), "{wrong}");
    let beyond = Member::join(&id, 2, 2, PATIENCE).expect_err("no such rank");
    assert!(beyond.to_string().contains("does not exist"), "{beyond}");
    assert!(Member::join(&id, 1, 2, PATIENCE).is_ok());
}

/// Sends the hello and the proof of the secret, byte by byte as a member does.
fn admitted(stream: &mut TcpStream, id: &UniqueId, rank: u32, ranks: u32) {
    let hello = message::Hello {
        rank,
        ranks,
        nonce: [3; 16],
    };
    stream.write_all(&hello.encode()).expect("written");
    let mut challenge = [0; proof::CHALLENGE_BYTES];
    stream.read_exact(&mut challenge).expect("a challenge");
    let handshake = proof::Handshake::answer(hello, id.secret(), &challenge).expect("the secret");
    let proof = handshake.proof(id.secret());
    stream.write_all(&proof).expect("written");
}

/// A process that took the job's port first gets nothing that helps it to join: neither the secret,
/// nor a proof to replay.
#[test]
fn a_process_on_the_port_gets_no_secret_and_a_replayed_member_is_not_admitted() {
    let squatter = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let id = UniqueId::new(squatter.local_addr().expect("bound"), *b"0123456789abcdef");
    let (e, heard) = std::thread::scope(|s| {
        let heard = s.spawn(|| {
            let (mut member, _) = squatter.accept().expect("a member");
            let mut hello = [0; message::HELLO_BYTES];
            member.read_exact(&mut hello).expect("a hello");
            // A wrong proof, then other messages of a member.
            member
                .write_all(&[7; proof::CHALLENGE_BYTES])
                .expect("written");
            let mut all = hello.to_vec();
            let _ = member.read_to_end(&mut all);
            all
        });
        let e = Member::join(&id, 1, 2, PATIENCE).expect_err("not this job's bootstrap");
        (e, heard.join().expect("no panic"))
    });
    assert!(matches!(e, BootstrapError::WrongSecret { .. }), "{e}");
    assert!(e.to_string().contains("does not know the job's secret"));
    assert_eq!(heard.len(), message::HELLO_BYTES, "no byte after the hello");
    assert!(!heard.windows(4).any(|w| w == &id.secret()[..4]));
    // A replay of a real member's messages: the server's nonce is another one.
    let server = server();
    let id = server.id();
    let mut first = TcpStream::connect(id.address()).expect("connects");
    admitted(&mut first, &id, 0, 2);
    let mut again = TcpStream::connect(id.address()).expect("connects");
    again.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let hello = message::Hello {
        rank: 1,
        ranks: 2,
        nonce: [3; 16],
    };
    again.write_all(&hello.encode()).expect("written");
    let mut challenge = [0; proof::CHALLENGE_BYTES];
    again.read_exact(&mut challenge).expect("a challenge");
    // The server's own MAC reflected.
    again
        .write_all(&challenge[message::NONCE_BYTES..])
        .expect("written");
    let mut answer = Vec::new();
    let _ = again.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
}

#[test]
fn a_rank_that_ends_before_it_joins_is_named_at_once_with_its_exit_status() {
    let server = server();
    let e = std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            let m = Member::join(&server.id(), 0, 2, PATIENCE).expect("joins");
            m.barrier(&[0, 1], 0, HOURS).expect_err("rank 1 has ended")
        });
        server.rank_ended(1, "rank 1 ended with status 7");
        waiting.join().expect("no panic")
    });
    assert!(
        matches!(&e, BootstrapError::Gone { ranks, .. } if *ranks == [1]),
        "{e}"
    );
    assert!(e.to_string().contains("ended with status 7"), "{e}");
}

#[test]
fn an_unknown_client_gets_no_answer_and_disturbs_no_member() {
    let server = server();
    let mut client = TcpStream::connect(server.id().address()).expect("connects");
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
        .expect("written");
    client.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut answer = Vec::new();
    // Closed, or reset because not all of it was read.
    let _ = client.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{answer:?}");
    // A member that then sends an invalid message is dropped as if it had ended.
    let id = server.id();
    let mut bad = TcpStream::connect(id.address()).expect("connects");
    admitted(&mut bad, &id, 1, 2);
    let m = Member::join(&id, 0, 2, PATIENCE).expect("joins");
    bad.write_all(&[0xff; 64]).expect("written");
    let e = m
        .all_gather(&[0, 1], 0, &[], PATIENCE)
        .expect_err("rank 1 is out");
    assert!(
        matches!(&e, BootstrapError::Gone { ranks, .. } if *ranks == [1]),
        "{e}"
    );
}

#[test]
fn survivors_get_the_same_list_and_a_late_rank_is_excluded() {
    let server = server();
    let all = [0, 1, 2, 3];
    let late = std::sync::Barrier::new(3);
    let out = each(&all, |rank| {
        let m = Member::join(&server.id(), rank, 4, PATIENCE).expect("joins");
        m.barrier(&all, 0, PATIENCE).expect("all are here");
        match rank {
            1 => None,
            3 => {
                late.wait();
                let e = m
                    .survivors(&all, 1, &[3], PATIENCE)
                    .expect_err("the others have gone on");
                assert!(matches!(e, BootstrapError::Excluded { rank: 3 }), "{e}");
                None
            }
            _ => {
                let r = m.survivors(&all, 1, &[rank as u8], SHORT).expect("goes on");
                late.wait();
                Some(r)
            }
        }
    });
    let survivors: Vec<_> = out.into_iter().flatten().collect();
    assert_eq!(survivors[0], survivors[1]);
    assert_eq!(survivors[0].parts, [(0, vec![0]), (2, vec![2])]);
}

#[test]
fn a_missing_server_and_one_that_ends_are_reported() {
    let id = {
        let server = server();
        let m = Member::join(&server.id(), 0, 2, PATIENCE).expect("joins");
        let id = server.id();
        drop(server);
        let e = m
            .all_gather(&[0, 1], 0, &[], PATIENCE)
            .expect_err("it has ended");
        assert!(matches!(e, BootstrapError::Lost { .. }), "{e}");
        id
    };
    let e = Member::join(&id, 0, 2, SHORT).expect_err("no server");
    assert!(matches!(e, BootstrapError::Unreachable { .. }), "{e}");
    assert!(e.to_string().contains("check that rank 0"), "{e}");
}

#[test]
fn an_id_made_by_a_rank_serves_until_all_have_left() {
    let id = UniqueId::create().expect("a free port");
    each(&[0, 1], |rank| {
        let m = Member::join(&id, rank, 2, PATIENCE).expect("joins");
        m.barrier(&[0, 1], 0, PATIENCE).expect("both are here");
    });
    let start = std::time::Instant::now();
    while TcpStream::connect(id.address()).is_ok() {
        assert!(start.elapsed() < PATIENCE, "the server is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Members of a job whose ranks hold each other's standby addresses.
fn joined(server: &BootstrapServer, n: u32) -> Vec<Member> {
    let join = |r| Member::join(&server.id(), r, n, PATIENCE).expect("joins");
    let members: Vec<Member> = (0..n).map(join).collect();
    let addresses: Vec<_> = members.iter().map(Member::standby_address).collect();
    for m in &members {
        m.set_successors(addresses.clone());
    }
    members
}

#[test]
fn the_lowest_rank_left_takes_over_each_time_the_server_ends() {
    let server = server();
    let mut members: Vec<Option<Member>> = joined(&server, 5).into_iter().map(Some).collect();
    let all = [0, 1, 2, 3, 4];
    let round = |members: &[Option<Member>], tag: u64| {
        std::thread::scope(|s| {
            let threads: Vec<_> = members
                .iter()
                .flatten()
                .map(|m| s.spawn(move || m.survivors(&all, tag, &[m.rank() as u8], PATIENCE)))
                .collect();
            let all = threads.into_iter().map(|t| t.join().expect("no panic"));
            all.collect::<Result<Vec<_>, _>>()
                .expect("all that are left go on")
        })
    };
    let start = std::time::Instant::now();
    let mut ids = Vec::new();
    // The launcher ends; then rank 0, who took over; then 1 and 3 at once.
    drop(server);
    for (tag, dead) in [(0, &[][..]), (1, &[0]), (2, &[1, 3])] {
        for d in dead {
            members[*d as usize] = None;
        }
        let left: Vec<u32> = members.iter().flatten().map(Member::rank).collect();
        let rounds = round(&members, tag);
        for r in &rounds {
            assert_eq!(r, &rounds[0]);
            assert_eq!(r.parts.iter().map(|p| p.0).collect::<Vec<_>>(), left);
        }
        ids.push(rounds[0].id);
    }
    // No rank waited for one that had ended.
    assert!(start.elapsed() < PATIENCE);
    ids.dedup();
    assert_eq!(ids.len(), 3, "each round has a number of its own");
    // Rounds of all continue as well, and name the ranks that have ended.
    let m = members.iter().flatten().next().expect("rank 2 is left");
    let e = m.barrier(&all, 9, PATIENCE).expect_err("three have ended");
    assert!(
        matches!(&e, BootstrapError::Gone { ranks, .. } if *ranks == [0, 1, 3]),
        "{e}"
    );
}

#[test]
fn an_id_names_the_rank_that_takes_over_as_soon_as_the_server_has_ended() {
    for killed in 0..3 {
        let server = server();
        let mut members: Vec<Option<Member>> = joined(&server, 4).into_iter().map(Some).collect();
        let asked = members[3].as_ref().expect("alive").id_now();
        assert_eq!(asked.expect("it serves"), server.id(), "nothing moves");
        drop(server);
        // The first ranks in line may have ended with it.
        members[..killed].fill_with(|| None);
        let left: Vec<&Member> = members.iter().flatten().collect();
        let id = left[left.len() - 1].id_now().expect("a rank takes over");
        assert_eq!(Some(id.address()), left[0].standby_address());
        let ranks: Vec<u32> = left.iter().map(|m| m.rank()).collect();
        let new = Member::join_running(&id, PATIENCE).expect("joins");
        let taken_in = std::thread::scope(|s| {
            let entered = s.spawn(|| new.enter(b"new", PATIENCE));
            for m in &left {
                let ranks = &ranks;
                s.spawn(move || m.grow(ranks, 5, 1, b"old", PATIENCE).expect("grows"));
            }
            entered.join().expect("no panic").expect("taken in")
        });
        assert_eq!(taken_in.parts.len(), left.len() + 1);
        assert_eq!(taken_in.parts.last(), Some(&(4, b"new".to_vec())));
    }
    // Without any rank in line there is an error, and no address of a process that has ended.
    let server = server();
    let alone = Member::join(&server.id(), 0, 2, PATIENCE).expect("joins");
    drop(server);
    let e = alone.id_now().expect_err("none takes over");
    assert!(matches!(e, BootstrapError::Lost { .. }), "{e}");
}

#[test]
fn an_excluded_rank_gets_the_reason_from_a_later_server() {
    let server = server();
    let members = joined(&server, 3);
    let all = [0, 1, 2];
    // Rank 2 is late for the round, and then no server is left that has seen it end.
    std::thread::scope(|s| {
        for m in &members[..2] {
            s.spawn(move || m.survivors(&all, 1, &[], SHORT).expect("goes on"));
        }
    });
    drop(server);
    let e = members[2]
        .survivors(&all, 1, &[], PATIENCE)
        .expect_err("the others have gone on");
    assert!(matches!(e, BootstrapError::Excluded { rank: 2 }), "{e}");
}

#[test]
fn a_rank_of_this_host_that_has_ended_is_detected_without_a_round() {
    let server = server();
    let join = |rank| Member::join(&server.id(), rank, 3, PATIENCE).expect("joins");
    let [a, b, c] = [join(0), join(1), join(2)];
    assert_eq!(a.ended_here(&[1, 2]), [0; 0], "no standby address is set");
    // Rank 2 has no standby address, or is on another host: its state is unknown.
    a.set_successors(vec![a.standby_address(), b.standby_address(), None]);
    assert_eq!(a.ended_here(&[1, 2]), [0; 0]);
    drop((b, c));
    assert_eq!(a.ended_here(&[1, 2, 7]), [1]);
    let elsewhere = std::net::SocketAddr::from(([127, 0, 0, 2], 9));
    a.set_successors(vec![None, Some(elsewhere), None]);
    assert_eq!(a.ended_here(&[1, 2]), [0; 0]);
}
