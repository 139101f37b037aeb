//! `ringbell hll merge`: union of sketches.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ringbell::engines::hll::{HashKind, Sketch};
use serde_json::json;

use super::sketch::Form;
use crate::{files, stdio, Exit, Problem};

/// Arguments of `ringbell hll merge`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Sketches that `ringbell hll --sketch` or Apache DataSketches wrote
    #[arg(value_name = "SKETCH", required = true, num_args = 1..)]
    sketches: Vec<PathBuf>,
    /// Keep the union
    #[arg(long = "sketch", value_name = "FILE")]
    sketch_out: Option<PathBuf>,
    /// How the union is kept
    #[arg(
        long,
        default_value = "ringbell",
        value_name = "FORM",
        requires = "sketch_out"
    )]
    form: Form,
    /// How the items of DataSketches' files were hashed, which they do not say: `datasketches`
    /// numbers, `datasketches-bytes` strings and byte arrays
    #[arg(long, default_value = "datasketches", value_name = "datasketches|datasketches-bytes", value_parser = foreign)]
    hash: HashKind,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn foreign(name: &str) -> Result<HashKind, String> {
    match HashKind::from_name(name) {
        Some(hash @ (HashKind::DataSketches | HashKind::DataSketchesBytes)) => Ok(hash),
        _ => Err("write datasketches or datasketches-bytes".into()),
    }
}

fn read(path: &Path, hash: HashKind) -> Result<Sketch> {
    let wrong = |what: String| {
        let what = format!("{}: {what}", path.display());
        Problem::new(
            Exit::Usage,
            what,
            "give files that `ringbell hll --sketch` or Apache DataSketches wrote",
        )
    };
    let image = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
    match Sketch::read(&image) {
        Ok(sketch) => Ok(sketch),
        Err(own) => {
            Sketch::from_datasketches(&image, hash).map_err(|e| wrong(format!("{own}; {e}")).into())
        }
    }
}

/// Runs it.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let mut all: Option<Sketch> = None;
    for path in &args.sketches {
        let next = read(path, args.hash)?;
        all = Some(match all {
            None => next,
            Some(sofar) => sofar.union(&next).map_err(|e| {
                let what = format!("{}: {e}", path.display());
                let advice = "merge sketches of one kind; --hash says how the items of DataSketches' files were hashed";
                Problem::new(Exit::Usage, what, advice)
            })?,
        });
    }
    let all = all.context("no sketch was given")?;
    if let Some(out) = &args.sketch_out {
        files::write(out, args.form.image(&all)?, "--sketch")?;
    }
    let (bounds, error) = (all.bounds(2.0), all.relative_error());
    if args.json {
        let object = json!({
            "estimate": bounds.estimate,
            "relative_error": error,
            "lower": bounds.lower,
            "upper": bounds.upper,
            "precision": all.precision(),
            "width": all.width(),
            "hash": all.hash().name(),
            "sketches": args.sketches.len(),
        });
        stdio::line(format_args!("{object:#}"))?;
    } else {
        stdio::line(format_args!(
            "{:.0} distinct items in {} sketches, {:.0} to {:.0} with 95% (standard error {:.2}%)",
            bounds.estimate,
            args.sketches.len(),
            bounds.lower,
            bounds.upper,
            error * 100.0
        ))?;
    }
    Ok(Exit::Ok)
}
