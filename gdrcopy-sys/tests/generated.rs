//! The bindings against what bindgen makes of the header: `cargo test -p gdrcopy-sys --features
//! bindgen --test all generated`.
//!
//! With `GDRCOPY_UPDATE=1` it writes them.

use std::path::Path;

use gdrcopy_sys::{generate, GenerateError};

/// Without the line that names bindgen's version.
fn body(text: &str) -> &str {
    text.split_once('\n').map_or(text, |(_, rest)| rest)
}

#[test]
fn the_bindings_are_what_bindgen_makes_of_the_header() {
    let text = match generate() {
        Ok(text) => text,
        Err(why @ GenerateError::NoClang(_)) => {
            eprintln!("skipped: {why}");
            return;
        }
        Err(why) => panic!("{why}"),
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bindings.rs");
    if std::env::var_os("GDRCOPY_UPDATE").is_some() {
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("it is there");
    assert!(
        body(&kept) == body(&text),
        "src/bindings.rs is not what bindgen makes of abi/gdrapi.h; GDRCOPY_UPDATE=1 in front of this command writes it"
    );
}
