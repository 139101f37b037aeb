//! The modelled network: links, the outputs of switches where frames wait, and what happens next.
//!
//! A frame waits for its NIC's link and crosses it. A switch stores it at the output that leads to
//! its destination until that link is free; an output that has no room for a frame drops it.

mod address;
mod event;
mod fabric;
mod flow;
mod graph;
mod link;
mod port;

pub(crate) use self::address::{ip, mac};
pub(crate) use self::event::{Event, What};
pub(crate) use self::fabric::Shared;
pub(crate) use self::flow::Frame;
pub(crate) use self::link::LinkId;
pub(crate) use self::port::{LinkPort, Sent, SharedAdapter};
