//! The share of the last two levels of caches for one copying thread.
//!
//! From sysfs (Documentation/ABI/testing/sysfs-devices-system-cpu in the Linux sources), read once.
//! A virtual machine may report more than it has: neighbours that share the cache are not visible.

use std::path::Path;
use std::sync::OnceLock;

/// A thread's share of caches, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Of the last cache.
    pub last: u64,
    /// Of the one before it, which few threads share.
    pub second: u64,
}

/// The shares when the machine does not report its caches (containers that hide sysfs).
const FALLBACK: Shares = Shares {
    last: 8 << 20,
    second: 512 << 10,
};
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Bytes of each cache, divided by the CPUs that share it.
pub fn shares() -> Shares {
    static SHARES: OnceLock<Shares> = OnceLock::new();
    *SHARES.get_or_init(|| read(Path::new(CACHES)).unwrap_or(FALLBACK))
}

fn read(dir: &Path) -> Option<Shares> {
    let file = |dir: &Path, name| std::fs::read_to_string(dir.join(name)).ok();
    let caches = std::fs::read_dir(dir).ok()?.filter_map(Result::ok);
    let share = |e: std::fs::DirEntry| {
        let dir = e.path();
        let level: u32 = file(&dir, "level")?.trim().parse().ok()?;
        let bytes = parse_size(&file(&dir, "size")?)?;
        let cpus = count_cpus(&file(&dir, "shared_cpu_list")?)?;
        Some((level, bytes / cpus)).filter(|(_, share)| *share > 0)
    };
    let all: Vec<(u32, u64)> = caches.filter_map(share).collect();
    let (level, last) = *all.iter().max()?;
    let before = all.iter().filter(|(l, _)| *l < level).max();
    Some(Shares {
        last,
        second: before.map_or(last, |(_, share)| *share),
    })
}

/// `32768K`, as sysfs writes sizes.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_shl(shift)
}

/// How many CPUs a list such as `0-3,8` names.
fn count_cpus(list: &str) -> Option<u64> {
    let mut n = 0;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        n += last.checked_sub(first)? + 1;
    }
    (n > 0).then_some(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_lists_are_read_as_sysfs_writes_them() {
        assert_eq!(parse_size("32768K\n"), Some(32 << 20));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!((parse_size(""), parse_size("xK")), (None, None));
        assert_eq!(count_cpus("0-3,8\n"), Some(5));
        assert_eq!((count_cpus("3-1"), count_cpus("")), (None, None));
    }

    #[test]
    fn the_highest_level_counts_and_a_broken_entry_is_left_out() {
        let dir = std::env::temp_dir().join(format!("ringbell-cache-{}", std::process::id()));
        for (name, level, size, cpus) in [
            ("index0", "1", "32K", "0"),
            ("index2", "2", "1024K", "0"),
            ("index3", "3", "32768K", "0-1"),
            ("index4", "4", "lots", "0-1"),
        ] {
            let d = dir.join(name);
            std::fs::create_dir_all(&d).expect("a folder");
            std::fs::write(d.join("level"), level).expect("written");
            std::fs::write(d.join("size"), size).expect("written");
            std::fs::write(d.join("shared_cpu_list"), cpus).expect("written");
        }
        let both = read(&dir);
        for index in ["index2", "index3"] {
            let _ = std::fs::remove_dir_all(dir.join(index));
        }
        let one = read(&dir);
        let _ = std::fs::remove_dir_all(&dir);
        let shares = |last, second| Some(Shares { last, second });
        assert_eq!(both, shares(16 << 20, 1 << 20));
        assert_eq!(one, shares(32 << 10, 32 << 10));
        assert_eq!(read(&dir), None, "no sysfs");
    }
}
