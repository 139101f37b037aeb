//! Which calls are taken, and how: the arguments of a call become an operation of the group's
//! communicator.
//!
//! All ranks must decide alike, so only what MPI makes equal on all of them decides: the
//! communicator, and of a reduction its count, type and operation; of the others the bytes of a
//! block, because types and counts may differ there (a root may send a derived type that the others
//! receive as integers). They move as bytes.
#![allow(unsafe_code)] // Arrays of counts, by the program's pointers.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;
use std::time::Duration;

use ringbell::abi::{CollectiveKind as K, Status};
use ringbell::{CollectiveError, Communicator, DataType, Operation, ReduceOp, Span};

use crate::abi::Handle;
use crate::below::below;
use crate::elements::{Elements, Side};
use crate::failure;
use crate::group::Group;
use crate::layer::Layer;
use crate::trace;

/// How often a call that waits lets the library below move its own messages.
const SLICE: Duration = Duration::from_micros(500);

/// Wait beyond an operation's time-out before the NIC counts as failed.
const SILENCE: Duration = Duration::from_secs(62);

/// Most bytes of one call's blocks: counts below are C's `int`.
const MOST: u64 = i32::MAX as u64;

/// Why a call is handed on.
type Why = &'static str;

/// A buffer of the program with its elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) at: *mut c_void,
    pub(crate) count: i64,
    pub(crate) ty: Handle,
}

impl Buffer {
    pub(crate) fn new(at: *const c_void, count: i64, ty: Handle) -> Buffer {
        Buffer {
            at: at.cast_mut(),
            count,
            ty,
        }
    }

    /// Bytes of its elements without gaps; `None` of a wrong count or type, which the library below
    /// reports.
    pub(crate) fn bytes(&self, layer: &Layer) -> Option<u64> {
        let count = u64::try_from(self.count).ok()?;
        let size = match layer.tables.plain(self.ty) {
            Some(plain) => plain.bytes,
            None => {
                let mut size = 0_i64;
                // SAFETY: the signature of MPI's standard.
                unsafe {
                    let of = below!("PMPI_Type_size_x", fn(Handle, *mut i64) -> c_int);
                    of(self.ty, &raw mut size);
                }
                u64::try_from(size).ok()?
            }
        };
        count.checked_mul(size)
    }

    /// Distance of two of its elements in memory.
    fn extent(&self, layer: &Layer) -> isize {
        if let Some(plain) = layer.tables.plain(self.ty) {
            return plain.bytes as isize;
        }
        let (mut low, mut extent) = (0_isize, 0_isize);
        // SAFETY: the signature of MPI's standard.
        unsafe {
            let of = below!(
                "PMPI_Type_get_extent",
                fn(Handle, *mut isize, *mut isize) -> c_int
            );
            of(self.ty, &raw mut low, &raw mut extent);
        }
        extent
    }

    /// Its part of `count` elements, `skipped` elements behind its start.
    pub(crate) fn part(&self, layer: &Layer, skipped: i64, count: i64) -> Buffer {
        let bytes = self.extent(layer).wrapping_mul(skipped as isize);
        Buffer {
            at: self.at.wrapping_byte_offset(bytes),
            count,
            ty: self.ty,
        }
    }

    pub(crate) fn elements(&self, layer: &Layer) -> Elements {
        match layer.tables.plain(self.ty) {
            Some(_) => Elements::plain(self.at.cast()),
            None => Elements::Typed(self.at.cast(), self.count, self.ty),
        }
    }

    /// As a side of an operation, of `bytes` in all.
    fn side(&self, layer: &Layer, bytes: u64) -> Side {
        Side {
            bytes: bytes as usize,
            elements: self.elements(layer),
            apart: false,
        }
    }
}

/// What an operation does, its operands aside.
struct Plan {
    kind: K,
    dtype: DataType,
    op: ReduceOp,
    /// Elements of a block.
    count: u64,
    root: c_int,
    src: Side,
    dst: Side,
}

impl Plan {
    fn moving(kind: K, bytes: u64, root: c_int, src: Side, dst: Side) -> Plan {
        Plan {
            kind,
            dtype: DataType::U8,
            op: ReduceOp::Sum,
            count: bytes,
            root,
            src,
            dst,
        }
    }
}

/// Takes a call where it can be: `None` says that the library below answers it.
fn take(
    call: &'static str,
    comm: Handle,
    plan: impl FnOnce(&Layer, &Group) -> Result<Plan, Why>,
) -> Option<c_int> {
    let layer = Layer::get()?;
    if layer.tables.handle(comm) == layer.tables.no_comm {
        return None;
    }
    let group = layer.group(comm);
    let taken = match &group.comm {
        Ok(ringbell) => plan(layer, &group).map(|p| (ringbell, p)),
        Err(why) => Err(*why),
    };
    match taken {
        Ok((ringbell, plan)) => {
            trace::note(call, None, plan.src.bytes.max(plan.dst.bytes) as u64);
            Some(match run(layer, &group, ringbell, &plan) {
                Ok(()) => 0,
                Err(error) => failure::report(call, comm, &group, &error),
            })
        }
        Err(why) => {
            trace::note(call, Some(why), 0);
            None
        }
    }
}

/// Runs an operation; sides without a place of their own are copied through the group's memory.
fn run(
    layer: &Layer,
    group: &Group,
    comm: &Communicator,
    plan: &Plan,
) -> Result<(), CollectiveError> {
    let (nic, own) = (layer.nic(), layer.tables.own);
    let (src, dst) = (&plan.src, &plan.dst);
    // The longer one first: the other, inside it in calls in place, finds its registration.
    let (to, from);
    if dst.bytes >= src.bytes {
        to = dst.in_place(&layer.memories, nic);
        from = src.in_place(&layer.memories, nic);
    } else {
        from = src.in_place(&layer.memories, nic);
        to = dst.in_place(&layer.memories, nic);
    }
    let misuse = |why| CollectiveError::Misuse {
        kind: plan.kind,
        why,
    };
    let mut scratch = group.scratch.lock().unwrap_or_else(PoisonError::into_inner);
    let rounded = src.bytes.next_multiple_of(64);
    let (mut from_scratch, mut to_scratch) = (std::ptr::null_mut(), std::ptr::null_mut());
    if from.is_none() || to.is_none() {
        let at = scratch.of(&layer.memories, nic, rounded + dst.bytes);
        let at = at.map_err(|e| misuse(e.to_string()))?;
        (from_scratch, to_scratch) = (at, at.wrapping_add(rounded));
    }
    let span = |at: *mut u8, bytes: usize| {
        Span::of(
            ringbell::abi::GpuVa(at.expose_provenance() as u64),
            bytes as u64,
        )
    };
    let from_span = match &from {
        Some(place) => place.span,
        None => {
            src.elements
                .fill(from_scratch, src.bytes, own)
                .map_err(misuse)?;
            span(from_scratch, src.bytes)
        }
    };
    let to_span = match &to {
        // The root's buffer is both; it is not written.
        _ if plan.kind == K::Broadcast && src.bytes > 0 => from_span,
        Some(place) => place.span,
        None => span(to_scratch, dst.bytes),
    };
    let root = plan.root as u32;
    let operation = Operation::by_kind(
        plan.kind, plan.dtype, plan.op, from_span, to_span, plan.count, root,
    );
    wait(layer, comm, &operation)?;
    if to.is_none() {
        dst.elements
            .drain(to_scratch, dst.bytes, own)
            .map_err(misuse)?;
    }
    Ok(())
}

/// Runs an operation to its end, and lets the library below move meanwhile.
fn wait(layer: &Layer, comm: &Communicator, operation: &Operation) -> Result<(), CollectiveError> {
    let mut request = comm.post(operation)?;
    let patience = comm.options().timeout + SILENCE;
    let slices = patience.as_micros() / SLICE.as_micros();
    for _ in 0..slices {
        match request.wait_for(SLICE) {
            Err(CollectiveError::Wait { .. }) => {
                layer.progress_below();
                layer.progress();
            }
            end => return end.map(drop),
        }
    }
    Err(CollectiveError::Failed {
        kind: operation.kind(),
        rank: comm.rank(),
        status: Status::NicSilent,
        detail: 0,
        why: None,
    })
}

/// Refuses nothing, or too much.
fn fits(bytes: u64, blocks: u32) -> Result<u64, Why> {
    match bytes.checked_mul(blocks.into()) {
        Some(0) => Err("no elements"),
        Some(all) if all <= MOST => Ok(bytes),
        _ => Err("2 GiB or more"),
    }
}

const WRONG: Why = "an argument that the library below judges";

/// The reduced elements of a call: Ringbell's type and operation, its elements, and their bytes.
fn reduced(
    layer: &Layer,
    count: i64,
    ty: Handle,
    op: Handle,
) -> Result<(DataType, ReduceOp, u64, u64), Why> {
    let op = layer.tables.operation(op);
    let op =
        op.ok_or("an operation that the NIC has not, such as a logical one or a program's own")?;
    let plain = layer.tables.plain(ty);
    let reduced = plain.and_then(|p| p.reduced);
    let (dtype, times) = reduced.ok_or("a type that the NIC does not reduce")?;
    if times > 1 && op != ReduceOp::Sum {
        return Err("complex numbers, other than their sum");
    }
    if !op.takes(dtype) {
        return Err(WRONG);
    }
    let count = u64::try_from(count).map_err(|_| WRONG)?;
    let count = count.checked_mul(times).ok_or(WRONG)?;
    let bytes = count.checked_mul(dtype.bytes()).ok_or(WRONG)?;
    if count == 0 {
        return Err("no elements");
    }
    Ok((dtype, op, count, bytes))
}

/// Refuses a root that is none.
fn rooted(group: &Group, root: c_int) -> Result<bool, Why> {
    match u32::try_from(root) {
        Ok(r) if r < group.size() => Ok(r == group.rank()),
        _ => Err(WRONG),
    }
}

pub(crate) fn barrier(comm: Handle) -> Option<c_int> {
    take("MPI_Barrier", comm, |_, _| {
        Ok(Plan::moving(K::Barrier, 0, 0, Side::NONE, Side::NONE))
    })
}

pub(crate) fn all_reduce(
    from: *const c_void,
    to: Buffer,
    op: Handle,
    comm: Handle,
) -> Option<c_int> {
    take("MPI_Allreduce", comm, |layer, _| {
        let (dtype, op, count, bytes) = reduced(layer, to.count, to.ty, op)?;
        let at = match layer.tables.is_in_place(from) {
            true => to.at.cast(),
            false => from.cast_mut().cast(),
        };
        Ok(Plan {
            kind: K::AllReduce,
            dtype,
            op,
            count,
            root: 0,
            src: Side::plain(at, bytes as usize),
            dst: to.side(layer, bytes),
        })
    })
}

pub(crate) fn reduce(
    from: *const c_void,
    to: Buffer,
    op: Handle,
    root: c_int,
    comm: Handle,
) -> Option<c_int> {
    take("MPI_Reduce", comm, |layer, group| {
        let (dtype, op, count, bytes) = reduced(layer, to.count, to.ty, op)?;
        let at_root = rooted(group, root)?;
        let at = match layer.tables.is_in_place(from) {
            true => to.at.cast(),
            false => from.cast_mut().cast(),
        };
        Ok(Plan {
            kind: K::Reduce,
            dtype,
            op,
            count,
            root,
            src: Side::plain(at, bytes as usize),
            dst: if at_root {
                to.side(layer, bytes)
            } else {
                Side::NONE
            },
        })
    })
}

pub(crate) fn broadcast(buffer: Buffer, root: c_int, comm: Handle) -> Option<c_int> {
    take("MPI_Bcast", comm, |layer, group| {
        let bytes = fits(buffer.bytes(layer).ok_or(WRONG)?, 1)?;
        let at_root = rooted(group, root)?;
        let (side, none) = (buffer.side(layer, bytes), Side::NONE);
        let (src, dst) = if at_root { (side, none) } else { (none, side) };
        Ok(Plan::moving(K::Broadcast, bytes, root, src, dst))
    })
}

pub(crate) fn all_gather(from: Buffer, to: Buffer, comm: Handle) -> Option<c_int> {
    take("MPI_Allgather", comm, |layer, group| {
        let bytes = fits(to.bytes(layer).ok_or(WRONG)?, group.size())?;
        let own = match layer.tables.is_in_place(from.at) {
            true => to.part(layer, i64::from(group.rank()) * to.count, to.count),
            false => from,
        };
        let all = Buffer {
            count: to.count * i64::from(group.size()),
            ..to
        };
        Ok(Plan::moving(
            K::AllGather,
            bytes,
            0,
            own.side(layer, bytes),
            all.side(layer, bytes * u64::from(group.size())),
        ))
    })
}

pub(crate) fn gather(from: Buffer, to: Buffer, root: c_int, comm: Handle) -> Option<c_int> {
    take("MPI_Gather", comm, |layer, group| {
        let at_root = rooted(group, root)?;
        let judged = if at_root { to } else { from };
        let bytes = fits(judged.bytes(layer).ok_or(WRONG)?, group.size())?;
        let own = match at_root && layer.tables.is_in_place(from.at) {
            true => to.part(layer, i64::from(group.rank()) * to.count, to.count),
            false => from,
        };
        let dst = if at_root {
            let all = Buffer {
                count: to.count * i64::from(group.size()),
                ..to
            };
            all.side(layer, bytes * u64::from(group.size()))
        } else {
            Side::NONE
        };
        Ok(Plan::moving(
            K::Gather,
            bytes,
            root,
            own.side(layer, bytes),
            dst,
        ))
    })
}

pub(crate) fn scatter(from: Buffer, to: Buffer, root: c_int, comm: Handle) -> Option<c_int> {
    take("MPI_Scatter", comm, |layer, group| {
        let at_root = rooted(group, root)?;
        let judged = if at_root { from } else { to };
        let bytes = fits(judged.bytes(layer).ok_or(WRONG)?, group.size())?;
        let in_place = at_root && layer.tables.is_in_place(to.at);
        let src = if at_root {
            let all = Buffer {
                count: from.count * i64::from(group.size()),
                ..from
            };
            all.side(layer, bytes * u64::from(group.size()))
        } else {
            Side::NONE
        };
        let mut dst = match in_place {
            true => from.part(layer, i64::from(group.rank()) * from.count, from.count),
            false => to,
        }
        .side(layer, bytes);
        if in_place && matches!(dst.elements, Elements::Typed(..)) {
            dst.elements = Elements::None;
            dst.apart = true;
        }
        Ok(Plan::moving(K::Scatter, bytes, root, src, dst))
    })
}

pub(crate) fn all_to_all(from: Buffer, to: Buffer, comm: Handle) -> Option<c_int> {
    take("MPI_Alltoall", comm, |layer, group| {
        let bytes = fits(to.bytes(layer).ok_or(WRONG)?, group.size())?;
        let in_place = layer.tables.is_in_place(from.at);
        let all = |b: Buffer| {
            let count = b.count * i64::from(group.size());
            Buffer { count, ..b }.side(layer, bytes * u64::from(group.size()))
        };
        let mut src = all(if in_place { to } else { from });
        // Ringbell has no such form.
        src.apart = in_place;
        Ok(Plan::moving(K::AllToAll, bytes, 0, src, all(to)))
    })
}

pub(crate) fn reduce_scatter_block(
    call: &'static str,
    from: *const c_void,
    to: Buffer,
    op: Handle,
    comm: Handle,
) -> Option<c_int> {
    take(call, comm, |layer, group| {
        let (dtype, op, count, bytes) = reduced(layer, to.count, to.ty, op)?;
        let in_place = layer.tables.is_in_place(from);
        let at = if in_place { to.at } else { from.cast_mut() };
        let all = bytes.checked_mul(group.size().into()).ok_or(WRONG)?;
        let mut dst = to.side(layer, bytes);
        // MPI wants the result at the buffer's start, where other ranks' blocks are.
        dst.apart = in_place;
        Ok(Plan {
            kind: K::ReduceScatter,
            dtype,
            op,
            count,
            root: 0,
            src: Side::plain(at.cast(), all as usize),
            dst,
        })
    })
}

/// As [`reduce_scatter_block`], where the counts of all ranks are the same.
///
/// # Safety
/// `counts` has one for each rank of the communicator.
pub(crate) unsafe fn reduce_scatter<C: Copy + Into<i64>>(
    from: *const c_void,
    to: *mut c_void,
    counts: *const C,
    (ty, op): (Handle, Handle),
    comm: Handle,
) -> Option<c_int> {
    let call = "MPI_Reduce_scatter";
    let layer = Layer::get()?;
    if layer.tables.handle(comm) == layer.tables.no_comm {
        return None;
    }
    let group = layer.group(comm);
    let size = group.size() as usize;
    // SAFETY: the caller's contract.
    let count = |i: usize| unsafe { (*counts.add(i)).into() };
    if group.comm.is_ok() && (1..size).any(|i| count(i) != count(0)) {
        trace::note(call, Some("blocks of different lengths"), 0);
        return None;
    }
    let each = if size > 0 { count(0) } else { 0 };
    let to = Buffer::new(to, each, ty);
    reduce_scatter_block(call, from, to, op, comm)
}

/// Blocks of different lengths are moved in slots of the longest; where that would be more than
/// twice the data, the library below does it.
///
/// # Safety
/// `counts` and `places` have one for each rank of the communicator.
pub(crate) unsafe fn all_gather_v<C: Copy + Into<i64>, P: Copy + Into<i64>>(
    from: Buffer,
    to: *mut c_void,
    (counts, places): (*const C, *const P),
    ty: Handle,
    comm: Handle,
) -> Option<c_int> {
    take("MPI_Allgatherv", comm, |layer, group| {
        let ranks = 0..group.size() as usize;
        // SAFETY: the caller's contract.
        let at = |i: usize| unsafe { ((*counts.add(i)).into(), (*places.add(i)).into()) };
        let base = Buffer::new(to, 0, ty);
        let blocks: Vec<Buffer> = ranks.map(at).map(|(c, p)| base.part(layer, p, c)).collect();
        let bytes: Option<Vec<u64>> = blocks.iter().map(|b| b.bytes(layer)).collect();
        let bytes = bytes.ok_or(WRONG)?;
        let longest = bytes.iter().max().copied().unwrap_or(0);
        let longest = fits(longest, group.size())?;
        let all: u64 = bytes.iter().sum();
        let slots = longest * u64::from(group.size());
        if slots > 2 * all {
            return Err("blocks of very different lengths");
        }
        let me = group.rank() as usize;
        let own = match layer.tables.is_in_place(from.at) {
            true => blocks[me],
            false => from,
        };
        let slot = longest as usize;
        let one = (own.elements(layer), bytes[me] as usize);
        let src = Elements::Blocks(slot, vec![one]);
        let parts = blocks.iter().zip(&bytes);
        let parts = parts.map(|(b, bytes)| (b.elements(layer), *bytes as usize));
        let dst = Elements::Blocks(slot, parts.collect());
        let side = |elements, bytes| Side {
            bytes,
            elements,
            apart: true,
        };
        let (src, dst) = (side(src, slot), side(dst, slots as usize));
        Ok(Plan::moving(K::AllGather, longest, 0, src, dst))
    })
}
