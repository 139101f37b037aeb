//! Counts the distinct words of a text that this machine has, on its way to a GPU's memory.
//!
//! A kernel accepts a connection and puts an engine on its path (on-path model, FpgaNIC §3.5): a
//! chain of HyperLogLog and of an engine of our own, which this file defines. It receives the
//! stream as any other, and answers with the engines' results; the exact count stands beside the
//! estimate. The text is Debian's list of packages, or, where there is none, the sources of this
//! library.
//!
//! Run: `cargo run -p ringbell --example 07_distinct_words`
//!
//! Prints `N words, M distinct; the NIC estimates ...` and the longest word that our engine saw;
//! ends with an error when the estimate is further off than four standard errors.
#![allow(unsafe_code)] // Runs kernels.
#![allow(clippy::disallowed_methods)] // Waits for the kernel to listen, with a deadline.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Error};
use ringbell::abi::Status;
use ringbell::engines::hll::{HllConfig, HllEngine, HllSummary};
use ringbell::engines::{read_result, split_results, Chain, EngineError, StreamEngine};
use ringbell::{GpuResult, Nic, Socket};

#[path = "../support/kernels.rs"]
mod kernels;

const PORT: u16 = 4796;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 106, 1);
/// The number under which kernels ask for our chain.
const KIND: u16 = 1;
const PRECISION: u64 = 12;
/// Bytes of a word on the wire: its length, and 56 bits of its hash.
const ITEM: usize = 8;

/// An engine of our own: the longest word. Items are cut anywhere, so an unfinished one is kept.
#[derive(Default)]
struct Longest {
    begun: Vec<u8>,
    longest: u8,
}

impl StreamEngine for Longest {
    fn name(&self) -> &'static str {
        "longest"
    }

    fn declared_rate(&self) -> f64 {
        1e8
    }

    fn is_tap(&self) -> bool {
        true
    }

    fn output_bound(&self, _input: usize) -> usize {
        0
    }

    fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
        self.begun.extend_from_slice(input);
        let whole = self.begun.len() - self.begun.len() % ITEM;
        for item in self.begun[..whole].chunks_exact(ITEM) {
            self.longest = self.longest.max(item[0]);
        }
        self.begun.drain(..whole);
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        match std::mem::take(&mut self.begun).len() {
            0 => Ok(()),
            left => Err(EngineError::CutItem {
                engine: self.name(),
                left,
                item: ITEM,
            }),
        }
    }

    fn result(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&u64::from(self.longest).to_le_bytes());
    }

    fn reset(&mut self) {
        *self = Longest::default();
    }
}

/// The chain for a kernel that asks for `KIND`; `None` refuses the parameter.
fn chain(precision: u64) -> Option<Box<dyn StreamEngine>> {
    let config = HllConfig {
        precision: u8::try_from(precision).ok()?,
        width: ITEM,
        image: false,
        ..HllConfig::default()
    };
    let hll = HllEngine::new(config).ok()?;
    Some(Box::new(Chain::new(vec![
        Box::new(hll),
        Box::<Longest>::default(),
    ])))
}

fn main() -> Result<(), Error> {
    let text = text()?;
    let words: Vec<&[u8]> = text
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty())
        .collect();
    let items: Vec<u8> = words.iter().flat_map(|w| item(w)).collect();
    let exact = words.iter().collect::<HashSet<_>>().len();

    let open = |ip: Ipv4Addr| -> Result<Nic, Error> {
        let memory = items.len() as u64 + (64 << 20);
        Ok(Nic::builder()
            .ip(format!("{ip}/24"))
            .gpu_memory(memory)
            .open()?)
    };
    let (server, client) = (open(SERVER)?, open(Ipv4Addr::new(10, 77, 106, 2))?);
    server.register_engine_kind(KIND, chain)?;
    let queue = server.create_queue()?;
    let data = server.alloc::<u8>(items.len() as u64)?;
    let (result, end) = (server.alloc::<u8>(4096)?, server.alloc::<GpuResult>(1)?);
    end.write(0, &[GpuResult::UNWRITTEN])?;
    let (port, kind, bytes) = (u32::from(PORT), u32::from(KIND), items.len() as u64);
    let args = (
        &queue, port, kind, PRECISION, &data, bytes, &result, 4096_u32, &end,
    );
    // SAFETY: count.cu is ours, and the arguments have the types of its parameters.
    let launch = unsafe {
        let module = server.module(kernels::of("07_distinct_words/count.cu"))?;
        module.kernel("count_distinct")?.launch(1, 32, args)?
    };
    let answer = ask(&client, &items);
    launch.wait(Duration::from_secs(60))?;
    end.to_vec()?[0].check("the kernel")?;
    let answer = answer?;
    let parts = split_results(&answer).ok_or_else(|| anyhow!("not the results of a chain"))?;
    let [hll, longest] = parts[..] else {
        return Err(anyhow!("{} results", parts.len()));
    };
    let summary: HllSummary = read_result(hll).ok_or_else(|| anyhow!("no summary"))?;
    let longest: u64 = read_result(longest).ok_or_else(|| anyhow!("no length"))?;
    let error = (summary.estimate - exact as f64).abs() / exact as f64;
    println!(
        "{} words, {exact} distinct; the NIC estimates {:.0}, {:.2}% off (standard error {:.2}%); the longest has {} bytes",
        summary.items,
        summary.estimate,
        error * 100.0,
        summary.relative_error * 100.0,
        longest
    );
    let longest_exact = words.iter().map(|w| w.len().min(255) as u64).max();
    if summary.items != words.len() as u64 || longest_exact != Some(longest) {
        return Err(anyhow!("an engine did not see every word"));
    }
    match error < 4.0 * summary.relative_error {
        true => Ok(()),
        false => Err(anyhow!("the estimate is too far off")),
    }
}

/// A word as an item.
fn item(word: &[u8]) -> [u8; ITEM] {
    let mut hasher = DefaultHasher::new();
    word.hash(&mut hasher);
    let mut item = hasher.finish().to_le_bytes();
    item[0] = word.len().min(255) as u8;
    item
}

fn text() -> Result<Vec<u8>, Error> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    match std::fs::read("/var/lib/dpkg/status") {
        Ok(text) if text.len() > 10_000 => Ok(text),
        _ => {
            let mut text = Vec::new();
            for entry in std::fs::read_dir(own)? {
                let path = entry?.path();
                if path.is_file() {
                    text.extend(std::fs::read(path)?);
                }
            }
            Ok(text)
        }
    }
}

/// The client: sends all items, and returns the answer.
fn ask(nic: &Nic, items: &[u8]) -> Result<Vec<u8>, Error> {
    let out = nic.alloc::<u8>(items.len() as u64)?;
    out.write(0, items)?;
    let socket = connect(nic)?;
    socket.set_timeout(Duration::from_secs(60));
    socket.send(&out)?;
    // The server closes behind its answer.
    let mut answer = Vec::new();
    socket.reader(4096)?.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Connects, again and again until the kernel listens.
fn connect(nic: &Nic) -> Result<Socket, Error> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match nic.connect((SERVER, PORT)) {
            Err(e)
                if e.status() == Some(Status::ConnectionRefused) && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return Ok(done?),
        }
    }
}
