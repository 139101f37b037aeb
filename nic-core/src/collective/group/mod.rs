//! Groups: the ranks of communicators, who join, leave and end.
//!
//! The number of a communicator is the context of its [messages](crate::message). A rank announces
//! it to the others ([`frame`]) when it makes it, with its receive buffers and what else it offers;
//! from then on they take its messages. A peer that breaks the protocol loses its connection and
//! nothing else. The ranks of a large communicator have links to their neighbours alone at first,
//! and agree through them ([`joint`]). Frames of a communicator that has ended are read and
//! dropped.

mod frame;
mod groups;
mod joint;
mod member;

pub(crate) use frame::Body;
pub(crate) use groups::{GroupEvent, Groups, Joining};
pub(crate) use joint::Known;
