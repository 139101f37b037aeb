//! NICs of several ranks in one process, for tests of communicators.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

use std::path::PathBuf;
use std::time::Duration;

use ringbell::{CommOptions, Communicator, Nic, NicOptions, TransportSpec};

/// Long enough for any machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// NICs of one test, which meet in a directory of their own.
pub struct Ranks {
    pub nics: Vec<Nic>,
    directory: PathBuf,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.nics.clear();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn ranks(name: &str, n: u8) -> Ranks {
    let directory = std::env::temp_dir().join(format!("rb-comm-{name}-{}", std::process::id()));
    let open = |i: u8| {
        let mut options = NicOptions {
            ip: format!("10.66.0.{}/24", i + 1).parse().expect("an address"),
            transport: TransportSpec::Local,
            ..NicOptions::default()
        };
        options.gpu.memory_bytes = 16 << 20;
        options.local.directory = Some(directory.clone());
        Nic::open(options).expect("a NIC")
    };
    Ranks {
        nics: (0..n).map(open).collect(),
        directory,
    }
}

/// Runs `f` as every rank; gives what each returned.
pub fn each<R: Send>(comms: &[Communicator], f: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let f = &f;
        let threads: Vec<_> = comms.iter().map(|c| s.spawn(move || f(c))).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("a rank panicked"))
            .collect()
    })
}

pub fn options() -> CommOptions {
    CommOptions {
        init_timeout: PATIENCE,
        timeout: PATIENCE,
        ..CommOptions::default()
    }
}
