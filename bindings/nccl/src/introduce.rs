//! Introductions: before a NIC is connected to over datagrams, the listening process learns at
//! which UDP socket that NIC receives.
//!
//! A NIC answers another at the socket that it knows of it, and a ring of ranks is connected in one
//! direction. So the connecting process sends a datagram with the secret of the handle, and
//! connects when it was answered.
#![allow(clippy::disallowed_methods)] // A socket of the host.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringbell::Nic;

use crate::failure::Failure;
use crate::wire::Handle;

const MAGIC: [u8; 8] = *b"rbnccl\0i";
const BYTES: usize = 48;
const ASK: u8 = 1;
const YES: u8 = 2;
const NO: u8 = 3;
/// Most datagrams that are read at a time.
const BATCH: usize = 64;

type Secret = [u8; 16];

#[derive(Debug, Default)]
struct State {
    /// Of handles of this process.
    listening: HashSet<Secret>,
    /// Of other processes, with their answers.
    asked: HashMap<Secret, Option<bool>>,
    /// Where each NIC receives.
    hosts: HashMap<Ipv4Addr, SocketAddr>,
}

/// The socket of a device for introductions.
#[derive(Debug)]
pub(crate) struct Introductions {
    socket: UdpSocket,
    nic: Nic,
    /// Where the NIC receives.
    own: SocketAddr,
    state: Mutex<State>,
}

fn datagram(kind: u8, secret: &Secret, nic: Ipv4Addr, at: SocketAddr) -> [u8; BYTES] {
    let ip = match at.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut out = [0; BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..24].copy_from_slice(secret);
    out[24..28].copy_from_slice(&nic.octets());
    out[28..44].copy_from_slice(&ip.octets());
    out[44..46].copy_from_slice(&at.port().to_le_bytes());
    out[46] = kind;
    out
}

impl Introductions {
    /// Opens a socket beside the NIC's.
    pub(crate) fn open(nic: &Nic, own: SocketAddr) -> Result<Introductions, Failure> {
        let open = || {
            let socket = UdpSocket::bind((own.ip(), 0))?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|e: std::io::Error| {
            Failure::system(&format!("no UDP socket at {}", own.ip()), &e)
        })?;
        Ok(Introductions {
            socket,
            nic: nic.clone(),
            own,
            state: Mutex::default(),
        })
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.socket.local_addr().map_or(0, |a| a.port())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells our NIC where another one receives. False when a third one, elsewhere, has drawn its
    /// address: that one's connections would go there.
    pub(crate) fn know(&self, nic: Ipv4Addr, at: SocketAddr) -> bool {
        let mut state = self.state();
        let is_free = nic != self.nic.ip().ip && *state.hosts.entry(nic).or_insert(at) == at;
        if is_free {
            self.nic.backend().know_host(nic, at);
        }
        is_free
    }

    /// Answers what proves this secret.
    pub(crate) fn listen(&self, secret: Secret) {
        self.state().listening.insert(secret);
    }

    pub(crate) fn stop(&self, secret: &Secret) {
        self.state().listening.remove(secret);
    }

    /// Asks once more to be known where the handle was made.
    pub(crate) fn ask(&self, handle: &Handle, at: SocketAddr) {
        self.state().asked.entry(handle.nonce).or_default();
        let ask = datagram(ASK, &handle.nonce, self.nic.ip().ip, self.own);
        // What is lost is sent again.
        let _ = self
            .socket
            .send_to(&ask, SocketAddr::new(at.ip(), handle.introductions));
    }

    /// The answer, when it has come: whether a communicator listens with this secret.
    pub(crate) fn answer(&self, secret: &Secret) -> Option<bool> {
        self.state().asked.get(secret).copied().flatten()
    }

    pub(crate) fn forget(&self, secret: &Secret) {
        self.state().asked.remove(secret);
    }

    /// Reads what has come, and answers it.
    pub(crate) fn pump(&self) {
        let mut b = [0; BYTES];
        for _ in 0..BATCH {
            let Ok((BYTES, from)) = self.socket.recv_from(&mut b) else {
                return;
            };
            if b[..8] != MAGIC {
                continue;
            }
            let secret: Secret = std::array::from_fn(|i| b[8 + i]);
            if b[46] != ASK {
                if let Some(answer) = self.state().asked.get_mut(&secret) {
                    *answer = Some(b[46] == YES);
                }
                continue;
            }
            let mut listens = self.state().listening.contains(&secret);
            if listens {
                let nic = Ipv4Addr::from(std::array::from_fn::<u8, 4, _>(|i| b[24 + i]));
                let ip = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| b[28 + i]));
                let at = SocketAddr::new(ip.to_canonical(), u16::from_le_bytes([b[44], b[45]]));
                listens = self.know(nic, at);
            }
            let kind = if listens { YES } else { NO };
            let answer = datagram(kind, &secret, self.nic.ip().ip, self.own);
            let _ = self.socket.send_to(&answer, from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Process;

    fn device(ip: &str) -> Introductions {
        let nic = Nic::builder()
            .ip(ip)
            .port("roce:127.0.0.1:0")
            .transport("rdma")
            .gpu("emulated")
            .gpu_memory(1 << 20)
            .open()
            .expect("a NIC");
        let own = nic.ports()[0].address.expect("of datagrams");
        Introductions::open(&nic, own).expect("a socket")
    }

    #[test]
    fn a_secret_is_answered_by_what_listens_with_it_and_an_address_stays_with_its_nic() {
        let (here, there) = (device("10.3.1.1/8"), device("10.3.1.2/8"));
        let handle = |nonce| Handle {
            nic: there.nic.ip().ip,
            port: 1,
            datagrams: Some(there.own),
            introductions: there.port(),
            nonce,
            process: Process::own(),
            pending: 0,
        };
        there.listen([1; 16]);
        for (secret, listens) in [([1; 16], true), ([2; 16], false)] {
            here.ask(&handle(secret), there.own);
            assert_eq!(here.answer(&secret), None);
            there.pump();
            here.pump();
            assert_eq!(here.answer(&secret), Some(listens));
        }
        there.stop(&[1; 16]);
        here.forget(&[1; 16]);
        here.ask(&handle([1; 16]), there.own);
        there.pump();
        here.pump();
        assert_eq!(here.answer(&[1; 16]), Some(false));
        // It has learned of the first NIC. Another at the same address is none of its peers.
        let (nic, elsewhere) = (here.nic.ip().ip, "127.0.0.1:9".parse().expect("an address"));
        assert!(there.know(nic, here.own));
        assert!(!there.know(nic, elsewhere));
        assert!(!there.know(there.nic.ip().ip, elsewhere));
    }
}
