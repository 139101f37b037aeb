//! NVIDIA's Multi-Process Service: with it, kernels of several processes run on a GPU at the same time; without,
//! their contexts take turns, and ranks that wait for each other pay for each turn.
#![allow(clippy::disallowed_methods)] // The program: waits for the service, with deadlines.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scratch::Folder;

/// Its control program.
const CONTROL: &str = "nvidia-cuda-mps-control";
/// Longest time for it to start, to answer, or to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A service that runs.
pub(super) struct Mps {
    /// Its owner, in words.
    pub(super) whose: String,
    own: Option<Own>,
}

/// One that was started here, in folders of its own.
struct Own {
    daemon: Child,
    /// Removed when the service has ended.
    folder: Folder,
}

impl Mps {
    /// The running service, else with `start` one of our own.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn find(start: bool) -> Result<Mps, String> {
        match command("get_server_list", None) {
            Ok(true) => Ok(Mps {
                whose: "the machine's".into(),
                own: None,
            }),
            Ok(false) if start => Mps::start(),
            Ok(false) => Err("MPS does not run; --mps starts one for the measurement".into()),
            Err(why) => Err(why),
        }
    }

    fn start() -> Result<Mps, String> {
        let folder = Folder::of_files("mps").map_err(|e| format!("{e:#}"))?;
        for sub in ["pipe", "log"] {
            let dir = folder.path().join(sub);
            std::fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        }
        // In the foreground, so that this process can end it, and in our process group, so that it ends with us.
        let daemon = Command::new(CONTROL)
            .arg("-f")
            .env("CUDA_MPS_PIPE_DIRECTORY", folder.path().join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", folder.path().join("log"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{CONTROL} does not start: {e}"))?;
        let mut own = Own { daemon, folder };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(Some(status)) = own.daemon.try_wait() {
                return Err(format!("{CONTROL} has ended with {status}"));
            }
            if command("get_server_list", Some(&own.pipe())) == Ok(true) {
                let whose = "one of our own".into();
                return Ok(Mps {
                    whose,
                    own: Some(own),
                });
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "{CONTROL} does not answer after {} s",
                    PATIENCE.as_secs()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Where clients find it, when it is not the machine's.
    pub(super) fn pipe(&self) -> Option<PathBuf> {
        self.own.as_ref().map(Own::pipe)
    }
}

impl Own {
    fn pipe(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = command("quit", Some(&self.pipe()));
        let _ = wait(&mut self.daemon);
    }
}

/// Waits for the end of a process; one that does not end is killed.
fn wait(child: &mut Child) -> Option<bool> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.success()),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// Sends a line to the service; false when there is none.
fn command(line: &str, pipe: Option<&Path>) -> Result<bool, String> {
    let mut control = Command::new(CONTROL);
    if let Some(pipe) = pipe {
        control.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    }
    let mut child = control
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("MPS is not known: {CONTROL} does not start ({e})"))?;
    if let Some(mut to) = child.stdin.take() {
        // One that found no service may have ended before it read.
        let _ = to.write_all(format!("{line}\n").as_bytes());
    }
    Ok(wait(&mut child) == Some(true))
}
