"""Checks RoCEv2 frames with scapy: dissection, and the invariant CRC.

They are one a line in hexadecimal, and are written to a pcap file; or, with a second argument, those of that capture.
"""

import sys

from scapy.all import Ether, raw, rdpcap, wrpcap
from scapy.contrib.roce import BTH

frames = []
if len(sys.argv) > 2:
    captured = [raw(f) for f in rdpcap(sys.argv[2])]
    given = [data for data in captured if data[12:14] != b"\x08\x06"]  # without ARP
else:
    given = [bytes.fromhex(line.strip()) for line in sys.stdin]
for data in given:
    frame = Ether(data)
    frames.append(frame)
    if BTH not in frame:
        sys.exit(f"frame {len(frames)}: scapy sees no RoCEv2 packet")
    bth = frame[BTH]
    # Built again with the CRC left to scapy, for every kind of headers behind the base header.
    right = bth.compute_icrc(b"")
    if data[-4:] != right:
        sys.exit(f"frame {len(frames)}: ICRC {data[-4:].hex()}, scapy has {right.hex()}: {frame!r}")
    if raw(frame) != data:
        sys.exit(f"frame {len(frames)}: scapy builds other bytes")
wrpcap(sys.argv[1], frames)
print(len(frames))
