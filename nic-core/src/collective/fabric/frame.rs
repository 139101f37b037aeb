//! Frames between NICs: a header of 40 bytes, then the payload of those that carry one.
//!
//! Little endian, five words. Kind 1 is the head by which a link's peer says who it is.
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | 0–7 | kind |
//! |   | 8–15 | version of this table |
//! |   | 16–31 | rank of the sender |
//! |   | 32–63 | `a`: number of the send, or of the receive; credits |
//! | 1 | | number of the communicator |
//! | 2 | | tag |
//! | 3 | | bytes of the message |
//! | 4 | 0–31 | hash of the operation's parameters |
//! |   | 32–63 | `b`: number of the send in frames that name both ends; credits in a message with its payload; key of a receive |

use ringbell_nic_abi::Status;

use crate::collective::params::Params;
use crate::link::HEAD;

/// Version of the protocol.
const VERSION: u64 = 3;

/// Header fields of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// Rank of the sender.
    pub(crate) from: u32,
    /// Communicator.
    pub(crate) ctx: u64,
    /// Tag.
    pub(crate) tag: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Hash of the operation's parameters; 0 for user messages.
    pub(crate) hash: u32,
    /// The sender's number of the message.
    pub(crate) send: u32,
    /// Receive buffers of the sender's that are free again; none in a request. Of a receive its key.
    pub(crate) credits: u32,
}

/// A header, decoded and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The sender has made the communicator; it keeps `credits` receive buffers of `eager_max` bytes.
    Join {
        ctx: u64,
        from: u32,
        ranks: u32,
        credits: u32,
        eager_max: u64,
        /// Of the list of peers and the settings that must agree.
        hash: u32,
        /// Where the sender's area of the direct path lies on its NIC memory, in lines of 128 bytes from
        /// 1 on; 0: it has none.
        area: u32,
        /// The sender's card executes programs of rings.
        card: bool,
    },
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
    /// The sender waits for the message of this tag: its receive `send` may be written under the key `credits`. Key 0: its payload is to come
    /// as after `Clear`.
    Ready(Envelope),
    /// The parameters with which the sender runs operation `seq`.
    Params {
        ctx: u64,
        from: u32,
        seq: u32,
        params: Params,
    },
    /// The communicator ends because of `rank`.
    Abort {
        ctx: u64,
        from: u32,
        rank: u32,
        status: Status,
    },
    /// The sender has freed the communicator: it has ended all its operations.
    Leave { ctx: u64, from: u32 },
    /// An operation of the sender's has waited for long: is the other end alive?
    Ask { ctx: u64, from: u32 },
    /// It is, and this many collectives have been posted there.
    Here { ctx: u64, from: u32, posted: u32 },
}

/// A header that a correct peer does not send: its connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    /// Another protocol.
    #[error("a frame of version {0}, not {VERSION}")]
    Version(u8),
    /// An unknown kind.
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    /// A field that cannot be.
    #[error("a frame of kind {0} with a bad field")]
    Field(u8),
}

struct Words([u64; 5]);

impl Words {
    fn new(kind: u8, from: u32, a: u32, ctx: u64) -> Words {
        let head =
            u64::from(kind) | VERSION << 8 | u64::from(from as u16) << 16 | u64::from(a) << 32;
        Words([head, ctx, 0, 0, 0])
    }
    fn with(mut self, tag: u64, len: u64, lo: u32, hi: u32) -> Words {
        self.0[2] = tag;
        self.0[3] = len;
        self.0[4] = u64::from(lo) | u64::from(hi) << 32;
        self
    }
}

/// Kind of [`Frame::Here`].
const HERE: u8 = 15;

impl Frame {
    /// Whether it tells peers of the end of its communicator, and leaves although that has ended.
    pub(crate) fn reports_an_end(&self) -> bool {
        matches!(self, Frame::Abort { .. } | Frame::Params { .. })
    }

    /// Whether these are the bytes of a [`Frame::Here`].
    pub(crate) fn is_answer(head: &[u8; HEAD]) -> bool {
        head[0] == HERE
    }

    /// The bytes on the link.
    pub(crate) fn encode(&self) -> [u8; HEAD] {
        let w = match *self {
            Frame::Join {
                ctx,
                from,
                ranks,
                credits,
                eager_max,
                hash,
                area,
                card,
            } => {
                let ranks = u64::from(ranks) | u64::from(card) << 32;
                Words::new(2, from, credits, ctx).with(ranks, eager_max, hash, area)
            }
            Frame::Eager(e) => {
                Words::new(3, e.from, e.send, e.ctx).with(e.tag, e.len, e.hash, e.credits)
            }
            Frame::Request(e) => Words::new(4, e.from, e.send, e.ctx).with(e.tag, e.len, e.hash, 0),
            Frame::Clear {
                ctx,
                from,
                send,
                recv,
            } => Words::new(5, from, recv, ctx).with(0, 0, 0, send),
            Frame::Data {
                ctx,
                from,
                recv,
                len,
            } => Words::new(6, from, recv, ctx).with(0, len, 0, 0),
            Frame::Taken { ctx, from, send } => Words::new(7, from, 0, ctx).with(0, 0, 0, send),
            Frame::Refused {
                ctx,
                from,
                send,
                status,
                detail,
            } => Words::new(8, from, status.code().into(), ctx).with(0, detail, 0, send),
            Frame::Withdraw { ctx, from, send } => Words::new(9, from, 0, ctx).with(0, 0, 0, send),
            Frame::Credit { ctx, from, n } => Words::new(10, from, n, ctx),
            Frame::Params {
                ctx,
                from,
                seq,
                params,
            } => {
                let [lo, hi] = params.small();
                Words::new(11, from, seq, ctx).with(
                    u64::from(params.root) | u64::from(params.extra) << 32,
                    params.count,
                    lo,
                    hi,
                )
            }
            Frame::Abort {
                ctx,
                from,
                rank,
                status,
            } => Words::new(12, from, status.code().into(), ctx).with(rank.into(), 0, 0, 0),
            Frame::Leave { ctx, from } => Words::new(13, from, 0, ctx),
            Frame::Ask { ctx, from } => Words::new(14, from, 0, ctx),
            Frame::Here { ctx, from, posted } => Words::new(HERE, from, posted, ctx),
            Frame::Ready(e) => {
                Words::new(16, e.from, e.send, e.ctx).with(e.tag, e.len, e.hash, e.credits)
            }
        };
        let mut bytes = [0; HEAD];
        for (i, word) in w.0.iter().enumerate() {
            bytes[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The frame of a header.
    ///
    /// # Errors
    /// [`FrameError`]; the link cannot be read on after that.
    pub(crate) fn decode(bytes: &[u8; HEAD]) -> Result<Frame, FrameError> {
        let word = |i: usize| {
            let mut b = [0; 8];
            b.copy_from_slice(&bytes[i * 8..i * 8 + 8]);
            u64::from_le_bytes(b)
        };
        let w = [word(0), word(1), word(2), word(3), word(4)];
        let (kind, version) = (w[0] as u8, (w[0] >> 8) as u8);
        if u64::from(version) != VERSION {
            return Err(FrameError::Version(version));
        }
        let bad = FrameError::Field(kind);
        let from = u32::from((w[0] >> 16) as u16);
        let (a, b) = ((w[0] >> 32) as u32, (w[4] >> 32) as u32);
        let (ctx, tag, len, hash) = (w[1], w[2], w[3], w[4] as u32);
        let status = || {
            let code = u8::try_from(a).map_err(|_| bad)?;
            // The status of an end cannot be a success.
            Status::from_code(code)
                .filter(|s| *s != Status::Ok)
                .ok_or(bad)
        };
        let envelope = Envelope {
            from,
            ctx,
            tag,
            len,
            hash,
            send: a,
            credits: if kind == 4 { 0 } else { b },
        };
        Ok(match kind {
            2 => Frame::Join {
                ctx,
                from,
                ranks: tag as u32,
                credits: a,
                eager_max: len,
                hash,
                area: b,
                card: match tag >> 32 {
                    0 => false,
                    1 => true,
                    _ => return Err(bad),
                },
            },
            3 | 4 | 16 if len > u64::from(u32::MAX) => return Err(bad),
            3 => Frame::Eager(envelope),
            4 => Frame::Request(envelope),
            5 => Frame::Clear {
                ctx,
                from,
                send: b,
                recv: a,
            },
            6 if len > u64::from(u32::MAX) => return Err(bad),
            6 => Frame::Data {
                ctx,
                from,
                recv: a,
                len,
            },
            7 => Frame::Taken { ctx, from, send: b },
            8 => Frame::Refused {
                ctx,
                from,
                send: b,
                status: status()?,
                detail: len,
            },
            9 => Frame::Withdraw { ctx, from, send: b },
            10 => Frame::Credit { ctx, from, n: a },
            11 => Frame::Params {
                ctx,
                from,
                seq: a,
                params: Params::from_wire(tag, len, [hash, b]).ok_or(bad)?,
            },
            12 => Frame::Abort {
                ctx,
                from,
                rank: u32::try_from(tag).map_err(|_| bad)?,
                status: status()?,
            },
            13 => Frame::Leave { ctx, from },
            14 => Frame::Ask { ctx, from },
            HERE => Frame::Here {
                ctx,
                from,
                posted: a,
            },
            16 => Frame::Ready(envelope),
            other => return Err(FrameError::Kind(other)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp, WireType};

    fn frames() -> Vec<Frame> {
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
        let params = Params {
            kind: CollectiveKind::AllToAll,
            dtype: DataType::U64,
            op: ReduceOp::Max,
            algo: Algorithm::User,
            wire: WireType::F16,
            root: u32::MAX,
            count: u64::MAX,
            extra: u32::MAX,
            direct: true,
        };
        vec![
            Frame::Join {
                ctx,
                from,
                ranks: 1024,
                credits: 16,
                eager_max: 1 << 30,
                hash: u32::MAX,
                area: 3,
                card: true,
            },
            Frame::Eager(Envelope { credits: 9, ..e }),
            Frame::Request(e),
            Frame::Clear {
                ctx,
                from,
                send,
                recv,
            },
            Frame::Data {
                ctx,
                from,
                recv,
                len: u32::MAX.into(),
            },
            Frame::Taken { ctx, from, send },
            Frame::Refused {
                ctx,
                from,
                send,
                status: Status::MessageTooLarge,
                detail: u64::MAX,
            },
            Frame::Withdraw { ctx, from, send },
            Frame::Credit { ctx, from, n: 4 },
            Frame::Params {
                ctx,
                from,
                seq: u32::MAX,
                params,
            },
            Frame::Abort {
                ctx,
                from,
                rank: 3,
                status: Status::PeerFailed,
            },
            Frame::Leave { ctx, from },
            Frame::Ask { ctx, from },
            Frame::Here {
                ctx,
                from,
                posted: 7,
            },
        ]
    }

    #[test]
    fn every_frame_survives_its_bytes() {
        for f in frames() {
            assert_eq!(Frame::decode(&f.encode()), Ok(f));
        }
    }

    #[test]
    fn malformed_frames_are_errors() {
        let good = frames()[1].encode();
        let with = |at: usize, b: u8| {
            let mut x = good;
            x[at] = b;
            Frame::decode(&x)
        };
        assert_eq!(with(0, 0), Err(FrameError::Kind(0)));
        // A peer that says who it is again.
        assert_eq!(with(0, 1), Err(FrameError::Kind(1)));
        assert_eq!(with(0, 200), Err(FrameError::Kind(200)));
        assert_eq!(with(1, 9), Err(FrameError::Version(9)));
        // More bytes than a message may have.
        assert_eq!(with(28, 1), Err(FrameError::Field(3)));
        // An end, or a refusal, with status `Ok`.
        for i in [6, 10] {
            let mut bytes = frames()[i].encode();
            bytes[4..8].fill(0);
            assert_eq!(Frame::decode(&bytes), Err(FrameError::Field(bytes[0])));
        }
        let mut params = frames()[9].encode();
        params[32] = 0xff;
        assert_eq!(Frame::decode(&params), Err(FrameError::Field(11)));
    }

    proptest! {
        /// An accepted header means the same when it is encoded again.
        #[test]
        fn accepted_bytes_are_a_frame(bytes in prop::array::uniform32(any::<u8>()), more in any::<u64>(), kind in 0u8..18) {
            let mut header = [0; HEAD];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&more.to_le_bytes());
            (header[0], header[1]) = (kind, VERSION as u8);
            if let Ok(f) = Frame::decode(&header) {
                prop_assert_eq!(Frame::decode(&f.encode()), Ok(f));
            }
        }
    }
}
