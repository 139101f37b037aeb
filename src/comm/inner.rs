//! [`Inner`]: what a communicator and its requests share, and how it is made.
#![allow(clippy::disallowed_methods)] // Waits for other ranks, with deadlines on the host's clock.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ringbell_job::{BootstrapError, Member};
use ringbell_nic_abi::Status;
use ringbell_nic_core::collective::{CommStatus, CommunicatorConfig, HostRanks};
use ringbell_nic_core::descriptors::{self, Shortages};
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::HostQueue;

use super::block_queues::BlockQueues;
use super::card::{self, Peer};
use super::results::Results;
use super::stream_queue::StreamQueues;
use super::{CollectiveError, CommOptions};
use crate::Nic;

/// Additional wait for the ranks after the time-out of making a communicator.
const GRACE: Duration = Duration::from_secs(2);

/// How often a rank that waits to be connected checks that the others' processes live.
const ENDED_EVERY: Duration = Duration::from_millis(500);

/// State that a communicator and its requests share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) nic: Nic,
    pub(super) queue: HostQueue,
    pub(super) rank: u32,
    pub(super) id: CommId,
    pub(super) ctx: u64,
    /// Rank in the job, by rank of the communicator.
    pub(super) job_ranks: Vec<u32>,
    pub(super) peers: Vec<Peer>,
    pub(super) member: Arc<Member>,
    pub(super) options: CommOptions,
    /// Number of calls of [`Communicator::shrink`](crate::Communicator::shrink), failed ones
    /// included.
    pub(super) shrinks: AtomicU64,
    /// Tickets whose requests were dropped.
    orphans: Mutex<Vec<u32>>,
    /// Before the NIC, because streams post on these queues.
    pub(super) streams: StreamQueues,
    pub(super) results: Results,
    /// For blocks of kernels.
    pub(super) blocks: Option<BlockQueues>,
}

fn host_ranks(options: &CommOptions, peers: &[Peer]) -> HostRanks {
    let set = &options.settings.host_ranks;
    match *set == HostRanks::default() {
        true => card::host_ranks(peers),
        false => set.clone(),
    }
}

impl Inner {
    /// Makes the communicator in the NIC, with a queue of its own, and waits until its ranks are
    /// connected.
    pub(super) fn make(
        nic: &Nic,
        member: Arc<Member>,
        options: &CommOptions,
        ctx: u64,
        job_ranks: Vec<u32>,
        peers: Vec<Peer>,
        shortages: Shortages,
    ) -> Result<Arc<Inner>, CollectiveError> {
        let me = job_ranks.iter().position(|r| *r == member.rank());
        let rank = me.unwrap_or(usize::MAX) as u32;
        let mut settings = options.settings.clone();
        settings.connect_timeout = options.init_timeout;
        settings.host_ranks = host_ranks(options, &peers);
        let queue = nic.create_queue()?;
        let blocks = BlockQueues::new(nic, options)?;
        let id = nic.backend().create_communicator(&CommunicatorConfig {
            ctx,
            rank,
            peers: peers.iter().map(|p| p.address).collect(),
            settings,
        })?;
        let inner = Inner {
            nic: nic.clone(),
            queue,
            rank,
            id,
            ctx,
            job_ranks,
            peers,
            member,
            options: options.clone(),
            shrinks: AtomicU64::new(0),
            orphans: Mutex::new(Vec::new()),
            streams: StreamQueues::default(),
            results: Results::default(),
            blocks,
        };
        inner.connect(shortages)?;
        Ok(Arc::new(inner))
    }

    /// Which ranks share a host, as set or as the ranks' cards say.
    pub(super) fn host_ranks(&self) -> HostRanks {
        host_ranks(&self.options, &self.peers)
    }

    /// Steps the NIC until all ranks have answered; `shortages` is the count from before.
    fn connect(&self, shortages: Shortages) -> Result<(), CollectiveError> {
        let deadline = Instant::now() + self.options.init_timeout + GRACE;
        let backend = self.nic.backend();
        let mut look = Instant::now() + ENDED_EVERY;
        loop {
            let missing = match backend.communicator_status(self.id)? {
                CommStatus::Ready => {
                    self.tell_transports();
                    return Ok(());
                }
                // Any NIC of this process may have run out; the ranks that wait for it get no
                // notice.
                CommStatus::Connecting { .. } if descriptors::shortages() != shortages => {
                    return Err(self.no_room(shortages));
                }
                CommStatus::Connecting { missing } if Instant::now() < deadline => {
                    if Instant::now() >= look {
                        self.check_processes(&missing)?;
                        look = Instant::now() + ENDED_EVERY;
                    }
                    if !backend.step() {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    continue;
                }
                CommStatus::Connecting { missing } => missing,
                CommStatus::Aborted { rank, .. } => vec![rank],
            };
            let peers = &self.peers;
            let known = |r: u32| (r, peers.get(r as usize).map(|p| *p.address.ip()));
            let ranks = missing.into_iter().map(known).collect();
            return Err(CollectiveError::NotConnected { ranks });
        }
    }

    /// Fails when the process of a missing rank has ended; otherwise only rounds of the bootstrap
    /// would report it.
    fn check_processes(&self, missing: &[u32]) -> Result<(), CollectiveError> {
        let job_rank = |r: &u32| self.job_ranks.get(*r as usize).copied();
        let waited_for: Vec<u32> = missing.iter().filter_map(job_rank).collect();
        let ranks = self.member.ended_here(&waited_for);
        if ranks.is_empty() {
            return Ok(());
        }
        let notes = String::new();
        Err(BootstrapError::Gone { ranks, notes }.into())
    }

    /// Which transport reaches each rank, for `RINGBELL_DEBUG`.
    fn tell_transports(&self) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let info = self.nic.backend().communicator_info(self.id);
        let peers = info.map_or_else(|_| Vec::new(), |i| i.peers);
        for p in peers.iter().filter(|p| p.rank != self.rank) {
            let transport = p.transport.unwrap_or("none");
            tracing::info!(
                rank = self.rank,
                peer = p.rank,
                transport,
                why = p.why,
                "connected"
            );
        }
    }

    /// The resource that has run out since `before`.
    fn no_room(&self, before: Shortages) -> CollectiveError {
        if descriptors::shortages().descriptors == before.descriptors {
            return CollectiveError::NoRoomToMap {
                limit: descriptors::address_limit(),
            };
        }
        let (ranks, limit) = (self.size(), descriptors::limit().unwrap_or(u64::MAX));
        CollectiveError::Descriptors {
            // Counting needs a descriptor as well.
            open: descriptors::open().unwrap_or(limit),
            limit,
            ranks,
            needed: descriptors::needed_in_one_process(ranks),
        }
    }

    /// Ranks.
    pub(super) fn size(&self) -> u32 {
        self.job_ranks.len() as u32
    }

    pub(super) fn sorted_job_ranks(&self) -> Vec<u32> {
        let mut ranks = self.job_ranks.clone();
        ranks.sort_unstable();
        ranks
    }

    /// Ends all operations, on every rank.
    pub(super) fn abort(&self) {
        if let Err(error) = self.nic.backend().abort_communicator(self.id) {
            tracing::debug!(%error, "a communicator was gone before it was aborted");
        }
    }

    /// The NIC's explanation of an operation that ended with this status.
    pub(super) fn why(&self, status: Status, detail: u64) -> Option<String> {
        match status {
            Status::PeerFailed => {
                let peer = self.peers.get(usize::try_from(detail).ok()?)?;
                self.nic.backend().no_way(*peer.address.ip())
            }
            Status::Mismatch | Status::NoResources => {
                let info = self.nic.backend().communicator_info(self.id);
                info.ok().and_then(|i| i.why)
            }
            _ => None,
        }
    }

    pub(super) fn orphan(&self, ticket: u32) {
        self.orphans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(ticket);
    }

    /// Gives back the slots of orphans that have ended.
    pub(super) fn collect_orphans(&self) {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        orphans.retain(|t| self.queue.poll(*t).is_none());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.nic.backend().free_communicator(self.id) {
            tracing::debug!(%error, "a communicator was gone before it was freed");
        }
    }
}
