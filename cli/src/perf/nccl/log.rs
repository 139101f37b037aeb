//! NCCL's own log of a communicator: its channels, and their transports. `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=INIT` writes
//! it while communicators come up, and nothing of single operations.

use std::collections::BTreeSet;
use std::path::Path;

/// Most of a log that is read.
const MOST_BYTES: usize = 4 << 20;

/// Content of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Channels of a collective: blocks of its kernel at most, on each rank.
    pub(super) channels: Option<u32>,
    /// Transports of connections, as `SHM/direct/direct`, `NET/Socket/0`.
    pub(super) carriers: BTreeSet<String>,
}

/// Reads all logs of a folder.
pub(super) fn read(folder: &Path) -> Told {
    let mut told = Told::default();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if let Ok(bytes) = std::fs::read(entry.path()) {
            let bytes = &bytes[..bytes.len().min(MOST_BYTES)];
            told.take(&String::from_utf8_lossy(bytes));
        }
    }
    told
}

impl Told {
    fn take(&mut self, text: &str) {
        for line in text.lines() {
            // "4 coll channels, 4 collnet channels, 0 nvls channels, 4 p2p channels, ..."
            if let Some((before, _)) = line.split_once(" coll channels") {
                let number = before.rsplit(' ').next().and_then(|n| n.parse().ok());
                self.channels = self.channels.max(number);
            }
            // "Channel 00 : 0[0] -> 1[0] via SHM/direct/direct"
            if let (true, Some((_, by))) = (line.contains("Channel "), line.split_once(" via ")) {
                self.carriers.insert(by.trim().to_owned());
            }
        }
    }

    /// Whether all of them are of this kind.
    pub(super) fn only(&self, kind: &str) -> bool {
        self.carriers.iter().all(|c| c.starts_with(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_and_carriers_are_read_from_nccls_log() {
        let mut told = Told::default();
        told.take(
            "h:1:2 [0] NCCL INFO Channel 00/02 : 0 1\n\
             h:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[0] via SHM/direct/direct\n\
             h:1:2 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [send] via NET/Socket/0\n\
             h:1:2 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer\n",
        );
        assert_eq!(told.channels, Some(2));
        let carriers: Vec<_> = told.carriers.iter().map(String::as_str).collect();
        assert_eq!(carriers, ["NET/Socket/0", "SHM/direct/direct"]);
        assert!(!told.only("SHM"));
        told.carriers.remove("NET/Socket/0");
        assert!(told.only("SHM"));
    }
}
