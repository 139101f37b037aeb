//! The workspace's files that a counted path crosses, and their lists in docs/architecture.md.
//!
//! A file is crossed when at least one instruction of each operation belongs to it, by the file
//! records of callgrind. What only a step with a reading of the clock runs is left out: it depends
//! on the machine's speed. So are the drivers of the benchmark. The compiler decides to which file
//! it attributes inlined instructions, and builds of one source differ by a few files.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, Context, Result};

use crate::workspace::root;

/// Where the lists are.
const DOCUMENT: &str = "docs/architecture.md";
/// Starts a list: the path's name follows.
const BEGIN: &str = "<!-- files: ";
/// Ends it.
const END: &str = "<!-- end of files -->";
/// Parts of the names of functions that a step runs only with a reading of the clock.
const BY_TIME: [&str; 2] = ["Core::begin", "LocalTransport::step_sockets"];
/// Files by which the list of a path may differ from what is counted.
const TOLERANCE: usize = 4;
/// Folders that belong to the benchmark.
const DRIVERS: [&str; 3] = ["benches/", "nic-core/tests/", "gtlb/src/testing/"];

/// Files by path.
pub(super) type Files = BTreeMap<String, BTreeSet<String>>;

/// A profile of callgrind: what each function costs in each file, and calls.
#[derive(Default)]
struct Profile {
    costs: BTreeMap<(String, String), f64>,
    calls: BTreeMap<String, BTreeSet<String>>,
}

impl Profile {
    fn parse(text: &str) -> Profile {
        let mut profile = Profile::default();
        let mut names = BTreeMap::new();
        let (mut file, mut function) = (String::new(), String::new());
        let mut is_call = false;
        for line in text.lines() {
            let (key, value) = line.split_once('=').unwrap_or(("", line));
            match key {
                "fl" | "fi" | "fe" => file = named(&mut names, 'f', value),
                "cfi" | "cfl" => drop(named(&mut names, 'f', value)),
                "fn" => function = named(&mut names, 'n', value),
                "cfn" => {
                    let called = named(&mut names, 'n', value);
                    let calls = profile.calls.entry(function.clone()).or_default();
                    calls.insert(called);
                }
                // The next line has the inclusive cost of the call.
                "calls" => is_call = true,
                _ if !line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) => {}
                _ if is_call => is_call = false,
                _ => {
                    let cost = line.split(' ').nth(1).and_then(|n| n.parse::<f64>().ok());
                    let at = (function.clone(), file.clone());
                    *profile.costs.entry(at).or_default() += cost.unwrap_or(0.0);
                }
            }
        }
        profile
    }

    /// Functions that run without those of [`BY_TIME`].
    fn reached(&self) -> BTreeSet<&str> {
        let called: BTreeSet<&String> = self.calls.values().flatten().collect();
        let callers = self.calls.keys();
        let all = self
            .costs
            .keys()
            .map(|(function, _)| function)
            .chain(callers);
        let mut next: Vec<&str> = all
            .filter(|f| !called.contains(f))
            .map(String::as_str)
            .collect();
        let mut reached = BTreeSet::new();
        while let Some(function) = next.pop() {
            if BY_TIME.iter().any(|f| function.contains(f)) || !reached.insert(function) {
                continue;
            }
            next.extend(
                self.calls
                    .get(function)
                    .into_iter()
                    .flatten()
                    .map(String::as_str),
            );
        }
        reached
    }
}

/// The name of `(7) name`, or of `(7)` when it was given before.
fn named(names: &mut BTreeMap<(char, String), String>, kind: char, value: &str) -> String {
    let (id, name) = value.split_once(' ').unwrap_or((value, ""));
    let key = (kind, id.to_string());
    if !name.is_empty() {
        names.insert(key.clone(), name.to_string());
    }
    names.get(&key).cloned().unwrap_or_default()
}

/// The files that a profile of so many operations crosses, relative to the repository.
pub(super) fn crossed(profile: &str, operations: f64) -> BTreeSet<String> {
    let profile = Profile::parse(profile);
    let reached = profile.reached();
    let folder = format!("{}/", root().display());
    let mut costs = BTreeMap::<&str, f64>::new();
    for ((function, file), cost) in &profile.costs {
        let Some(file) = file.strip_prefix(&folder) else {
            continue;
        };
        let is_driver = DRIVERS.iter().any(|d| file.starts_with(d));
        if reached.contains(function.as_str()) && !is_driver {
            *costs.entry(file).or_default() += cost;
        }
    }
    let crossed = costs.into_iter().filter(|(_, cost)| *cost >= operations);
    crossed.map(|(file, _)| file.to_string()).collect()
}

/// Compares the lists of the document with what was measured; prints small differences.
pub(super) fn check(measured: &Files) -> Result<()> {
    let text = read()?;
    let mut wrong = Vec::new();
    for (path, listed) in lists(&text)? {
        let Some(files) = measured.get(path) else {
            bail!("{DOCUMENT} lists the files of {path:?}, which is no path of the counts");
        };
        let gone = listed.iter().filter(|f| !root().join(f).is_file());
        wrong.extend(gone.map(|f| format!("{path}: there is no {f}")));
        let found = differences(path, files, &listed);
        if found.len() > TOLERANCE {
            wrong.extend(found);
        } else {
            found.iter().for_each(|d| println!("{d}"));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    bail!(
        "the lists of files in {DOCUMENT} are not those that were counted; `cargo xtask counts --update` writes them:\n{}",
        wrong.join("\n")
    )
}

/// What only one of the two has.
fn differences(path: &str, files: &BTreeSet<String>, listed: &BTreeSet<String>) -> Vec<String> {
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>, what: &str| -> Vec<String> {
        let only = a.difference(b);
        only.map(|f| format!("{path}: {f} {what}")).collect()
    };
    let mut all = only(files, listed, "is crossed and not listed");
    all.extend(only(listed, files, "is listed and not crossed"));
    all
}

/// Writes the lists of the document anew.
pub(super) fn update(measured: &Files) -> Result<()> {
    let text = read()?;
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some((before, path, after)) = next_list(rest)? {
        let files = measured
            .get(path)
            .with_context(|| format!("{DOCUMENT} lists the files of {path:?}, which is no path"))?;
        out += &format!("{before}{BEGIN}{path} -->\n{}{END}", rendered(files));
        rest = after;
    }
    out += rest;
    Ok(fs_err::write(root().join(DOCUMENT), out)?)
}

/// The number of files, and the files by folder.
fn rendered(files: &BTreeSet<String>) -> String {
    let mut folders = BTreeMap::<&str, Vec<&str>>::new();
    for file in files {
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        folders.entry(folder).or_default().push(name);
    }
    let mut out = format!("\n{} files:\n\n", files.len());
    for (folder, names) in folders {
        let names: Vec<_> = names.iter().map(|n| format!("`{n}`")).collect();
        out += &format!("- `{folder}/`: {}\n", names.join(", "));
    }
    out + "\n"
}

fn read() -> Result<String> {
    Ok(fs_err::read_to_string(root().join(DOCUMENT))?)
}

/// The text before the next list, the path of that, and the text after it.
fn next_list(text: &str) -> Result<Option<(&str, &str, &str)>> {
    let Some((before, rest)) = text.split_once(BEGIN) else {
        return Ok(None);
    };
    let list = rest.split_once(" -->").and_then(|(path, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, path, after))
    });
    list.map(Some)
        .with_context(|| format!("{DOCUMENT} has a list of files without an end"))
}

/// The lists of a document: paths and their files.
fn lists(text: &str) -> Result<Vec<(&str, BTreeSet<String>)>> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((before, path, after)) = next_list(rest)? {
        let list = &rest[before.len()..rest.len() - after.len()];
        let mut files = BTreeSet::new();
        for line in list.lines().filter(|l| l.starts_with("- `")) {
            let mut quoted = line.split('`').skip(1).step_by(2);
            let folder = quoted.next().unwrap_or_default();
            files.extend(quoted.map(|name| format!("{folder}{name}")));
        }
        out.push((path, files));
        rest = after;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(extra: &str) -> String {
        let dir = root().display().to_string();
        format!(
            "events: Ir\nfl=(9) ?\nfn=(9) main\ncfn=(1) work\ncalls=1 1\n0 399\n\nfl=(1) {dir}/a/src/one.rs\nfn=(1)\n10 200\nfi=(2) {dir}/a/src/two.rs\n+3 99\n\
             cfi=(3) {dir}/a/src/three.rs\ncfn=(2) callee\ncalls=100 5\n* 5000\n\nfl=(3)\nfn=(2)\n5 100\n{extra}totals: 399\n"
        )
    }

    #[test]
    fn files_with_an_instruction_of_each_operation_are_crossed() {
        let names = |text: &str| crossed(text, 100.0).into_iter().collect::<Vec<_>>();
        // The inclusive cost of a call belongs to no file of the caller.
        assert_eq!(names(&profile("")), ["a/src/one.rs", "a/src/three.rs"]);
        // What a clock reading calls, and the driver.
        let dir = root().display().to_string();
        let more = format!(
            "fn=(1)\ncfn=(3) x::Core::begin\ncalls=1 1\n* 900\n\nfl=(4) {dir}/a/src/timed.rs\nfn=(3)\n1 900\n\
             fl=(5) {dir}/benches/micro/counts.rs\nfn=(1)\n1 900\n"
        );
        assert_eq!(names(&profile(&more)), ["a/src/one.rs", "a/src/three.rs"]);
    }

    #[test]
    fn what_only_one_of_the_lists_has_is_a_difference() {
        let set = |all: &[&str]| all.iter().map(ToString::to_string).collect();
        assert_eq!(
            differences("p", &set(&["a", "b"]), &set(&["b", "c"])),
            [
                "p: a is crossed and not listed",
                "p: c is listed and not crossed"
            ]
        );
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let files: BTreeSet<String> = ["a/src/one.rs", "a/src/two.rs", "b/c.rs"]
            .map(String::from)
            .into();
        let text = format!("x\n{BEGIN}a path -->\n{}{END}\ny", rendered(&files));
        assert_eq!(lists(&text).expect("whole"), [("a path", files)]);
        assert!(lists(&format!("{BEGIN}a path -->")).is_err(), "no end");
    }
}
