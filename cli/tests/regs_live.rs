//! Tests of `ringbell regs` on a NIC in this very process, and on the nodes of jobs.

#![allow(clippy::disallowed_methods)] // A deadline, so that a page that stands still fails the test.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringbell::abi::bar::MAGIC;
use ringbell::parts::cuda_kernels::{EmulatedGpu, EmulatedGpuConfig};
use ringbell::parts::nic_core::{Nic, NicConfig, QueueConfig};
use ringbell::Wires;

/// The NICs of this process, in another process's view.
fn nics() -> Vec<serde_json::Value> {
    let out = Command::new(env!("CARGO_BIN_EXE_ringbell"))
        .args([
            "regs",
            "--json",
            "-",
            "--pid",
            &std::process::id().to_string(),
        ])
        .output()
        .expect("the program starts");
    if !out.status.success() {
        assert_eq!(out.status.code(), Some(4));
        return Vec::new();
    }
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    json["nics"].as_array().expect("a list").clone()
}

/// One test: each counts the NICs of its process.
#[test]
fn another_process_reads_the_registers_of_a_running_nic() {
    assert!(nics().is_empty());
    let gpu = EmulatedGpu::new(EmulatedGpuConfig {
        memory_bytes: 2 << 20,
        ..EmulatedGpuConfig::default()
    })
    .expect("a GPU");
    let config = NicConfig {
        ip: [10, 1, 2, 3].into(),
        ..NicConfig::default()
    };
    let nic = Nic::builder(config, gpu.memory()).build().expect("a NIC");
    let seen = nics();
    assert_eq!(seen.len(), 1);
    let values = &seen[0]["values"];
    assert_eq!(values["MAGIC"], MAGIC);
    assert_eq!(values["IPV4"], 0x0a01_0203);
    assert_eq!(values["QUEUES"], 0);

    // With a queue that a kernel holds the NIC is stepped although no thread waits, and the page
    // follows.
    let pd = nic.alloc_pd().expect("a protection domain");
    let queue = nic
        .create_queue(pd, QueueConfig::default())
        .expect("a queue");
    let _held_by_a_kernel = queue.handle();
    let heartbeat = values["HEARTBEAT"].as_u64();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let values = &nics()[0]["values"];
        if values["QUEUES"] == 1 && values["HEARTBEAT"].as_u64() > heartbeat {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "the page does not follow: {values}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(nic);
    drop(queue);
    assert!(nics().is_empty(), "the BAR goes with its NIC");
    nodes_of_a_mesh_show_wires_and_routes();
}

/// The nodes of a process, in another process's view, and what it prints of them.
fn nodes(pid: u32) -> (Vec<serde_json::Value>, String) {
    let pid = pid.to_string();
    let said = |more: &[&str]| {
        let regs = ["regs", "magic", "--pid", &pid];
        let out = Command::new(env!("CARGO_BIN_EXE_ringbell"))
            .args([&regs[..], more].concat())
            .output();
        String::from_utf8(out.expect("the program starts").stdout).expect("text")
    };
    // A process without NICs and nodes is none that can be shown.
    let json: serde_json::Value = serde_json::from_str(&said(&["--json"])).unwrap_or_default();
    let nodes = json["meshes"].as_array().cloned().unwrap_or_default();
    (nodes, said(&[]))
}

fn nodes_of_a_mesh_show_wires_and_routes() {
    let wires = Wires::in_memory("bus:3").expect("a network");
    let open = |rank| {
        let nic = ringbell::Nic::builder().ip(format!("10.93.1.{}/24", rank + 1));
        let nic = nic.gpu("emulated").gpu_memory(2 << 20);
        nic.wires(&wires, rank).wire_poll(5).open().expect("a NIC")
    };
    let mut nics: Vec<ringbell::Nic> = (0..3).map(open).collect();
    let until = |what: &str, lines: &[&str]| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let (nodes, said) = nodes(std::process::id());
            let first = nodes.iter().find(|n| n["node"] == "mesh n0 of bus:3");
            let report = first.map_or(String::new(), |n| n["report"].to_string());
            if lines.iter().all(|l| report.contains(l) && said.contains(l)) {
                break nodes;
            }
            assert!(Instant::now() < deadline, "{what}: {said}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let up = [
        "port 1 -> n1:0: up, credit for 128 packets",
        "on channels 0 to 7 of 8; R is 5",
    ];
    assert_eq!(until("all are up", &up).len(), 3);
    drop(nics.pop());
    // It reaches node 0 by node 1.
    let nodes = until(
        "node 2 is gone",
        &["down: n1:1 -- n2:0", "no way to n2: missing n1:1"],
    );
    assert_eq!(nodes.len(), 2, "a node goes with its NIC");
}

/// A process that runs until this is dropped.
struct Job(std::process::Child);

impl Drop for Job {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        // It ends its ranks.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Job {
    fn start(args: &[&str]) -> Job {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
        command.env("RINGBELL_GPU", "emulated").args(args);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        Job(command.spawn().expect("the program starts"))
    }

    /// Waits until the command has these nodes, each with all of these lines.
    fn shows(&self, wanted: &[&str], lines: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let (nodes, said) = nodes(self.0.id());
            let has_all = |n: &serde_json::Value| {
                let report = n["report"].to_string();
                lines.iter().all(|l| report.contains(l) && said.contains(l))
            };
            let is_shown = |name: &&str| {
                let node = nodes.iter().find(|n| n["node"] == format!("mesh {name}"));
                node.is_some_and(has_all)
            };
            if wanted.iter().all(is_shown) {
                return;
            }
            assert!(Instant::now() < deadline, "{wanted:?}: {said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_job_shows_the_nodes_for_which_it_forwards_itself() {
    // Switches, while ranks send by them. The command is one of the ranks as well.
    let perf = "perf all-reduce -R 4 --topology fat-tree:2x2 -b 8 -e 8 --no-limits";
    let perf: Vec<&str> = perf.split(' ').collect();
    let job = Job::start(&[&perf[..], &["--iters", "1000000000"]].concat());
    let switches = ["s0", "s1", "s2", "s3"].map(|s| format!("{s} of fat-tree:2x2"));
    let up = [
        "up, credit for",
        "routes ",
        "on channels 0 to ",
        "forwarded ",
    ];
    job.shows(&switches.each_ref().map(String::as_str), &up);
    drop(job);
    // A rank that has ended well: those beside it have no NICs.
    let script = "test $RINGBELL_RANK = 1 || sleep 100";
    let run = ["run", "-R", "3", "--topology", "bus:3", "--", "sh", "-c"];
    let job = Job::start(&[&run[..], &[script]].concat());
    let alone = [
        "port 0 -> n0:1: no answer",
        "port 1 -> n2:0: no answer",
        "on channels 0 to 7 of 8; R is 8",
    ];
    job.shows(&["n1 of bus:3"], &alone);
}
