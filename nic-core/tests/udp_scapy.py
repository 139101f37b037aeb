"""Reads a capture of transport udp with scapy: ACCL's signature as its eth_header has it, our fields behind it, sequence numbers, CRC-32C.

Prints the types of messages that it has seen.
"""

import sys

from scapy.all import (
    IP,
    UDP,
    LEIntField,
    LELongField,
    LEShortField,
    Packet,
    XByteField,
    rdpcap,
)


class Signature(Packet):
    fields_desc = [
        LEIntField("count", 0),
        LEIntField("tag", 0),
        LEIntField("src", 0),
        LEIntField("seqn", 0),
        LEIntField("strm", 0),
        LEShortField("dst", 0),
        XByteField("msg_type", 0),
        XByteField("host", 0),
        LELongField("vaddr", 0),
        LEIntField("zero", 0),
        LEIntField("reply_tag", 0),
        LEIntField("first_word", 0),
        LEIntField("second_word", 0),
        LEShortField("port", 0),
        LEShortField("source_port", 0),
        LEShortField("buffers", 0),
        LEShortField("version", 0),
        LEIntField("reserved", 0),
        LEIntField("crc", 0),
    ]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


types = set()
following = {}
for frame in rdpcap(sys.argv[1]):
    if IP not in frame:
        continue
    if UDP not in frame or (frame[UDP].sport, frame[UDP].dport) != (5500, 5500):
        sys.exit(f"not between ports 5500: {frame.summary()}")
    data = bytes(frame[UDP].payload)[: frame[UDP].len - 8]
    signature = Signature(data)
    if signature.count != len(data) - 64 or signature.version != 1:
        sys.exit(f"count or version: {signature!r}")
    unused = (signature.strm, signature.host, signature.vaddr, signature.zero, signature.reserved)
    if any(unused):
        sys.exit(f"fields that are zero: {signature!r}")
    if crc32c(data[:60] + data[64:]) != signature.crc:
        sys.exit(f"crc: {signature!r}")
    types.add(signature.msg_type)
    source = frame[IP].src
    # Data, ends and what stands between them.
    if signature.msg_type in (0x83, 0x84):
        following.setdefault(source, signature.seqn)
    elif signature.seqn != following[source]:
        sys.exit(f"number {signature.seqn} of {source}, not {following[source]}")
    if signature.msg_type in (0, 0x80):
        following[source] = (signature.seqn + 1) % 2**32
print(*(hex(t) for t in sorted(types)))
