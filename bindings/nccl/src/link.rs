//! [`Link`]: a session of the NIC, its queue, and what is posted on it, without waiting.
#![allow(clippy::disallowed_methods)] // Times that the host's clock gives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell::abi::{Completion, Descriptor, Flags, GpuVa, Opcode, SessionId, Status};
use ringbell::{HostBuffer, HostQueue};

use crate::abi::Code;
use crate::device::{Device, DEPTH};
use crate::failure::Failure;
use crate::wire::{Process, Record, RECORD};

/// Longest time of an operation, in microseconds: about the most that a descriptor holds. Receives
/// that are idle are posted again.
const LONGEST_US: u32 = 4_200_000_000;
/// Most records that are posted to be received at a time.
pub(crate) const RECORDS: usize = 4;
/// Space of one in memory.
const STRIDE: u64 = 64;
/// Most bytes of one descriptor.
pub(crate) const PIECE: usize = 1 << 30;
/// How often a side that waits sends something, so that it learns of a peer that has vanished
/// without a word.
const PING: Duration = Duration::from_secs(1);
/// Longest time until the operations of a closed session have ended.
const DRAIN: Duration = Duration::from_secs(5);

/// What a posted send carries.
#[derive(Debug)]
enum Sent {
    /// A record, or the first bytes of a message.
    Nothing,
    Ping,
    /// The end of a message with the caller's number.
    Last(u64),
}

/// What a posted receive is for.
#[derive(Debug)]
enum Received {
    /// A record, at this place of the scratch memory.
    Record(u64),
    Nothing,
    /// The end of a message with the caller's number.
    Last(u64),
}

/// Something that has happened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A record has come. Another one is received when the caller posts this place again: behind
    /// the message that belongs to it.
    Record(Record, u64),
    /// All bytes of a message were sent: its memory is the caller's.
    Sent(u64),
    /// All bytes of a message are in place.
    Received(u64),
}

/// A connection, or what becomes one.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) device: Arc<Device>,
    queue: HostQueue,
    session: SessionId,
    pub(crate) peer: Process,
    /// Where records are received.
    scratch: Option<HostBuffer>,
    sends: VecDeque<(u32, Sent)>,
    receives: VecDeque<(u32, Received)>,
    /// The ticket after the newest.
    next: u32,
    pinged: Option<Instant>,
    has_ping: bool,
    /// How it ended.
    ended: Option<Failure>,
    closed: bool,
}

/// Makes a session without a peer.
pub(crate) fn socket(queue: &HostQueue) -> Result<SessionId, Failure> {
    let done = call(queue, "make a session", &Descriptor::new(Opcode::Socket))?;
    Ok(SessionId(done.detail as u32))
}

/// Runs an operation that the NIC ends at once.
pub(crate) fn call(queue: &HostQueue, what: &str, d: &Descriptor) -> Result<Completion, Failure> {
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

impl Link {
    /// Takes over a session and its queue.
    pub(crate) fn new(
        device: &Arc<Device>,
        queue: HostQueue,
        session: SessionId,
        peer: Process,
    ) -> Result<Link, Failure> {
        let bytes = vec![0; RECORDS * STRIDE as usize];
        let scratch = device.nic.adopt_host(bytes);
        let scratch = scratch.map_err(|e| Failure::system("no memory for records", &e))?;
        Ok(Link {
            device: device.clone(),
            queue,
            session,
            peer,
            scratch: Some(scratch),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            next: 0,
            pinged: None,
            has_ping: false,
            ended: None,
            closed: false,
        })
    }

    /// Whether so many more descriptors fit.
    pub(crate) fn has_room(&self, descriptors: usize) -> bool {
        let oldest = [
            self.sends.front().map(|s| s.0),
            self.receives.front().map(|r| r.0),
        ];
        let age = oldest
            .into_iter()
            .flatten()
            .map(|t| self.next.wrapping_sub(t));
        // Some are left for pings and receives of records.
        let reserve = 2 * RECORDS;
        age.max().unwrap_or(0) as usize + descriptors + reserve <= DEPTH as usize
    }

    fn post(&mut self, d: Descriptor) -> Result<u32, Failure> {
        let d = Descriptor {
            session: self.session,
            timeout_us: LONGEST_US,
            ..d
        };
        let ticket = self.queue.try_post(&d);
        let ticket = ticket.ok_or_else(|| {
            Failure::new(Code::InternalError, "the queue of a communicator is full")
        })?;
        self.next = ticket.wrapping_add(1);
        Ok(ticket)
    }

    fn send_inside(&mut self, record: &Record, what: Sent) -> Result<(), Failure> {
        let d = Descriptor {
            flags: Flags::INLINE,
            inline_len: RECORD as u8,
            inline: record.encode(),
            ..Descriptor::new(Opcode::Send)
        };
        let ticket = self.post(d)?;
        self.sends.push_back((ticket, what));
        Ok(())
    }

    /// Sends a record.
    pub(crate) fn send(&mut self, record: &Record) -> Result<(), Failure> {
        self.send_inside(record, Sent::Nothing)
    }

    /// Sends a message's header, and its bytes where they do not travel inside. There must be room.
    pub(crate) fn send_message(
        &mut self,
        header: &Record,
        pieces: &[(usize, usize)],
        number: u64,
    ) -> Result<(), Failure> {
        let alone = pieces.is_empty();
        let end = Sent::Last(number);
        self.send_inside(header, if alone { end } else { Sent::Nothing })?;
        for (i, piece) in pieces.iter().enumerate() {
            let ticket = self.post(transfer(Opcode::Send, *piece))?;
            let what = match i + 1 == pieces.len() {
                true => Sent::Last(number),
                false => Sent::Nothing,
            };
            self.sends.push_back((ticket, what));
        }
        Ok(())
    }

    /// Receives a message's bytes, behind what was posted before.
    pub(crate) fn receive(
        &mut self,
        pieces: &[(usize, usize)],
        number: u64,
    ) -> Result<(), Failure> {
        for (i, piece) in pieces.iter().enumerate() {
            let ticket = self.post(transfer(Opcode::Recv, *piece))?;
            let what = match i + 1 == pieces.len() {
                true => Received::Last(number),
                false => Received::Nothing,
            };
            self.receives.push_back((ticket, what));
        }
        Ok(())
    }

    /// Receives a record, at this place of its memory.
    pub(crate) fn receive_record(&mut self, place: u64) -> Result<(), Failure> {
        let Some(scratch) = &self.scratch else {
            return Ok(());
        };
        let va = scratch.va().0 + place * STRIDE;
        let ticket = self.post(transfer(Opcode::Recv, (va as usize, RECORD)))?;
        self.receives.push_back((ticket, Received::Record(place)));
        Ok(())
    }

    /// Starts to connect.
    pub(crate) fn connect(&mut self, ip: std::net::Ipv4Addr, port: u16) -> Result<(), Failure> {
        let d = Descriptor {
            session: self.session,
            operand: u32::from(ip).into(),
            imm: port.into(),
            timeout_us: u32::try_from(self.device.timeout.as_micros()).unwrap_or(LONGEST_US),
            ..Descriptor::new(Opcode::Connect)
        };
        let ticket = self.queue.try_post(&d);
        let ticket = ticket.ok_or_else(|| {
            Failure::new(Code::InternalError, "the queue of a communicator is full")
        })?;
        self.next = ticket.wrapping_add(1);
        self.sends.push_back((ticket, Sent::Nothing));
        Ok(())
    }

    /// Whether nothing that was sent is outstanding.
    pub(crate) fn has_sent(&self) -> bool {
        self.sends.is_empty()
    }

    /// Lets the NIC work, from the thread that waits.
    pub(crate) fn step(&self) {
        self.device.nic.backend().step();
    }

    /// Which transport carries it.
    pub(crate) fn transport(&self) -> &'static str {
        let all = self.device.nic.sessions();
        let own = all.into_iter().find(|s| s.id == self.session);
        own.and_then(|s| s.transport).unwrap_or("no transport")
    }

    /// Remembers how it ended, and gives the error of the call that finds out.
    pub(crate) fn fail(&mut self, code: Code, what: &str) -> Failure {
        let failure = Failure::new(code, format!("{}: {what}", self.peer));
        // Later calls fail alike; the log has it once.
        self.ended.get_or_insert(Failure::new(code, ""));
        failure
    }

    fn end(&mut self, operation: &str, status: Status) -> Failure {
        let code = match status {
            Status::ConnectionReset
            | Status::EndOfStream
            | Status::NotConnected
            | Status::ConnectionRefused
            | Status::HostUnreachable
            | Status::TimedOut => Code::RemoteError,
            _ => Code::SystemError,
        };
        self.fail(code, &format!("{operation} failed: {}", status.help()))
    }

    /// The error of earlier calls.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// What has happened next; `None` when nothing has.
    pub(crate) fn poll(&mut self) -> Result<Option<Event>, Failure> {
        self.check()?;
        while let Some((ticket, _)) = self.sends.front() {
            let Some(done) = self.queue.poll(*ticket) else {
                break;
            };
            let what = self.sends.pop_front().map(|s| s.1);
            if done.status != Status::Ok {
                return Err(self.end("a send", done.status));
            }
            match what {
                Some(Sent::Last(number)) => return Ok(Some(Event::Sent(number))),
                Some(Sent::Ping) => self.has_ping = false,
                Some(Sent::Nothing) | None => {}
            }
        }
        while let Some((ticket, _)) = self.receives.front() {
            let Some(done) = self.queue.poll(*ticket) else {
                break;
            };
            let what = self.receives.pop_front().map(|r| r.1);
            match (done.status, what) {
                (Status::Ok, Some(Received::Record(place))) => return self.record(place).map(Some),
                (Status::Ok, Some(Received::Last(number))) => {
                    return Ok(Some(Event::Received(number)))
                }
                (Status::Ok, _) => {}
                // Nothing came for longer than a descriptor waits.
                (Status::TimedOut, Some(Received::Record(place))) if done.bytes == 0 => {
                    self.receive_record(place)?;
                }
                (status, _) => return Err(self.end("a receive", status)),
            }
        }
        Ok(None)
    }

    fn record(&mut self, place: u64) -> Result<Event, Failure> {
        let mut bytes = [0; RECORD];
        let read = self
            .scratch
            .as_ref()
            .map(|s| s.read(place * STRIDE, &mut bytes));
        match (read, Record::decode(&bytes)) {
            (Some(Ok(())), Some(record)) => Ok(Event::Record(record, place)),
            _ => Err(self.fail(
                Code::RemoteError,
                "it sent what is no record of this plug-in",
            )),
        }
    }

    /// Sends something from time to time while the caller waits.
    pub(crate) fn ping(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let last = *self.pinged.get_or_insert(now);
        if now - last >= PING && !self.has_ping && self.has_room(1) {
            self.pinged = Some(now);
            self.has_ping = true;
            self.send_inside(&Record::Ping, Sent::Ping)?;
        }
        Ok(())
    }

    /// Ends the session: behind what was sent, or at once. Waits until the NIC uses no memory of
    /// it.
    pub(crate) fn close(&mut self, at_once: bool) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let opcode = if at_once {
            Opcode::Abort
        } else {
            Opcode::Close
        };
        let d = Descriptor {
            session: self.session,
            ..Descriptor::new(opcode)
        };
        // It fails when the NIC is closed, and then nothing is outstanding.
        let _ = self.queue.call(&d);
        let start = Instant::now();
        while start.elapsed() < DRAIN {
            while let Some(true) = self.sends.front().map(|s| self.queue.poll(s.0).is_some()) {
                self.sends.pop_front();
            }
            while let Some(true) = self
                .receives
                .front()
                .map(|r| self.queue.poll(r.0).is_some())
            {
                self.receives.pop_front();
            }
            if self.sends.is_empty() && self.receives.is_empty() {
                return;
            }
            self.step();
            std::thread::yield_now();
        }
        // The NIC may still write there.
        std::mem::forget(self.scratch.take());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close(true);
    }
}

fn transfer(opcode: Opcode, (at, len): (usize, usize)) -> Descriptor {
    Descriptor {
        local_va: GpuVa(at as u64),
        // At most `PIECE`.
        len: len as u32,
        ..Descriptor::new(opcode)
    }
}
