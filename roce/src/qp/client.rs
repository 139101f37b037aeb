//! The owner of a queue pair: [`Client`], and what the two pass to each other.

use ringbell_nic_abi::NakCode;

use ringbell_net::port::Batch;
use ringbell_net::wire::roce::{AtomicEth, Packet};

/// Memory of the peer: an address there, and its remote key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// First byte.
    pub address: u64,
    /// Remote key.
    pub key: u32,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// SEND, with immediate data or without.
    Send(Option<u32>),
    /// SEND that invalidates a key of the peer.
    SendInvalidate(u32),
    /// WRITE, with immediate data or without.
    Write(Remote, Option<u32>),
    /// READ.
    Read(Remote),
    /// Adds to a word of the peer.
    FetchAdd(Remote, u64),
    /// Compares a word of the peer with the first value and swaps it for the second when equal.
    CompareSwap(Remote, u64, u64),
}

/// A posted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The client's name for it.
    pub id: u64,
    /// What it does.
    pub request: Request,
    /// Bytes; of an atomic operation 8.
    pub len: u32,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkStatus {
    /// The peer has acknowledged it; of an atomic operation with the word's old value.
    Success(Option<u64>),
    /// The queue pair went to ERR before it was done.
    Flushed,
    /// The peer did not acknowledge it within all retries (RETRY_EXC).
    RetryExceeded,
    /// The peer was not ready for it within all retries (RNR_RETRY_EXC).
    ReceiverNotReady,
    /// The peer refused it.
    Refused(NakCode),
    /// Its own memory cannot be accessed.
    LocalProtection,
    /// The peer's answer has another length than the request.
    BadResponse,
}

/// A packet of a message that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The first packet of its message.
    pub first: bool,
    /// The last packet of its message.
    pub last: bool,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Immediate data, with the last packet.
    pub immediate: Option<u32>,
}

/// Why a request of the peer is not executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No receive is posted: the peer tries again later.
    NotReady,
    /// The connection ends with this reason.
    Nak(NakCode),
}

/// The reason for a request that needs memory which the client does not expose.
const NO_MEMORY: Refusal = Refusal::Nak(NakCode::RemoteAccess);

/// What an atomic operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds.
    FetchAdd,
    /// Compares and swaps.
    CompareSwap,
}

/// What the peer wants to do with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// READ.
    Read,
    /// WRITE.
    Write,
}

/// Local bytes that cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// Memory has not answered: the same call in a later step.
    Pending,
    /// The access faults: the request fails.
    Fault,
}

/// The owner of a queue pair. Without the methods for remote memory, no memory is exposed.
pub trait Client {
    /// Copies bytes of a request of ours, from `offset` on, into a packet. Packets are sent again,
    /// so the bytes stay until [`done`](Client::done).
    ///
    /// # Errors
    /// [`Unavailable`].
    fn gather(&mut self, id: u64, offset: u32, to: &mut [u8]) -> Result<(), Unavailable>;

    /// Adds the same bytes to a packet of a batch, by reference where they stay unchanged.
    ///
    /// # Errors
    /// [`Unavailable`].
    fn refer(
        &mut self,
        id: u64,
        offset: u32,
        len: usize,
        batch: &mut Batch,
    ) -> Result<(), Unavailable> {
        self.gather(id, offset, batch.room(len))
    }

    /// Takes bytes that a READ of ours has brought, in order.
    ///
    /// # Errors
    /// [`Unavailable::Fault`]: the request fails.
    fn scatter(&mut self, id: u64, offset: u32, bytes: &[u8]) -> Result<(), Unavailable> {
        let _ = (id, offset, bytes);
        Err(Unavailable::Fault)
    }

    /// A request of ours has ended.
    fn done(&mut self, id: u64, status: WorkStatus);

    /// Whether a request of ours that was not executed is to be dropped, because one before it was
    /// refused. Asked of a queue pair that goes on behind refusals
    /// ([`QueuePair::resuming`](super::QueuePair::resuming)).
    fn is_void(&self, id: u64) -> bool {
        let _ = id;
        false
    }

    /// The next packet of the peer is about to be executed: what follows, until the next, is of it.
    /// Packets that have come early are executed later.
    fn begins(&mut self, packet: &Packet<'_>) {
        let _ = packet;
    }

    /// Takes a packet of a SEND, or the immediate data of a WRITE (with no bytes).
    ///
    /// # Errors
    /// [`Refusal`]; nothing was taken.
    fn receive(&mut self, part: Part<'_>) -> Result<(), Refusal>;

    /// Takes a SEND or a WRITE of one packet whose bytes are where they belong: of a WRITE, that
    /// memory, and its immediate data.
    ///
    /// # Errors
    /// [`Refusal`]; nothing was taken.
    fn placed(&mut self, len: u32, write: Option<(Remote, Option<u32>)>) -> Result<(), Refusal> {
        let _ = (len, write);
        Err(NO_MEMORY)
    }

    /// Checks an access of the peer to all of a range.
    ///
    /// # Errors
    /// [`Refusal`]: key, bounds or rights do not allow it.
    fn check(&mut self, at: Remote, len: u32, right: Right) -> Result<(), Refusal> {
        let _ = (at, len, right);
        Err(NO_MEMORY)
    }

    /// Writes for the peer.
    ///
    /// # Errors
    /// [`Refusal`].
    fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        let _ = (at, bytes);
        Err(NO_MEMORY)
    }

    /// Whether what was written for the peer is in place. Every answer confirms what came before
    /// it, so none leaves until then: the owner has the queue pair asked again.
    fn has_landed(&mut self) -> bool {
        true
    }

    /// Reads for the peer.
    ///
    /// # Errors
    /// [`Refusal`].
    fn read(&mut self, at: Remote, to: &mut [u8]) -> Result<(), Refusal> {
        let _ = (at, to);
        Err(NO_MEMORY)
    }

    /// Executes an atomic operation of the peer; gives the old value.
    ///
    /// # Errors
    /// [`Refusal`].
    fn atomic(&mut self, operation: Atomic, operands: &AtomicEth) -> Result<u64, Refusal> {
        let _ = (operation, operands);
        Err(NO_MEMORY)
    }

    /// Invalidates a key, when the SEND that asks for it was received as a whole.
    ///
    /// # Errors
    /// [`Refusal`].
    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        let _ = key;
        Err(NO_MEMORY)
    }
}
