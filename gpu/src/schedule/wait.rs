//! What threads of a block wait for, and its description: what a hang is explained by.

use std::fmt::Write;

use crate::code::{ones, Relation};
use crate::module::Site;

/// Threads of a block that wait at one place for the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Numbers of the threads in their block, ascending: x, then y, then z.
    pub threads: Vec<u32>,
    /// Where.
    pub site: Site,
    /// For what.
    pub what: WaitFor,
}

/// What threads wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitFor {
    /// Threads that have not come to a barrier.
    Barrier {
        /// Its number; `None` for the cluster's.
        id: Option<u32>,
        /// How many threads it is for, if the instruction says so.
        count: u32,
        /// Those that have not ended and are elsewhere.
        missing: Vec<u32>,
    },
    /// Lanes of the warp that have not come to the same operation with the same mask.
    Warp {
        /// Lanes that the mask names.
        mask: u32,
        /// Threads of those lanes that have not ended and are elsewhere.
        missing: Vec<u32>,
    },
    /// Memory, in a loop.
    Word {
        /// Address; of shared and local memory, that of the host.
        address: u64,
        /// Bytes, at most 8 of which `value` has.
        bytes: u32,
        /// What is there now, if it can be read.
        value: Option<u64>,
        /// Where that is: an allocation, a variable, or which memory of the block.
        place: Option<String>,
        /// What ends the loop, if its text says so.
        until: Option<Until>,
    },
    /// A time.
    Sleep,
    /// Nothing: it can run.
    Nothing,
}

/// What a loop waits for to become true of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Until {
    /// The bits that it compares: the first, and how many.
    pub bits: (u32, u32),
    /// How they must stand to `value`.
    pub relation: Relation,
    /// With what it compares them.
    pub value: u64,
    /// The access is a compare and swap: a lock, most often.
    pub swaps: bool,
}

impl Wait {
    /// One line; `place` is the site in words.
    pub fn describe(&self, place: &str) -> String {
        let who = threads(&self.threads);
        let waits = if self.threads.len() == 1 {
            "waits"
        } else {
            "wait"
        };
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = match &self.what {
            WaitFor::Barrier { id, count, missing } => {
                let name = match id {
                    Some(id) => format!("barrier {id}"),
                    None => "the cluster's barrier".to_owned(),
                };
                let of = match count {
                    0 => String::new(),
                    n => format!(" of {n} threads"),
                };
                write!(
                    text,
                    "{who} {waits} at {name}{of}, {place}{}",
                    missing_text(missing)
                )
            }
            WaitFor::Warp { mask, missing } => write!(
                text,
                "{who} {waits} at a warp operation of mask {mask:#x}, {place}{}",
                missing_text(missing)
            ),
            WaitFor::Word {
                address,
                bytes,
                value,
                place: word,
                until,
            } => {
                let loops = if self.threads.len() == 1 {
                    "loops"
                } else {
                    "loop"
                };
                let _ = write!(
                    text,
                    "{who} {loops} at {place}, where {bytes} bytes at {address:#x} "
                );
                let _ = match value {
                    Some(v) => write!(text, "are {v} ({v:#x})"),
                    None => write!(text, "can no longer be read"),
                };
                if let Some(until) = until {
                    text += &until.describe(8 * bytes, *value);
                }
                match word {
                    Some(word) => write!(text, "; they are {word}"),
                    None => Ok(()),
                }
            }
            WaitFor::Sleep => {
                let sleeps = if self.threads.len() == 1 {
                    "sleeps"
                } else {
                    "sleep"
                };
                write!(text, "{who} {sleeps} at {place}")
            }
            WaitFor::Nothing => write!(text, "{who} can run, behind {place}"),
        };
        text
    }
}

impl Until {
    /// What a word of so many bits, which has this value, waits for.
    fn describe(&self, word_bits: u32, now: Option<u64>) -> String {
        let (first, bits) = self.bits;
        let value = self.value;
        let wanted = match self.relation {
            Relation::Equal => format!("are {value} ({value:#x})"),
            Relation::Different => format!("are no longer {value} ({value:#x})"),
            Relation::Less => format!("are less than {value}"),
            Relation::AtMost => format!("are at most {value}"),
            Relation::Greater => format!("are more than {value}"),
            Relation::AtLeast => format!("are at least {value}"),
            Relation::Compared => format!("have what it compares with {value} ({value:#x})"),
        };
        let part = match (first, bits) {
            (0, all) if all >= word_bits => "they".to_owned(),
            _ => {
                let now = now.filter(|_| first < 64).map(|v| v >> first & ones(bits));
                let now = now.map_or(String::new(), |v| format!(", now {v},"));
                format!("their bits {first} to {}{now}", first + bits - 1)
            }
        };
        let lock = if self.swaps {
            ", for its compare and swap (a lock)"
        } else {
            ""
        };
        format!(", until {part} {wanted}{lock}")
    }
}

fn missing_text(missing: &[u32]) -> String {
    match missing {
        [] => ", for others that have ended".to_owned(),
        missing => format!(", for {}", threads(missing)),
    }
}

/// `thread 3`, or `threads 0–31, 40`.
fn threads(numbers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for n in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => ranges.push((*n, *n)),
        }
    }
    let more = ranges.len().saturating_sub(8);
    let shown = ranges.iter().take(8).map(|(a, b)| match b - a {
        0 => a.to_string(),
        1 => format!("{a}, {b}"),
        _ => format!("{a}–{b}"),
    });
    let mut text = shown.collect::<Vec<String>>().join(", ");
    if more > 0 {
        let _ = write!(text, " and {more} more ranges");
    }
    match numbers {
        [_] => format!("thread {text}"),
        _ => format!("threads {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_named_by_ranges() {
        assert_eq!(threads(&[3]), "thread 3");
        assert_eq!(threads(&[0, 1, 2, 5, 6, 9]), "threads 0–2, 5, 6, 9");
        let even: Vec<u32> = (0..20).map(|i| i * 2).collect();
        assert_eq!(
            threads(&even),
            "threads 0, 2, 4, 6, 8, 10, 12, 14 and 12 more ranges"
        );
    }
}
