//! Texts in GOAL that are read, written and refused.

use ringbell_gtlb::testing::Rng;
use ringbell_sim::goal::{Need, Op, Schedule, Work};

#[test]
fn every_form_of_the_grammar_is_read() {
    let text = "/* of schedgen,\n two lines */\nnum_ranks 3 // ranks\n\nrank 1 {\r\n\
                send 10b to 2\n  l1 : send 7 b to 0 tag 5 cpu 1 nic 0\nl1 irequires x_2\n\
                x_2: recv 9b from -1 tag -1 // any\nrecv 8b from 2 tag 4294967295\ncalc 12 cpu 255\n\
                l1 requires x_2\nlast: calc 0 }\nrank 0 {\n}\n";
    let op = |label: &str, line, work, cpu, needs: &[(u32, bool)]| Op {
        label: (!label.is_empty()).then(|| label.into()),
        line,
        work,
        cpu,
        needs: needs
            .iter()
            .map(|&(op, begin)| Need { op, begin })
            .collect(),
    };
    let send = |to, bytes, tag| Work::Send { to, bytes, tag };
    let recv = |from, bytes, tag| Work::Recv { from, bytes, tag };
    let schedule = Schedule::parse("a.goal", text).expect("it is right");
    let wanted = [
        vec![],
        vec![
            op("", 6, send(2, 10, 0), 0, &[]),
            op("l1", 7, send(0, 7, 5), 1, &[(2, true), (2, false)]),
            op("x_2", 9, recv(None, 9, None), 0, &[]),
            op("", 10, recv(Some(2), 8, Some(u32::MAX)), 0, &[]),
            op("", 11, Work::Calc { ns: 12 }, 255, &[]),
            op("last", 13, Work::Calc { ns: 0 }, 0, &[]),
        ],
        vec![],
    ];
    assert_eq!(schedule.ranks(), wanted);
    assert_eq!(schedule.sent(), (2, 17));
}

#[test]
fn the_word_of_a_collective_may_be_a_label() {
    let text =
        "num_ranks 1\nrank 0 {\ncoll: calc 1\ncoll Reduce_Scatter 8b cpu 3\ncoll requires coll2\n\
        coll2: coll barrier 0b\n}";
    let schedule = Schedule::parse("a.goal", text).expect("it is right");
    let ops: Vec<String> = schedule.ranks()[0]
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        ops,
        [
            "coll: calc 1",
            "coll reduce_scatter 8b",
            "coll2: coll barrier 0b"
        ]
    );
    assert_eq!(
        schedule.ranks()[0][0].needs,
        [Need {
            op: 2,
            begin: false
        }]
    );
}

#[test]
fn what_is_wrong_has_its_place_and_what_was_expected() {
    let rank = |body: &str| format!("num_ranks 2\nrank 0 {{\n{body}\n}}\n");
    let of_rank = |body: &str, wanted: &str| (rank(body), wanted.to_owned());
    for (text, wanted) in [
        ("".into(), "1:1: the end of the file, expected `num_ranks`".into()),
        ("rank 0 {\n}".into(), "1:1: `rank`, expected `num_ranks`".into()),
        ("num_ranks x".into(), "1:11: `x`, expected num_ranks, a number".into()),
        ("num_ranks 0".into(), "1:11: num_ranks is 0, expected 1 to 1048576".into()),
        ("num_ranks 99999999999999999999".into(), "1:11: num_ranks is 99999999999999999999, ".into()),
        ("num_ranks 2\nrank 2 {\n}".into(), "2:6: rank is 2, expected 0 to 1".into()),
        ("num_ranks 2\nrank 0\n{\n}".into(), "2:7: the end of the line, expected `{`".into()),
        ("num_ranks 2\nrank 0 {\n}\nrank 0 {\n}".into(), "4:6: rank 0 is there twice".into()),
        ("num_ranks 2\nrank 0 {\ncalc 5".into(), "3:7: the end of the file, expected `send`, ".into()),
        ("num_ranks 2\n/* a\n".into(), "2:1: this comment has no end, expected `*/`".into()),
        ("num_ranks 2\nranks 0".into(), "2:1: `ranks`, expected `rank`".into()),
        of_rank("snd 5b to 1", "3:5: `5`, expected `:`, `requires` or `irequires`"),
        of_rank("a: put 5b to 1", "3:4: `put`, expected `send`, `recv`, `calc` or `coll`"),
        of_rank("coll gather 5b", "3:6: `gather`, expected `all_reduce`, `all_gather`, "),
        of_rank("coll all_reduce 5", "3:18: the end of the line, expected `b` behind the size"),
        of_rank("coll reduce 5b tag 1", "3:16: `tag`, expected `cpu`, `nic` or the end of the line"),
        of_rank("send 5 to 1", "3:8: `to`, expected `b` behind the size"),
        of_rank("send 5b from 1", "3:9: `from`, expected `to`"),
        of_rank("recv 5b to 1", "3:9: `to`, expected `from`"),
        of_rank("send 5b to 2", "3:12: rank is 2, expected 0 to 1".replace("rank", "the rank").as_str()),
        of_rank("send 5b to -1", "3:12: `-`, expected the rank, a number"),
        of_rank("send 5b to 1 tag -1", "3:18: `-`, expected the tag, a number"),
        of_rank("recv 5b from -2", "3:15: `2`, expected the rank, a number or -1 for any"),
        of_rank("send 5b to 1 tag 4294967296", "3:18: the tag is 4294967296, expected 0 to 4294967295"),
        of_rank("send 5b to 1 tag 1 tag 2", "3:20: `tag`, expected `tag`, `cpu`, `nic` or the end of the line"),
        of_rank("send 5b to 1 nic 1", "3:18: nic 1 is not simulated, as a rank has one NIC; expected nic 0"),
        of_rank("calc 5 tag 1", "3:8: `tag`, expected `cpu`, `nic` or the end of the line"),
        of_rank("calc 1.5", "3:7: `.`, expected `cpu`, `nic` or the end of the line"),
        of_rank("calc 5 cpu 256", "3:12: cpu is 256, expected 0 to 255"),
        of_rank("a: calc 1\na: calc 2", "4:1: label a is there twice in its rank"),
        of_rank("a: calc 1\na requires b", "4:12: no operation of this rank has label b"),
        of_rank("a requires 5", "3:12: `5`, expected a label"),
        of_rank("a: calc 1\na requires a", "4:1: a (line 3) requires a (line 3), expected no circle"),
        of_rank(
            "a: calc 1\nb: calc 1\nc: calc 2\nd: calc 3\nc requires b\nb irequires a\na requires c\nd requires a",
            "9:1: a (line 3) requires c (line 5) requires b (line 4) requires a (line 3), expected no circle",
        ),
        of_rank("ä: calc 1", "3:1: `ä`, expected `send`, `recv`, `calc`, `coll`, a label or `}`"),
    ] {
        let error = Schedule::parse("a.goal", &text).expect_err(&text).to_string();
        let wanted = format!("a.goal:{wanted}");
        assert!(error.starts_with(&wanted), "{error}\nnot {wanted}");
    }
}

/// A schedule that a seed gives, of which nothing needs to make sense.
fn random(seed: u64) -> Schedule {
    let mut rng = Rng::new(seed);
    let mut draw = |below: u64| rng.below(below);
    let ranks = 1 + draw(5);
    let ops_of = |draw: &mut dyn FnMut(u64) -> u64| {
        let ops = (0..draw(12) as u32).map(|i| {
            let (peer, bytes, tag) = (draw(ranks) as u32, draw(1 << 20), draw(1 << 32) as u32);
            let work = match draw(3) {
                0 => Work::Send {
                    to: peer,
                    bytes,
                    tag,
                },
                1 => Work::Recv {
                    from: (draw(3) > 0).then_some(peer),
                    bytes,
                    tag: (draw(3) > 0).then_some(tag),
                },
                _ => Work::Calc { ns: bytes },
            };
            let needs = (0..i.min(draw(3) as u32)).map(|_| Need {
                op: draw(i.into()) as u32,
                begin: draw(2) == 0,
            });
            let needs = needs.collect();
            Op {
                label: Some(format!("x{}_{i}", draw(9)).into()),
                line: 0,
                work,
                cpu: draw(256) as u8,
                needs,
            }
        });
        ops.collect()
    };
    let all = (0..ranks).map(|_| ops_of(&mut draw)).collect();
    Schedule::new(all).expect("each waits for earlier ones only")
}

/// Without lines, which a schedule that was made has not.
fn without_lines(schedule: &Schedule) -> Vec<Vec<Op>> {
    let mut ranks = schedule.ranks().to_vec();
    ranks.iter_mut().flatten().for_each(|op| op.line = 0);
    ranks
}

#[test]
fn what_was_written_is_read_as_it_was() {
    for seed in 0..500 {
        let schedule = random(seed);
        let text = schedule.to_string();
        let read = Schedule::parse("a.goal", &text).expect(&text);
        assert_eq!(without_lines(&read), schedule.ranks(), "{text}");
        assert_eq!(read.to_string(), text);
    }
}

#[test]
fn damaged_texts_end_in_an_error_or_a_schedule() {
    for seed in 0..2_000 {
        let mut bytes = random(seed).to_string().into_bytes();
        let mut rng = Rng::new(!seed);
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(bytes.len() as u64) as usize;
            let with = b"{}:\n -*/b1az\xc3"[rng.below(13) as usize];
            match rng.below(3) {
                0 => bytes[at] = with,
                1 => bytes.insert(at, with),
                _ => bytes.truncate(at.max(1)),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(read) = Schedule::parse("a.goal", &text) {
            let again = Schedule::parse("a.goal", &read.to_string()).expect("it was right");
            // Where one has no label, all are numbered.
            let works = |s: &Schedule| {
                let ops = s.ranks().iter().flatten();
                ops.map(|op| (op.work, op.cpu, op.needs.clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(works(&again), works(&read), "{text}");
        }
    }
}
