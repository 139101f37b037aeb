//! Traces that the simulator reads: schedules in GOAL, connections of htsim, files of Chakra.
//! Refused with their place, or written and read again.
#![no_main]
#![allow(dead_code)] // Their users are not here.

#[path = "../../sim/src/file_error.rs"]
mod file_error;
#[allow(unused_imports)] // Its users are not here.
#[path = "../../sim/src/goal/mod.rs"]
mod goal;

use file_error::FileError;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        match goal::Schedule::parse("a.goal", text) {
            Ok(schedule) => {
                let written = schedule.to_string();
                let again = goal::Schedule::parse("b.goal", &written);
                assert!(again.is_ok(), "`{written}`: {again:?}");
            }
            Err(why) => assert!(why.line > 0 && why.column > 0, "{why}"),
        }
    }
    // Two ranks that do the same.
    let file = |name: &str| (name.to_owned(), bytes.to_vec());
    match goal::Schedule::from_chakra(&[file("a.0.et"), file("a.1.et")]) {
        Ok(schedule) => {
            if let Ok(files) = schedule.to_chakra() {
                let files = files.into_iter().map(|f| ("b".to_owned(), f));
                let again = goal::Schedule::from_chakra(&files.collect::<Vec<_>>());
                assert!(again.is_ok(), "{again:?}");
            }
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
});
