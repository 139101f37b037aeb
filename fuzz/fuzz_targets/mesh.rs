//! Frames of any shape from a neighbour on a wire: no panic, and a right neighbour is taken after
//! it.
//!
//! Input: records of `kind (1 byte), length (1 byte), bytes`. Bytes of an even kind are a frame as
//! it is. Of an odd one they replace bytes of the node's last frame from byte `kind / 2` on, which
//! is sent back with the neighbour's epoch.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringbell_mesh::port::mac_of;
use ringbell_mesh::{MeshConfig, MeshPort, WireState};
use ringbell_net::port::mem::{MemPort, MemSwitch};
use ringbell_net::port::{Checksums, Port};
use ringbell_net::NicTime;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::NodeId;

/// Where fields lie in a frame of a wire.
const KIND: usize = 14;
const EPOCH: usize = 22;
const BODY: usize = 42;
const HELLO: u8 = 3;

/// The node, and its neighbour's end of the wire.
struct Wire {
    node: MeshPort,
    peer: MemPort,
    now: NicTime,
    last: Vec<u8>,
}

impl Wire {
    fn step(&mut self) {
        for _ in 0..3 {
            while self.node.receive(self.now).is_some() {}
            self.node.flush(self.now);
            while let Some(frame) = self.peer.receive(self.now) {
                self.last = frame.to_vec();
            }
            self.now.0 += 300_000;
        }
    }

    fn send(&mut self, frame: &[u8]) {
        let Some(room) = self.peer.tx_frame(self.now, mac_of(NodeId(0))) else {
            return;
        };
        let len = frame.len().min(room.len());
        room[..len].copy_from_slice(&frame[..len]);
        self.peer.tx_commit(self.now, len);
        self.peer.flush(self.now);
        self.step();
    }

    /// A frame of the node, as node 1 would send it.
    fn back(&self, epoch: u8) -> Vec<u8> {
        let mut frame = self.last.clone();
        if frame.len() > EPOCH + 4 {
            frame[EPOCH..EPOCH + 4].copy_from_slice(&[0, 0, 0, epoch]);
        }
        if frame.len() > BODY + 5 && frame[KIND] == HELLO {
            let heard = frame.len() - 5;
            let ours: [u8; 4] = self.last[EPOCH..EPOCH + 4].try_into().expect("four bytes");
            frame[heard..heard + 4].copy_from_slice(&ours);
            (frame[BODY + 1], frame[BODY + 3]) = (0, 1);
        }
        frame
    }
}

fuzz_target!(|bytes: &[u8]| {
    let switch = MemSwitch::private(2, 1_500, Checksums::Omitted).expect("numbers in range");
    let topology = generate("bus:2").expect("a network");
    let config = MeshConfig::new(topology, NodeId(0));
    let port: Box<dyn Port> = Box::new(switch.port(0).expect("free"));
    let mut wire = Wire {
        node: MeshPort::open(config, vec![(1, port)]).expect("its wire"),
        peer: switch.port(1).expect("free"),
        now: NicTime(1),
        last: Vec::new(),
    };
    wire.step();
    let hello = wire.last.clone();
    wire.send(&wire.back(7));
    let mut rest = bytes;
    while let [kind, len, more @ ..] = rest {
        let (record, after) = more.split_at(usize::from(*len).min(more.len()));
        rest = after;
        let frame = match kind % 2 {
            0 => record.to_vec(),
            _ => {
                let mut frame = wire.back(7);
                for (to, from) in frame.iter_mut().skip(usize::from(kind / 2)).zip(record) {
                    *to = *from;
                }
                frame
            }
        };
        wire.send(&frame);
        if let Some(room) = wire.node.tx_frame(wire.now, mac_of(NodeId(1))) {
            room[..60].fill(*kind);
            wire.node.tx_commit(wire.now, 60);
        }
    }
    // A neighbour that starts now is taken: it asks for a hello, and answers it.
    for epoch in [200, 200] {
        wire.last = hello.clone();
        wire.send(&wire.back(epoch));
        wire.send(&wire.back(epoch));
    }
    assert_eq!(wire.node.wires()[0].state, WireState::Up);
});
