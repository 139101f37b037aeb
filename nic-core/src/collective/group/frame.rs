//! Frames between the ranks of a communicator: [heads](crate::message) without a payload, of kinds
//! that messages leave to the layer above.

use ringbell_nic_abi::Status;

use super::joint::Known;
use super::member::Offer;
use crate::collective::number::Number;
use crate::collective::params::Params;
use crate::link::HEAD;
use crate::message::{Fields, HeadError};

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// The sender has made the communicator; it keeps `credits` receive buffers of `eager_max`
    /// bytes.
    Join {
        ranks: u32,
        credits: u32,
        eager_max: u64,
        /// Of the list of peers and the settings that must agree.
        hash: u32,
        offer: Offer,
    },
    /// The parameters with which the sender runs operation `seq`.
    Params { seq: u32, params: Params },
    /// The communicator ends because of `rank`.
    Abort { rank: u32, status: Status },
    /// The sender has freed the communicator: it has ended all its operations.
    Leave,
    /// An operation of the sender's has waited for long: is the other end alive, and how far is it
    /// on that port?
    Ask { port: u8 },
    /// It is, and this is the next number of the port there.
    Here { next: Number },
    /// What the sender knows of all ranks in a round of the agreement.
    Round { round: u8, known: Known },
    /// That rank cannot be reached any more.
    Gone { rank: u32 },
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Communicator.
    pub(crate) ctx: u64,
    /// Rank of the sender.
    pub(crate) from: u32,
    pub(crate) body: Body,
}

impl Frame {
    /// Whether it tells peers of the end of its communicator, and leaves although that has ended.
    pub(super) fn reports_an_end(&self) -> bool {
        matches!(self.body, Body::Abort { .. } | Body::Params { .. })
    }

    /// Whether these are the bytes of a [`Body::Here`] of a port.
    pub(super) fn is_answer(head: &[u8; HEAD], port: u8) -> bool {
        let frame = Fields::decode(head).and_then(|f| Frame::decode(&f));
        matches!(frame, Ok(Frame { body: Body::Here { next }, .. }) if next.port() == port)
    }

    /// The bytes on the link.
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let new = |kind, a| Fields::new(kind, self.from, a, self.ctx);
        let fields = match self.body {
            Body::Join {
                ranks,
                credits,
                eager_max,
                hash,
                offer,
            } => {
                let ranks = u64::from(ranks) | u64::from(offer.card) << 32;
                new(2, credits).with(ranks, eager_max, hash, offer.area)
            }
            Body::Params { seq, params } => {
                let [lo, hi] = params.small();
                let tag = u64::from(params.root) | u64::from(params.extra) << 32;
                new(11, seq).with(tag, params.count, lo, hi)
            }
            Body::Abort { rank, status } => {
                new(12, status.code().into()).with(rank.into(), 0, 0, 0)
            }
            Body::Leave => new(13, 0),
            Body::Ask { port } => new(14, port.into()),
            Body::Here { next } => new(15, next.word()),
            Body::Round { round, known } => {
                let a =
                    u32::from(round) | u32::from(known.what) << 8 | u32::from(known.cards) << 16;
                let prints = u128::from_le_bytes(known.prints);
                let (low, high) = (prints as u64, (prints >> 64) as u64);
                new(22, a).with(low, high, known.lowest.into(), known.differs.into())
            }
            Body::Gone { rank } => new(23, rank),
        };
        fields.encode()
    }

    /// The frame with these fields.
    ///
    /// # Errors
    /// [`HeadError`]; the link cannot be read on after that.
    pub(super) fn decode(f: &Fields) -> Result<Frame, HeadError> {
        let bad = HeadError::Field(f.kind);
        let body = match f.kind {
            2 => Body::Join {
                ranks: f.tag as u32,
                credits: f.a,
                eager_max: f.len,
                hash: f.lo,
                offer: Offer {
                    area: f.hi,
                    card: match f.tag >> 32 {
                        0 => false,
                        1 => true,
                        _ => return Err(bad),
                    },
                },
            },
            11 => Body::Params {
                seq: f.a,
                params: Params::from_wire(f.tag, f.len, [f.lo, f.hi]).ok_or(bad)?,
            },
            12 => Body::Abort {
                rank: u32::try_from(f.tag).map_err(|_| bad)?,
                status: f.status()?,
            },
            13 => Body::Leave,
            14 => Body::Ask {
                port: u8::try_from(f.a).map_err(|_| bad)?,
            },
            15 => Body::Here {
                next: Number::from_word(f.a),
            },
            22 => {
                let prints = u128::from(f.tag) | u128::from(f.len) << 64;
                let short = |x: u32| u16::try_from(x).map_err(|_| bad);
                Body::Round {
                    round: f.a as u8,
                    known: Known {
                        lowest: short(f.lo)?,
                        differs: short(f.hi)?,
                        what: (f.a >> 8) as u8,
                        cards: match f.a >> 16 {
                            0 => false,
                            1 => true,
                            _ => return Err(bad),
                        },
                        prints: prints.to_le_bytes(),
                    },
                }
            }
            23 => Body::Gone { rank: f.a },
            other => return Err(HeadError::Kind(other)),
        };
        Ok(Frame {
            ctx: f.ctx,
            from: f.from,
            body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp, WireType};

    fn decoded(bytes: &[u8; HEAD]) -> Result<Frame, HeadError> {
        Frame::decode(&Fields::decode(bytes)?)
    }

    fn frames() -> Vec<Frame> {
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
        let bodies = [
            Body::Join {
                ranks: 4096,
                credits: 16,
                eager_max: 1 << 30,
                hash: u32::MAX,
                offer: Offer {
                    area: 3,
                    card: true,
                },
            },
            Body::Params {
                seq: u32::MAX,
                params,
            },
            Body::Abort {
                rank: 3,
                status: Status::PeerFailed,
            },
            Body::Leave,
            Body::Ask { port: 255 },
            Body::Here {
                next: Number::first(7).next(),
            },
            Body::Round {
                round: 11,
                known: Known::of(4095, true, 0..16),
            },
            Body::Gone { rank: 4095 },
        ];
        let frame = |body| Frame {
            ctx: u64::MAX - 5,
            from: 65_535,
            body,
        };
        bodies.map(frame).to_vec()
    }

    #[test]
    fn every_frame_survives_its_bytes() {
        for f in frames() {
            assert_eq!(decoded(&f.encode()), Ok(f));
        }
    }

    #[test]
    fn malformed_frames_are_errors() {
        let good = frames()[3].encode();
        let with = |at: usize, b: u8| {
            let mut x = good;
            x[at] = b;
            decoded(&x)
        };
        // Kind 1 is that of a peer that says who it is again.
        for kind in [0, 1, 3, 16, 21, 200] {
            assert_eq!(with(0, kind), Err(HeadError::Kind(kind)));
        }
        // An end with status `Ok`.
        let mut abort = frames()[2].encode();
        abort[4..8].fill(0);
        assert_eq!(decoded(&abort), Err(HeadError::Field(12)));
        // A port that there is not.
        let mut ask = frames()[4].encode();
        ask[4..8].copy_from_slice(&256u32.to_le_bytes());
        assert_eq!(decoded(&ask), Err(HeadError::Field(14)));
        assert!(Frame::is_answer(&frames()[5].encode(), 7));
        assert!(!Frame::is_answer(&frames()[5].encode(), 0));
        assert!(!Frame::is_answer(&frames()[4].encode(), 255));
        let mut params = frames()[1].encode();
        params[32] = 0xff;
        assert_eq!(decoded(&params), Err(HeadError::Field(11)));
    }

    proptest! {
        /// Accepted bytes mean the same when they are encoded again.
        #[test]
        fn accepted_bytes_are_a_frame(
            bytes in prop::array::uniform32(any::<u8>()),
            more in any::<u64>(),
            kind in 0u8..26,
        ) {
            let mut header = [0; HEAD];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&more.to_le_bytes());
            (header[0], header[1]) = (kind, good_version());
            if let Ok(f) = decoded(&header) {
                prop_assert_eq!(decoded(&f.encode()), Ok(f));
            }
        }
    }

    fn good_version() -> u8 {
        frames()[3].encode()[1]
    }
}
