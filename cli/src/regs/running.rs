//! NICs that run on this host, their registers, and what the nodes of meshes among them show.
//!
//! A software NIC keeps its BAR in a memfd with a name of its own. A user with access to a process
//! (its owner, or root) can open that memory through /proc and read the status registers, as a
//! driver reads those of a card; the NIC does not notice.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use ringbell::abi::bar::{Reg, BAR_BYTES, MAGIC, MEMFD_NAME};
use ringbell_mesh::page;
use serde::Serialize;

/// Looks at a text before it counts as none.
const LOOKS: usize = 100;

/// A NIC in a running process.
#[derive(Debug)]
pub(super) struct RunningNic {
    /// The process.
    pub(super) pid: u32,
    /// Name of the process.
    pub(super) process: String,
    /// Number of the descriptor: a process may hold several NICs.
    pub(super) fd: u32,
    bar: File,
}

impl RunningNic {
    /// The value of a register now; none when the memory cannot be read.
    pub(super) fn read(&self, reg: Reg) -> Option<u32> {
        self.word(reg.offset())
    }

    /// The word at an offset of the BAR now; none when the memory cannot be read.
    pub(super) fn word(&self, offset: usize) -> Option<u32> {
        let mut word = [0; 4];
        self.bar.read_exact_at(&mut word, offset as u64).ok()?;
        Some(u32::from_le_bytes(word))
    }
}

/// Every NIC of every process that this one may inspect, or of one process; by rising number.
pub(super) fn nics(only: Option<u32>) -> Vec<RunningNic> {
    processes(only).flat_map(of_process).collect()
}

/// A NIC's node of a mesh in a running process.
#[derive(Debug, Serialize)]
pub(super) struct RunningNode {
    /// The process.
    pub(super) pid: u32,
    /// Name of the process.
    pub(super) process: String,
    /// Number of the descriptor: a process may hold several nodes.
    pub(super) fd: u32,
    /// The node and its network.
    pub(super) node: String,
    /// Its wires, what is missing, the routes in use, and what it forwarded, as `Nic::ports` has
    /// them.
    pub(super) report: Vec<String>,
}

/// Nodes of meshes in the same processes.
pub(super) fn nodes(only: Option<u32>) -> Vec<RunningNode> {
    processes(only).flat_map(nodes_of).collect()
}

fn nodes_of(pid: u32) -> Vec<RunningNode> {
    let node = |(fd, page): (u32, File)| {
        // One that is just being written is whole at the next look.
        let mut lines = (0..LOOKS).find_map(|_| page::decode(&whole(&page)?))?;
        let report = lines.split_off(1.min(lines.len()));
        Some(RunningNode {
            pid,
            process: name_of(pid),
            fd,
            node: lines.pop()?,
            report,
        })
    };
    memfds(pid, page::NAME)
        .into_iter()
        .filter_map(node)
        .collect()
}

fn whole(page: &File) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(page.metadata().ok()?.len()).ok()?];
    page.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

/// The processes to look into.
fn processes(only: Option<u32>) -> impl Iterator<Item = u32> {
    let pids = match only {
        Some(pid) => vec![pid],
        None => numbers(Path::new("/proc")),
    };
    pids.into_iter()
}

fn name_of(pid: u32) -> String {
    let comm = Path::new("/proc").join(pid.to_string()).join("comm");
    let name = std::fs::read_to_string(comm).unwrap_or_default();
    name.trim().to_owned()
}

/// The names below a folder that are numbers, rising.
fn numbers(folder: &Path) -> Vec<u32> {
    let mut found: Vec<u32> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    found.sort_unstable();
    found
}

/// The memory of a process by its name, each once, with its descriptor.
fn memfds(pid: u32, name: &str) -> Vec<(u32, File)> {
    let fds = Path::new("/proc").join(pid.to_string()).join("fd");
    // The kernel adds the word to the name of a file that has none in any folder.
    let wanted = format!("/memfd:{name} (deleted)");
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for fd in numbers(&fds) {
        let link = fds.join(fd.to_string());
        if std::fs::read_link(&link).ok().as_deref() != Some(Path::new(&wanted)) {
            continue;
        }
        let Ok(file) = File::open(&link) else {
            continue;
        };
        let Ok(meta) = file.metadata() else { continue };
        // A descriptor that was duplicated is still one NIC.
        if !seen.contains(&meta.ino()) {
            seen.push(meta.ino());
            found.push((fd, file));
        }
    }
    found
}

fn of_process(pid: u32) -> Vec<RunningNic> {
    let process = name_of(pid);
    let nic = |(fd, bar): (u32, File)| {
        let len = bar.metadata().ok()?.len();
        let process = process.clone();
        let nic = RunningNic {
            pid,
            process,
            fd,
            bar,
        };
        let is_whole = len >= BAR_BYTES as u64 && nic.read(Reg::Magic) == Some(MAGIC);
        is_whole.then_some(nic)
    };
    memfds(pid, MEMFD_NAME)
        .into_iter()
        .filter_map(nic)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{memfd_create, MemfdFlags};

    /// What no NIC of another test of this process has.
    const OURS: u32 = 7_654_321;

    fn bar(name: &str, magic: u32) -> File {
        let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd"));
        file.set_len(BAR_BYTES as u64).expect("its length");
        for (reg, value) in [(Reg::Magic, magic), (Reg::Sessions, OURS)] {
            file.write_all_at(&u32::to_le_bytes(value), reg.offset() as u64)
                .expect("written");
        }
        file
    }

    #[test]
    fn finds_each_nic_of_a_process_once_and_nothing_else() {
        let me = std::process::id();
        let first = bar(MEMFD_NAME, MAGIC);
        let _copy = first.try_clone().expect("a duplicate");
        let _second = bar(MEMFD_NAME, MAGIC);
        let _not_ready = bar(MEMFD_NAME, 0);
        let _other = bar("ringbell-barrel", MAGIC);
        let _short = File::from(memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).expect("a memfd"));
        let mut found = nics(Some(me));
        found.retain(|n| n.read(Reg::Sessions) == Some(OURS));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|n| n.pid == me && !n.process.is_empty()));
        // A change is seen at once.
        first
            .write_all_at(&u32::to_le_bytes(8), Reg::Sessions.offset() as u64)
            .expect("written");
        assert_eq!(found[0].read(Reg::Sessions), Some(8));
        assert!(nics(None).iter().any(|n| n.pid == me));
        assert!(nics(Some(u32::MAX)).is_empty());
    }
}
