//! Free memory of this machine, within the limits of control groups: checked before a measurement
//! for which the system would kill a process.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Memory that is free, and what bounds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Free {
    /// Bytes, reclaimable caches included.
    pub bytes: u64,
    /// `of the machine`, or `of the control group /name`.
    pub of: String,
}

/// The tightest bound of this process; `None` where the system does not report one.
pub fn free() -> Option<Free> {
    free_below(Path::new("/"))
}

/// The same with the files of another root.
fn free_below(root: &Path) -> Option<Free> {
    let machine = meminfo(&read_to_string(root.join("proc/meminfo")).ok()?)?;
    let machine = Free {
        bytes: machine,
        of: "of the machine".into(),
    };
    let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let bounds = groups.lines().flat_map(|line| bounds(root, line));
    bounds.chain([machine]).min_by_key(|f| f.bytes)
}

fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(number(line.trim().strip_suffix("kB")?)? << 10)
}

/// Free memory of a group and those above it; one line of /proc/self/cgroup, see cgroups(7).
fn bounds(root: &Path, line: &str) -> Vec<Free> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, group) = match (parts.next(), parts.next(), parts.next()) {
        (Some(id), Some(c), Some(group)) => (id, c, group),
        _ => return Vec::new(),
    };
    let names = match (id, controllers) {
        ("0", "") => Names {
            mount: "sys/fs/cgroup",
            limit: "memory.max",
            used: "memory.current",
            cache: "inactive_file",
        },
        (_, c) if c.split(',').any(|c| c == "memory") => Names {
            mount: "sys/fs/cgroup/memory",
            limit: "memory.limit_in_bytes",
            used: "memory.usage_in_bytes",
            cache: "total_inactive_file",
        },
        _ => return Vec::new(),
    };
    // In a container the path may begin above the mount; then the mount's own files give the bound.
    let path = PathBuf::from(group.trim_start_matches('/'));
    path.ancestors()
        .filter_map(|p| {
            let of = match p.as_os_str().is_empty() {
                true => "of the control group that this system shows as /".to_string(),
                false => format!("of the control group /{}", p.display()),
            };
            let bytes = names.left(&root.join(names.mount).join(p))?;
            Some(Free { bytes, of })
        })
        .collect()
}

/// Files of one version of control groups.
struct Names {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// In memory.stat: used memory that is given back when it is needed.
    cache: &'static str,
}

impl Names {
    fn left(&self, dir: &Path) -> Option<u64> {
        // "max" is no number, and no limit.
        let limit = number(&read_to_string(dir.join(self.limit)).ok()?)?;
        let used = number(&read_to_string(dir.join(self.used)).ok()?)?;
        let stat = read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let cache = stat.lines().find_map(|l| {
            let (name, value) = l.split_once(' ')?;
            (name == self.cache).then(|| number(value)).flatten()
        });
        let held = used.saturating_sub(cache.unwrap_or(0));
        Some(limit.saturating_sub(held))
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        dir
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:  9000 kB\nMemAvailable:    8000 kB\nSwapTotal: 0 kB\n",
    );

    fn left(files: &[(&str, &str)]) -> Free {
        let mut all = vec![MEMINFO];
        all.extend(files);
        free_below(root(&all).path()).expect("known")
    }

    #[test]
    fn without_groups_the_machine_counts() {
        let free = left(&[]);
        assert_eq!((free.bytes, &*free.of), (8000 << 10, "of the machine"));
        assert!(free_below(Path::new("/nowhere")).is_none());
        assert!(super::free().is_some(), "this machine reports it");
    }

    #[test]
    fn the_tightest_parent_group_counts_minus_its_used_memory() {
        let free = left(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "10\n"),
            ("sys/fs/cgroup/a/memory.max", "5000\n"),
            ("sys/fs/cgroup/a/memory.current", "3000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 700\n"),
        ]);
        assert_eq!((free.bytes, &*free.of), (2700, "of the control group /a"));
    }

    #[test]
    fn the_first_version_of_groups_and_a_containers_own_mount() {
        let free = left(&[
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/x\n4:memory:/outside/of/us\n0::/\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "total_inactive_file 24\n",
            ),
        ]);
        assert_eq!(free.bytes, 4096 - 1000 + 24);
        // No limit: a number beyond all memory.
        let free = left(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
        ]);
        assert_eq!(free.bytes, 8000 << 10);
    }
}
