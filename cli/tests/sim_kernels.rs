//! `ringbell sim run`: what kernels print, faults, files, its report as JSON, and the command that
//! repeats a run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const RING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/30_simulated_kernel/ring.ptx"
);

fn sim(args: &[impl AsRef<OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    let done = command.arg("sim").args(args).output();
    done.expect("the program starts")
}

/// A kernel of the example with these options.
fn run(options: &[&str], kernel: &str) -> Output {
    sim(&[&["run"], options, &["--", RING, kernel]].concat())
}

/// What it said, and its code.
fn said(out: &Output) -> (String, Option<i32>) {
    let of = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (of(&out.stdout) + &of(&out.stderr), out.status.code())
}

/// Its report, and its code.
fn report(options: &[&str], kernel: &str) -> (Value, Option<i32>) {
    let out = run(&[options, &["--json"]].concat(), kernel);
    let json = serde_json::from_slice(&out.stdout);
    (
        json.unwrap_or_else(|e| panic!("{e}: {out:?}")),
        out.status.code(),
    )
}

#[test]
fn a_kernel_of_a_file_runs_on_each_rank_and_a_failure_names_its_command() {
    let out = run(&["-R", "3", "--block", "32"], "ring");
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let text = String::from_utf8_lossy(&out.stdout);
    for rank in 0..3 {
        let line = format!("[{rank}] 5461 values are right");
        assert!(text.lines().any(|l| l == line), "{text}");
    }
    let seeds = run(&["--seeds", "3", "-R", "2"], "ring");
    let text = String::from_utf8_lossy(&seeds.stdout);
    assert_eq!(
        (seeds.status.code(), text.lines().count()),
        (Some(0), 3),
        "{text}"
    );
    let out = run(&["--seed", "4", "--seeds=3", "--deadline", "1ms"], "lost");
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let text = String::from_utf8_lossy(&out.stderr);
    let again = format!("`ringbell sim run --deadline 1ms --seed 4 -- {RING} lost`");
    assert!(text.contains(&again), "{text}");
    assert!(
        text.contains("rank 0:\n  block (0,0,0): thread 0 "),
        "{text}"
    );
}

const HALO: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/16_halo_exchange/halo.ptx"
);

#[test]
fn words_behind_a_kernels_name_are_its_arguments_and_its_memory_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = |name: &str| dir.path().join(name).display().to_string();
    // One row of three values on each rank: signals, then two grids of three rows.
    let grids = |rank: u32| {
        let values = [10.0, rank as f32, 30.0].repeat(3);
        let both: Vec<u8> = values
            .repeat(2)
            .into_iter()
            .flat_map(f32::to_le_bytes)
            .collect();
        [vec![0; 64], both].concat()
    };
    for rank in 0..2 {
        std::fs::write(path(&format!("in{rank}")), grids(rank)).expect("written");
    }
    let halo = |more: &[&str], arguments: &str| {
        let options = ["run", "--block", "4", "--buffer", "4K"];
        let arguments: Vec<&str> = arguments.split(' ').collect();
        sim(&[&options[..], more, &["--", HALO, "halo"], &arguments].concat())
    };
    let (input, dump) = (path("in{rank}"), path("left"));
    let out = halo(
        &["--contents", &input, "--dump", &dump, "--loss", "0.05"],
        "comm window buffer 1 3 1 1000000 zeros:24",
    );
    assert_eq!(said(&out).1, Some(0), "{out:?}");
    for rank in 0..2_u32 {
        let left = std::fs::read(path(&format!("left/{rank}.buffer"))).expect("it is there");
        assert_eq!(left.len(), 4096);
        // The own row of the second grid after one step.
        let at = 64 + 4 * (9 + 3 + 1);
        let value = f32::from_le_bytes(left[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(value, 0.25 * ((rank + rank) as f32 + 40.0));
        let end = std::fs::read(path(&format!("left/{rank}.zeros1"))).expect("it is there");
        // Its status.
        assert_eq!((&end[..4], end.len()), (&[0; 4][..], 24));
    }
    for (more, arguments, why) in [
        (
            &[][..],
            "comm",
            "`halo` has 8 parameters, and 1 arguments are given",
        ),
        (&[], "comm windows", "`windows` is no argument of a kernel"),
        (
            &["--contents", "/nowhere/{rank}"],
            "comm",
            "/nowhere/0, for --contents",
        ),
        (&["--block-queues", "64"], "comm", "at most 63 blocks"),
    ] {
        let (text, code) = said(&halo(more, arguments));
        assert!(text.contains(why), "{text}");
        assert_eq!(
            code,
            Some(if why.contains("nowhere") { 1 } else { 2 }),
            "{text}"
        );
    }
}

#[test]
fn the_command_that_repeats_a_run_is_one_of_a_shell() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["a b.ptx", "it's $HOME.ptx", "\"x\";`y`&.ptx"] {
        let file = dir.path().join(name);
        std::fs::copy(RING, &file).expect("copied");
        let file = file.to_str().expect("text");
        let out = sim(&["run", "--seeds", "2", "--seed", "9", "--", file, "hangs"]);
        let first = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{first}");
        let (_, command) = first.split_once("what to do: `").expect("a command");
        let (command, _) = command.rsplit_once("` runs seed 9 again").expect("its end");
        let binary = Path::new(env!("CARGO_BIN_EXE_ringbell"));
        let command = command.replacen("ringbell", binary.to_str().expect("text"), 1);
        let again = Command::new("sh").args(["-c", &command]).output();
        let again = again.expect("a shell");
        assert_eq!(again.status.code(), Some(1), "{command}: {again:?}");
        let hash = |out: &Output| {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let (_, hash) = text.rsplit_once("hash ").expect("a digest");
            hash.to_owned()
        };
        assert_eq!(hash(&again), hash(&out), "{command}");
    }
    // A name that is no text.
    let mut file = dir.path().join("x").into_os_string().into_vec();
    file.push(0xff);
    let file = OsString::from_vec(file);
    std::fs::copy(RING, &file).expect("copied");
    let options = ["run", "--deadline", "1ms", "--"].map(OsString::from);
    let out = sim(&[&options[..], &[file, "hangs".into()]].concat());
    let (text, code) = said(&out);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("runs seed 0 again"), "{text}");
}

#[test]
fn the_living_say_who_died_and_the_report_too() {
    for (ranks, dead) in [(3, 1), (5, 4)] {
        let kill = format!("{dead}@40us");
        let of_ranks = ranks.to_string();
        let (text, code) = said(&run(&["-R", &of_ranks, "--kill", &kill], "outlives"));
        assert_eq!(code, Some(0), "{text}");
        let line = format!("# rank {dead} killed at 40.000 us");
        assert!(text.lines().any(|l| l == line), "{text}");
        for rank in 0..ranks {
            let begin = format!("[{rank}] rank {dead} died before sum ");
            let said = text.lines().filter(|l| l.starts_with(&begin)).count();
            assert_eq!(said, usize::from(rank != dead), "{text}");
        }
    }
    // At once; behind the end; all but one; and the one wire of a rank.
    for (options, broken) in [
        (&["--kill", "0@0ns"][..], 1),
        (&["--kill", "0@59s"], 0),
        (&["--kill", "0@9us", "--kill", "1@0.5us"], 2),
        (&["--cut", "n1-s0@30us"], 1),
    ] {
        let options = [&["-R", "3"], options].concat();
        let (whole, code) = report(&options, "outlives");
        let run = &whole["runs"][0];
        assert_eq!((code, &run["trouble"]), (Some(0), &Value::Null), "{run}");
        let list = run["broken"].as_array().expect("a list");
        assert_eq!(list.len(), broken, "{run}");
        let printed = run["printed"].as_array().expect("a list");
        let died = list.iter().filter(|b| b["rank"].is_u64()).count();
        assert_eq!(printed.len(), 3 - died, "{run}");
        for said in printed {
            let line = said["line"].as_str().expect("a line");
            assert_eq!(line == "all live", broken == 0, "{run}");
        }
        let (again, _) = report(&options, "outlives");
        assert_eq!(again["runs"][0]["hash"], run["hash"], "{run}");
    }
}

#[test]
fn captures_and_a_timeline_change_nothing_and_show_the_kernels() {
    let dir = tempfile::tempdir().expect("a folder");
    let [timeline, capture] = ["t.json", "c.pcapng"].map(|name| dir.path().join(name));
    let [trace, pcap] = [&timeline, &capture].map(|file| file.to_str().expect("text"));
    let pcap = format!("1={pcap}");
    for fault in [&["--kill", "2@50us"][..], &["--kill", "0@0us"], &[]] {
        let plain = [&["-R", "3", "--seed", "3"], fault].concat();
        let (whole, _) = report(&plain, "outlives");
        let watched = [&plain[..], &["--trace", trace, "--pcap", &pcap]].concat();
        let (seen, _) = report(&watched, "outlives");
        let mut runs = [&whole["runs"][0], &seen["runs"][0]].map(Value::clone);
        for run in &mut runs {
            run["wall_s"].take();
        }
        assert_eq!(runs[0], runs[1]);
        let text = std::fs::read(&timeline).expect("a file");
        let json: Value = serde_json::from_slice(&text).expect("JSON");
        let entries = json["traceEvents"].as_array().expect("a list");
        let named = |name: &str| entries.iter().filter(|e| e["name"] == name).count();
        let (ended, killed) = match fault {
            [] => (3, 0),
            // One that died before its begin has no life.
            [_, "0@0us"] => (2, 0),
            _ => (2, 1),
        };
        assert_eq!(
            (named("outlives"), named("outlives: killed")),
            (ended, killed)
        );
        assert!(named("1 operation") >= ended, "{fault:?}");
        // All ranks send to each, so each receives.
        let frames = std::fs::metadata(&capture).expect("a file").len();
        assert!(frames > 10_000, "{fault:?}: {frames}");
    }
    // Of many runs the last is left.
    let many = ["--seeds", "2", "--trace", trace, "--pcap", &pcap];
    let (text, code) = said(&run(&many, "ring"));
    assert_eq!(code, Some(0), "{text}");
    let of_many = [&timeline, &capture].map(|file| std::fs::read(file).expect("a file"));
    let last = ["--seed", "1", "--trace", trace, "--pcap", &pcap];
    let (text, code) = said(&run(&last, "ring"));
    assert_eq!(code, Some(0), "{text}");
    let of_last = [&timeline, &capture].map(|file| std::fs::read(file).expect("a file"));
    assert!(of_many == of_last);
}

#[test]
fn a_report_as_json_has_all_runs_and_what_went_wrong() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("report.json");
    let path = file.to_str().expect("text");
    let options = ["-R", "3", "--seeds", "3", "--seed", "5", "--block", "32"];
    let out = run(&[&options[..], &["--json", path]].concat(), "ring");
    assert_eq!(
        (out.status.code(), out.stdout.len()),
        (Some(0), 0),
        "{out:?}"
    );
    let whole: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    assert_eq!((&whole["ranks"], &whole["block"]), (&3.into(), &32.into()));
    let runs = whole["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 3);
    for (run, seed) in runs.iter().zip(5_u64..) {
        assert_eq!(
            (&run["kernel"], &run["seed"]),
            (&"ring".into(), &seed.into())
        );
        assert_eq!(run["buffers"].as_array().map(Vec::len), Some(3), "{run}");
        assert_eq!(run["printed"][0]["line"], "5461 values are right");
        let options = ["-R", "3", "--seed", &seed.to_string(), "--block", "32"];
        let (text, _) = said(&self::run(&options, "ring"));
        let hash = run["hash"].as_str().expect("a digest");
        assert!(text.contains(&format!("hash {hash}")), "{text}");
    }

    let hang = [
        "-R",
        "3",
        "--seeds",
        "4",
        "--kill",
        "2@10us",
        "--deadline",
        "1ms",
    ];
    let (whole, code) = report(&hang, "hangs");
    let runs = whole["runs"].as_array().expect("a list");
    assert_eq!((code, runs.len()), (Some(1), 1), "{whole}");
    let trouble = &runs[0]["trouble"];
    assert_eq!(
        trouble["hung"].as_array().map(Vec::len),
        Some(1),
        "{trouble}"
    );
    assert_eq!(
        (&trouble["hung"][0]["rank"], &trouble["is_over"]),
        (&0.into(), &false.into())
    );
    assert_eq!(runs[0]["broken"], whole["faults"]);
    let (text, _) = said(&run(&hang, "hangs"));
    let told = "kernels of 1 ranks have not ended\nrank 2 killed at 10.000 us\nrank 0:\n";
    assert!(text.contains(told), "{text}");

    let (whole, code) = report(&["-R", "2", "--kill", "1@10us"], "lost");
    let failed = &whole["runs"][0]["trouble"]["failed"];
    assert_eq!((code, &failed["rank"]), (Some(1), &0.into()), "{whole}");
    assert!(
        failed["why"]
            .as_str()
            .is_some_and(|w| w.contains("ring.ptx:")),
        "{failed}"
    );

    // The largest seed, and the one behind it.
    let last = u64::MAX.to_string();
    let (whole, code) = report(&["--seed", &last, "--seeds", "2"], "order");
    let seeds = [0, 1].map(|i| whole["runs"][i]["seed"].as_u64());
    assert_eq!((code, seeds), (Some(0), [Some(u64::MAX), Some(0)]));
}

#[test]
fn faults_and_files_that_cannot_be_are_refused() {
    for (options, code, named) in [
        (
            &["--kill", "3@1us"][..],
            2,
            "rank 3 is to break, and there are 3 ranks",
        ),
        (&["--kill", "1@1"], 2, "a time in ns, us, ms or s"),
        (
            &["--cut", "n1-s1@1us"],
            2,
            "no wire of one switch is named n1-s1",
        ),
        (
            &["--pcap", "3=/dev/null"],
            2,
            "there is no rank 3 to capture",
        ),
        (&["--pcap", "0=/nowhere/a"], 1, "cannot write /nowhere/a"),
        (
            &["--pcap", "0=/dev/full"],
            1,
            "cannot write all of /dev/full",
        ),
        (&["--trace", "/nowhere/a"], 1, "cannot write /nowhere/a"),
        (
            &["--trace", "/dev/full"],
            1,
            "the timeline cannot be written",
        ),
        (
            &["--json", "/nowhere/a"],
            1,
            "cannot write /nowhere/a; check the path given to --json",
        ),
    ] {
        let (text, is) = said(&run(&[&["-R", "3"], options].concat(), "order"));
        assert_eq!(is, Some(code), "{options:?}: {text}");
        assert!(text.contains(named), "{options:?}: {text}");
    }
}
