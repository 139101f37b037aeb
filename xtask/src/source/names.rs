//! Names in the root of the crate `ringbell`, of which there are few: a user reads them all.

use anyhow::{bail, Result};
use syn::{Item, Visibility};

use super::graph::leaves;
use super::{modules, named};
use crate::steps::Outcome;

/// Most public names in the root: types, functions and modules.
const MOST: usize = 45;

/// Lint step: counts them.
pub(crate) fn check() -> Result<Outcome> {
    let modules = modules("src/lib.rs".as_ref())?;
    let names = modules.first().map(|m| public(&m.items));
    let names = names.unwrap_or_default();
    if names.len() > MOST {
        bail!(
            "the root of `ringbell` has {} public names, and {MOST} are the limit; put one into the module of its part: {}",
            names.len(),
            names.join(", ")
        );
    }
    println!("{} public names in the root of `ringbell`", names.len());
    Ok(Outcome::Passed)
}

/// Public names among a module's items. A glob could bring any number, so it counts as too many.
fn public(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        match item {
            Item::Use(i) if matches!(i.vis, Visibility::Public(_)) => {
                for (_, name) in leaves(&i.tree) {
                    match name {
                        Some(name) => names.push(name),
                        None => names.extend(std::iter::repeat_n("*".to_string(), MOST + 1)),
                    }
                }
            }
            other => {
                if let Some((Visibility::Public(_), name)) = named(other) {
                    names.push(name.to_string());
                }
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_names_are_counted_in_every_syntax() {
        let text = "
            mod hidden; pub mod shown; use a::B; pub(crate) use a::C;
            pub use a::{b::D, E as F, g}; pub fn h() {} struct I; pub struct J;
            pub trait K {} pub type L = u8; pub const M: u8 = 1;
        ";
        let items = syn::parse_file(text).expect("Rust").items;
        let want = ["shown", "D", "F", "g", "h", "J", "K", "L", "M"];
        assert_eq!(public(&items), want);
        let glob = syn::parse_file("pub use a::*;").expect("Rust").items;
        assert!(public(&glob).len() > MOST);
    }
}
