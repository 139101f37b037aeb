use super::*;
use crate::wire::emit_ethernet;

const NOW: NicTime = NicTime(0);

fn send(port: &mut MemPort, dst: MacAddr, tag: u32) -> bool {
    let src = port.capabilities().medium.mac();
    let Some(f) = port.tx_frame(NOW, dst) else {
        return false;
    };
    emit_ethernet(f, dst, src, 0x88b5);
    f[14..18].copy_from_slice(&tag.to_be_bytes());
    port.tx_commit(NOW, 60);
    true
}

fn recv(port: &mut MemPort) -> Option<u32> {
    let f = port.receive(NOW)?;
    assert_eq!(f.len(), 60);
    Some(u32::from_be_bytes([f[14], f[15], f[16], f[17]]))
}

fn switches(ports: usize) -> Vec<MemSwitch> {
    vec![
        MemSwitch::private(ports, 1500, Checksums::Omitted).unwrap(), // numbers in range
        MemSwitch::shared(ports, 1500, Checksums::Omitted).unwrap(),
    ]
}

#[test]
fn unicast_goes_to_one_and_broadcast_to_all() {
    for sw in switches(4) {
        let mut p: Vec<_> = (0..4).map(|i| sw.port(i).unwrap()).collect(); // free ports
        assert!(send(&mut p[0], mac_of(2), 7));
        p[0].flush(NOW);
        assert_eq!(
            (recv(&mut p[1]), recv(&mut p[2]), recv(&mut p[3])),
            (None, Some(7), None)
        );
        assert!(send(&mut p[3], MacAddr::BROADCAST, 8));
        p[3].flush(NOW);
        for (i, port) in p.iter_mut().take(3).enumerate() {
            assert_eq!(recv(port), Some(8), "port {i}");
            assert_eq!(recv(port), None);
        }
    }
}

#[test]
fn a_full_ring_pushes_back_and_loses_nothing_through_many_laps() {
    for sw in switches(2) {
        let (mut a, mut b) = (sw.port(0).unwrap(), sw.port(1).unwrap()); // free ports
        let (mut sent, mut got) = (0, 0);
        while got < 10_000 {
            while send(&mut a, mac_of(1), sent) {
                sent += 1;
            }
            assert!(sent > got, "room after reading");
            for _ in 0..1 + got % 37 {
                match recv(&mut b) {
                    Some(tag) => assert_eq!(tag, got),
                    None => break,
                }
                got += 1;
            }
        }
        assert_eq!(a.counters().tx_dropped, 0);
    }
}

#[test]
fn frames_to_a_nic_that_is_gone_are_dropped_in_the_end() {
    let sw = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
    let mut a = sw.port(0).unwrap(); // free port
    while send(&mut a, mac_of(1), 0) {}
    assert!(a.tx_frame(NicTime(STALLED_NS - 1), mac_of(1)).is_none());
    assert!(a.tx_frame(NicTime(STALLED_NS), mac_of(1)).is_some());
    a.tx_commit(NicTime(STALLED_NS), 60);
    assert_eq!(a.counters().tx_dropped, 1);
}

#[test]
fn foreign_mac_addresses_are_learned() {
    let sw = MemSwitch::private(3, 1500, Checksums::Omitted).unwrap(); // numbers in range
    let mut p: Vec<_> = (0..3).map(|i| sw.port(i).unwrap()).collect(); // free ports
    let foreign = MacAddr([2, 0, 0, 0, 0, 1]);
    let f = p[1].tx_frame(NOW, MacAddr::BROADCAST).unwrap(); // an empty ring has room
    emit_ethernet(f, MacAddr::BROADCAST, foreign, 0x88b5);
    p[1].tx_commit(NOW, 60);
    p[1].flush(NOW);
    assert!(recv(&mut p[0]).is_some() && recv(&mut p[2]).is_some());
    assert!(send(&mut p[0], foreign, 5));
    p[0].flush(NOW);
    assert_eq!((recv(&mut p[1]), recv(&mut p[2])), (Some(5), None));
}

#[test]
fn a_port_has_one_owner_and_is_free_after_it() {
    let sw = MemSwitch::shared(2, 1500, Checksums::Software).unwrap(); // numbers in range
    let first = sw.port(0).unwrap(); // free port
    assert!(matches!(sw.port(0), Err(SwitchError::Taken { port: 0 })));
    assert!(matches!(sw.port(2), Err(SwitchError::NoSuchPort { .. })));
    drop(first);
    assert!(sw.port(0).is_ok());
}

#[test]
fn another_attachment_sees_the_same_switch_and_garbage_is_refused() {
    let sw = MemSwitch::shared(2, 9000, Checksums::Omitted).unwrap(); // numbers in range
    let fd = sw.fd().unwrap().try_clone_to_owned().unwrap(); // shared, and descriptors are left
    let other = MemSwitch::attach(fd).unwrap(); // it is a switch
    let (mut a, mut b) = (sw.port(0).unwrap(), other.port(1).unwrap()); // free ports
    let able = b.capabilities();
    assert_eq!((able.mtu, able.checksums), (9000, Checksums::Omitted));
    assert!(send(&mut a, mac_of(1), 3));
    a.flush(NOW);
    assert_eq!(recv(&mut b), Some(3));

    let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap(); // memory is left
    rustix::fs::ftruncate(&file, 1 << 20).unwrap(); // a memfd can grow
    assert!(matches!(
        MemSwitch::attach(file),
        Err(SwitchError::NotASwitch)
    ));
}

#[test]
fn a_peer_with_forged_ring_fields_costs_frames_but_not_the_process() {
    let sw = MemSwitch::shared(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
    let (mut a, mut b) = (sw.port(0).unwrap(), sw.port(1).unwrap()); // free ports
    sw.segment
        .produced(&sw.segment.ring(0, 1))
        .store(u64::MAX / 2, Ordering::Release);
    assert_eq!(recv(&mut b), None);
    assert_eq!(b.counters().rx_malformed, 1);
    // A length that no frame has.
    let back = sw.segment.ring(1, 0);
    let mut n = sw.segment.produced(&back).load(Ordering::Relaxed);
    sw.segment.slot(&back, n).copy_in(&[0; 60]);
    sw.segment.slot(&back, n).set_len(3);
    n += 1;
    sw.segment.produced(&back).store(n, Ordering::Release);
    assert_eq!(recv(&mut a), None);
    assert_eq!(a.counters().rx_malformed, 1);
    // A consumer that claims more than was sent.
    sw.segment
        .consumed(&sw.segment.ring(0, 1))
        .store(u64::MAX, Ordering::Release);
    for tag in 0..1000 {
        send(&mut a, mac_of(1), tag);
    }
}

#[test]
fn two_threads_move_every_frame_in_order() {
    for sw in switches(2) {
        let (mut a, mut b) = (sw.port(0).unwrap(), sw.port(1).unwrap()); // free ports
        const FRAMES: u32 = 20_000;
        std::thread::scope(|s| {
            s.spawn(move || {
                let mut tag = 0;
                while tag < FRAMES {
                    if send(&mut a, mac_of(1), tag) {
                        tag += 1;
                    } else {
                        std::thread::yield_now();
                    }
                }
                a.flush(NOW);
            });
            for want in 0..FRAMES {
                loop {
                    match recv(&mut b) {
                        Some(tag) => {
                            assert_eq!(tag, want);
                            break;
                        }
                        None => std::thread::yield_now(),
                    }
                }
            }
        });
    }
}

/// Whether a port's descriptor is readable now.
fn rings(port: &MemPort) -> bool {
    let mut fds = Vec::new();
    port.poll_fds(&mut fds);
    let mut set: Vec<_> = fds
        .iter()
        .map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN))
        .collect();
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    assert_eq!(set.len(), 1, "abstract names can be bound here");
    rustix::event::poll(&mut set, Some(&now)).unwrap() > 0 // a valid set
}

#[test]
fn a_frame_wakes_its_receiver_by_descriptor_and_no_other_port() {
    for sw in switches(3) {
        let mut p: Vec<_> = (0..3).map(|i| sw.port(i).unwrap()).collect(); // free ports
        let quiet = NicTime(1_000 + ARM_AFTER_NS);
        // Awake: looks are due soon, and senders make no system call.
        assert!(p[1].receive(NicTime(1_000)).is_none());
        assert!(p[1].next_timer().is_some());
        assert!(send(&mut p[0], mac_of(1), 1));
        p[0].flush(NOW);
        assert!(!rings(&p[1]));
        assert_eq!(recv(&mut p[1]), Some(1));

        // Asleep: no look is due, and a frame rings once.
        assert!(p[1].receive(NicTime(1_000)).is_none());
        assert!(p[1].receive(quiet).is_none());
        assert_eq!(p[1].next_timer(), None);
        for tag in 2..5 {
            assert!(send(&mut p[2], mac_of(1), tag));
            p[2].flush(NOW);
        }
        assert!(rings(&p[1]) && !rings(&p[0]));
        for tag in 2..5 {
            let f = p[1].receive(quiet).unwrap(); // sent above
            assert_eq!(f[17], tag as u8);
        }
        assert!(p[1].next_timer().is_some());

        // Falling asleep again takes what has rung.
        let later = quiet.plus(std::time::Duration::from_millis(1));
        assert!(p[1].receive(later).is_none());
        assert!(!rings(&p[1]));
        assert_eq!(p[1].next_timer(), None);

        // Rung without a frame, by another process: it is awake for one poll.
        let me = p[0].bell.as_ref().unwrap(); // bound, see `rings`
        for _ in 0..3 {
            me.ring(0);
        }
        assert!(rings(&p[1]));
        assert!(p[1]
            .receive(later.plus(std::time::Duration::from_millis(1)))
            .is_none());
        assert!(!rings(&p[1]));
        // And a frame still wakes it.
        assert!(send(&mut p[0], mac_of(1), 9));
        p[0].flush(NOW);
        assert!(rings(&p[1]));
    }
}

#[test]
fn a_port_keeps_its_bell_through_owners() {
    let sw = MemSwitch::shared(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
    for _ in 0..3 {
        let port = sw.port(0).unwrap(); // free again
        assert!(port.bell.is_some());
    }
}
