//! [`Peers`]: messages of NICs that have learned of each other by the program's own means.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_core::collective::{
    CollectiveSettings, CommError, CommInfo, CommStatus, CommunicatorConfig,
};
use ringbell_nic_core::types::CommId;

use super::{Inbox, COLLECTIVE_PORT};
use crate::Nic;

/// Bytes of a message that may lie at its receiver without a receive.
const EARLY_BYTES: u64 = 8 << 10;
/// Such messages of each peer.
const EARLY: u32 = 8;

/// Messages of NICs whose addresses the program has exchanged itself: a communicator without a job,
/// a bootstrap, a queue and collectives. It is freed with its last inbox.
/// [`Communicator::inbox`](crate::Communicator::inbox) is for the ranks of a job.
///
/// ```
/// use std::time::{Duration, Instant};
/// use ringbell::comm::{CommStatus, MessageEvent, Peers};
/// # use ringbell::Nic;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = std::env::temp_dir().join(format!("rb-doc-peers-{}", std::process::id()));
/// # let open = |ip: &str| Nic::builder().ip(ip).directory(&dir).gpu_memory(1 << 20).open();
/// # let nics = [open("10.9.7.5/24")?, open("10.9.7.6/24")?];
/// let addresses = nics.each_ref().map(|nic| nic.ip().ip);
/// let join = |rank: u32| {
///     let nic = &nics[rank as usize];
///     Peers::join(nic, 4711, &addresses, rank, Duration::from_secs(10))
/// };
/// let (here, there) = (join(0)?, join(1)?);
/// let deadline = Instant::now() + Duration::from_secs(10);
/// while [&here, &there].iter().any(|p| p.status() != Ok(CommStatus::Ready)) {
///     assert!(Instant::now() < deadline, "they do not find each other");
///     nics.iter().for_each(|nic| drop(nic.backend().step()));
/// }
/// let memory = nics[1].adopt_host(vec![0; 5])?;
/// let [ours, theirs] = [here.inbox()?, there.inbox()?];
/// let receive = theirs.await_from((0, 7), &[(memory.va(), 5)])?;
/// ours.send_awaited_bytes((1, 7), b"hello")?; // rank and tag
/// assert!(theirs.wait(Duration::from_secs(10)), "no message has come");
/// let Some(MessageEvent::Ended { id, detail, .. }) = theirs.poll()? else { panic!() };
/// assert_eq!((id, detail), (receive, 5));
/// # drop((ours, theirs, here, there, memory, nics)); let _ = std::fs::remove_dir_all(dir);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Peers(Arc<Joined>);

/// What inboxes keep.
#[derive(Debug)]
struct Joined {
    nic: Nic,
    id: CommId,
}

impl Peers {
    /// Joins NICs, each of which gives the same `number` and the same addresses, and its own rank
    /// among these. The number is used once. The NICs find each other while they are stepped, in
    /// this time; [`status`](Peers::status) says when they have.
    ///
    /// # Errors
    /// [`CommError`]: the arguments, or NIC memory.
    pub fn join(
        nic: &Nic,
        number: u64,
        addresses: &[Ipv4Addr],
        rank: u32,
        time: Duration,
    ) -> Result<Peers, CommError> {
        let at = |ip: &Ipv4Addr| SocketAddrV4::new(*ip, COLLECTIVE_PORT);
        let id = nic.backend().create_communicator(&CommunicatorConfig {
            ctx: number,
            rank,
            peers: addresses.iter().map(at).collect(),
            settings: CollectiveSettings {
                eager_max: EARLY_BYTES,
                eager_buffers: EARLY,
                segment_bytes: 1 << 10,
                scratch_bytes: 64 << 10,
                direct: false,
                card: false,
                trees: false,
                connect_timeout: time,
                ..CollectiveSettings::default()
            },
        })?;
        let nic = nic.clone();
        Ok(Peers(Arc::new(Joined { nic, id })))
    }

    /// Whether all are there.
    ///
    /// # Errors
    /// [`CommError::Unknown`]: the NIC has been closed.
    pub fn status(&self) -> Result<CommStatus, CommError> {
        self.0.nic.backend().communicator_status(self.0.id)
    }

    /// What carries their messages, and counts of them.
    ///
    /// # Errors
    /// As [`status`](Peers::status).
    pub fn info(&self) -> Result<CommInfo, CommError> {
        self.0.nic.backend().communicator_info(self.0.id)
    }

    /// Opens an inbox for their messages. All inboxes share these; events come to the one whose
    /// operation it is.
    ///
    /// # Errors
    /// As [`status`](Peers::status).
    pub fn inbox(&self) -> Result<Inbox, CommError> {
        let Joined { nic, id } = &*self.0;
        let inbox = nic.backend().open_inbox(nic.pd(), *id)?;
        Ok(Inbox::new(inbox, self.0.clone()))
    }

    /// Ends all operations, at every NIC.
    pub fn abort(&self) {
        if let Err(error) = self.0.nic.backend().abort_communicator(self.0.id) {
            tracing::debug!(%error, "peers were gone before they were aborted");
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Err(error) = self.nic.backend().free_communicator(self.id) {
            tracing::debug!(%error, "peers were gone before they were freed");
        }
    }
}
