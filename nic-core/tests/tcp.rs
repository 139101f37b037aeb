//! TCP transports over the in-memory switch, in virtual time: every run is the same.

mod tcp_support;

use ringbell_nic_core::port::Checksums;
use tcp_support::*;

#[test]
fn bytes_go_both_ways() {
    for (mtu, checksums) in [
        (1500, Checksums::Software),
        (9000, Checksums::Omitted),
        (576, Checksums::Software),
    ] {
        let mut p = Pair::mem(mtu, checksums);
        p.listen(PORT);
        let (a, b) = p.connect(PORT);
        p.transfer((a, b), random(1, 3_000_000), 2, MINUTE);
        std::mem::swap(&mut p.a, &mut p.b);
        p.transfer((b, a), random(3, 1_000_001), 4, MINUTE);
    }
}
