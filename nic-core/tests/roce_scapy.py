"""Checks RoCEv2 frames, one a line in hexadecimal, with scapy: dissection, and the invariant CRC. Writes them to a pcap file."""

import sys

from scapy.all import Ether, raw, wrpcap
from scapy.contrib.roce import BTH

frames = []
for line in sys.stdin:
    data = bytes.fromhex(line.strip())
    frame = Ether(data)
    frames.append(frame)
    if BTH not in frame:
        sys.exit(f"frame {len(frames)}: scapy sees no RoCEv2 packet")
    bth = frame[BTH]
    # Built again with the CRC left to scapy, whatever the headers behind the base header are.
    right = bth.compute_icrc(b"")
    if data[-4:] != right:
        sys.exit(f"frame {len(frames)}: ICRC {data[-4:].hex()}, scapy has {right.hex()}: {frame!r}")
    if raw(frame) != data:
        sys.exit(f"frame {len(frames)}: scapy builds other bytes")
wrpcap(sys.argv[1], frames)
print(len(frames))
