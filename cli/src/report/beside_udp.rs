//! Ratios to what plain UDP sockets reached in the same run, where port `roce` was used.

use anyhow::Result;

use super::{size_text, OutputArgs, Report};

/// Shorter messages are a matter of latency.
const LONG: u64 = 64 << 10;

/// Prints the ratios of a bandwidth, one way or both ways at once.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn beside_udp(report: &Report, both_ways: bool, output: &OutputArgs) -> Result<()> {
    let limits = &report.meta.limits;
    let (udp, how) = match both_ways {
        false => (limits.udp_gbs, ""),
        true => (limits.udp_each_way_gbs, ", each way of both at once"),
    };
    let Some(udp) = udp else { return Ok(()) };
    for row in report.rows.iter().filter(|r| r.size_bytes >= LONG) {
        output.say(format!(
            "# {}: {:.2} x plain UDP with packets as long{how} ({udp:.2} GB/s)",
            size_text(row.size_bytes),
            row.algbw_gbs / udp
        ))?;
    }
    Ok(())
}

/// Prints the ratio of the shortest message's half round trip.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn beside_udp_ping_pong(report: &Report, output: &OutputArgs) -> Result<()> {
    let (Some(row), Some(ns)) = (report.rows.first(), report.meta.limits.udp_pingpong_ns) else {
        return Ok(());
    };
    output.say(format!(
        "# {} B: {:.2} x a ping-pong of plain UDP sockets ({ns:.0} ns)",
        row.size_bytes,
        row.p50_us * 1e3 / ns
    ))
}
