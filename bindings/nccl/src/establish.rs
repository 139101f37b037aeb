//! How connections are made: a listening NIC port for each listening communicator, a session by
//! which both processes learn of each other, and what their messages go over.
#![allow(clippy::disallowed_methods)] // Deadlines on the host's clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell::abi::{Descriptor, Opcode, SessionId, Status};
use ringbell::HostQueue;

use crate::abi::Code;
use crate::device::{self, Device};
use crate::failure::Failure;
use crate::greet::{self, Session};
use crate::introduce::Introductions;
use crate::log;
use crate::peer::{Peer, RECEIVER, SENDER};
use crate::receive::Receiver;
use crate::send::Sender;
use crate::wire::{Handle, Hello, Process};

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
    greeting: Vec<(Session, Instant)>,
    /// Those that have, and whose processes have not met yet.
    meeting: Vec<(Session, Peer)>,
}

impl Listening {
    /// Listens at a port of the NIC, and makes the handle.
    pub(crate) fn new(device: &Arc<Device>) -> Result<(Listening, Handle), Failure> {
        let nonce = device::random()?;
        let queue = device.queue()?;
        let session = greet::socket(&queue)?;
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
            meeting: Vec::new(),
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
        self.look_at_greetings()?;
        let Some(peer) = self.met() else {
            return Ok(None);
        };
        log::info(&format!(
            "accepted {} over {}",
            peer.process,
            peer.transport()
        ));
        Ok(Some(Receiver::new(peer)))
    }

    /// Answers connections that have proved the handle; drops those that have failed to.
    fn look_at_greetings(&mut self) -> Result<(), Failure> {
        let mut place = 0;
        while let Some((session, since)) = self.greeting.get_mut(place) {
            match session.is_done() {
                Ok(false) if since.elapsed() < GREETING_TIME => {
                    place += 1;
                    continue;
                }
                // Its peer has gone, or is late.
                Ok(false) | Err(_) => {
                    self.greeting.remove(place);
                    continue;
                }
                Ok(true) => {}
            }
            let (mut session, _) = self.greeting.remove(place);
            let hello = session.hello().filter(|hello| hello.nonce == self.nonce);
            let Some(hello) = hello else {
                log::info("refused a connection that did not begin with its handle's secret");
                continue;
            };
            let other = (hello.process, hello.nic);
            let peer = Peer::new(&self.device, hello.number, RECEIVER, other)?;
            session.answer()?;
            self.meeting.push((session, peer));
        }
        Ok(())
    }

    /// Takes a connection out whose processes have met.
    fn met(&mut self) -> Option<Peer> {
        let mut place = 0;
        while let Some((session, peer)) = self.meeting.get_mut(place) {
            // A session that has failed is no matter if both meet, and if not the time ends it.
            let _ = session.is_done();
            match peer.is_ready() {
                Ok(false) => place += 1,
                Ok(true) => return Some(self.meeting.remove(place).1),
                Err(why) => {
                    let (_, peer) = self.meeting.remove(place);
                    log::info(&format!("lost {}: {}", peer.process, why.text));
                }
            }
        }
        None
    }

    /// A connection has come.
    fn greet(&mut self, session: SessionId) -> Result<(), Failure> {
        let queue = self.device.queue()?;
        let mut session = Session::new(&self.device, queue, session)?;
        session.listen()?;
        self.greeting.push((session, Instant::now()));
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

/// How far a connection is.
#[derive(Debug)]
enum Stage {
    /// The other process must learn of our NIC: since when, and when it was told last.
    Introduced(Instant, Option<Instant>),
    Connecting,
    Greeting,
    Meeting(Peer),
    Made,
}

/// A connection that is being made.
#[derive(Debug)]
pub(crate) struct Connecting {
    device: Arc<Device>,
    session: Session,
    handle: Handle,
    number: u64,
    stage: Stage,
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
        let session = greet::socket(&queue)?;
        let mut session = Session::new(device, queue, session)?;
        let introduced = other && device.introductions.is_some() && handle.datagrams.is_some();
        let stage = match introduced {
            true => Stage::Introduced(Instant::now(), None),
            false => {
                session.connect(handle.nic, handle.port)?;
                Stage::Connecting
            }
        };
        Ok(Connecting {
            device: device.clone(),
            session,
            handle: handle.clone(),
            number: u64::from_le_bytes(device::random()?),
            stage,
        })
    }

    /// Tells the other process of our NIC; connects when it knows.
    fn introduce(&mut self) -> Result<(), Failure> {
        let Stage::Introduced(since, last) = &mut self.stage else {
            return Ok(());
        };
        let (Some(all), Some(at)) = (&self.device.introductions, self.handle.datagrams) else {
            return Ok(());
        };
        all.pump();
        match all.answer(&self.handle.nonce) {
            Some(true) => {
                all.forget(&self.handle.nonce);
                self.stage = Stage::Connecting;
                self.session.connect(self.handle.nic, self.handle.port)
            }
            Some(false) => {
                all.forget(&self.handle.nonce);
                Err(Failure::new(
                    Code::RemoteError,
                    "nothing listens with this handle's secret, or our NIC's address is that of another there",
                ))
            }
            None if since.elapsed() > self.device.timeout => {
                all.forget(&self.handle.nonce);
                let text = format!(
                    "no answer from UDP port {} of {} in {:?}; check the address, and that nothing filters UDP",
                    self.handle.introductions,
                    at.ip(),
                    self.device.timeout
                );
                Err(Failure::new(Code::RemoteError, text))
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

    /// Goes on as far as it can. The other end, once both processes have met.
    fn advance(&mut self) -> Result<Option<Peer>, Failure> {
        self.introduce()?;
        if let Stage::Meeting(peer) = &self.stage {
            self.device.nic.backend().step();
            if !peer.is_ready()? {
                return Ok(None);
            }
            return Ok(match std::mem::replace(&mut self.stage, Stage::Made) {
                Stage::Meeting(peer) => Some(peer),
                _ => None,
            });
        }
        if matches!(self.stage, Stage::Introduced(..)) || !self.session.is_done()? {
            return Ok(None);
        }
        if matches!(self.stage, Stage::Connecting) {
            self.session.greet(&Hello {
                nonce: self.handle.nonce,
                number: self.number,
                nic: self.device.nic.ip().ip,
                process: Process::own(),
            })?;
            self.stage = Stage::Greeting;
        } else {
            // It was answered.
            let other = (self.handle.process.clone(), self.handle.nic);
            let peer = Peer::new(&self.device, self.number, SENDER, other)?;
            self.stage = Stage::Meeting(peer);
        }
        Ok(None)
    }

    /// The connection when it is made.
    pub(crate) fn poll(&mut self) -> Result<Option<Sender>, Failure> {
        let (nic, port) = (self.handle.nic, self.handle.port);
        let process = self.handle.process.clone();
        let to = |e: Failure| Failure {
            text: format!("cannot connect to {nic}:{port} ({process}): {}", e.text),
            ..e
        };
        let Some(peer) = self.advance().map_err(to)? else {
            return Ok(None);
        };
        log::info(&format!(
            "connected to {} over {}",
            peer.process,
            peer.transport()
        ));
        Ok(Some(Sender::new(peer)))
    }
}
