//! The verbs front door: libibverbs' public calls, answered by Ringbell in the program's own
//! process.
//!
//! Preloaded (`ringbell verbs -- PROGRAM`), it takes the place of libibverbs for a program that
//! knows nothing of it: the program finds one device, `ringbell0`, whose queue pairs send RoCEv2
//! over a plain UDP socket. The symbols have no version, so that the dynamic loader takes them for
//! any. What is not there ends with `EOPNOTSUPP` (`absent`); nothing reaches the real library with
//! an object of ours.
//!
//! Objects are structures of `verbs.h` with ours behind them: the program reads and writes the
//! front part, as the header's inline functions do. Programs answer for their pointers, as with
//! libibverbs.
//!
//! `abi`: the header's structures. `device`, `objects`, `address`, `queue_pair`, `post`,
//! `extended_cq`, `extended_qp`: the calls, and with `context`, `builder`, `completion` what they
//! act on. `refusal`: their errors. `names`: constants in words. `files`: the device's file.
//! `interface`: its MTU. `faults`: what the user asks for to go wrong. `events`: asynchronous
//! events.

#[macro_use]
mod faults;

mod abi;
mod absent;
mod address;
mod builder;
mod completion;
mod context;
mod device;
mod events;
mod extended_cq;
mod extended_qp;
mod files;
mod interface;
mod names;
mod objects;
mod post;
mod queue_pair;
mod refusal;
mod settings;
