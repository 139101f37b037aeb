//! Communicators made of others: by splitting, shrinking, growing and merging.
//!
//! Ranks agree on the members and on a new number over the job's bootstrap; then their NICs connect
//! as for a first communicator. A growth and a merger end with a second round, in which all learn
//! whether all are connected.
#![allow(clippy::disallowed_methods)] // Waits for other ranks, with deadlines on the host's clock.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use ringbell_job::{BootstrapError, Member, Round};
use ringbell_nic_core::descriptors::{self, Shortages};

use super::agreement::{self, Agreed};
use super::card::{self, Card};
use super::inner::Inner;
use super::{CollectiveError, CollectiveKind, CommOptions};
use crate::Nic;

/// Tag of the round of two communicators, which have no number in common.
const MERGE: u64 = 0x6d65_7267;
/// Number of a new rank's communicator: none.
const NONE: u64 = 0;
/// Most standby addresses that a rank tells new ranks: what fits into a part.
const SUCCESSORS_MAX: usize = 1300;
/// Additional wait for ranks that give up.
const GRACE: Duration = Duration::from_secs(5);

/// Where a rank comes from, and its NIC: its part of a round with ranks that do not know it.
struct Origin {
    /// Number of its communicator, or [`NONE`].
    ctx: u64,
    /// Its rank there.
    rank: u32,
    card: Card,
    settings: Agreed,
    /// Standby addresses of the job's ranks, from the first rank of a communicator.
    successors: Vec<Option<SocketAddr>>,
}

impl Origin {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.ctx.to_le_bytes().to_vec();
        out.extend_from_slice(&self.rank.to_le_bytes());
        out.extend_from_slice(&self.card.encode());
        out.extend_from_slice(&self.settings.encode());
        card::put_sockets(&mut out, &self.successors);
        out
    }

    fn decode(bytes: &[u8]) -> Option<Origin> {
        let (ctx, rest) = bytes.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let (card, rest) = rest.split_first_chunk::<{ card::BYTES }>()?;
        let (settings, rest) = rest.split_first_chunk()?;
        Some(Origin {
            ctx: u64::from_le_bytes(*ctx),
            rank: u32::from_le_bytes(*rank),
            card: Card::decode(card)?,
            settings: Agreed::decode(settings),
            successors: card::read_sockets(rest),
        })
    }

    /// This rank's.
    fn of(comm: &Inner) -> Origin {
        let mut successors = match comm.rank {
            0 => comm.member.successors(),
            _ => Vec::new(),
        };
        if successors.len() > SUCCESSORS_MAX {
            tracing::warn!("new ranks of a job of so many cannot follow when its bootstrap moves");
            successors.clear();
        }
        Origin {
            ctx: comm.ctx,
            rank: comm.rank,
            card: Card::of(&comm.nic, comm.options.port, comm.member.standby_address()),
            settings: Agreed::of(&comm.options.settings),
            successors,
        }
    }
}

/// Ranks that will be a communicator, in their order there.
struct Assembly {
    ranks: Vec<u32>,
    cards: Vec<Card>,
    settings: Vec<Agreed>,
    successors: Vec<Option<SocketAddr>>,
}

impl Assembly {
    /// Orders the ranks of a round: communicators by their lowest rank in the job, each in its own
    /// order; then new ranks.
    fn of(round: &Round) -> Result<Assembly, CollectiveError> {
        let read = |(rank, part): &(u32, Vec<u8>)| {
            let origin = Origin::decode(part).ok_or(BootstrapError::Version { rank: *rank })?;
            Ok((*rank, origin))
        };
        let all = round.parts.iter().map(read);
        let mut all: Vec<(u32, Origin)> = all.collect::<Result<_, BootstrapError>>()?;
        // Parts rise by rank, so the first of a communicator is its lowest.
        let lowest = |ctx| match all.iter().find(|(_, o)| o.ctx == ctx) {
            Some((rank, _)) if ctx != NONE => *rank,
            _ => u32::MAX,
        };
        let mut places: Vec<_> = (0..)
            .zip(&all)
            .map(|(i, (r, o))| (lowest(o.ctx), o.rank, *r, i))
            .collect();
        places.sort_unstable();
        let known = all.iter_mut().map(|(_, o)| &mut o.successors);
        let successors = known.max_by_key(|s| s.len()).map(std::mem::take);
        let ordered = |p: &(u32, u32, u32, usize)| (all[p.3].1.card, all[p.3].1.settings);
        let (cards, settings) = places.iter().map(ordered).unzip();
        Ok(Assembly {
            ranks: places.iter().map(|p| p.2).collect(),
            cards,
            settings,
            successors: successors.unwrap_or_default(),
        })
    }

    /// Makes the communicator, and returns it when all ranks have.
    fn connect(
        self,
        nic: &Nic,
        member: Arc<Member>,
        options: &CommOptions,
        ctx: u64,
        shortages: Shortages,
    ) -> Result<Arc<Inner>, CollectiveError> {
        let Assembly {
            ranks,
            cards,
            settings,
            successors,
        } = self;
        let mut known = match member.successors() {
            own if own.is_empty() => successors,
            own => own,
        };
        card::add_successors(&mut known, &ranks, &cards);
        member.set_successors(known);
        let mut members = ranks.clone();
        members.sort_unstable();
        let own = ranks.iter().position(|r| *r == member.rank());
        let fit = card::check_paths(&cards, own.unwrap_or(0) as u32);
        let made = fit
            .and_then(|()| agreement::check(&settings))
            .and_then(|()| {
                let peers = card::peers(&cards, nic);
                Inner::make(
                    nic,
                    member.clone(),
                    options,
                    ctx,
                    ranks.clone(),
                    peers,
                    shortages,
                )
            });
        // What a rank that cannot be reached does not learn by itself.
        let vote = [u8::from(made.is_ok())];
        let votes = member.all_gather(&members, ctx, &vote, options.init_timeout + GRACE);
        let comm = made?;
        let failed: Vec<_> = votes?
            .parts
            .iter()
            .filter(|(_, vote)| *vote != [1])
            .filter_map(|(r, _)| ranks.iter().position(|x| x == r))
            .map(|rank| (rank as u32, None))
            .collect();
        match failed.is_empty() {
            true => Ok(comm),
            false => Err(CollectiveError::NotConnected { ranks: failed }),
        }
    }
}

pub(super) fn join(
    nic: &Nic,
    member: Member,
    options: &CommOptions,
) -> Result<Arc<Inner>, CollectiveError> {
    let shortages = descriptors::shortages();
    let origin = Origin {
        ctx: NONE,
        rank: 0,
        card: Card::of(nic, options.port, member.standby_address()),
        settings: Agreed::of(&options.settings),
        successors: Vec::new(),
    };
    let round = member.enter(&origin.encode(), options.init_timeout)?;
    let assembly = Assembly::of(&round)?;
    assembly.connect(nic, Arc::new(member), options, round.id, shortages)
}

pub(super) fn grow(
    comm: &Inner,
    ranks: u32,
    patience: Duration,
) -> Result<Arc<Inner>, CollectiveError> {
    let size = comm.size();
    let Some(wanted) = ranks.checked_sub(size).filter(|n| *n > 0) else {
        return Err(CollectiveError::NoGrowth { ranks, size });
    };
    let shortages = descriptors::shortages();
    let (members, part) = (comm.sorted_job_ranks(), Origin::of(comm).encode());
    let round = comm
        .member
        .grow(&members, comm.ctx, wanted, &part, patience)?;
    let assembly = Assembly::of(&round)?;
    assembly.connect(
        &comm.nic,
        comm.member.clone(),
        &comm.options,
        round.id,
        shortages,
    )
}

pub(super) fn merge(comm: &Inner, others: &[u32]) -> Result<Arc<Inner>, CollectiveError> {
    let shortages = descriptors::shortages();
    let mut members = [&comm.job_ranks[..], others].concat();
    members.sort_unstable();
    members.dedup();
    let origin = Origin {
        successors: Vec::new(),
        ..Origin::of(comm)
    };
    let timeout = comm.options.init_timeout;
    let round = comm
        .member
        .all_gather(&members, MERGE, &origin.encode(), timeout)?;
    let assembly = Assembly::of(&round)?;
    assembly.connect(
        &comm.nic,
        comm.member.clone(),
        &comm.options,
        round.id,
        shortages,
    )
}

pub(super) fn split(
    comm: &Inner,
    colour: Option<u32>,
    key: i32,
) -> Result<Option<Arc<Inner>>, CollectiveError> {
    let shortages = descriptors::shortages();
    let part = match colour {
        Some(c) => [&[1][..], &c.to_le_bytes(), &key.to_le_bytes()].concat(),
        None => vec![0],
    };
    let (members, timeout) = (comm.sorted_job_ranks(), comm.options.init_timeout);
    let round = comm.member.all_gather(&members, comm.ctx, &part, timeout)?;
    let Some(colour) = colour else {
        return Ok(None);
    };
    let said = |job_rank: u32| -> Option<(u32, i32)> {
        let (_, p) = round.parts.iter().find(|(r, _)| *r == job_rank)?;
        let (c, k) = (p.get(1..5)?, p.get(5..9)?);
        Some((
            u32::from_le_bytes(c.try_into().ok()?),
            i32::from_le_bytes(k.try_into().ok()?),
        ))
    };
    let colours = comm.job_ranks.iter().filter_map(|r| Some(said(*r)?.0));
    let mut colours: Vec<u32> = colours.collect();
    colours.sort_unstable();
    colours.dedup();
    let index = colours.iter().position(|c| *c == colour).unwrap_or(0) as u64;
    let ranks = comm.job_ranks.iter().enumerate();
    let mut chosen: Vec<(i32, usize)> = ranks
        .filter_map(|(rank, r)| Some((said(*r).filter(|(c, _)| *c == colour)?.1, rank)))
        .collect();
    chosen.sort_unstable();
    let chosen = chosen.iter().map(|(_, rank)| *rank);
    with_ranks(comm, chosen, round.id + 1 + index, shortages).map(Some)
}

pub(super) fn shrink(comm: &Inner, patience: Duration) -> Result<Arc<Inner>, CollectiveError> {
    let shortages = descriptors::shortages();
    comm.abort();
    // Each attempt is a round of its own; a second one would get the first one's result again.
    // Relaxed: it only counts.
    let attempt = comm.shrinks.fetch_add(1, Ordering::Relaxed);
    let (members, tag) = (comm.sorted_job_ranks(), comm.ctx ^ attempt << 48);
    let round = comm.member.survivors(&members, tag, &[], patience)?;
    let alive = |r: &u32| round.parts.iter().any(|(p, _)| p == r);
    let left = comm.job_ranks.iter().enumerate();
    let left = left.filter(|(_, r)| alive(r)).map(|(rank, _)| rank);
    with_ranks(comm, left, round.id, shortages)
}

/// Tags of groups, apart from those of the communicator's other rounds.
const GROUP: u64 = 1 << 62;

pub(super) fn create_group(
    comm: &Inner,
    ranks: &[u32],
    tag: u64,
) -> Result<Arc<Inner>, CollectiveError> {
    let shortages = descriptors::shortages();
    let job_rank = |rank: &u32| {
        let found = comm.job_ranks.get(*rank as usize).copied();
        found.ok_or_else(|| CollectiveError::Misuse {
            kind: CollectiveKind::Nop,
            why: format!(
                "a group has rank {rank}, and the communicator has ranks 0 to {}",
                comm.size() - 1
            ),
        })
    };
    let mut members = ranks.iter().map(job_rank).collect::<Result<Vec<_>, _>>()?;
    members.sort_unstable();
    let tag = comm.ctx ^ tag.rotate_left(16) ^ GROUP;
    let round = comm
        .member
        .all_gather(&members, tag, &[], comm.options.init_timeout)?;
    let ranks = ranks.iter().map(|r| *r as usize);
    with_ranks(comm, ranks, round.id, shortages)
}

/// A new communicator of some ranks of this one.
fn with_ranks(
    comm: &Inner,
    ranks: impl Iterator<Item = usize>,
    ctx: u64,
    shortages: Shortages,
) -> Result<Arc<Inner>, CollectiveError> {
    let (job_ranks, peers) = ranks.map(|r| (comm.job_ranks[r], comm.peers[r])).unzip();
    let (member, options) = (comm.member.clone(), &comm.options);
    Inner::make(&comm.nic, member, options, ctx, job_ranks, peers, shortages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(nic: &Nic, ctx: u64, rank: u32, successors: &[u16]) -> Vec<u8> {
        let at = |port: &u16| (*port != 0).then(|| ([10, 1, 0, 1], *port).into());
        let successors = successors.iter().map(at).collect();
        let card = Card::of(nic, ctx as u16, None);
        Origin {
            ctx,
            rank,
            card,
            settings: Agreed::of(&CommOptions::default().settings),
            successors,
        }
        .encode()
    }

    #[test]
    fn communicators_come_by_their_lowest_rank_and_new_ranks_last() {
        let nic = Nic::builder().ip("10.9.8.77/24").gpu_memory(1 << 20);
        let nic = nic.open().expect("a NIC");
        let part = |rank, ctx, place, known: &[u16]| (rank, origin(&nic, ctx, place, known));
        let parts = vec![
            part(1, 9, 1, &[]),
            part(2, 5, 1, &[]),
            part(3, 9, 0, &[7, 0, 8]),
            part(4, NONE, 0, &[]),
            part(6, 5, 0, &[7]),
            part(7, NONE, 0, &[]),
        ];
        let mut round = Round { id: 1 << 20, parts };
        let all = Assembly::of(&round).expect("all are sound");
        assert_eq!(all.ranks, [3, 1, 6, 2, 4, 7]);
        let ports: Vec<u16> = all.cards.iter().map(|c| c.address.port()).collect();
        assert_eq!(ports, [9, 9, 5, 5, 0, 0]);
        let known: Vec<u16> = all
            .successors
            .iter()
            .map(|s| s.map_or(0, |s| s.port()))
            .collect();
        assert_eq!(known, [7, 0, 8]);
        round.parts[3].1.truncate(70);
        let e = Assembly::of(&round).err().expect("cut").to_string();
        assert!(e.contains("rank 4") && e.contains("same version"), "{e}");
    }
}
