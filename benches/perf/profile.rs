//! Cargo's profile, for what measures: `env!("RINGBELL_PROFILE")`.

use std::path::Path;

/// From the folder of the products: cargo tells a build script only the profile that this one
/// inherits from.
fn name() -> Option<String> {
    let out = std::env::var_os("OUT_DIR")?;
    let mut folders = Path::new(&out).ancestors();
    folders.find(|f| f.ends_with("build"))?;
    let name = folders.next()?.file_name()?.to_str()?;
    Some(if name == "debug" { "dev" } else { name }.into())
}

/// Sets the variable for the package.
pub(crate) fn tell() {
    let name = name().unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=RINGBELL_PROFILE={name}");
}
