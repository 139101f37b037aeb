//! `ringbell sim figures`: figures of papers on simulated clusters, with the papers' numbers beside
//! ours.

mod measure;
mod papers;
mod text;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;

use self::measure::{measure, profile, Measured, WIDE};
use self::papers::{Figure, FIGURES, LEFT};
use crate::{files, stdio, Exit};

/// Arguments of `ringbell sim figures`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Figures by name, or `all`; without one their names are listed
    #[arg(value_name = "NAME", value_parser = named)]
    names: Vec<&'static [Figure]>,
    /// Write the figures as one JSON object; `-` (the default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-", requires = "names")]
    json: Option<PathBuf>,
    /// Draw each figure as NAME.svg into a folder, which is made where it is missing
    #[arg(long, value_name = "DIR", requires = "names")]
    svg: Option<PathBuf>,
}

/// The figures of a name.
fn named(name: &str) -> Result<&'static [Figure], String> {
    if name == "all" {
        return Ok(FIGURES);
    }
    let known = FIGURES.iter().find(|f| f.name == name);
    let left = LEFT.iter().find(|l| l.name == name);
    match (known, left) {
        (Some(figure), _) => Ok(std::slice::from_ref(figure)),
        (None, Some(left)) => Err(format!("it is not simulated: {}", left.why)),
        (None, None) => {
            let names: Vec<_> = FIGURES.iter().map(|f| f.name).collect();
            let names = names.join(", ");
            Err(format!(
                "there is no such figure; write one of {names}, or all"
            ))
        }
    }
}

/// Simulates the figures and prints them.
pub(super) fn run(args: &Args) -> Result<Exit> {
    if args.names.is_empty() {
        return stdio::out(text::list(FIGURES, LEFT)).map(|()| Exit::Ok);
    }
    if let Some(folder) = &args.svg {
        fs::create_dir_all(folder).with_context(|| {
            let folder = folder.display();
            format!("cannot make the folder {folder}; check the path given to --svg")
        })?;
    }
    let mut done = Vec::new();
    for figure in args.names.iter().copied().flatten() {
        done.push((figure, points(figure, args.json.is_none())?));
    }
    if let Some(path) = &args.json {
        let figures: Vec<_> = done.iter().map(|(f, p)| text::json(f, p)).collect();
        let whole = serde_json::to_string_pretty(&json!({ "figures": figures }));
        files::write_json(path, whole.context("cannot express the figures as JSON")?)?;
    }
    if let Some(folder) = &args.svg {
        draw(folder, &done)?;
    }
    let wrong = done.iter().flat_map(|(_, p)| p).map(|m| m.wrong).sum();
    Ok(Exit::of_data(wrong))
}

/// The points of a figure; prints them as they come.
fn points(figure: &Figure, prints: bool) -> Result<Vec<Measured>> {
    let profile = profile(figure)?;
    let say = |text: String| match prints {
        true => stdio::out(text),
        false => Ok(()),
    };
    say(text::head(figure, &profile))?;
    let mut points = Vec::new();
    for point in figure.points {
        let measured = measure(figure.work, *point, &profile)?;
        say(text::line(figure, &measured) + "\n")?;
        points.push(measured);
    }
    if let Some(why) = text::differs(figure, &points) {
        let percent = 100.0 * WIDE;
        say(format!("# differs by more than {percent:.0}%: {why}\n"))?;
    }
    Ok(points)
}

fn draw(folder: &Path, done: &[(&Figure, Vec<Measured>)]) -> Result<()> {
    for (figure, points) in done {
        let file = folder.join(format!("{}.svg", figure.name));
        files::write(&file, text::picture(figure, points)?, "--svg")?;
    }
    Ok(())
}
