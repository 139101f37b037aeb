//! Breaches of structure, compared with recorded ones: new or larger ones fail, and smaller ones are to be recorded.
//!
//! `xtask/structure.txt` lists the layered crates' known breaches: module cycles, structures with too many fields, types whose
//! `impl` blocks stand in too many files. The list only shrinks.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};

use super::{graph, modules, shape};
use crate::root;
use crate::steps::Outcome;

/// The crates whose structure is checked.
const LAYERED: [&str; 4] = ["nic-core", "gtlb", "cuda-kernels", "onc-engines"];

/// One breach in a crate. Its text is a line of the record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Breach {
    /// Modules of one folder that reach each other; the folder is empty at the crate's root.
    Cycle {
        folder: String,
        modules: BTreeSet<String>,
    },
    /// A structure and the number of its fields.
    Fields { place: String, count: usize },
    /// A type and the number of files with inherent `impl` blocks of it.
    Impls { place: String, count: usize },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cycle { folder, modules } => {
                let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
                write!(f, "cycle in crate::{folder}: {}", modules.join(" "))
            }
            Self::Fields { place, count } => write!(f, "fields of {place}: {count}"),
            Self::Impls { place, count } => write!(f, "impl files of {place}: {count}"),
        }
    }
}

impl Breach {
    /// Reads a line of the record.
    fn parse(line: &str) -> Option<Self> {
        if let Some(rest) = line.strip_prefix("cycle in crate::") {
            let (folder, modules) = rest.rsplit_once(": ")?;
            return Some(Self::Cycle {
                folder: folder.to_string(),
                modules: modules.split(' ').map(str::to_string).collect(),
            });
        }
        let (place, count) = line.rsplit_once(": ")?;
        let count = count.parse().ok()?;
        let fields = place.strip_prefix("fields of ").map(str::to_string);
        let impls = place.strip_prefix("impl files of ").map(str::to_string);
        fields
            .map(|place| Self::Fields { place, count })
            .or(impls.map(|place| Self::Impls { place, count }))
    }

    /// Whether it is no worse than a recorded one of the same place.
    fn within(&self, recorded: &Self) -> bool {
        match (self, recorded) {
            (
                Self::Cycle { folder, modules },
                Self::Cycle {
                    folder: f,
                    modules: m,
                },
            ) => folder == f && modules.is_subset(m),
            (Self::Fields { place, count }, Self::Fields { place: p, count: c })
            | (Self::Impls { place, count }, Self::Impls { place: p, count: c }) => {
                place == p && count <= c
            }
            _ => false,
        }
    }
}

/// Fails on a breach without a record, and on a record that is no longer needed.
pub(crate) fn check() -> Result<Outcome> {
    let (found, recorded) = (measure()?, record()?);
    let complaints = compare(&found, &recorded);
    for line in &complaints {
        println!("{line}");
    }
    if !complaints.is_empty() {
        bail!("the structure differs from {}", file().display());
    }
    println!("{} known breach(es) of structure, no new one", found.len());
    Ok(Outcome::Passed)
}

fn compare(found: &[(String, Breach)], recorded: &[(String, Breach)]) -> Vec<String> {
    let mut out = Vec::new();
    for (folder, breach) in found {
        if !recorded
            .iter()
            .any(|(f, r)| f == folder && breach.within(r))
        {
            out.push(format!("new: {folder}: {breach}; a module uses only floors below its own, and a type owns its parts"));
        }
    }
    for line in recorded {
        if !found.contains(line) {
            out.push(format!(
                "better than recorded: {}: {}; run `cargo xtask graph --update`",
                line.0, line.1
            ));
        }
    }
    out
}

/// Writes the record anew. It refuses to record more than before.
pub(crate) fn update() -> Result<()> {
    let (found, recorded) = (measure()?, record()?);
    let worse: Vec<String> = compare(&found, &recorded)
        .into_iter()
        .filter(|l| l.starts_with("new: "))
        .collect();
    if !worse.is_empty() {
        bail!("not recorded, the list only shrinks:\n{}", worse.join("\n"));
    }
    let text: String = found.iter().map(|(f, b)| format!("{f}: {b}\n")).collect();
    std::fs::write(file(), text).with_context(|| format!("cannot write {}", file().display()))
}

/// Prints the floors of each layered crate, and the breaches that are left.
pub(crate) fn report() -> Result<()> {
    for folder in LAYERED {
        let modules = load(folder)?;
        println!("{folder}");
        if let Some(top) = graph::levels(&modules).get(&Vec::new()) {
            for (floor, modules) in graph::floors(top).iter().enumerate() {
                println!("  floor {floor}: {}", modules.join(" "));
            }
        }
        for breach in breaches(&modules) {
            println!("  {breach}");
        }
    }
    Ok(())
}

fn load(folder: &str) -> Result<Vec<super::Module>> {
    modules(&Path::new(folder).join("src/lib.rs"))
}

fn breaches(modules: &[super::Module]) -> Vec<Breach> {
    let mut found = graph::cycles(&graph::levels(modules));
    found.extend(shape::breaches(modules));
    found.sort();
    found
}

fn measure() -> Result<Vec<(String, Breach)>> {
    let mut out = Vec::new();
    for folder in LAYERED {
        let found = breaches(&load(folder)?);
        out.extend(found.into_iter().map(|b| (folder.to_string(), b)));
    }
    Ok(out)
}

fn file() -> PathBuf {
    root().join("xtask/structure.txt")
}

fn record() -> Result<Vec<(String, Breach)>> {
    let text = std::fs::read_to_string(file())
        .with_context(|| format!("cannot read {}", file().display()))?;
    text.lines()
        .map(|line| {
            let parsed = line
                .split_once(": ")
                .and_then(|(folder, breach)| Some((folder.to_string(), Breach::parse(breach)?)));
            parsed.with_context(|| format!("{}: cannot read `{line}`", file().display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(modules: &[&str]) -> Breach {
        Breach::Cycle {
            folder: "a::b".into(),
            modules: modules.iter().map(|m| m.to_string()).collect(),
        }
    }

    #[test]
    fn a_breach_survives_the_record() {
        let fields = Breach::Fields {
            place: "a::Wide".into(),
            count: 17,
        };
        let impls = Breach::Impls {
            place: "a::Core".into(),
            count: 4,
        };
        for breach in [cycle(&["x", "y"]), fields, impls] {
            assert_eq!(Breach::parse(&breach.to_string()), Some(breach));
        }
        assert_eq!(Breach::parse("something else: 3"), None);
    }

    #[test]
    fn only_unchanged_breaches_pass() {
        let one = |b: Breach| vec![("c".to_string(), b)];
        let recorded = one(cycle(&["x", "y", "z"]));
        assert!(compare(&recorded, &recorded).is_empty());
        // Smaller: the record must follow.
        assert!(compare(&one(cycle(&["x", "y"])), &recorded)[0].starts_with("better"));
        assert!(compare(&[], &recorded)[0].starts_with("better"));
        // Another module joined, or the cycle is new.
        assert!(compare(&one(cycle(&["w", "x", "y", "z"])), &recorded)[0].starts_with("new"));
        assert!(compare(&one(cycle(&["x", "y"])), &[])[0].starts_with("new"));
        let fields = |count| {
            one(Breach::Fields {
                place: "a".into(),
                count,
            })
        };
        assert!(compare(&fields(18), &fields(17))[0].starts_with("new"));
    }
}
