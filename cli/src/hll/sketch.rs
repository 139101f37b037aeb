//! How items are counted, and how a sketch is kept.

use anyhow::Result;
use ringbell::engines::hll::{DataSketchesForm, HashKind, HllConfig, HllEngine, Sketch};
use ringbell::nic::EngineThread;

use crate::{Exit, Problem};

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
    /// numbers, `datasketches-bytes` as its strings and byte arrays [default: mix; of lines and
    /// columns: murmur3]
    #[arg(long, value_name = "mix|murmur3|datasketches|datasketches-bytes", value_parser = hash)]
    pub(super) hash: Option<HashKind>,
    /// Where the engine runs: `off` on the thread of the copy, `auto` beside the copy of long
    /// messages while that is faster
    #[arg(long, default_value = "off", value_name = "auto|off|always", value_parser = engine_thread)]
    pub(crate) engine_thread: EngineThread,
}

fn engine_thread(name: &str) -> Result<EngineThread, String> {
    let unknown = || format!("no place of engines named `{name}`; choose auto, off or always");
    EngineThread::from_name(name).ok_or_else(unknown)
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
    /// Apache DataSketches, 8 bits a register; needs --hash datasketches or datasketches-bytes
    Hll8,
    /// Apache DataSketches, 4 bits a register; needs --hash datasketches or datasketches-bytes
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
            let advice = "count with --hash datasketches (numbers) or datasketches-bytes (strings), or keep the sketch with --form ringbell";
            Problem::new(Exit::Usage, e.to_string(), advice).into()
        })
    }
}

impl SketchArgs {
    /// How items of a fixed width are hashed.
    pub(crate) fn hash(&self) -> HashKind {
        self.hash.unwrap_or_default()
    }

    /// An engine; `image` when its result is to carry the sketch.
    pub(crate) fn engine(&self) -> Result<HllEngine> {
        let config = HllConfig {
            precision: self.precision,
            width: self.width,
            hash: self.hash(),
            image: true,
        };
        HllEngine::new(config).map_err(|e| {
            let advice = "see --precision and --width";
            Problem::new(Exit::Usage, e.to_string(), advice).into()
        })
    }
}
