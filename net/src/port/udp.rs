//! Ethernet over UDP: VXLAN (RFC 7348) from an ordinary socket, without privileges.
//!
//! Frames of one size to one peer leave in one system call (generic segmentation offload), and
//! several datagrams arrive in one (GRO and `recvmmsg`).
//!
//! **Authentication.** Without a secret, the port accepts frames of configured peers; any VXLAN
//! peer works. With the job's secret, it accepts peers that have proved to hold it, from the
//! address of the proof (`udp/proof.rs`, which also states the proof's limits). All other datagrams
//! are counted and dropped before the frame is parsed. The first frame to a port that has not
//! authenticated us is lost that way; a small one, such as an ARP request, is sent again right
//! after our proof.
//!
//! **MTU.** A setting, or what the ways to the configured peers carry (`udp/mtu.rs`). It falls when
//! a datagram was too long for its way.

mod config;
mod mtu;
mod proof;
mod socket;

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{RecvMeta, Transmit};

pub use self::config::{UdpConfig, UdpError, MTU_DEFAULT};
use self::proof::{Kind, Proof, CONTROL};
use self::socket::Socket;
use super::{
    is_frame, Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters, RefusedBy, MTU_MIN,
};
use crate::wire::vxlan::{self, VXLAN_HEADER};
use crate::wire::ETHERNET_HEADER;
use crate::NicTime;

/// Messages taken per system call.
const MESSAGES: usize = 8;
/// Bytes per message: what GRO joins at most.
const MESSAGE_BYTES: usize = 1 << 16;
/// Bytes per send: the longest UDP payload.
const BATCH_BYTES: usize = 65_507;
/// Kernel buffers asked for, each way; the kernel may give less.
const SOCKET_BUFFER: usize = 4 << 20;
/// Most MAC addresses and learned peers: a peer that invents addresses must not grow a table
/// forever.
const STATIONS_MAX: usize = 4_096;

/// Longest frame that is kept to be sent again after a challenge: ARP, and TCP's SYN.
const KEPT_BYTES: usize = 128;
/// Most challenges in a millisecond: a flood of forged datagrams must not make us a source of
/// traffic.
const CHALLENGES_MAX: u32 = 64;

/// Frames for one peer that leave together.
#[derive(Debug)]
struct Batch {
    bytes: Box<[u8]>,
    len: usize,
    /// Bytes of each datagram but the last.
    segment: usize,
    frames: u64,
    to: Option<SocketAddr>,
    /// A shorter datagram was added: nothing may follow it.
    complete: bool,
}

/// Proofs that a peer is at the address that its datagrams come from.
#[derive(Debug, Default)]
struct Trust {
    /// With a secret: the keys.
    proof: Option<Proof>,
    /// The tags that peers have asked for.
    tags: BTreeMap<SocketAddr, [u8; 4]>,
    /// The header of the last frame sent, and to whom.
    tx_header: Option<(SocketAddr, [u8; VXLAN_HEADER])>,
    /// The peer whose datagrams were accepted last, and how their headers begin.
    believed: Option<(SocketAddr, [u8; VXLAN_HEADER])>,
    /// The last small frame for a peer that has not challenged us yet, with its address (all peers:
    /// `None`).
    kept: Option<(Option<SocketAddr>, Vec<u8>)>,
    /// The millisecond in which challenges are counted, and how many there were.
    challenges: (u64, u32),
}

/// The peers.
#[derive(Debug, Default)]
struct Peers {
    /// Configured peers, then learned ones.
    all: Vec<SocketAddr>,
    configured: usize,
    macs: BTreeMap<MacAddr, SocketAddr>,
    last: Option<(MacAddr, SocketAddr)>,
}

/// Datagrams that were received and not yet handed on.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    metas: [RecvMeta; MESSAGES],
    messages: usize,
    message: usize,
    offset: usize,
}

/// A port that carries frames in UDP datagrams.
#[derive(Debug)]
pub struct UdpPort {
    socket: Socket,
    local: SocketAddr,
    header: [u8; VXLAN_HEADER],
    capabilities: Capabilities,
    /// A datagram to this peer was too long.
    too_long: Option<SocketAddr>,
    trust: Trust,
    peers: Peers,
    batch: Batch,
    /// The frame being written goes to every peer.
    flood: bool,
    inbox: Inbox,
    counters: PortCounters,
}

impl UdpPort {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`UdpError`] says what is wrong with which setting.
    pub fn open(config: UdpConfig) -> Result<UdpPort, UdpError> {
        let UdpConfig {
            bind: addr,
            peers,
            vni,
            secret,
            mac,
            mtu,
        } = config;
        let mtu = mtu::at_first(mtu, addr, &peers)?;
        if vni > vxlan::VNI_MAX {
            return Err(UdpError::Vni { vni });
        }
        let socket = UdpSocket::bind(addr).map_err(|source| UdpError::Bind { addr, source })?;
        let proof = match secret {
            None => None,
            Some(secret) => {
                let mut own = [0; 16];
                rustix::rand::getrandom(&mut own, rustix::rand::GetRandomFlags::empty())
                    .map_err(|e| UdpError::Random(e.into()))?;
                Some(Proof::new(vni, secret, own))
            }
        };
        Ok(UdpPort {
            local: socket.local_addr()?,
            socket: Socket::new(socket, SOCKET_BUFFER)?,
            header: vxlan::header(vni),
            capabilities: Capabilities::of_frames(mac, mtu, Checksums::Software),
            too_long: None,
            trust: Trust {
                proof,
                ..Trust::default()
            },
            peers: Peers {
                configured: peers.len(),
                all: peers,
                ..Peers::default()
            },
            batch: Batch {
                bytes: vec![0; BATCH_BYTES].into(),
                len: 0,
                segment: 0,
                frames: 0,
                to: None,
                complete: false,
            },
            flood: false,
            inbox: Inbox {
                bytes: vec![0; MESSAGES * MESSAGE_BYTES].into(),
                metas: [RecvMeta::default(); MESSAGES],
                messages: 0,
                message: 0,
                offset: 0,
            },
            counters: PortCounters::default(),
        })
    }

    /// Where the port receives, with the port number that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Bytes that one frame may need in the batch.
    fn room(&self) -> usize {
        VXLAN_HEADER + ETHERNET_HEADER + self.capabilities.mtu
    }

    /// Sends what waits. Returns whether the batch is empty now.
    fn send_batch(&mut self) -> bool {
        let b = &mut self.batch;
        let Some(destination) = b.to.filter(|_| b.len > 0) else {
            return true;
        };
        let transmit = Transmit {
            destination,
            ecn: None,
            contents: &b.bytes[..b.len],
            segment_size: Some(b.segment),
            src_ip: None,
        };
        match self.socket.send(&transmit) {
            Ok(()) => {
                self.counters.tx_frames += b.frames;
                self.counters.tx_bytes += b.len as u64 - b.frames * VXLAN_HEADER as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            // Unreachable peer, datagram too long for the way: lost, as on any network.
            Err(e) => {
                self.counters.tx_dropped += b.frames;
                if matches!(
                    e.raw_os_error(),
                    // Older kernels refuse a batch of too long datagrams so.
                    Some(libc::EMSGSIZE | libc::EINVAL)
                ) {
                    self.too_long = Some(destination);
                }
            }
        }
        (b.len, b.frames, b.to, b.complete) = (0, 0, None, false);
        true
    }

    /// Lowers the MTU to what the ways carry on which datagrams were refused as too long.
    fn shrink(&mut self) {
        if let Some(to) = self.too_long.take() {
            if let Ok(most) = mtu::towards(self.local.ip(), to) {
                self.shrink_to(most, to);
            }
        }
        while let Some((to, path)) = self.socket.errors.next_too_long() {
            self.shrink_to(mtu::inside(path, &to), to);
        }
    }

    fn shrink_to(&mut self, most: usize, to: SocketAddr) {
        let mtu = most.max(MTU_MIN);
        let was = self.capabilities.mtu;
        if mtu < was {
            tracing::warn!(peer = %to, was, now = mtu, "the way to a peer carries less than the port's MTU, which is lowered; what was too long is lost");
            let mac = self.capabilities.medium.mac();
            self.capabilities = Capabilities::of_frames(mac, mtu, Checksums::Software);
            if most < MTU_MIN {
                tracing::warn!(peer = %to, most, "the way to a peer carries less than the smallest MTU of a port, 576 bytes: long frames to it are lost");
            }
        }
    }

    fn most_segments(&self) -> u64 {
        self.socket.most_segments()
    }

    /// The next datagram in the inbox: sender, and where it lies.
    fn next_datagram(&mut self) -> Option<(SocketAddr, usize, usize)> {
        loop {
            if self.inbox.message == self.inbox.messages {
                let mut parts = self.inbox.bytes.chunks_exact_mut(MESSAGE_BYTES);
                let mut slices: [IoSliceMut<'_>; MESSAGES] =
                    std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or(&mut [])));
                self.inbox.messages = self.socket.recv(&mut slices, &mut self.inbox.metas).ok()?;
                (self.inbox.message, self.inbox.offset) = (0, 0);
                if self.inbox.messages == 0 {
                    return None;
                }
            }
            let meta = self.inbox.metas[self.inbox.message];
            let len = meta.len.min(MESSAGE_BYTES);
            if self.inbox.offset >= len {
                self.inbox.message += 1;
                self.inbox.offset = 0;
                continue;
            }
            let n = meta.stride.clamp(1, len - self.inbox.offset);
            let at = self.inbox.message * MESSAGE_BYTES + self.inbox.offset;
            self.inbox.offset += n;
            return Some((meta.addr, at, n));
        }
    }

    /// Whether a datagram carries an authenticated frame. Answers challenges and responses.
    fn admit(&mut self, now: NicTime, from: SocketAddr, datagram: &[u8]) -> bool {
        let header = datagram.get(..VXLAN_HEADER);
        if self
            .trust
            .believed
            .is_some_and(|(a, h)| a == from && header == Some(&h[..]))
        {
            return true;
        }
        let Some(proof) = self.trust.proof.clone() else {
            // The reserved fields are ignored on receipt (RFC 7348 §5).
            let (vni, known) = (vni_of(self.header), self.peers.all.contains(&from));
            let ours = known && vxlan::parse(datagram).is_ok_and(|(v, _)| v == vni);
            self.counters.rx_unauthenticated += u64::from(!ours);
            return ours;
        };
        match proof.parse(datagram) {
            Some((Kind::Challenge, cookie)) if self.peers.all.contains(&from) => {
                let (tag, answer) = (proof.tag(cookie), proof.emit(Kind::Response, cookie));
                self.trust.tags.insert(from, tag);
                self.trust.tx_header = None;
                // A lost answer is asked for again.
                let _ = self.socket.send_to(&answer, from);
                self.send_kept(from);
                return false;
            }
            Some((Kind::Response, cookie)) if cookie == proof.cookie(from) => {
                let room = self.peers.all.len() < self.peers.configured + STATIONS_MAX;
                if room && !self.peers.all.contains(&from) {
                    self.peers.all.push(from);
                }
                return false;
            }
            _ => {}
        }
        let cookie = proof.cookie(from);
        let expected = with_tag(self.header, proof.tag(cookie));
        if header == Some(&expected[..]) && self.peers.all.contains(&from) {
            self.trust.believed = Some((from, expected));
            return true;
        }
        self.counters.rx_unauthenticated += 1;
        // Never more bytes than were sent to us, so that a forged address cannot use us to flood
        // its owner.
        if datagram.len() >= CONTROL && self.may_challenge(now) {
            let challenge = proof.emit(Kind::Challenge, cookie);
            let _ = self.socket.send_to(&challenge, from);
        }
        false
    }

    fn may_challenge(&mut self, now: NicTime) -> bool {
        let ms = now.0 / 1_000_000;
        if self.trust.challenges.0 != ms {
            self.trust.challenges = (ms, 0);
        }
        self.trust.challenges.1 += 1;
        self.trust.challenges.1 <= CHALLENGES_MAX
    }

    /// Sends again a frame that a peer has not accepted.
    fn send_kept(&mut self, to: SocketAddr) {
        let header = self.header_to(to);
        if let Some((for_whom, frame)) = &self.trust.kept {
            if for_whom.is_none_or(|p| p == to) {
                let datagram = [&header[..], frame].concat();
                if self.socket.send_to(&datagram, to).is_err() {
                    self.counters.tx_dropped += 1;
                }
            }
        }
    }

    /// The header of frames to a peer.
    fn header_to(&mut self, to: SocketAddr) -> [u8; VXLAN_HEADER] {
        match self.trust.tx_header {
            Some((a, header)) if a == to => header,
            _ => {
                let header = match self.trust.tags.get(&to) {
                    Some(&tag) => with_tag(self.header, tag),
                    None => self.header,
                };
                self.trust.tx_header = Some((to, header));
                header
            }
        }
    }

    /// Keeps a small frame for a peer that may not accept it yet.
    fn keep(&mut self, to: Option<SocketAddr>, frame: std::ops::Range<usize>) {
        let unknown = |p: &SocketAddr| !self.trust.tags.contains_key(p);
        let wanted = self.trust.proof.is_some()
            && frame.len() <= KEPT_BYTES
            && match &to {
                Some(to) => unknown(to),
                None => self.peers.all.iter().any(unknown),
            };
        if wanted {
            self.trust.kept = Some((to, self.batch.bytes[frame].to_vec()));
        }
    }
}

fn vni_of(header: [u8; VXLAN_HEADER]) -> u32 {
    u32::from_be_bytes([0, header[4], header[5], header[6]])
}

/// A header with a tag in the fields that VXLAN reserves.
fn with_tag(mut header: [u8; VXLAN_HEADER], tag: [u8; 4]) -> [u8; VXLAN_HEADER] {
    header[1..4].copy_from_slice(&tag[..3]);
    header[7] = tag[3];
    header
}

impl Port for UdpPort {
    fn describe(&self) -> String {
        format!("udp {} with {} peers", self.local, self.peers.all.len())
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        loop {
            let (from, at, n) = self.next_datagram()?;
            // The inbox is taken out while the sender is looked up.
            let inbox = std::mem::take(&mut self.inbox.bytes);
            let admitted = self.admit(now, from, &inbox[at..at + n]);
            self.inbox.bytes = inbox;
            if !admitted {
                continue;
            }
            let (start, len) = (at + VXLAN_HEADER, n - VXLAN_HEADER);
            if len < ETHERNET_HEADER {
                self.counters.rx_malformed += 1;
                continue;
            }
            let mut src = MacAddr::default();
            src.0
                .copy_from_slice(&self.inbox.bytes[start + 6..start + 12]);
            if self.peers.last != Some((src, from)) {
                self.peers.last = Some((src, from));
                let known = self.peers.macs.contains_key(&src);
                if src.is_unicast() && (known || self.peers.macs.len() < STATIONS_MAX) {
                    self.peers.macs.insert(src, from);
                }
            }
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += len as u64;
            return Some(Arrived::Frame(&self.inbox.bytes[start..start + len]));
        }
    }

    fn tx_frame(&mut self, _now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        let to = match self.peers.macs.get(&dst) {
            Some(&to) => Some(to),
            None if self.peers.all.len() == 1 => Some(self.peers.all[0]),
            None => None,
        };
        self.flood = to.is_none();
        let b = &self.batch;
        let other = self.flood || b.to.is_some_and(|t| Some(t) != to);
        let full =
            b.complete || b.len + self.room() > BATCH_BYTES || b.frames >= self.most_segments();
        if b.len > 0 && (other || full) && !self.send_batch() {
            return None;
        }
        self.batch.to = to;
        let start = self.batch.len;
        let end = start + self.room();
        let header = match to {
            Some(to) => self.header_to(to),
            // `tx_commit` writes one for each peer.
            None => self.header,
        };
        self.batch.bytes[start..start + VXLAN_HEADER].copy_from_slice(&header);
        Some(&mut self.batch.bytes[start + VXLAN_HEADER..end])
    }

    fn tx_commit(&mut self, _now: NicTime, len: usize) {
        if !is_frame(len, self.capabilities.mtu) {
            self.counters.tx_dropped += 1;
            return;
        }
        let n = VXLAN_HEADER + len;
        if self.flood {
            // `tx_frame` has emptied the batch.
            (self.batch.len, self.batch.segment, self.batch.frames) = (n, n, 1);
            self.keep(None, VXLAN_HEADER..n);
            for i in 0..self.peers.all.len() {
                let header = self.header_to(self.peers.all[i]);
                self.batch.bytes[..VXLAN_HEADER].copy_from_slice(&header);
                self.batch.to = Some(self.peers.all[i]);
                (self.batch.len, self.batch.frames) = (n, 1);
                if !self.send_batch() {
                    self.counters.tx_dropped += 1;
                }
            }
            (self.batch.len, self.batch.frames, self.batch.to) = (0, 0, None);
            return;
        }
        let at = self.batch.len + VXLAN_HEADER;
        self.keep(self.batch.to, at..self.batch.len + n);
        let b = &mut self.batch;
        if b.frames == 0 {
            b.segment = n;
        } else if n > b.segment {
            // Longer than the frames of the batch: they leave first, then it starts a batch of its
            // own.
            let start = b.len;
            let to = b.to;
            if !self.send_batch() {
                self.counters.tx_dropped += 1;
                return;
            }
            let b = &mut self.batch;
            b.bytes.copy_within(start..start + n, 0);
            (b.len, b.segment, b.frames, b.to) = (n, n, 1, to);
            return;
        } else if n < b.segment {
            b.complete = true;
        }
        b.len += n;
        b.frames += 1;
    }

    fn flush(&mut self, _now: NicTime) {
        self.send_batch();
        self.shrink();
    }
    fn next_timer(&self) -> Option<NicTime> {
        // A batch that the kernel had no room for is tried again at the next step.
        (self.batch.len > 0).then_some(NicTime(0))
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.socket.as_fd());
    }
    fn next_refused(&mut self) -> Option<RefusedBy> {
        while let Some(by) = self.socket.errors.next_refused() {
            if let Some((mac, _)) = self.peers.macs.iter().find(|(_, a)| **a == by) {
                return Some(RefusedBy::Link(*mac));
            }
        }
        None
    }
    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
