//! What a run leaves behind besides its report.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::Port;

use crate::Failure;

/// What is watched: nothing by default. It changes no event of the run.
#[derive(Default)]
pub struct Watch {
    captures: Vec<(usize, Box<dyn Write + Send>)>,
    timeline: Option<Box<dyn Write + Send>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks: Vec<_> = self.captures.iter().map(|c| c.0).collect();
        f.debug_struct("Watch")
            .field("captures", &ranks)
            .field("timeline", &self.timeline.is_some())
            .finish()
    }
}

impl Watch {
    /// Records the frames that a rank's NIC sends and receives, as pcapng. Timestamps are
    /// nanoseconds of virtual time, at which the NIC gave or took the frame.
    #[must_use]
    pub fn capture(mut self, rank: usize, file: impl Write + Send + 'static) -> Watch {
        self.captures.push((rank, Box::new(file)));
        self
    }

    /// Writes a timeline at the end, as Chrome's trace events: the operations of each NIC, the
    /// kernel of each rank, the frames on each link, and the bytes that wait at each output of a
    /// switch.
    #[must_use]
    pub fn timeline(mut self, file: impl Write + Send + 'static) -> Watch {
        self.timeline = Some(Box::new(file));
        self
    }

    /// The timeline's file.
    pub(crate) fn take_timeline(&mut self) -> Option<Box<dyn Write + Send>> {
        self.timeline.take()
    }

    /// Whether a capture reads frames, and so their checksums.
    pub(crate) fn reads_frames(&self) -> bool {
        !self.captures.is_empty()
    }

    /// Refuses ranks that are not there.
    pub(crate) fn check(&self, ranks: usize) -> Result<(), Failure> {
        let beyond = self.captures.iter().find(|(rank, _)| *rank >= ranks);
        beyond.map_or(Ok(()), |&(rank, _)| Err(Failure::Captured { rank, ranks }))
    }

    /// A rank's port with its captures around it.
    pub(crate) fn around(
        &mut self,
        rank: usize,
        mut port: Box<dyn Port>,
    ) -> Result<Box<dyn Port>, Failure> {
        for (_, file) in self.captures.extract_if(.., |(r, _)| *r == rank) {
            let capture = Capture::new(port, file, Duration::ZERO);
            let made = |e: ringbell_nic_core::port::capture::CaptureError| Failure::Made {
                rank,
                why: e.to_string(),
            };
            port = Box::new(capture.map_err(made)?);
        }
        Ok(port)
    }
}
