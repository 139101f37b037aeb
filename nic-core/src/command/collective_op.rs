//! `COLLECTIVE`: from descriptors to operations of communicators.

use ringbell_gtlb::{Mmu, Need, Pin};
use ringbell_nic_abi::collective::{ANY_RANK, ANY_TAG};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, Descriptor, GpuVa, Lkey, PdId, Status, StreamRef,
    WireType,
};
use ringbell_onc_engines::program::{choose, choose_strict, HostRanks, Locality, Order};

use super::memory::Memory;
use super::refusal::Refusal;
use crate::card;
use crate::collective::{
    reach, takes_blocks_in_order, ChannelTask, Collectives, Key, LocalPass, Params, PlanError,
    Prepared, Reach as Path, Rings, Shape, Side, StreamSide, Task,
};
use crate::link::Pieces;
use crate::types::Buffer;

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

/// How long before the end of a time-out the other ranks are asked whether they are alive: a
/// quarter of it, but as much of 250 ms as half of it has, for a busy host or a lost frame to
/// answer. 0: not at all, below 100 ms, where a rank that is only busy would be taken for dead.
pub(super) fn answer_us(timeout_us: u32) -> u32 {
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

/// A collective operation that has been decoded, with its memory pinned.
pub(super) struct Decoded {
    /// Its communicator.
    pub(super) slot: u32,
    pub(super) task: Task,
    pub(super) pins: Pins,
    pub(super) rings: Rings,
}

/// What a descriptor asks for: what an earlier one of the same shape has prepared, or by a path
/// that checks everything.
pub(super) fn decode(
    collectives: &mut Collectives,
    mmu: &mut Mmu,
    pd: PdId,
    d: &Descriptor,
) -> Result<Decoded, Refusal> {
    let slot = collectives.table.find(d.session.0);
    if let Some(repeated) = slot.and_then(|slot| repeated(collectives, mmu, slot, pd, d)) {
        return Ok(repeated);
    }
    let spec = CollectiveSpec::decode(d.imm, d.len).ok_or((Status::BadDescriptor, 4))?;
    let slot = slot.ok_or((Status::BadCommunicator, d.session.0.into()))?;
    if let Some(why) = collectives.table.ended(slot) {
        return Err(why);
    }
    let mut decoder = Decoder {
        collectives,
        mmu,
        slot,
        pd,
        d,
        spec: &spec,
    };
    let (task, pins) = decoder.task()?;
    let rings = streams_of(d, &spec, &pins);
    Ok(Decoded {
        slot,
        task,
        pins,
        rings: rings.iter().any(Option::is_some).then(|| Box::new(rings)),
    })
}

/// The operation that an earlier descriptor of the same shape has prepared, and pins of its
/// buffers.
fn repeated(
    collectives: &mut Collectives,
    mmu: &mut Mmu,
    slot: u32,
    pd: PdId,
    d: &Descriptor,
) -> Option<Decoded> {
    let p = collectives
        .table
        .repeated(slot, &Key::of(pd, d), mmu.deregistrations())?;
    let mut pins = [None, None];
    for (i, side) in [p.input, p.output].into_iter().enumerate() {
        if side.region == NO_REGION {
            continue;
        }
        pins[i] = mmu.pin_again(side.region);
        if pins[i].is_none() {
            pins.into_iter().flatten().for_each(|p| mmu.unpin(p));
            return None;
        }
    }
    Some(Decoded {
        slot,
        task: Task::Program(p),
        pins,
        rings: None,
    })
}

/// An operation was refused, perhaps because its descriptor cannot be read: kernels that push for
/// it, or wait to pop, need not wait for their own time-outs. `operands` are its `local_va`, `len`
/// and `remote_va`.
pub(super) fn refuse_streams(
    memory: &mut Memory,
    pd: PdId,
    (src, len, dst): (GpuVa, u32, GpuVa),
    (status, detail): Refusal,
) {
    let (from_stream, to_stream) = CollectiveSpec::streams(len);
    for (is, va) in [(from_stream, src), (to_stream, dst)] {
        let stream = StreamRef::from_word(va.0).filter(|_| is);
        let Some(stream) = stream else { continue };
        // Without a stream there is no kernel to notify.
        let pinned = memory
            .mmu
            .pin(pd, Lkey(0), stream.va, stream.bytes(), Need::Write);
        let Ok(pin) = pinned else { continue };
        let region = pin.region;
        StreamSide { region, stream }.fail(&mut memory.dma(), status, detail);
        memory.mmu.unpin(pin);
    }
}

/// A descriptor that is being decoded.
struct Decoder<'a> {
    collectives: &'a mut Collectives,
    mmu: &'a mut Mmu,
    slot: u32,
    pd: PdId,
    d: &'a Descriptor,
    spec: &'a CollectiveSpec,
}

impl Decoder<'_> {
    /// Pins a buffer that has bytes.
    fn pin_side(&mut self, va: GpuVa, len: u64, need: Need) -> Result<Option<Pin>, Refusal> {
        if len == 0 {
            return Ok(None);
        }
        let pin = self.mmu.pin(self.pd, Lkey(0), va, len, need);
        pin.map(Some).map_err(|f| f.status())
    }

    /// What a descriptor asks for, checked and pinned.
    fn task(&mut self) -> Result<(Task, Pins), Refusal> {
        use CollectiveKind as K;
        let (d, spec) = (self.d, self.spec);
        let (_, ranks) = self.collectives.table.shape_of(self.slot);
        let invalid = |detail: u64| (Status::InvalidArgument, detail);
        let (root, tag) = (d.rkey.0, d.lkey.0);
        let size = spec.dtype.bytes();
        let bytes = d.operand.checked_mul(size).filter(|b| *b < 1 << 57);
        let bytes = bytes.ok_or(invalid(d.operand))?;
        if spec.wire != WireType::Same && size_is_not_f32(spec) {
            return Err(invalid(spec.wire.code().into()));
        }
        if spec.kind.reduces() && !spec.op.takes(spec.dtype) {
            return Err(invalid(spec.op.code().into()));
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
                    let pin = self.pin_side(d.local_va, bytes, Need::Read)?;
                    let pieces = pieces(region(&pin), d.local_va.0, bytes);
                    let to = root;
                    return Ok((Task::Send { to, tag, pieces }, [pin, None]));
                }
                let pin = self.pin_side(d.remote_va, bytes, Need::Write)?;
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
                let [input, output] = self.pin_both(bytes)?;
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
                if root >= ranks {
                    return Err(invalid(root.into()));
                }
                if tag == ANY_TAG || spec.wire != WireType::Same {
                    return Err(invalid(if tag == ANY_TAG { tag.into() } else { 0 }));
                }
                let pins = if sends {
                    [self.pin_operand(bytes, true)?, None]
                } else {
                    [None, self.pin_operand(bytes, false)?]
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
            _ => self.program_task(bytes),
        }
    }

    /// Pins source and destination of a program; a side without a block needs nothing.
    fn pin_sides(&mut self, sides: &Sides) -> Result<Pins, Refusal> {
        let mut pins = [None, None];
        for (i, (has, len)) in [sides.has_input, sides.has_output]
            .into_iter()
            .zip([sides.input, sides.output])
            .enumerate()
        {
            if !has {
                continue;
            }
            match self.pin_operand(len, i == 0) {
                Ok(pin) => pins[i] = pin,
                Err(e) => {
                    for p in pins.into_iter().flatten() {
                        self.mmu.unpin(p);
                    }
                    return Err(e);
                }
            }
        }
        Ok(pins)
    }

    /// Pins source or destination, be it a buffer of `len` bytes or a stream.
    fn pin_operand(&mut self, len: u64, source: bool) -> Result<Option<Pin>, Refusal> {
        let (d, spec) = (self.d, self.spec);
        let (streams, va, need) = match source {
            true => (spec.from_stream, d.local_va, Need::Read),
            false => (spec.to_stream, d.remote_va, Need::Write),
        };
        if !streams {
            return self.pin_side(va, len, need);
        }
        let s = StreamRef::from_word(va.0).ok_or((Status::InvalidArgument, va.0))?;
        let least = self.collectives.table.stream_bytes(self.slot);
        if s.capacity() < least {
            return Err((Status::NoResources, least));
        }
        // Its indices and its state are written in either case.
        self.pin_side(s.va, s.bytes(), Need::Write)
    }

    /// Pins source and destination of this rank's own pass.
    fn pin_both(&mut self, bytes: u64) -> Result<Pins, Refusal> {
        let d = self.d;
        let first = self.pin_side(d.local_va, bytes, Need::Read)?;
        match self.pin_side(d.remote_va, bytes, Need::Write) {
            Ok(second) => Ok([first, second]),
            Err(e) => {
                if let Some(p) = first {
                    self.mmu.unpin(p);
                }
                Err(e)
            }
        }
    }

    fn program_task(&mut self, bytes: u64) -> Result<(Task, Pins), Refusal> {
        use CollectiveKind as K;
        let (d, spec) = (self.d, self.spec);
        let (rank, ranks) = self.collectives.table.shape_of(self.slot);
        let invalid = |detail: u64| (Status::InvalidArgument, detail);
        let rooted = matches!(spec.kind, K::Broadcast | K::Reduce | K::Scatter | K::Gather);
        let root = if rooted { d.rkey.0 } else { 0 };
        if root >= ranks {
            return Err(invalid(root.into()));
        }
        // Others have no use for a tag.
        let port = if spec.streamed { d.lkey.0 } else { 0 };
        let port = u8::try_from(port).map_err(|_| invalid(port.into()))?;
        let order = self.collectives.table.order(self.slot);
        let strict = order == Order::Rank;
        let reduces = matches!(spec.kind, K::Reduce | K::AllReduce | K::ReduceScatter);
        if strict && spec.wire != WireType::Same && reduces {
            // How often a value is rounded on its way depends on the algorithm.
            return Err(invalid(spec.wire.code().into()));
        }
        let algo = match spec.algo {
            // The one whose root may have a stream, whether this one has.
            Algorithm::Auto if spec.streamed && spec.kind == K::Gather => Algorithm::Flat,
            // The direct path falls back to messages.
            Algorithm::Auto | Algorithm::Direct => {
                let t = self.collectives.table.thresholds(self.slot);
                let choose = if strict { choose_strict } else { choose };
                let locality = self.collectives.table.locality(self.slot);
                // A tree of wires has its own order of operands.
                let locality = match spec.kind {
                    K::Reduce if !spec.op.ignores_order(spec.dtype) => Locality::Network,
                    _ => locality,
                };
                choose(spec.kind, bytes, ranks, locality, &t)
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
            order,
            host_ranks: match algo {
                Algorithm::Hierarchical => self.collectives.table.host_ranks(self.slot),
                _ => HostRanks::default(),
            },
        };
        let refuse = |e: PlanError| {
            tracing::warn!(error = %e, kind = ?spec.kind, ?algo, "no program");
            invalid(algo.code().into())
        };
        let mut plan = self.collectives.plans.of(&shape).map_err(refuse)?;
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
            // Blocks of several ranks come one after the other, and few programs' windows do.
            let in_order = takes_blocks_in_order(spec.kind, algo);
            let one = |is: bool, len: u64| !is || in_order || len <= bytes;
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
            plan = self.collectives.plans.of(&shape).map_err(refuse)?;
        }
        // The hardware has the order of the ring.
        let for_cards = (spec.kind == K::AllReduce
            && spec.algo == Algorithm::Auto
            && spec.wire == WireType::Same
            && !(strict || ring || spec.streamed)
            && count > 0
            && card::reduces(spec.dtype, spec.op)
            && self.collectives.table.offers_card(self.slot))
        .then_some(Algorithm::Ring);
        let for_cards = for_cards.map(|algo| self.collectives.plans.of(&Shape { algo, ..shape }));
        let for_cards = for_cards.transpose().map_err(refuse)?;
        let freed = self.mmu.deregistrations();
        let pins = self.pin_sides(&sides)?;
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
            key: Key::of(self.pd, d),
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
            port,
            bytes: if sides.output > 0 {
                sides.output
            } else {
                sides.input
            },
            plan,
            for_cards,
            at: Default::default(),
            call: Default::default(),
            course: Default::default(),
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
