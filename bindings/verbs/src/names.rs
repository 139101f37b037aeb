//! Constants in words, and rates.
#![allow(unsafe_code)] // C: exported by name.

use std::ffi::{c_char, c_int, c_uint, CStr};

fn word(words: &[&'static CStr], code: usize) -> *const c_char {
    words.get(code).copied().unwrap_or(c"unknown").as_ptr()
}

/// `ibv_wc_status_str`.
#[no_mangle]
extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    const WORDS: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(&WORDS, status as usize)
}

/// `ibv_node_type_str`.
#[no_mangle]
extern "C" fn ibv_node_type_str(kind: c_int) -> *const c_char {
    match kind {
        1 => c"InfiniBand channel adapter".as_ptr(),
        _ => c"unknown".as_ptr(),
    }
}

/// `ibv_port_state_str`.
#[no_mangle]
extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    const WORDS: [&CStr; 6] = [
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    word(&WORDS, state as usize)
}

/// `ibv_event_type_str`.
#[no_mangle]
extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    const WORDS: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    word(&WORDS, event as usize)
}

/// Codes of `enum ibv_rate` with what they stand for, in multiples of 2.5 Gb/s and in Mb/s.
const RATES: [(c_uint, c_int, c_int); 24] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 6, 14_062),
    (12, 22, 56_250),
    (13, 45, 112_500),
    (14, 67, 168_750),
    (15, 10, 25_781),
    (16, 41, 103_125),
    (17, 82, 206_250),
    (18, 124, 309_375),
    (19, 11, 28_125),
    (20, 20, 50_000),
    (21, 160, 400_000),
    (22, 240, 600_000),
    (23, 320, 800_000),
    (24, 480, 1_200_000),
    (0, 0, 0),
];

/// `ibv_rate_to_mult`.
#[no_mangle]
extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATES
        .iter()
        .find(|r| r.0 == rate && rate != 0)
        .map_or(-1, |r| r.1)
}

/// `mult_to_ibv_rate`.
#[no_mangle]
extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_uint {
    RATES.iter().find(|r| r.1 == mult).map_or(0, |r| r.0)
}

/// `ibv_rate_to_mbps`.
#[no_mangle]
extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATES
        .iter()
        .find(|r| r.0 == rate && rate != 0)
        .map_or(-1, |r| r.2)
}

/// `mbps_to_ibv_rate`.
#[no_mangle]
extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATES.iter().find(|r| r.2 == mbps).map_or(0, |r| r.0)
}
