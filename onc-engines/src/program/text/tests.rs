use proptest::prelude::*;
use ringbell_nic_abi::CollectiveKind;

use super::*;
use crate::program::{algorithms, generate_all};

#[test]
fn every_program_survives_being_written_and_read() {
    for kind in CollectiveKind::ALL {
        for algo in algorithms(*kind) {
            for (ranks, root) in [(1, 0), (2, 1), (5, 3)] {
                let mut programs = generate_all(*kind, *algo, ranks, root).unwrap();
                let read = parse(&format(&programs)).unwrap();
                for p in &mut programs {
                    p.algo = Algorithm::User;
                }
                assert_eq!(read, programs);
            }
        }
    }
}

#[test]
fn the_example_of_the_documentation_is_the_ring() {
    let source = include_str!("../text.rs");
    let example: String = source
        .lines()
        .skip_while(|l| !l.ends_with("```text"))
        .skip(1)
        .take_while(|l| !l.ends_with("```"))
        .map(|l| format!("{}\n", l.trim_start_matches("//!")))
        .collect();
    let mut ring = generate_all(CollectiveKind::AllReduce, Algorithm::Ring, 2, 0).unwrap();
    for p in &mut ring {
        p.algo = Algorithm::User;
    }
    assert_eq!(parse(&example).unwrap(), ring);
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn malformed_programs_are_refused_at_their_line_and_column() {
    let head = "ringbell program 1\ncollective all-reduce\nranks 2\nblock 2\norder ring\n";
    for (text, message) in [
        (
            String::new(),
            "line 1, column 1: here is the end of the line, but `ringbell program 1` belongs here",
        ),
        (
            "# nothing but a comment\nringbell program 2".into(),
            "line 2, column 18: version 2 of the form: this program reads version 1",
        ),
        (
            "ringbell program 1\ncollective send".into(),
            "line 2, column 12: there is no collective \"send\": write broadcast, reduce, scatter, gather, all-gather, reduce-scatter, all-reduce, all-to-all or barrier",
        ),
        (
            "ringbell program 1\nranks 5000".into(),
            "line 2, column 7: 5000 is too large: at most 4096",
        ),
        (
            "ringbell program 1\ncollective barrier\nranks 0".into(),
            "line 3, column 7: 0 ranks: a program has at least one",
        ),
        (
            "ringbell program 1\nroot 1\ncollective all-gather\nranks 2\nrank 0".into(),
            "line 2, column 6: all-gather has no root: leave the line out",
        ),
        (
            "ringbell program 1\ncollective broadcast\nroot 2\nranks 2\nrank 0".into(),
            "line 3, column 6: rank 2 cannot be the root of 2 ranks: write one below 2",
        ),
        (
            "ringbell program 1\nranks 2\nrank 0".into(),
            "line 3, column 6: the header lacks a line `collective NAME`",
        ),
        (
            "ringbell program 1\n0: -> net 1".into(),
            "line 2, column 1: here is \"0:\", but a line of the header, or `rank 0` belongs here",
        ),
        (
            format!("{head}rank 0\n0: input[0 -> net 1"),
            "line 7, column 12: here is \"->\", but `]` belongs here",
        ),
        (
            format!("{head}rank 0\n  0: inputs[0] -> net 1"),
            "line 7, column 6: here is \"inputs[0]\", but `input[..]`, `output[..]`, `scratch[..]`, `net`, `peer` or `stream` belongs here",
        ),
        (
            format!("{head}rank 0\n0: input[1..1] -> net 1"),
            "line 7, column 10: the run 1..1 has no chunk",
        ),
        (
            format!("{head}rank 0\n0: net 1/256 -> output[0]"),
            "line 7, column 10: 256 is too large: at most 255",
        ),
        (
            format!("{head}rank 0\n0: input[0] -> net 1 net 1"),
            "line 7, column 22: here is \"net\", but `,` and another result, or the end of the line belongs here",
        ),
        (
            format!("{head}rank 0\n0: input[0] input[1] -> net 1"),
            "line 7, column 13: here is \"input[1]\", but `+` and an operand, or `->` and the results belongs here",
        ),
        (
            format!("{head}rank 0\n0: ->"),
            "line 7, column 1: a step without operand and result",
        ),
        (
            format!("{head}rank 0\n0: input[0] -> output[0]\n"),
            "line 7, column 1: 1 ranks have a program, the text says ranks 2: write `rank 0` to `rank 1` in order",
        ),
        (
            format!("{head}rank 1\n"),
            "line 6, column 6: 0 ranks have a program, the text says ranks 2: write `rank 0` to `rank 1` in order",
        ),
        (
            format!("{head}rank 0\nrank 1\nblock 3"),
            "line 8, column 1: here is \"block\", but a step (`ROUND: OPERANDS -> RESULTS`) or `rank` belongs here",
        ),
    ] {
        assert_eq!(refused(&text), message, "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_is_a_program_or_an_error(text: String) {
        let _ = parse(&text);
        let _ = parse(&format!("ringbell program 1\n{text}"));
    }

    #[test]
    fn pieces_of_programs_in_any_order_are_a_program_or_an_error(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "\n", " ", "ringbell program 1\n", "collective ", "all-reduce\n", "ranks 1\n", "rank 0\n",
            "block 4096\n", "root 4096\n", "order other\n", "rank 0 scratch 4294967295\n", "0: ", "input[0]",
            "output[4294967294..4294967295]", "scratch[1..2]", " + ", " -> ", ", ", "net 0", "net 7/255",
            "peer 1 ", "stream[9]", "#", "é", "4294967296",
        ]), 0..30),
    ) {
        let text = format!("ringbell program 1\n{}", pieces.concat());
        if let Ok(programs) = parse(&text) {
            prop_assert_eq!(parse(&format(&programs)), Ok(programs));
        }
    }
}
