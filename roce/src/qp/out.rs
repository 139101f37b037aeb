//! Where a queue pair writes a packet: contiguous room, or a batch.

use super::client::{Client, Refusal, Remote, Unavailable};
use ringbell_net::port::Batch;
use ringbell_net::wire::roce::packet::Head;

/// Longest headers of a packet, with room to spare.
const HEAD_MAX: usize = 64;

pub(super) enum Out<'a> {
    Room(&'a mut [u8]),
    Batch(&'a mut Batch),
}

impl Out<'_> {
    /// A packet of a request of ours, with bytes of the client. Returns its length.
    pub(super) fn request(
        &mut self,
        head: &Head,
        payload: usize,
        (id, offset): (u64, u32),
        client: &mut dyn Client,
    ) -> Result<usize, Unavailable> {
        match self {
            Out::Room(room) => {
                let at = head.len();
                client.gather(id, offset, &mut room[at..at + payload])?;
                Ok(head.emit(room, payload))
            }
            Out::Batch(batch) => {
                headers(batch, head, payload);
                let referred = client.refer(id, offset, payload, batch);
                if referred.is_err() {
                    batch.cancel();
                }
                referred?;
                Ok(padded(batch, head, payload))
            }
        }
    }

    /// A packet with bytes of ours, in whole words. Returns its length.
    pub(super) fn own(&mut self, head: &Head, bytes: &[u8]) -> usize {
        match self {
            Out::Room(room) => {
                room[head.len()..][..bytes.len()].copy_from_slice(bytes);
                head.emit(room, bytes.len())
            }
            Out::Batch(batch) => {
                headers(batch, head, bytes.len());
                batch.put(bytes);
                padded(batch, head, bytes.len())
            }
        }
    }

    /// A packet of an answer, with bytes of memory that the peer reads. Returns its length.
    pub(super) fn answer(
        &mut self,
        head: &Head,
        payload: usize,
        at: Remote,
        client: &mut dyn Client,
    ) -> Result<usize, Refusal> {
        match self {
            Out::Room(room) => {
                if payload > 0 {
                    client.read(at, &mut room[head.len()..][..payload])?;
                }
                Ok(head.emit(room, payload))
            }
            Out::Batch(batch) => {
                headers(batch, head, payload);
                if payload > 0 {
                    let read = client.read(at, batch.room(payload));
                    if read.is_err() {
                        batch.cancel();
                    }
                    read?;
                }
                Ok(padded(batch, head, payload))
            }
        }
    }
}

fn headers(batch: &mut Batch, head: &Head, payload: usize) {
    let mut bytes = [0; HEAD_MAX];
    head.emit_headers(&mut bytes, payload);
    batch.put(&bytes[..head.len()]);
}

/// Adds the padding.
fn padded(batch: &mut Batch, head: &Head, payload: usize) -> usize {
    let whole = payload.next_multiple_of(4);
    batch.put(&[0; 3][..whole - payload]);
    head.len() + whole
}
