//! Collectives as data (ACCL+ §4.4 keeps them flexible as firmware; here they are programs).
//!
//! A [`Program`] is one rank's part of a collective: [`Step`]s over chunks of its buffers, its NIC
//! memory and the network. It is independent of the count of elements: [`Layout`] maps chunks to
//! elements, so one program serves every size, and is checked once.

mod check;
mod choose;
mod family;
mod generate;
mod hash;
mod hosts;
mod layout;
mod msccl;
mod names;
mod simulate;
mod step;
mod table;
mod text;
mod user;

pub use check::{check, CheckError, InPlace, Limits, Problem, Proof, Value};
pub use choose::{choose, choose_strict, Locality, ThresholdError, Thresholds};
pub use family::Family;
pub use generate::{algorithms, generate, generate_all, generate_all_in, is_strict, GenerateError};
pub use hash::hash_all;
pub use hosts::{HostRanks, MAX_RANKS};
pub use layout::Layout;
pub use msccl::{msccl, MscclError};
pub use names::{algorithm_named, collective_named, spelled};
pub use simulate::{simulate, Outcome, SimulateError};
pub use step::{buffer_blocks, Chunks, Operand, Order, Place, Program, Step, Target};
pub use table::{pretty, Arrow, Cell, Label, Medium, Table, Term};
pub use text::{format, parse, TextError, TextProblem};
pub use user::{UserProgram, UserProgramError};
