//! [`Inbox`]: messages of a communicator that a host thread sends and receives without a queue.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use super::{CollectiveError, Communicator};

/// Messages of a communicator for a host thread: any number of receives may wait, in their order,
/// for as long as the communicator lives, from any rank and with any tag. Its methods are those of
/// [the NIC's](ringbell_nic_core::Inbox). [`Communicator::send`] and
/// [`recv`](Communicator::recv) have messages of their own.
///
/// ```
/// use std::time::Duration;
/// use ringbell::comm::{MessageEvent, Wants};
/// # use ringbell::{CommOptions, Communicator, Nic};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = std::env::temp_dir().join(format!("rb-doc-inbox-{}", std::process::id()));
/// # let nics: Vec<Nic> = ["10.9.8.5/24", "10.9.8.6/24"]
/// #     .iter()
/// #     .map(|ip| Nic::builder().ip(*ip).directory(&dir).gpu_memory(16 << 20).open())
/// #     .collect::<Result<_, _>>()?;
/// # let comms = Communicator::init_all(&nics, &CommOptions::default())?;
/// let [ours, theirs] = [comms[0].inbox()?, comms[1].inbox()?];
/// let any = Wants { from: None, context: 7, tag: None };
/// let receive = theirs.receive(&any)?;
/// ours.send((1, 7, 42), b"hello", false)?; // rank, context, tag
/// loop {
///     assert!(theirs.wait(Duration::from_secs(10)), "no message has come");
///     if let Some(MessageEvent::Met { id, found, here }) = theirs.poll()? {
///         assert_eq!((id, found.from, found.tag, found.len), (receive, 0, 42, 5));
///         assert!(here, "a longer one waits for `collect`");
///         let mut bytes = [0; 5];
///         theirs.read(id, &mut bytes)?;
///         assert_eq!(&bytes, b"hello");
///         break;
///     }
/// }
/// # drop((ours, theirs, comms, nics)); let _ = std::fs::remove_dir_all(dir);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Inbox {
    inbox: ringbell_nic_core::Inbox,
    /// The communicator, which lives as long as its inboxes.
    _comm: Arc<dyn Debug + Send + Sync>,
}

impl Inbox {
    pub(super) fn new(
        inbox: ringbell_nic_core::Inbox,
        comm: Arc<dyn Debug + Send + Sync>,
    ) -> Inbox {
        Inbox { inbox, _comm: comm }
    }
}

impl Deref for Inbox {
    type Target = ringbell_nic_core::Inbox;

    fn deref(&self) -> &ringbell_nic_core::Inbox {
        &self.inbox
    }
}

impl Communicator {
    /// Opens an inbox. Its operations may name memory of this rank's NIC.
    ///
    /// # Errors
    /// [`CollectiveError::Create`] when the NIC no longer has the communicator.
    pub fn inbox(&self) -> Result<Inbox, CollectiveError> {
        let nic = &self.inner.nic;
        let inbox = nic.backend().open_inbox(nic.pd(), self.inner.id)?;
        Ok(Inbox::new(inbox, self.inner.clone()))
    }
}
