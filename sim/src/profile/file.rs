//! Profiles as TOML files.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};

use ringbell_nic_core::port::{MTU_MAX, MTU_MIN};
use ringbell_nic_core::wire::ETHERNET_HEADER;
use serde::Deserialize;
use toml::Spanned;

use super::Profile;

/// A second, the longest delay, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}:{column}: {what}")]
pub struct ProfileError {
    /// The file.
    pub name: String,
    /// From 1 on.
    pub line: usize,
    /// From 1 on, in characters.
    pub column: usize,
    /// What is wrong, and what was expected.
    pub what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    source: String,
    link: Link,
    switch: Switch,
    nic: Nic,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    rate_gbps: Spanned<f64>,
    delay_ns: Spanned<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    output_bytes: Spanned<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nic {
    mtu_bytes: Spanned<usize>,
}

/// A text, with the name by which errors call it.
struct Text<'a> {
    name: &'a str,
    text: &'a str,
}

impl Text<'_> {
    /// An error at a byte.
    fn error(&self, at: usize, what: String) -> ProfileError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.rfind('\n').map_or(before, |end| &before[end + 1..]);
        ProfileError {
            name: self.name.into(),
            line: before.matches('\n').count() + 1,
            column: line.chars().count() + 1,
            what,
        }
    }

    /// A number that lies in a range.
    fn within<T: PartialOrd + Copy + Display>(
        &self,
        key: &str,
        value: &Spanned<T>,
        range: RangeInclusive<T>,
    ) -> Result<T, ProfileError> {
        let (number, Range { start, .. }) = (*value.get_ref(), value.span());
        if range.contains(&number) {
            return Ok(number);
        }
        let (least, most) = range.into_inner();
        let what = format!("{key} is {number}, expected {least} to {most}");
        Err(self.error(start, what))
    }
}

impl Profile {
    /// A profile from the text of a file, which errors call by its name.
    ///
    /// # Errors
    /// [`ProfileError`]: the text is not TOML, a key is missing or unknown, or a number is out of
    /// its range.
    pub fn parse(name: &str, text: &str) -> Result<Profile, ProfileError> {
        let at = Text { name, text };
        let file: File = toml::from_str(text).map_err(|e| {
            let start = e.span().map_or(0, |s| s.start);
            at.error(start, e.message().replace('\n', ", "))
        })?;
        let Link {
            rate_gbps,
            delay_ns,
        } = &file.link;
        let mtu = at.within("mtu_bytes", &file.nic.mtu_bytes, MTU_MIN..=MTU_MAX)?;
        // At least one frame fits, or nothing arrives.
        let room = (ETHERNET_HEADER + mtu) as u64..=1 << 40;
        Ok(Profile {
            name: name.into(),
            link_gbps: at.within("rate_gbps", rate_gbps, 0.001..=100_000.0)?,
            link_delay_ns: at.within("delay_ns", delay_ns, 0..=SECOND)?,
            switch_queue: at.within("output_bytes", &file.switch.output_bytes, room)?,
            mtu,
            source: file.source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(from: &str, to: &str) -> String {
        let text = Profile::text_of("ideal").expect("it exists");
        assert!(text.contains(from), "{from}");
        let changed = text.replace(from, to);
        let error = Profile::parse("a.toml", &changed).expect_err("it is wrong");
        error.to_string()
    }

    #[test]
    fn what_is_wrong_has_its_place_and_what_was_expected() {
        for (from, to, wanted) in [
            (
                "rate_gbps = 100",
                "rate_gbps = 0",
                "a.toml:8:13: rate_gbps is 0, expected 0.001 to 100000",
            ),
            (
                "rate_gbps = 100",
                "rate_gbps = nan",
                "a.toml:8:13: rate_gbps is NaN, expected 0.001 to 100000",
            ),
            (
                "mtu_bytes = 9000",
                "mtu_bytes = 100",
                "a.toml:18:13: mtu_bytes is 100, expected 576 to 9216",
            ),
            (
                "output_bytes = 16777216",
                "output_bytes = 9013",
                "a.toml:14:16: output_bytes is 9013, expected 9014 to 1099511627776",
            ),
            (
                "delay_ns = 1000",
                "delay_ns = 1.5",
                "a.toml:10:12: invalid type: floating point `1.5`, expected u64",
            ),
            (
                "delay_ns = 1000",
                "delay_ns = -1",
                "a.toml:10:12: invalid value: integer `-1`, expected u64",
            ),
            (
                "delay_ns = 1000",
                "delay_us = 1",
                "a.toml:10:1: unknown field `delay_us`, expected `rate_gbps` or `delay_ns`",
            ),
            (
                "delay_ns = 1000",
                "",
                "a.toml:6:1: missing field `delay_ns`",
            ),
            ("[nic]", "[nic", "a.toml:16:5: "),
        ] {
            let said = said(from, to);
            assert!(said.starts_with(wanted), "{said}, not {wanted}");
        }
    }

    #[test]
    fn a_file_has_the_numbers_of_its_keys() {
        let text = "source = 'a'\n[link]\nrate_gbps = 2.5\ndelay_ns = 7\n[switch]\n\
                    output_bytes = 90000\n[nic]\nmtu_bytes = 1500\n";
        let profile = Profile {
            name: "b.toml".into(),
            link_gbps: 2.5,
            link_delay_ns: 7,
            switch_queue: 90_000,
            mtu: 1_500,
            source: "a".into(),
        };
        assert_eq!(Profile::parse("b.toml", text), Ok(profile));
    }
}
