//! The control path of communicators: creation, status and release.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;

use ringbell_gtlb::Access;
use ringbell_nic_abi::{GpuVa, Status};

use super::communicator::{Comm, DirectComm, Life};
use super::direct::Kept;
use super::group::{Body, Joining, Known};
use super::number::Numbers;
use super::scratch::Scratch;
use super::table::{State, MAX_COMMS};
use super::Collectives;
use super::{
    CollectiveCounters, CommError, CommInfo, CommStatus, CommunicatorConfig, PeerInfo,
    ProgramProgress, MAX_RANKS,
};
use crate::card::SharedCard;
use crate::link::Io;
use crate::memory::nic_memory::{NIC_BUS, NIC_VA};
use crate::types::{CommId, Owner};

/// The list of ranks, as words.
fn peers(c: &CommunicatorConfig) -> impl Iterator<Item = u64> + '_ {
    let word =
        |p: &std::net::SocketAddrV4| u64::from(u32::from(*p.ip())) << 16 | u64::from(p.port());
    c.peers.iter().map(word)
}

/// A hash of what all ranks must be given alike.
fn agreement(c: &CommunicatorConfig) -> u32 {
    super::params::fold(peers(c).chain(values(c)))
}

/// What all ranks must be given alike, the settings one by one.
fn values(c: &CommunicatorConfig) -> impl Iterator<Item = u64> {
    let all = u64::from(super::params::fold(peers(c)));
    // One word for the last two: a round's message has places for 16.
    let [settings @ .., (_, host_ranks)] = c.settings.agreed();
    let last = host_ranks << 32 | u64::from(c.settings.linked_ranks);
    let settings = settings.into_iter().map(|(_, value)| value);
    settings.chain([last, all])
}

fn check(c: &CommunicatorConfig, ip: Ipv4Addr) -> Result<(), CommError> {
    c.settings.validate()?;
    let ranks = c.peers.len();
    if ranks == 0 || ranks > MAX_RANKS {
        return Err(CommError::Ranks { ranks });
    }
    let Some(me) = c.peers.get(c.rank as usize) else {
        return Err(CommError::Rank {
            rank: c.rank,
            ranks,
        });
    };
    let mut seen = BTreeSet::new();
    for (b, address) in c.peers.iter().enumerate() {
        if !seen.insert(address) {
            let a = c.peers.iter().position(|x| x == address).unwrap_or(b);
            return Err(CommError::Twice {
                a,
                b,
                address: *address,
            });
        }
    }
    if *me.ip() != ip {
        return Err(CommError::NotMine {
            rank: c.rank,
            address: *me,
            ip,
        });
    }
    Ok(())
}

impl Collectives {
    /// Makes a communicator.
    pub(crate) fn create(
        &mut self,
        io: &mut Io<'_>,
        ip: Ipv4Addr,
        c: &CommunicatorConfig,
    ) -> Result<CommId, CommError> {
        check(c, ip)?;
        let mut c = c.clone();
        // For a few of many, wires that lead to none of them would carry copies for nothing.
        let reached = io.net.reached_by_tree();
        c.settings.trees &= reached > 0 && 2 * c.peers.len() > reached;
        let c = &c;
        if self.table.slot_of(c.ctx).is_some() {
            return Err(CommError::CtxInUse { ctx: c.ctx });
        }
        self.register_board(io)?;
        let full = || CommError::TooMany { limit: MAX_COMMS };
        let slot = self.table.next_slot().ok_or_else(full)?;
        let needed = c.settings.scratch_bytes;
        let nic_memory = &mut io.dma.nic_memory;
        let given = self.given.as_mut();
        let short = CommError::Memory {
            needed,
            free: nic_memory.len() - nic_memory.used(),
            nic_memory: nic_memory.len(),
        };
        let scratch = Scratch::take(needed, given, nic_memory).ok_or(short)?;
        let direct = self.direct.open(io, c);
        let area = direct.as_ref().map_or(0, DirectComm::area);
        let has_ring = |card: &SharedCard| card.lock().has_ring();
        let has_ring = io.dma.card.as_ref().is_some_and(has_ring);
        let offers_card = c.settings.card && scratch.is_on_nic() && has_ring;
        let joining = Joining {
            hash: agreement(c),
            area,
            card: offers_card,
            by: Owner::communicator(slot),
            known: Known::of(c.rank, offers_card, values(c)),
        };
        let opened = self
            .messages
            .groups
            .open(io, c.ctx, c.rank, &c.peers, &c.settings, joining);
        if let Err(e) = opened {
            if let Some(d) = direct {
                d.path.free(&mut io.dma.nic_memory, &mut self.direct.areas);
            }
            scratch.free(self.given.as_mut(), &mut io.dma.nic_memory);
            return Err(e);
        }
        let comm = Comm {
            ctx: c.ctx,
            rank: c.rank,
            peers: c.peers.clone(),
            settings: c.settings.clone(),
            scratch,
            arena: scratch.space(),
            numbers: Numbers::default(),
            queue: VecDeque::new(),
            active: Vec::new(),
            history: VecDeque::new(),
            dispute: None,
            life: Life {
                offers_card,
                ..Life::new(c.peers.len())
            },
            counters: CollectiveCounters::default(),
            chosen: Vec::new(),
            kept: Kept::default(),
            direct,
        };
        let id = self.table.add(comm).ok_or_else(full)?;
        tracing::info!(
            ctx = c.ctx,
            rank = c.rank,
            ranks = c.peers.len(),
            "communicator made"
        );
        Ok(id)
    }

    /// Registers NIC memory with the MMU, in a protection domain of the NIC's own: no queue reaches
    /// it.
    fn register_board(&mut self, io: &mut Io<'_>) -> Result<(), CommError> {
        if io.dma.nic_memory.is_registered() {
            return Ok(());
        }
        let why = |e: &dyn std::fmt::Display| CommError::Register { why: e.to_string() };
        let pd = io.mmu.alloc_pd().map_err(|e| why(&e))?;
        let len = io.dma.nic_memory.len();
        let region = io
            .mmu
            .register_flat(pd, GpuVa(NIC_VA), len, Access::LOCAL, NIC_BUS)
            .map_err(|e| why(&e))?;
        io.dma.nic_memory.set_region(region.lkey.0);
        self.pd = Some(pd);
        Ok(())
    }

    fn known(&self, id: CommId) -> Result<u32, CommError> {
        self.table.find(id.0).ok_or(CommError::Unknown { id })
    }

    /// How far a communicator is.
    pub(crate) fn status(&self, id: CommId) -> Result<CommStatus, CommError> {
        let slot = self.known(id)?;
        let Some(c) = self.table.comm(slot) else {
            return Err(CommError::Unknown { id });
        };
        Ok(match c.life.end {
            Some(e) => CommStatus::Aborted {
                rank: e.rank,
                status: e.status,
            },
            None if c.life.ready => CommStatus::Ready,
            None => {
                let missing: Vec<u32> = self.messages.groups.missing(c.ctx).collect();
                match missing.is_empty() {
                    true => CommStatus::Ready,
                    false => CommStatus::Connecting { missing },
                }
            }
        })
    }

    /// Operations that have not ended.
    pub(crate) fn under_way(&self, id: CommId) -> Result<usize, CommError> {
        let slot = self.known(id)?;
        Ok(self.all_under_way(slot))
    }

    /// How far the oldest operation is that runs a program over messages.
    pub(crate) fn program_progress(
        &self,
        id: CommId,
    ) -> Result<Option<ProgramProgress>, CommError> {
        let slot = self.known(id)?;
        let active = self.table.comm(slot).map_or(&[][..], |c| &c.active);
        let mut all = active.iter().filter_map(|id| self.table.ops.get(*id));
        Ok(all.find_map(|a| match &a.state {
            State::Running(op) => Some(op.progress()),
            _ => None,
        }))
    }

    /// Ends a communicator on all ranks.
    pub(crate) fn abort(&mut self, io: &mut Io<'_>, id: CommId) -> Result<(), CommError> {
        let slot = self.known(id)?;
        let rank = self.table.shape_of(slot).0;
        self.end(io, slot, rank, Status::CommAborted);
        Ok(())
    }

    /// Frees a communicator: its id is refused from now on. Operations that are under way end with
    /// `COMM_ABORTED`, on all ranks.
    pub(crate) fn free(&mut self, io: &mut Io<'_>, id: CommId) -> Result<(), CommError> {
        let slot = self.known(id)?;
        let idle = self.all_under_way(slot) == 0;
        let Some(c) = self.table.free_id(slot) else {
            return Err(CommError::Unknown { id });
        };
        let (ctx, rank) = (c.ctx, c.rank);
        if c.life.end.is_none() && idle {
            // An orderly end: the other ranks may continue with what they have received.
            let groups = &mut self.messages.groups;
            groups.tell(ctx, Body::Leave);
            groups.messages.retire(ctx);
            let until = io.now;
            self.table.lives.ending += 1;
            self.table.lives.unsettled = true;
            if let Some(c) = self.table.comm_mut(slot) {
                c.life.end = Some(super::End {
                    rank,
                    status: Status::CommAborted,
                    until: until.plus(super::GRACE),
                    reaped: false,
                });
            }
        } else {
            self.end(io, slot, rank, Status::CommAborted);
        }
        Ok(())
    }

    /// A communicator's status, for users and tools. `name` gives a transport's name.
    pub(crate) fn info(
        &self,
        id: CommId,
        name: &dyn Fn(usize) -> &'static str,
    ) -> Result<CommInfo, CommError> {
        let status = self.status(id)?;
        let slot = self.known(id)?;
        let Some(c) = self.table.comm(slot) else {
            return Err(CommError::Unknown { id });
        };
        let mut counters = c.counters;
        let mut nic_memory = match c.scratch.is_on_nic() {
            true => c.scratch.len(),
            false => 0,
        };
        if let Some(d) = &c.direct {
            let stats = d.path.stats();
            nic_memory += d.path.nic_memory();
            counters.steps += stats.steps;
            counters.reduced += stats.reduced;
            counters.direct_eager = stats.eager;
            counters.direct = stats.push + stats.pull + stats.bounced;
            counters.direct_bounced = stats.bounced;
            counters.direct_refused = stats.fallback;
        }
        let messages = &self.messages.groups.messages;
        if let Some((counts, buffers)) = messages.counts(c.ctx) {
            nic_memory += buffers;
            counters.eager = counts.eager;
            counters.rendezvous = counts.rendezvous;
            counters.written = counts.written;
            counters.copied = counts.copied;
            counters.without_credit = counts.without_credit;
            counters.unexpected = counts.unexpected;
        }
        let peers = c.peers.iter().enumerate().map(|(r, address)| {
            let route = messages.route(c.ctx, r as u32);
            PeerInfo {
                rank: r as u32,
                address: *address,
                transport: route.map(|(t, ..)| name(t)),
                terms: messages.terms(c.ctx, r as u32),
                why: match route {
                    Some((.., why)) => why,
                    None if r as u32 == c.rank => "this rank",
                    None => "not connected",
                },
            }
        });
        let chosen = c.chosen.iter().filter(|(_, n)| *n > 0);
        let mut chosen: Vec<_> = chosen.map(|((k, a), n)| (*k, *a, *n)).collect();
        chosen.sort_by_key(|(k, a, _)| (k.code(), a.code()));
        Ok(CommInfo {
            ctx: c.ctx,
            rank: c.rank,
            ranks: c.ranks(),
            status,
            nic_memory,
            peers: peers.collect(),
            chosen,
            counters,
            why: c.life.why.clone(),
        })
    }
}
