//! Names of the variables that `ringbell run` sets.

/// Own rank, from 0.
pub const RANK: &str = "RINGBELL_RANK";
/// Ranks of the job.
pub const SIZE: &str = "RINGBELL_SIZE";
/// The job's [`UniqueId`](crate::UniqueId); overrides the addresses of other launchers.
pub const ID: &str = "RINGBELL_ID";
/// `HOST:PORT` at which rank 0 serves the bootstrap, for launchers that give none.
pub const BOOTSTRAP: &str = "RINGBELL_BOOTSTRAP";
/// Own rank among those of this machine, from 0.
pub const LOCAL_RANK: &str = "RINGBELL_LOCAL_RANK";
/// Secret of the job, 32 hexadecimal digits, for launchers that have none: without it, any user who
/// knows the launcher's number of the job can compute the secret.
pub const SECRET: &str = "RINGBELL_SECRET";
/// What carries the NIC's frames, as `--port` has it.
pub const PORT: &str = "RINGBELL_PORT";
/// `auto`, `local` or `tcp`.
pub const TRANSPORT: &str = "RINGBELL_TRANSPORT";
/// File of the in-memory switch of the launcher.
pub const SWITCH: &str = "RINGBELL_SWITCH";
/// Wires of the rank's node, for port `mesh`: `PORT=udp:BIND,PEER` or `PORT=mem:FILE:SIDE`, with
/// `;` between them.
pub const WIRES: &str = "RINGBELL_WIRES";
/// Packets that an output of port `mesh` takes from one queue before it looks at the next.
pub const WIRE_POLL: &str = "RINGBELL_WIRE_POLL";
/// File of the tables that NICs of port `mesh` use, as `ringbell routes --json` writes it.
pub const ROUTES: &str = "RINGBELL_ROUTES";
