//! The bindings against the header that they come from, and against the installed one.
//!
//! The test writes a C file that includes the header and asserts, at compile time, every size,
//! offset and value that Rust has, and that every function has the type that Rust calls it with.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;

use gdrcopy_sys as gdr;
use gdrcopy_sys::testing::check_c;

/// Types in C of the functions of the bindings, and the version since which headers declare them.
const FUNCTIONS: [(&str, &str, &str, (i32, i32)); 15] = [
    ("gdr_t", "gdr_open", "void", (2, 0)),
    ("int", "gdr_close", "gdr_t", (2, 0)),
    (
        "int",
        "gdr_pin_buffer",
        "gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t *",
        (2, 0),
    ),
    ("int", "gdr_unpin_buffer", "gdr_t, gdr_mh_t", (2, 0)),
    (
        "int",
        "gdr_get_callback_flag",
        "gdr_t, gdr_mh_t, int *",
        (2, 0),
    ),
    ("int", "gdr_map", "gdr_t, gdr_mh_t, void **, size_t", (2, 0)),
    (
        "int",
        "gdr_unmap",
        "gdr_t, gdr_mh_t, void *, size_t",
        (2, 0),
    ),
    (
        "int",
        "gdr_copy_to_mapping",
        "gdr_mh_t, void *, const void *, size_t",
        (2, 0),
    ),
    (
        "int",
        "gdr_copy_from_mapping",
        "gdr_mh_t, void *, const void *, size_t",
        (2, 0),
    ),
    ("void", "gdr_runtime_get_version", "int *, int *", (2, 0)),
    (
        "int",
        "gdr_driver_get_version",
        "gdr_t, int *, int *",
        (2, 0),
    ),
    (
        "int",
        "gdr_get_info_v2",
        "gdr_t, gdr_mh_t, gdr_info_v2_t *",
        (2, 4),
    ),
    (
        "int",
        "gdr_pin_buffer_v2",
        "gdr_t, unsigned long, size_t, uint32_t, gdr_mh_t *",
        (2, 5),
    ),
    (
        "int",
        "gdr_map_v2",
        "gdr_t, gdr_mh_t, void **, size_t, int",
        (2, 5),
    ),
    (
        "int",
        "gdr_get_attribute",
        "gdr_t, gdr_attr_t, int *",
        (2, 5),
    ),
];

fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// C text that compiles only when a header of that version agrees with the bindings.
fn assertions(version: (i32, i32)) -> String {
    let mut c = String::from("#include \"gdrapi.h\"\n");
    let mut holds = |what: String, is: usize| {
        let _ = writeln!(c, "_Static_assert({what} == {is}, \"{what}\");");
    };
    holds("sizeof(gdr_mh_t)".into(), size_of::<gdr::gdr_mh_t>());
    holds("sizeof(gdr_t)".into(), size_of::<gdr::gdr_t>());
    if version >= (2, 4) {
        holds(
            "sizeof(gdr_info_v2_t)".into(),
            size_of::<gdr::gdr_info_v2_t>(),
        );
        // Offsets alone would not tell a field that has grown into the padding behind it.
        macro_rules! fields {
            ($($field:ident)*) => { $(
                let (name, at) = (stringify!($field), offset_of!(gdr::gdr_info_v2_t, $field));
                holds(format!("offsetof(gdr_info_v2_t, {name})"), at);
                let size = size_of_field(|i: &gdr::gdr_info_v2_t| &i.$field);
                holds(format!("sizeof(((gdr_info_v2_t *)0)->{name})"), size);
            )* };
        }
        fields!(va mapped_size page_size tm_cycles cycles_per_ms mapping_type);
        holds(
            "GDR_MAPPING_TYPE_NONE".into(),
            gdr::GDR_MAPPING_TYPE_NONE as usize,
        );
        holds(
            "GDR_MAPPING_TYPE_WC".into(),
            gdr::GDR_MAPPING_TYPE_WC as usize,
        );
        holds(
            "GDR_MAPPING_TYPE_CACHING".into(),
            gdr::GDR_MAPPING_TYPE_CACHING as usize,
        );
        holds(
            "GDR_MAPPING_TYPE_DEVICE".into(),
            gdr::GDR_MAPPING_TYPE_DEVICE as usize,
        );
    }
    if version >= (2, 5) {
        holds(
            "GDR_PIN_FLAG_FORCE_PCIE".into(),
            gdr::GDR_PIN_FLAG_FORCE_PCIE as usize,
        );
        holds(
            "GDR_MAP_FLAG_REQ_WC_MAPPING".into(),
            gdr::GDR_MAP_FLAG_REQ_WC_MAPPING as usize,
        );
        holds(
            "GDR_ATTR_USE_PERSISTENT_MAPPING".into(),
            gdr::GDR_ATTR_USE_PERSISTENT_MAPPING as usize,
        );
    }
    for (result, name, arguments, since) in FUNCTIONS {
        if since <= version {
            // Another type is an error: pointers to functions do not convert.
            let _ = writeln!(c, "{result} (*const as_{name})({arguments}) = {name};");
        }
    }
    c
}

fn check(test: &str, include: &Path, version: (i32, i32)) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("gdr-abi-{test}-{}.c", std::process::id()));
    std::fs::write(&file, assertions(version)).expect("a temporary file");
    let result = check_c(&file, include);
    let _ = std::fs::remove_file(&file);
    result
}

#[test]
fn the_bindings_have_the_layout_of_our_header() {
    let abi = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi");
    check("ours", &abi, (2, 6)).expect("header and bindings agree");
    // The old layout is a prefix of the younger one: not declared in younger headers.
    assert_eq!(
        offset_of!(gdr::gdr_info_v1_t, bits),
        offset_of!(gdr::gdr_info_v2_t, bits)
    );
    assert_eq!(
        offset_of!(gdr::gdr_info_v1_t, page_size),
        offset_of!(gdr::gdr_info_v2_t, page_size)
    );
}

#[test]
fn a_header_that_drifts_is_found() {
    let dir = std::env::temp_dir().join(format!("gdr-drift-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    let abi = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/gdrapi.h");
    let text = std::fs::read_to_string(abi).expect("our header");
    for (from, to) in [
        ("uint32_t page_size;", "uint64_t page_size;"),
        ("GDR_MAPPING_TYPE_DEVICE = 3", "GDR_MAPPING_TYPE_DEVICE = 4"),
        ("int gdr_unmap(gdr_t g, ", "int gdr_unmap("),
        ("unsigned long h;", "unsigned int h;"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(dir.join("gdrapi.h"), text.replace(from, to)).expect("a header");
        let found = check("drift", &dir, (2, 6));
        assert!(found.is_err(), "{to} went unnoticed");
    }
    let _ = std::fs::remove_dir_all(&dir);
}

/// The header of an installed GDRCopy, and its version.
fn installed() -> Option<(std::path::PathBuf, (i32, i32))> {
    let places = [
        "/usr/include",
        "/usr/local/include",
        "/usr/local/gdrcopy/include",
    ];
    let named = std::env::var_os("GDRCOPY_INCLUDE").map(std::path::PathBuf::from);
    let mut all = named.into_iter().chain(places.map(Into::into));
    let dir = all.find(|dir| dir.join("gdrapi.h").is_file())?;
    let text = std::fs::read_to_string(dir.join("gdrapi.h")).ok()?;
    let number = |name: &str| {
        let line = text
            .lines()
            .find(|l| l.contains(name) && l.starts_with("#define"))?;
        line.split_whitespace().last()?.parse().ok()
    };
    let version = (
        number("GDR_API_MAJOR_VERSION")?,
        number("GDR_API_MINOR_VERSION")?,
    );
    Some((dir, version))
}

#[test]
fn the_bindings_have_the_layout_of_the_installed_header() {
    let Some((dir, version)) = installed() else {
        println!("SKIPPED: no gdrapi.h here; GDRCOPY_INCLUDE names its folder");
        return;
    };
    check("installed", &dir, version)
        .unwrap_or_else(|e| panic!("gdrapi.h {version:?} in {}:\n{e}", dir.display()));
}
