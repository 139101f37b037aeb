//! Addresses of ranks.

use std::net::Ipv4Addr;

use ringbell_nic_core::wire::control::Arp;
use ringbell_nic_core::wire::MacAddr;

const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];

/// IPv4 address of a rank.
pub(crate) fn ip(rank: usize) -> Ipv4Addr {
    let [high, low] = (rank as u16 + 1).to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// Address of a rank's port: locally administered.
pub(crate) fn mac(rank: usize) -> MacAddr {
    let [high, low] = (rank as u16).to_be_bytes();
    MacAddr([0x02, 0x53, 0x49, 0x4d, high, low])
}

/// The rank to which a frame goes: by its address, or the one that an ARP request asks for.
pub(super) fn destination(frame: &[u8], ranks: usize) -> Option<usize> {
    let (rank, is_its) = match frame.get(12..14)? == ETHERTYPE_ARP {
        true => {
            let asked = Arp::parse(frame)?.target_ip;
            let [_, _, high, low] = asked.octets();
            let rank = usize::from(u16::from_be_bytes([high, low])).checked_sub(1)?;
            (rank, ip(rank) == asked)
        }
        false => {
            let rank = usize::from(u16::from_be_bytes([frame[4], frame[5]]));
            (rank, mac(rank).0 == frame[..6])
        }
    };
    (rank < ranks && is_its).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_goes_to_the_owner_of_its_address_or_of_the_one_that_is_asked_for() {
        let mut request = vec![0; 60];
        let asked = Arp {
            request: true,
            sender_mac: mac(300),
            sender_ip: ip(300),
            target_mac: MacAddr([0; 6]),
            target_ip: ip(299),
        };
        asked.emit(&mut request);
        assert_eq!(destination(&request, 301), Some(299));
        assert_eq!(destination(&request, 299), None);
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&mac(258).0);
        assert_eq!(destination(&frame, 301), Some(258));
        frame[..6].copy_from_slice(&MacAddr::BROADCAST.0);
        assert_eq!(destination(&frame, 301), None);
        assert_eq!(destination(&frame[..13], 301), None);
    }
}
