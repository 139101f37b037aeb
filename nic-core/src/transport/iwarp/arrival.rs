//! Connections that have come in, and have not asked for a session.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::types::NicTime;

/// A connection that has come in and is no session yet.
#[derive(Debug)]
pub(super) struct Arrival {
    /// `None` when a session has it.
    pub(super) socket: Option<OwnedFd>,
    /// The port by which it came.
    pub(super) port: usize,
    pub(super) from: SocketAddr,
    pub(super) deadline: NicTime,
    /// What it has sent.
    pub(super) frame: Vec<u8>,
    pub(super) input: bool,
}

impl Arrival {
    pub(super) fn deadline(&self) -> NicTime {
        self.deadline
    }

    pub(super) fn mark(&mut self) {
        self.input = true;
    }
}
