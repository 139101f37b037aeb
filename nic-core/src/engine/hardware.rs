//! [`Counter`]: an engine of a card that counts in the place of an engine of the NIC.

/// What an engine of a card has counted since it was asked last.
#[derive(Debug, Default)]
pub struct Tally {
    /// Its result, empty where nothing more has passed, for
    /// [`StreamEngine::absorb`](ringbell_onc_engines::stream::StreamEngine::absorb).
    pub result: Vec<u8>,
    /// The beginning of an item, which is not counted.
    pub rest: Vec<u8>,
}

/// An engine of a card on the path of one connection. Dropping it takes it off the path.
pub trait Counter: Send {
    /// What it has counted since the last call. `None`: it has failed.
    fn take(&mut self) -> Option<Tally>;
}

/// The counter of an engine, and what passes it.
pub(super) struct InHardware {
    pub(super) counter: Box<dyn Counter>,
    /// Bytes of an item.
    pub(super) item: u64,
    /// Bytes of the stream since it counts.
    pub(super) offered: u64,
    /// The stream has ended.
    pub(super) ended: bool,
}
