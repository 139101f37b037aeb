//! Texts that users and environments give: a job's id, a port, addresses, engines of a stream.
//! Refused in words, or read and written again alike.
#![no_main]
#![allow(dead_code)] // Their users are not here.

#[path = "../../job/src/id.rs"]
mod id;
#[path = "../../src/spec.rs"]
mod spec;

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use ringbell_nic_core::network::Route;
use ringbell_onc_engines::stream::filter::Constant;
use ringbell_onc_engines::stream::Registry;

/// What is written is read as the same.
fn survives<T: FromStr<Err: Display> + Display + PartialEq + Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => {
            let written = value.to_string();
            let Ok(again) = written.parse::<T>() else {
                panic!("`{text}` is read as {value:?}, and `{written}` is refused");
            };
            assert_eq!(again, value);
        }
        Err(why) => assert!(!why.to_string().is_empty()),
    }
}

fuzz_target!(|text: &str| {
    survives::<id::UniqueId>(text);
    survives::<spec::PortSpec>(text);
    survives::<Route>(text);
    survives::<spec::TransportSpec>(text);
    let _ = text.parse::<spec::Cidr>();
    if let Err(why) = Registry::builtin().make(text) {
        assert!(!why.to_string().is_empty());
    }
    for ty in Constant::TYPES {
        let _ = Constant::parse(ty, text);
    }
});
