//! Tests of `ringbell hll` for scripts.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use ringbell::engines::hll::{HashKind, Sketch};

fn ringbell(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("the program does not start: {e}"));
    // A program that refuses its arguments does not read.
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("ends")
}

fn json(output: &Output) -> serde_json::Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn temporary(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// `n` items from `from` on, each twice.
fn twice(from: u64, n: u64) -> Vec<u8> {
    let once = (from..from + n).flat_map(u64::to_le_bytes);
    once.clone().chain(once).collect()
}

#[test]
fn a_stream_through_two_nics_gives_the_sketch_of_its_items() {
    for transport in ["local", "tcp"] {
        let file = temporary(&format!("hll-{transport}.sketch"));
        let name = file.display().to_string();
        let data = twice(7, 60_000);
        let mut args = vec!["hll", "--width", "8", "--precision", "12", "--json"];
        args.extend([
            "--transport",
            transport,
            "--message",
            "64K",
            "--sketch",
            &name,
        ]);
        let out = json(&ringbell(&args, &data));
        assert_eq!(out["items"], 120_000);
        assert_eq!(out["transport"], transport);
        let estimate = out["estimate"].as_f64().expect("a number");
        assert!((estimate / 60_000.0 - 1.0).abs() < 0.08, "{estimate}");
        // 960,000 bytes fill the ring of messages: both speeds were measured.
        assert!(out["algbw_gbs"].as_f64() > Some(0.0) && out["stream_gbs"].as_f64() > Some(0.0));
        let mut model = Sketch::new(12, HashKind::Mix, 8).expect("in range");
        model.update(&data);
        let kept = Sketch::read(&std::fs::read(file).expect("written")).expect("a sketch");
        assert!(kept.registers() == model.registers());
    }
}

#[test]
fn the_kernel_of_the_gpu_counts_as_the_engine_does() {
    // 1 to 512 lanes, more and fewer blocks than cores, messages that cut items; the last stream
    // ends inside an item. All but the first are shorter than the ring of messages, so that no
    // speed is measured.
    let cases = [
        ("local", "mix", 4, "1", "1", "64K", 0),
        ("tcp", "murmur3", 8, "5", "32", "128K", 0),
        ("local", "datasketches", 4, "8", "512", "131071", 0),
        ("tcp", "datasketches-bytes", 2, "3", "7", "256K", 1),
    ];
    for (transport, hash, width, blocks, lanes, message, cut) in cases {
        let mut data = twice(11, 60_000);
        data.truncate(data.len() - cut);
        let w = width.to_string();
        let count = |more: &[&str]| {
            let file = temporary(&format!("hll-{hash}-{}.sketch", more.len()));
            let name = file.display().to_string();
            let mut args = vec!["hll", "--width", &w, "--precision", "11", "--json"];
            args.extend(["--hash", hash, "--transport", transport]);
            args.extend(["--message", message, "--sketch", &name]);
            args.extend(more);
            let output = ringbell(&args, &data);
            let told = String::from_utf8_lossy(&output.stderr).contains("ends inside an item");
            assert_eq!(told, cut > 0, "{args:?}");
            let kept = Sketch::read(&std::fs::read(file).expect("written")).expect("a sketch");
            (json(&output), kept)
        };
        let (_, engine) = count(&[]);
        let (out, kernel) = count(&["--gpu-kernel", "--blocks", blocks, "--lanes", lanes]);
        assert!(kernel.registers() == engine.registers(), "{hash} {width}");
        // JSON may round the last digit.
        let estimate = out["estimate"].as_f64().expect("a number");
        let expected = engine.estimate_from_registers();
        assert!(
            (estimate / expected - 1.0).abs() < 1e-12,
            "{estimate} {expected}"
        );
        assert_eq!(out["items"], data.len() / width);
        assert_eq!(out["counted_by"], "gpu kernel");
        assert_eq!(out["blocks"].to_string(), blocks);
        assert_eq!(out["lanes"].to_string(), lanes);
        assert_eq!(out["kernel_gbs"].as_f64() > Some(0.0), hash == "mix");
    }
}

#[test]
fn sketches_merge_and_convert_to_datasketches() {
    let names: Vec<String> = ["a", "b", "all"]
        .map(|n| temporary(&format!("merge-{n}")).display().to_string())
        .to_vec();
    for (i, form) in ["hll8", "ringbell"].into_iter().enumerate() {
        let data = twice(i as u64 * 10_000, 20_000);
        let mut args = vec!["hll", "-", "--width", "8", "--hash", "datasketches"];
        args.extend(["--sketch", &names[i], "--form", form, "--json"]);
        assert_eq!(json(&ringbell(&args, &data))["items"], 40_000);
    }
    let merge = [
        "hll", "merge", &names[0], &names[1], "--sketch", &names[2], "--json",
    ];
    let out = json(&ringbell(&merge, b""));
    let estimate = out["estimate"].as_f64().expect("a number");
    assert!((estimate / 30_000.0 - 1.0).abs() < 0.05, "{estimate}");
    let again = json(&ringbell(&["hll", "merge", &names[2], "--json"], b""));
    assert_eq!(again["sketches"], 1);
}

#[test]
fn bad_input_is_reported_with_a_remedy() {
    let cut = ringbell(&["hll", "--width", "4"], b"12345");
    assert_eq!(cut.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&cut.stderr).contains("ends inside an item"));
    let garbage = temporary("no-sketch");
    std::fs::write(&garbage, b"RBHLnonsense").expect("written");
    let garbage = garbage.display().to_string();
    for (args, part) in [
        (&["hll", "--precision", "3"][..], "4 to 18"),
        (&["hll", "--width", "3"], "1, 2, 4, 8 or 16"),
        (&["hll", "--hash", "md5"], "murmur3"),
        (&["hll", "--gpu-kernel", "--blocks", "0"], "1..=1024"),
        (&["hll", "--blocks", "2"], "--gpu-kernel"),
        (&["hll", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["hll", "merge", &garbage], "no-sketch"),
    ] {
        let out = ringbell(args, b"");
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(part), "{args:?}: {errors}");
    }
}

#[test]
fn the_sweep_verifies_and_reports_engine_stream_and_both() {
    let svg = temporary("hll.svg");
    let name = svg.display().to_string();
    let mut args = vec![
        "perf", "hll", "-b", "4K", "-e", "64K", "-f", "16", "-n", "40",
    ];
    args.extend(["--gpu-kernel", "--blocks", "2", "--lanes", "64"]);
    args.extend(["--json", "-", "--svg", &name]);
    let report = json(&ringbell(&args, b""));
    assert_eq!(report["meta"]["benchmark"], "hll");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["wrong"], 0);
        for key in ["engine_gbs", "stream_gbs", "algbw_gbs", "kernel_gbs"] {
            assert!(row[key].as_f64() > Some(0.0), "{key}");
        }
    }
    let drawn = std::fs::read_to_string(&svg).expect("drawn");
    for curve in ["engine on", "engine off", "engine alone", "gpu kernel"] {
        assert!(drawn.contains(curve), "{curve}");
    }
}

#[test]
fn engines_beside_the_copy_give_the_registers_of_one_thread() {
    for thread in ["off", "auto", "always"] {
        let mut args = vec!["perf", "hll", "-b", "1M", "-e", "1M", "-n", "20"];
        args.extend(["--engine-thread", thread, "--json", "-"]);
        let report = json(&ringbell(&args, b""));
        assert_eq!(report["rows"][0]["wrong"], 0, "{thread}");
    }
    let refused = ringbell(&["perf", "hll", "--engine-thread", "there"], b"");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("choose auto, off or always"), "{said}");
}

/// A shell command's result for a file: one number.
fn told(shell: &str) -> f64 {
    let out = Command::new("sh")
        .env("LC_ALL", "C")
        .args(["-c", shell])
        .output();
    let out = out.expect("a shell");
    assert!(
        out.status.success(),
        "{shell}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout)
        .trim()
        .parse()
        .expect("a number")
}

/// `lines` lines of five columns; every seventh is empty, every eleventh has two columns. The
/// values of a column repeat.
fn table(lines: u64, last_ends: bool) -> Vec<u8> {
    let mut text = String::new();
    for i in 0..lines {
        let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        match i {
            i if i % 7 == 3 => {}
            i if i % 11 == 5 => text.push_str(&format!("{i},short")),
            _ => text.push_str(&format!(
                "{},user-{},{},,größe {key}",
                i / 3,
                key % 9_000,
                i % 50
            )),
        }
        if i + 1 < lines || last_ends {
            text.push('\n');
        }
    }
    text.into_bytes()
}

#[test]
fn lines_and_columns_are_counted_as_sort_and_awk_do() {
    for (name, lines, last_ends) in [("ends", 40_000, true), ("open", 25_002, false)] {
        let file = temporary(&format!("table-{name}.csv"));
        std::fs::write(&file, table(lines, last_ends)).expect("written");
        let path = file.display().to_string();
        let count =
            |more: &[&str]| json(&ringbell(&[&["hll", &path, "--json"], more].concat(), b""));
        let awk = |n: u32| format!("awk -F, 'NF>={n}{{print ${n}}}' '{path}'");
        let mut cases = vec![(vec!["--lines".to_string()], format!("cat '{path}'"))];
        for n in [1, 2, 3, 4, 5] {
            let args = ["--column", &n.to_string(), "--delimiter", ","];
            cases.push((args.map(str::to_owned).to_vec(), awk(n)));
        }
        for (args, items) in cases {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            // awk and sort end a last line themselves, which `wc` counts.
            let all = told(&format!("{items} | awk 1 | wc -l"));
            let distinct = told(&format!("{items} | awk 1 | sort -u | wc -l"));
            for more in [
                &[][..],
                &["--message", "1009"],
                &["--hash", "datasketches-bytes"],
                &["--transport", "tcp"],
            ] {
                let out = count(&[&args[..], more].concat());
                assert_eq!(out["items"].as_f64(), Some(all), "{args:?} {more:?}");
                let (estimate, error) = (out["estimate"].as_f64(), out["relative_error"].as_f64());
                let off = estimate.expect("a number") / distinct - 1.0;
                assert!(
                    off.abs() <= 4.0 * error.expect("a number"),
                    "{args:?} {more:?}: {out} {distinct}"
                );
                let missing = told(&format!("cat '{path}' | awk 1 | wc -l")) - all;
                assert_eq!(out["lines_without_column"].as_f64(), Some(missing));
            }
        }
    }
}

#[test]
fn a_line_may_be_longer_than_any_message() {
    // Two lines that differ in their last byte alone, and one of them again.
    let mut text = Vec::new();
    for last in [b'x', b'y', b'x'] {
        text.extend(std::iter::repeat_n(b'a', 3 << 20));
        text.extend([last, b'\r', b'\n']);
    }
    let out = json(&ringbell(
        &["hll", "--lines", "--json", "--message", "64K"],
        &text,
    ));
    assert_eq!(
        (
            out["items"].as_u64(),
            out["estimate"].as_f64().map(f64::round)
        ),
        (Some(3), Some(2.0))
    );
}

#[test]
fn text_counted_in_windows_gets_a_warning() {
    let warned = |args: &[&str], input: &[u8]| {
        let out = ringbell(args, input);
        assert_eq!(out.status.code(), Some(0));
        String::from_utf8_lossy(&out.stderr).contains("looks like text")
    };
    let text = b"alpha\nbeta\nalpha\nabc\n";
    assert!(warned(&["hll"], text));
    assert!(!warned(&["hll", "--lines"], text));
    assert!(!warned(&["hll", "--column", "1"], text));
    assert!(!warned(&["hll", "--width", "1"], text));
    assert!(!warned(&["hll"], &twice(1 << 60, 100)));
    for (args, part) in [
        (
            &["hll", "--lines", "--hash", "mix"][..],
            "murmur3 or datasketches-bytes",
        ),
        (
            &["hll", "--lines", "--hash", "datasketches"],
            "datasketches-bytes",
        ),
        (&["hll", "--lines", "--width", "8"], "--width"),
        (&["hll", "--lines", "--column", "1"], "--column"),
        (&["hll", "--lines", "--gpu-kernel"], "--gpu-kernel"),
        (&["hll", "--lines", "--precision", "19"], "4 to 18"),
        (&["hll", "--delimiter", ","], "--column"),
        (&["hll", "--column", "0"], "--column"),
        (&["hll", "--column", "1", "--delimiter", "::"], "one byte"),
        (
            &["hll", "--form", "hll8", "--sketch", "never-written"],
            "datasketches-bytes",
        ),
        (
            &["hll", "merge", "x", "--hash", "mix"],
            "datasketches-bytes",
        ),
        (&["hll", "/"], "directory"),
    ] {
        let out = ringbell(args, text);
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(part), "{args:?}: {errors}");
    }
}

#[test]
fn sketches_of_strings_merge_with_those_of_datasketches() {
    let names = ["own", "foreign", "both"]
        .map(|n| temporary(&format!("strings-{n}")).display().to_string());
    let lines = |from: u32| -> Vec<u8> {
        (from..from + 20_000)
            .flat_map(|i| format!("line {i}\n").into_bytes())
            .collect()
    };
    let keep = [
        "hll",
        "--lines",
        "--hash",
        "datasketches-bytes",
        "--json",
        "--sketch",
    ];
    json(&ringbell(&[&keep[..], &[&names[0]]].concat(), &lines(0)));
    json(&ringbell(
        &[&keep[..], &[&names[1], "--form", "hll8"]].concat(),
        &lines(10_000),
    ));
    // Without the hash's name the other file counts as one of numbers.
    let merge = ["hll", "merge", &names[0], &names[1], "--json"];
    let refused = ringbell(&merge, b"");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--hash"));
    let more = [
        "--hash",
        "datasketches-bytes",
        "--sketch",
        &names[2],
        "--form",
        "hll4",
    ];
    let out = json(&ringbell(&[&merge[..], &more].concat(), b""));
    let estimate = out["estimate"].as_f64().expect("a number");
    assert!((estimate / 30_000.0 - 1.0).abs() < 0.03, "{estimate}");
    assert_eq!(out["hash"], "datasketches-bytes");
}
