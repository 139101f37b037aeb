//! Profiles as TOML files.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};

use ringbell_nic_core::port::{MTU_MAX, MTU_MIN};
use ringbell_nic_core::wire::ETHERNET_HEADER;
use serde::Deserialize;
use toml::Spanned;

use super::Profile;
use crate::{FileError, HostCosts, Marks, Pauses, SharedRoom, Switches};

impl FileError {
    /// An error of TOML's parser.
    pub fn of_toml(name: &str, text: &str, error: &toml::de::Error) -> FileError {
        let byte = error.span().map_or(0, |s| s.start);
        FileError::at(name, text, byte, error.message().replace('\n', ", "))
    }
}

/// A second, the longest delay, in nanoseconds; also what a frame may take at most.
const SECOND: u64 = 1_000_000_000;
/// A NIC's first retry where the file does not say, in microseconds.
const RETRY_US: u64 = 1_000;

/// Room of an output that no frames fill; also where the file does not say.
const UNBOUNDED: u64 = 1 << 40;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    source: String,
    link: Link,
    #[serde(default)]
    switch: Switch,
    nic: Nic,
    #[serde(default)]
    host: Host,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    rate_gbps: Spanned<f64>,
    delay_ns: Spanned<u64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    output_bytes: Option<Spanned<u64>>,
    shared_bytes: Option<Spanned<u64>>,
    shared_alpha: Option<Spanned<f64>>,
    mark_min_bytes: Option<Spanned<u64>>,
    mark_max_bytes: Option<Spanned<u64>>,
    mark_share: Option<Spanned<f64>>,
    pause_bytes: Option<Spanned<u64>>,
    resume_bytes: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nic {
    mtu_bytes: Spanned<usize>,
    retry_us: Option<Spanned<u64>>,
    frame_ns: Option<Spanned<u64>>,
    byte_ps: Option<Spanned<u64>>,
    send_delay_ns: Option<Spanned<u64>>,
    receive_delay_ns: Option<Spanned<u64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    doorbell_ns: Option<Spanned<u64>>,
    completion_ns: Option<Spanned<u64>>,
}

/// A text, with the name by which errors call it.
struct Text<'a> {
    name: &'a str,
    text: &'a str,
}

impl Text<'_> {
    /// A number that lies in a range.
    fn within<T: PartialOrd + Copy + Display>(
        &self,
        key: &str,
        value: &Spanned<T>,
        range: RangeInclusive<T>,
    ) -> Result<T, FileError> {
        let (number, Range { start, .. }) = (*value.get_ref(), value.span());
        if range.contains(&number) {
            return Ok(number);
        }
        let (least, most) = range.into_inner();
        let what = format!("{key} is {number}, expected {least} to {most}");
        Err(FileError::at(self.name, self.text, start, what))
    }

    /// A key without another one that it needs.
    fn alone<T>(&self, value: &Spanned<T>, key: &str, needs: &str) -> FileError {
        let what = format!("{key} stands without {needs}");
        FileError::at(self.name, self.text, value.span().start, what)
    }

    /// A cost, which is zero where the file has none.
    fn cost(&self, key: &str, value: Option<&Spanned<u64>>) -> Result<u64, FileError> {
        value.map_or(Ok(0), |v| self.within(key, v, 0..=SECOND))
    }
}

impl Switch {
    /// What switches do, where a whole frame has at least so many bytes.
    fn read(&self, at: &Text<'_>, frame: usize) -> Result<Switches, FileError> {
        // At least one frame fits, or nothing arrives.
        let room = frame as u64..=UNBOUNDED;
        let output = self.output_bytes.as_ref();
        let output = output.map_or(Ok(UNBOUNDED), |v| {
            at.within("output_bytes", v, room.clone())
        });
        let shared = self.shared_bytes.as_ref().map(|bytes| {
            let alpha = self.shared_alpha.as_ref();
            let alpha = alpha.map(|a| at.within("shared_alpha", a, 0.001..=1_000.0));
            Ok(SharedRoom {
                bytes: at.within("shared_bytes", bytes, room.clone())?,
                alpha: alpha.unwrap_or(Ok(1.0))?,
            })
        });
        if let (None, Some(alpha)) = (&shared, &self.shared_alpha) {
            return Err(at.alone(alpha, "shared_alpha", "shared_bytes"));
        }
        let marks = match (&self.mark_min_bytes, &self.mark_max_bytes, &self.mark_share) {
            (Some(min), Some(max), share) => Some(Marks {
                min_bytes: at.within("mark_min_bytes", min, 0..=1 << 40)?,
                max_bytes: at.within("mark_max_bytes", max, *min.get_ref()..=1 << 40)?,
                share: share
                    .as_ref()
                    .map_or(Ok(1.0), |s| at.within("mark_share", s, 0.0..=1.0))?,
            }),
            (None, None, None) => None,
            (Some(min), None, _) => {
                return Err(at.alone(min, "mark_min_bytes", "mark_max_bytes"));
            }
            (None, Some(max), _) => {
                return Err(at.alone(max, "mark_max_bytes", "mark_min_bytes"));
            }
            (None, None, Some(share)) => {
                return Err(at.alone(share, "mark_share", "mark_min_bytes"));
            }
        };
        let pauses = match (&self.pause_bytes, &self.resume_bytes) {
            (Some(pause), Some(resume)) => Some(Pauses {
                pause_bytes: at.within("pause_bytes", pause, 0..=1 << 40)?,
                resume_bytes: at.within("resume_bytes", resume, 0..=*pause.get_ref())?,
            }),
            (None, None) => None,
            (Some(pause), None) => return Err(at.alone(pause, "pause_bytes", "resume_bytes")),
            (None, Some(resume)) => return Err(at.alone(resume, "resume_bytes", "pause_bytes")),
        };
        Ok(Switches {
            output_bytes: output?,
            shared: shared.transpose()?,
            marks,
            pauses,
        })
    }
}

impl Profile {
    /// A profile from the text of a file, which errors call by its name.
    ///
    /// # Errors
    /// [`FileError`]: the text is not TOML, a key is missing or unknown, or a number is out of
    /// its range.
    pub fn parse(name: &str, text: &str) -> Result<Profile, FileError> {
        let at = Text { name, text };
        let file: File = toml::from_str(text).map_err(|e| FileError::of_toml(name, text, &e))?;
        let Link {
            rate_gbps,
            delay_ns,
        } = &file.link;
        let mtu = at.within("mtu_bytes", &file.nic.mtu_bytes, MTU_MIN..=MTU_MAX)?;
        let (nic, host) = (&file.nic, &file.host);
        let host = HostCosts {
            doorbell_ns: at.cost("doorbell_ns", host.doorbell_ns.as_ref())?,
            completion_ns: at.cost("completion_ns", host.completion_ns.as_ref())?,
            send_delay_ns: at.cost("send_delay_ns", nic.send_delay_ns.as_ref())?,
            receive_delay_ns: at.cost("receive_delay_ns", nic.receive_delay_ns.as_ref())?,
            frame_ns: at.cost("frame_ns", nic.frame_ns.as_ref())?,
            byte_ps: at.cost("byte_ps", nic.byte_ps.as_ref())?,
        };
        let retry_us = file.nic.retry_us.as_ref();
        let retry_us = retry_us.map(|v| at.within("retry_us", v, 100..=1_000_000));
        Ok(Profile {
            name: name.into(),
            link_gbps: at.within("rate_gbps", rate_gbps, 0.001..=100_000.0)?,
            link_delay_ns: at.within("delay_ns", delay_ns, 0..=SECOND)?,
            switches: file.switch.read(&at, ETHERNET_HEADER + mtu)?,
            mtu,
            retry_us: retry_us.unwrap_or(Ok(RETRY_US))?,
            host,
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
            (
                "[nic]",
                "resume_bytes = 9\npause_bytes = 8\n[nic]",
                "a.toml:16:16: resume_bytes is 9, expected 0 to 8",
            ),
            (
                "[nic]",
                "pause_bytes = 8\n[nic]",
                "a.toml:16:15: pause_bytes stands without resume_bytes",
            ),
            (
                "[nic]",
                "mark_share = 0.5\n[nic]",
                "a.toml:16:14: mark_share stands without mark_min_bytes",
            ),
            (
                "[nic]",
                "mark_min_bytes = 9\nmark_max_bytes = 8\n[nic]",
                "a.toml:17:18: mark_max_bytes is 8, expected 9 to 1099511627776",
            ),
            (
                "[nic]",
                "shared_alpha = 2\n[nic]",
                "a.toml:16:16: shared_alpha stands without shared_bytes",
            ),
            ("[nic]", "[nic", "a.toml:16:5: "),
            (
                "[nic]",
                "[nic]\nretry_us = 0",
                "a.toml:17:12: retry_us is 0, expected 100 to 1000000",
            ),
            (
                "[nic]",
                "[host]\ndoorbell_ns = 1_000_000_001\n[nic]",
                "a.toml:17:15: doorbell_ns is 1000000001, expected 0 to 1000000000",
            ),
        ] {
            let said = said(from, to);
            assert!(said.starts_with(wanted), "{said}, not {wanted}");
        }
    }

    #[test]
    fn an_output_without_a_room_drops_nothing() {
        let text = "source = 'a'\n[link]\nrate_gbps = 1\ndelay_ns = 1\n[nic]\nmtu_bytes = 1500\n";
        let profile = Profile::parse("c.toml", text).expect("it is right");
        assert_eq!(profile.switches.output_bytes, UNBOUNDED);
    }

    #[test]
    fn a_file_has_the_numbers_of_its_keys() {
        let text = "source = 'a'\n[link]\nrate_gbps = 2.5\ndelay_ns = 7\n[switch]\n\
                    output_bytes = 90000\nshared_bytes = 91000\nshared_alpha = 0.5\nmark_min_bytes = 5\n\
                    mark_max_bytes = 6\nmark_share = 0.25\npause_bytes = 8\nresume_bytes = 7\n[nic]\nmtu_bytes = 1500\nretry_us = 800\nframe_ns = 1\nbyte_ps = 2\n\
                    send_delay_ns = 3\nreceive_delay_ns = 4\n[host]\ndoorbell_ns = 5\n\
                    completion_ns = 6\n";
        let profile = Profile {
            name: "b.toml".into(),
            link_gbps: 2.5,
            link_delay_ns: 7,
            switches: Switches {
                output_bytes: 90_000,
                shared: Some(SharedRoom {
                    bytes: 91_000,
                    alpha: 0.5,
                }),
                marks: Some(Marks {
                    min_bytes: 5,
                    max_bytes: 6,
                    share: 0.25,
                }),
                pauses: Some(Pauses {
                    pause_bytes: 8,
                    resume_bytes: 7,
                }),
            },
            mtu: 1_500,
            retry_us: 800,
            host: HostCosts {
                frame_ns: 1,
                byte_ps: 2,
                send_delay_ns: 3,
                receive_delay_ns: 4,
                doorbell_ns: 5,
                completion_ns: 6,
            },
            source: "a".into(),
        };
        assert_eq!(Profile::parse("b.toml", text), Ok(profile));
    }
}
