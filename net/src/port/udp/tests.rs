use super::*;

const NOW: NicTime = NicTime(0);

fn open(n: u32, peers: &[SocketAddr], secret: Option<u64>) -> UdpPort {
    UdpPort::open(UdpConfig {
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        peers: peers.to_vec(),
        vni: 77,
        secret,
        mac: MacAddr::local(n),
        mtu: Some(1450),
    })
    .unwrap() // loopback has free ports
}

fn put(p: &mut UdpPort, dst: MacAddr, len: usize, tag: u8) {
    let src = p.capabilities().medium.mac();
    let room = p.tx_frame(NOW, dst).unwrap(); // the socket buffer is far from full
    room[..len].fill(tag);
    crate::wire::emit_ethernet(room, dst, src, 0x88b5);
    p.tx_commit(NOW, len);
}

/// Both have proved themselves to each other when a frame of each has come through.
fn meet(a: &mut UdpPort, b: &mut UdpPort) {
    let pass = |a: &mut UdpPort, b: &mut UdpPort| {
        let to = b.capabilities().medium.mac();
        put(a, to, 60, 0xee);
        a.flush(NOW);
        for _ in 0..5_000 {
            if b.receive(NOW).is_some() {
                return;
            }
            // Answers to challenges, and the end of the meeting's other half.
            let _ = a.receive(NOW);
            std::thread::yield_now();
            wait_ms(&b.socket, 1);
        }
        panic!("no frame came through");
    };
    pass(a, b);
    pass(b, a);
}

/// Waits until a socket has something.
fn wait_ms(socket: &impl AsFd, ms: i64) {
    let limit = rustix::event::Timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    };
    let mut fds = [rustix::event::PollFd::new(
        socket,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, Some(&limit)).unwrap(); // valid arguments
}

fn get(p: &mut UdpPort) -> Option<(usize, u8)> {
    if let Some(f) = p.receive(NOW) {
        return Some((f.len(), f[f.len() - 1]));
    }
    wait_ms(&p.socket, 5_000);
    let f = p.receive(NOW)?;
    Some((f.len(), f[f.len() - 1]))
}

#[test]
fn frames_of_mixed_sizes_arrive_whole_and_in_order() {
    let mut b = open(2, &[], Some(5));
    let mut a = open(1, &[b.local_addr()], Some(5));
    meet(&mut a, &mut b);
    let before = (a.counters().tx_frames, b.counters().rx_frames);
    let sizes: Vec<usize> = (0..300)
        .map(|i| [1464, 1464, 1464, 60, 700, 1464, 60][i % 7])
        .collect();
    for (i, &len) in sizes.iter().enumerate() {
        put(&mut a, MacAddr::local(2), len, i as u8);
        if i % 50 == 49 {
            a.flush(NOW);
            for (j, &want) in sizes.iter().enumerate().take(i + 1).skip(i - 49) {
                assert_eq!(get(&mut b), Some((want, j as u8)));
            }
        }
    }
    // b has learned a, and answers.
    put(&mut b, MacAddr::local(1), 64, 9);
    b.flush(NOW);
    assert_eq!(get(&mut a), Some((64, 9)));
    let after = (a.counters().tx_frames, b.counters().rx_frames);
    assert_eq!((after.0 - before.0, after.1 - before.1), (300, 300));
}

#[test]
fn unauthenticated_datagrams_are_counted_and_dropped() {
    let mut b = open(2, &[], Some(5));
    let to = b.local_addr();
    let unknown = UdpSocket::bind("127.0.0.1:0").unwrap(); // loopback has free ports
    let other_job = Proof::new(77, 6, [0; 16]);
    let mut of_other_job = with_tag(vxlan::header(77), other_job.tag(1)).to_vec();
    of_other_job.extend([0; 60]);
    let own_proof = other_job.emit(Kind::Response, 1);
    let mut plain = vxlan::header(77).to_vec();
    plain.extend([0; 60]);
    for d in [
        &b""[..],
        b"x",
        b"garbage garbage garbage",
        &of_other_job,
        &plain,
        &own_proof,
    ] {
        unknown.send_to(d, to).unwrap(); // loopback takes it
    }
    // Proof that all were looked at: a friend's frame comes after them.
    let mut a = open(1, &[to], Some(5));
    meet(&mut a, &mut b);
    // An empty datagram carries nothing to count; the friend's first frame came before its proof.
    assert_eq!(b.counters().rx_unauthenticated, 6);
    assert_eq!(b.peers.all, [a.local_addr()]);
    // Each sender of enough bytes was challenged, and never with more bytes than it had sent.
    unknown.set_nonblocking(true).unwrap(); // a socket can be
    let mut asked = 0;
    let mut room = [0; 2000];
    while let Ok(n) = unknown.recv(&mut room) {
        assert_eq!(n, CONTROL);
        asked += 1;
    }
    assert_eq!(asked, 3);
}

/// Without a secret a peer is known by its address; its frames of another network are not ours all
/// the same.
#[test]
fn a_configured_peer_is_accepted_for_its_own_network_alone() {
    let friend = UdpSocket::bind("127.0.0.1:0").unwrap(); // loopback has free ports
    let from = friend.local_addr().unwrap(); // bound
    let mut b = open(2, &[from], None);
    let frame_of = |vni: u32, tag: u8| {
        let mut d = vxlan::header(vni).to_vec();
        let mut frame = [tag; 60];
        crate::wire::emit_ethernet(&mut frame, MacAddr::local(2), MacAddr::local(1), 0x88b5);
        d.extend(frame);
        d
    };
    // Numbers that differ in the lowest, a middle and the highest bit, and none at all.
    for (tag, vni) in [77 ^ 1, 77 ^ 1 << 12, 77 ^ 1 << 23, 0]
        .into_iter()
        .enumerate()
    {
        friend
            .send_to(&frame_of(vni, tag as u8), b.local_addr())
            .unwrap(); // loopback takes it
    }
    friend.send_to(&frame_of(77, 0xaa), b.local_addr()).unwrap(); // loopback takes it
    assert_eq!(get(&mut b), Some((60, 0xaa)), "the first that is ours");
    assert_eq!(b.counters().rx_unauthenticated, 4);
    assert!(b.receive(NOW).is_none());
}

/// Datagrams between authenticated peers are useless to an unauthenticated sender that replays
/// them.
#[test]
fn replays_from_elsewhere_are_refused() {
    let mut b = open(2, &[], Some(5));
    let tap = UdpSocket::bind("127.0.0.1:0").unwrap(); // loopback has free ports
    let spy = tap.local_addr().unwrap(); // bound
                                         // The spy stands between the two and sees every datagram
                                         // from a, and what b answers.
    let mut a = open(1, &[spy], Some(5));
    let mut seen = Vec::new();
    put(&mut a, MacAddr::local(2), 60, 1);
    a.flush(NOW);
    let mut room = [0; 2000];
    let mut pass = |to: SocketAddr| {
        wait_ms(&tap, 5_000);
        let n = tap.recv(&mut room).unwrap(); // something was sent
        seen.push(room[..n].to_vec());
        tap.send_to(&room[..n], to).unwrap(); // loopback takes it
    };
    pass(b.local_addr());
    wait_ms(&b.socket, 5_000);
    assert!(b.receive(NOW).is_none());
    pass(a.local_addr());
    wait_ms(&a.socket, 5_000);
    assert!(a.receive(NOW).is_none());
    // The response, then the frame that was kept.
    pass(b.local_addr());
    pass(b.local_addr());
    assert_eq!(get(&mut b), Some((60, 1)));
    assert_eq!(b.peers.all, [spy]);
    assert_eq!(seen.len(), 4);
    // All of it once more, from another address, and to another port of the same job.
    let thief = UdpSocket::bind("127.0.0.1:0").unwrap(); // loopback has free ports
    let mut c = open(3, &[], Some(5));
    let before = b.counters();
    for d in &seen {
        for to in [b.local_addr(), c.local_addr()] {
            thief.send_to(d, to).unwrap(); // loopback takes it
        }
    }
    for port in [&mut b, &mut c] {
        for _ in 0..2 {
            wait_ms(&port.socket, 100);
            assert!(port.receive(NOW).is_none(), "a replayed frame was believed");
        }
    }
    assert_eq!(b.peers.all, [spy]);
    assert!(c.peers.all.is_empty());
    assert_eq!(b.counters().rx_frames, before.rx_frames);
    assert!(b.counters().rx_unauthenticated > before.rx_unauthenticated);
}

/// A challenge from an unknown sender gets no answer, and a flood gets few.
#[test]
fn a_port_answers_challenges_of_peers_only_and_sends_few() {
    let mut a = open(1, &[], Some(5));
    let friend = Proof::new(77, 5, [9; 16]);
    let unknown = UdpSocket::bind("127.0.0.1:0").unwrap(); // loopback has free ports
    let challenge = friend.emit(Kind::Challenge, 1);
    for _ in 0..200 {
        unknown.send_to(&challenge, a.local_addr()).unwrap(); // loopback takes it
    }
    for _ in 0..3 {
        wait_ms(&a.socket, 50);
        assert!(a.receive(NOW).is_none());
    }
    unknown.set_nonblocking(true).unwrap(); // a socket can be
    let mut answers = Vec::new();
    let mut room = [0; 100];
    while let Ok(n) = unknown.recv(&mut room) {
        answers.push(friend.parse(&room[..n]).map(|(kind, _)| kind));
    }
    assert!(answers.iter().all(|&k| k == Some(Kind::Challenge)));
    assert!((1..=CHALLENGES_MAX as usize).contains(&answers.len()));
    assert!(a.peers.all.is_empty() && a.trust.tags.is_empty());
}

#[test]
fn without_a_secret_only_configured_peers_are_accepted() {
    let mut b = open(2, &[], None);
    let mut a = open(1, &[b.local_addr()], None);
    let mut c = open(3, &[b.local_addr()], None);
    b.peers.all.push(c.local_addr());
    put(&mut a, MacAddr::local(2), 60, 1);
    a.flush(NOW);
    put(&mut c, MacAddr::local(2), 60, 2);
    c.flush(NOW);
    assert_eq!(get(&mut b), Some((60, 2)));
    assert_eq!(b.counters().rx_unauthenticated, 1);
}

#[test]
fn broadcast_goes_to_every_peer() {
    let (mut b, mut c) = (open(2, &[], Some(1)), open(3, &[], Some(1)));
    let mut a = open(1, &[b.local_addr(), c.local_addr()], Some(1));
    // No peer is authenticated: the broadcast is kept, and is delivered after both challenges.
    put(&mut a, MacAddr::BROADCAST, 60, 3);
    for other in [&mut b, &mut c] {
        wait_ms(&other.socket, 5_000);
        assert!(other.receive(NOW).is_none());
        wait_ms(&a.socket, 5_000);
        assert!(a.receive(NOW).is_none());
        let mut got = None;
        for _ in 0..3 {
            got = got.or_else(|| get(other));
        }
        assert_eq!(got, Some((60, 3)));
    }
    put(&mut a, MacAddr::BROADCAST, 60, 4);
    assert_eq!((get(&mut b), get(&mut c)), (Some((60, 4)), Some((60, 4))));
}

#[test]
fn a_peer_whose_socket_is_closed_is_named_and_the_others_get_their_frames() {
    let (mut b, mut c) = (open(2, &[], Some(5)), open(3, &[], Some(5)));
    let mut a = open(1, &[b.local_addr(), c.local_addr()], Some(5));
    meet(&mut a, &mut b);
    meet(&mut a, &mut c);
    assert_eq!(a.next_refused(), None);
    drop(b);
    let mut refused = None;
    for _ in 0..5_000 {
        put(&mut a, MacAddr::local(2), 60, 1);
        a.flush(NOW);
        let _ = a.receive(NOW);
        refused = a.next_refused();
        if refused.is_some() {
            break;
        }
        wait_ms(&a.socket, 1);
    }
    assert_eq!(refused, Some(RefusedBy::Link(MacAddr::local(2))));
    // The error that a refusal leaves costs no frame of another peer.
    put(&mut a, MacAddr::local(2), 60, 2);
    a.flush(NOW);
    put(&mut a, MacAddr::local(3), 64, 3);
    a.flush(NOW);
    assert_eq!(get(&mut c), Some((64, 3)));
}
