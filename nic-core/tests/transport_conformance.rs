//! The rules of [`transport_rules`] for the transports that there are, over memory of the host.

mod nic_support;
mod transport_rules;

use nic_support::*;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::rdma::RdmaConfig;
use ringbell_nic_core::transport::tcp::TcpConfig;
use transport_rules::Subject;

fn local() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    Some(Subject {
        hosts: [1, 2].map(|n| Host::new(&Setup::new(&dir, n))),
        keep: Box::new(dir),
    })
}

fn tcp() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = switch.port(usize::from(n) - 1).expect("port");
        Host::over(&setup, Box::new(port), TcpConfig::default())
    };
    Some(Subject {
        hosts: [host(1), host(2)],
        keep: Box::new(dir),
    })
}

fn rdma() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = Box::new(switch.port(usize::from(n) - 1).expect("port"));
        let config = RdmaConfig {
            seed: n.into(),
            ..RdmaConfig::default()
        };
        Host::with(&setup, |nic| with_rdma(&setup, nic, port, config))
    };
    Some(Subject {
        hosts: [host(1), host(2)],
        keep: Box::new(dir),
    })
}

conformance! {
    over_local => super::local,
    over_tcp => super::tcp,
    over_rdma => super::rdma,
}
