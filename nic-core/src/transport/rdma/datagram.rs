//! Datagrams of communication management: from queue pair 1 to queue pair 1 (IBTA vol. 1 §13.5.2).

use ringbell_nic_abi::roce::{QKEY_GSI, QPN_GSI, ROCE_UDP_PORT};
use ringbell_nic_abi::RoceOpcode;

use crate::network::{Datagrams, Link, Network};
use crate::types::NicTime;
use ringbell_net::port::Batch;
use ringbell_net::wire::roce::extended::Deth;
use ringbell_net::wire::roce::icrc::Flow;
use ringbell_net::wire::roce::mad::MAD_BYTES;
use ringbell_net::wire::roce::packet::Head;
use ringbell_net::wire::roce::{Bth, Extended, Psn, Qpn};
use ringbell_net::wire::udp::ECT0;

/// The UDP source port of management in frames: one for all, since they are few.
pub(super) const SOURCE_PORT: u16 = ROCE_UDP_PORT;
/// Sends a datagram to queue pair 1 of the other end of a flow. `false`: there was no room.
pub(super) fn send_datagram(
    net: &mut Network,
    now: NicTime,
    to: Link,
    flow: &Flow,
    datagram: &[u8; MAD_BYTES],
) -> bool {
    let gsi = Qpn::new(QPN_GSI);
    let head = Head {
        bth: Bth::new(RoceOpcode::DatagramSend, gsi, Psn::new(0)),
        extended: Extended::Datagram(Deth {
            key: QKEY_GSI,
            source: gsi,
            reserved: 0,
        }),
    };
    let how = Datagrams {
        ecn: ECT0,
        segmented: false,
    };
    let mut batch = Batch::new();
    let len = head.len() + MAD_BYTES;
    let room = batch.room(len);
    room[head.len()..].copy_from_slice(datagram);
    head.emit(room, MAD_BYTES);
    batch.seal(Some(flow));
    batch.end();
    net.send(now, to, flow, &how, &batch, 0) == 1
}
