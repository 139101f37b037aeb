//! `ringbell hll`: counts distinct items of a stream while the NIC moves it to GPU memory.
//!
//! ```text
//! file → GPU memory → NIC ─▶ NIC → [HyperLogLog] → GPU memory      (FpgaNIC §3.5, §A.3)
//! ```

mod merge;
pub(crate) mod path;

use std::io::{IsTerminal as _, Read, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ringbell::engines::hll::{
    DataSketchesForm, HashKind, HllConfig, HllEngine, HllSummary, Sketch,
};
use ringbell::engines::StreamEngine;
use ringbell::TransportSpec;
use serde_json::json;

use super::{Exit, Problem};
use crate::report::parse_size;
use path::{Path, WINDOW};

/// Bytes that are streamed once more to compare speeds with and without the engine.
const COMPARED: u64 = 256 << 20;
/// Runs of the comparison, of which the best counts.
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
    sketch: SketchArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Keep the sketch, to be merged with others later
    #[arg(long = "sketch", value_name = "FILE")]
    sketch_out: Option<PathBuf>,
    /// How the sketch is kept
    #[arg(long, default_value = "ringbell", value_name = "FORM")]
    form: Form,
    /// What carries the stream: `local` from memory to memory, `tcp` over an in-memory switch
    #[arg(long, default_value = "local", value_name = "local|tcp")]
    transport: TransportSpec,
    /// Bytes of a message
    #[arg(long, default_value = "1M", value_name = "SIZE", value_parser = parse_size)]
    message: u64,
}

#[derive(clap::Subcommand)]
enum Sub {
    /// Distinct items of several streams together, from their sketches
    Merge(merge::Args),
}

/// How items are counted.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SketchArgs {
    /// Bytes of an item: 1, 2, 4, 8 or 16, little-endian
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub(crate) width: usize,
    /// Log2 of the number of registers, 4 to 18: the standard error is 1.04 / sqrt(2^P)
    #[arg(long, default_value_t = 16, value_name = "P")]
    pub(crate) precision: u8,
    /// How items are hashed: `mix` is fastest, `murmur3` the paper's, `datasketches` as Apache's
    #[arg(long, default_value = "mix", value_name = "NAME", value_parser = hash)]
    pub(crate) hash: HashKind,
}

fn hash(name: &str) -> Result<HashKind, String> {
    HashKind::from_name(name).ok_or_else(|| {
        let names: Vec<_> = HashKind::ALL.iter().map(|h| h.name()).collect();
        format!("no hash named `{name}`; choose one of {}", names.join(", "))
    })
}

/// How a sketch is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// Ringbell's own
    Ringbell,
    /// Apache DataSketches, 8 bits a register; needs --hash datasketches
    Hll8,
    /// Apache DataSketches, 4 bits a register; needs --hash datasketches
    Hll4,
}

impl Form {
    /// The sketch as bytes.
    pub(crate) fn image(self, sketch: &Sketch) -> Result<Vec<u8>> {
        let form = match self {
            Form::Ringbell => {
                let mut image = Vec::new();
                sketch.write(&mut image);
                return Ok(image);
            }
            Form::Hll8 => DataSketchesForm::Hll8,
            Form::Hll4 => DataSketchesForm::Hll4,
        };
        sketch.to_datasketches(form).map_err(|e| {
            let advice = "count with --hash datasketches, or keep the sketch with --form ringbell";
            Problem::new(Exit::Usage, e.to_string(), advice).into()
        })
    }
}

impl SketchArgs {
    /// An engine; `image` when its result is to carry the sketch.
    pub(crate) fn engine(&self) -> Result<HllEngine> {
        let config = HllConfig {
            precision: self.precision,
            width: self.width,
            hash: self.hash,
            image: true,
        };
        HllEngine::new(config).map_err(|e| {
            let advice = "see --precision and --width";
            Problem::new(Exit::Usage, e.to_string(), advice).into()
        })
    }
}

/// Runs it.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if let Some(Sub::Merge(merge)) = &args.command {
        return merge::run(merge);
    }
    let engine = args.sketch.engine()?;
    if args.message == 0 || args.message > 64 << 20 {
        let what = format!("messages of {} bytes cannot be sent", args.message);
        return Err(Problem::new(Exit::Usage, what, "give --message 1 to 64M").into());
    }
    let (mut input, len) = open(&args.file)?;
    let path = Path::open(args.transport, args.message)?;
    let bar = bar(len);
    let mut chunk = vec![0; args.message as usize];
    let flow = path.stream(args.message, Some(Box::new(engine)), |offset| {
        let n = read_full(&mut input, &mut chunk)
            .with_context(|| format!("cannot read {}", args.file.display()))?;
        path.fill(offset, &chunk[..n])?;
        bar.inc(n as u64);
        Ok(n as u64)
    })?;
    bar.finish_and_clear();
    let result = flow.result.as_deref().unwrap_or_default();
    let (summary, sketch) = parse(result)?;
    let speeds = compare(args, &path, flow.bytes)?;
    if let Some(out) = &args.sketch_out {
        let image = args.form.image(&sketch)?;
        std::fs::write(out, image).with_context(|| {
            let out = out.display();
            format!("cannot write {out}; check the path given to --sketch")
        })?;
    }
    if let Some(left) = flow.cut {
        eprintln!(
            "# the input ends inside an item: its last {left} of {} bytes do not count; is --width right?",
            args.sketch.width
        );
    }
    let report = Counted {
        summary,
        sketch: &sketch,
        bytes: flow.bytes,
        read_gbs: flow.gbs(),
        speeds,
        transport: flow.transport,
    };
    report.print(args)?;
    Ok(Exit::Ok)
}

/// What was counted, and how fast.
struct Counted<'a> {
    summary: HllSummary,
    sketch: &'a Sketch,
    bytes: u64,
    read_gbs: f64,
    speeds: Option<(f64, f64)>,
    transport: &'static str,
}

impl Counted<'_> {
    fn print(&self, args: &Args) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let bounds = self.sketch.bounds(2.0);
        if args.json {
            let object = json!({
                "estimate": self.summary.estimate,
                "relative_error": self.summary.relative_error,
                "lower": bounds.lower,
                "upper": bounds.upper,
                "items": self.summary.items,
                "bytes": self.bytes,
                "width": args.sketch.width,
                "precision": args.sketch.precision,
                "hash": args.sketch.hash.name(),
                "nic": "soft",
                "gpu": "emulated",
                "transport": self.transport,
                "input_gbs": self.read_gbs,
                "algbw_gbs": self.speeds.map(|s| s.0),
                "stream_gbs": self.speeds.map(|s| s.1),
            });
            writeln!(out, "{object:#}")?;
            return Ok(());
        }
        writeln!(
            out,
            "{:.0} distinct items of {}, {:.0} to {:.0} with 95% (standard error {:.2}%)",
            self.summary.estimate,
            self.summary.items,
            bounds.lower,
            bounds.upper,
            self.summary.relative_error * 100.0
        )?;
        writeln!(
            out,
            "# {} bytes in items of {}, 2^{} registers, hash {}; from the input {:.2} GB/s",
            self.bytes,
            args.sketch.width,
            args.sketch.precision,
            args.sketch.hash.name(),
            self.read_gbs
        )?;
        if let Some((with, without)) = self.speeds {
            writeln!(
                out,
                "# soft nic, emulated gpu, {}: {with:.2} GB/s with the engine on the path, {without:.2} without ({:.2} x)",
                self.transport,
                with / without
            )?;
        }
        Ok(())
    }
}

/// Speed with and without the engine: what still lies in GPU memory, again and again. None when the
/// input was too short to fill it.
fn compare(args: &Args, path: &Path, bytes: u64) -> Result<Option<(f64, f64)>> {
    if bytes < WINDOW * args.message {
        return Ok(None);
    }
    let count = (COMPARED / args.message).max(4 * WINDOW);
    let once = |engine: bool| -> Result<f64> {
        let engine = match engine {
            true => Some(Box::new(args.sketch.engine()?) as Box<dyn StreamEngine>),
            false => None,
        };
        let mut left = count;
        let flow = path.stream(args.message, engine, |_| {
            let n = if left > 0 { args.message } else { 0 };
            left = left.saturating_sub(1);
            Ok(n)
        })?;
        Ok(flow.gbs())
    };
    let (mut with, mut without) = (0f64, 0f64);
    for _ in 0..COMPARISONS {
        without = without.max(once(false)?);
        with = with.max(once(true)?);
    }
    Ok(Some((with, without)))
}

/// The two parts of an engine's result.
pub(crate) fn parse(result: &[u8]) -> Result<(HllSummary, Sketch)> {
    let summary = HllSummary::read(result).context("the engine's result is too short")?;
    let image = result.get(HllSummary::BYTES..).unwrap_or_default();
    let sketch = Sketch::read(image).context("the engine's result holds no sketch")?;
    Ok((summary, sketch))
}

fn open(file: &std::path::Path) -> Result<(Box<dyn Read>, Option<u64>)> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(std::io::stdin().lock()), None));
    }
    let opened = std::fs::File::open(file).and_then(|f| Ok((f.metadata()?, f)));
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
