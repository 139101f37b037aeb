//! Topologies, and tables with their proof, that users give: refused in words, or routed so that
//! the checker accepts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringbell_routes::check::check;
use ringbell_routes::document::Document;
use ringbell_routes::file::parse;
use ringbell_routes::generate::generate;
use ringbell_routes::route::{route, DEFAULT_CHANNELS};
use ringbell_routes::topology::Topology;

/// Larger networks take too long for many inputs.
const MOST: usize = 24;

/// Routes are accepted, and so are they after a way through JSON.
fn routed(topology: &Topology) {
    if topology.nodes().len() > MOST {
        return;
    }
    let routes = route(topology, DEFAULT_CHANNELS).expect("two channels suffice for every network");
    let judged = check(topology, &routes.tables, &routes.proof, DEFAULT_CHANNELS);
    assert!(judged.is_ok(), "{judged:?}");
    let document = Document::of(topology, &routes.tables, &routes.proof);
    let read = document.read(topology).expect("what was written");
    assert_eq!(read, (routes.tables, routes.proof));
}

fuzz_target!(|text: &str| {
    match parse("fuzz", text) {
        Ok(topology) => routed(&topology),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    match generate(text) {
        Ok(topology) => routed(&topology),
        Err(why) => assert!(!why.to_string().is_empty()),
    }
    if let Ok(document) = Document::parse(text) {
        let ring = generate("ring:4").expect("a ring");
        if let Ok((tables, proof)) = document.read(&ring) {
            if let Err(why) = check(&ring, &tables, &proof, DEFAULT_CHANNELS) {
                assert!(!why.text(&ring).is_empty());
            }
        }
    }
});
