//! Units of one-sided operations: requests of ours, and answers to the peer's.

use std::collections::VecDeque;

use ringbell_nic_abi::Status;

use super::conn::Conn;
use super::one_sided::{Answer, Next};
use super::outgoing::{self, BY_REFERENCE, WRITE_MAX};
use crate::datapath::{Datapath, Payload};
use crate::dma::{each_mapped, ReadStatus};
use crate::transport::one_sided::{Access, Note};
use crate::transport::TransportEvent;
use crate::types::Buffer;
use ringbell_net::wire::iwarp::ddp::{Header, Opcode, Place};
use ringbell_net::wire::iwarp::rdmap::{atomic_response, ReadRequest};
use ringbell_net::wire::iwarp::session::Kind;

/// How the bytes of the next unit were found.
enum Found {
    /// They are in the scratch memory.
    Copied,
    Memory(Buffer),
    /// Memory has not answered, or is gone and the operation with it.
    No,
}

impl Conn {
    /// Makes the next unit of a one-sided operation. `false`: there is none.
    pub(in crate::transport::iwarp) fn append_one_sided(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        self.append_answer(data) || self.append_request(data, events)
    }

    /// Makes a unit of the next operation that this NIC asks for.
    fn append_request(
        &mut self,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        let asking = &mut self.session.one_sided.asking;
        if asking.is_unserved() {
            return asking.failed(self.life.id, (Status::Unsupported, 0), events);
        }
        let Some(next) = asking.next() else {
            return false;
        };
        match next {
            Next::Put {
                access,
                payload,
                done,
                announce,
            } => return self.append_put((access, payload), done, announce, data, events),
            Next::Read(request) => {
                let header = self.request_header(Opcode::ReadRequest);
                self.add(&header, outgoing::Payload::Bytes(&request.emit()));
            }
            Next::Atomic(request) => {
                let header = self.request_header(Opcode::AtomicRequest);
                self.add(&header, outgoing::Payload::Bytes(&request.emit()));
            }
        }
        self.session.one_sided.asking.left(0);
        true
    }

    fn request_header(&mut self, opcode: Opcode) -> Header {
        Header::whole(opcode, self.session.one_sided.asking.next_request())
    }

    /// Makes a unit of the next bytes of a put, behind a note about it where none has left.
    fn append_put(
        &mut self,
        (access, payload): (Access, Payload),
        done: u32,
        announce: bool,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> bool {
        // A unit has at most 64 KiB.
        let n = (access.len - done).min(WRITE_MAX as u32);
        let found = match payload {
            Payload::Inline { bytes, len } => {
                self.scratch.clear();
                self.scratch.extend_from_slice(&bytes[..len.into()]);
                Found::Copied
            }
            Payload::Memory(from) => self.find(&from, done, n, data, events),
        };
        if matches!(found, Found::No) {
            return false;
        }
        if announce {
            self.append_note(Kind::Ask, &Note::Announce(access));
        }
        self.session.one_sided.asking.left(n);
        if n == 0 {
            return true;
        }
        let header = Header {
            opcode: Opcode::Write,
            last: n == access.len - done,
            place: Place::Tagged {
                stag: access.rkey.0,
                offset: access.va.0.wrapping_add(done.into()),
            },
        };
        match found {
            Found::Memory(buffer) => {
                let payload = outgoing::Payload::Memory {
                    first: &[],
                    buffer,
                    offset: done,
                    len: n,
                    // The put's answer comes after it has left.
                    until: self.referred,
                };
                self.add(&header, payload);
            }
            _ => self.add_scratch(&header, n as usize),
        }
        true
    }

    /// Finds the next bytes of a put in memory: long ones leave from there, where they have
    /// addresses of the CPU.
    fn find(
        &mut self,
        from: &Buffer,
        done: u32,
        n: u32,
        data: &mut Datapath<'_>,
        events: &mut VecDeque<TransportEvent>,
    ) -> Found {
        let len = n as usize;
        if from.len as usize >= BY_REFERENCE
            && each_mapped(data.dma, from, done.into(), len, |_, _| {}) == len
        {
            return Found::Memory(*from);
        }
        self.scratch.resize(len, 0);
        let asking = &mut self.session.one_sided.asking;
        match data.dma.read(from, done.into(), &mut self.scratch) {
            Ok(ReadStatus::Done) => return Found::Copied,
            Ok(ReadStatus::Pending) => asking.pending = true,
            Err(fault) => {
                let is_whole = asking.failed(self.life.id, fault.status(), events);
                // The peer waits for the rest.
                self.is_cut |= !is_whole;
                self.session.one_sided.asking.pending |= is_whole;
            }
        }
        Found::No
    }

    /// Makes a unit of the oldest answer to the peer.
    fn append_answer(&mut self, data: &mut Datapath<'_>) -> bool {
        let one_sided = &mut self.session.one_sided;
        if one_sided.serving.answers.is_empty() {
            return false;
        }
        if !one_sided.serving.may_answer(data.dma) {
            one_sided.asking.pending = true;
            return false;
        }
        let serving = &mut one_sided.serving;
        match serving.answers.front() {
            // `may_answer` leaves none that waits.
            None | Some(Answer::Waits(_)) => return false,
            Some(Answer::Read { request, done }) => {
                let (request, done) = (*request, *done);
                return self.append_response(&request, done, data);
            }
            Some(Answer::Word { identifier, before }) => {
                let response = atomic_response(*identifier, *before);
                let header = Header::whole(Opcode::AtomicResponse, serving.next_response());
                self.add(&header, outgoing::Payload::Bytes(&response));
            }
            Some(Answer::Ended(status, detail)) => {
                let note = Note::Because(*status, *detail);
                self.append_note(Kind::Answer, &note);
            }
        }
        self.session.one_sided.serving.answered();
        true
    }

    /// Makes a unit of the next bytes of a Read. They are copied: what lies there may change before
    /// the kernel takes them, and the CRC would be another.
    fn append_response(
        &mut self,
        request: &ReadRequest,
        done: u32,
        data: &mut Datapath<'_>,
    ) -> bool {
        let n = (request.len - done).min(WRITE_MAX as u32);
        self.scratch.resize(n as usize, 0);
        let serving = &mut self.session.one_sided.serving;
        let read = serving.source(request, done, n, data.dma);
        let read = read.and_then(|from| {
            let read = data.dma.read(&from, 0, &mut self.scratch);
            read.map_err(|fault| fault.status())
        });
        match read {
            Ok(ReadStatus::Done) => {}
            Ok(ReadStatus::Pending) => {
                self.session.one_sided.asking.pending = true;
                return false;
            }
            Err(why) => {
                serving.refuse(why);
                return self.append_answer(data);
            }
        }
        serving.read(n);
        let header = Header {
            opcode: Opcode::ReadResponse,
            last: n == request.len - done,
            place: Place::Tagged {
                stag: request.sink,
                offset: request.sink_offset.wrapping_add(done.into()),
            },
        };
        self.add_scratch(&header, n as usize);
        true
    }

    fn append_note(&mut self, kind: Kind, note: &Note) {
        let (header, message) = self.session.next(kind, 0);
        let payload = outgoing::Payload::After(&message, &note.bytes());
        self.add(&header, payload);
    }

    /// Adds a unit of bytes that were copied.
    fn add_scratch(&mut self, header: &Header, n: usize) {
        let scratch = std::mem::take(&mut self.scratch);
        self.add(header, outgoing::Payload::Bytes(&scratch[..n]));
        self.scratch = scratch;
    }
}
