//! Checks of memory and descriptors before a measurement starts.

use anyhow::Result;
use ringbell::gpu::GpuChoice;

use crate::report::{memory, size_text};
use crate::{Exit, Problem};

/// One part in so many stays free for the system and other programs.
const SPARE: u64 = 16;

/// Longest message that a kernel posts as one descriptor: `MAX_PIECE` of `ringbell.cuh`.
const LONGEST: u64 = 0xffff_0000;

/// Refuses messages that one descriptor cannot hold, with any amount of memory.
pub(super) fn one_descriptor(largest: u64) -> Result<()> {
    if largest <= LONGEST {
        return Ok(());
    }
    let what = format!(
        "a message of {} is too long: each is one descriptor of at most {LONGEST} bytes (4 GiB - 64 KiB)",
        size_text(largest)
    );
    Err(Problem::new(Exit::Usage, what, "give -e 2G or less").into())
}

/// Refuses a measurement that needs more of this machine's memory than is free. A real GPU has
/// memory of its own.
pub(super) fn enough(what: &str, needed: u64, advice: &str) -> Result<()> {
    match GpuChoice::Auto.resolve() {
        Ok(GpuChoice::Cuda(_)) => Ok(()),
        _ => check(what, needed, memory::free(), advice),
    }
}

/// Refuses what needs more of this machine's memory than is free.
pub(crate) fn enough_of_host(what: &str, needed: u64, advice: &str) -> Result<()> {
    check(what, needed, memory::free(), advice)
}

fn check(what: &str, needed: u64, free: Option<memory::Free>, advice: &str) -> Result<()> {
    let Some(free) = free else { return Ok(()) };
    if needed <= free.bytes - free.bytes / SPARE {
        return Ok(());
    }
    let (needs, has) = (rounded(needed), rounded(free.bytes));
    let what = format!(
        "{what} needs about {needs} bytes of memory, and {has} bytes {} are free",
        free.of
    );
    Err(Problem::new(Exit::Environment, what, advice).into())
}

/// In the largest unit with at least four of it: three digits are readable.
fn rounded(bytes: u64) -> String {
    let unit = [1 << 40, 1 << 30, 1 << 20, 1 << 10];
    let unit = unit.into_iter().find(|u| bytes / u >= 4).unwrap_or(1);
    size_text(bytes / unit * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_no_descriptor_holds_is_wrong_usage() {
        assert!(one_descriptor(LONGEST).is_ok());
        for bytes in [LONGEST + 1, 5 << 30, u64::MAX] {
            let e = one_descriptor(bytes).expect_err("too long");
            assert_eq!(Problem::exit_of(&e), Exit::Usage);
            assert!(e.to_string().contains("at most 4294901760 bytes"), "{e}");
        }
    }

    #[test]
    fn too_large_a_need_is_named_with_the_free_memory() {
        let free = |bytes| {
            Some(memory::Free {
                bytes,
                of: "of the control group /a".into(),
            })
        };
        assert!(check("x", 15 << 20, free(16 << 20), "y").is_ok());
        assert!(check("x", u64::MAX, None, "y").is_ok());
        let e = check("all-reduce", 4 << 40, free(22 << 30), "y").expect_err("too much");
        let e = e.to_string();
        for word in ["all-reduce", "4T", "22G", "control group /a"] {
            assert!(e.contains(word), "{e}");
        }
        assert!(
            check("x", 16 << 20, free(16 << 20), "y").is_err(),
            "none is spare"
        );
    }
}
