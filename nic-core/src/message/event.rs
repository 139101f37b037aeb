//! Events of messages, for the layer above.

use ringbell_nic_abi::Status;

/// An event of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A message has left: its memory may be reused.
    Sent {
        key: u64,
        status: Status,
        detail: u64,
    },
    /// A message is in the memory of its receive.
    Received {
        key: u64,
        status: Status,
        from: u32,
        len: u64,
        detail: u64,
    },
    /// A claim has met a message. `here`: its payload is here too.
    Met {
        key: u64,
        from: u32,
        tag: u64,
        len: u64,
        here: bool,
    },
    /// An agreed message has come whose operation the layer above must judge: its hash is given.
    Seen {
        ctx: u64,
        from: u32,
        tag: u64,
        hash: u32,
    },
}
