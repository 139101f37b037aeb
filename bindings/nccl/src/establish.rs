//! How connections are made: a listening NIC port for each listening communicator, and a first
//! record that proves the handle.
#![allow(clippy::disallowed_methods)] // Deadlines on the host's clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell::abi::{Descriptor, Opcode, SessionId, Status};
use ringbell::HostQueue;

use crate::abi::Code;
use crate::device::{self, Device};
use crate::failure::Failure;
use crate::introduce::Introductions;
use crate::link::{self, Event, Link};
use crate::log;
use crate::receive::Receiver;
use crate::send::Sender;
use crate::wire::{Handle, Process, Record};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 256;
/// Connections whose first record has not come yet.
const GREETING: usize = 64;
/// Longest time until it comes.
const GREETING_TIME: Duration = Duration::from_secs(20);
/// Longest wait of an accept of the NIC, in microseconds; it is posted again.
const ACCEPT_US: u32 = 4_200_000_000;
/// Ports that are tried.
const PORTS: u32 = 8192;

/// A listening communicator.
#[derive(Debug)]
pub(crate) struct Listening {
    device: Arc<Device>,
    queue: HostQueue,
    session: SessionId,
    nonce: [u8; 16],
    accept: Option<u32>,
    /// Connections that have not proved the handle, with the time at which they came.
    greeting: Vec<(Link, Instant)>,
}

impl Listening {
    /// Listens at a port of the NIC, and makes the handle.
    pub(crate) fn new(device: &Arc<Device>) -> Result<(Listening, Handle), Failure> {
        let nonce = device::random()?;
        let queue = device.queue()?;
        let session = link::socket(&queue)?;
        let mut port = device.next_port();
        let mut tries = 0;
        loop {
            let d = Descriptor {
                session,
                imm: u32::from(port) | BACKLOG << 16,
                ..Descriptor::new(Opcode::Listen)
            };
            let done = queue.call(&d);
            let done = done.map_err(|e| Failure::system("cannot listen", &e))?;
            match done.status {
                Status::Ok => break,
                Status::AddressInUse if tries < PORTS => tries += 1,
                status => {
                    let text = format!("cannot listen at port {port}: {}", status.help());
                    return Err(Failure::new(Code::SystemError, text));
                }
            }
            port = device.next_port();
        }
        let introductions = device.introductions.as_ref();
        if let Some(i) = introductions {
            i.listen(nonce);
        }
        let handle = Handle {
            nic: device.nic.ip().ip,
            port,
            datagrams: device.datagrams,
            introductions: introductions.map_or(0, Introductions::port),
            nonce,
            process: Process::own(),
            pending: 0,
        };
        let listening = Listening {
            device: device.clone(),
            queue,
            session,
            nonce,
            accept: None,
            greeting: Vec::new(),
        };
        Ok((listening, handle))
    }

    /// A connection that has proved the handle, if one has.
    pub(crate) fn accept(&mut self) -> Result<Option<Receiver>, Failure> {
        if let Some(i) = &self.device.introductions {
            i.pump();
        }
        self.device.nic.backend().step();
        match self.accept.and_then(|ticket| self.queue.poll(ticket)) {
            Some(done) if done.status == Status::Ok => {
                self.accept = None;
                let session = SessionId(done.detail as u32);
                self.greet(session)?;
            }
            Some(done) if done.status == Status::TimedOut => self.accept = None,
            Some(done) => {
                self.accept = None;
                let text = format!("cannot accept: {}", done.status.help());
                return Err(Failure::new(Code::SystemError, text));
            }
            None => {}
        }
        if self.accept.is_none() && self.greeting.len() < GREETING {
            let d = Descriptor {
                session: self.session,
                timeout_us: ACCEPT_US,
                ..Descriptor::new(Opcode::Accept)
            };
            self.accept = self.queue.try_post(&d);
        }
        let Some(link) = self.proved() else {
            return Ok(None);
        };
        let receiver = Receiver::new(link)?;
        log::info(&format!(
            "accepted {} over {}",
            receiver.link.peer,
            receiver.link.transport()
        ));
        Ok(Some(receiver))
    }

    /// Takes a connection out that has proved the handle; drops those that have failed to.
    fn proved(&mut self) -> Option<Link> {
        let mut place = 0;
        while let Some((link, since)) = self.greeting.get_mut(place) {
            match link.poll() {
                Ok(None) if since.elapsed() < GREETING_TIME => place += 1,
                Ok(Some(Event::Record(Record::Hello { nonce, process }, _)))
                    if nonce == self.nonce =>
                {
                    let (mut link, _) = self.greeting.remove(place);
                    link.peer = process;
                    return Some(link);
                }
                // Its peer has gone.
                Err(_) => drop(self.greeting.remove(place)),
                Ok(_) => {
                    drop(self.greeting.remove(place));
                    log::info("refused a connection that did not begin with its handle's secret");
                }
            }
        }
        None
    }

    /// A connection has come.
    fn greet(&mut self, session: SessionId) -> Result<(), Failure> {
        let queue = self.device.queue()?;
        let unknown = Process {
            host: String::new(),
            pid: 0,
        };
        let mut link = Link::new(&self.device, queue, session, unknown)?;
        link.receive_record(0)?;
        self.greeting.push((link, Instant::now()));
        Ok(())
    }

    /// Stops listening.
    pub(crate) fn close(&mut self) {
        if let Some(i) = &self.device.introductions {
            i.stop(&self.nonce);
        }
        let d = Descriptor {
            session: self.session,
            ..Descriptor::new(Opcode::Close)
        };
        // It fails when the NIC is closed.
        let _ = self.queue.call(&d);
        let accepted = match self.accept.take() {
            None => None,
            Some(ticket) => match self.queue.wait(ticket, Duration::from_secs(1)) {
                Ok(done) => (done.status == Status::Ok).then_some(done.detail as u32),
                Err(_) => return,
            },
        };
        if let Some(session) = accepted {
            let d = Descriptor {
                session: SessionId(session),
                ..Descriptor::new(Opcode::Abort)
            };
            let _ = self.queue.call(&d);
        }
    }
}

/// How often an introduction is sent that has no answer.
const ASK: Duration = Duration::from_millis(20);

/// A connection that is being made.
#[derive(Debug)]
pub(crate) struct Connecting {
    link: Option<Link>,
    handle: Handle,
    /// While the other process must learn of our NIC: since when, and when it was told last.
    introduced: Option<(Instant, Option<Instant>)>,
}

impl Connecting {
    /// Starts it.
    pub(crate) fn new(device: &Arc<Device>, handle: &Handle) -> Result<Connecting, Failure> {
        let other = handle.nic != device.nic.ip().ip;
        if let (true, Some(at), Some(all)) = (other, handle.datagrams, &device.introductions) {
            if !all.know(handle.nic, at) {
                let (nic, peer) = (handle.nic, &handle.process);
                let text = format!("{peer} has drawn the NIC address {nic}, which another peer has; start one of them again");
                return Err(Failure::new(Code::RemoteError, text));
            }
        }
        let queue = device.queue()?;
        let session = link::socket(&queue)?;
        let mut link = Link::new(device, queue, session, handle.process.clone())?;
        let introduced = other && device.introductions.is_some() && handle.datagrams.is_some();
        if !introduced {
            link.connect(handle.nic, handle.port)?;
        }
        Ok(Connecting {
            link: Some(link),
            handle: handle.clone(),
            introduced: introduced.then(|| (Instant::now(), None)),
        })
    }

    /// Tells the other process of our NIC; connects when it knows.
    fn introduce(&mut self) -> Result<(), Failure> {
        let (Some((since, last)), Some(link)) = (&mut self.introduced, &mut self.link) else {
            return Ok(());
        };
        let device = link.device.clone();
        let (Some(all), Some(at)) = (&device.introductions, self.handle.datagrams) else {
            return Ok(());
        };
        all.pump();
        match all.answer(&self.handle.nonce) {
            Some(true) => {
                all.forget(&self.handle.nonce);
                self.introduced = None;
                link.connect(self.handle.nic, self.handle.port)
            }
            Some(false) => {
                all.forget(&self.handle.nonce);
                Err(link.fail(
                    Code::RemoteError,
                    "nothing listens with this handle's secret, or our NIC's address is that of another there",
                ))
            }
            None if since.elapsed() > device.timeout => {
                all.forget(&self.handle.nonce);
                let text = format!(
                    "no answer from UDP port {} of {} in {:?}; check the address, and that nothing filters UDP",
                    self.handle.introductions,
                    at.ip(),
                    device.timeout
                );
                Err(link.fail(Code::RemoteError, &text))
            }
            None => {
                if last.is_none_or(|l| l.elapsed() >= ASK) {
                    *last = Some(Instant::now());
                    all.ask(&self.handle, at);
                }
                Ok(())
            }
        }
    }

    /// The connection when it is made.
    pub(crate) fn poll(&mut self) -> Result<Option<Sender>, Failure> {
        let (nic, port) = (self.handle.nic, self.handle.port);
        let to = |e: Failure| Failure {
            text: format!("cannot connect to {nic}:{port}: {}", e.text),
            ..e
        };
        self.introduce().map_err(to)?;
        let Some(link) = &mut self.link else {
            return Err(Failure::argument("this connection was made before"));
        };
        link.step();
        link.poll().map_err(to)?;
        if self.introduced.is_some() || !link.has_sent() {
            return Ok(None);
        }
        let Some(mut link) = self.link.take() else {
            return Ok(None);
        };
        link.send(&Record::Hello {
            nonce: self.handle.nonce,
            process: Process::own(),
        })?;
        let sender = Sender::new(link)?;
        log::info(&format!(
            "connected to {} over {}",
            sender.link.peer,
            sender.link.transport()
        ));
        Ok(Some(sender))
    }
}
