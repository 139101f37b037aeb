//! A port's part in replacements of its tables.

use ringbell_net::NicTime;
use ringbell_routes::route::Routes;
use ringbell_routes::topology::NodeId;

use crate::control::Control;
use crate::plan::Plans;

/// Tables of the program whose proof holds, and until when other nodes may hold them.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) text: String,
    pub(crate) routes: Routes,
    pub(crate) until: NicTime,
}

/// A port's part in replacements.
#[derive(Debug)]
pub(crate) struct Replacing {
    pub(crate) plans: Plans,
    pub(crate) control: Control,
    /// What the program wants, while another node's replacement is open.
    pub(crate) wish: Option<Wish>,
    /// This node must do or say something.
    pub(crate) is_busy: bool,
    /// By half of the channels: when a packet was last put into one.
    pub(crate) filled: [Option<NicTime>; 2],
}

impl Replacing {
    pub(crate) fn new(me: NodeId, nodes: usize, wires: usize) -> Replacing {
        Replacing {
            plans: Plans::new(me, nodes, wires),
            control: Control::default(),
            wish: None,
            is_busy: false,
            filled: [None; 2],
        }
    }

    /// Whether the program wants other tables.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.control.is_asked() || self.wish.is_some()
    }

    /// A packet is put into a channel of a half.
    #[inline]
    pub(crate) fn filled(&mut self, now: NicTime, half: usize) {
        self.filled[half] = Some(now);
    }

    /// A wire is up.
    pub(crate) fn up(&mut self, wire: usize) {
        self.plans.up(wire);
        self.is_busy = true;
    }
}
