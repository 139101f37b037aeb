//! Outputs of a report: table, JSON, SVG.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::busy::watched;
use super::{plot, table, Plot, Report};
use crate::{files, stdio};

/// Flags that say where a report goes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OutputArgs {
    /// Write the report as one JSON object; `-` is standard output (the table then goes to standard
    /// error)
    #[arg(long, value_name = "FILE|-")]
    pub(crate) json: Option<PathBuf>,
    /// Draw the sweep as an SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

impl OutputArgs {
    /// The JSON object takes standard output, so that everything else moves to standard error.
    fn to_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Prints a line beside the report.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(crate) fn say(&self, line: impl Display) -> Result<()> {
        match self.to_stdout() {
            true => {
                stdio::note(line);
                Ok(())
            }
            false => stdio::line(line),
        }
    }
}

/// Prints the table and writes the files of the flags.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn emit(report: &Report, args: &OutputArgs, plot: &Plot) -> Result<()> {
    emit_text(report, &table::render(report), args, plot)
}

/// The same with a table of the benchmark's own.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn emit_text(report: &Report, text: &str, args: &OutputArgs, plot: &Plot) -> Result<()> {
    let report = &watched(report);
    args.say(text.trim_end())?;
    if let Some(busy) = &report.meta.busy {
        args.say(format_args!("# {}", busy.describe()))?;
    }
    if let Some(path) = &args.json {
        let json =
            serde_json::to_string_pretty(report).context("cannot express the report as JSON")?;
        files::write_json(path, json)?;
    }
    if let Some(path) = &args.svg {
        let svg = plot::svg(report, plot).context("cannot draw the report")?;
        files::write(path, svg, "--svg")?;
    }
    Ok(())
}
