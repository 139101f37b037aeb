//! Ethernet over UDP: VXLAN (RFC 7348) from an ordinary socket, without privileges.
//!
//! Frames of one size to one peer leave in one system call (generic segmentation offload), and
//! several datagrams arrive in one (GRO and `recvmmsg`).
//!
//! **Who is believed.** A datagram counts only when it comes from a configured peer, or proves that
//! it knows the job's secret; then its sender is remembered. Everything else is a stranger's: counted
//! and dropped before the frame is looked at. The proof is a 32-bit tag in VXLAN's reserved fields,
//! so a port with a secret talks to Ringbell only; without a secret the reserved fields are zero and
//! any VXLAN peer that was configured works. The tag keeps jobs apart and chance senders out. It is
//! sent in clear: whoever can read the wire can copy it.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use super::{MacAddr, Port, PortCounters, MTU_MAX, MTU_MIN};
use crate::transport::NicTime;
use crate::wire::vxlan::{self, VXLAN_HEADER};
use crate::wire::ETHERNET_HEADER;

/// IP MTU inside VXLAN when the network outside carries 1,500 bytes: less 20 of IPv4, 8 of UDP, 8 of
/// VXLAN and 14 of Ethernet.
pub const MTU_DEFAULT: usize = 1_450;
/// Messages taken per system call.
const MESSAGES: usize = 8;
/// Bytes per message: what GRO joins at most.
const MESSAGE_BYTES: usize = 1 << 16;
/// Bytes per send: the longest UDP payload.
const BATCH_BYTES: usize = 65_507;
/// Kernel buffers asked for, each way; the kernel may give less.
const SOCKET_BUFFER: usize = 4 << 20;
/// Most stations and learned peers: a peer that invents addresses must not grow a table for ever.
const STATIONS_MAX: usize = 4_096;

/// How a UDP port is opened.
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// Where to receive; port 0 lets the kernel choose.
    pub bind: SocketAddr,
    /// Peers known from the start.
    pub peers: Vec<SocketAddr>,
    /// The job's network identifier, 24 bits.
    pub vni: u32,
    /// The job's secret. With one, peers that prove to know it are learned.
    pub secret: Option<u64>,
    /// Station address of the NIC.
    pub mac: MacAddr,
    /// IP MTU inside the tunnel; [`MTU_DEFAULT`] fits a network of 1,500 bytes.
    pub mtu: usize,
}

/// A UDP port cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// The socket cannot be bound.
    #[error("cannot receive on UDP {addr}: {source}; choose another address or port")]
    Bind {
        /// As given.
        addr: SocketAddr,
        /// As the kernel says.
        source: io::Error,
    },
    /// The socket cannot be set up.
    #[error("cannot set up the UDP socket: {0}")]
    Socket(#[from] io::Error),
    /// A number is out of range.
    #[error("the UDP port carries an MTU of 576 to 9216 bytes, not {mtu}")]
    Mtu {
        /// As given.
        mtu: usize,
    },
    /// The network identifier has more than 24 bits.
    #[error("a VXLAN network identifier has 24 bits; {vni:#x} has more")]
    Vni {
        /// As given.
        vni: u32,
    },
}

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

/// A port that carries frames in UDP datagrams.
#[derive(Debug)]
pub struct UdpPort {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    header: [u8; VXLAN_HEADER],
    mac: MacAddr,
    mtu: usize,
    may_learn: bool,
    /// Configured peers, then learned ones.
    peers: Vec<SocketAddr>,
    configured: usize,
    stations: HashMap<MacAddr, SocketAddr>,
    last: Option<(MacAddr, SocketAddr)>,
    batch: Batch,
    /// The frame being written goes to every peer.
    flood: bool,
    inbox: Box<[u8]>,
    metas: [RecvMeta; MESSAGES],
    messages: usize,
    message: usize,
    offset: usize,
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
        if !(MTU_MIN..=MTU_MAX).contains(&mtu) {
            return Err(UdpError::Mtu { mtu });
        }
        if vni > vxlan::VNI_MAX {
            return Err(UdpError::Vni { vni });
        }
        let socket = UdpSocket::bind(addr).map_err(|source| UdpError::Bind { addr, source })?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // Best effort: the kernel's limit may be lower.
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        Ok(UdpPort {
            local: socket.local_addr()?,
            socket,
            state,
            header: tagged(vni, secret),
            mac,
            mtu,
            may_learn: secret.is_some(),
            configured: peers.len(),
            peers,
            stations: HashMap::new(),
            last: None,
            batch: Batch {
                bytes: vec![0; BATCH_BYTES].into(),
                len: 0,
                segment: 0,
                frames: 0,
                to: None,
                complete: false,
            },
            flood: false,
            inbox: vec![0; MESSAGES * MESSAGE_BYTES].into(),
            metas: [RecvMeta::default(); MESSAGES],
            messages: 0,
            message: 0,
            offset: 0,
            counters: PortCounters::default(),
        })
    }

    /// Where the port receives, with the port number that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Bytes that one frame may need in the batch.
    fn room(&self) -> usize {
        VXLAN_HEADER + ETHERNET_HEADER + self.mtu
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
        match self
            .state
            .try_send(UdpSockRef::from(&self.socket), &transmit)
        {
            Ok(()) => {
                self.counters.tx_frames += b.frames;
                self.counters.tx_bytes += b.len as u64 - b.frames * VXLAN_HEADER as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
            // Unreachable peer, datagram too large for the path: lost, as on any network.
            Err(_) => self.counters.tx_dropped += b.frames,
        }
        (b.len, b.frames, b.to, b.complete) = (0, 0, None, false);
        true
    }

    fn most_segments(&self) -> u64 {
        self.state.max_gso_segments().max(1) as u64
    }

    /// The next datagram in the inbox: sender, and where it lies.
    fn next_datagram(&mut self) -> Option<(SocketAddr, usize, usize)> {
        loop {
            if self.message == self.messages {
                let mut parts = self.inbox.chunks_exact_mut(MESSAGE_BYTES);
                let mut slices: [IoSliceMut<'_>; MESSAGES] =
                    std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or(&mut [])));
                let sock = UdpSockRef::from(&self.socket);
                self.messages = self.state.recv(sock, &mut slices, &mut self.metas).ok()?;
                (self.message, self.offset) = (0, 0);
                if self.messages == 0 {
                    return None;
                }
            }
            let meta = self.metas[self.message];
            let len = meta.len.min(MESSAGE_BYTES);
            if self.offset >= len {
                self.message += 1;
                self.offset = 0;
                continue;
            }
            let n = meta.stride.clamp(1, len - self.offset);
            let at = self.message * MESSAGE_BYTES + self.offset;
            self.offset += n;
            return Some((meta.addr, at, n));
        }
    }

    /// Whether a datagram may be believed; remembers its sender.
    fn admit(&mut self, from: SocketAddr, datagram: &[u8]) -> bool {
        let ours = datagram.get(..VXLAN_HEADER) == Some(&self.header[..])
            // Without a secret the reserved fields are not ours to judge (RFC 7348 §5).
            || (!self.may_learn
                && vxlan::parse(datagram).is_ok_and(|(vni, _)| vni == vni_of(self.header)));
        if !ours {
            return false;
        }
        if self.last.is_some_and(|(_, a)| a == from) || self.peers.contains(&from) {
            return true;
        }
        if self.may_learn && self.peers.len() < self.configured + STATIONS_MAX {
            self.peers.push(from);
            return true;
        }
        false
    }
}

fn vni_of(header: [u8; VXLAN_HEADER]) -> u32 {
    u32::from_be_bytes([0, header[4], header[5], header[6]])
}

/// The header of every datagram: network identifier, and the secret's tag in the reserved fields.
fn tagged(vni: u32, secret: Option<u64>) -> [u8; VXLAN_HEADER] {
    let mut header = vxlan::header(vni);
    if let Some(secret) = secret {
        // Two rounds of a 64-bit mixer over secret and identifier.
        let mut z = secret ^ (u64::from(vni) << 40);
        for _ in 0..2 {
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
        }
        let tag = z.to_be_bytes();
        header[1..4].copy_from_slice(&tag[0..3]);
        header[7] = tag[3];
    }
    header
}

impl Port for UdpPort {
    fn describe(&self) -> String {
        format!("udp {} with {} peers", self.local, self.peers.len())
    }
    fn mac(&self) -> MacAddr {
        self.mac
    }
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn rx_frame(&mut self, _now: NicTime) -> Option<&[u8]> {
        loop {
            let (from, at, n) = self.next_datagram()?;
            // The inbox is taken out while the sender is looked up.
            let inbox = std::mem::take(&mut self.inbox);
            let admitted = self.admit(from, &inbox[at..at + n]);
            self.inbox = inbox;
            if !admitted {
                self.counters.rx_strangers += 1;
                continue;
            }
            let (start, len) = (at + VXLAN_HEADER, n - VXLAN_HEADER);
            if len < ETHERNET_HEADER {
                self.counters.rx_malformed += 1;
                continue;
            }
            let mut src = MacAddr::default();
            src.0.copy_from_slice(&self.inbox[start + 6..start + 12]);
            if self.last != Some((src, from)) {
                self.last = Some((src, from));
                let known = self.stations.contains_key(&src);
                if src.is_unicast() && (known || self.stations.len() < STATIONS_MAX) {
                    self.stations.insert(src, from);
                }
            }
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += len as u64;
            return Some(&self.inbox[start..start + len]);
        }
    }

    fn tx_frame(&mut self, _now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        let to = match self.stations.get(&dst) {
            Some(&to) => Some(to),
            None if self.peers.len() == 1 => Some(self.peers[0]),
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
        self.batch.bytes[start..start + VXLAN_HEADER].copy_from_slice(&self.header);
        Some(&mut self.batch.bytes[start + VXLAN_HEADER..end])
    }

    fn tx_commit(&mut self, _now: NicTime, len: usize) {
        let n = VXLAN_HEADER + len.min(ETHERNET_HEADER + self.mtu);
        if self.flood {
            // `tx_frame` has emptied the batch.
            (self.batch.len, self.batch.segment, self.batch.frames) = (n, n, 1);
            for i in 0..self.peers.len() {
                self.batch.to = Some(self.peers[i]);
                (self.batch.len, self.batch.frames) = (n, 1);
                if !self.send_batch() {
                    self.counters.tx_dropped += 1;
                }
            }
            (self.batch.len, self.batch.frames, self.batch.to) = (0, 0, None);
            return;
        }
        let b = &mut self.batch;
        if b.frames == 0 {
            b.segment = n;
        } else if n > b.segment {
            // Longer than its company: they leave first, then it starts a batch of its own.
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
    }
    fn next_timer(&self) -> Option<NicTime> {
        // A batch that the kernel had no room for is tried again at the next step.
        (self.batch.len > 0).then_some(NicTime(0))
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(self.socket.as_fd());
    }
    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests;
