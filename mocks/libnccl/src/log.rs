//! `NCCL_DEBUG=INFO` into `NCCL_DEBUG_FILE`: the lines that say how ranks are connected, in NCCL's words.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Channels unless `NCCL_MAX_CTAS` allows fewer.
const CHANNELS: u32 = 4;

fn on(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| v == "1")
}

/// What bytes between two ranks go through, as the environment has it.
fn carrier(same_host: bool) -> &'static str {
    if same_host && !on("NCCL_P2P_DISABLE") {
        "P2P/direct pointer"
    } else if same_host && !on("NCCL_SHM_DISABLE") {
        "SHM/direct/direct"
    } else {
        "NET/Socket/0"
    }
}

/// What a rank says when its communicator is up.
pub(crate) fn up(rank: u32, ranks: u32, same_host: bool) {
    let level = std::env::var("NCCL_DEBUG").unwrap_or_default();
    let Ok(file) = std::env::var("NCCL_DEBUG_FILE") else {
        return;
    };
    if level != "INFO" {
        return;
    }
    let most = std::env::var("NCCL_MAX_CTAS").ok();
    let most: u32 = most.and_then(|v| v.parse().ok()).unwrap_or(CHANNELS);
    let (channels, pid, to) = (
        CHANNELS.min(most),
        std::process::id(),
        (rank + 1) % ranks.max(1),
    );
    let file = file.replace("%p", &pid.to_string()).replace("%h", "mock");
    let before = format!("mock:{pid}:{pid} [0] NCCL INFO");
    let mut text = String::new();
    for c in 0..channels {
        let by = carrier(same_host);
        text += &format!("{before} Channel {c:02} : {rank}[0] -> {to}[0] via {by}\n");
    }
    text += &format!("{before} {channels} coll channels, {channels} collnet channels, 0 nvls channels, {channels} p2p channels, {channels} p2p channels per peer\n");
    let opened = OpenOptions::new().create(true).append(true).open(file);
    // A log that cannot be written is no reason to fail, for the real one neither.
    let _ = opened.and_then(|mut f| f.write_all(text.as_bytes()));
}
