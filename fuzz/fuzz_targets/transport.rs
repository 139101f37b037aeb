//! Frames of any shape, in any order and at any time, into a transport that listens: no panic of
//! ours. (smoltcp's own failed assertions end the connection; run with `-close_fd_mask=2` to hide
//! their messages. libFuzzer's panic hook aborts on them: they are findings to report upstream.)
//!
//! Input: records of `time step (1 byte), length (1 byte), frame`.
#![no_main]

#[allow(dead_code, unreachable_pub)] // Tests of transports use all of it.
#[path = "../../nic-core/tests/transport_support/memory.rs"]
mod memory;

use std::net::Ipv4Addr;

use libfuzzer_sys::fuzz_target;
use memory::MockDma;
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::mem::{mac_of, MemSwitch};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::transport::{deliver, Takers, Transport};
use ringbell_nic_core::types::NicTime;

fuzz_target!(|bytes: &[u8]| {
    let sw = MemSwitch::private(2, 1500, Checksums::Omitted).expect("numbers in range");
    let mut attacker = sw.port(0).expect("free");
    let config = TcpConfig {
        rx_buffer: 4096,
        tx_buffer: 4096,
        ..TcpConfig::default()
    };
    let port = Box::new(sw.port(1).expect("free"));
    let ip = Ipv4Addr::new(10, 0, 0, 2);
    let mut net = Network::new(ip, 24, vec![port], &[]).expect("valid");
    let mut victim = TcpTransport::new(&net, config).expect("valid");
    victim.listen(7000, 4).expect("free");
    let (mut rest, mut now) = (bytes, NicTime(1));
    while let [step, len, tail @ ..] = rest {
        let (frame, next) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = next;
        now = NicTime(now.0 + (1u64 << (step % 36)));
        if frame.len() >= 14 {
            if let Some(room) = attacker.tx_frame(now, mac_of(1)) {
                room[..frame.len()].copy_from_slice(frame);
                room[..6].copy_from_slice(&mac_of(1).0);
                attacker.tx_commit(now, frame.len());
            }
            attacker.flush(now);
        }
        let takers: &mut Takers<'_> = &mut [Some(&mut victim), None, None, None];
        // No work is posted, so nothing is read or written.
        let mut memory = MockDma::default();
        let mut data = Datapath::without_engines(&mut memory);
        deliver(now, &mut net, takers, &mut data);
        victim.step(now, &mut net, &mut data);
        while victim.poll_event().is_some() {}
        while attacker.receive(now).is_some() {}
    }
});
