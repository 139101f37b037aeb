//! Messages between the members of a context, over [links](crate::link).
//!
//! A *context* is a number and a list of members, one of which is this NIC; the layer above makes
//! it, and says which link leads to a member. What is sent to a member without a link waits for one
//! ([`unlinked`]). A message meets a receive of its context by sender
//! and tag. *Agreed* messages have both by a program, so each tag is used once at a time, and a
//! hash shows whether both ends run the same one. *User* messages ([`USER_TAG`]) may be received
//! from any member and with any tag, in their order.
//!
//! A message without a receive never blocks its link:
//!
//! - *inline*: no payload, so the head is all;
//! - *eager*: head and payload at once, into the receive that waits, or into one of the buffers
//!   that the receiver keeps for each sender. The sender counts them; messages the other way
//!   announce free ones;
//! - *rendezvous*: the head alone. When a receive has met it the receiver names it, and the payload
//!   goes straight into its memory;
//! - *written*: the receiver has announced the receive with a key when it was posted. The sender
//!   asks for nothing and writes to that memory; immediate data with the last bytes end the
//!   receive.
//!
//! A message to several members may go once for all, by frames that the network copies
//! ([`copies`]).
//!
//! A *claim* is a receive of the host's that gets its memory when it has met a message ([`claim`]).
//!
//! An *awaited* message is a user message whose sender was told of its receive ([`awaited`]).
//!
//! [`protocol`] chooses between them once for each message, by what each costs. [`matching`] finds
//! receives and early messages, [`early`] keeps those and counts buffers, [`head`] is what travels
//! ahead of a payload. Heads of other kinds belong to the layer above.

mod arrive;
pub(crate) mod awaited;
pub(crate) mod claim;
mod context;
mod copied;
mod copies;
mod early;
mod event;
mod head;
mod matching;
mod meet;
mod messages;
mod protocol;
mod unlinked;
mod work;

pub(crate) use context::Opening;
pub(crate) use copies::{copies_timer, has_ready_copies, send_to_several, step_copies};
pub(crate) use early::Buffers;
pub(crate) use event::Event;
pub(crate) use head::{Fields, Head, HeadError};
pub(crate) use matching::{Tags, Wanted, AWAITED_TAG, HOST_TAG, STREAM_TAG, USER_TAG};
pub(crate) use messages::Messages;
pub use protocol::{Candidate, Protocol, Terms, Traffic};
pub(crate) use work::{Own, RecvRequest, SendRequest};
