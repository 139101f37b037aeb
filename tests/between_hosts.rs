//! Tests of which transport `auto` takes between hosts and inside of one, over the host's UDP and
//! TCP. Two addresses of this machine stand for two hosts: NICs know a host by its address alone.

use crate::communicators;

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use communicators::{each, options};
use ringbell::nic::SessionInfo;
use ringbell::{Communicator, Nic, ReduceOp};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Another address of this machine than the loopback's.
fn other_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // No packet is sent: this only asks for a route.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback()).then_some(ip)
}

/// The NICs of one test; each finds none in its own directory, as on a host of its own.
struct Pair {
    nics: Vec<Nic>,
    directory: PathBuf,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.nics.clear();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// NICs with these addresses of hosts and these transports. The second has the lower address of the
/// two if `swapped`.
fn pair(hosts: [IpAddr; 2], transports: [&str; 2], swapped: bool) -> Pair {
    static N: AtomicU32 = AtomicU32::new(0);
    let n = N.fetch_add(1, Ordering::Relaxed);
    let name = format!("rb-between-{n}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).expect("room in the temporary folder");
    let open = |i: usize| {
        let last = if swapped { 2 - i } else { 1 + i };
        let nic = Nic::builder().ip(format!("10.66.1.{last}/24"));
        let nic = nic.gpu("emulated").gpu_memory(16 << 20);
        let nic = nic.directory(directory.join(i.to_string()));
        let nic = nic.port(format!("roce:{}:0", hosts[i]));
        nic.transport(transports[i]).open().expect("a NIC")
    };
    Pair {
        nics: vec![open(0), open(1)],
        directory: directory.clone(),
    }
}

/// The transport of the link between two ranks, with the dialling end's reason.
fn link(p: &Pair) -> (&'static str, &'static str) {
    let comms = Communicator::init_all(&p.nics, &options()).expect("all come");
    let infos = each(&comms, |c| {
        let (src, dst) = (c.nic().alloc::<u32>(1000), c.nic().alloc::<u32>(1000));
        let (src, dst) = (src.expect("memory"), dst.expect("memory"));
        let mine: Vec<u32> = (0..1000).map(|i| i + c.rank()).collect();
        src.write(0, &mine).expect("inside");
        c.all_reduce::<u32>(&src, &dst, 1000, ReduceOp::Sum)
            .expect("both come");
        let mut got = vec![0; 1000];
        dst.read(0, &mut got).expect("inside");
        let sums: Vec<u32> = (0..1000).map(|i| 2 * i + 1).collect();
        assert!(got == sums, "rank {}: sums", c.rank());
        let peers = c.info().expect("a communicator").peers;
        let peer = peers.into_iter().find_map(|p| Some((p.transport?, p.why)));
        peer.expect("a link")
    });
    assert_eq!(infos[0].0, infos[1].0, "both ends use one transport");
    let is_told = |why: &str| why == "the peer chose the transport";
    let lower = usize::from(p.nics[1].ip().ip < p.nics[0].ip().ip);
    assert!(is_told(infos[1 - lower].1), "{infos:?}");
    infos[lower]
}

/// The transport of a session from the first NIC to the second, which know each other's hosts.
fn session(p: &Pair) -> SessionInfo {
    let _comms = Communicator::init_all(&p.nics, &options()).expect("all come");
    let listener = p.nics[1].listen(7000).expect("the port is free");
    let socket = std::thread::scope(|s| {
        let accepted = s.spawn(|| listener.accept().expect("it comes"));
        let to = (p.nics[1].ip().ip, 7000);
        let socket = p.nics[0].connect(to).expect("a listener");
        accepted.join().expect("accepted");
        socket
    });
    socket.info().expect("open")
}

#[test]
fn rdma_carries_what_stays_on_a_host() {
    for swapped in [false, true] {
        let (transport, why) = link(&pair([LOOPBACK; 2], ["auto"; 2], swapped));
        assert_eq!(transport, "rdma");
        assert!(why.contains("on this host"), "{why}");
    }
    let info = session(&pair([LOOPBACK; 2], ["auto"; 2], false));
    assert_eq!(info.transport, Some("rdma"));
}

#[test]
fn iwarp_carries_what_goes_to_another_host() {
    let Some(other) = other_address() else {
        return eprintln!("SKIPPED: this machine has no address but the loopback's");
    };
    for (hosts, swapped) in [([LOOPBACK, other], false), ([other, LOOPBACK], true)] {
        let (transport, why) = link(&pair(hosts, ["auto"; 2], swapped));
        assert_eq!(transport, "iwarp");
        assert!(why.contains("on another host"), "{why}");
    }
    let info = session(&pair([LOOPBACK, other], ["auto"; 2], false));
    assert_eq!(info.transport, Some("iwarp"));
    assert!(info.why.contains("on another host"), "{}", info.why);
}

#[test]
fn a_peer_with_one_of_both_is_reached_by_that() {
    let mut hosts = vec![([LOOPBACK; 2], "iwarp", "no NIC answers to RDMA")];
    match other_address() {
        Some(other) => {
            hosts.push((
                [LOOPBACK, other],
                "rdma",
                "no NIC takes connections of iWARP",
            ));
        }
        None => eprintln!("SKIPPED between hosts: this machine has no address but the loopback's"),
    }
    for (hosts, its, reason) in hosts {
        let (transport, why) = link(&pair(hosts, ["auto", its], false));
        assert_eq!(transport, its);
        assert!(why.contains(reason), "{why}");
        // The one that has both is dialled.
        let (transport, why) = link(&pair(hosts, ["auto", its], true));
        assert_eq!((transport, why), (its, "the only transport of this NIC"));
        let info = session(&pair(hosts, ["auto", its], false));
        assert_eq!(info.transport, Some(its));
        assert!(info.why.contains(reason), "{}", info.why);
    }
}

#[test]
fn a_named_transport_is_obeyed_on_both_sides_of_the_rule() {
    let others = other_address().map(|other| ([LOOPBACK, other], "rdma"));
    for (hosts, named) in others.into_iter().chain([([LOOPBACK; 2], "iwarp")]) {
        let (transport, _) = link(&pair(hosts, [named, "auto"], false));
        assert_eq!(transport, named);
        let info = session(&pair(hosts, [named; 2], false));
        assert_eq!(info.transport, Some(named));
    }
}

#[test]
fn a_peer_whose_tcp_port_is_silent_is_reached_by_rdma() {
    let Some(other) = other_address() else {
        return eprintln!("SKIPPED: this machine has no address but the loopback's");
    };
    let pair = || pair([LOOPBACK, other], ["auto", "rdma"], false);
    let reason = "no NIC takes connections of iWARP";
    // The kernel takes connections for a program that never looks at them.
    for is_link in [true, false] {
        let p = pair();
        let at = p.nics[1].ports()[0].address.expect("a port of datagrams");
        let Ok(_silent) = TcpListener::bind(at) else {
            return eprintln!("SKIPPED: another program has the number in TCP");
        };
        let (transport, why) = match is_link {
            true => link(&p),
            false => {
                let info = session(&p);
                (info.transport.expect("open"), info.why)
            }
        };
        assert_eq!(transport, "rdma");
        assert!(why.contains(reason), "{why}");
    }
}
