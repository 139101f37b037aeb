//! Frames, and the flows to which they belong.

use ringbell_nic_core::wire::ETHERNET_HEADER;

use super::address::destination;
use crate::random::mix;

/// A frame on its way.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub(super) bytes: Vec<u8>,
    /// The rank to which it goes; none where no rank has its address.
    pub(super) to: Option<usize>,
    /// Number of its flow.
    pub(super) flow: u64,
}

impl Frame {
    /// Becomes a frame that one of so many ranks has sent. The one before is gone.
    pub(super) fn fill(&mut self, bytes: &[u8], ranks: usize) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.to = destination(bytes, ranks);
        self.flow = flow(bytes);
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Becomes a flow of its own, so that switches spread it.
    pub(super) fn spray(&mut self, number: u64) {
        self.flow = mix(number);
    }
}

/// A number of the flow: IPv4 addresses, the protocol, and the ports of UDP and TCP. Frames without
/// them are one flow.
fn flow(frame: &[u8]) -> u64 {
    const IPV4: [u8; 2] = [0x08, 0x00];
    let packet = frame.get(ETHERNET_HEADER..).unwrap_or_default();
    if frame.get(12..14) != Some(&IPV4) || packet.len() < 20 {
        return 0;
    }
    let word = |at: usize| {
        packet
            .get(at..at + 4)
            .map_or(0, |w| w.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
    };
    let header = usize::from(packet[0] & 15) * 4;
    let [from, to, ports] = [word(12), word(16), word(header)];
    mix(mix(from << 32 | to) ^ (ports << 8 | u64::from(packet[9])))
}

/// What a link weighs for a flow: the heaviest of several carries it.
pub(super) fn weight(seed: u64, flow: u64, link: usize) -> u64 {
    mix(mix(seed ^ flow) ^ link as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a frame of RoCEv2.
    fn frame(from: u8, to: u8, source_port: u16) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12] = 8;
        frame[14] = 0x45;
        (frame[23], frame[29], frame[33]) = (17, from, to);
        frame[34..36].copy_from_slice(&source_port.to_be_bytes());
        frame[36..38].copy_from_slice(&4791_u16.to_be_bytes());
        frame
    }

    fn heaviest(seed: u64, frame: &[u8], links: &[usize]) -> usize {
        let weight = |l: &&usize| weight(seed, flow(frame), **l);
        *links.iter().max_by_key(weight).expect("one")
    }

    #[test]
    fn flows_spread_evenly_and_keep_their_link_when_another_is_gone() {
        let links = [3, 8, 11, 12];
        let mut of_link = [0; 13];
        for port in 0..4_000 {
            let frame = frame(1, 2, port);
            let link = heaviest(5, &frame, &links);
            of_link[link] += 1;
            if link != 8 {
                assert_eq!(heaviest(5, &frame, &[3, 11, 12]), link);
            }
        }
        for link in links {
            assert!((900..1_100).contains(&of_link[link]), "{of_link:?}");
        }
    }

    #[test]
    fn a_flow_is_its_addresses_and_ports() {
        let first = flow(&frame(1, 2, 50_000));
        assert_eq!(flow(&[&frame(1, 2, 50_000)[..], &[7; 900]].concat()), first);
        for other in [
            frame(2, 1, 50_000),
            frame(1, 3, 50_000),
            frame(1, 2, 50_001),
        ] {
            assert_ne!(flow(&other), first);
        }
        assert_eq!(flow(&[0xff; 14]), flow(&[]));
    }
}
