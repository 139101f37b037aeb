//! What the peer of a connection may name: regions of the domains of its session, from when that is
//! accepted to when it is closed.

use ringbell_nic_abi::PdId;

/// See the module text.
#[derive(Debug, Default)]
pub(in crate::transport) struct Granted {
    /// Empty: the session was not accepted yet, or is closed.
    domains: Vec<PdId>,
    is_closed: bool,
    /// The peer has asked for something after the close.
    is_asked: bool,
}

/// Why nothing may be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) enum Withheld {
    /// The session was not accepted yet: what the peer asks for waits.
    NotYet,
    /// It is closed: the peer gets no answer.
    Closed,
}

impl Granted {
    /// Lets the peer name regions of a domain.
    pub(in crate::transport) fn grant(&mut self, pd: PdId) {
        if !self.is_closed && !self.domains.contains(&pd) {
            self.domains.push(pd);
        }
    }

    /// Nothing is done for the peer any more.
    pub(in crate::transport) fn revoke(&mut self) {
        self.domains.clear();
        self.is_closed = true;
    }

    /// Whether the peer has asked for something since.
    pub(in crate::transport) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// The domains for a request of the peer.
    ///
    /// # Errors
    /// There are none.
    pub(in crate::transport) fn ask(&mut self) -> Result<&[PdId], Withheld> {
        match (self.domains.is_empty(), self.is_closed) {
            (false, _) => Ok(&self.domains),
            (true, false) => Err(Withheld::NotYet),
            (true, true) => {
                self.is_asked = true;
                Err(Withheld::Closed)
            }
        }
    }
}
