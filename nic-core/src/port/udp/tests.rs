use super::*;

const NOW: NicTime = NicTime(0);

fn open(n: u32, peers: &[SocketAddr], secret: Option<u64>) -> UdpPort {
    UdpPort::open(UdpConfig {
        bind: SocketAddr::from(([127, 0, 0, 1], 0)),
        peers: peers.to_vec(),
        vni: 77,
        secret,
        mac: MacAddr::local(n),
        mtu: 1450,
    })
    .unwrap() // loopback has free ports
}

fn put(p: &mut UdpPort, dst: MacAddr, len: usize, tag: u8) {
    let src = p.mac();
    let room = p.tx_frame(NOW, dst).unwrap(); // the socket buffer is far from full
    room[..len].fill(tag);
    crate::wire::emit_ethernet(room, dst, src, 0x88b5);
    p.tx_commit(NOW, len);
}

fn get(p: &mut UdpPort) -> Option<(usize, u8)> {
    if let Some(f) = p.rx_frame(NOW) {
        return Some((f.len(), f[f.len() - 1]));
    }
    let five_seconds = rustix::event::Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let mut fds = [rustix::event::PollFd::new(
        &p.socket,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, Some(&five_seconds)).unwrap(); // valid arguments
    let f = p.rx_frame(NOW)?;
    Some((f.len(), f[f.len() - 1]))
}

#[test]
fn frames_of_mixed_sizes_arrive_whole_and_in_order() {
    let mut b = open(2, &[], Some(5));
    let mut a = open(1, &[b.local_addr()], Some(5));
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
    assert_eq!((a.counters().tx_frames, b.counters().rx_frames), (300, 300));
}

#[test]
fn strangers_are_counted_and_dropped() {
    let mut b = open(2, &[], Some(5));
    let to = b.local_addr();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap(); // loopback has free ports
    let mut of_other_job = tagged(77, Some(6)).to_vec();
    of_other_job.extend([0; 60]);
    let mut plain = vxlan::header(77).to_vec();
    plain.extend([0; 60]);
    for d in [
        &b""[..],
        b"x",
        b"garbage garbage garbage",
        &of_other_job,
        &plain,
    ] {
        stranger.send_to(d, to).unwrap(); // loopback takes it
    }
    // Proof that all were looked at: a friend's frame comes after them.
    let mut a = open(1, &[to], Some(5));
    put(&mut a, MacAddr::local(2), 60, 1);
    a.flush(NOW);
    assert_eq!(get(&mut b), Some((60, 1)));
    // An empty datagram carries nothing to count.
    assert_eq!(b.counters().rx_strangers, 4);
    assert_eq!(b.peers.len(), 1);
}

#[test]
fn without_a_secret_only_configured_peers_are_believed() {
    let mut b = open(2, &[], None);
    let mut a = open(1, &[b.local_addr()], None);
    let mut c = open(3, &[b.local_addr()], None);
    b.peers.push(c.local_addr());
    put(&mut a, MacAddr::local(2), 60, 1);
    a.flush(NOW);
    put(&mut c, MacAddr::local(2), 60, 2);
    c.flush(NOW);
    assert_eq!(get(&mut b), Some((60, 2)));
    assert_eq!(b.counters().rx_strangers, 1);
}

#[test]
fn broadcast_goes_to_every_peer() {
    let (mut b, mut c) = (open(2, &[], Some(1)), open(3, &[], Some(1)));
    let mut a = open(1, &[b.local_addr(), c.local_addr()], Some(1));
    put(&mut a, MacAddr::BROADCAST, 60, 4);
    assert_eq!((get(&mut b), get(&mut c)), (Some((60, 4)), Some((60, 4))));
}
