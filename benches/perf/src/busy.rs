//! Use of the cores while a measurement runs: by the measurement, by the kernel, and by other
//! programs.
//!
//! `/proc/stat` has the time of each core, and `/proc/PID/stat` that of each process. What programs
//! took, less the processes of the measurement, was taken by others: then times are longer than on
//! an idle machine. Clock ticks of 10 ms are the unit of both, so shares of a run of less than
//! [`SHORTEST`] are not given.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::machine;

/// Shortest run of which shares are given.
const SHORTEST: Duration = Duration::from_millis(200);
/// Share of the cores' time, taken by others, from which on a report calls the machine busy.
const BUSY: f64 = 0.05;
/// The kernel's process of which all its threads are children.
const KTHREADD: u32 = 2;

/// Shares of the cores' time during a measurement. They add up to 1, but for rounding.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// Length of the measurement, limits of the machine included.
    pub seconds: f64,
    /// Cores that its processes may use; the shares are of the time of all of them.
    pub cores: usize,
    /// Processes of the measurement: all ranks on this machine, and their launcher.
    pub own: f64,
    /// Other programs.
    pub others: f64,
    /// Interrupts and the kernel's own threads, those that this run causes included.
    pub kernel: f64,
    /// Taken by the hypervisor.
    pub stolen: f64,
    /// Nothing ran.
    pub idle: f64,
}

impl Busy {
    /// Whether so much ran beside the measurement that its figures are not those of an idle
    /// machine.
    pub fn is_busy(&self) -> bool {
        self.others + self.stolen >= BUSY
    }

    /// The shares in one line, with advice when the machine was busy.
    pub fn describe(&self) -> String {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let advice = match self.is_busy() {
            true => "; the machine was busy: times are longer than on an idle one, so repeat before you compare",
            false => "",
        };
        format!(
            "{} core(s) in {:.1} s: this run {}, other programs {}, kernel {}, hypervisor {}, idle {}{advice}",
            self.cores,
            self.seconds,
            percent(self.own),
            percent(self.others),
            percent(self.kernel),
            percent(self.stolen),
            percent(self.idle),
        )
    }
}

/// Ticks of a core since the machine's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ticks {
    /// Programs: `user`, `nice` and `system`, which kernel threads are in as well.
    programs: u64,
    interrupts: u64,
    stolen: u64,
    idle: u64,
}

/// One process: its parent, and the ticks that it and the children that it has waited for have
/// used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: u32,
    ticks: u64,
}

/// The state of the machine at one moment.
struct Snapshot {
    at: Instant,
    cores: BTreeMap<usize, Ticks>,
    processes: BTreeMap<u32, Process>,
}

/// A measurement that has begun.
pub struct Watch {
    /// The process whose descendants, itself included, are the measurement.
    root: u32,
    start: Snapshot,
}

impl Watch {
    /// Begins, for the calling process and its descendants. With `launched` they are those of its
    /// parent, which has started other ranks as well. None where /proc cannot be read.
    pub fn start(launched: bool) -> Option<Watch> {
        let own = std::process::id();
        let start = Snapshot::take()?;
        let root = match start.processes.get(&own) {
            // Below init there is no launcher.
            Some(p) if launched && p.parent > 1 => p.parent,
            _ => own,
        };
        Some(Watch { root, start })
    }

    /// The shares up to now; none after less than 0.2 seconds, and where /proc cannot be read.
    pub fn shares(&self) -> Option<Busy> {
        let end = Snapshot::take()?;
        let took = end.at - self.start.at;
        if took < SHORTEST {
            return None;
        }
        let cores: BTreeSet<usize> = self
            .start
            .family(self.root)
            .into_iter()
            .chain(end.family(self.root))
            .flat_map(machine::cores_of)
            .collect();
        between(&self.start, &end, self.root, &cores)
    }
}

impl Snapshot {
    // The edge: who reports asks how long the machine was watched.
    #[allow(clippy::disallowed_methods)]
    fn take() -> Option<Snapshot> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let mut processes = BTreeMap::new();
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            // It may have ended meanwhile.
            let text = std::fs::read_to_string(entry.path().join("stat"));
            if let Some(process) = text.ok().and_then(|t| process(&t)) {
                processes.insert(pid, process);
            }
        }
        Some(Snapshot {
            at: Instant::now(),
            cores: cores(&stat),
            processes,
        })
    }

    /// A process and its descendants.
    fn family(&self, root: u32) -> BTreeSet<u32> {
        let mut family = BTreeSet::from([root]);
        loop {
            let known = family.len();
            let children = self.processes.iter();
            let children = children.filter(|(_, p)| family.contains(&p.parent));
            let children: Vec<u32> = children.map(|(pid, _)| *pid).collect();
            family.extend(children);
            if family.len() == known {
                return family;
            }
        }
    }

    /// Ticks of a process and its descendants. Of a child that has ended they have become its
    /// parent's.
    fn ticks(&self, root: u32) -> u64 {
        let family = self.family(root);
        let ticks = family.iter().filter_map(|pid| self.processes.get(pid));
        ticks.map(|p| p.ticks).sum()
    }
}

/// Shares of the time of `cores` between two moments.
fn between(start: &Snapshot, end: &Snapshot, root: u32, cores: &BTreeSet<usize>) -> Option<Busy> {
    let mut sum = Ticks::default();
    for core in cores {
        let (a, b) = (start.cores.get(core)?, end.cores.get(core)?);
        sum.programs += b.programs.saturating_sub(a.programs);
        sum.interrupts += b.interrupts.saturating_sub(a.interrupts);
        sum.stolen += b.stolen.saturating_sub(a.stolen);
        sum.idle += b.idle.saturating_sub(a.idle);
    }
    let all = sum.programs + sum.interrupts + sum.stolen + sum.idle;
    let used = |root| end.ticks(root).saturating_sub(start.ticks(root));
    // Processes' ticks and cores' are counted at different moments.
    let own = used(root).min(sum.programs);
    let threads = used(KTHREADD).min(sum.programs - own);
    let share = |ticks: u64| ticks as f64 / all as f64;
    (all > 0).then(|| Busy {
        seconds: (end.at - start.at).as_secs_f64(),
        cores: cores.len(),
        own: share(own),
        others: share(sum.programs - own - threads),
        kernel: share(sum.interrupts + threads),
        stolen: share(sum.stolen),
        idle: share(sum.idle),
    })
}

/// The lines `cpuN` of /proc/stat (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal.
fn cores(stat: &str) -> BTreeMap<usize, Ticks> {
    let core = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut all = [0u64; 8];
        for field in &mut all {
            // Old kernels have fewer fields.
            *field = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
        }
        let [user, nice, system, idle, iowait, irq, softirq, steal] = all;
        Some((
            number,
            Ticks {
                programs: user + nice + system,
                interrupts: irq + softirq,
                stolen: steal,
                idle: idle + iowait,
            },
        ))
    };
    // The first line, `cpu`, is their sum: its first word is no number.
    stat.lines()
        .filter(|l| !l.starts_with("cpu "))
        .filter_map(core)
        .collect()
}

/// /proc/PID/stat (proc(5)): the parent is field 4, utime, stime, cutime and cstime are fields 14
/// to 17. The name in field 2 may contain anything.
fn process(stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|f| f.parse::<u64>().ok());
    Some(Process {
        parent: fields.get(1)?.parse().ok()?,
        ticks: ticks.sum::<Option<u64>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  30 0 0 270 0 0 0 0 0 0\n\
                        cpu0 10 1 2 80 3 1 2 1 0 0\n\
                        cpu1 20 0 0 190 0\n\
                        intr 12 3\n";

    fn at(start: Instant, ms: u64, cores: [Ticks; 2], processes: &[(u32, u32, u64)]) -> Snapshot {
        Snapshot {
            at: start + Duration::from_millis(ms),
            cores: (0..).zip(cores).collect(),
            processes: processes
                .iter()
                .map(|&(pid, parent, ticks)| (pid, Process { parent, ticks }))
                .collect(),
        }
    }

    #[test]
    fn cores_and_processes_are_read_as_proc_has_them() {
        let c = cores(STAT);
        let first = Ticks {
            programs: 13,
            interrupts: 3,
            stolen: 1,
            idle: 83,
        };
        assert_eq!((c.len(), c[&0]), (2, first));
        assert_eq!((c[&1].programs, c[&1].idle), (20, 190));
        let text = "42 (a) b (c)) S 7 1 1 0 -1 4194304 1 2 3 4 100 20 3 4 20 0 1 0";
        let want = Process {
            parent: 7,
            ticks: 127,
        };
        assert_eq!(process(text), Some(want));
        assert_eq!(process("42 (a"), None);
    }

    #[test]
    #[allow(clippy::disallowed_methods)] // Only differences of it count.
    fn what_neither_the_run_nor_the_kernel_has_used_was_others() {
        let now = Instant::now();
        let core = |programs, idle| Ticks {
            programs,
            interrupts: programs / 10,
            stolen: 0,
            idle,
        };
        // 9 is the launcher, 10 and 11 its ranks, 5 another program, 3 a thread of the kernel.
        let start = at(
            now,
            0,
            [core(0, 0), core(0, 0)],
            &[(2, 0, 0), (3, 2, 5), (5, 1, 7), (9, 1, 1), (10, 9, 2)],
        );
        // Rank 11 has come and gone: its launcher has waited for it.
        let end = at(
            now,
            1000,
            [core(50, 45), core(50, 45)],
            &[(2, 0, 0), (3, 2, 10), (5, 1, 47), (9, 1, 21), (10, 9, 32)],
        );
        let both = BTreeSet::from([0, 1]);
        let b = between(&start, &end, 9, &both).expect("ticks have passed");
        let rounded = [b.own, b.others, b.kernel, b.stolen, b.idle].map(|s| (s * 200.0).round());
        assert_eq!(rounded, [50.0, 45.0, 15.0, 0.0, 90.0]);
        assert!(
            b.is_busy() && b.describe().contains("was busy"),
            "{}",
            b.describe()
        );
        assert!(b
            .describe()
            .starts_with("2 core(s) in 1.0 s: this run 25%, other programs 22%"));
        let quiet = Busy {
            others: 0.01,
            ..b.clone()
        };
        assert!(!quiet.is_busy() && !quiet.describe().contains("was busy"));
        // A core that /proc/stat does not have, and no time at all.
        assert_eq!(between(&start, &end, 9, &BTreeSet::from([7])), None);
        assert_eq!(between(&start, &start, 9, &both), None);
    }

    /// The same process, with a thread that computes meanwhile.
    #[test]
    #[allow(clippy::disallowed_methods)]
    fn own_time_is_not_others() {
        let watch = Watch::start(false).expect("there is /proc");
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let b = watch.shares().expect("long enough");
        assert!(b.own > 0.0, "{b:?}");
        let sum = b.own + b.others + b.kernel + b.stolen + b.idle;
        assert!((0.99..1.01).contains(&sum), "{b:?}");
        assert!(b.cores >= 1 && b.seconds >= 0.5);
    }
}
