//! Messages of a job's bootstrap, from any peer that reaches its port: refused, or read and written
//! again alike.
//!
//! Input: which message (1 byte), its bytes.
#![no_main]
#![allow(dead_code)] // The server and its members use more of the messages.

#[path = "../../job/src/bootstrap/message.rs"]
mod message;

use libfuzzer_sys::fuzz_target;
use message::{Answer, Contribution, Hello, HELLO_BYTES, RANKS_MAX};

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    match which % 3 {
        0 => {
            let hello = bytes.first_chunk::<HELLO_BYTES>();
            if let Some(hello) = hello.and_then(Hello::decode) {
                assert_eq!(hello.encode()[..], bytes[..HELLO_BYTES]);
            }
        }
        1 => {
            if let Some(c) = Contribution::decode(bytes) {
                assert!(c.part.len() <= c.kind.part_max());
                assert!(c.members.len().max(c.dead.len()) <= RANKS_MAX as usize);
                assert_eq!(c.encode(), bytes);
            }
        }
        // A text that is not UTF-8 is mended as it is read, so the second reading has to be the
        // first.
        _ => {
            if let Some(answer) = Answer::decode(bytes) {
                assert_eq!(Answer::decode(&answer.encode()), Some(answer));
            }
        }
    }
});
