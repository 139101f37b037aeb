//! Profiles on the command line: names and files.

use std::fs;

use ringbell_sim::Profile;

fn names() -> String {
    let names: Vec<_> = Profile::names().collect();
    names.join(", ")
}

/// A built-in profile, or that of a file.
pub(super) fn profile(text: &str) -> Result<Profile, String> {
    if let Some(profile) = Profile::by_name(text) {
        return Ok(profile);
    }
    let file = fs::read_to_string(text).map_err(|e| match text.contains(['.', '/']) {
        true => format!("cannot read {text}: {e}"),
        false => format!(
            "there is no profile `{text}`; write one of {}, or a file",
            names()
        ),
    })?;
    let advice = "`ringbell sim --show-profile ideal` prints a right one";
    Profile::parse(text, &file).map_err(|e| format!("{e}; {advice}"))
}

/// The text of a built-in profile.
pub(super) fn text(name: &str) -> Result<&'static str, String> {
    let text = Profile::text_of(name);
    text.ok_or_else(|| format!("there is no profile `{name}`; write one of {}", names()))
}
