//! Verilates each block of hw/rtl and writes Rust bindings to its ports (feature `verilator`;
//! `card`: of `nic_top` and `reduce`).
//!
//! The ports come from the header that Verilator writes, so a block needs no code here but its
//! name.

mod objects;

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A block as the crate has it.
struct Rtl {
    name: &'static str,
    /// Its block in hw/rtl: a module with its parts.
    block: &'static str,
    /// A bench of this crate around the block: the module NAME in NAME.sv.
    bench: bool,
    /// Parameters that are not the module's own.
    parameters: &'static [&'static str],
    /// It can write a trace of its signals.
    traced: bool,
}

const fn rtl(name: &'static str) -> Rtl {
    Rtl {
        name,
        block: name,
        bench: false,
        parameters: &[],
        traced: false,
    }
}

const BLOCKS: [Rtl; 13] = [
    rtl("gtlb"),
    rtl("regfile"),
    rtl("dma_split"),
    rtl("onpath"),
    rtl("crc32c"),
    rtl("hll"),
    Rtl {
        block: "hll",
        parameters: &["-GMurmur3=1"],
        ..rtl("hll_murmur3")
    },
    rtl("reduce"),
    Rtl {
        block: "float_add",
        bench: true,
        ..rtl("float_add_f16")
    },
    Rtl {
        // A test waits for it.
        parameters: &["-GDeadline=5000"],
        ..rtl("sequencer")
    },
    rtl("router"),
    Rtl {
        block: "router",
        parameters: &["-GWires=2", "-GChannels=2", "-GDepth=8"],
        ..rtl("router_ring")
    },
    Rtl {
        // The SDK's queues: the sockets of a host have one of 1,024 slots.
        parameters: &["-GQueues=64", "-GDepthLog2=10"],
        traced: true,
        ..rtl("nic_top")
    },
];

impl Rtl {
    /// Its sources, with the package first; by their names alone, since assertions state them, and
    /// C++ of copies is to be the same.
    fn files(&self, sources: &Path) -> Vec<PathBuf> {
        // A block of one module has no list.
        let list = std::fs::read_to_string(sources.join(format!("{}.f", self.block)));
        let list = list.unwrap_or_else(|_| format!("ringbell_abi_pkg.sv\n{}.sv\n", self.block));
        let own = self.bench.then(|| here().join(format!("{}.sv", self.name)));
        list.lines().map(PathBuf::from).chain(own).collect()
    }

    fn top(&self) -> &str {
        if self.bench {
            self.name
        } else {
            self.block
        }
    }
}

/// The crate's folder.
fn here() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
}

fn main() {
    for name in ["RINGBELL_VERILATOR", "RINGBELL_RTL", "RINGBELL_BLOCKS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=objects.rs");
    println!("cargo:rerun-if-changed=float_add_f16.sv");
    let names: Vec<String> = BLOCKS.iter().map(|b| format!("{:?}", b.name)).collect();
    println!(
        "cargo:rustc-check-cfg=cfg(block, values({}))",
        names.join(", ")
    );
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    if !has("VERILATOR") && !has("CARD") {
        return;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    // `cargo xtask hw mutate` simulates a changed copy.
    let sources = env::var_os("RINGBELL_RTL").map_or_else(|| here().join("../rtl"), PathBuf::from);
    println!("cargo:rerun-if-changed={}", sources.display());
    let verilator = env::var_os("RINGBELL_VERILATOR").unwrap_or_else(|| installed(&out));

    // The tests of one block need no others, which take minutes to compile.
    let only = match has("VERILATOR") {
        true => env::var("RINGBELL_BLOCKS").ok(),
        false => Some("nic_top".into()),
    };
    let named = |block: &str| {
        only.as_ref()
            .is_none_or(|o| o.split(',').any(|b| b == block))
    };
    // A card has both.
    let wanted = |block: &str| named(block) || (block == "reduce" && named("nic_top"));

    for rtl in BLOCKS.iter().filter(|b| wanted(b.name)) {
        println!("cargo:rustc-cfg=block={:?}", rtl.name);
    }
    let mut cpp = cc::Build::new();
    cpp.cpp(true).std("c++17").warnings(false).debug(false);
    let include = include_of(&verilator);
    cpp.include(&include).include(include.join("vltstd"));
    let objects = objects::Objects::new(&out, &include).expect("OUT_DIR is writable");
    // What runs once, or only for traces, in functions of many thousand lines, for which an
    // optimiser takes minutes.
    let mut slow = cpp.clone();
    slow.opt_level(0);
    // These two take nine tenths of the time for functions of that length, and gain nothing.
    cpp.opt_level(2)
        .flag_if_supported("-fno-tree-pre")
        .flag_if_supported("-fno-code-hoisting");
    let runtime = [
        "verilated.cpp",
        "verilated_threads.cpp",
        "verilated_vcd_c.cpp",
    ];
    let mut files = runtime.map(|f| include.join(f)).to_vec();
    let mut slow_files = Vec::new();
    let mut rust = String::new();
    for rtl in BLOCKS.iter().filter(|b| wanted(b.name)) {
        let block = rtl.name;
        let made = out.join(block);
        let _ = std::fs::remove_dir_all(&made);
        run(Command::new(&verilator)
            .current_dir(&sources)
            .args(["--cc", "-Wno-lint", "-O3", "--assert"])
            .args(["--x-assign", "unique", "--x-initial", "unique"])
            .args(rtl.parameters)
            .args(rtl.traced.then_some("--trace-vcd"))
            .args(["--prefix", &prefix(block), "--top-module", rtl.top()])
            .arg("-Mdir")
            .arg(&made)
            .args(rtl.files(&sources)));
        let header = made.join(format!("{}.h", prefix(block)));
        let header = std::fs::read_to_string(header).expect("Verilator has written it");
        let ports = ports(&header);
        let shim = made.join("shim.cpp");
        std::fs::write(&shim, in_cpp(rtl, &ports)).expect("OUT_DIR is writable");
        rust.push_str(&in_rust(rtl, &ports));
        for file in std::fs::read_dir(&made).expect("Verilator has made it") {
            let file = file.expect("an entry").path();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if name.ends_with("__Slow.cpp") || name.contains("__Trace") {
                slow_files.push(file);
            } else if name.ends_with(".cpp") {
                files.push(file);
            }
        }
    }
    rust.push_str(
        "/// Runs cycles of a block until `go_on`, which is asked after every so many, says no. The first function gives random bits for its inputs.\n\
         pub type Run = fn(u64, &mut dyn FnMut() -> u64, go_on: &mut dyn FnMut() -> bool);\n\
         /// Each block, by name, and a run of it after a reset.\npub const RUNS: &[(&str, Run)] = &[\n",
    );
    for name in BLOCKS.iter().map(|b| b.name).filter(|name| wanted(name)) {
        let _ = writeln!(
            rust,
            "(\"{name}\", |cycles, next, go_on| {{ let mut b = {name}::Block::new(); b.ignore_assertions(); b.reset(); \
             while go_on() {{ b.run_at_random(cycles, next); }} }}),"
        );
    }
    rust.push_str("];\n");
    std::fs::write(out.join("blocks.rs"), rust).expect("OUT_DIR is writable");
    let all = [(&cpp, files), (&slow, slow_files)].map(|(cpp, files)| objects.compile(cpp, &files));
    for object in all
        .into_iter()
        .flat_map(|o| o.expect("OUT_DIR is writable"))
    {
        cpp.object(object);
    }
    cpp.compile("ringbell_rtl");
    objects.tidy().expect("OUT_DIR is writable");
}

/// Verilator as `cargo xtask hw` has installed it in the target folder, else that of PATH.
fn installed(out: &Path) -> std::ffi::OsString {
    let tools = out.ancestors().map(|a| a.join("venv-hw/bin/verilator-cli"));
    let found = tools.into_iter().find(|t| t.is_file());
    found.map_or_else(|| "verilator".into(), PathBuf::into_os_string)
}

/// The folder with Verilator's own sources.
fn include_of(verilator: &std::ffi::OsStr) -> PathBuf {
    let mut ask = Command::new(verilator);
    let told = ask.args(["--getenv", "VERILATOR_ROOT"]).output();
    let told = told.expect("verilator starts").stdout;
    Path::new(String::from_utf8_lossy(&told).trim()).join("include")
}

fn run(command: &mut Command) {
    let status = command.status();
    let status = status.unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    assert!(status.success(), "{command:?} ended with {status}");
}

fn prefix(block: &str) -> String {
    format!("V{block}")
}

/// A port: its name, whether it is an input, and its 32-bit words when it has more than 64 bits.
struct Port {
    name: String,
    input: bool,
    bits: u32,
    words: Option<u32>,
}

/// Lines like `VL_IN8(&valid_i,0,0);` and `VL_OUTW(&data_o,511,0,16);`.
fn ports(header: &str) -> Vec<Port> {
    let port = |line: &str| {
        let (kind, rest) = line.trim().strip_prefix("VL_")?.split_once("(&")?;
        let mut fields = rest.trim_end_matches(");").split(',');
        let name = fields.next()?.to_string();
        let mut number = || Some(fields.next()?.parse::<u32>().expect("a number"));
        Some(Port {
            name,
            input: kind.starts_with("IN"),
            bits: number()? + 1 - number()?,
            words: number(),
        })
    };
    header.lines().filter_map(port).collect()
}

fn in_cpp(rtl: &Rtl, ports: &[Port]) -> String {
    let (block, top) = (rtl.name, prefix(rtl.name));
    // A context of its own: instances of several threads share nothing.
    let mut s = format!(
        "#include \"{top}.h\"\n#include \"verilated_vcd_c.h\"\n#include <cstring>\nnamespace {{\n\
         struct Instance {{ VerilatedContext context; {top} top{{&context}}; VerilatedVcdC vcd; }};\n}}\nextern \"C\" {{\n\
         void* rb_{block}_new() {{ return new Instance(); }}\n\
         void rb_{block}_free(Instance* b) {{ b->top.final(); b->vcd.close(); delete b; }}\n\
         void rb_{block}_eval(Instance* b) {{ b->top.eval(); }}\n\
         void rb_{block}_ignore_assertions(Instance* b) {{ b->context.assertOn(false); }}\n"
    );
    if rtl.traced {
        let _ = writeln!(
            s,
            "bool rb_{block}_trace(Instance* b, const char* file) {{\n\
             b->context.traceEverOn(true); b->top.trace(&b->vcd, 99); b->vcd.open(file); return b->vcd.isOpen(); }}\n\
             void rb_{block}_dump(Instance* b, uint64_t time) {{ b->vcd.dump(time); }}"
        );
    }
    for Port {
        name, input, words, ..
    } in ports
    {
        let _ = match (words, input) {
            (None, true) => writeln!(
                s,
                "void rb_{block}_{name}(Instance* b, uint64_t v) {{ b->top.{name} = v; }}\n\
                 uint64_t rb_{block}_{name}_now(Instance* b) {{ return b->top.{name}; }}"
            ),
            (None, false) => writeln!(s, "uint64_t rb_{block}_{name}(Instance* b) {{ return b->top.{name}; }}"),
            (Some(n), true) => writeln!(
                s,
                "void rb_{block}_{name}(Instance* b, const uint32_t* v) {{ memcpy(b->top.{name}.data(), v, 4 * {n}); }}"
            ),
            (Some(n), false) => writeln!(
                s,
                "void rb_{block}_{name}(Instance* b, uint32_t* v) {{ memcpy(v, b->top.{name}.data(), 4 * {n}); }}"
            ),
        };
    }
    s + "}\n"
}

fn in_rust(rtl: &Rtl, ports: &[Port]) -> String {
    let block = rtl.name;
    let (mut calls, mut methods) = (String::new(), String::new());
    if rtl.traced {
        let _ = writeln!(
            calls,
            "pub(super) fn rb_{block}_trace(b: *mut core::ffi::c_void, file: *const core::ffi::c_char) -> bool;\n\
             pub(super) fn rb_{block}_dump(b: *mut core::ffi::c_void, time: u64);"
        );
        let _ = writeln!(
            methods,
            "/// Writes a trace (VCD) to a file from now on. `false`: it cannot be made.\n// SAFETY: as for `eval`.\n\
             pub fn trace(&mut self, file: &core::ffi::CStr) -> bool {{ unsafe {{ ffi::rb_{block}_trace(self.0, file.as_ptr()) }} }}\n\
             /// Notes the signals at a time. Only with a trace.\n// SAFETY: as for `eval`.\n\
             pub fn dump(&mut self, time: u64) {{ unsafe {{ ffi::rb_{block}_dump(self.0, time) }} }}"
        );
    }
    methods.push_str(
        "/// Runs cycles with random bits at all inputs but the clock and the reset.\n\
         pub fn run_at_random(&mut self, cycles: u64, next: &mut dyn FnMut() -> u64) { for _ in 0..cycles {\n",
    );
    let reset = match ports.iter().any(|p| p.name == "rst_ni") {
        true => "self.rst_ni(0); self.tick(); self.rst_ni(1);",
        false => "",
    };
    let random = |p: &&Port| p.input && p.name != "clk_i" && p.name != "rst_ni";
    for Port {
        name, bits, words, ..
    } in ports.iter().filter(random)
    {
        let _ = match words {
            None => writeln!(
                methods,
                "self.{name}(next() & (u64::MAX >> {}));",
                64 - bits
            ),
            Some(_) => writeln!(
                methods,
                "self.{name}(&core::array::from_fn(|_| next() as u32));"
            ),
        };
        assert!(
            words.is_none() || bits % 32 == 0,
            "{name} ends within a word"
        );
    }
    let _ = writeln!(
        methods,
        "self.tick(); }} }}\n/// A cycle of reset, where it has one.\npub fn reset(&mut self) {{ {reset} }}"
    );
    for Port {
        name, input, words, ..
    } in ports
    {
        let (signature, method) = match (words, input) {
            (None, true) => (
                "v: u64)".to_string(),
                format!("pub fn {name}(&mut self, v: u64) {{ unsafe {{ ffi::rb_{block}_{name}(self.0, v) }} }}"),
            ),
            (None, false) => (
                ") -> u64".to_string(),
                format!("pub fn {name}(&self) -> u64 {{ unsafe {{ ffi::rb_{block}_{name}(self.0) }} }}"),
            ),
            (Some(n), true) => (
                "v: *const u32)".to_string(),
                format!(
                    "pub fn {name}(&mut self, v: &[u32; {n}]) {{ unsafe {{ ffi::rb_{block}_{name}(self.0, v.as_ptr()) }} }}"
                ),
            ),
            (Some(n), false) => (
                "v: *mut u32)".to_string(),
                format!(
                    "pub fn {name}(&self) -> [u32; {n}] {{ let mut v = [0; {n}]; \
                     unsafe {{ ffi::rb_{block}_{name}(self.0, v.as_mut_ptr()) }} v }}"
                ),
            ),
        };
        let _ = writeln!(
            calls,
            "pub(super) fn rb_{block}_{name}(b: *mut core::ffi::c_void, {signature};"
        );
        if (words, input) == (&None, &true) {
            let call = format!("rb_{block}_{name}_now");
            let _ = writeln!(
                calls,
                "pub(super) fn {call}(b: *mut core::ffi::c_void) -> u64;"
            );
            let _ = writeln!(
                methods,
                "/// What port `{name}` was set to.\n// SAFETY: as for `eval`.\n\
                 pub fn {name}_now(&self) -> u64 {{ unsafe {{ ffi::{call}(self.0) }} }}"
            );
        }
        let _ = writeln!(
            methods,
            "/// Port `{name}`.\n// SAFETY: as for `eval`; arrays have the port's words.\n{method}"
        );
    }
    format!(
        "pub mod {block} {{
//! Block `{block}`.
mod ffi {{ unsafe extern \"C\" {{
pub(super) fn rb_{block}_new() -> *mut core::ffi::c_void;
pub(super) fn rb_{block}_free(b: *mut core::ffi::c_void);
pub(super) fn rb_{block}_eval(b: *mut core::ffi::c_void);
pub(super) fn rb_{block}_ignore_assertions(b: *mut core::ffi::c_void);
{calls} }} }}
/// One instance.
#[derive(Debug)]
pub struct Block(*mut core::ffi::c_void, bool);
#[allow(clippy::new_without_default)]
impl Block {{
/// A new instance, not yet reset.
// SAFETY: the shim gives a new object, which `Drop` alone frees.
pub fn new() -> Block {{ let mut b = Block(unsafe {{ ffi::rb_{block}_new() }}, false); b.clk_i(0); b.eval(); b }}
/// Settles the outputs after a change of inputs.
// SAFETY: the object is alive as long as `self`, and no other thread has it: a raw pointer is not
// `Send`.
pub fn eval(&mut self) {{ self.1 = true; unsafe {{ ffi::rb_{block}_eval(self.0) }} }}
/// Breaches of what the block assumes of its surroundings no longer end the program.
// SAFETY: as for `eval`.
pub fn ignore_assertions(&mut self) {{ unsafe {{ ffi::rb_{block}_ignore_assertions(self.0) }} }}
/// One cycle: the rising edge, with outputs settled behind it. The falling edge changes nothing,
/// and is seen with the next inputs.
pub fn tick(&mut self) {{ if !self.1 {{ self.eval(); }} self.clk_i(1); self.eval(); self.clk_i(0); self.1 = false; }}
{methods} }}
impl Drop for Block {{
// SAFETY: see `new`.
fn drop(&mut self) {{ unsafe {{ ffi::rb_{block}_free(self.0) }} }} }}
}}
"
    )
}
