//! [`Session`]: a session of the NIC by which two processes learn of each other. The connecting one
//! sends a record, the listening one a byte; then both know enough for messages.
#![allow(clippy::disallowed_methods)] // A deadline on the host's clock.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell::abi::{Completion, Descriptor, Flags, GpuVa, Opcode, SessionId, Status};
use ringbell::{HostBuffer, HostQueue};

use crate::abi::Code;
use crate::device::Device;
use crate::failure::Failure;
use crate::wire::{Hello, HELLO};

/// Longest time of an operation, in microseconds: about the most that a descriptor holds.
const LONGEST_US: u32 = 4_200_000_000;
/// Longest time until the operations of a closed session have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// A session, its queue, and what is posted there.
#[derive(Debug)]
pub(crate) struct Session {
    device: Arc<Device>,
    queue: HostQueue,
    id: SessionId,
    /// Where the record is sent from, or received.
    record: Option<HostBuffer>,
    posted: VecDeque<u32>,
}

/// Makes a session without a peer.
pub(crate) fn socket(queue: &HostQueue) -> Result<SessionId, Failure> {
    let done = call(queue, "make a session", &Descriptor::new(Opcode::Socket))?;
    Ok(SessionId(done.detail as u32))
}

/// Runs an operation that the NIC ends at once.
fn call(queue: &HostQueue, what: &str, d: &Descriptor) -> Result<Completion, Failure> {
    let done = queue
        .call(d)
        .map_err(|e| Failure::system(&format!("cannot {what}"), &e))?;
    match done.status {
        Status::Ok => Ok(done),
        status => Err(Failure::new(
            Code::SystemError,
            format!("cannot {what}: {}", status.help()),
        )),
    }
}

impl Session {
    /// Takes over a session and its queue.
    pub(crate) fn new(
        device: &Arc<Device>,
        queue: HostQueue,
        id: SessionId,
    ) -> Result<Session, Failure> {
        let record = device.nic.adopt_host(vec![0; HELLO]);
        let record = record.map_err(|e| Failure::system("no memory for a record", &e))?;
        Ok(Session {
            device: device.clone(),
            queue,
            id,
            record: Some(record),
            posted: VecDeque::new(),
        })
    }

    fn post(&mut self, d: Descriptor) -> Result<(), Failure> {
        let d = Descriptor {
            session: self.id,
            ..d
        };
        let full = || Failure::new(Code::InternalError, "the queue of a connection is full");
        self.posted
            .push_back(self.queue.try_post(&d).ok_or_else(full)?);
        Ok(())
    }

    /// Starts to connect.
    pub(crate) fn connect(&mut self, ip: Ipv4Addr, port: u16) -> Result<(), Failure> {
        self.post(Descriptor {
            operand: u32::from(ip).into(),
            imm: port.into(),
            timeout_us: u32::try_from(self.device.timeout.as_micros()).unwrap_or(LONGEST_US),
            ..Descriptor::new(Opcode::Connect)
        })
    }

    fn transfer(&mut self, opcode: Opcode, bytes: usize) -> Result<(), Failure> {
        let va = self.record.as_ref().map_or(GpuVa(0), HostBuffer::va);
        self.post(Descriptor {
            local_va: va,
            len: bytes as u32,
            timeout_us: LONGEST_US,
            ..Descriptor::new(opcode)
        })
    }

    /// Sends the record, and receives the answer to it.
    pub(crate) fn greet(&mut self, hello: &Hello) -> Result<(), Failure> {
        if let Some(record) = &self.record {
            let written = record.write(0, &hello.encode());
            written.map_err(|e| Failure::system("cannot write a record", &e))?;
        }
        self.transfer(Opcode::Send, HELLO)?;
        self.transfer(Opcode::Recv, 1)
    }

    /// Receives the record.
    pub(crate) fn listen(&mut self) -> Result<(), Failure> {
        self.transfer(Opcode::Recv, HELLO)
    }

    /// The record that was received; `None`: no plug-in of this version has sent it.
    pub(crate) fn hello(&self) -> Option<Hello> {
        let mut bytes = [0; HELLO];
        self.record.as_ref()?.read(0, &mut bytes).ok()?;
        Hello::decode(&bytes)
    }

    /// Answers it.
    pub(crate) fn answer(&mut self) -> Result<(), Failure> {
        self.post(Descriptor {
            flags: Flags::INLINE,
            inline_len: 1,
            timeout_us: LONGEST_US,
            ..Descriptor::new(Opcode::Send)
        })
    }

    /// Whether all that was posted has ended well. Lets the NIC work.
    pub(crate) fn is_done(&mut self) -> Result<bool, Failure> {
        self.device.nic.backend().step();
        while let Some(done) = self.posted.front().and_then(|t| self.queue.poll(*t)) {
            self.posted.pop_front();
            if done.status != Status::Ok {
                return Err(Failure::new(Code::RemoteError, done.status.help()));
            }
        }
        Ok(self.posted.is_empty())
    }
}

impl Drop for Session {
    /// Ends it behind what was sent, or else at once. Waits until the NIC uses no memory of it.
    fn drop(&mut self) {
        let opcode = match self.posted.is_empty() {
            true => Opcode::Close,
            false => Opcode::Abort,
        };
        let d = Descriptor {
            session: self.id,
            ..Descriptor::new(opcode)
        };
        // It fails when the NIC is closed, and then nothing is outstanding.
        let _ = self.queue.call(&d);
        let start = Instant::now();
        while start.elapsed() < DRAIN {
            self.posted.retain(|t| self.queue.poll(*t).is_none());
            if self.posted.is_empty() {
                return;
            }
            self.device.nic.backend().step();
            std::thread::yield_now();
        }
        // The NIC may still write there.
        std::mem::forget(self.record.take());
    }
}
