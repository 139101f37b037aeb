//! Collectives of two buffers, defined once: as an [`Operation`], and as a blocking call.

use ringbell_nic_abi::{CollectiveKind, ReduceOp};

use super::{CollectiveError, Communicator, Element, Operation};
use crate::Span;

/// `name(argument: type => setter) = Kind`.
macro_rules! calls {
    ($( $(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty => $set:ident),*) = $kind:ident; )+) => {
        /// Collectives of two buffers; counts are in elements, per rank where there is a block for
        /// each.
        impl Operation {
            $(
                $(#[$doc])*
                pub fn $name<T: Element>(
                    src: impl Into<Span>,
                    dst: impl Into<Span>,
                    count: u64,
                    $($arg: $ty,)*
                ) -> Operation {
                    let (s, d) = (src.into(), dst.into());
                    Operation::new(CollectiveKind::$kind, T::DTYPE, s, d, count)$(.$set($arg))*
                }
            )+
        }

        /// The operations as blocking calls; [`Operation`] has each with its options.
        impl Communicator {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// As [`Communicator::run`].
                pub fn $name<T: Element>(
                    &self,
                    src: impl Into<Span>,
                    dst: impl Into<Span>,
                    count: u64,
                    $($arg: $ty,)*
                ) -> Result<(), CollectiveError> {
                    self.run(&Operation::$name::<T>(src, dst, count, $($arg),*))
                        .map(drop)
                }
            )+
        }
    };
}

calls! {
    /// The reduction of every rank's `count` elements, to every rank. In place: give the buffer
    /// twice.
    all_reduce(op: ReduceOp => reducing) = AllReduce;
    /// Block r of the reduction to rank r: `count` elements to each; `src` holds a block for each
    /// rank.
    reduce_scatter(op: ReduceOp => reducing) = ReduceScatter;
    /// Every rank's `count` elements to block r of every `dst`.
    all_gather() = AllGather;
    /// The root's `src` to every rank's `dst`.
    broadcast(root: u32 => rooted) = Broadcast;
    /// The reduction of every rank's `count` elements, to the root's `dst`.
    reduce(op: ReduceOp => reducing, root: u32 => rooted) = Reduce;
    /// Block r of the root's `src` to rank r; `count` elements to each.
    scatter(root: u32 => rooted) = Scatter;
    /// Every rank's `count` elements to block r of the root's `dst`.
    gather(root: u32 => rooted) = Gather;
    /// Block j of rank i's `src` to block i of rank j's `dst`; `count` elements a block.
    all_to_all() = AllToAll;
}
