//! [`Operation`]: one operation of a communicator, ready to be posted.

use std::time::Duration;

use ringbell_nic_abi::collective::{ANY_RANK, ANY_TAG, MAX_PORT};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, DataType, Descriptor, Flags, Lkey, Opcode, ReduceOp,
    Rkey, SessionId, WireType,
};

use ringbell_onc_engines::program::{
    algorithms, is_strict, Family, GenerateError, HostRanks, Order,
};

use super::request::After;
use super::{CollectiveError, Element, Request};
use crate::span::Span;

/// Most bytes of a message between two ranks.
const LONGEST_MESSAGE: u64 = u32::MAX as u64;

/// An operation: its kind, operands and options. Post it with
/// [`Communicator::post`](super::Communicator::post) or run it with
/// [`Communicator::run`](super::Communicator::run).
#[derive(Debug, Clone, Copy)]
#[must_use = "an operation does nothing until it is posted"]
pub struct Operation {
    pub(super) spec: CollectiveSpec,
    pub(super) src: Span,
    pub(super) dst: Span,
    pub(super) count: u64,
    pub(super) root: u32,
    pub(super) tag: u32,
    pub(super) timeout: Option<Duration>,
    pub(super) after: After,
}

/// Refuses an algorithm that a collective does not have. Operations without programs ignore it.
fn generated(kind: CollectiveKind, algo: Algorithm) -> Result<(), String> {
    let all = algorithms(kind);
    if all.is_empty() || all.contains(&algo) {
        return Ok(());
    }
    Err(GenerateError::Algorithm { kind, algo }.to_string())
}

/// Whether operations of a kind that ask for no algorithm take this one: the kinds that have it. A
/// barrier has no ring, and a user's program is only looked for where there are programs at all.
pub(super) fn can_default_to(algo: Algorithm, kind: CollectiveKind) -> bool {
    let all = algorithms(kind);
    all.contains(&algo)
        || (algo == Algorithm::User && kind != CollectiveKind::Barrier && !all.is_empty())
}

impl Operation {
    pub(super) fn new(
        kind: CollectiveKind,
        dtype: DataType,
        src: Span,
        dst: Span,
        count: u64,
    ) -> Operation {
        Operation {
            spec: CollectiveSpec {
                dtype,
                streamed: src.is_stream() || dst.is_stream(),
                from_stream: src.is_stream(),
                to_stream: dst.is_stream(),
                ..CollectiveSpec::new(kind)
            },
            src,
            dst,
            count,
            root: 0,
            tag: 0,
            timeout: None,
            after: After::Nothing,
        }
    }

    pub(super) fn reducing(mut self, op: ReduceOp) -> Operation {
        self.spec.op = op;
        self
    }

    pub(super) fn rooted(mut self, root: u32) -> Operation {
        self.root = root;
        self
    }

    /// Ends when every rank has come.
    pub fn barrier() -> Operation {
        let none = Span::NONE;
        Operation::new(CollectiveKind::Barrier, DataType::U8, none, none, 0)
    }

    /// `count` elements to rank `to`, with a tag.
    pub fn send<T: Element>(src: impl Into<Span>, count: u64, to: u32, tag: u32) -> Operation {
        let none = Span::NONE;
        Operation::new(CollectiveKind::Send, T::DTYPE, src.into(), none, count)
            .rooted(to)
            .tag(tag)
    }

    /// At most `count` elements from rank `from` (`None`: any) with a tag (`None`: any).
    pub fn recv<T: Element>(
        dst: impl Into<Span>,
        count: u64,
        from: Option<u32>,
        tag: Option<u32>,
    ) -> Operation {
        let none = Span::NONE;
        Operation::new(CollectiveKind::Recv, T::DTYPE, none, dst.into(), count)
            .rooted(from.unwrap_or(ANY_RANK))
            .tag(tag.unwrap_or(ANY_TAG))
    }

    /// `count` elements, without a limit, to rank `to` in messages of a stream's size: from a
    /// kernel's pushes, or from memory. The other rank posts [`Operation::stream_recv`] with the
    /// same count, type and tag.
    pub fn stream_send<T: Element>(
        src: impl Into<Span>,
        count: u64,
        to: u32,
        tag: u32,
    ) -> Operation {
        let (kind, none) = (CollectiveKind::StreamSend, Span::NONE);
        Operation::new(kind, T::DTYPE, src.into(), none, count)
            .rooted(to)
            .tag(tag)
            .streamed()
    }

    /// `count` elements that rank `from` sends with [`Operation::stream_send`]: to a kernel's pops,
    /// or to memory.
    pub fn stream_recv<T: Element>(
        dst: impl Into<Span>,
        count: u64,
        from: u32,
        tag: u32,
    ) -> Operation {
        let (kind, none) = (CollectiveKind::StreamRecv, Span::NONE);
        Operation::new(kind, T::DTYPE, none, dst.into(), count)
            .rooted(from)
            .tag(tag)
            .streamed()
    }

    /// `dst` = `src` on this rank, by the NIC.
    pub fn copy<T: Element>(src: impl Into<Span>, dst: impl Into<Span>, count: u64) -> Operation {
        let (s, d) = (src.into(), dst.into());
        Operation::new(CollectiveKind::Copy, T::DTYPE, s, d, count)
    }

    /// `dst` = `dst` op `src` on this rank, by the NIC.
    pub fn combine<T: Element>(
        src: impl Into<Span>,
        dst: impl Into<Span>,
        count: u64,
        op: ReduceOp,
    ) -> Operation {
        let (s, d) = (src.into(), dst.into());
        Operation::new(CollectiveKind::Combine, T::DTYPE, s, d, count).reducing(op)
    }

    /// Does nothing: ends when its predecessor has ended.
    pub fn nop() -> Operation {
        let none = Span::NONE;
        Operation::new(CollectiveKind::Nop, DataType::U8, none, none, 0)
    }

    /// An operation by its numbers, for callers that choose kind and type at run time.
    pub fn by_kind(
        kind: CollectiveKind,
        dtype: DataType,
        op: ReduceOp,
        src: Span,
        dst: Span,
        count: u64,
        root: u32,
    ) -> Operation {
        Operation::new(kind, dtype, src, dst, count)
            .reducing(op)
            .rooted(root)
    }

    /// With this tag: for sends and receives made by [`Operation::by_kind`].
    pub fn tag(mut self, tag: u32) -> Operation {
        self.tag = tag;
        self
    }

    /// On this port, for a streamed collective. Those of one port are one order, the same on all
    /// ranks; those of different ports may be posted in any order, and run side by side. Port 0,
    /// the default, is in the order of all operations that are not streamed.
    pub fn port(self, port: u8) -> Operation {
        self.tag(port.into())
    }

    /// With this algorithm.
    pub fn algo(mut self, algo: Algorithm) -> Operation {
        self.spec.algo = algo;
        self
    }

    /// In the order of streams. An operation with a stream on this rank is so by itself. Ranks
    /// without one must call this, because all ranks move the same windows.
    pub fn streamed(mut self) -> Operation {
        self.spec.streamed = true;
        self
    }

    /// f32 elements have this type on the wire; arithmetic stays in f32.
    pub fn wire(mut self, wire: WireType) -> Operation {
        self.spec.wire = wire;
        self
    }

    /// Ends with TIMED_OUT after this time.
    pub fn timeout(mut self, timeout: Duration) -> Operation {
        self.timeout = Some(timeout);
        self
    }

    /// Starts when these requests of the same communicator have ended; the NIC waits, not this
    /// thread. With more than one, when all earlier operations of the communicator's queue have
    /// ended. Calls add up.
    pub fn after(mut self, requests: &[&Request]) -> Operation {
        let mut after = self.after;
        for r in requests {
            after = match (after, r.as_predecessor()) {
                (a, None) => a,
                (After::Nothing, Some(p)) => p,
                (i @ After::Impossible(_), _) | (_, Some(i @ After::Impossible(_))) => i,
                (After::Ticket(queue, _), Some(After::Ticket(other, _))) if queue != other => {
                    After::Impossible("requests of different communicators")
                }
                _ => After::Everything,
            };
        }
        self.after = after;
        self
    }

    /// Starts when all earlier operations of the communicator's queue have ended.
    pub fn fence(mut self) -> Operation {
        self.after = After::Everything;
        self
    }

    /// The same, with no predecessor except the stream's earlier work.
    pub(super) fn in_order(mut self) -> Operation {
        self.after = After::Nothing;
        self
    }

    /// Its kind.
    pub fn kind(&self) -> CollectiveKind {
        self.spec.kind
    }

    /// Elements that source and destination must hold on `rank` of `ranks`.
    pub fn needs(&self, rank: u32, ranks: u32) -> (u64, u64) {
        use CollectiveKind as K;
        let (one, all) = (self.count, self.count.saturating_mul(ranks.into()));
        let at_root = |n| if rank == self.root { n } else { 0 };
        match self.spec.kind {
            K::Nop | K::Barrier => (0, 0),
            K::Send | K::StreamSend => (one, 0),
            K::Recv | K::StreamRecv => (0, one),
            K::Copy | K::Combine | K::AllReduce => (one, one),
            K::Broadcast => (at_root(one), one),
            K::Reduce => (one, at_root(one)),
            K::Scatter => (at_root(all), one),
            K::Gather => (one, at_root(all)),
            K::AllGather => (one, all),
            K::ReduceScatter => (all, one),
            K::AllToAll => (all, all),
        }
    }

    /// Refuses a predecessor whose ticket is another queue's, where the number means another
    /// operation.
    pub(super) fn check_queue(&self, own: u32) -> Result<(), CollectiveError> {
        match self.after {
            After::Ticket(queue, _) if queue != own => Err(CollectiveError::Misuse {
                kind: self.spec.kind,
                why: "it cannot come after a request of another communicator; wait for that one first".into(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn too_patient(&self, timeout: Duration) -> CollectiveError {
        CollectiveError::Misuse {
            kind: self.spec.kind,
            why: format!(
                "its time-out is {timeout:?}: at most 2^32 - 1 microseconds (71 minutes) fit into a descriptor"
            ),
        }
    }

    /// Refuses an invalid operation before the NIC sees it.
    pub(super) fn check(&self, rank: u32, ranks: u32) -> Result<(), CollectiveError> {
        use CollectiveKind as K;
        let misuse = |why: String| CollectiveError::Misuse {
            kind: self.spec.kind,
            why,
        };
        self.check_length()?;
        let (src, dst) = self.needs(rank, ranks);
        for (name, span, elements) in [("source", &self.src, src), ("destination", &self.dst, dst)]
        {
            if span.is_stream() && elements > self.count && !self.takes_blocks() {
                return Err(misuse(format!(
                    "its {name} has a block for each rank, and here a stream stands for one block: give it memory (a scatter or gather by FLAT takes a stream of all blocks)"
                )));
            }
        }
        let unlike = matches!(
            self.spec.kind,
            K::Nop | K::Send | K::Recv | K::Copy | K::Combine
        );
        if (self.src.is_stream() || self.dst.is_stream()) && unlike {
            return Err(misuse(
                "it moves one message or none: use stream_send and stream_recv".to_string(),
            ));
        }
        for (name, span, elements) in [("source", &self.src, src), ("destination", &self.dst, dst)]
        {
            let bytes = elements.saturating_mul(self.spec.dtype.bytes());
            if bytes > span.bytes() {
                return Err(misuse(format!(
                    "it needs {bytes} bytes of {name} ({elements} elements), but the buffer has {} from its offset on",
                    span.bytes()
                )));
            }
        }
        let algo = self.spec.algo;
        if !matches!(algo, Algorithm::Auto | Algorithm::User) {
            generated(self.spec.kind, algo).map_err(misuse)?;
        }
        if let After::Impossible(why) = self.after {
            return Err(misuse(format!("it cannot come after {why}")));
        }
        Ok(())
    }

    /// Whether a stream may stand for the blocks of all ranks, which then follow each other.
    fn takes_blocks(&self) -> bool {
        use CollectiveKind as K;
        let flat = matches!(self.spec.algo, Algorithm::Auto | Algorithm::Flat);
        flat && matches!(self.spec.kind, K::Scatter | K::Gather)
    }

    /// A message is one descriptor at either end, in any kind of memory. Collectives and streams go
    /// by windows.
    fn check_length(&self) -> Result<(), CollectiveError> {
        let kind = self.spec.kind;
        let bytes = self.count.saturating_mul(self.spec.dtype.bytes());
        if !matches!(kind, CollectiveKind::Send | CollectiveKind::Recv) || bytes <= LONGEST_MESSAGE
        {
            return Ok(());
        }
        Err(CollectiveError::Argument {
            kind,
            why: format!(
                "a message of {bytes} bytes is too long: a message has at most {LONGEST_MESSAGE} bytes (4 GiB - 1), so send and receive it in several"
            ),
        })
    }

    /// Distinguishes in words the errors that the NIC reports with one status.
    pub(super) fn check_arguments(&self, ranks: u32) -> Result<(), CollectiveError> {
        let kind = self.spec.kind;
        let refused = |why| CollectiveError::Argument { kind, why };
        self.is_runnable(ranks).map_err(refused)
    }

    fn is_runnable(&self, ranks: u32) -> Result<(), String> {
        use CollectiveKind as K;
        let CollectiveSpec { kind, dtype, .. } = self.spec;
        let last = ranks.saturating_sub(1);
        let message = matches!(kind, K::Send | K::Recv | K::StreamSend | K::StreamRecv);
        let any = kind == K::Recv && self.root == ANY_RANK;
        let rooted = message || matches!(kind, K::Broadcast | K::Reduce | K::Scatter | K::Gather);
        if rooted && !any && self.root >= ranks {
            let (what, rank) = (if message { "peer" } else { "root" }, self.root);
            return Err(format!(
                "its {what} is rank {rank}, and the communicator has ranks 0 to {last}"
            ));
        }
        if !message && self.tag != 0 {
            if self.tag > MAX_PORT {
                let port = self.tag;
                return Err(format!("its port is {port}: ports go from 0 to {MAX_PORT}"));
            }
            if !self.spec.streamed {
                return Err(format!(
                    "it has port {}, and is not streamed: only a streamed collective has a port of its own",
                    self.tag
                ));
            }
        }
        if self.tag == ANY_TAG && message && kind != K::Recv {
            return Err("its tag is ANY_TAG, which only a receive may have".into());
        }
        if self.spec.wire != WireType::Same && dtype != DataType::F32 {
            return Err(format!(
                "its wire type is {:?}: only elements of type F32 are converted, not {dtype:?}",
                self.spec.wire
            ));
        }
        let op = self.spec.op;
        if kind.reduces() && !op.takes(dtype) {
            return Err(format!(
                "its operation is {op:?}, which works on the bits of integers, and its elements are {dtype:?}"
            ));
        }
        let bytes = self.count.checked_mul(dtype.bytes());
        let Some(bytes) = bytes.filter(|b| *b < 1 << 57) else {
            let count = self.count;
            return Err(format!("{count} elements are more than memory can hold"));
        };
        if matches!(kind, K::Send | K::Recv) && bytes > u64::from(u32::MAX) {
            return Err(format!(
                "a message of {bytes} bytes is too long: at most 2^32 - 1, so split it"
            ));
        }
        let apart = self.src.va().0.abs_diff(self.dst.va().0);
        let same = apart == 0 && kind == K::Combine;
        if matches!(kind, K::Copy | K::Combine) && apart < bytes && !same {
            return Err(
                "source and destination overlap: give it memory that does not (COMBINE may have both at one address)"
                    .into(),
            );
        }
        Ok(())
    }

    /// Refuses an algorithm that needs to know which ranks share a host, where that is not known.
    pub(super) fn check_hosts(
        &self,
        defaults: (Algorithm, WireType, Duration),
        ranks: u32,
        host_ranks: impl FnOnce() -> HostRanks,
    ) -> Result<(), CollectiveError> {
        if ![self.spec.algo, defaults.0].contains(&Algorithm::Hierarchical) {
            return Ok(());
        }
        let (kind, d) = (self.spec.kind, self.descriptor(SessionId(0), 0, defaults));
        let spec = CollectiveSpec::decode(d.imm, d.len);
        if spec.is_none_or(|s| s.algo != Algorithm::Hierarchical) {
            return Ok(());
        }
        let family = Family::new(Order::Ring, kind, Algorithm::Hierarchical, ranks, 0);
        let on_hosts = family.and_then(|f| f.on_hosts(host_ranks()));
        on_hosts.map(drop).map_err(|e| CollectiveError::Argument {
            kind,
            why: e.to_string(),
        })
    }

    /// Refuses what would not reduce in the order of the ranks.
    pub(super) fn check_strict(
        &self,
        defaults: (Algorithm, WireType, Duration),
    ) -> Result<(), CollectiveError> {
        use CollectiveKind as K;
        let (kind, d) = (self.spec.kind, self.descriptor(SessionId(0), 0, defaults));
        let Some(spec) = CollectiveSpec::decode(d.imm, d.len) else {
            return Ok(());
        };
        let reduces = matches!(kind, K::Reduce | K::AllReduce | K::ReduceScatter);
        let why = if reduces && spec.wire != WireType::Same {
            let wire = spec.wire;
            format!("the communicator is `deterministic`, and with {wire:?} on the wire the bits depend on the algorithm; leave the wire type as the elements are")
        } else if !is_strict(kind, spec.algo) {
            GenerateError::Strict {
                kind,
                algo: spec.algo,
            }
            .to_string()
        } else {
            return Ok(());
        };
        Err(CollectiveError::Argument { kind, why })
    }

    /// The descriptor, for the ticket that it gets.
    pub(super) fn descriptor(
        &self,
        comm: SessionId,
        ticket: u32,
        defaults: (Algorithm, WireType, Duration),
    ) -> Descriptor {
        let mut spec = self.spec;
        let auto = Algorithm::Auto;
        if defaults.0 != auto && spec.algo == auto && can_default_to(defaults.0, spec.kind) {
            spec.algo = defaults.0;
        }
        let message = matches!(
            spec.kind,
            CollectiveKind::StreamSend | CollectiveKind::StreamRecv
        );
        if spec.wire == WireType::Same && spec.dtype == DataType::F32 && !message {
            spec.wire = defaults.1;
        }
        let mut d = Descriptor::new(Opcode::Collective);
        match self.after {
            After::Ticket(_, t) => spec.after = ticket.wrapping_sub(t),
            After::Everything => d.flags = Flags::FENCE,
            After::Nothing | After::Impossible(_) => {}
        }
        (d.imm, d.len) = spec.encode();
        d.session = comm;
        d.local_va = self.src.va();
        d.remote_va = self.dst.va();
        d.operand = self.count;
        d.rkey = Rkey(self.root);
        d.lkey = Lkey(self.tag);
        let timeout = self.timeout.unwrap_or(defaults.2).as_micros();
        d.timeout_us = u32::try_from(timeout).unwrap_or(u32::MAX).max(1);
        d
    }
}

#[cfg(test)]
mod tests {
    use ringbell_nic_abi::{GpuVa, Status, StreamRef};

    use super::*;

    fn span(elements: u64) -> Span {
        Span::of(GpuVa(0x1000), elements * 4)
    }

    #[test]
    fn buffers_that_are_too_small_are_refused_where_they_are_needed_only() {
        let full = |r: Result<(), CollectiveError>| r.map_err(|e| e.to_string());
        let gather = Operation::gather::<f32>(span(5), span(15), 5, 1);
        assert_eq!(full(gather.check(1, 3)), Ok(()));
        let small = Operation::gather::<f32>(span(5), span(14), 5, 1);
        assert_eq!(full(small.check(0, 3)), Ok(()), "only the root has it");
        let e = full(small.check(1, 3)).expect_err("too small");
        assert!(
            e.contains("60 bytes of destination") && e.contains("has 56"),
            "{e}"
        );
        let scatter = Operation::scatter::<f32>(Span::NONE, span(5), 5, 2);
        assert_eq!(full(scatter.check(0, 3)), Ok(()));
        assert!(scatter.check(2, 3).is_err());
        let huge = Operation::all_gather::<f64>(span(0), span(0), u64::MAX);
        assert!(huge.check(0, 2).is_err(), "no wrap-around");
        assert_eq!(full(Operation::barrier().check(0, 3)), Ok(()));
    }

    #[test]
    fn a_message_that_no_descriptor_holds_is_refused_before_its_memory_is_looked_at() {
        let most = u64::from(u32::MAX);
        let room = Span::of(GpuVa(0x1000), u64::MAX);
        for memory in [room, span(1)] {
            for count in [most + 1, 1 << 61, u64::MAX] {
                for o in [
                    Operation::send::<u8>(memory, count, 1, 0),
                    Operation::recv::<u8>(memory, count, Some(1), None),
                    Operation::send::<f64>(memory, count, 1, 0),
                ] {
                    let e = o.check(0, 2).expect_err("too long");
                    assert_eq!(e.status(), Some(Status::InvalidArgument));
                    let e = e.to_string();
                    assert!(e.contains("at most 4294967295 bytes"), "{e}");
                    assert!(e.contains("in several"), "{e}");
                }
            }
        }
        assert!(Operation::send::<u8>(room, most, 1, 0).check(0, 2).is_ok());
        assert!(Operation::send::<u32>(room, most / 4, 1, 0)
            .check(0, 2)
            .is_ok());
        // Operations that go by windows have no such limit.
        for o in [
            Operation::broadcast::<u8>(room, room, most + 1, 0),
            Operation::stream_send::<u8>(room, most + 1, 1, 0),
            Operation::all_gather::<u32>(room, room, most + 1),
        ] {
            assert!(o.check(0, 2).is_ok(), "{o:?}");
        }
    }

    #[test]
    fn a_stream_is_one_block_and_is_flagged_in_the_descriptor() {
        let stream = Span::of_stream(StreamRef {
            va: GpuVa(0x8000),
            log2: 12,
        });
        let defaults = (Algorithm::Auto, WireType::Bf16, Duration::from_millis(5));
        let spec = |o: &Operation| {
            let d = o.descriptor(SessionId(3), 9, defaults);
            let s = CollectiveSpec::decode(d.imm, d.len).expect("known codes");
            ((s.streamed, s.from_stream, s.to_stream), s.wire, d)
        };
        let o = Operation::reduce::<f32>(stream, span(7), 7, ReduceOp::Sum, 1);
        assert!(o.check(1, 3).is_ok());
        let (flags, _, d) = spec(&o);
        assert_eq!((flags, d.local_va.0), ((true, true, false), 0x8000 | 12));
        // On other ranks memory serves, as long as the operation says so.
        let o = Operation::reduce::<f32>(span(7), span(7), 7, ReduceOp::Sum, 1).streamed();
        assert_eq!(spec(&o).0, (true, false, false));
        let o = Operation::stream_recv::<f32>(span(7), 7, 2, 5);
        let (flags, wire, d) = spec(&o);
        assert_eq!((flags, wire), ((true, false, false), WireType::Same));
        assert_eq!((d.rkey.0, d.lkey.0), (2, 5));
        assert!(Operation::stream_recv::<f32>(span(6), 7, 2, 5)
            .check(0, 3)
            .is_err());
        for o in [
            Operation::all_gather::<f32>(span(7), stream, 7),
            Operation::send::<f32>(stream, 7, 1, 0),
        ] {
            let e = o.check(0, 3).expect_err("no block, no stream").to_string();
            assert!(e.contains("stream"), "{e}");
        }
    }

    #[test]
    fn a_stream_of_all_blocks_and_a_port_are_refused_where_there_are_none() {
        let stream = Span::of_stream(StreamRef {
            va: GpuVa(0x8000),
            log2: 12,
        });
        let gather = Operation::gather::<f32>(stream, stream, 7, 1);
        assert!(gather.check(1, 3).is_ok());
        assert!(gather.algo(Algorithm::Flat).check(1, 3).is_ok());
        let e = gather.algo(Algorithm::Tree).check(1, 3).expect_err("parts");
        assert!(e.to_string().contains("by FLAT"), "{e}");
        let defaults = (Algorithm::Auto, WireType::Same, Duration::from_millis(5));
        let o = gather.port(200);
        assert!(o.check_arguments(3).is_ok());
        assert_eq!(o.descriptor(SessionId(3), 9, defaults).lkey.0, 200);
        let e = gather.tag(256).check_arguments(3).expect_err("8 bits");
        assert!(e.to_string().contains("from 0 to 255"), "{e}");
        let sum = Operation::all_reduce::<f32>(span(1), span(1), 1, ReduceOp::Sum);
        let e = sum.port(1).check_arguments(3).expect_err("not streamed");
        assert!(e.to_string().contains("not streamed"), "{e}");
        assert!(sum.port(1).streamed().check_arguments(3).is_ok());
    }

    #[test]
    fn a_missing_algorithm_is_skipped_as_a_default_and_refused_on_request() {
        let chosen = |o: &Operation, default| {
            let d = o.descriptor(SessionId(3), 9, (default, WireType::Same, Duration::MAX));
            CollectiveSpec::decode(d.imm, d.len).expect("known").algo
        };
        let sum = Operation::all_reduce::<f32>(span(1), span(1), 1, ReduceOp::Sum);
        let (ring, auto) = (Algorithm::Ring, Algorithm::Auto);
        assert_eq!(chosen(&sum, ring), ring);
        assert_eq!(chosen(&sum, Algorithm::User), Algorithm::User);
        assert_eq!(chosen(&sum, Algorithm::Chain), auto);
        for default in [ring, Algorithm::User, Algorithm::Tree] {
            assert_eq!(chosen(&Operation::barrier(), default), auto);
            assert_eq!(chosen(&Operation::nop(), default), auto);
        }
        let e = sum
            .algo(Algorithm::Chain)
            .check(0, 3)
            .expect_err("no chain");
        let e = e.to_string();
        assert!(
            e.contains("all-reduce has no algorithm chain: choose one of ring,"),
            "{e}"
        );
        assert!(
            sum.algo(Algorithm::User).check(0, 3).is_ok(),
            "the NIC knows"
        );
    }

    #[test]
    fn defaults_fill_in_unset_parameters() {
        let defaults = (Algorithm::Tree, WireType::Bf16, Duration::from_millis(5));
        let o = Operation::all_reduce::<f32>(span(1), span(1), 1, ReduceOp::Max);
        let d = o.descriptor(SessionId(3), 9, defaults);
        let s = CollectiveSpec::decode(d.imm, d.len).expect("known codes");
        assert_eq!((s.algo, s.wire), (Algorithm::Tree, WireType::Bf16));
        assert_eq!((d.timeout_us, d.operand), (5000, 1));
        let mut o = Operation::all_reduce::<i32>(span(1), span(1), 1, ReduceOp::Max)
            .algo(Algorithm::Ring)
            .timeout(Duration::from_micros(7));
        o.after = After::Ticket(0, u32::MAX);
        let d = o.descriptor(SessionId(3), 1, defaults);
        let s = CollectiveSpec::decode(d.imm, d.len).expect("known codes");
        // Integers are never rounded on the wire.
        assert_eq!(
            (s.algo, s.wire, s.after),
            (Algorithm::Ring, WireType::Same, 2)
        );
        assert_eq!(d.timeout_us, 7);
    }
}
