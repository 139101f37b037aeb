//! Other tables for a mesh while its NICs run: by a call, or by the file that a job was given.
#![allow(clippy::disallowed_methods)] // Waits for other nodes, with a deadline.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ringbell_mesh::{Control, ReplaceError};

/// Additional wait for the port's answer.
const GRACE: Duration = Duration::from_secs(5);
/// Time between two looks at a port that replaces tables.
const LOOK: Duration = Duration::from_micros(200);
/// Time between two looks at a job's file.
const WATCH: Duration = Duration::from_millis(500);
/// How long the nodes of a job have.
const PATIENCE: Duration = Duration::from_secs(10);

/// The tables of a mesh were not replaced: no node has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutesError {
    /// The NIC has no port `mesh`.
    #[error("the NIC has no port `mesh`, so it has no tables to be replaced")]
    NoMesh,
    /// The file cannot be read.
    #[error(
        "cannot read the tables in {path}; `ringbell routes NETWORK --json FILE` writes such files"
    )]
    File {
        /// As given.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The nodes keep their tables.
    #[error(transparent)]
    Kept(#[from] ReplaceError),
    /// The NIC was not stepped, or has ended.
    #[error("the NIC has not answered; it was closed, or nothing steps it")]
    Silent,
}

pub(crate) fn read(path: &Path) -> Result<String, RoutesError> {
    std::fs::read_to_string(path).map_err(|source| RoutesError::File {
        path: path.to_owned(),
        source,
    })
}

/// Asks for other tables, and waits for the outcome; `step` is called again and again.
pub(crate) fn replace(
    control: &Control,
    text: String,
    patience: Duration,
    mut step: impl FnMut(),
) -> Result<(), RoutesError> {
    let _turn = control.turn();
    control.replace(text, patience);
    let end = Instant::now() + patience + GRACE;
    loop {
        step();
        if let Some(outcome) = control.outcome() {
            return Ok(outcome?);
        }
        if Instant::now() > end {
            return Err(RoutesError::Silent);
        }
        std::thread::sleep(LOOK);
    }
}

/// Follows the file of a job's tables until the port has ended: tables that are written there
/// replace those in use.
pub(crate) fn watch(path: PathBuf, control: Control) -> io::Result<()> {
    let mut known = stamp(&path);
    let mut tried = known;
    let follow = move || {
        while control.has_port() {
            std::thread::sleep(WATCH);
            let now = stamp(&path);
            // Once it has not changed between two looks: its writer is done.
            let is_whole = std::mem::replace(&mut known, now) == now;
            if !is_whole || tried == now || now.is_none() {
                continue;
            }
            tried = now;
            let text = read(&path);
            let done = text.and_then(|text| replace(&control, text, PATIENCE, || {}));
            let file = path.display();
            match done {
                Ok(()) => tracing::info!(%file, "all nodes forward by the tables of the file"),
                Err(why) => tracing::warn!(%file, %why, "the tables of the file are not used"),
            }
        }
    };
    let thread = std::thread::Builder::new().name("rb-routes".into());
    thread.spawn(follow).map(drop)
}

/// What tells whether a file has changed.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}
