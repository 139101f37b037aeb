//! Generation of `src/bindings.rs` from `abi/gdrapi.h` by bindgen (feature `bindgen`), which needs
//! libclang.

use std::panic::catch_unwind;
use std::path::Path;

/// Bindings cannot be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// bindgen loads libclang at run time.
    #[error("libclang is not here: {0}; install it (Debian: `libclang-dev`), or set LIBCLANG_PATH to its folder")]
    NoClang(String),
    /// bindgen refuses the header.
    #[error("bindgen cannot read abi/gdrapi.h: {0}")]
    Refused(#[from] bindgen::BindgenError),
}

/// The text of `src/bindings.rs`, as bindgen makes it of the header today.
///
/// # Errors
/// [`GenerateError`].
pub fn generate() -> Result<String, GenerateError> {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi/gdrapi.h");
    // bindgen panics where it finds no libclang.
    let version = catch_unwind(bindgen::clang_version);
    if let Err(why) = version {
        let why = why.downcast_ref::<String>().cloned();
        return Err(GenerateError::NoClang(why.unwrap_or_default()));
    }
    let rust = bindgen::RustTarget::stable(82, 0).unwrap_or_default();
    let bindings = bindgen::Builder::default()
        .header(header.to_string_lossy())
        .dynamic_library_name("Gdrapi")
        .layout_tests(false)
        .allowlist_function("gdr_.*")
        .allowlist_type("gdr_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .rust_target(rust)
        .generate()?;
    Ok(bindings.to_string())
}
