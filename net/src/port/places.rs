//! Places where the payloads of the next packets are expected to go: the kernel puts them there,
//! without a copy of ours.
//!
//! Their memory belongs to a receive that is not filled: one that has begun, or one of a collective
//! whose memory no step uses any more and no message leaves from. Bytes of a packet that turns out
//! to be another one may be written there: nothing is delivered before the transport says so.
#![allow(unsafe_code)] // Spans of memory that has no owner here, as in a batch.

use std::net::SocketAddr;
use std::ops::Range;

use super::batch::digest_memory;
use crate::wire::roce::icrc::{self, Flow, ICRC_BYTES};
use crate::wire::roce::packet::Head;
use crate::wire::roce::{Bth, Extended, Reth, BTH_BYTES};

/// Most bytes of packets that arrive as one, and most packets.
const BYTES_MAX: usize = 65_507;
const PACKETS_MAX: usize = 64;

/// Consecutive packets of one sender, all of one size: SENDs without extended headers, or WRITEs of
/// consecutive memory. See the module text.
#[derive(Debug, Default)]
pub struct Places {
    /// Their sender, and the headers of the first.
    first: Option<(SocketAddr, Head)>,
    /// Bytes of each payload.
    payload: usize,
    /// Exposed addresses, and lengths.
    spans: Vec<(usize, usize)>,
    /// Where the spans of each packet end.
    ends: Vec<usize>,
}

impl Places {
    /// No packets, and no places.
    pub fn clear(&mut self) {
        self.first = None;
        self.spans.clear();
        self.ends.clear();
    }

    /// Begins anew. The headers differ from the first in their number and address, and may ask for
    /// an acknowledgement.
    pub fn begin(&mut self, from: SocketAddr, first: Head, payload: usize) {
        self.clear();
        (self.first, self.payload) = (Some((from, first)), payload);
    }

    /// Adds memory for the next bytes.
    ///
    /// # Safety
    /// It stays mapped and may be written until the next packet was asked for, or the places are
    /// cleared.
    pub unsafe fn add(&mut self, at: *mut u8, len: usize) {
        self.spans.push((at.expose_provenance(), len));
    }

    /// The place of a packet is whole. `false`: no further one can come with it.
    pub fn end(&mut self) -> bool {
        self.ends.push(self.spans.len());
        let more = self.ends.len() + 1;
        more <= PACKETS_MAX && more * (self.payload + self.around()) <= BYTES_MAX
    }

    /// Drops the place that is not whole.
    pub fn cancel(&mut self) {
        self.spans.truncate(self.ends.last().copied().unwrap_or(0));
    }

    /// Bytes around a payload: headers before it, a CRC behind.
    pub fn around(&self) -> usize {
        self.first.map_or(0, |(_, head)| head.len()) + ICRC_BYTES
    }

    /// Bytes of each payload.
    pub fn payload(&self) -> usize {
        self.payload
    }

    /// How many packets have a place.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Runs of memory.
    pub(super) fn runs(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn truncate(&mut self, packets: usize) {
        self.ends.truncate(packets);
        self.cancel();
    }

    fn range(&self, packet: usize) -> Range<usize> {
        let first = packet.checked_sub(1).map_or(0, |before| self.ends[before]);
        first..self.ends[packet]
    }

    /// The memory of a packet.
    pub(super) fn spans(&self, packet: usize) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        let spans = self.spans[self.range(packet)].iter();
        spans.map(|&(at, len)| (std::ptr::with_exposed_provenance_mut(at), len))
    }

    /// Whether this is the sender of the packets, and those are their headers, each with its CRC
    /// behind it.
    pub(super) fn are(&self, from: SocketAddr, heads: &[u8]) -> bool {
        let Some((sender, first)) = self.first else {
            return false;
        };
        let is_it = |(k, head): (u32, &[u8])| {
            let Ok((bth, rest)) = Bth::parse(head) else {
                return false;
            };
            let expected = Bth {
                psn: first.bth.psn.plus(k),
                acknowledge: bth.acknowledge,
                ..first.bth
            };
            let before = u64::from(k) * self.payload as u64;
            let extended = match first.extended {
                Extended::Reth(r) => Extended::Reth(Reth {
                    address: r.address.wrapping_add(before),
                    ..r
                }),
                other => other,
            };
            bth == expected && Extended::parse(bth.opcode, rest).is_ok_and(|(is, _)| is == extended)
        };
        let mut all = (0_u32..).zip(heads.chunks(self.around()));
        sender == from && all.all(is_it)
    }

    /// The CRC of a packet whose payload is in its place.
    pub fn icrc(&self, packet: usize, flow: &Flow, head: &[u8]) -> Option<[u8; ICRC_BYTES]> {
        let (bth, extended) = head.split_first_chunk::<BTH_BYTES>()?;
        let mut digest = icrc::begin(flow, bth, head.len() + self.payload)?;
        digest.update(extended);
        for (at, len) in self.spans(packet) {
            // SAFETY: mapped until the next packet is asked for (the caller of `add`).
            unsafe { digest_memory(&mut digest, at, len) };
        }
        Some(icrc::finish(&digest))
    }
}
