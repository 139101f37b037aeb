//! A second process of the same test: the first talks to it through its standard streams.
#![allow(dead_code, unreachable_pub)] // Each test uses a part.
#![allow(clippy::disallowed_methods)] // At the edge: deadlines, so that a hang fails.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// What the process is to be; set in all but the first.
const ROLE: &str = "RINGBELL_TEST_ROLE";
/// Begins a line of the second process that the first shall read; the test harness prints others.
const MARK: &str = "@@ ";
/// Longest wait for the other side.
const PATIENCE: Duration = Duration::from_secs(60);

/// The role of this process; `None` in the first.
pub fn role() -> Option<&'static str> {
    static ROLE_HERE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ROLE_HERE
        .get_or_init(|| std::env::var(ROLE).ok())
        .as_deref()
}

/// Sends a line to the first process.
pub fn say(text: &str) {
    println!("\n{MARK}{text}");
    let _ = std::io::stdout().flush();
}

/// Sends bytes to the first process.
pub fn say_bytes(bytes: &[u8]) {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    say(&hex);
}

/// Reads bytes that the first process sends.
pub fn read_bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    std::io::stdin()
        .lock()
        .read_exact(&mut bytes)
        .expect("the first process sends");
    bytes
}

/// Waits until the first process closes our input.
pub fn read_to_end() {
    let mut rest = Vec::new();
    let _ = std::io::stdin().lock().read_to_end(&mut rest);
}

/// The second process, as the first sees it. Killed when dropped.
pub struct Second {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Second {
    /// Starts the test `test` again as `role`, under the same driver.
    pub fn start(test: &str, role: &str) -> Second {
        let faults = std::env::var("RINGBELL_MOCK_CUDA").unwrap_or_default();
        Second::start_with(test, role, &faults)
    }

    /// As [`Second::start`], with these faults in the driver.
    pub fn start_with(test: &str, role: &str, faults: &str) -> Second {
        let exe = std::env::current_exe().expect("a test has a path");
        let mut child = Command::new(exe)
            .arg(crate::mock_driver::full_name(test))
            .args(["--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("RINGBELL_MOCK_CUDA", faults)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test itself starts");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.expect("piped"));
        let (to, lines) = std::sync::mpsc::channel();
        // Ends with the child.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(said) => drop(to.send(said.to_owned())),
                    None => println!("second: {line}"),
                }
            }
        });
        Second {
            child,
            input,
            lines,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("not ended");
        input.write_all(bytes).expect("it reads");
        input.flush().expect("it reads");
    }

    /// The next line that it sends.
    pub fn hear(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("the second process sends nothing"),
            Err(RecvTimeoutError::Disconnected) => {
                panic!("the second process has ended: {:?}", self.child.wait())
            }
        }
    }

    /// Waits until it sends this.
    pub fn expect(&mut self, what: &str) {
        assert_eq!(self.hear(), what);
    }

    /// Bytes that it sends.
    pub fn receive(&mut self, len: usize) -> Vec<u8> {
        let line = self.hear();
        assert_eq!(line.len(), 2 * len, "{line}");
        (0..len)
            .map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).expect("hexadecimal"))
            .collect()
    }

    /// Ends it as a crash does, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Closes its input and waits until it has ended well.
    pub fn end(&mut self) {
        drop(self.input.take());
        let status = self.child.wait().expect("a child of ours");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
