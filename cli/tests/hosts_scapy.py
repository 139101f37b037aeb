"""Records the RoCEv2 packets of an interface until standard input closes, and prints how many have which invariant CRC.

`right`: that of the packet as it lies on the wire. `right_with_0`: that of the packet with the IPv4 identification 0.
"""

import json
import select
import socket
import sys

from scapy.all import IP, UDP, Ether
from scapy.contrib.roce import BTH

PACKETS = 300
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
wire.bind((sys.argv[1], 0))
print("ready", file=sys.stderr, flush=True)
frames = []
while True:
    readable, _, _ = select.select([wire, sys.stdin], [], [])
    if wire in readable:
        data = wire.recv(1 << 17)
        if len(frames) < PACKETS:
            frames.append(data)
    elif sys.stdin in readable:
        break

found = {"packets": 0, "unfragmented": 0, "identification_0": 0, "right": 0, "right_with_0": 0}
for data in frames:
    frame = Ether(data)
    # Requests for connections always have a CRC: they go to queue pair 1.
    if UDP not in frame or BTH not in frame or frame[BTH].dqpn == 1:
        continue
    found["packets"] += 1
    found["unfragmented"] += "DF" in frame[IP].flags and len(data) <= 1514
    found["identification_0"] += frame[IP].id == 0
    found["right"] += data[-4:] == frame[BTH].compute_icrc(b"")
    frame[IP].id = 0
    found["right_with_0"] += data[-4:] == frame[BTH].compute_icrc(b"")
print(json.dumps(found))
