//! `COLLECTIVE`: from descriptors to operations of communicators.

use ringbell_gtlb::{Need, Pin};
use ringbell_nic_abi::collective::{ANY_RANK, ANY_TAG};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, Descriptor, Flags, GpuVa, Opcode, PdId, Status,
    StreamRef, WireType,
};
use ringbell_onc_engines::program::{choose, Locality};

use super::Core;
use crate::collective::{
    reach, After, CancelError, ChannelTask, Collectives, Fate, Io, Key, LocalPass, Params, Pieces,
    PlanError, Prepared, Reach as Path, Rings, Shape, Side, StreamSide, Task,
};
use crate::permit::Permit;
use crate::transport::TransportEvent;
use crate::types::{Buffer, WorkToken};

/// Why an operation is refused.
type Refusal = (Status, u64);
/// Pins of source and destination.
type Pins = [Option<Pin>; 2];
/// Region of a side that has no bytes.
const NO_REGION: u32 = u32::MAX;

/// Bytes of one buffer piece: a length of 32 bits, and whole elements.
const PIECE: u64 = 1 << 30;

/// What an operation needs of this rank's memory.
struct Sides {
    input: u64,
    output: u64,
    /// Whether the program gives this rank a source, and a destination.
    has_input: bool,
    has_output: bool,
}

/// How long before the end of a time-out the other ranks are asked whether they are alive: a quarter of it,
/// but as much of 250 ms as half of it has, for a busy host or a lost frame to answer. 0: not at all,
/// below 100 ms, where a rank that is only busy would be taken for dead.
fn answer_us(timeout_us: u32) -> u32 {
    match timeout_us {
        100_000.. => (timeout_us / 4)
            .max(250_000.min(timeout_us / 2))
            .min(2_000_000),
        _ => 0,
    }
}

/// A range as buffers.
fn pieces(region: u32, va: u64, len: u64) -> Pieces {
    let mut out = Pieces::default();
    let mut at = 0;
    while at < len {
        let n = (len - at).min(PIECE);
        out.push(Buffer {
            region,
            va: GpuVa(va + at),
            len: n as u32,
        });
        at += n;
    }
    out
}

impl Core {
    /// Runs `f` with the collectives and what they work with.
    pub(crate) fn collectives<R>(
        &mut self,
        f: impl FnOnce(&mut Collectives, &mut Io<'_>) -> R,
    ) -> R {
        let mut io = Io {
            now: self.time.now,
            transports: &mut self.streams.transports,
            mmu: &mut self.memory.mmu,
            dma: &mut self.memory.dma,
        };
        let r = f(&mut self.collectives, &mut io);
        self.retire_collectives();
        r
    }

    #[inline]
    fn retire_collectives(&mut self) {
        if self.collectives.has_retired() {
            self.retire_all_collectives();
        }
    }

    fn retire_all_collectives(&mut self) {
        // Before the pins go: kernels that wait at a stream are notified that it has failed.
        self.collectives.tell_streams(&mut self.memory.dma());
        while let Some(r) = self.collectives.take_retired() {
            self.retire(r.token, r.status, r.bytes, r.detail);
        }
    }

    /// Moves collectives on.
    #[inline]
    pub(super) fn step_collectives(&mut self) -> bool {
        if !self.collectives.exists() {
            return false;
        }
        let fresh = self.time.fresh;
        let queues = &self.queues;
        let ended = |after: After| match after {
            After::Nothing => true,
            After::Ticket { queue, ticket } => !queues[queue as usize].is_outstanding(ticket),
            After::Fence { queue, ticket } => !queues[queue as usize].is_outstanding_before(ticket),
        };
        let mut io = Io {
            now: self.time.now,
            transports: &mut self.streams.transports,
            mmu: &mut self.memory.mmu,
            dma: &mut self.memory.dma,
        };
        let moved = self.collectives.step(&mut io, fresh, &ended);
        self.retire_collectives();
        if !fresh && self.collectives.wants_clock() {
            self.time.is_wanted = true;
        }
        moved
    }

    /// Whether an event belongs to the fabric; if so it was processed.
    #[inline]
    pub(super) fn is_of_fabric(&mut self, t: usize, e: &TransportEvent) -> bool {
        if !self.collectives.exists() {
            return false;
        }
        let mut io = Io {
            now: self.time.now,
            transports: &mut self.streams.transports,
            mmu: &mut self.memory.mmu,
            dma: &mut self.memory.dma,
        };
        self.collectives.on_event(&mut io, t, e)
    }

    /// A collective operation has used up its time except the part reserved for answers: probes the peers. `false`:
    /// all its time is up.
    pub(super) fn probe_peers(&mut self, token: WorkToken) -> bool {
        let Some(w) = self.outstanding.get_mut(token) else {
            return false;
        };
        let extra = std::mem::take(&mut w.extra_us);
        if extra == 0 || !self.collectives(|c, io| c.probe_peers(io, token)) {
            return false;
        }
        self.outstanding.rearm(token, extra);
        true
    }

    /// Ends a collective operation early. `true`: it may retire now.
    pub(super) fn give_up_collective(
        &mut self,
        token: WorkToken,
        status: Status,
        detail: u64,
    ) -> bool {
        let fate = self.collectives(|c, io| c.give_up(io, token, status, detail));
        fate == Fate::Now
    }

    /// Cancels the operation of a ticket; it retires with `CANCELLED`.
    pub(crate) fn cancel_collective(&mut self, queue: u32, ticket: u32) -> Result<(), CancelError> {
        // A ticket of the host's.
        let ring = self.queues.get(queue as usize).map_or(queue, |q| q.host);
        let found = self.outstanding.tokens().into_iter().find(|t| {
            let w = self.outstanding.get_mut(*t);
            w.is_some_and(|w| {
                w.opcode == Opcode::Collective
                    && (w.permit.queue, w.permit.ticket) == (ring, ticket)
            })
        });
        let token = found.ok_or(CancelError::NotUnderWay { queue, ticket })?;
        if !self.collectives(|c, _| c.cancel(token)) {
            return Err(CancelError::Begun { queue, ticket });
        }
        self.retire(token, Status::Cancelled, 0, 0);
        Ok(())
    }

    pub(super) fn collective_op(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        let slot = self.collectives.find(d.session.0);
        let (slot, task, pins, rings) = match self.repeated(slot, pd, d) {
            Some((slot, p, pins)) => (slot, Task::Program(p), pins, None),
            None => match self.decode_collective(slot, pd, d) {
                Ok(new) => new,
                Err((status, detail)) => {
                    if matches!(
                        status,
                        Status::NotRegistered
                            | Status::OutOfBounds
                            | Status::AccessDenied
                            | Status::RegionFreed
                    ) {
                        self.fault(u32::MAX, detail);
                    }
                    return self.refuse_collective(permit, pd, d, (status, detail));
                }
            },
        };
        let (queue, ticket) = (permit.queue, permit.ticket);
        let after = match CollectiveSpec::distance(d.len) {
            _ if d.flags.contains(Flags::FENCE) => After::Fence { queue, ticket },
            0 => After::Nothing,
            distance => After::Ticket {
                queue,
                ticket: ticket.wrapping_sub(distance),
            },
        };
        let mut work = self.operation(permit, d, u32::MAX);
        work.pins = pins;
        work.extra_us = answer_us(work.timeout_us);
        work.timeout_us -= work.extra_us;
        let token = self.outstanding.insert(work);
        let seen = self.collectives.seen(&self.memory.dma.engines, slot, pd);
        self.collectives(|c, io| c.post(io, slot, token, task, (rings, seen), after));
    }

    /// The operation that an earlier descriptor of the same shape has prepared, and pins of its buffers.
    fn repeated(
        &mut self,
        slot: Option<u32>,
        pd: PdId,
        d: &Descriptor,
    ) -> Option<(u32, Box<Prepared>, Pins)> {
        let (slot, freed) = (slot?, self.memory.mmu.deregistrations());
        let p = self.collectives.repeated(slot, &Key::of(pd, d), freed)?;
        let mut pins = [None, None];
        for (i, side) in [p.input, p.output].into_iter().enumerate() {
            if side.region == NO_REGION {
                continue;
            }
            pins[i] = self.memory.mmu.pin_again(side.region);
            if pins[i].is_none() {
                let pinned = pins.into_iter().flatten();
                pinned.for_each(|p| self.memory.mmu.unpin(p));
                return None;
            }
        }
        Some((slot, p, pins))
    }

    /// What a descriptor asks for, by a path that checks everything.
    fn decode_collective(
        &mut self,
        slot: Option<u32>,
        pd: PdId,
        d: &Descriptor,
    ) -> Result<(u32, Task, Pins, Rings), Refusal> {
        let spec = CollectiveSpec::decode(d.imm, d.len).ok_or((Status::BadDescriptor, 4))?;
        let slot = slot.ok_or((Status::BadCommunicator, d.session.0.into()))?;
        if let Some(why) = self.collectives.ended(slot) {
            return Err(why);
        }
        let (task, pins) = self.task(slot, pd, d, &spec)?;
        let rings = streams_of(d, &spec, &pins);
        let rings = rings.iter().any(Option::is_some).then(|| Box::new(rings));
        Ok((slot, task, pins, rings))
    }

    /// Retires an operation that never began.
    pub(super) fn refuse_collective(
        &mut self,
        permit: Permit,
        pd: PdId,
        d: &Descriptor,
        (status, detail): Refusal,
    ) {
        let operands = (d.local_va, d.len, d.remote_va);
        self.refuse_streams(pd, operands, status, detail);
        self.finish(permit, status, 0, detail);
    }

    /// An operation was refused, perhaps because its descriptor cannot be read: kernels that push for it, or wait to
    /// pop, need not wait for their own time-outs. `operands` are its `local_va`, `len` and `remote_va`.
    pub(super) fn refuse_streams(
        &mut self,
        pd: PdId,
        (src, len, dst): (GpuVa, u32, GpuVa),
        status: Status,
        detail: u64,
    ) {
        let (from_stream, to_stream) = CollectiveSpec::streams(len);
        for (is, va) in [(from_stream, src), (to_stream, dst)] {
            let stream = StreamRef::from_word(va.0).filter(|_| is);
            let Some(stream) = stream else { continue };
            let key = ringbell_nic_abi::Lkey(0);
            let (va, len) = (stream.va, stream.bytes());
            // Without a stream there is no kernel to notify.
            let Ok(pin) = self.memory.mmu.pin(pd, key, va, len, Need::Write) else {
                continue;
            };
            let region = pin.region;
            let mut dma = self.memory.dma();
            StreamSide { region, stream }.fail(&mut dma, status, detail);
            self.memory.mmu.unpin(pin);
        }
    }

    /// Pins a buffer that has bytes.
    fn pin_side(
        &mut self,
        pd: PdId,
        va: GpuVa,
        len: u64,
        need: Need,
    ) -> Result<Option<Pin>, Refusal> {
        if len == 0 {
            return Ok(None);
        }
        let pin = self
            .memory
            .mmu
            .pin(pd, ringbell_nic_abi::Lkey(0), va, len, need);
        pin.map(Some).map_err(|f| f.status())
    }

    /// What a descriptor asks for, checked and pinned.
    fn task(
        &mut self,
        slot: u32,
        pd: PdId,
        d: &Descriptor,
        spec: &CollectiveSpec,
    ) -> Result<(Task, Pins), Refusal> {
        use CollectiveKind as K;
        let (rank, ranks) = self.collectives.shape_of(slot);
        let invalid = |detail: u64| (Status::InvalidArgument, detail);
        let (root, tag) = (d.rkey.0, d.lkey.0);
        let size = spec.dtype.bytes();
        let bytes = d.operand.checked_mul(size).filter(|b| *b < 1 << 57);
        let bytes = bytes.ok_or(invalid(d.operand))?;
        if spec.wire != WireType::Same && size_is_not_f32(spec) {
            return Err(invalid(spec.wire.code().into()));
        }
        match spec.kind {
            K::Nop => Ok((Task::Nop, [None, None])),
            K::Send | K::Recv => {
                let any = spec.kind == K::Recv && root == ANY_RANK;
                if !any && root >= ranks {
                    return Err(invalid(root.into()));
                }
                if bytes > u64::from(u32::MAX) {
                    return Err(invalid(d.operand));
                }
                if spec.kind == K::Send {
                    let pin = self.pin_side(pd, d.local_va, bytes, Need::Read)?;
                    let pieces = pieces(region(&pin), d.local_va.0, bytes);
                    let to = root;
                    return Ok((Task::Send { to, tag, pieces }, [pin, None]));
                }
                let pin = self.pin_side(pd, d.remote_va, bytes, Need::Write)?;
                let task = Task::Recv {
                    from: (!any).then_some(root),
                    tag: (tag != ANY_TAG).then_some(tag),
                    pieces: pieces(region(&pin), d.remote_va.0, bytes),
                };
                Ok((task, [pin, None]))
            }
            K::Copy | K::Combine => {
                let apart = d.local_va.0.abs_diff(d.remote_va.0);
                let same = apart == 0 && spec.kind == K::Combine;
                if apart < bytes && !same {
                    return Err(invalid(d.remote_va.0));
                }
                let [input, output] = self.pin_both(pd, d, bytes, bytes)?;
                let src = pieces(region(&input), d.local_va.0, bytes);
                let dst = pieces(region(&output), d.remote_va.0, bytes);
                let combine = spec.kind == K::Combine;
                let pass = LocalPass {
                    dtype: spec.dtype,
                    op: spec.op,
                    source: src,
                    result: dst,
                    combine,
                    count: d.operand,
                };
                Ok((Task::local(pass), [input, output]))
            }
            K::StreamSend | K::StreamRecv => {
                let sends = spec.kind == K::StreamSend;
                if root >= ranks || root == rank {
                    return Err(invalid(root.into()));
                }
                if tag == ANY_TAG || spec.wire != WireType::Same {
                    return Err(invalid(if tag == ANY_TAG { tag.into() } else { 0 }));
                }
                let pins = if sends {
                    [self.pin_operand(slot, pd, d, spec, bytes, true)?, None]
                } else {
                    [None, self.pin_operand(slot, pd, d, spec, bytes, false)?]
                };
                let (pin, va) = match sends {
                    true => (&pins[0], d.local_va.0),
                    false => (&pins[1], d.remote_va.0),
                };
                let task = ChannelTask {
                    sends,
                    peer: root,
                    tag,
                    elements: (spec.dtype, d.operand),
                    side: Side {
                        region: region(pin),
                        va,
                    },
                };
                Ok((Task::Channel(task), pins))
            }
            _ => self.program_task(slot, pd, d, spec, bytes),
        }
    }

    /// Pins source and destination of a program; a side without a block needs nothing.
    fn pin_sides(
        &mut self,
        slot: u32,
        pd: PdId,
        d: &Descriptor,
        spec: &CollectiveSpec,
        sides: &Sides,
    ) -> Result<[Option<Pin>; 2], Refusal> {
        let mut pins = [None, None];
        for (i, (has, len)) in [sides.has_input, sides.has_output]
            .into_iter()
            .zip([sides.input, sides.output])
            .enumerate()
        {
            if !has {
                continue;
            }
            match self.pin_operand(slot, pd, d, spec, len, i == 0) {
                Ok(pin) => pins[i] = pin,
                Err(e) => {
                    for p in pins.into_iter().flatten() {
                        self.memory.mmu.unpin(p);
                    }
                    return Err(e);
                }
            }
        }
        Ok(pins)
    }

    /// Pins source or destination, be it a buffer of `len` bytes or a stream.
    fn pin_operand(
        &mut self,
        slot: u32,
        pd: PdId,
        d: &Descriptor,
        spec: &CollectiveSpec,
        len: u64,
        source: bool,
    ) -> Result<Option<Pin>, Refusal> {
        let (streams, va, need) = match source {
            true => (spec.from_stream, d.local_va, Need::Read),
            false => (spec.to_stream, d.remote_va, Need::Write),
        };
        if !streams {
            return self.pin_side(pd, va, len, need);
        }
        let s = StreamRef::from_word(va.0).ok_or((Status::InvalidArgument, va.0))?;
        let least = self.collectives.stream_bytes(slot);
        if s.capacity() < least {
            return Err((Status::NoResources, least));
        }
        // Its indices and its state are written in either case.
        self.pin_side(pd, s.va, s.bytes(), Need::Write)
    }

    fn pin_both(
        &mut self,
        pd: PdId,
        d: &Descriptor,
        input: u64,
        output: u64,
    ) -> Result<[Option<Pin>; 2], Refusal> {
        let first = self.pin_side(pd, d.local_va, input, Need::Read)?;
        match self.pin_side(pd, d.remote_va, output, Need::Write) {
            Ok(second) => Ok([first, second]),
            Err(e) => {
                if let Some(p) = first {
                    self.memory.mmu.unpin(p);
                }
                Err(e)
            }
        }
    }

    fn program_task(
        &mut self,
        slot: u32,
        pd: PdId,
        d: &Descriptor,
        spec: &CollectiveSpec,
        bytes: u64,
    ) -> Result<(Task, Pins), Refusal> {
        use CollectiveKind as K;
        let (rank, ranks) = self.collectives.shape_of(slot);
        let invalid = |detail: u64| (Status::InvalidArgument, detail);
        let rooted = matches!(spec.kind, K::Broadcast | K::Reduce | K::Scatter | K::Gather);
        let root = if rooted { d.rkey.0 } else { 0 };
        if root >= ranks {
            return Err(invalid(root.into()));
        }
        let algo = match spec.algo {
            // The direct path falls back to messages.
            Algorithm::Auto | Algorithm::Direct => {
                let t = self.collectives.thresholds(slot);
                choose(spec.kind, bytes, ranks, Locality::Network, &t)
            }
            a => a,
        };
        let mut shape = Shape {
            kind: spec.kind,
            algo,
            ranks,
            rank,
            root,
            in_place: false,
        };
        let refuse = |e: PlanError| {
            tracing::warn!(error = %e, kind = ?spec.kind, ?algo, "no program");
            invalid(algo.code().into())
        };
        let mut plan = self.collectives.plans.of(shape).map_err(refuse)?;
        let p = &plan.program;
        let block = u64::from(p.block_chunks.max(1));
        let count = if spec.kind == K::Barrier {
            0
        } else {
            d.operand
        };
        let bytes = if spec.kind == K::Barrier { 0 } else { bytes };
        let of = |chunks: u32| (u64::from(chunks) / block).checked_mul(bytes);
        let sides = Sides {
            input: of(p.input_chunks).ok_or(invalid(count))?,
            output: of(p.output_chunks).ok_or(invalid(count))?,
            has_input: p.input_chunks > 0,
            has_output: p.output_chunks > 0,
        };
        let (src, dst) = (d.local_va.0, d.remote_va.0);
        let ring = spec.from_stream || spec.to_stream;
        if ring || spec.streamed {
            // Blocks of several ranks would come one after the other, and their windows do not.
            let one = |is: bool, len: u64| !is || len <= bytes;
            let apart = !(spec.from_stream && spec.to_stream && src == dst);
            let may = spec.streamed && spec.algo != Algorithm::Direct && apart;
            if !may || !one(spec.from_stream, sides.input) || !one(spec.to_stream, sides.output) {
                return Err(invalid(spec.kind.code().into()));
            }
        }
        let overlap = !ring
            && sides.input > 0
            && sides.output > 0
            && src < dst.saturating_add(sides.output)
            && dst < src.saturating_add(sides.input);
        if overlap {
            let coincide = p.in_place().is_some_and(|(i, o)| {
                let (i, o) = (u64::from(i) / block * bytes, u64::from(o) / block * bytes);
                src.wrapping_add(i) == dst.wrapping_add(o)
            });
            if !coincide || !plan.in_place_safe {
                return Err(invalid(dst));
            }
            shape.in_place = true;
            plan = self.collectives.plans.of(shape).map_err(refuse)?;
        }
        let freed = self.memory.mmu.deregistrations();
        let pins = self.pin_sides(slot, pd, d, spec, &sides)?;
        let params = Params {
            kind: spec.kind,
            dtype: spec.dtype,
            op: spec.op,
            algo,
            wire: spec.wire,
            root,
            count,
            extra: match spec.streamed {
                false => plan.hash,
                true => plan.hash.rotate_left(7) ^ 0x5354_5244,
            },
            direct: false,
        };
        let task = Task::Program(Box::new(Prepared {
            key: Key::of(pd, d),
            freed,
            params,
            input: Side {
                region: region(&pins[0]),
                va: src,
            },
            output: Side {
                region: region(&pins[1]),
                va: dst,
            },
            sides: [sides.input, sides.output],
            reach: match spec.streamed {
                true => Path::Messages,
                false => reach(spec.algo, spec.wire),
            },
            streamed: spec.streamed,
            bytes: if sides.output > 0 {
                sides.output
            } else {
                sides.input
            },
            plan,
            direct: None,
        }));
        Ok((task, pins))
    }
}

/// The streams that an operation has been given.
fn streams_of(
    d: &Descriptor,
    spec: &CollectiveSpec,
    pins: &[Option<Pin>; 2],
) -> [Option<StreamSide>; 2] {
    let of = |is: bool, va: GpuVa, pin: &Option<Pin>| {
        let region = pin.as_ref().filter(|_| is)?.region;
        let stream = StreamRef::from_word(va.0)?;
        Some(StreamSide { region, stream })
    };
    [
        of(spec.from_stream, d.local_va, &pins[0]),
        of(spec.to_stream, d.remote_va, &pins[1]),
    ]
}

fn region(pin: &Option<Pin>) -> u32 {
    pin.as_ref().map_or(NO_REGION, |p| p.region)
}

fn size_is_not_f32(spec: &CollectiveSpec) -> bool {
    spec.dtype != ringbell_nic_abi::DataType::F32
}
