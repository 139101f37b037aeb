//! `ringbell hll`: counts distinct items of a stream while the NIC moves it to GPU memory.
//!
//! ```text
//! file → GPU memory → NIC ─▶ NIC → [HyperLogLog] → GPU memory      (FpgaNIC §3.5, §A.3)
//! ```
//!
//! Items have a fixed width, or are the lines or one column of a text ([`text`]).

pub(crate) mod kernel;
mod merge;
pub(crate) mod path;
mod sketch;
mod text;

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read};
use std::path::PathBuf;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ringbell::engines::hll::{HllSummary, Sketch};
use ringbell::engines::StreamEngine;
use ringbell::nic::TransportSpec;
use serde_json::json;

use super::{files, stdio, Exit, Problem};
use crate::report::{machine, parse_size};
use kernel::Kernel;
use path::{Path, WINDOW};
use sketch::Form;
pub(crate) use sketch::SketchArgs;
use text::TextArgs;

/// Bytes that are streamed again to compare speeds with and without the engine.
const COMPARED: u64 = 256 << 20;
/// Most messages of one such stream: small ones take about a microsecond each.
const COMPARED_MESSAGES: u64 = 20_000;
/// Runs of the comparison; the best one counts.
const COMPARISONS: usize = 3;

/// Arguments of `ringbell hll`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Sub>,
    /// What is counted; `-` is standard input
    #[arg(value_name = "FILE|-", default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    sketch: SketchArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Keep the sketch, to be merged with others later
    #[arg(long = "sketch", value_name = "FILE")]
    sketch_out: Option<PathBuf>,
    /// How the sketch is kept
    #[arg(
        long,
        default_value = "ringbell",
        value_name = "FORM",
        requires = "sketch_out"
    )]
    form: Form,
    /// What carries the stream: `local` from memory to memory, `tcp` over an in-memory switch
    #[arg(long, default_value = "local", value_name = "local|tcp")]
    transport: TransportSpec,
    /// Bytes of a message
    #[arg(long, default_value = "1M", value_name = "SIZE", value_parser = parse_size)]
    message: u64,
    #[command(flatten)]
    kernel: kernel::KernelArgs,
}

#[derive(clap::Subcommand)]
enum Sub {
    /// Distinct items of several streams together, from their sketches
    Merge(merge::Args),
}

impl Args {
    /// An engine for the items.
    fn engine(&self) -> Result<Box<dyn StreamEngine>> {
        let hash = self.text.hash(self.sketch.hash);
        Ok(match self.text.engine(self.sketch.precision, hash)? {
            Some(text) => Box::new(text),
            None => Box::new(self.sketch.engine()?),
        })
    }

    /// Text has few items of a fixed width: those of 4 bytes are windows on its letters.
    fn warn_of_text(&self, start: &[u8]) {
        let width = self.sketch.width;
        if width > 1 && !self.text.is_text() && text::looks_like_text(start) {
            stdio::note(format_args!(
                "# the input looks like text, and is counted in items of {width} bytes, wherever its lines end; \
                 --lines counts lines, --column N a column of them"
            ));
        }
    }
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if let Some(Sub::Merge(merge)) = &args.command {
        return merge::run(merge);
    }
    let engine = args.engine()?;
    if args.message == 0 || args.message > 64 << 20 {
        let what = format!("messages of {} bytes cannot be sent", args.message);
        return Err(Problem::new(Exit::Usage, what, "give --message 1 to 64M").into());
    }
    if args.sketch_out.is_some() {
        // A hash whose sketch could not be stored is refused before counting.
        let hash = args.text.hash(args.sketch.hash);
        args.form
            .image(&Sketch::new(args.sketch.precision, hash, 8)?)?;
    }
    let (mut input, len) = open(&args.file)?;
    let path = Path::open(args.transport, args.message, args.sketch.engine_thread)?;
    let kernel = args.kernel.open(&path, &args.sketch)?;
    let mut hardware = path.hardware();
    let bar = bar(len);
    let mut chunk = vec![0; args.message as usize];
    let mut is_start = true;
    let next = |offset| {
        let n = read_full(&mut input, &mut chunk)
            .with_context(|| format!("cannot read {}", args.file.display()))?;
        if std::mem::take(&mut is_start) {
            args.warn_of_text(&chunk[..n]);
        }
        path.fill(offset, &chunk[..n])?;
        bar.inc(n as u64);
        Ok(n as u64)
    };
    let flow = match &kernel {
        Some(kernel) => kernel.stream(args.message, None, next)?,
        None => path.stream(args.message, Some(engine), next)?,
    };
    bar.finish_and_clear();
    let result = flow.result.as_deref().unwrap_or_default();
    let (summary, sketch) = match &kernel {
        Some(kernel) => kernel.result(flow.bytes)?,
        None => parse(result)?,
    };
    let missing = args.text.is_text().then(|| text::missing(&summary, result));
    let speeds = compare(args, &path, kernel.as_ref(), flow.bytes)?;
    if let Some(out) = &args.sketch_out {
        let image = args.form.image(&sketch)?;
        files::write(out, image, "--sketch")?;
    }
    let rest = (flow.bytes % args.sketch.width as u64) as usize;
    let cut = flow.cut.or((rest > 0 && kernel.is_some()).then_some(rest));
    if let Some(left) = cut {
        stdio::note(format_args!(
            "# the input ends inside an item: its last {left} of {} bytes do not count; is --width right?",
            args.sketch.width
        ));
    }
    let report = Counted {
        missing,
        summary,
        sketch: &sketch,
        bytes: flow.bytes,
        read_gbs: flow.gbs(),
        speeds,
        grid: kernel.as_ref().map(Kernel::grid),
        transport: flow.transport,
        nic: path.nic(),
        gpu: machine::gpu_name(path.gpu()),
        gpu_kind: machine::gpu_kind(path.gpu()),
    };
    report.print(args)?;
    for line in hardware.iter_mut().filter_map(|h| path.did(h)) {
        stdio::note(format_args!("# {line}"));
    }
    Ok(Exit::Ok)
}

/// Result of a count, and its speed.
struct Counted<'a> {
    /// Lines without the column, of a text.
    missing: Option<u64>,
    summary: HllSummary,
    sketch: &'a Sketch,
    bytes: u64,
    read_gbs: f64,
    speeds: Option<Speeds>,
    /// Blocks and lanes of the kernel, when one has counted.
    grid: Option<(u32, u32)>,
    transport: &'static str,
    /// The GPU, and its kind in two words.
    nic: ringbell::nic::NicKind,
    gpu: String,
    gpu_kind: &'static str,
}

/// Speed of the same stream counted in one way or another, 10^9 bytes per second.
#[derive(Clone, Copy, Default)]
struct Speeds {
    /// By the engine on the path.
    engine: f64,
    /// Not at all.
    plain: f64,
    /// By the kernel on the GPU.
    kernel: Option<f64>,
}

impl Counted<'_> {
    fn print(&self, args: &Args) -> Result<()> {
        let mut out = String::new();
        let bounds = self.sketch.bounds(2.0);
        if args.json {
            let object = json!({
                "estimate": self.summary.estimate,
                "relative_error": self.summary.relative_error,
                "lower": bounds.lower,
                "upper": bounds.upper,
                "items": self.summary.items,
                "bytes": self.bytes,
                "items_are": args.text.items(args.sketch.width),
                "width": self.missing.is_none().then_some(args.sketch.width),
                "lines_without_column": self.missing,
                "precision": args.sketch.precision,
                "hash": self.sketch.hash().name(),
                "nic": self.nic.name(),
                "gpu": self.gpu,
                "transport": self.transport,
                "input_gbs": self.read_gbs,
                "counted_by": if self.grid.is_some() { "gpu kernel" } else { "engine" },
                "blocks": self.grid.map(|g| g.0),
                "lanes": self.grid.map(|g| g.1),
                "algbw_gbs": self.speeds.map(|s| s.engine),
                "stream_gbs": self.speeds.map(|s| s.plain),
                "kernel_gbs": self.speeds.and_then(|s| s.kernel),
            });
            return stdio::line(format_args!("{object:#}"));
        }
        writeln!(
            out,
            "{:.0} distinct {} of {}, {:.0} to {:.0} with 95% (standard error {:.2}%)",
            self.summary.estimate,
            args.text.items(args.sketch.width),
            self.summary.items,
            bounds.lower,
            bounds.upper,
            self.summary.relative_error * 100.0
        )?;
        writeln!(
            out,
            "# {} bytes, 2^{} registers, hash {}; from the input {:.2} GB/s",
            self.bytes,
            args.sketch.precision,
            self.sketch.hash().name(),
            self.read_gbs
        )?;
        if let (Some(missing @ 1..), Some(column)) = (self.missing, args.text.column()) {
            writeln!(
                out,
                "# {missing} lines have no column {column}; they are not counted"
            )?;
        }
        if let Some(Speeds { engine, plain, .. }) = self.speeds {
            writeln!(
                out,
                "# {} nic, {}, {}: {engine:.2} GB/s with the engine on the path, {plain:.2} without ({:.2} x)",
                self.nic,
                self.gpu_kind,
                self.transport,
                engine / plain
            )?;
        }
        if let Some((blocks, lanes)) = self.grid {
            write!(
                out,
                "# counted by the kernel on the gpu, {blocks} x {lanes} threads"
            )?;
            match self.speeds.and_then(|s| s.kernel) {
                Some(speed) => writeln!(out, ": {speed:.2} GB/s")?,
                None => writeln!(out)?,
            }
        }
        stdio::out(out)
    }
}

/// Speed with and without the engine, and with the kernel if that has counted, over repeated
/// streams of the data left in GPU memory. None when the input was too short to fill it.
fn compare(
    args: &Args,
    path: &Path,
    kernel: Option<&Kernel<'_>>,
    bytes: u64,
) -> Result<Option<Speeds>> {
    if bytes < WINDOW * args.message {
        return Ok(None);
    }
    let count = (COMPARED / args.message).clamp(4 * WINDOW, COMPARED_MESSAGES);
    let messages = |count: u64| {
        let mut left = count;
        move |_| {
            let n = if left > 0 { args.message } else { 0 };
            left = left.saturating_sub(1);
            Ok(n)
        }
    };
    let once = |engine: Option<Box<dyn StreamEngine>>| {
        let flow = path.stream(args.message, engine, messages(count))?;
        anyhow::Ok(flow.gbs())
    };
    let mut best = Speeds::default();
    for _ in 0..COMPARISONS {
        best.plain = best.plain.max(once(None)?);
        best.engine = best.engine.max(once(Some(args.engine()?))?);
        if let Some(kernel) = kernel {
            // An emulated GPU is slow: fewer suffice.
            let count = (count / 8).max(4 * WINDOW);
            let total = Some(count * args.message);
            let flow = kernel.stream(args.message, total, messages(count))?;
            best.kernel = Some(best.kernel.unwrap_or(0.0).max(flow.gbs()));
        }
    }
    Ok(Some(best))
}

/// The two parts of an engine's result.
pub(crate) fn parse(result: &[u8]) -> Result<(HllSummary, Sketch)> {
    let summary = HllSummary::read(result).context("the engine's result is too short")?;
    let end = HllSummary::BYTES.saturating_add(summary.image_bytes as usize);
    let image = result.get(HllSummary::BYTES..end).unwrap_or_default();
    let sketch = Sketch::read(image).context("the engine's result holds no sketch")?;
    Ok((summary, sketch))
}

fn open(file: &std::path::Path) -> Result<(Box<dyn Read>, Option<u64>)> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(std::io::stdin().lock()), None));
    }
    let opened = std::fs::File::open(file).and_then(|f| match f.metadata()? {
        meta if meta.is_dir() => Err(std::io::ErrorKind::IsADirectory.into()),
        meta => Ok((meta, f)),
    });
    let (meta, f) = opened.map_err(|e| {
        let what = format!("cannot open {}: {e}", file.display());
        Problem::new(Exit::Usage, what, "give a file, or - for standard input")
    })?;
    Ok((Box::new(f), meta.is_file().then_some(meta.len())))
}

/// Reads until the buffer is full or the input ends.
fn read_full(input: &mut dyn Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut n = 0;
    while n < into.len() {
        match input.read(&mut into[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

fn bar(len: Option<u64>) -> ProgressBar {
    let target = match std::io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(len, target);
    let template = match len {
        Some(_) => "hll [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
        None => "hll {spinner} {bytes} {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
