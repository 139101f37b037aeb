//! File descriptors and address space: limits of this process, and counts of exhaustion.
//!
//! A NIC has about a dozen descriptors, and one or two for each local peer
//! (`transport/local/link.rs`), whose memory it maps. A lack of either is an ordinary failure of
//! the transport, and its peer sees only missing answers. So it is counted here, for the process as
//! a whole, and a caller that waits for that peer can report why.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{getrlimit, Resource};

/// Times that this process, or the system, had no descriptor left for a NIC.
static SHORTAGES: AtomicU64 = AtomicU64::new(0);
/// Times that the system mapped no more memory for a NIC.
static UNMAPPED: AtomicU64 = AtomicU64::new(0);

/// Resources that NICs of this process could not get, since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortages {
    /// How often no file descriptor was left.
    pub descriptors: u64,
    /// How often a peer's memory could not be mapped for lack of addresses or memory.
    pub memory: u64,
}

/// Counts an error that means that no descriptors, or no room to map memory, are left; ignores
/// others.
pub(crate) fn note(error: &std::io::Error) {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => note_cut(),
        Some(Errno::NOMEM) => {
            // Relaxed: a count, which orders nothing.
            UNMAPPED.fetch_add(1, Ordering::Relaxed);
        }
        _ => {}
    }
}

/// Counts descriptors that came with a message and found no room.
pub(crate) fn note_cut() {
    // Relaxed: a count, which orders nothing.
    SHORTAGES.fetch_add(1, Ordering::Relaxed);
}

/// Resources that NICs of this process could not get, since it began.
pub fn shortages() -> Shortages {
    Shortages {
        descriptors: SHORTAGES.load(Ordering::Relaxed),
        memory: UNMAPPED.load(Ordering::Relaxed),
    }
}

/// Most bytes of addresses that this process may map (`ulimit -v`); `None`: without limit.
pub fn address_limit() -> Option<u64> {
    getrlimit(Resource::As).current
}

/// Most descriptors that this process may have open now (the soft limit); `None`: without limit.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Descriptors that are open in this process; `None` where `/proc` does not report it, or no
/// descriptor is left to read it.
pub fn open() -> Option<u64> {
    let list = std::fs::read_dir("/proc/self/fd").ok()?;
    // One of them is the listing's own.
    Some((list.count() as u64).saturating_sub(1))
}

/// Descriptors that a program of so many ranks has open when all of them are in one process: each
/// with a NIC, a GPU's memory and a bootstrap's connection, and linked to each other on the host.
/// More than were counted, because each handshake has six more for a moment.
pub fn needed_in_one_process(ranks: u32) -> u64 {
    let n = u64::from(ranks);
    64 + 24 * n + n * n.saturating_sub(1)
}

/// Raises this process's soft limit to its hard one, as a program of many ranks wants at its start.
///
/// A library leaves that to the program: `select` cannot watch descriptors above 1,023, and a
/// program that uses it relies on the lower limit. Without effect where the system refuses.
pub fn raise_limit() {
    use rustix::process::{setrlimit, Rlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_shortage_of_descriptors_or_memory_is_counted() {
        let before = shortages();
        note(&std::io::ErrorKind::NotFound.into());
        note(&std::io::Error::from_raw_os_error(11));
        assert_eq!(shortages(), before);
        note(&std::io::Error::from_raw_os_error(24));
        note(&rustix::io::Errno::NFILE.into());
        note(&rustix::io::Errno::NOMEM.into());
        // Tests of one process may run at once, so others may count as well.
        let after = shortages();
        assert!(after.descriptors >= before.descriptors + 2);
        assert!(after.memory > before.memory);
    }

    #[test]
    fn each_open_descriptor_is_counted() {
        let before = open().expect("/proc");
        let files: Vec<_> = (0..100)
            .map(|_| std::fs::File::open("/dev/null").expect("open"))
            .collect();
        assert!(open().expect("/proc") >= before + 50, "others close some");
        assert!(limit().is_none_or(|l| l > files.len() as u64));
    }
}
