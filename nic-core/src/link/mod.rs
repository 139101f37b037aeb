//! Links: messages between this NIC and one other.
//!
//! A message is a head of 40 bytes, which the layer above reads, and a payload in memory. Messages
//! of one link arrive in the order in which they were sent, and once. Each belongs to a channel of
//! the layer above: a number by which what waits to leave is found.
//!
//! One stream of any [`Transport`](crate::transport::Transport) carries them ([`stream`]). The NIC
//! with the lower address dials, so that two NICs have one link; the other asks it to, by a
//! connection that carries nothing else ([`table`]). The first head says which NIC it is
//! ([`hello`]). Where a transport exposes receives, a payload may be written to where the peer has
//! said, without a head.
//!
//! The layer above sends by [`Link::queue`], passes events of transports to [`Links::on_event`],
//! and acts on what it returns: a head that has come ([`Links::head`]), for whose payload it names
//! a place ([`Links::take_payload`]), then [`Links::go_on`].

mod hello;
mod io;
mod pieces;
mod restless;
mod stream;
mod table;

pub(crate) use io::Io;
pub(crate) use pieces::Pieces;
pub(crate) use stream::{Dest, Link, Outgoing, EXPOSED_TOKEN, LINK_TOKEN};
pub(crate) use table::{Arrived, Due, LinkEvent, Links, ListenError, SINK};

/// Bytes of a head: as many as one line of the `local` transport and an inline descriptor carry.
pub(crate) const HEAD: usize = 40;
