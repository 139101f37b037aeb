//! Events: occurrences without a descriptor of their own. One queue per NIC, read by the host.

use crate::{abi_struct, coded_enum};

coded_enum! {
    /// Kind of an event.
    pub enum EventKind: u32 ["EVENT_"] {
        /// A connection waits to be accepted; session = the listener, data = ip << 16 | port of the
        /// peer.
        ConnectionPending = 1 => "CONNECTION_PENDING",
        /// The peer closed its sending side.
        PeerClosed = 2 => "PEER_CLOSED",
        /// The peer reset the session or its process ended; data = the detail that operations get
        /// with `CONNECTION_RESET`.
        PeerReset = 3 => "PEER_RESET",
        /// A DMA fault; data = the address.
        Fault = 4 => "FAULT",
        /// A malformed descriptor on queue `session`; data = the word at fault.
        BadDescriptor = 5 => "BAD_DESCRIPTOR",
        /// `data` events were lost because the queue was full.
        Overflow = 6 => "OVERFLOW",
        /// Engine `session` measures less than it declares, or than its stream moves; data = bytes
        /// per second.
        EngineSlow = 7 => "ENGINE_SLOW",
        /// A stream ended inside an item of engine `session` (data = bytes that were there), or the
        /// engine failed (data = all ones) and a stream that it changes has ended.
        EngineError = 8 => "ENGINE_ERROR",
        /// A kernel has told the host `data` by the mailbox; session = the number that it wrote to
        /// MAILBOX_RING.
        Mailbox = 9 => "MAILBOX",
    }
}

abi_struct! {
    /// One event, 32 bytes.
    pub struct Event ["rb_event"] {
        /// Kind code, see the EVENT_ constants.
        kind: u32,
        /// Session, listener or queue concerned.
        session: u32,
        /// Depends on the kind.
        data: u64,
        /// NIC clock in nanoseconds.
        time_ns: u64,
        /// Number of this event, from 0; a gap means lost events.
        sequence: u64,
    }
}
