//! Schedules in GOAL, the language of LogGOPSim and ATLAHS (Hoefler and others, ICPP 2009).
//!
//! A [`Schedule`] has the operations of each rank: sends, receives and calculations, and which of
//! them wait for others of their rank. [`Schedule::parse`] reads the text as LogGOPSim's `txt2bin`
//! does; a schedule is written as such a text. It reads htsim's [`connections`] as well, and
//! [`Schedule::from_chakra`] the files of [`chakra`].

mod chakra;
mod connections;
mod needs;
mod parse;
mod schedule;
mod write;

pub use self::chakra::{ChakraError, NotChakra};
pub use self::needs::Need;
pub(crate) use self::schedule::{has_blocks, ELEMENT};
pub use self::schedule::{Op, Schedule, Work};
