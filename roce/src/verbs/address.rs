//! Ways to other contexts, for datagrams.

use std::net::SocketAddr;

use super::context::ProtectionDomain;
use super::datagram::SENDER;
use super::endpoint::Peer;
use super::gid::{Features, Gid};
use super::types::{VerbsError, DATAGRAM_MAX, GRH_BYTES};

/// Way to a context, for datagrams.
#[derive(Debug, Clone)]
pub struct AddressHandle {
    /// It lives as long as the handle.
    pub(super) pd: ProtectionDomain,
    pub(super) peer: Peer,
    pub(super) longest: usize,
}

impl AddressHandle {
    /// Longest message that a packet carries there.
    pub fn longest(&self) -> usize {
        self.longest
    }
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// The context.
    pub handle: &'a AddressHandle,
    /// Number of the queue pair there.
    pub number: u32,
    /// Its key; with the highest bit set, the sending queue pair's own.
    pub key: u32,
}

/// The sender of a datagram, from the first [`GRH_BYTES`] bytes of its receive.
///
/// `None`: no context of ours has written them.
pub fn sender(header: &[u8; GRH_BYTES]) -> Option<Gid> {
    // Before a header of IPv4 it begins with zeros.
    let at = if header[0] >> 4 == 6 { SENDER } else { 0 };
    let gid = Gid(*header[at..].first_chunk()?);
    gid.endpoint().map(|_| gid)
}

/// What a GID names, for a context at `local`.
///
/// # Errors
/// [`VerbsError::Address`]: no context has this address, or one of the other version of IP.
pub(super) fn reached_from(
    gid: Gid,
    local: SocketAddr,
) -> Result<(SocketAddr, Features), VerbsError> {
    let end = gid.endpoint();
    end.filter(|(at, _)| at.is_ipv6() == local.is_ipv6())
        .ok_or(VerbsError::Address { gid })
}

impl ProtectionDomain {
    /// Makes a handle for a context, to which datagrams then are sent.
    ///
    /// # Errors
    /// [`VerbsError::Address`]: no context has this address.
    pub fn create_ah(&self, to: Gid) -> Result<AddressHandle, VerbsError> {
        let mut engine = self.context().owner.shared.lock();
        let (at, _) = reached_from(to, engine.local())?;
        let peer = Peer {
            at,
            is_ours: to.is_ours(),
            // The receiver does not know the sender, so nothing can be agreed.
            with_icrc: true,
            selective: false,
        };
        let payload = engine.payload_to(&peer);
        drop(engine);
        Ok(AddressHandle {
            pd: self.clone(),
            peer,
            longest: payload.min(DATAGRAM_MAX),
        })
    }
}
