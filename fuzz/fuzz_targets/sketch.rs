//! Images of sketches, ours and Apache DataSketches': an error or a sketch that can be used, never
//! a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringbell_onc_engines::stream::hll::{DataSketchesForm, HashKind, Sketch};
use ringbell_onc_engines::stream::{split_results, Registry};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(sketch) = Sketch::read(bytes) {
        let mut image = Vec::new();
        sketch.write(&mut image);
        assert_eq!(image, bytes);
    }
    if let Ok(sketch) = Sketch::from_datasketches(bytes, HashKind::DataSketches) {
        assert!(sketch.estimate() >= 0.0);
        for form in [DataSketchesForm::Hll4, DataSketchesForm::Hll8] {
            let image = sketch.to_datasketches(form).expect("its hash is theirs");
            let again = Sketch::from_datasketches(&image, HashKind::DataSketches);
            assert_eq!(again.expect("we wrote it").registers(), sketch.registers());
        }
    }
    let _ = split_results(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Registry::builtin().make(text);
    }
});
