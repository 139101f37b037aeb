//! `ringbell hll`, as a script meets it.

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
    // 1 to 512 lanes, more and fewer blocks than cores, messages that cut items; the last stream ends inside
    // an item. All but the first are shorter than the ring of messages, so that no speed is measured.
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
fn sketches_merge_and_speak_datasketches() {
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
fn bad_input_says_what_to_do() {
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
