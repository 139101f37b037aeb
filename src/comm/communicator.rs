//! [`Communicator`]: a group of ranks that run collectives together.
#![allow(clippy::disallowed_methods)] // Waits for other ranks, with deadlines on the host's clock.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell_cuda_kernels::collective::CommHandle;
use ringbell_cuda_kernels::{KernelArg, LaunchError, Posted, Stream};
#[cfg(doc)]
use ringbell_job::BootstrapError;
use ringbell_job::{Job, Member, UniqueId};
use ringbell_nic_abi::{Algorithm, CollectiveKind, GpuVa};
use ringbell_nic_core::collective::CommInfo;
use ringbell_nic_core::descriptors;
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::{threads, HostQueue};
use ringbell_onc_engines::program::{Limits, UserProgram};

use super::agreement::{self, Agreed};
use super::block_queues::BlockQueues;
use super::card::{self, Card};
use super::inner::Inner;
use super::operation::can_default_to;
use super::options::MAX_TIMEOUT;
use super::results::Results;
use super::{membership, CollectiveError, CommOptions, Done, Element, Operation, Request};
use crate::kernel::{Kept, KernelParam};
use crate::{Nic, Span};

/// Additional wait for the NIC's completion after the operation's time-out.
const GRACE: Duration = Duration::from_secs(2);

/// A group of ranks that run collectives together. This is a handle: clones are the same
/// communicator, and dropping the last one frees it in the NIC. A [`Request`] counts as one, so
/// what is left then was dropped before it ended: it is aborted, on all ranks. The NIC has the
/// communicator's queue, memory and numbers back when those operations have retired, within a
/// second.
///
/// Every rank makes the same calls in the same order. The NIC does the work: a call posts one
/// descriptor and waits.
///
/// ```
/// use ringbell::{CommOptions, Communicator, Nic, ReduceOp};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = std::env::temp_dir().join(format!("rb-doc-comm-{}", std::process::id()));
/// // Two ranks as threads of one process, a NIC each.
/// let nics: Vec<Nic> = ["10.9.8.1/24", "10.9.8.2/24"]
///     .iter()
///     .map(|ip| {
///         let builder = Nic::builder().ip(*ip);
///         # let builder = builder.directory(&dir).gpu_memory(16 << 20);
///         builder.open()
///     })
///     .collect::<Result<_, _>>()?;
/// let comms = Communicator::init_all(&nics, &CommOptions::default())?;
/// std::thread::scope(|scope| {
///     for comm in &comms {
///         scope.spawn(move || {
///             let x = comm.nic().alloc::<f32>(1).expect("memory");
///             x.write(0, &[comm.rank() as f32 + 1.5]).expect("fits");
///             comm.all_reduce::<f32>(&x, &x, 1, ReduceOp::Sum).expect("both ranks came");
///             assert_eq!(x.to_vec().expect("a copy"), [1.5 + 2.5]);
///         });
///     }
/// });
/// # drop((comms, nics)); let _ = std::fs::remove_dir_all(dir);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Communicator {
    pub(super) inner: Arc<Inner>,
}

impl Communicator {
    /// Makes the communicator of a whole job: rank `rank` of `ranks`, found by the job's id. Every
    /// rank calls it; it returns when all have come.
    ///
    /// # Errors
    /// [`CollectiveError`]: ranks that did not come are named, as are those that cannot be reached.
    pub fn init(
        nic: &Nic,
        id: &UniqueId,
        ranks: u32,
        rank: u32,
        options: &CommOptions,
    ) -> Result<Communicator, CollectiveError> {
        let member = Member::join(id, rank, ranks, options.init_timeout)?;
        Communicator::of_job(nic, member, options)
    }

    /// Makes the communicator of the job that this process was started in.
    ///
    /// # Errors
    /// As [`Communicator::init`].
    pub fn from_job(
        nic: &Nic,
        job: &Job,
        options: &CommOptions,
    ) -> Result<Communicator, CollectiveError> {
        let member = job.join(options.init_timeout)?;
        Communicator::of_job(nic, member, options)
    }

    /// Makes a communicator of NICs of one process, rank by rank: one for each, for a thread of its
    /// own.
    ///
    /// # Errors
    /// As [`Communicator::init`].
    pub fn init_all(
        nics: &[Nic],
        options: &CommOptions,
    ) -> Result<Vec<Communicator>, CollectiveError> {
        let id = UniqueId::create()?;
        let ranks = nics.len() as u32;
        let init = |(nic, rank)| move || Communicator::init(nic, &id, ranks, rank, options);
        let made = threads::all_or_none(nics.iter().zip(0..).map(init))?;
        made.into_iter().collect()
    }

    fn of_job(
        nic: &Nic,
        member: Member,
        options: &CommOptions,
    ) -> Result<Communicator, CollectiveError> {
        // Before the ranks meet, so that no communicator of this process starts its count after the
        // first shortage.
        let shortages = descriptors::shortages();
        let all: Vec<u32> = (0..member.ranks()).collect();
        let own = Card::of(nic, options.port, member.standby_address());
        let part = [&own.encode()[..], &Agreed::of(&options.settings).encode()].concat();
        let round = member.all_gather(&all, 0, &part, options.init_timeout)?;
        let (cards, settings) = card::decode_all(&round)?;
        agreement::check(&settings)?;
        card::check_paths(&cards, member.rank())?;
        member.set_successors(card::successors(&cards));
        let peers = card::peers(&cards, nic);
        let member = Arc::new(member);
        let inner = Inner::make(nic, member, options, round.id, all, peers, shortages)?;
        Ok(Communicator { inner })
    }

    /// Joins a running job as a new rank: waits until the ranks of one of its communicators call
    /// [`grow`](Communicator::grow), and returns the larger one. `nic` is opened for the rank by
    /// [`NicBuilder::member`](crate::NicBuilder::member). The options must be those of the other
    /// ranks; `init_timeout` is the longest wait for them.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use ringbell::{job::Member, CommOptions, Communicator, Nic};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let id = std::env::var("RINGBELL_ID")?.parse()?; // as the other ranks have it, or as `Communicator::job_id` says
    /// let member = Member::join_running(&id, Duration::from_secs(10))?;
    /// let nic = Nic::builder().member(&member).open()?;
    /// let comm = Communicator::join(&nic, member, &CommOptions::default())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`BootstrapError::Unwanted`] when no communicator of the job has grown in time; else as
    /// [`Communicator::grow`].
    pub fn join(
        nic: &Nic,
        member: Member,
        options: &CommOptions,
    ) -> Result<Communicator, CollectiveError> {
        let inner = membership::join(nic, member, options)?;
        Ok(Communicator { inner })
    }

    /// Makes a communicator of `ranks` ranks: these, in their order, and new ones, which
    /// [`join`](Communicator::join) the job as processes of their own, in the order of their
    /// numbers. Every rank calls it with the same number, and waits for the new ranks for at most
    /// `patience`. This communicator, and operations under way, go on in any case.
    ///
    /// All ranks get the new communicator, or all get an error, unless the bootstrap is lost.
    ///
    /// # Errors
    /// [`BootstrapError::NotJoined`] when too few new ranks have come, [`BootstrapError::Missing`]
    /// and [`BootstrapError::Gone`] with the ranks of this one that did not call it or have ended;
    /// [`CollectiveError::NotConnected`] with those that cannot be reached.
    pub fn grow(&self, ranks: u32, patience: Duration) -> Result<Communicator, CollectiveError> {
        let inner = membership::grow(&self.inner, ranks, patience)?;
        Ok(Communicator { inner })
    }

    /// Makes one communicator of this one and another of the same job, whose ranks in the job are
    /// `others`. The ranks of both call it. The communicator that has the job's lowest rank comes
    /// first; each keeps its order, and goes on beside the new one.
    ///
    /// # Errors
    /// As [`Communicator::grow`]; at most for the time-out of making one.
    pub fn merge(&self, others: &[u32]) -> Result<Communicator, CollectiveError> {
        let inner = membership::merge(&self.inner, others)?;
        Ok(Communicator { inner })
    }

    /// Divides the communicator: ranks of one colour form a new one, ordered by key, then by their
    /// rank here. Every rank calls it; one without a colour gets none.
    ///
    /// # Errors
    /// As [`Communicator::init`].
    pub fn split(
        &self,
        colour: Option<u32>,
        key: i32,
    ) -> Result<Option<Communicator>, CollectiveError> {
        let inner = membership::split(&self.inner, colour, key)?;
        Ok(inner.map(|inner| Communicator { inner }))
    }

    /// Makes a communicator of these ranks, in this order, own one included. They alone call it,
    /// with one tag, which no other call of the same ranks has meanwhile (MPI's
    /// `MPI_Comm_create_group`).
    ///
    /// # Errors
    /// As [`Communicator::init`].
    pub fn create_group(&self, ranks: &[u32], tag: u64) -> Result<Communicator, CollectiveError> {
        let inner = membership::create_group(&self.inner, ranks, tag)?;
        Ok(Communicator { inner })
    }

    /// Continues without ranks that have ended: aborts all operations, finds out together with the
    /// others who is left, and makes a new communicator of them, in their order here. Ranks that
    /// are alive but do not call it within `patience` are left out. This communicator is of no use
    /// then.
    ///
    /// Any rank may have ended: after the one that served the bootstrap, the lowest rank that is
    /// left serves from then on. A rank that was only stopped, and resumes after the others have
    /// given it up, may not notice: end it.
    ///
    /// # Errors
    /// [`BootstrapError::Excluded`] when the others have gone on without this rank.
    /// [`CollectiveError::NotConnected`] when another rank has ended meanwhile: call it again.
    pub fn shrink(&self, patience: Duration) -> Result<Communicator, CollectiveError> {
        let inner = membership::shrink(&self.inner, patience)?;
        Ok(Communicator { inner })
    }

    /// The job's id at the address where it is served now: a process that has it may
    /// [`join`](Communicator::join). Ask for it shortly before: where the process that served it
    /// has ended, another rank's takes over and the address is a new one.
    ///
    /// # Errors
    /// [`BootstrapError::Lost`] when no rank that is left serves it.
    pub fn job_id(&self) -> Result<UniqueId, CollectiveError> {
        Ok(self.inner.member.id_now()?)
    }

    /// The NIC's number of it.
    pub(super) fn id(&self) -> CommId {
        self.inner.id
    }

    /// Gives every rank a part of each, by rank, over the bootstrap. Every rank calls it.
    pub(super) fn exchange(&self, tag: u64, part: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let i = &*self.inner;
        let tag = i.ctx ^ tag;
        let all = i.sorted_job_ranks();
        let round = i
            .member
            .all_gather(&all, tag, part, i.options.init_timeout)?;
        let of = |job_rank: &u32| {
            let part = round.parts.iter().find(|(r, _)| r == job_rank);
            part.map(|(_, part)| part.to_vec()).unwrap_or_default()
        };
        Ok(i.job_ranks.iter().map(of).collect())
    }

    /// Own rank.
    pub fn rank(&self) -> u32 {
        self.inner.rank
    }

    /// Ranks.
    pub fn size(&self) -> u32 {
        self.inner.size()
    }

    /// Rank in the job of each rank.
    pub fn job_ranks(&self) -> &[u32] {
        &self.inner.job_ranks
    }

    /// IP addresses of the ranks' NICs.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        self.inner.peers.iter().map(|p| *p.address.ip()).collect()
    }

    /// Its NIC.
    pub fn nic(&self) -> &Nic {
        &self.inner.nic
    }

    /// The settings it was made with.
    pub fn options(&self) -> &CommOptions {
        &self.inner.options
    }

    /// Its state: transports, algorithms chosen, NIC memory, counters.
    ///
    /// # Errors
    /// [`CollectiveError::Create`] when the NIC no longer has it.
    pub fn info(&self) -> Result<CommInfo, CollectiveError> {
        Ok(self.inner.nic.backend().communicator_info(self.inner.id)?)
    }

    /// Verifies a user's program, in the form that `ringbell explain --program` reads, and loads it
    /// into the NIC. From then on it runs for operations of its collective and root that ask for
    /// `Algorithm::User` among as many ranks. Every rank must load the same program.
    ///
    /// # Errors
    /// [`CollectiveError::Program`] names the line that cannot be read, or the rank and step that
    /// are wrong; nothing was changed.
    pub fn load_program(&self, text: &str) -> Result<(), CollectiveError> {
        let user = UserProgram::load(text, &Limits::default())?;
        if user.ranks() != self.size() {
            return Err(CollectiveError::ProgramRanks {
                has: user.ranks(),
                wanted: self.size(),
            });
        }
        let programs = user.programs().to_vec();
        Ok(self.inner.nic.backend().load_program(programs)?)
    }

    /// Handle for kernels that run collectives: pass it as an argument of type `rb_comm`. Valid
    /// while this communicator lives.
    pub fn handle(&self) -> CommHandle {
        let blocks = self.inner.blocks.as_ref();
        let (block_queues, block_queue_count) = blocks.map_or((GpuVa(0), 0), BlockQueues::place);
        CommHandle {
            queue: self.inner.options.handle_of(&self.inner.queue),
            comm: self.inner.id.session().0,
            rank: self.rank(),
            size: self.size(),
            algo: self.inner.options.algo,
            algo_kinds: kinds_with(self.inner.options.algo),
            wire: self.inner.options.wire,
            block_queues,
            block_queue_count,
        }
    }

    /// Ends all operations, on every rank, with COMM_ABORTED. Then only freeing it (drop it) or
    /// [`shrink`](Communicator::shrink) is left.
    pub fn abort(&self) {
        self.inner.abort();
    }

    /// Waits until none of its operations is outstanding: those that were posted here, by kernels
    /// and by streams, and those whose requests were dropped. At most for its time-out; an aborted
    /// communicator has none.
    ///
    /// # Errors
    /// [`CollectiveError::Busy`] when operations are left.
    pub fn settle(&self) -> Result<(), CollectiveError> {
        let i = &*self.inner;
        let backend = i.nic.backend();
        let deadline = Instant::now() + i.options.timeout.min(MAX_TIMEOUT) + GRACE;
        loop {
            let under_way = backend.communicator_under_way(i.id, i.queue.id())?;
            if under_way == 0 {
                i.collect_orphans();
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(CollectiveError::Busy { under_way });
            }
            if !backend.step() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Ends it together with the other ranks: waits over the bootstrap until all that are left have
    /// called it too, then frees it. On one host a rank may also just end: slower ranks finish with
    /// the data it has sent and stored. Over a network call this first, because a NIC that is gone
    /// retransmits no lost packet.
    ///
    /// # Errors
    /// [`BootstrapError::Lost`] when the bootstrap is gone; ranks that do not
    /// come within `patience` are not waited for longer.
    pub fn finish(self, patience: Duration) -> Result<(), CollectiveError> {
        let i = &*self.inner;
        // Not the tag of a shrink.
        let tag = i.ctx ^ (1 << 63);
        i.member
            .survivors(&i.sorted_job_ranks(), tag, &[], patience)?;
        Ok(())
    }

    /// Frees it now, not when the last clone is dropped, and returns whether this was the last one.
    /// Outstanding operations then end with ABORTED; [`settle`](Communicator::settle) waits for
    /// them.
    pub fn free(self) -> bool {
        Arc::into_inner(self.inner).is_some()
    }

    /// Starts an operation. It may overlap with earlier ones: one that uses their buffers names
    /// them by [`Operation::after`].
    ///
    /// # Errors
    /// [`CollectiveError::Misuse`] when buffers are too small; [`CollectiveError::Wait`] when the
    /// queue stays full.
    pub fn post(&self, operation: &Operation) -> Result<Request, CollectiveError> {
        let i = &self.inner;
        operation.check(i.rank, self.size())?;
        operation.check_arguments(self.size())?;
        operation.check_queue(i.queue.id().0)?;
        let defaults = (i.options.algo, i.options.wire, i.options.timeout);
        if i.options.settings.deterministic {
            operation.check_strict(defaults)?;
        }
        operation.check_hosts(defaults, self.size(), || i.host_ranks())?;
        let timeout = operation.timeout.unwrap_or(i.options.timeout);
        if timeout > MAX_TIMEOUT {
            return Err(operation.too_patient(timeout));
        }
        let make = |ticket| operation.descriptor(i.id.session(), ticket, defaults);
        let patience = timeout + GRACE;
        let ticket = match i.queue.try_post_with(make) {
            Some(ticket) => ticket,
            None => self.post_when_free(make, patience, operation)?,
        };
        Ok(Request::new(
            i.clone(),
            operation.spec.kind,
            ticket,
            patience,
        ))
    }

    pub(super) fn queue(&self) -> &HostQueue {
        &self.inner.queue
    }

    pub(super) fn results(&self) -> &Results {
        &self.inner.results
    }

    /// Lets a stream post an operation by itself; `None` when a kernel must do it.
    pub(super) fn post_by_stream(
        &self,
        operation: &Operation,
        stream: &Stream,
    ) -> Option<Result<Posted, LaunchError>> {
        let i = &self.inner;
        let defaults = (i.options.algo, i.options.wire, i.options.timeout);
        // The stream itself keeps the order, so the operation names no predecessor.
        let d = operation.in_order().descriptor(i.id.session(), 0, defaults);
        i.streams.post(&i.nic, stream, &d)
    }

    #[cold]
    fn post_when_free(
        &self,
        make: impl Fn(u32) -> ringbell_nic_abi::Descriptor,
        patience: Duration,
        operation: &Operation,
    ) -> Result<u32, CollectiveError> {
        let i = &self.inner;
        let deadline = Instant::now() + patience;
        loop {
            i.collect_orphans();
            if let Some(ticket) = i.queue.try_post_with(&make) {
                return Ok(ticket);
            }
            if Instant::now() >= deadline {
                return Err(CollectiveError::Wait {
                    kind: operation.spec.kind,
                    source: i.queue.full(),
                });
            }
            if !i.nic.backend().step() {
                std::thread::yield_now();
            }
        }
    }

    /// Runs an operation to its end.
    ///
    /// # Errors
    /// As [`Communicator::post`] and [`Request::wait`].
    pub fn run(&self, operation: &Operation) -> Result<Done, CollectiveError> {
        self.post(operation)?.wait()
    }

    /// Posts several operations together, on this communicator or others, and waits for all of
    /// them. As between ncclGroupStart and ncclGroupEnd, sends and receives among them cannot block
    /// each other.
    ///
    /// # Errors
    /// The first failure; the others have ended too then.
    pub fn group(operations: &[(&Communicator, Operation)]) -> Result<Vec<Done>, CollectiveError> {
        let mut first = None;
        let mut requests = Vec::with_capacity(operations.len());
        for (comm, operation) in operations {
            match comm.post(operation) {
                Ok(request) => requests.push(request),
                Err(e) => {
                    first.get_or_insert(e);
                    break;
                }
            }
        }
        let mut done = Vec::with_capacity(requests.len());
        for request in requests {
            match request.wait() {
                Ok(d) => done.push(d),
                Err(e) => drop(first.get_or_insert(e)),
            }
        }
        first.map_or(Ok(done), Err)
    }
}

/// The collectives that take this algorithm by default, as [`CommHandle::algo_kinds`].
fn kinds_with(algo: Algorithm) -> u16 {
    let kinds = CollectiveKind::ALL.iter().filter(|k| k.code() < 16);
    let kinds = kinds.filter(|k| can_default_to(algo, **k));
    kinds.fold(0, |mask, k| mask | 1 << k.code())
}

/// Blocking calls without a reduction or a block for each rank; `calls.rs` has the others.
impl Communicator {
    /// Returns when every rank has come.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn barrier(&self) -> Result<(), CollectiveError> {
        self.run(&Operation::barrier()).map(drop)
    }

    /// `count` elements to rank `to`, with a tag.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn send<T: Element>(
        &self,
        src: impl Into<Span>,
        count: u64,
        to: u32,
        tag: u32,
    ) -> Result<(), CollectiveError> {
        self.run(&Operation::send::<T>(src, count, to, tag))
            .map(drop)
    }

    /// At most `count` elements from rank `from` (`None`: any) with a tag (`None`: any);
    /// [`Done::bytes`] is the number of bytes received.
    ///
    /// # Errors
    /// As [`Communicator::run`].
    pub fn recv<T: Element>(
        &self,
        dst: impl Into<Span>,
        count: u64,
        from: Option<u32>,
        tag: Option<u32>,
    ) -> Result<Done, CollectiveError> {
        self.run(&Operation::recv::<T>(dst, count, from, tag))
    }
}

/// `rb_comm`.
impl KernelParam for &Communicator {
    fn value(&self) -> KernelArg {
        self.handle().into()
    }

    fn kept(&self) -> Option<Kept> {
        Some(Box::new((*self).clone()))
    }
}
