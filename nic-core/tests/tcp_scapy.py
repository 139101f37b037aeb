"""Scapy as a foreign peer and attacker of a NIC behind a TAP device.

Usage: tcp_scapy.py INTERFACE NIC_ADDRESS PORT CASE

The NIC listens at PORT and sends back what it receives. This side speaks for addresses that the kernel does not
have, so that the kernel's TCP stays out of it. Ends with 0 when the case holds; otherwise says what did not.
"""

import random
import select
import socket
import sys
import threading
import time

from scapy.arch.linux import L2Socket
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

DEVICE, NIC, PORT, CASE = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
NET = NIC.rsplit(".", 1)[0]
# Long enough for a loaded machine; nothing waits for it to pass.
PATIENCE = 30
OPTIONS = [("MSS", 1460), ("SAckOK", b""), ("NOP", None), ("WScale", 7)]
SPACE = 1 << 32


def need(condition, what):
    if not condition:
        sys.exit(f"{CASE}: {what}")


class Peer:
    """One address and port that talks to the NIC."""

    def __init__(self, host, sport):
        self.ip = f"{NET}.{host}"
        self.mac = f"02:00:00:00:01:{host:02x}"
        self.sport = sport
        self.wire = L2Socket(iface=DEVICE)
        self.nic_mac = self.resolve()
        self.next = self.expected = 0

    def send(self, flags, seq, ack=0, payload=b"", options=(), window=2000):
        packet = (
            Ether(src=self.mac, dst=self.nic_mac)
            / IP(src=self.ip, dst=NIC)
            / TCP(sport=self.sport, dport=PORT, flags=flags, seq=seq % SPACE, ack=ack % SPACE,
                  window=window, options=list(options))
        )
        self.wire.send(packet / Raw(payload) if payload else packet)

    def packets(self, seconds):
        """What arrives within this time; requests for our hardware address are answered."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.wire], [], [], left)[0]:
                return
            packet = self.wire.recv()
            if packet is None or packet.src == self.mac:
                continue
            if ARP in packet and packet[ARP].op == 1 and packet[ARP].pdst == self.ip:
                self.wire.send(
                    Ether(src=self.mac, dst=packet.src)
                    / ARP(op=2, hwsrc=self.mac, psrc=self.ip, hwdst=packet[ARP].hwsrc,
                          pdst=packet[ARP].psrc)
                )
            yield packet

    def resolve(self):
        ask = Ether(src=self.mac, dst="ff:ff:ff:ff:ff:ff") / ARP(
            op=1, hwsrc=self.mac, psrc=self.ip, pdst=NIC)
        for _ in range(PATIENCE):
            self.wire.send(ask)
            for packet in self.packets(1):
                if ARP in packet and packet[ARP].op == 2 and packet[ARP].psrc == NIC:
                    return packet[ARP].hwsrc
        sys.exit("the NIC answers no ARP")

    def segment(self, wanted=lambda t: True, seconds=PATIENCE):
        """The first segment for us that is wanted."""
        for packet in self.packets(seconds):
            if TCP not in packet or packet[IP].dst != self.ip or packet[TCP].dport != self.sport:
                continue
            tcp = packet[TCP]
            again = IP(bytes(packet[IP])[: packet[IP].len])
            sums = again.chksum, again[TCP].chksum
            del again.chksum, again[TCP].chksum
            again = IP(bytes(again))
            need(sums == (again.chksum, again[TCP].chksum), "a checksum is wrong")
            if wanted(tcp):
                return tcp
        return None

    def connect(self, seq):
        """The handshake, with SYNs sent again each second."""
        answer = None
        for _ in range(PATIENCE):
            self.send("S", seq, options=OPTIONS)
            answer = self.segment(lambda t: t.flags == "SA" and t.ack == (seq + 1) % SPACE, 1)
            if answer:
                break
        need(answer, "the SYN has no answer")
        self.next, self.expected = seq + 1, answer.seq + 1
        self.send("A", self.next, self.expected)
        return answer

    def echo(self, payload):
        """The NIC sends back what it is sent, so the connection lives."""
        got = b""
        for _ in range(PATIENCE):
            self.send("PA", self.next, self.expected, payload)
            while len(got) < len(payload):
                answer = self.segment(lambda t: len(t.payload) or t.flags.R, 1)
                if answer is None:
                    break
                need(not answer.flags.R, "a reset in the place of an echo")
                if answer.seq == self.expected % SPACE:
                    got += bytes(answer.payload)
                    self.expected += len(answer.payload)
            if len(got) >= len(payload):
                break
        need(got == payload, f"sent {payload!r}, got back {got!r}")
        self.next += len(payload)
        self.send("A", self.next, self.expected)

    def challenged(self, what):
        answer = self.segment(lambda t: len(t.payload) == 0)
        need(answer is not None, f"{what} has no answer")
        need(
            answer.flags == "A" and answer.ack == self.next % SPACE
            and answer.seq == self.expected % SPACE,
            f"{what} is answered by {answer.summary()}, ack {answer.ack}, not by a challenge ACK "
            f"of {self.next}",
        )


def reset_in_window():
    p = Peer(50, 4100)
    p.connect(1000)
    p.echo(b"before")
    for offset in (1, 1000, 30000):
        p.send("R", p.next + offset)
        p.challenged(f"a reset {offset} beyond the next number")
    # Outside of the window: no answer, or the echo would see a segment without payload first.
    p.send("R", p.next - 1)
    p.send("R", p.next + (1 << 30))
    p.echo(b"after")
    need(p.segment(lambda t: t.flags.R, 0.3) is None, "a guessed reset has ended the connection")


def reset_exact():
    p = Peer(51, 4100)
    p.connect(SPACE - 3)
    p.echo(b"over the wrap of sequence numbers")
    p.send("R", p.next)
    for _ in range(PATIENCE):
        p.send("PA", p.next, p.expected, b"still there?")
        answer = p.segment(seconds=1)
        if answer is not None and answer.flags.R:
            need(answer.seq == p.expected % SPACE, "the refusal has another number")
            return
    sys.exit("the exact reset has not ended the connection")


def syn_on_live():
    p = Peer(52, 4100)
    p.connect(70000)
    p.echo(b"first life")
    # In the window, before it, and far away; a program that starts again draws any of them.
    for seq in (p.next, 5, p.next + (1 << 31)):
        p.send("S", seq, options=OPTIONS)
        p.challenged(f"a SYN with {seq}")
    p.echo(b"still the first")
    # It answers the challenge as RFC 9293 3.10.7.3 says, and tries again.
    p.send("S", 5, options=OPTIONS)
    p.challenged("the SYN of the second life")
    p.send("R", p.next)
    p.connect(5)
    p.echo(b"second life")


def old_ack():
    p = Peer(53, 4100)
    p.connect(90000)
    p.echo(b"before")
    for offset in (-(1 << 20), 1 << 20, 1):
        p.send("A", p.next, p.expected + offset)
        p.challenged(f"an acknowledgement {offset} off")
    p.echo(b"after")


def blind_data():
    p = Peer(54, 4100)
    p.connect(90000)
    p.echo(b"before")
    for offset in (1, 1 << 20, 1 << 30, -(1 << 20), -(1 << 30)):
        p.send("PA", p.next, p.expected + offset, b"injected")
        p.challenged(f"data with an acknowledgement {offset} off")
    p.echo(b"not evil")


def syn_flood():
    """SYNs from addresses of the network without an end; Linux's TCP and scapy get in."""
    scapy = Peer(60, 4100)
    stop = threading.Event()
    sent = [0]

    def flood():
        dice = random.Random(7)
        template = bytearray(bytes(
            Ether(src=scapy.mac, dst=scapy.nic_mac)
            / IP(src=f"{NET}.200", dst=NIC)
            / TCP(sport=1, dport=PORT, flags="S", options=OPTIONS)
        ))
        frames = []
        for _ in range(4000):
            source = f"{NET}.{dice.randrange(100, 250)}"
            frame = Ether(bytes(template))
            frame[IP].src = source
            frame[TCP].sport = dice.randrange(1024, 65536)
            frame[TCP].seq = dice.randrange(SPACE)
            del frame[IP].chksum, frame[TCP].chksum
            frames.append(bytes(frame))
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind((DEVICE, 0))
        while not stop.is_set():
            for frame in frames:
                if stop.is_set():
                    return
                try:
                    wire.send(frame)
                    sent[0] += 1
                except OSError:
                    pass  # The device's queue is full.
                if sent[0] % 10 == 0:
                    time.sleep(0.001)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        while sent[0] < 1000:
            time.sleep(0.01)
        begin = time.monotonic()
        answer = scapy.connect(77)
        scapy.echo(b"through the flood")
        need(dict(answer.options).get("MSS") == 1460, f"options {answer.options}")
        for n in range(3):
            with socket.create_connection((NIC, PORT), PATIENCE) as s:
                s.settimeout(PATIENCE)
                text = f"client {n}".encode() * 1000
                s.sendall(text)
                got = b""
                while len(got) < len(text):
                    more = s.recv(65536)
                    need(more, "the stream has ended early")
                    got += more
                need(got == text, "bytes differ")
        took = time.monotonic() - begin
        print(f"{sent[0]} SYNs; four clients in {took:.2f} s")
    finally:
        stop.set()
        flooding.join()


CASES = {f.__name__: f for f in (reset_in_window, reset_exact, syn_on_live, old_ack, blind_data,
                                 syn_flood)}
CASES[CASE]()
