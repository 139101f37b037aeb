//! TCP over the in-memory port against a bare smoltcp pair on the same port, and many connections
//! against one. One thread steps both ends; runs are interleaved and medians compared.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench tcp [-- --json]`
#![allow(clippy::disallowed_methods)] // A benchmark reads the clock.

use std::time::Instant as Clock;

use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;

mod tcp {
    pub(crate) mod bare;
    pub(crate) mod ours;
}

use tcp::bare::Bare;
use tcp::ours::Ours;

const ROUNDS: usize = 9;
const MESSAGE: usize = 1 << 20;
const BYTES: usize = 256 << 20;

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

/// GB/s of one run, and how many of its bytes were wrong.
fn timed(run: impl FnOnce() -> (usize, usize)) -> (f64, usize) {
    let start = Clock::now();
    let (bytes, wrong) = run();
    (bytes as f64 / start.elapsed().as_secs_f64() / 1e9, wrong)
}

struct Row {
    name: String,
    ours: f64,
    peer: f64,
    wrong: usize,
    target: f64,
}

fn switch(mtu: usize, checksums: Checksums) -> MemSwitch {
    MemSwitch::private(2, mtu, checksums).expect("numbers in range")
}

fn against_bare(mtu: usize, checksums: Checksums) -> Row {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    let mut wrong = 0;
    let mut a = Ours::new(&switch(mtu, checksums), 1, 256 << 10);
    let mut b = Bare::new(mtu, checksums, 256 << 10);
    for round in 0..=ROUNDS {
        let (x, wx) = timed(|| a.stream(0, BYTES, MESSAGE));
        let (y, wy) = timed(|| b.stream(BYTES, MESSAGE));
        wrong += wx + wy;
        // The first round warms up.
        if round > 0 {
            ours.push(x);
            bare.push(y);
        }
    }
    Row {
        name: format!("MTU {mtu}, checksums {checksums:?}: ours / bare smoltcp"),
        ours: median(ours),
        peer: median(bare),
        wrong,
        target: 1.0,
    }
}

fn against_one(connections: usize, all: bool, buffer: usize, message: usize) -> Row {
    let (mut many, mut one) = (Vec::new(), Vec::new());
    let mut wrong = 0;
    let mut a = Ours::new(&switch(1500, Checksums::Omitted), connections, buffer);
    let mut b = Ours::new(&switch(1500, Checksums::Omitted), 1, buffer);
    for round in 0..=ROUNDS {
        let (x, wx) = timed(|| match all {
            true => a.round_robin(BYTES, message),
            false => a.stream(connections / 2, BYTES, message),
        });
        let (y, wy) = timed(|| b.stream(0, BYTES, message));
        wrong += wx + wy;
        if round > 0 {
            many.push(x);
            one.push(y);
        }
    }
    let active = if all { "all" } else { "one" };
    Row {
        name: format!(
            "{connections} connections of {} KiB, {active} active, {} KiB messages / one",
            buffer >> 10,
            message >> 10
        ),
        ours: median(many),
        peer: median(one),
        wrong,
        target: 0.8,
    }
}

fn main() {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    let json = std::env::args().any(|a| a == "--json");
    // Further arguments choose cases by a part of their name.
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .collect();
    let chosen = |name: &str| only.is_empty() || only.iter().any(|o| name.contains(o.as_str()));
    let mut rows = Vec::new();
    for mtu in [1500, 9000] {
        for checksums in [Checksums::Omitted, Checksums::Software] {
            if chosen(&format!("{mtu} {checksums:?}")) {
                rows.push(against_bare(mtu, checksums));
            }
        }
    }
    // 1,000 connections of 256 KiB are 512 MB of buffers, which no cache holds; with smaller
    // buffers and messages the cost of a connection itself shows.
    for (all, buffer, message) in [
        (false, 256, 64),
        (true, 256, 64),
        (true, 64, 64),
        (true, 16, 16),
        (true, 16, 8),
    ] {
        if chosen(if all { "many all" } else { "many one" }) {
            rows.push(against_one(1000, all, buffer << 10, message << 10));
        }
    }
    println!(
        "{:<66} {:>7} {:>7} {:>6} {:>7} {:>7}",
        "what", "GB/s", "peer", "ratio", "target", "#wrong"
    );
    for r in &rows {
        let ratio = r.ours / r.peer;
        println!(
            "{:<66} {:>7.2} {:>7.2} {:>6.2} {:>7.2} {:>7}",
            r.name, r.ours, r.peer, ratio, r.target, r.wrong
        );
        if json {
            println!(
                "{{\"name\":\"{}\",\"gbs\":{:.3},\"peer_gbs\":{:.3},\"ratio\":{ratio:.3},\"wrong\":{}}}",
                r.name, r.ours, r.peer, r.wrong
            );
        }
    }
    if rows.iter().any(|r| r.wrong > 0) {
        std::process::exit(1);
    }
}
