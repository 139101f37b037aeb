//! Placement of NCCL's ranks in processes, and their environment. It is set before the library is loaded, in processes that load
//! nothing else.
//!
//! NCCL refuses two ranks of one host on one GPU. Since 2.30 `NCCL_MULTI_RANK_GPU_ENABLE=1` allows it. Before, ranks can only
//! pretend to be on different hosts (`NCCL_HOSTID`, which a process reads once, so each needs one of its own). Between hosts
//! there is no shared memory (`src/init.cc`, `src/transport/shm.cc` of NCCL).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// First version that allows several ranks on one GPU.
pub(super) const SEVERAL_RANKS: i32 = 23_000;

/// First words of the reason when a version does not support something.
const IMPOSSIBLE: &str = "not possible";

/// Whether a reason is that the version does not support it.
pub(super) fn is_impossible(why: Option<&str>) -> bool {
    why.is_some_and(|why| why.starts_with(IMPOSSIBLE))
}

/// How ranks are divided among processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    Threads,
    Processes,
}

impl Placement {
    /// The selected one, else threads where NCCL supports them: their kernels are resident together.
    pub(super) fn choose(threads: bool, procs: bool, version: i32) -> Placement {
        match (threads, procs) {
            (true, _) => Placement::Threads,
            (_, true) => Placement::Processes,
            _ if version >= SEVERAL_RANKS => Placement::Threads,
            _ => Placement::Processes,
        }
    }

    /// The flag that gives our side the same.
    pub(super) fn flag(self) -> &'static str {
        match self {
            Placement::Threads => "--threads",
            Placement::Processes => "--procs",
        }
    }

    /// In words. `mps`: the service that makes kernels of several processes resident together.
    pub(super) fn describe(self, mps: Option<&str>) -> String {
        match (self, mps) {
            (Placement::Threads, _) => {
                "threads of one process, kernels of one context on both sides".into()
            }
            (Placement::Processes, Some(mps)) => {
                format!("processes, co-resident by MPS ({mps}) on both sides")
            }
            (Placement::Processes, None) => {
                "processes without MPS: time-sliced contexts, both sides".into()
            }
        }
    }
}

/// What bytes between ranks go through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Carrier {
    /// Shared memory of the host
    Shm,
    /// TCP over the loopback
    Socket,
}

impl Carrier {
    pub(super) const ALL: [Carrier; 2] = [Carrier::Shm, Carrier::Socket];

    pub(super) fn name(self) -> &'static str {
        match self {
            Carrier::Shm => "shm",
            Carrier::Socket => "socket",
        }
    }

    /// Its name in NCCL's log.
    pub(super) fn in_log(self) -> &'static str {
        match self {
            Carrier::Shm => "SHM",
            Carrier::Socket => "NET/Socket",
        }
    }

    /// Why this cannot be measured, if it cannot.
    pub(super) fn impossible(self, placement: Placement, version: i32) -> Option<String> {
        if version >= SEVERAL_RANKS {
            return None;
        }
        let own = version_text(version);
        match (placement, self) {
            (Placement::Threads, _) => Some(format!(
                "{IMPOSSIBLE}: NCCL {own} allows one rank of a process on a GPU; 2.30 allows several, or leave --threads away"
            )),
            (_, Carrier::Shm) => Some(format!(
                "{IMPOSSIBLE}: NCCL {own} allows several ranks on a GPU only if they claim to be on different hosts, and those share no memory"
            )),
            (_, Carrier::Socket) => None,
        }
    }
}

/// `2.30.7`.
pub(super) fn version_text(version: i32) -> String {
    // Since 2.9 as it is here (`NCCL_VERSION` in nccl.h); before, two digits for the minor number.
    let (major, minor) = match version >= 10_000 {
        true => (version / 10_000, version / 100 % 100),
        false => (version / 1_000, version / 100 % 10),
    };
    format!("{major}.{minor}.{}", version % 100)
}

/// Parameters of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) carrier: Carrier,
    pub(super) version: i32,
    pub(super) ranks: u32,
    /// Of the GPU.
    pub(super) sms: i32,
    /// NCCL's log file, `%p` for the process.
    pub(super) log: &'a Path,
    /// Pipe directory of an MPS of ours.
    pub(super) mps: Option<&'a Path>,
}

/// Most channels of a rank such that kernels of all ranks can be resident together. NCCL takes up to 64 of 132
/// multiprocessors, and says that two ranks fit; more hang (`NCCL_MULTI_RANK_GPU_ENABLE` in its manual).
fn most_channels(ranks: u32, sms: i32) -> Option<u32> {
    let each = u32::try_from(sms).ok()? / ranks.max(1);
    (each > 0 && each < 64).then_some(each)
}

/// Variables of the process with these ranks.
pub(super) fn environment(s: &Setting<'_>, own: &[u32]) -> BTreeMap<String, String> {
    let mut vars = BTreeMap::new();
    let mut set = |name: &str, value: &str| {
        vars.insert(name.to_owned(), value.to_owned());
    };
    set("NCCL_P2P_DISABLE", "1");
    set("NCCL_IB_DISABLE", "1");
    set("NCCL_NET", "Socket");
    set("NCCL_SOCKET_IFNAME", "lo");
    set(
        "NCCL_SHM_DISABLE",
        match s.carrier {
            Carrier::Shm => "0",
            Carrier::Socket => "1",
        },
    );
    if s.version >= SEVERAL_RANKS {
        set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    } else if let Some(first) = own.first() {
        set("NCCL_HOSTID", &format!("ringbell-rank-{first}"));
    }
    // Kernels of several ranks wait for each other: no stream may stand behind another's in a hardware queue.
    set("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    if let Some(pipe) = s.mps {
        set("CUDA_MPS_PIPE_DIRECTORY", &pipe.display().to_string());
    }
    // A variable that the user has set stays.
    let free = |name: &str| std::env::var_os(name).is_none();
    if let (Some(most), true) = (most_channels(s.ranks, s.sms), free("NCCL_MAX_CTAS")) {
        set("NCCL_MAX_CTAS", &most.to_string());
    }
    if free("NCCL_DEBUG") {
        set("NCCL_DEBUG", "INFO");
        // Nothing of single operations: that would cost time.
        set("NCCL_DEBUG_SUBSYS", "INIT");
        set("NCCL_DEBUG_FILE", &s.log.display().to_string());
    }
    vars
}

/// The variables for the report: those that were set, and NCCL's that were there already.
pub(super) fn reported(set: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let there = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        (name.starts_with("NCCL_")).then(|| (name, value.to_string_lossy().into_owned()))
    });
    let mut all: BTreeMap<String, String> = there.collect();
    all.extend(set.iter().map(|(n, v)| (n.clone(), v.clone())));
    all.retain(|name, _| !name.starts_with("NCCL_DEBUG"));
    if let Some(host) = all.get_mut("NCCL_HOSTID") {
        *host = "one for each rank".into();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(carrier: Carrier, version: i32, ranks: u32) -> Setting<'static> {
        Setting {
            carrier,
            version,
            ranks,
            sms: 132,
            log: Path::new("/log.%p"),
            mps: None,
        }
    }

    #[test]
    fn versions_are_those_of_nccl() {
        assert_eq!(version_text(23_203), "2.32.3");
        assert_eq!(version_text(22_809), "2.28.9");
        assert_eq!(version_text(2_708), "2.7.8");
    }

    #[test]
    fn threads_need_a_nccl_that_allows_several_ranks_on_a_gpu() {
        assert_eq!(Placement::choose(false, false, 23_003), Placement::Threads);
        assert_eq!(
            Placement::choose(false, false, 22_907),
            Placement::Processes
        );
        assert_eq!(Placement::choose(true, false, 22_907), Placement::Threads);
        for carrier in Carrier::ALL {
            assert_eq!(carrier.impossible(Placement::Threads, 23_003), None);
            assert!(carrier.impossible(Placement::Threads, 22_907).is_some());
        }
        let old = |c: Carrier| c.impossible(Placement::Processes, 22_907);
        assert!(old(Carrier::Shm).is_some_and(|why| why.contains("2.29.7")));
        assert_eq!(old(Carrier::Socket), None);
    }

    #[test]
    fn the_environment_sets_transport_and_permission() {
        let vars = environment(&setting(Carrier::Socket, 23_003, 2), &[0, 1]);
        assert_eq!(vars["NCCL_SHM_DISABLE"], "1");
        assert_eq!(vars["NCCL_P2P_DISABLE"], "1");
        assert_eq!(vars["NCCL_MULTI_RANK_GPU_ENABLE"], "1");
        assert!(!vars.contains_key("NCCL_HOSTID") && !vars.contains_key("NCCL_MAX_CTAS"));
        let vars = environment(&setting(Carrier::Shm, 22_809, 4), &[2]);
        assert_eq!(vars["NCCL_SHM_DISABLE"], "0");
        assert_eq!(vars["NCCL_HOSTID"], "ringbell-rank-2");
        assert_eq!(vars["NCCL_MAX_CTAS"], "33");
        assert!(!vars.contains_key("NCCL_MULTI_RANK_GPU_ENABLE"));
        let told = reported(&vars);
        assert!(!told.contains_key("NCCL_DEBUG_FILE"));
        assert_eq!(told["NCCL_HOSTID"], "one for each rank");
    }
}
