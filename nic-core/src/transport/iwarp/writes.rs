//! Messages that go straight to receives whose keys the peer has given, by Writes. A Send with the
//! key follows them and ends the receive.

use std::collections::VecDeque;

use crate::transport::exposed::Wrong;
use crate::transport::Target;
use crate::types::WorkToken;
use ringbell_net::wire::iwarp::terminate::Reason;

/// Posted sends whose bytes go to receives of the peer, in order.
#[derive(Debug, Default)]
pub(super) struct Targets {
    all: VecDeque<(WorkToken, Target)>,
}

impl Targets {
    pub(super) fn post(&mut self, token: WorkToken, to: Target) {
        self.all.push_back((token, to));
    }

    /// A send has left as a whole, or was taken back.
    pub(super) fn forget(&mut self, token: WorkToken) {
        self.all.retain(|(t, _)| *t != token);
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Where a send goes, when it goes to a receive. Sends leave in order.
    pub(super) fn of(&self, token: WorkToken) -> Option<Target> {
        let (first, to) = self.all.front()?;
        (*first == token).then_some(*to)
    }
}

impl From<Wrong> for Reason {
    fn from(wrong: Wrong) -> Reason {
        match wrong {
            Wrong::Key => Reason::Stag,
            Wrong::Bytes => Reason::Bounds,
        }
    }
}
