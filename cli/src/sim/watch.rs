//! Files that a simulation leaves behind: captures and a timeline.
#![allow(clippy::disallowed_methods)] // Says how fast virtual time has passed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result};
use ringbell_sim::{Failure, Watch};

use super::refused::problem;

/// What is watched.
#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    /// Record the frames that a rank's NIC sends and receives to this file (pcapng), in virtual
    /// time; may be given once for each rank
    #[arg(long, value_name = "RANK=FILE", value_parser = captured)]
    pcap: Vec<(usize, PathBuf)>,
    /// Write a timeline to this file, for ui.perfetto.dev: operations of NICs, kernels, frames on
    /// links, bytes that wait at switches
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

fn captured(text: &str) -> Result<(usize, PathBuf), String> {
    let parts = text.split_once('=').filter(|(_, file)| !file.is_empty());
    let rank = parts.and_then(|(rank, _)| rank.parse().ok());
    let (Some(rank), Some((_, file))) = (rank, parts) else {
        return Err("write a rank and its file, for example 0=rank0.pcapng".into());
    };
    Ok((rank, file.into()))
}

/// Files that the run writes, of which this end keeps a hold.
#[derive(Default)]
struct Files(Vec<(PathBuf, Output)>);

impl WatchArgs {
    /// Runs something that is watched, and returns its report and the seconds that it took.
    ///
    /// # Errors
    /// It could not be run, or a file cannot be written.
    pub(super) fn run<R>(&self, run: impl FnOnce(Watch) -> Result<R, Failure>) -> Result<(R, f64)> {
        let (watch, written) = self.open()?;
        let begin = Instant::now();
        let report = run(watch);
        let wall_s = begin.elapsed().as_secs_f64();
        // Also those of a run that failed: they show how.
        let written = written.finish();
        let report = report.map_err(problem)?;
        written?;
        Ok((report, wall_s))
    }

    /// Creates the files. One that is there keeps its bytes until the first of the run.
    ///
    /// # Errors
    /// One cannot be created.
    fn open(&self) -> Result<(Watch, Files)> {
        let (mut watch, mut files) = (Watch::default(), Files::default());
        for (rank, path) in &self.pcap {
            watch = watch.capture(*rank, files.create(path, "--pcap")?);
        }
        if let Some(path) = &self.trace {
            watch = watch.timeline(files.create(path, "--trace")?);
        }
        Ok((watch, files))
    }
}

impl Files {
    fn create(&mut self, path: &Path, option: &str) -> Result<Output> {
        let mut options = File::options();
        let options = options.write(true).create(true).truncate(false);
        let file = options.open(path).with_context(|| {
            let path = path.display();
            format!("cannot write {path}; check the path given to {option}")
        })?;
        let output = Output(Arc::new(Mutex::new(Written {
            file: BufWriter::new(file),
            failed: None,
            has_begun: false,
        })));
        self.0.push((path.into(), output.clone()));
        Ok(output)
    }

    /// Writes what is left of each file.
    ///
    /// # Errors
    /// A file could not be written, now or earlier.
    fn finish(self) -> Result<()> {
        for (path, output) in self.0 {
            let mut output = output.0.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = output.failed.take();
            let done = failed.map_or_else(|| output.file.flush(), Err);
            done.with_context(|| {
                let path = path.display();
                format!("cannot write all of {path}; check that its disk has room")
            })?;
        }
        Ok(())
    }
}

struct Written {
    file: BufWriter<File>,
    /// The first error, which the NIC that writes to it cannot report.
    failed: Option<io::Error>,
    /// What was there before is gone.
    has_begun: bool,
}

impl Written {
    fn begin(&mut self) -> io::Result<()> {
        let file = self.file.get_ref();
        // A pipe or a terminal has nothing to be cut off.
        if !std::mem::replace(&mut self.has_begun, true) && file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(())
    }
}

#[derive(Clone)]
struct Output(Arc<Mutex<Written>>);

impl Output {
    fn with<T>(&self, act: impl FnOnce(&mut BufWriter<File>) -> io::Result<T>) -> io::Result<T> {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = output.begin();
        let done = begun.and_then(|()| act(&mut output.file));
        done.map_err(|e| {
            let again = io::Error::from(e.kind());
            output.failed.get_or_insert(e);
            again
        })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.with(|file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(BufWriter::flush)
    }
}
