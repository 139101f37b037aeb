//! Messages between members and the bootstrap's server.
//!
//! A connection starts with a [`Hello`] of fixed length. Then both ends prove that they hold the
//! job's secret (`proof`). An unauthenticated peer is dropped, and nothing else that it sends is
//! parsed. Then come frames: a 32-bit length, and that many bytes. All numbers are little-endian.

/// Bytes of a nonce.
pub(super) const NONCE_BYTES: usize = 16;
/// A number that is used once.
pub(super) type Nonce = [u8; NONCE_BYTES];
/// Bytes of a [`Hello`].
pub(super) const HELLO_BYTES: usize = 32;
/// Longest frame: a result of 4,096 ranks with 4 KiB each.
pub(super) const FRAME_MAX: usize = 20 << 20;
/// Longest part that a rank contributes to a round.
pub(super) const PART_MAX: usize = 4 << 10;
/// Longest part of a rank in a round that new ranks join: they need the addresses of all ranks of
/// the job.
pub(super) const GROW_PART_MAX: usize = 24 << 10;
/// Most ranks of a round.
pub(super) const RANKS_MAX: u32 = 4096;
/// Most numbers of ranks that a job gives in its life: each has an address of 10.77.0.0/16
/// (`ringbell::job::address_of`).
pub(super) const NUMBERS_MAX: u32 = 0xfffe;
/// Rank of a [`Hello`] from a process that joins a running job.
pub(super) const NEW_RANK: u32 = u32::MAX;

const MAGIC: [u8; 8] = *b"RBBOOT4\n";

/// First message of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    /// [`NEW_RANK`]: the server gives a number.
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// Nonce that the server's proof must cover.
    pub(super) nonce: Nonce,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.rank.to_le_bytes());
        out[12..16].copy_from_slice(&self.ranks.to_le_bytes());
        out[16..].copy_from_slice(&self.nonce);
        out
    }

    /// `None`: the peer is no member of any job.
    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let mut r = Reader(bytes);
        (r.bytes(8)? == MAGIC).then_some(())?;
        Some(Hello {
            rank: r.u32()?,
            ranks: r.u32()?,
            nonce: r.bytes(NONCE_BYTES)?.try_into().ok()?,
        })
    }
}

/// How a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum RoundKind {
    /// When all members have come; a member that is gone or late fails it for all.
    All = 1,
    /// When all members have come, are gone, or are late: those who came survive.
    Survivors,
    /// As `All`, when as many new ranks have come as the members want. It takes them in.
    Grow,
    /// The round of a new rank alone, until one of kind `Grow` takes it in.
    Join,
}

/// A member's contribution to a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contribution {
    pub(super) kind: RoundKind,
    /// Rounds of the same members and tag belong together.
    pub(super) tag: u64,
    pub(super) members: Vec<u32>,
    /// Members that this one found to have ended: a server that took over sees only the ranks that
    /// connected to it.
    pub(super) dead: Vec<u32>,
    pub(super) timeout_ms: u32,
    /// New ranks that a round of kind [`RoundKind::Grow`] waits for.
    pub(super) wanted: u32,
    pub(super) part: Vec<u8>,
}

/// The server's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The proof was right, and the rank was free.
    Welcome,
    /// Not admitted, or a contribution that cannot be decoded; the reason.
    Refused(String),
    /// The round ended: a number that no other round has, and the parts by rank.
    Done { id: u64, parts: Vec<(u32, Vec<u8>)> },
    /// The deadline passed without these ranks; `notes` says who was refused meanwhile.
    Missing { ranks: Vec<u32>, notes: String },
    /// These ranks have ended; `notes` says how, in the launcher's words.
    Gone { ranks: Vec<u32>, notes: String },
    /// The round of survivors ended without this rank.
    Excluded,
    /// Instead of `Welcome` to a new rank: its number, the ranks with which the job began, and the
    /// port of its first server.
    Entered { rank: u32, ranks: u32, port: u16 },
    /// The deadline passed before so many new ranks had come; `notes` as above.
    Few { came: u32, notes: String },
    /// The deadline of a new rank passed before the others wanted it.
    Unwanted,
}

/// Reads numbers off the front of bytes from a peer.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.bytes(1).map(|b| b[0])
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
    fn ranks(&mut self) -> Option<Vec<u32>> {
        let n = self.u32().filter(|n| *n <= RANKS_MAX)?;
        (0..n).map(|_| self.u32()).collect()
    }
    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

fn put_ranks(out: &mut Vec<u8>, ranks: &[u32]) {
    out.extend_from_slice(&(ranks.len() as u32).to_le_bytes());
    ranks
        .iter()
        .for_each(|r| out.extend_from_slice(&r.to_le_bytes()));
}

impl Contribution {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.kind as u8];
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&self.timeout_ms.to_le_bytes());
        out.extend_from_slice(&self.wanted.to_le_bytes());
        put_ranks(&mut out, &self.members);
        put_ranks(&mut out, &self.dead);
        out.extend_from_slice(&self.part);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Contribution> {
        let mut r = Reader(bytes);
        let kind = match r.u8()? {
            1 => RoundKind::All,
            2 => RoundKind::Survivors,
            3 => RoundKind::Grow,
            4 => RoundKind::Join,
            _ => return None,
        };
        let (tag, timeout_ms, wanted) = (r.u64()?, r.u32()?, r.u32()?);
        let (members, dead) = (r.ranks()?, r.ranks()?);
        let part = r.rest().to_vec();
        (part.len() <= kind.part_max()).then_some(Contribution {
            kind,
            tag,
            members,
            timeout_ms,
            wanted,
            dead,
            part,
        })
    }
}

impl RoundKind {
    /// Most bytes of a part.
    pub(super) fn part_max(self) -> usize {
        match self {
            RoundKind::Grow => GROW_PART_MAX,
            _ => PART_MAX,
        }
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Answer::Welcome => out.push(1),
            Answer::Refused(why) => {
                out.push(2);
                out.extend_from_slice(why.as_bytes());
            }
            Answer::Done { id, parts } => {
                out.push(3);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&(parts.len() as u32).to_le_bytes());
                for (rank, part) in parts {
                    out.extend_from_slice(&rank.to_le_bytes());
                    out.extend_from_slice(&(part.len() as u32).to_le_bytes());
                    out.extend_from_slice(part);
                }
            }
            Answer::Missing { ranks, notes } => {
                out.push(4);
                put_ranks(&mut out, ranks);
                out.extend_from_slice(notes.as_bytes());
            }
            Answer::Gone { ranks, notes } => {
                out.push(5);
                put_ranks(&mut out, ranks);
                out.extend_from_slice(notes.as_bytes());
            }
            Answer::Excluded => out.push(6),
            Answer::Entered { rank, ranks, port } => {
                out.push(7);
                out.extend_from_slice(&rank.to_le_bytes());
                out.extend_from_slice(&ranks.to_le_bytes());
                out.extend_from_slice(&port.to_le_bytes());
            }
            Answer::Few { came, notes } => {
                out.push(8);
                out.extend_from_slice(&came.to_le_bytes());
                out.extend_from_slice(notes.as_bytes());
            }
            Answer::Unwanted => out.push(9),
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Answer> {
        let mut r = Reader(bytes);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let answer = match r.u8()? {
            1 => Answer::Welcome,
            2 => Answer::Refused(text(r.rest())),
            3 => {
                let id = r.u64()?;
                let n = r.u32().filter(|n| *n <= RANKS_MAX)?;
                let mut parts = Vec::with_capacity(n as usize);
                for _ in 0..n {
                    let (rank, len) = (r.u32()?, r.u32()?);
                    parts.push((rank, r.bytes(len as usize)?.to_vec()));
                }
                Answer::Done { id, parts }
            }
            4 => Answer::Missing {
                ranks: r.ranks()?,
                notes: text(r.rest()),
            },
            5 => Answer::Gone {
                ranks: r.ranks()?,
                notes: text(r.rest()),
            },
            6 => Answer::Excluded,
            7 => Answer::Entered {
                rank: r.u32()?,
                ranks: r.u32()?,
                port: u16::from_le_bytes(r.bytes(2)?.try_into().ok()?),
            },
            8 => Answer::Few {
                came: r.u32()?,
                notes: text(r.rest()),
            },
            9 => Answer::Unwanted,
            _ => return None,
        };
        r.end()?;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_and_no_prefix_of_one_is_accepted_as_another() {
        let hello = Hello {
            rank: 3,
            ranks: 5,
            nonce: *b"0123456789abcdef",
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        assert_eq!(Hello::decode(&[0x47; HELLO_BYTES]), None);
        let c = Contribution {
            kind: RoundKind::Survivors,
            tag: 7,
            members: vec![0, 2, 3],
            dead: vec![2],
            timeout_ms: 900,
            wanted: 2,
            part: vec![1, 2, 3],
        };
        use RoundKind::{All, Grow, Join, Survivors};
        for kind in [All, Survivors, Grow, Join] {
            let c = Contribution { kind, ..c.clone() };
            assert_eq!(Contribution::decode(&c.encode()), Some(c));
        }
        let answers = [
            Answer::Welcome,
            Answer::Refused("no".into()),
            Answer::Done {
                id: 9,
                parts: vec![(0, vec![1]), (4, vec![])],
            },
            Answer::Missing {
                ranks: vec![1, 2],
                notes: "x".into(),
            },
            Answer::Gone {
                ranks: vec![3],
                notes: "y".into(),
            },
            Answer::Excluded,
            Answer::Entered {
                rank: 7,
                ranks: 4,
                port: 4711,
            },
            Answer::Few {
                came: 1,
                notes: "z".into(),
            },
            Answer::Unwanted,
        ];
        for a in answers {
            let bytes = a.encode();
            assert_eq!(Answer::decode(&bytes).as_ref(), Some(&a));
            assert_ne!(Answer::decode(&bytes[..bytes.len() - 1]).as_ref(), Some(&a));
        }
        // A length larger than the bytes that follow.
        assert_eq!(Answer::decode(&[5, 255, 255, 255, 255]), None);
    }
}
