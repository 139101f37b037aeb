//! What travels ahead of a payload, or alone: a head of 40 bytes.
//!
//! Little endian, five words. Kind 1 is the head by which a link's peer says who it is; kinds that
//! are not in [`Head`] belong to the layer above, which has the same fields for them.
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | 0–7 | kind |
//! |   | 8–15 | version of this table |
//! |   | 16–31 | rank of the sender |
//! |   | 32–63 | `a`: number of the send, or of the receive; credits |
//! | 1 | | number of the context |
//! | 2 | | tag |
//! | 3 | | bytes of the message |
//! | 4 | 0–31 | `lo`: hash of what both ends must agree on |
//! |   | 32–63 | `hi`: number of the send in heads that name both ends; credits in a message with its payload; key of a receive |

use ringbell_nic_abi::Status;
use zerocopy::little_endian::U64;

use crate::link::HEAD;

/// Version of the protocol.
const VERSION: u8 = 3;

/// The fields of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) kind: u8,
    /// Rank of the sender.
    pub(crate) from: u32,
    pub(crate) a: u32,
    /// Context.
    pub(crate) ctx: u64,
    pub(crate) tag: u64,
    pub(crate) len: u64,
    pub(crate) lo: u32,
    pub(crate) hi: u32,
}

/// A head that a correct peer does not send: its connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    /// Another protocol.
    #[error("a head of version {0}, not {VERSION}")]
    Version(u8),
    /// An unknown kind.
    #[error("a head of unknown kind {0}")]
    Kind(u8),
    /// A field that cannot be.
    #[error("a head of kind {0} with a bad field")]
    Field(u8),
}

impl Fields {
    /// Those of a head without tag, length, `lo` and `hi`.
    pub(crate) fn new(kind: u8, from: u32, a: u32, ctx: u64) -> Fields {
        Fields {
            kind,
            from,
            a,
            ctx,
            tag: 0,
            len: 0,
            lo: 0,
            hi: 0,
        }
    }

    /// The rest of them.
    pub(crate) fn with(self, tag: u64, len: u64, lo: u32, hi: u32) -> Fields {
        Fields {
            tag,
            len,
            lo,
            hi,
            ..self
        }
    }

    /// The bytes on the link.
    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let pair = |lo: u32, hi: u32| u64::from(lo) | u64::from(hi) << 32;
        let first = u32::from(self.kind) | u32::from(VERSION) << 8 | self.from << 16;
        let words = [
            pair(first, self.a),
            self.ctx,
            self.tag,
            self.len,
            pair(self.lo, self.hi),
        ];
        zerocopy::transmute!(words.map(U64::new))
    }

    /// The fields of a head's bytes.
    ///
    /// # Errors
    /// [`HeadError::Version`]; the link cannot be read on after that.
    pub(crate) fn decode(bytes: &[u8; HEAD]) -> Result<Fields, HeadError> {
        let words: &[U64; HEAD / 8] = zerocopy::transmute_ref!(bytes);
        let [first, ctx, tag, len, last] = words.map(U64::get);
        let version = (first >> 8) as u8;
        if version != VERSION {
            return Err(HeadError::Version(version));
        }
        Ok(Fields {
            kind: first as u8,
            from: u32::from((first >> 16) as u16),
            a: (first >> 32) as u32,
            ctx,
            tag,
            len,
            lo: last as u32,
            hi: (last >> 32) as u32,
        })
    }

    /// Why something ends, or was refused: never a success.
    ///
    /// # Errors
    /// [`HeadError::Field`].
    pub(crate) fn status(&self) -> Result<Status, HeadError> {
        let code = u8::try_from(self.a).ok();
        let status = code.and_then(Status::from_code);
        let bad = HeadError::Field(self.kind);
        status.filter(|s| *s != Status::Ok).ok_or(bad)
    }
}

/// Head fields of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Rank of the sender.
    pub(crate) from: u32,
    /// Context.
    pub(crate) ctx: u64,
    /// Tag.
    pub(crate) tag: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Hash of what both ends must agree on; 0 for user messages.
    pub(crate) hash: u32,
    /// The sender's number of the message.
    pub(crate) send: u32,
    /// Receive buffers of the sender's that are free again; none in a request. Of a receive its
    /// key.
    pub(crate) credits: u32,
}

/// A head of this layer, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Head {
    /// A message with its payload.
    Eager(Envelope),
    /// A message whose payload waits for `Clear`.
    Request(Envelope),
    /// The receiver of the message `send` has a buffer: `recv`.
    Clear {
        ctx: u64,
        from: u32,
        send: u32,
        recv: u32,
    },
    /// The payload of a cleared message.
    Data {
        ctx: u64,
        from: u32,
        recv: u32,
        len: u64,
    },
    /// The user message `send` has met a receive, or was kept.
    Taken { ctx: u64, from: u32, send: u32 },
    /// The message `send` was refused.
    Refused {
        ctx: u64,
        from: u32,
        send: u32,
        status: Status,
        detail: u64,
    },
    /// The message `send`, requested but not cleared, is withdrawn.
    Withdraw { ctx: u64, from: u32, send: u32 },
    /// Receive buffers that are free again.
    Credit { ctx: u64, from: u32, n: u32 },
    /// All of the message `send` to several members has come.
    Copied { ctx: u64, from: u32, send: u32 },
    /// All of the message `send` to several members has left: has it come to the receive of this
    /// tag?
    AllSent {
        ctx: u64,
        from: u32,
        tag: u64,
        send: u32,
    },
    /// The message `send` to several members has not come: it is to be sent alone.
    Singly { ctx: u64, from: u32, send: u32 },
    /// The sender waits for the message of this tag: its receive `send` may be written under the
    /// key `credits`. Key 0: its payload is to come as after `Clear`.
    Ready(Envelope),
}

impl Head {
    /// Context and rank of the sender.
    pub(super) fn sender(&self) -> (u64, u32) {
        match *self {
            Head::Eager(e) | Head::Request(e) | Head::Ready(e) => (e.ctx, e.from),
            Head::Clear { ctx, from, .. }
            | Head::Data { ctx, from, .. }
            | Head::Taken { ctx, from, .. }
            | Head::Refused { ctx, from, .. }
            | Head::Withdraw { ctx, from, .. }
            | Head::Copied { ctx, from, .. }
            | Head::AllSent { ctx, from, .. }
            | Head::Singly { ctx, from, .. }
            | Head::Credit { ctx, from, .. } => (ctx, from),
        }
    }

    /// The bytes on the link.
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let message = |kind, e: Envelope, hi| {
            Fields::new(kind, e.from, e.send, e.ctx).with(e.tag, e.len, e.hash, hi)
        };
        let fields = match *self {
            Head::Eager(e) => message(3, e, e.credits),
            Head::Request(e) => message(4, e, 0),
            Head::Clear {
                ctx,
                from,
                send,
                recv,
            } => Fields::new(5, from, recv, ctx).with(0, 0, 0, send),
            Head::Data {
                ctx,
                from,
                recv,
                len,
            } => Fields::new(6, from, recv, ctx).with(0, len, 0, 0),
            Head::Taken { ctx, from, send } => Fields::new(7, from, 0, ctx).with(0, 0, 0, send),
            Head::Refused {
                ctx,
                from,
                send,
                status,
                detail,
            } => Fields::new(8, from, status.code().into(), ctx).with(0, detail, 0, send),
            Head::Withdraw { ctx, from, send } => Fields::new(9, from, 0, ctx).with(0, 0, 0, send),
            Head::Credit { ctx, from, n } => Fields::new(10, from, n, ctx),
            Head::Ready(e) => message(16, e, e.credits),
            Head::Copied { ctx, from, send } => Fields::new(18, from, 0, ctx).with(0, 0, 0, send),
            Head::AllSent {
                ctx,
                from,
                tag,
                send,
            } => Fields::new(19, from, 0, ctx).with(tag, 0, 0, send),
            Head::Singly { ctx, from, send } => Fields::new(20, from, 0, ctx).with(0, 0, 0, send),
        };
        fields.encode()
    }

    /// The head with these fields; `None`: it is of the layer above.
    ///
    /// # Errors
    /// [`HeadError::Field`]; the link cannot be read on after that.
    pub(crate) fn decode(f: &Fields) -> Result<Option<Head>, HeadError> {
        let Fields { from, ctx, len, .. } = *f;
        let (recv, send) = (f.a, f.hi);
        let envelope = Envelope {
            from,
            ctx,
            tag: f.tag,
            len,
            hash: f.lo,
            send: f.a,
            credits: if f.kind == 4 { 0 } else { f.hi },
        };
        Ok(Some(match f.kind {
            3 | 16 if len > u64::from(u32::MAX) => return Err(HeadError::Field(f.kind)),
            3 => Head::Eager(envelope),
            4 => Head::Request(envelope),
            5 => Head::Clear {
                ctx,
                from,
                send,
                recv,
            },
            6 => Head::Data {
                ctx,
                from,
                recv,
                len,
            },
            7 => Head::Taken { ctx, from, send },
            8 => Head::Refused {
                ctx,
                from,
                send,
                status: f.status()?,
                detail: len,
            },
            9 => Head::Withdraw { ctx, from, send },
            10 => Head::Credit { ctx, from, n: f.a },
            16 => Head::Ready(envelope),
            18 => Head::Copied { ctx, from, send },
            19 => Head::AllSent {
                ctx,
                from,
                tag: f.tag,
                send,
            },
            20 => Head::Singly { ctx, from, send },
            _ => return Ok(None),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(bytes: &[u8; HEAD]) -> Result<Option<Head>, HeadError> {
        Head::decode(&Fields::decode(bytes)?)
    }

    fn heads() -> Vec<Head> {
        let (ctx, from, send, recv) = (u64::MAX - 5, 65_535, u32::MAX, 0x8000_0001);
        let e = Envelope {
            from,
            ctx,
            tag: 1 << 63 | 7,
            len: u32::MAX.into(),
            hash: u32::MAX,
            send,
            credits: 0,
        };
        vec![
            Head::Eager(Envelope { credits: 9, ..e }),
            Head::Request(e),
            Head::Clear {
                ctx,
                from,
                send,
                recv,
            },
            Head::Data {
                ctx,
                from,
                recv,
                len: u32::MAX.into(),
            },
            Head::Taken { ctx, from, send },
            Head::Refused {
                ctx,
                from,
                send,
                status: Status::MessageTooLarge,
                detail: u64::MAX,
            },
            Head::Withdraw { ctx, from, send },
            Head::Credit { ctx, from, n: 4 },
            Head::Ready(Envelope { credits: 3, ..e }),
            Head::Copied { ctx, from, send },
            Head::AllSent {
                ctx,
                from,
                tag: 1 << 62 | 5,
                send,
            },
            Head::Singly { ctx, from, send },
        ]
    }

    #[test]
    fn every_head_survives_its_bytes() {
        for head in heads() {
            assert_eq!(decoded(&head.encode()), Ok(Some(head)));
        }
        // Bytes that other versions of Ringbell read.
        let credit = Head::Credit {
            ctx: 0x0102,
            from: 0x0304,
            n: 0x0506_0708,
        };
        let bytes = credit.encode();
        assert_eq!(bytes[..10], [10, 3, 4, 3, 8, 7, 6, 5, 2, 1]);
        assert_eq!(bytes[10..], [0; HEAD - 10]);
    }

    #[test]
    fn malformed_heads_are_errors_and_other_kinds_are_left() {
        let good = heads()[0].encode();
        let with = |at: usize, b: u8| {
            let mut x = good;
            x[at] = b;
            decoded(&x)
        };
        for kind in [0, 1, 2, 11, 15, 17, 21, 200] {
            assert_eq!(with(0, kind), Ok(None));
        }
        assert_eq!(with(1, 9), Err(HeadError::Version(9)));
        // More bytes than a message may have.
        assert_eq!(with(28, 1), Err(HeadError::Field(3)));
        // A refusal with status `Ok`, and one with no status.
        for a in [[0; 4], [0xff, 0xff, 0, 0]] {
            let mut refused = heads()[5].encode();
            refused[4..8].copy_from_slice(&a);
            assert_eq!(decoded(&refused), Err(HeadError::Field(8)));
        }
    }

    proptest! {
        /// An accepted head means the same when it is encoded again.
        #[test]
        fn accepted_bytes_are_a_head(
            bytes in prop::array::uniform32(any::<u8>()),
            more in any::<u64>(),
            kind in 0u8..22,
        ) {
            let mut header = [0; HEAD];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&more.to_le_bytes());
            (header[0], header[1]) = (kind, VERSION);
            if let Ok(Some(head)) = decoded(&header) {
                prop_assert_eq!(decoded(&head.encode()), Ok(Some(head)));
            }
        }
    }
}
