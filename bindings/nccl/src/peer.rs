//! [`Peer`]: the other end of a connection, and the messages to and from it.
#![allow(clippy::disallowed_methods)] // Deadlines on the host's clock.

use std::net::Ipv4Addr;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use std::time::Instant;

use ringbell::abi::{GpuVa, Status};
use ringbell::comm::{CommError, CommStatus, Inbox, MessageError, MessageEvent, MessageId, Peers};

use crate::abi::Code;
use crate::device::Device;
use crate::failure::Failure;
use crate::wire::Process;

/// Longest time until the operations of a closed connection have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// The rank of the end that listened, and receives.
pub(crate) const RECEIVER: u32 = 0;
/// Of the end that connected, and sends.
pub(crate) const SENDER: u32 = 1;

/// An operation that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) id: MessageId,
    pub(crate) status: Status,
    /// Bytes, of a receive.
    pub(crate) bytes: u64,
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) device: Arc<Device>,
    pub(crate) process: Process,
    joined: Instant,
    inbox: Option<Inbox>,
    peers: Arc<Peers>,
    /// The other end is this NIC, too.
    is_own: bool,
    /// How it ended.
    ended: Option<Failure>,
}

/// Joins the ends of a connection, of which this is one.
fn join(device: &Device, number: u64, rank: u32, other: Ipv4Addr) -> Result<Arc<Peers>, CommError> {
    let (nic, own) = (&device.nic, device.nic.ip().ip);
    if other != own {
        let addresses = match rank {
            RECEIVER => [own, other],
            _ => [other, own],
        };
        let peers = Peers::join(nic, number, &addresses, rank, device.timeout)?;
        return Ok(Arc::new(peers));
    }
    // Both are one rank.
    let mut all = device.own.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, peers| peers.strong_count() > 0);
    if let Some(peers) = all.get(&number).and_then(Weak::upgrade) {
        return Ok(peers);
    }
    let peers = Arc::new(Peers::join(nic, number, &[own], 0, device.timeout)?);
    all.insert(number, Arc::downgrade(&peers));
    Ok(peers)
}

impl Peer {
    /// Joins the other end, which is at this NIC, as the end with this rank.
    pub(crate) fn new(
        device: &Arc<Device>,
        number: u64,
        rank: u32,
        (process, other): (Process, Ipv4Addr),
    ) -> Result<Peer, Failure> {
        let peers = join(device, number, rank, other).and_then(|p| Ok((p.inbox()?, p)));
        let (inbox, peers) =
            peers.map_err(|e| Failure::system("the NIC has no room for a connection", &e))?;
        Ok(Peer {
            is_own: other == device.nic.ip().ip,
            device: device.clone(),
            process,
            joined: Instant::now(),
            inbox: Some(inbox),
            peers,
            ended: None,
        })
    }

    /// Whether the other end is there, or has been.
    pub(crate) fn is_ready(&self) -> Result<bool, Failure> {
        match self.peers.status() {
            Ok(CommStatus::Ready) => Ok(true),
            Ok(CommStatus::Connecting { .. }) => Ok(false),
            // It was faster, and has closed its end.
            Ok(CommStatus::Aborted { .. }) if self.joined.elapsed() < self.device.timeout => {
                Ok(true)
            }
            Ok(CommStatus::Aborted { status, .. }) => {
                Err(Failure::new(Code::RemoteError, status.help()))
            }
            Err(error) => Err(Failure::system("the connection is gone", &error)),
        }
    }

    /// The rank of an end.
    fn rank(&self, end: u32) -> u32 {
        if self.is_own {
            0
        } else {
            end
        }
    }

    fn inbox(&self) -> Result<&Inbox, Failure> {
        let closed = || Failure::argument("the communicator is closed");
        self.inbox.as_ref().ok_or_else(closed)
    }

    /// Sends a message to a receive with its tag. `None`: none is known, or too much is under way.
    pub(crate) fn send(
        &mut self,
        tag: i32,
        bytes: Result<&[(GpuVa, u64)], &[u8]>,
    ) -> Result<Option<MessageId>, Failure> {
        let to = (self.rank(RECEIVER), tag as u32);
        let inbox = self.inbox()?;
        let sent = match bytes {
            Ok(memory) => inbox.send_awaited(to, memory),
            Err(bytes) => inbox.send_awaited_bytes(to, bytes),
        };
        match sent {
            Ok(sent) => Ok(sent),
            Err(MessageError::Full) => Ok(None),
            Err(error) => Err(self.end("a send", &error)),
        }
    }

    /// Receives a message with a tag.
    pub(crate) fn receive(
        &mut self,
        tag: i32,
        memory: &[(GpuVa, u64)],
    ) -> Result<MessageId, Failure> {
        let from = (self.rank(SENDER), tag as u32);
        let begun = self.inbox()?.await_from(from, memory);
        begun.map_err(|error| self.end("a receive", &error))
    }

    /// What has ended next; `None` when nothing has. Lets the NIC work where nothing has without
    /// that.
    pub(crate) fn poll(&mut self) -> Result<Option<Ended>, Failure> {
        self.check()?;
        loop {
            match self.inbox()?.poll() {
                Ok(None) => return Ok(None),
                Ok(Some(MessageEvent::Ended { id, status, detail })) => {
                    let bytes = detail;
                    return Ok(Some(Ended { id, status, bytes }));
                }
                // No receive here is a claim.
                Ok(Some(MessageEvent::Met { .. })) => {}
                Err(error) => return Err(self.end("the connection", &error)),
            }
        }
    }

    /// As [`Peer::poll`], without work of the NIC.
    pub(crate) fn look(&mut self) -> Result<Option<Ended>, Failure> {
        self.check()?;
        match self.inbox()?.has_news() {
            true => self.poll(),
            false => Ok(None),
        }
    }

    /// What carries the messages.
    pub(crate) fn transport(&self) -> &'static str {
        if self.is_own {
            return "memory of this process";
        }
        let peers = self.peers.info().map_or_else(|_| Vec::new(), |i| i.peers);
        let first = peers.iter().find_map(|p| p.transport);
        first.unwrap_or("no transport")
    }

    /// Remembers how it ended, and gives the error of the call that finds out.
    pub(crate) fn fail(&mut self, code: Code, what: &str) -> Failure {
        let failure = Failure::new(code, format!("{}: {what}", self.process));
        // Later calls fail alike; the log has it once.
        self.ended.get_or_insert(Failure::new(code, ""));
        failure
    }

    /// The same of an operation that failed.
    pub(crate) fn failed(&mut self, operation: &str, status: Status) -> Failure {
        let code = match status {
            Status::PeerFailed
            | Status::CommAborted
            | Status::ConnectionReset
            | Status::HostUnreachable
            | Status::TimedOut => Code::RemoteError,
            Status::MessageTooLarge => Code::InvalidUsage,
            _ => Code::SystemError,
        };
        self.fail(code, &format!("{operation} failed: {}", status.help()))
    }

    fn end(&mut self, operation: &str, error: &MessageError) -> Failure {
        match error {
            MessageError::Ended { status, .. } => self.failed(operation, *status),
            _ => self.fail(Code::SystemError, &format!("{operation} failed: {error}")),
        }
    }

    /// The error of earlier calls.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Ends the connection: behind what was sent, or at once with all operations. Waits until the
    /// NIC uses no memory of them; `false`: it may still.
    pub(crate) fn close(&mut self, at_once: bool) -> bool {
        let Some(inbox) = self.inbox.take() else {
            return true;
        };
        self.ended
            .get_or_insert(Failure::argument("the communicator is closed"));
        // The other end learns of it by nothing else where both are one rank.
        if !at_once && !self.is_own {
            return true;
        }
        self.peers.abort();
        let start = Instant::now();
        while start.elapsed() < DRAIN {
            match inbox.poll() {
                Ok(Some(_)) => {}
                Ok(None) => std::thread::yield_now(),
                Err(_) => return true,
            }
        }
        false
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.close(true);
    }
}
