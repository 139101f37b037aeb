//! Tests of the tutorial's programs, built and run exactly as printed there.
#![allow(clippy::disallowed_methods)] // Starts compilers and programs.

use crate::common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{built, folder, has, succeed};

const README: &str = include_str!("../../README.md");
const TUTORIAL: &str = include_str!("../../docs/tutorial.md");

/// The Rust programs, in order; `build.rs` extracts them.
#[allow(missing_docs, unsafe_code, clippy::all)]
mod programs {
    pub(crate) mod sum {
        include!(concat!(env!("OUT_DIR"), "/tutorial_0.rs"));
        pub(crate) const MAIN: fn() -> anyhow::Result<()> = main;
    }
    pub(crate) mod memory {
        include!(concat!(env!("OUT_DIR"), "/tutorial_1.rs"));
        pub(crate) const MAIN: fn() -> anyhow::Result<()> = main;
    }
    pub(crate) mod collectives {
        include!(concat!(env!("OUT_DIR"), "/tutorial_2.rs"));
        pub(crate) const MAIN: fn() -> anyhow::Result<()> = main;
    }
}

/// Number of the program for a process of this test.
const PROGRAM: &str = "RB_TEST_TUTORIAL_PROGRAM";

#[test]
#[ignore = "the programs, in processes of their own"]
fn program() {
    let main = match std::env::var(PROGRAM).as_deref() {
        Ok("sum") => programs::sum::MAIN,
        Ok("memory") => programs::memory::MAIN,
        Ok("collectives") => programs::collectives::MAIN,
        other => panic!("{other:?} is no program"),
    };
    main().expect("the program ends well");
}

/// Block number `n` of a language, after a heading.
fn block(heading: &str, language: &str, n: usize) -> &'static str {
    let (_, section) = TUTORIAL.split_once(heading).expect("the heading is there");
    let fence = format!("\n```{language}\n");
    let found = section
        .split(&fence)
        .nth(n + 1)
        .expect("the block is there");
    found.split_once("\n```").expect("it ends").0
}

/// A reader's folder, with the command and the library of this build first on the path, and a
/// discovery folder of its own.
struct Reader {
    dir: PathBuf,
}

impl Reader {
    fn new(name: &str) -> Reader {
        let dir = folder(name);
        let bin = dir.join("bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        let put = |from: &Path, name: &str| {
            let to = bin.join(name);
            let linked = std::fs::hard_link(from, &to);
            linked
                .or_else(|_| std::fs::copy(from, &to).map(drop))
                .expect("copied");
        };
        put(Path::new(env!("CARGO_BIN_EXE_ringbell")), "ringbell");
        put(&built().join("libringbell.so"), "libringbell.so");
        Reader { dir }
    }

    fn prepare<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .current_dir(&self.dir)
            .env("PATH", format!("{}:{path}", self.dir.join("bin").display()))
            .env("XDG_RUNTIME_DIR", &self.dir)
            .env("RINGBELL_GPU", "emulated")
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("RINGBELL_DEBUG")
    }

    /// Runs a block of the tutorial.
    fn shell(&self, block: &str) -> String {
        succeed(self.prepare(Command::new("sh").args(["-ec", block])))
    }

    /// Runs one of the programs, behind `launcher`.
    fn program(&self, launcher: &[&str], name: &str) -> String {
        let own = std::env::current_exe().expect("this program");
        let own = own.to_str().expect("a path of text");
        let args = [
            own,
            "--exact",
            "tutorial::program",
            "--ignored",
            "--nocapture",
        ];
        let all: Vec<&str> = launcher.iter().copied().chain(args).collect();
        let mut command = Command::new(all[0]);
        succeed(self.prepare(command.args(&all[1..]).env(PROGRAM, name)))
    }
}

#[test]
fn the_kernel_of_the_tutorial_adds_up_the_received_numbers() {
    if !has("clang-19") {
        return;
    }
    let reader = Reader::new("tutorial-sum");
    let kernel = block("## 3.", "cuda", 0);
    std::fs::write(reader.dir.join("sum.cu"), kernel).expect("written");
    reader.shell(block("## 4.", "sh", 0));
    // With the library's events, which a program prints as the commands do.
    let said = reader.program(&["env", "RINGBELL_DEBUG=INFO"], "sum");
    assert!(said.contains("499500"), "{said}");
    assert!(
        said.contains("established") && said.contains("transport=\"local\""),
        "{said}"
    );
}

#[test]
fn the_kernel_of_the_readme_compiles() {
    if !has("clang-19") {
        return;
    }
    let (_, rest) = README.split_once("\n```cuda\n").expect("a kernel");
    let kernel = rest.split_once("\n```").expect("it ends").0;
    let reader = Reader::new("readme");
    std::fs::write(reader.dir.join("serve.cu"), kernel).expect("written");
    reader.shell("ringbell cc serve.cu && test -f serve.ptx");
}

#[test]
fn the_program_with_three_kinds_of_memory_runs() {
    Reader::new("tutorial-memory").program(&[], "memory");
}

#[test]
fn the_collectives_run_under_the_launcher() {
    let reader = Reader::new("tutorial-collectives");
    let ringbell = reader.dir.join("bin/ringbell");
    let ringbell = ringbell.to_str().expect("text");
    reader.program(&[ringbell, "run", "-n", "4", "--"], "collectives");
}

#[test]
fn hello_reaches_its_peer() {
    if !has("clang-19") {
        return;
    }
    let reader = Reader::new("tutorial-hello");
    let source = block("## 5.", "cuda", 0);
    std::fs::write(reader.dir.join("hello.cu"), source).expect("written");
    let mut peer = Command::new("sh");
    // The shell becomes the peer, so that it can be ended.
    let commands = block("## 5.", "sh", 0).replace("ringbell nc", "exec ringbell nc");
    let mut peer = reader
        .prepare(peer.args(["-ec", &commands]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut says = BufReader::new(peer.stderr.take().expect("piped")).lines();
    let listens = says
        .by_ref()
        .any(|l| l.expect("text").contains("listening"));
    assert!(listens, "the peer has ended");
    let mut hello = Command::new("sh");
    let hello = reader.prepare(hello.args(["-ec", block("## 5.", "sh", 1)]));
    let hello = common::run(hello.env("RINGBELL_DEBUG", "INFO"));
    let text = common::text(&hello);
    if !hello.status.success() {
        let _ = peer.kill();
    }
    let mut got = String::new();
    let out = peer.stdout.take().expect("piped");
    BufReader::new(out).read_to_string(&mut got).expect("text");
    let ended = peer.wait().expect("ends");
    assert!(hello.status.success() && text.contains("OK"), "{text}");
    let said: Vec<String> = says.map_while(Result::ok).collect();
    assert!(ended.success(), "{ended}: {said:?}\n{text}");
    assert!(got.ends_with("\nhello\n"), "{got}");
    assert!(
        text.contains("established") && text.contains("transport=\"local\""),
        "{text}"
    );
}
