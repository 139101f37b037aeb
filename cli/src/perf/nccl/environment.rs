//! Environment of NCCL's process, which is set before the library is loaded.
//!
//! The ranks are threads of that process, all on one GPU. NCCL allows it since 2.30 with
//! `NCCL_MULTI_RANK_GPU_ENABLE=1` (`src/init.cc` of NCCL), and their bytes go through shared memory
//! of the host.

use std::collections::BTreeMap;

/// First version that allows several ranks on one GPU.
pub(super) const SEVERAL_RANKS: i32 = 23_000;

/// Why a version cannot be measured, if it cannot.
pub(super) fn too_old(version: i32) -> Option<String> {
    (version < SEVERAL_RANKS).then(|| {
        let own = version_text(version);
        format!("NCCL {own} allows one rank on a GPU; 2.30 and later allow several")
    })
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

/// Most channels of a rank such that kernels of all ranks can be resident together. NCCL takes up
/// to 64 of 132 multiprocessors, and says that two ranks fit; more hang
/// (`NCCL_MULTI_RANK_GPU_ENABLE` in its manual).
fn most_channels(ranks: u32, sms: i32) -> Option<u32> {
    let each = u32::try_from(sms).ok()? / ranks.max(1);
    (each > 0 && each < 64).then_some(each)
}

/// Variables of the process with so many ranks, on a GPU with so many multiprocessors.
pub(super) fn variables(ranks: u32, sms: i32) -> BTreeMap<String, String> {
    let mut vars: BTreeMap<String, String> = [
        // Ranks of one GPU would simply load from each other's memory.
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_SHM_DISABLE", "0"),
        // Ranks meet by sockets.
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
        // Kernels of several ranks wait for each other: no stream may stand behind another's in a
        // hardware queue.
        ("CUDA_DEVICE_MAX_CONNECTIONS", "32"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    // A variable that the user has set stays.
    let free = std::env::var_os("NCCL_MAX_CTAS").is_none();
    if let (Some(most), true) = (most_channels(ranks, sms), free) {
        vars.insert("NCCL_MAX_CTAS".into(), most.to_string());
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
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_nccl() {
        assert_eq!(version_text(23_203), "2.32.3");
        assert_eq!(version_text(22_809), "2.28.9");
        assert_eq!(version_text(2_708), "2.7.8");
    }

    #[test]
    fn a_nccl_that_allows_one_rank_on_a_gpu_is_too_old() {
        assert_eq!(too_old(23_003), None);
        assert!(too_old(22_907).is_some_and(|why| why.contains("2.29.7")));
    }

    #[test]
    fn the_environment_sets_permission_and_channels() {
        let vars = variables(2, 132);
        assert_eq!(vars["NCCL_P2P_DISABLE"], "1");
        assert_eq!(vars["NCCL_MULTI_RANK_GPU_ENABLE"], "1");
        assert!(!vars.contains_key("NCCL_MAX_CTAS"));
        let vars = variables(4, 132);
        assert_eq!(vars["NCCL_MAX_CTAS"], "33");
        assert_eq!(reported(&vars)["NCCL_MAX_CTAS"], "33");
    }
}
