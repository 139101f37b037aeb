//! Tests of the command line for users and scripts: exit codes, JSON, messages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn ringbell(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .args(args)
        .env_remove("RINGBELL_DEBUG")
        .output()
        .unwrap_or_else(|e| panic!("the program does not start: {e}"))
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn temporary(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn json_on_standard_output_is_one_object_and_the_table_moves_away() {
    let out = ringbell(&["perf", "limits", "-b", "4K", "-e", "4K", "--json", "-"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let json: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("one JSON object");
    assert_eq!(json["meta"]["benchmark"], "limits");
    assert_eq!(json["rows"][0]["size_bytes"], 4096);
    assert!(json["meta"]["limits"]["memcpy_gbs"].as_f64() > Some(0.0));
    assert!(stderr(&out).contains("algbw"));
}

#[test]
fn files_are_written_and_a_failure_names_the_file() {
    let (json, svg) = (temporary("limits.json"), temporary("limits.svg"));
    let (json_text, svg_text) = (json.display().to_string(), svg.display().to_string());
    let sweep = ["perf", "limits", "-b", "4K", "-e", "16K"];
    let out = ringbell(&[&sweep[..], &["--json", &json_text, "--svg", &svg_text]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(stdout(&out).contains("algbw"));
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(2));
    assert!(std::fs::read_to_string(&svg)
        .expect("written")
        .starts_with("<svg"));

    let nowhere = temporary("no/such/folder.json").display().to_string();
    let out = ringbell(&["perf", "limits", "-b", "4K", "-e", "4K", "--json", &nowhere]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains(&nowhere) && stderr(&out).contains("--json"));
}

#[test]
fn wrong_usage_ends_with_2_and_a_message() {
    for args in [
        &["no-such-command"][..],
        &["perf", "limits", "-b", "8X"],
        &["perf", "limits", "-b", "0"],
        &["perf", "limits", "-b", "8", "-e", "4"],
        &["perf", "limits", "-e", "2G"],
    ] {
        let out = ringbell(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", stderr(&out));
        assert!(
            !stderr(&out).is_empty() && stdout(&out).is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn an_unknown_debug_level_is_refused() {
    let out = Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .arg("regs")
        .env("RINGBELL_DEBUG", "LOUD")
        .output()
        .expect("the program starts");
    assert_eq!(out.status.code(), Some(2));
    assert!(stderr(&out).contains("INFO, DEBUG or TRACE"));
}

#[test]
fn doctor_and_regs_print_json() {
    let doctor = ringbell(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&doctor)).expect("JSON");
    let checks = json["checks"].as_array().expect("a list");
    let missing = checks.iter().any(|c| c["verdict"] == "missing");
    assert_eq!(doctor.status.code(), Some(if missing { 4 } else { 0 }));
    for name in [
        "GPU",
        "nvcc",
        "clang",
        "TAP",
        "raw sockets",
        "huge pages",
        "cores",
        "CPU features",
    ] {
        assert!(checks.iter().any(|c| c["name"] == name), "{name}");
    }

    let regs = ringbell(&["regs", "--json", "-", "magic"]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&regs)).expect("JSON");
    assert_eq!(json["registers"][0]["offset"], 0x800);
}

#[test]
fn regs_reads_and_writes_the_bar_of_a_file() {
    use ringbell::abi::bar::{Reg, BAR_BYTES, MAGIC};
    let file = temporary("bar");
    let mut bar = vec![0; BAR_BYTES];
    let registers = [
        (Reg::Magic, MAGIC),
        (Reg::AbiVersion, ringbell::abi::ABI_VERSION),
        (Reg::Backend, 3),
    ];
    for (reg, value) in registers {
        bar[reg.offset()..][..4].copy_from_slice(&u32::to_le_bytes(value));
    }
    std::fs::write(&file, &bar).expect("written");
    let path = file.to_str().expect("a name of ASCII");
    let out = ringbell(&["regs", "--bar", path, "--set", "ipv4=0x0a000001", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let json: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    assert_eq!(json["card"]["path"], path);
    assert_eq!(json["card"]["values"]["BACKEND"], 3);
    assert_eq!(json["card"]["values"]["IPV4"], 0x0a00_0001);
    // The file has the value: a card would have got it.
    let now = std::fs::read(&file).expect("still there");
    assert_eq!(now[Reg::Ipv4.offset()..][..4], [1, 0, 0, 0x0a]);
    for (args, exit, says) in [
        (&["--set", "MAGIC=1"][..], 2, "read-only"),
        (&["--set", "NOTHING=1"][..], 2, "no register"),
        (&["--pid", "1"][..], 2, "cannot be used with"),
        (
            &["--pages", "/nonexistent"][..],
            4,
            "none ships with Ringbell",
        ),
    ] {
        let out = ringbell(&[&["regs", "--bar", path], args].concat());
        assert_eq!(out.status.code(), Some(exit), "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(says), "{args:?}: {}", stderr(&out));
    }
    regs_writes_pages_and_tells_the_way_of_doorbells(&file, bar);
    std::fs::remove_file(&file).expect("still there");
    let out = ringbell(&["regs", "--bar", "ff:1f.7"]);
    assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
    assert!(stderr(&out).contains("0000:ff:1f.7"), "{}", stderr(&out));
}

/// The rest of the test above: the pages of a card's driver are written to its GTLB.
fn regs_writes_pages_and_tells_the_way_of_doorbells(file: &Path, mut bar: Vec<u8>) {
    use ringbell::abi::bar::Reg;
    use ringbell::parts::gtlb::PageTable;
    for (reg, value) in [
        (Reg::GtlbInstances, 1_u32),
        (Reg::GtlbMainEntries, 16),
        (Reg::GtlbComplementaryEntries, 64),
    ] {
        bar[reg.offset()..][..4].copy_from_slice(&value.to_le_bytes());
    }
    std::fs::write(file, &bar).expect("written");
    let (path, pages) = (file.to_str().expect("ASCII"), temporary("pages"));
    let table = PageTable {
        base: ringbell::abi::GpuVa(0x7000_0001_0000),
        pages: vec![0x1234_0000, 0x777_0000],
    };
    let encode = ringbell::parts::card::pages::FilePages::encode;
    std::fs::write(&pages, encode(&[table])).expect("written");
    let from = pages.to_str().expect("ASCII");
    let out = ringbell(&["regs", "--bar", path, "--pages", from, "--doorbells"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let said = stdout(&out);
    assert!(said.contains("GTLB: 2 pages of 64 KiB in 1 runs from 0x700000000000"));
    assert!(
        said.contains("doorbells: ") && said.contains("ring"),
        "{said}"
    );
    // The last command has pointed the group's main entry to its complementary entries.
    let now = std::fs::read(file).expect("still there");
    let word = |reg: Reg| u32::from_le_bytes(now[reg.offset()..][..4].try_into().expect("four"));
    assert_eq!((word(Reg::GtlbCommand), word(Reg::GtlbVaHi)), (3, 0x7000));
    std::fs::write(&pages, b"RBPAGES1, and then?").expect("written");
    let out = ringbell(&["regs", "--bar", path, "--pages", from]);
    assert_eq!(out.status.code(), Some(4), "{}", stderr(&out));
    assert!(stderr(&out).contains("cut off"), "{}", stderr(&out));
    std::fs::remove_file(&pages).expect("still there");
}

#[test]
fn help_names_the_exit_codes() {
    let out = ringbell(&["--help"]);
    assert_eq!(out.status.code(), Some(0));
    assert!(stdout(&out).contains("3 data was wrong"));
}

#[test]
fn doctor_names_the_function_a_driver_lacks_and_goes_on_without_it() {
    let dir = temporary("driver-old");
    std::fs::create_dir_all(&dir).expect("a folder");
    let file = dir.join("driver.c");
    std::fs::write(&file, "int cuInit(unsigned f) { return f; }").expect("written");
    // Both names: the plain one is tried first, and a machine with a CUDA toolkit has it.
    for name in ["libcuda.so", "libcuda.so.1"] {
        let built = Command::new("gcc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(dir.join(name))
            .arg(&file)
            .status()
            .expect("gcc starts");
        assert!(built.success());
    }
    let out = Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .args(["doctor", "--json"])
        .env("LD_LIBRARY_PATH", &dir)
        .output()
        .expect("the program starts");
    let json: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    let gpu = &json["checks"][0];
    assert_eq!(gpu["name"], "GPU");
    assert_eq!(gpu["used"], "emulated GPU");
    let why = gpu["why"].as_str().expect("text");
    assert!(
        why.contains("has no cuCtxGetCurrent") && why.contains("install a driver"),
        "{gpu}"
    );

    let out = Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .args(["--gpu", "cuda", "doctor"])
        .env("LD_LIBRARY_PATH", &dir)
        .output()
        .expect("the program starts");
    assert_eq!(
        out.status.code(),
        Some(4),
        "what was asked for is not there"
    );
    assert!(stdout(&out).contains("cuda:0 was asked for"));
}

#[test]
fn cc_refuses_what_it_cannot_build() {
    let dir = temporary("cc");
    std::fs::create_dir_all(&dir).expect("a folder");
    let good = dir.join("twice.cu");
    let text = "extern \"C\" __global__ void twice(int *x) { *x *= FACTOR; }\n";
    std::fs::write(&good, text).expect("written");
    let good = good.display().to_string();
    let out = ringbell(&["cc", "--no-nvcc", "no-such-file.cu"]);
    assert_eq!(out.status.code(), Some(2));
    // As it was built for the emulated GPU before.
    let module = dir.join("twice.so").display().to_string();
    let out = ringbell(&["cc", "--no-nvcc", &good, "-o", &module]);
    assert_eq!(out.status.code(), Some(2));
    assert!(stderr(&out).contains(".ptx"), "{}", stderr(&out));
    if !crate::common::has("clang-19") {
        return;
    }
    // The macro is missing: the compiler's message reaches the user.
    let out = ringbell(&["cc", "--no-nvcc", &good]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("FACTOR"));
    let out = ringbell(&["cc", &good, "--nvcc", "/no/such/nvcc", "-DFACTOR=2"]);
    assert_eq!(
        out.status.code(),
        Some(4),
        "an nvcc that was asked for is not optional"
    );
}

#[test]
fn device_benchmarks_measure_and_verify() {
    let svg = temporary("doorbell.svg");
    let svg_text = svg.display().to_string();
    let out = ringbell(&[
        "perf", "doorbell", "-n", "200", "--json", "-", "--svg", &svg_text,
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let json: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    assert_eq!(json["meta"]["parameter"], "percentile");
    let rows = json["rows"].as_array().expect("rows");
    for series in ["kernel-read", "host-read", "kernel-rung", "host-launched"] {
        let times: Vec<f64> = rows
            .iter()
            .filter(|r| r["series"] == series)
            .filter_map(|r| r["time_us"].as_f64())
            .collect();
        assert_eq!(times.len(), 7, "{series}");
        assert!(
            times.is_sorted(),
            "{series}: percentiles never fall: {times:?}"
        );
    }
    assert!(std::fs::read_to_string(&svg)
        .expect("written")
        .contains("kernel-rung"));

    let out = ringbell(&[
        "perf", "dma", "-b", "8K", "-e", "64K", "-n", "5", "--bytes", "100001", "--json", "-",
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let json: serde_json::Value = serde_json::from_str(&stdout(&out)).expect("JSON");
    let rows = json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|r| r["wrong"] == 0), "{rows:?}");

    let out = ringbell(&["perf", "nop", "-n", "100"]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert_eq!(ringbell(&["perf", "dma", "-b", "0"]).status.code(), Some(2));
}
