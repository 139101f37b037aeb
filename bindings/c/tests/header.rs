//! Tests that the C headers and the library agree: every function declared in one is exported by
//! the other, with the same arguments by name and kind, and codes have the same numbers.
#![allow(clippy::disallowed_methods)] // Reads sources and the built library.

use crate::common;

use std::collections::BTreeMap;
use std::path::Path;

use object::{Object as _, ObjectSymbol as _};

/// An argument as a caller sees it: its name, and its kind.
type Argument = (String, String);

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn headers() -> String {
    let text =
        ["ringbell.h", "ringbell_comm.h"].map(|h| read(&format!("../../cuda-kernels/include/{h}")));
    without_comments(&text.concat())
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("/*") {
        out.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, r)| r);
    }
    out + rest
}

/// Prototypes of C: `rb_result rb_x(const void *src, uint32_t n);`
fn declared() -> BTreeMap<String, Vec<Argument>> {
    let text = headers();
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    let text = lines.join("\n");
    let mut all = BTreeMap::new();
    for statement in text.split(';') {
        let statement = statement.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some((head, arguments)) = statement.strip_suffix(')').and_then(|s| s.split_once('('))
        else {
            continue;
        };
        let name = head.rsplit([' ', '*']).next().unwrap_or_default();
        if !name.starts_with("rb_") {
            continue;
        }
        let arguments = match arguments {
            "void" => Vec::new(),
            list => list.split(", ").map(c_argument).collect(),
        };
        all.insert(name.to_owned(), arguments);
    }
    all
}

fn c_argument(text: &str) -> Argument {
    // An array is a pointer to its first element.
    let (text, array) = match text.split_once('[') {
        Some((t, _)) => (t, true),
        None => (text, false),
    };
    let at = text.rfind([' ', '*']).map_or(0, |i| i + 1);
    let (ty, name) = text.split_at(at);
    let stars = ty.matches('*').count() + usize::from(array);
    let what = match (stars, ty.trim()) {
        (0, t) => t.trim_end_matches("_t").replace("rb_result", "int32"),
        (1, t) if t.starts_with("const ") => "const pointer".into(),
        (1, _) => "pointer".into(),
        (_, t) if t.contains("*const *") => "const pointer".into(),
        _ => "pointer".into(),
    };
    (name.to_owned(), what)
}

/// Functions of Rust: `extern "C" fn rb_x(src: *const c_void, n: u32) -> i32`, and those that the
/// table of `collective.rs` generates.
fn defined() -> BTreeMap<String, Vec<Argument>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source");
        for part in text.split("extern \"C\" fn ").skip(1) {
            let Some((name, rest)) = part.split_once('(') else {
                continue;
            };
            let (list, _) = rest.split_once(')').expect("arguments end");
            if name.starts_with("rb_") {
                all.insert(name.to_owned(), rust_arguments(list));
            }
        }
        let table = text.split("\ncalls! {").nth(1).unwrap_or_default();
        for line in table.split(';') {
            let Some((names, rest)) = line.split_once('(') else {
                continue;
            };
            let (list, _) = rest.split_once(')').expect("arguments end");
            let (call, request) = names.trim().split_once(", ").expect("two names");
            for (name, last) in [
                (call, "stream: *mut c_void"),
                (request, "request: *mut c_void"),
            ] {
                let mut arguments = rust_arguments(list);
                arguments.extend(rust_arguments(&format!("comm: *mut c_void, {last}")));
                all.insert(name.to_owned(), arguments);
            }
        }
    }
    all
}

fn rust_arguments(list: &str) -> Vec<Argument> {
    let all = list.split(',').map(str::trim).filter(|a| !a.is_empty());
    all.map(|a| {
        let (name, ty) = a.split_once(": ").expect("name and type");
        let what = match ty {
            t if t.starts_with("*const") => "const pointer",
            t if t.starts_with("*mut") => "pointer",
            "usize" => "size",
            "u16" => "uint16",
            "u32" => "uint32",
            "u64" => "uint64",
            "i32" => "int32",
            other => panic!("teach this test the type {other}"),
        };
        (name.to_owned(), what.to_owned())
    })
    .collect()
}

#[test]
fn every_function_of_the_headers_is_exported_with_the_same_arguments_and_no_other() {
    let (declared, mut defined) = (declared(), defined());
    // The handle of rb_nic_open and the like is const in neither; both lists must agree name by
    // name.
    for (name, arguments) in &declared {
        let there = defined.remove(name);
        assert_eq!(
            there.as_ref(),
            Some(arguments),
            "{name}: header right, library left"
        );
    }
    assert!(
        defined.is_empty(),
        "no header declares {:?}",
        defined.keys()
    );
    let library = common::built().join("libringbell.so");
    let bytes = std::fs::read(library).expect("the library");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let exported: Vec<&str> = file
        .dynamic_symbols()
        .filter(|s| s.is_definition())
        .filter_map(|s| s.name().ok())
        .collect();
    for name in declared.keys() {
        assert!(exported.contains(&name.as_str()), "{name} is not exported");
    }
    assert!(declared.len() > 80, "only {} were found", declared.len());
}

#[test]
fn the_page_names_every_function() {
    let page = read("../../docs/c-api.md");
    let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: Vec<&str> = page.split(|c| !of_word(c)).collect();
    let all = declared();
    let missing: Vec<_> = all
        .keys()
        .filter(|n| !words.contains(&n.as_str()))
        .collect();
    assert_eq!(missing, Vec::<&String>::new(), "docs/c-api.md");
}

#[test]
fn error_codes_and_flags_are_the_same_on_both_sides() {
    let header = headers();
    let of_header = |name: &str| {
        let line = header
            .lines()
            .find_map(|l| l.strip_prefix(&format!("#define {name} ")));
        let value = line
            .unwrap_or_else(|| panic!("no {name} in the headers"))
            .trim();
        value
            .trim_matches(['(', ')'])
            .trim_end_matches('u')
            .to_owned()
    };
    for (file, name, constant) in [
        (
            "failure",
            "RB_ERR_INVALID_ARGUMENT",
            "INVALID_ARGUMENT: i32",
        ),
        ("failure", "RB_ERR_HOST", "HOST: i32"),
        ("failure", "RB_ERR_KERNEL", "KERNEL: i32"),
        ("failure", "RB_ERR_PANIC", "PANIC: i32"),
        ("failure", "RB_ERR_IN_PROGRESS", "IN_PROGRESS: i32"),
        ("failure", "RB_ERR_JOB", "JOB: i32"),
        ("collective", "RB_OP_FENCE", "FENCE: u32"),
        ("collective", "RB_OP_STREAMED", "STREAMED: u32"),
        ("collective", "RB_OP_SRC_STREAM", "SRC_STREAM: u32"),
        ("collective", "RB_OP_DST_STREAM", "DST_STREAM: u32"),
        ("engine", "RB_ENGINE_RECEIVED", "RECEIVED: u32"),
        ("engine", "RB_ENGINE_SENT", "SENT: u32"),
        ("engine", "RB_ENGINE_INPUT", "INPUT: u32"),
        ("engine", "RB_ENGINE_OUTPUT", "OUTPUT: u32"),
        ("engine", "RB_ENGINE_PER_STREAM", "PER_STREAM: u32"),
        ("comm_config", "RB_COMM_CONFIG_VERSION", "VERSION: u32"),
    ] {
        let source = read(&format!("src/{file}.rs"));
        let (_, rest) = source
            .split_once(&format!("const {constant} = "))
            .expect(constant);
        let (value, _) = rest.split_once(';').expect("a statement");
        assert_eq!(value, of_header(name), "{name}");
    }
    assert_eq!(of_header("RB_SPLIT_NOCOLOR"), u32::MAX.to_string());
    let zero = of_header("RB_CONFIG_ZERO")
        .split(' ')
        .next()
        .map(str::to_owned);
    let zero = zero.map(|z| z.trim_end_matches('u').to_owned());
    assert_eq!(zero, Some(u64::MAX.to_string()));
}

/// The library reads the settings of `rb_comm_config` as an array, in the order of their names.
#[test]
fn the_settings_of_a_communicator_are_fields_in_the_order_of_their_names() {
    let header = headers();
    let (_, rest) = header
        .split_once("typedef struct rb_comm_config {")
        .expect("the structure");
    let (fields, _) = rest.split_once('}').expect("its end");
    let fields: Vec<&str> = fields
        .split(';')
        .filter_map(|f| f.trim().rsplit(' ').next())
        .filter(|f| !f.is_empty())
        .collect();
    let (before, settings) = fields.split_at(7);
    // Versions 5 to 8 have appended one each.
    let (settings, appended) = settings.split_at(settings.len() - 4);
    let [queues, appended @ ..] = appended else {
        panic!("four");
    };
    assert_eq!(*queues, "block_queues");
    let settings = [settings, appended].concat();
    assert_eq!(
        before,
        [
            "size",
            "init_timeout_us",
            "timeout_us",
            "algo",
            "wire",
            "port",
            "version"
        ]
    );
    assert_eq!(settings, ringbell::comm::CollectiveSettings::NAMES);
}
