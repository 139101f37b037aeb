//! `rb_comm_config`: a C program's settings for a communicator.
#![allow(unsafe_code)] // Reads a structure of C.

use std::time::Duration;

use ringbell::abi::{Algorithm, WireType};

use crate::failure::Failure;
use ringbell::comm::CollectiveSettings;
use ringbell::CommOptions;

/// `RB_COMM_CONFIG_VERSION`
const VERSION: u32 = 8;
/// `RB_CONFIG_ZERO`
const ZERO: u64 = u64::MAX;

/// `rb_comm_config`. Fields are only ever appended, with a new version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Config {
    size: usize,
    init_timeout_us: u64,
    timeout_us: u64,
    algo: u32,
    wire: u32,
    port: u32,
    version: u32,
    settings: [u64; SETTINGS],
    block_queues: u64,
    trees: u64,
    host_ranks: u64,
    linked_ranks: u64,
}

/// Settings before `block_queues`: each is a field of `rb_comm_config`, in this order.
const SETTINGS: usize = CollectiveSettings::NAMES.len() - 3;
/// Bytes of the structure's first version, without settings, of the second, without the last two,
/// of the third, without the last one, of the fourth, without queues for blocks, of the fifth,
/// without trees, of the sixth, without ranks of a host, and of the seventh, without linked ranks.
const FIRST: usize = std::mem::offset_of!(Config, settings);
const SECOND: usize = FOURTH - 2 * size_of::<u64>();
const THIRD: usize = FOURTH - size_of::<u64>();
const FOURTH: usize = std::mem::offset_of!(Config, block_queues);
const FIFTH: usize = std::mem::offset_of!(Config, trees);
const SIXTH: usize = std::mem::offset_of!(Config, host_ranks);
const SEVENTH: usize = std::mem::offset_of!(Config, linked_ranks);

/// # Safety
/// `config` is null, or valid for as many bytes as its `size` says.
pub(super) unsafe fn options(config: *const Config) -> Result<CommOptions, Failure> {
    let mut options = CommOptions::default();
    if config.is_null() {
        return Ok(options);
    }
    // SAFETY: `size` comes first in every version of the structure.
    let size = unsafe { config.cast::<usize>().read_unaligned() };
    let known = [FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH];
    if !known.contains(&size) && size != size_of::<Config>() {
        return Err(Failure::argument(format!(
            "config->size is {size}, not {} = sizeof(rb_comm_config); begin with RB_COMM_CONFIG_INITIALIZER, and build against the header of this library",
            size_of::<Config>()
        )));
    }
    let mut c = Config::default();
    // SAFETY: the caller vouches for `size` bytes, which are no more than the structure has; every
    // bit pattern is a value of its fields.
    unsafe {
        std::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut c).cast(), size);
    }
    if c.version > VERSION {
        return Err(Failure::argument(format!(
            "config->version is {}, and this library knows versions up to {VERSION}: build against its header",
            c.version
        )));
    }
    if c.init_timeout_us != 0 {
        options.init_timeout = timeout(c.init_timeout_us, "config->init_timeout_us")?;
    }
    if c.timeout_us != 0 {
        options.timeout = timeout(c.timeout_us, "config->timeout_us")?;
    }
    if c.algo != 0 {
        options.algo = code(c.algo, Algorithm::from_code, "config->algo", "RB_ALGO_")?;
    }
    if c.wire != 0 {
        options.wire = code(c.wire, WireType::from_code, "config->wire", "RB_WIRE_")?;
    }
    if c.port != 0 {
        options.port = u16::try_from(c.port).map_err(|_| {
            Failure::argument(format!("config->port is {}; ports end at 65,535", c.port))
        })?;
    }
    let appended = [c.trees, c.host_ranks, c.linked_ranks];
    let values = c.settings.into_iter().chain(appended);
    for (name, value) in CollectiveSettings::NAMES.into_iter().zip(values) {
        let value = match value {
            0 => continue,
            ZERO => 0,
            v => v,
        };
        let set = options.settings.set(name, value);
        set.map_err(|e| Failure::argument(format!("config->{name}: {}", e.why)))?;
    }
    options.block_queues = u32::try_from(c.block_queues).map_err(|_| {
        let n = c.block_queues;
        Failure::argument(format!(
            "config->block_queues is {n}; a NIC has at most 512 queues"
        ))
    })?;
    // Check the settings against each other here, not when the ranks have met.
    let valid = options.settings.validate();
    valid.map_err(|e| Failure::argument(format!("config: {}: {}", e.setting, e.why)))?;
    Ok(options)
}

/// The value for a number of the contract.
pub(super) fn code<T>(
    value: u32,
    from_code: impl Fn(u8) -> Option<T>,
    what: &str,
    family: &str,
) -> Result<T, Failure> {
    let known = u8::try_from(value).ok().and_then(from_code);
    known.ok_or_else(|| {
        Failure::argument(format!(
            "{what} is {value}, which is none of {family}... of ringbell_abi.h"
        ))
    })
}

/// A time-out that fits a descriptor.
pub(super) fn timeout(us: u64, what: &str) -> Result<Duration, Failure> {
    if us > u64::from(u32::MAX) {
        return Err(Failure::argument(format!(
            "{what} is {us} microseconds; at most 4294967295 (71 minutes) fit into a descriptor"
        )));
    }
    Ok(Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            size: size_of::<Config>(),
            version: VERSION,
            ..Config::default()
        }
    }

    fn read(c: &Config) -> Result<CommOptions, String> {
        // SAFETY: a whole structure.
        unsafe { options(c) }.map_err(|e| e.to_string())
    }

    fn field(name: &str) -> usize {
        let mut all = CollectiveSettings::NAMES.iter();
        all.position(|n| *n == name).expect("a name")
    }

    #[test]
    fn zero_is_the_default_and_one_word_means_zero() {
        assert_eq!(read(&config()), Ok(CommOptions::default()));
        let mut c = config();
        c.settings[field("direct")] = ZERO;
        c.settings[field("segment_bytes")] = 4096;
        c.settings[field("gather_tree")] = 7;
        c.trees = ZERO;
        (c.host_ranks, c.linked_ranks) = (4, 9);
        let o = read(&c).expect("valid");
        assert!(!o.settings.direct && !o.settings.trees);
        assert_eq!(o.settings.segment_bytes, 4096);
        assert_eq!(o.settings.host_ranks, 4.into());
        assert_eq!(o.settings.linked_ranks, 9);
        assert_eq!(o.settings.thresholds.gather_tree, 7);
    }

    #[test]
    fn a_program_built_against_the_first_header_still_works() {
        let mut c = Config {
            size: FIRST,
            timeout_us: 1000,
            ..Config::default()
        };
        // Bytes behind the old structure are not read.
        c.settings = [12_345; SETTINGS];
        let o = read(&c).expect("the first version");
        assert_eq!(o.timeout, Duration::from_millis(1));
        assert_eq!(o.settings, CollectiveSettings::default());
        c.settings = [0; SETTINGS];
        c.settings[field("deterministic")] = 1;
        c.settings[field("card")] = ZERO;
        for (size, is, card) in [
            (SECOND, false, true),
            (THIRD, true, true),
            (FOURTH, true, false),
            (FIFTH, true, false),
            (SIXTH, true, false),
            (SEVENTH, true, false),
            (size_of::<Config>(), true, false),
        ] {
            c.size = size;
            let settings = read(&c).expect("a version").settings;
            assert_eq!((settings.deterministic, settings.card), (is, card));
        }
    }

    #[test]
    fn invalid_fields_are_refused_by_name() {
        let mut c = config();
        c.version = VERSION + 1;
        assert!(read(&c).is_err_and(|e| e.contains("config->version")));
        c = config();
        c.size += 8;
        assert!(read(&c).is_err_and(|e| e.contains("RB_COMM_CONFIG_INITIALIZER")));
        c = config();
        c.block_queues = 1 << 32;
        assert!(read(&c).is_err_and(|e| e.contains("config->block_queues")));
        c.block_queues = 8;
        assert_eq!(read(&c).expect("valid").block_queues, 8);
        c = config();
        c.settings[field("direct")] = 2;
        assert!(read(&c).is_err_and(|e| e.contains("config->direct")));
        c = config();
        c.settings[field("all_reduce_ring")] = 1;
        assert!(read(&c).is_err_and(|e| e.contains("whole_sources")));
    }
}
