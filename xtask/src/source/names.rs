//! Names in the root of the crate `ringbell`, of which there are few: a user reads them all.

use anyhow::{bail, Result};
use syn::{Item, UseTree, Visibility};

use super::modules;
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

/// Public names among a module's items.
fn public(items: &[Item]) -> Vec<String> {
    let mut names = Vec::new();
    for item in items {
        let (visibility, name) = match item {
            Item::Use(i) => {
                if matches!(i.vis, Visibility::Public(_)) {
                    leaves(&i.tree, &mut names);
                }
                continue;
            }
            Item::Const(i) => (&i.vis, &i.ident),
            Item::Enum(i) => (&i.vis, &i.ident),
            Item::Fn(i) => (&i.vis, &i.sig.ident),
            Item::Mod(i) => (&i.vis, &i.ident),
            Item::Static(i) => (&i.vis, &i.ident),
            Item::Struct(i) => (&i.vis, &i.ident),
            Item::Trait(i) => (&i.vis, &i.ident),
            Item::Type(i) => (&i.vis, &i.ident),
            Item::Union(i) => (&i.vis, &i.ident),
            _ => continue,
        };
        if matches!(visibility, Visibility::Public(_)) {
            names.push(name.to_string());
        }
    }
    names
}

/// What a `use` brings in. A glob could bring any number, so it counts as too many.
fn leaves(tree: &UseTree, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, names),
        UseTree::Name(name) => names.push(name.ident.to_string()),
        UseTree::Rename(rename) => names.push(rename.rename.to_string()),
        UseTree::Group(group) => group.items.iter().for_each(|t| leaves(t, names)),
        UseTree::Glob(_) => names.extend(std::iter::repeat_n("*".to_string(), MOST + 1)),
    }
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
