//! Integration of the direct path with communicators: eligibility, start of operations, and
//! their outcomes.

use ringbell_gtlb::{Fault, PAGE_BYTES};
use ringbell_nic_abi::{Algorithm, GpuVa, Status, WireType};

use super::communicator::{count_choice, Comm, DirectComm, AREA_UNIT};
use super::direct::{Access, AreaPool, Call, Direct, Outcome, Pages, Peers, Prepared, Stepped};
use super::group::Groups;
use super::table::{Active, News, State, Table};
use super::taps::{self, Tap};
use super::{After, CommunicatorConfig, Reach, Side, Task};
use crate::dma::DmaAccess;
use crate::link::Io;
use crate::memory::nic_memory::{HOST_BUS, NIC_BUS};
use crate::transport::{PeerWindow, Transport};
use crate::types::ConnId;

/// Polls of a path that is aborted together with its NIC before its operations are given up.
const LAST_LOOKS: u32 = 1 << 16;

struct Routes<'a> {
    transports: &'a [Box<dyn Transport>],
    routes: &'a [Option<(usize, ConnId)>],
}

impl Peers for Routes<'_> {
    #[inline]
    fn window(&self, rank: u32) -> Option<&dyn PeerWindow> {
        let (t, conn) = (*self.routes.get(rank as usize)?)?;
        self.transports[t].peer_window(conn)
    }
}

/// Why there are no pages.
enum NoPages {
    Fault(Fault),
    /// Peers are still mapping them.
    Later,
}

impl From<Fault> for NoPages {
    fn from(fault: Fault) -> NoPages {
        NoPages::Fault(fault)
    }
}

/// Whether every peer has mapped these bytes of host memory; `None`: some have not answered.
fn all_map_host(
    io: &Io<'_>,
    routes: &[Option<(usize, ConnId)>],
    bus: u64,
    len: u64,
) -> Option<bool> {
    let mut all = Some(true);
    for (t, conn) in routes.iter().flatten() {
        let window = io.transports[*t].peer_window(*conn);
        match window.map_or(Some(false), |w| w.maps(bus, len)) {
            Some(true) => {}
            Some(false) => return Some(false),
            None => all = None,
        }
    }
    all
}

/// A buffer of an operation, as peers and the CPU find it.
fn pages(
    io: &mut Io<'_>,
    exports: &[(u64, u64)],
    routes: &[Option<(usize, ConnId)>],
    side: Side,
    bytes: u64,
) -> Result<Pages, NoPages> {
    if bytes == 0 {
        return Ok(Pages::none());
    }
    let first = io.mmu.span(side.region, GpuVa(side.va), bytes)?;
    let (bus, len) = (first.addr.value(), first.len);
    let exported = if bus < NIC_BUS {
        exports.iter().any(|(at, len)| bus.wrapping_sub(*at) < *len)
    } else if bus < HOST_BUS {
        true
    } else {
        // Peers map memory that was allocated for the NIC, but not the program's own.
        all_map_host(io, routes, bus, bytes).ok_or(NoPages::Later)?
    };
    let access = Access {
        exported,
        writable: io.mmu.grants_remote_write(side.region),
    };
    let dma = io.dma();
    // A small buffer needs one translation.
    if len >= bytes && side.va % PAGE_BYTES + bytes <= PAGE_BYTES {
        let cpu = dma.direct(first.prefix(bytes));
        let cpu = cpu.ok_or(Fault::NoTranslation { va: GpuVa(side.va) })?;
        return Ok(Pages::in_one(side.va, bytes, (cpu, bus), access));
    }
    let pages: Result<Pages, Fault> = Pages::new(side.va, bytes, access, |offset| {
        let va = GpuVa(side.va + offset);
        let span = dma.mmu.span(side.region, va, bytes - offset)?;
        // In one piece to the page's end at least: translations are of pages.
        debug_assert!(span.len >= (bytes - offset).min(PAGE_BYTES - va.0 % PAGE_BYTES));
        let cpu = dma.direct(span).ok_or(Fault::NoTranslation { va })?;
        Ok((span.addr.value(), cpu, span.len))
    });
    Ok(pages?)
}

/// The direct paths of a NIC's communicators: what they have in common.
#[derive(Debug, Default)]
pub(super) struct DirectPaths {
    /// Operations on them.
    pub(super) active: usize,
    pub(super) areas: AreaPool,
    /// What peers can map of this NIC's GPU memory: bus address and length.
    exports: Vec<(u64, u64)>,
}

/// An operation that has not begun on the direct path.
pub(super) enum NotBegun {
    /// There is no such path.
    No(Box<Prepared>),
    /// A peer has not reported yet whether it has mapped the memory.
    Later(Box<Prepared>),
}

impl DirectPaths {
    /// Begins an operation, which from now on is on the path alone, or gives it back.
    pub(super) fn start(
        &mut self,
        table: &mut Table,
        io: &mut Io<'_>,
        slot: u32,
        mut call: Call,
        mut p: Box<Prepared>,
    ) -> Result<(), NotBegun> {
        let c = table.comm_mut(slot);
        let both = c.and_then(|c| Some((&mut c.chosen, c.direct.as_mut()?)));
        let Some((chosen, d)) = both.filter(|(_, d)| d.ready) else {
            return Err(NotBegun::No(p));
        };
        p.params.direct = true;
        if !p.at.known {
            let mut of = |side: Side, bytes: u64| pages(io, &self.exports, &d.routes, side, bytes);
            let both = of(p.input, p.sides[0]).and_then(|i| Ok((i, of(p.output, p.sides[1])?)));
            match both {
                Ok((input, output)) => p.at = d.path.locate(&p.params, input, output),
                Err(NoPages::Later) => return Err(NotBegun::Later(p)),
                Err(NoPages::Fault(fault)) => {
                    // As in the middle of a program: the other ranks wait for this one and are
                    // notified.
                    call.own_end = Some(fault.status());
                    p.call = call;
                    d.over.push(p);
                    let rank = table.shape_of(slot).0;
                    table.end(slot, rank, Status::CommAborted);
                    return Ok(());
                }
            }
        }
        count_choice(chosen, p.params.kind, Algorithm::Direct);
        d.path.post(call, p, taps::shows_messages(io.engines, slot));
        self.active += 1;
        Ok(())
    }

    /// Moves its operations on. Returns whether anything moved.
    pub(super) fn step(&mut self, table: &mut Table, io: &mut Io<'_>) -> bool {
        let mut moved = false;
        for slot in table.slots() {
            moved |= self.step_one(table, io, slot);
        }
        moved
    }

    fn step_one(&mut self, table: &mut Table, io: &mut Io<'_>, slot: u32) -> bool {
        let mut moved = false;
        loop {
            let d = table.comm_mut(slot).and_then(|c| c.direct.as_mut());
            let Some(d) = d.filter(|d| d.path.is_active()) else {
                return moved;
            };
            let peers = Routes {
                transports: io.transports,
                routes: &d.routes,
            };
            let before = d.path.stored();
            let stepped = d.path.step(io.now, &mut io.dma.nic_memory, &peers);
            io.dma.copied += d.path.stored() - before;
            match stepped {
                Stepped::Idle => return moved,
                Stepped::Moved => return true,
                Stepped::Ended(outcome, op) => {
                    self.active -= 1;
                    moved = true;
                    match outcome {
                        Outcome::Done => complete(table, slot, op),
                        _ => fail(table, slot, outcome, op),
                    }
                }
            }
        }
    }

    /// Revokes peers' access to the memory of a communicator that has ended. Its operations retire
    /// with it, once nothing touches their memory.
    pub(super) fn abort(&mut self, table: &mut Table, io: &mut Io<'_>, slot: u32) {
        let c = table.comm_mut(slot);
        if let Some(d) = c.and_then(|c| c.direct.as_mut()) {
            d.path.abort(io.now);
        }
    }
}

impl DirectPaths {
    /// A direct path for a communicator that is being made.
    pub(super) fn open(&mut self, io: &mut Io<'_>, c: &CommunicatorConfig) -> Option<DirectComm> {
        let ranks = c.peers.len() as u32;
        // Behind a DMA engine, neither this NIC nor peers can reach the GPU's memory.
        let linked = c.settings.links_all(c.peers.len());
        if !(c.settings.direct && linked) || ranks < 2 || !io.dma.is_mapped() {
            return None;
        }
        if self.exports.is_empty() {
            let exports = io.dma.memory.exports();
            self.exports = exports.iter().map(|e| (e.bus, e.len)).collect();
        }
        let eager = c.settings.direct_eager_bytes;
        let nic_memory = &mut io.dma.nic_memory;
        let order = c.settings.order();
        let path = Direct::new(
            nic_memory,
            &mut self.areas,
            c.ctx,
            c.rank,
            ranks,
            eager,
            order,
        )?;
        Some(DirectComm {
            path,
            routes: vec![None; ranks as usize],
            ready: false,
            over: Vec::new(),
            taps: Vec::new(),
        })
    }

    /// The NIC ends: waits, for a bounded number of polls, until peers have left its memory.
    pub(super) fn drain(&mut self, table: &mut Table, io: &mut Io<'_>) {
        for _ in 0..LAST_LOOKS {
            if self.active == 0 {
                return;
            }
            self.step(table, io);
            std::hint::spin_loop();
        }
        tracing::error!("a peer is stopped inside this NIC's memory; it may still write to it");
    }

    /// Whether a step would find nothing to do on the direct paths.
    pub(super) fn is_quiet(&self, table: &Table) -> bool {
        let path_is = |c: &Comm| c.direct.as_ref().is_none_or(|d| d.path.is_quiet());
        self.active == 0 || table.comms().all(path_is)
    }
}

/// All ranks have joined: do they share this host?
pub(super) fn join(c: &mut Comm, groups: &Groups, io: &Io<'_>) {
    let (ctx, rank, ranks) = (c.ctx, c.rank, c.ranks());
    let Some(d) = &mut c.direct else { return };
    for r in (0..ranks).filter(|r| *r != rank) {
        let route = groups.messages.route(ctx, r);
        let route = route.map(|(t, conn, _)| (t, conn)).filter(|(t, conn)| {
            // Its memory is mapped here, and ours there.
            io.transports[*t].peer_window(*conn).is_some()
        });
        match (route, groups.area(ctx, r)) {
            (Some(route), area) if area > 0 => {
                d.routes[r as usize] = Some(route);
                let at = NIC_BUS + (u64::from(area) - 1) * AREA_UNIT;
                d.path.set_peer(r, at);
            }
            _ => return,
        }
    }
    d.ready = d.path.is_ready();
}

/// An operation has ended well: it retires, once its result has passed the engine that is there.
#[inline]
fn complete(table: &mut Table, slot: u32, op: Box<Prepared>) {
    let direct = table.comm_mut(slot).and_then(|c| c.direct.as_mut());
    match direct.and_then(|d| d.take_tap(op.call.seq)) {
        None => {
            let bytes = op.bytes;
            table.end_direct(slot, op, Status::Ok, (bytes, 0));
        }
        Some(tap) => {
            let (bytes, detail) = (op.bytes, 0);
            let id = come_off(table, slot, op, State::Leaving { bytes, detail }, Some(tap));
            if let (Some(id), Some(c)) = (id, table.comm_mut(slot)) {
                c.active.push(id);
                table.wake(id);
            }
        }
    }
}

/// An operation has come off the path without its result.
#[cold]
fn fail(table: &mut Table, slot: u32, outcome: Outcome, mut op: Box<Prepared>) {
    match outcome {
        Outcome::Fallback => return fall_back(table, slot, op),
        Outcome::Mismatch { rank } => {
            // All ranks have seen it; they notify each other and name the same rank.
            if let Some(seq) = op.call.seq {
                table.news.push_back(News::Differs { slot, seq, rank });
            }
        }
        Outcome::PeerFailed { rank } => table.end(slot, rank, Status::PeerFailed),
        // The rank that aborted sends the reason over its links, or this operation times out first.
        Outcome::PeerAborted { .. } => {}
        // Retires with its communicator.
        Outcome::Done | Outcome::Aborted => {}
        Outcome::Unsafe { rank } => op.call.own_end = Some((Status::NicSilent, rank.into())),
    }
    if let Some(d) = table.comm_mut(slot).and_then(|c| c.direct.as_mut()) {
        d.over.push(op);
    }
}

/// A rank's engine needs to see messages, or it has no NIC memory left: all ranks get here for the
/// same operation.
fn fall_back(table: &mut Table, slot: u32, op: Box<Prepared>) {
    let (kind, reach) = (op.params.kind, op.reach);
    let Some(c) = table.comm_mut(slot) else {
        return;
    };
    let tap = c.direct.as_mut().and_then(|d| d.take_tap(op.call.seq));
    if reach == Reach::MustDirect {
        let direct = u64::from(Algorithm::Direct.code());
        return table.end_direct(slot, op, Status::Unsupported, (0, direct));
    }
    c.uncount(kind, Algorithm::Direct);
    if let Some(id) = come_off(table, slot, op, State::Waiting, tap) {
        table.waiting += 1;
        if let Some(c) = table.comm_mut(slot) {
            c.queue.push_front(id);
        }
    }
}

/// Makes an operation that is off the path one among the others. `None`: there are too many, and it
/// has ended.
fn come_off(
    table: &mut Table,
    slot: u32,
    op: Box<Prepared>,
    state: State,
    tap: Option<Box<Tap>>,
) -> Option<u32> {
    let call = op.call;
    let active = Active {
        done: None,
        call,
        comm: slot,
        after: After::Nothing,
        bytes: op.bytes,
        task: Task::Program(op),
        state,
        queued: false,
        messages: true,
        rings: None,
        tap,
    };
    let id = table.ops.insert(active);
    if id.is_none() {
        table.refuse(call.token, Status::NoResources, 1 << 18);
    }
    id
}

/// Whether an operation may use its ranks' memory.
pub(crate) fn reach(asked: Algorithm, wire: WireType) -> Reach {
    match asked {
        Algorithm::Auto if wire == WireType::Same => Reach::MayDirect,
        Algorithm::Direct => Reach::MustDirect,
        _ => Reach::Messages,
    }
}
