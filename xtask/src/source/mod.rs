//! Module tree of a crate, read with `syn`: the product's items, without tests, mocks and benches.
//!
//! A module that is compiled only for tests (`cfg(test)`, the feature `testing`, `doctest`) is left
//! out with everything below it.

mod graph;
pub(crate) mod lines;
pub(crate) mod names;
mod shape;
mod structure;

pub(crate) use structure::{check, report};

use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use syn::{Attribute, Ident, Item, Visibility};

use crate::workspace::root;

/// One module: its path from the crate's root, the file that holds it, and the items that belong to
/// the product.
pub(crate) struct Module {
    /// Names from the crate's root; empty for the root itself.
    pub(crate) path: Vec<String>,
    /// Relative to the repository's root.
    pub(crate) file: PathBuf,
    /// Whether it lies inside another module's file.
    pub(crate) inline: bool,
    /// Its items; bodies of inline modules included.
    pub(crate) items: Vec<Item>,
}

/// Modules of the crate whose root file is `file` (relative to the repository), the root first.
///
/// # Errors
///
/// When a file cannot be read or parsed, with its name.
pub(crate) fn modules(file: &Path) -> Result<Vec<Module>> {
    let mut out = Vec::new();
    let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
    load(file, &folder, &[], &mut out)?;
    Ok(out)
}

fn load(file: &Path, folder: &Path, path: &[String], out: &mut Vec<Module>) -> Result<()> {
    let text = fs_err::read_to_string(root().join(file))?;
    let parsed =
        syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
    if for_tests(&parsed.attrs) {
        return Ok(());
    }
    add(file, folder, path, false, parsed.items, out)
}

fn add(
    file: &Path,
    folder: &Path,
    path: &[String],
    inline: bool,
    items: Vec<Item>,
    out: &mut Vec<Module>,
) -> Result<()> {
    let items: Vec<Item> = items
        .into_iter()
        .filter(|i| !for_tests(attributes(i)))
        .collect();
    let mut below = Vec::new();
    for item in &items {
        let Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        let path: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
        below.push((module.clone(), name, path));
    }
    out.push(Module {
        path: path.to_vec(),
        file: file.to_path_buf(),
        inline,
        items,
    });
    for (module, name, path) in below {
        let inner = folder.join(&name);
        if let Some((_, items)) = module.content {
            add(file, &inner, &path, true, items, out)?;
            continue;
        }
        let beside = folder.join(format!("{name}.rs"));
        let (child, child_folder) = match explicit_path(&module.attrs) {
            Some(given) => {
                let child = file.parent().unwrap_or(Path::new("")).join(given);
                let below = child.parent().map(Path::to_path_buf).unwrap_or_default();
                (child, below)
            }
            None if root().join(&beside).exists() => (beside, inner),
            None if root().join(inner.join("mod.rs")).exists() => (inner.join("mod.rs"), inner),
            None => bail!("{}: no file for module {name}", file.display()),
        };
        load(&child, &child_folder, &path, out)?;
    }
    Ok(())
}

fn explicit_path(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|a| match &a.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}

/// Whether an item is compiled for tests alone.
pub(crate) fn for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        let syn::Meta::List(list) = &a.meta else {
            return a.path().is_ident("test");
        };
        if !list.path.is_ident("cfg") {
            return false;
        }
        let condition = list.tokens.to_string();
        let negated = condition.starts_with("not");
        let words: Vec<&str> = condition
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .collect();
        let testing = words
            .iter()
            .any(|w| matches!(*w, "test" | "testing" | "doctest" | "loom"));
        testing && !negated
    })
}

/// The visibility and the name of an item that has both.
fn named(item: &Item) -> Option<(&Visibility, &Ident)> {
    Some(match item {
        Item::Const(i) => (&i.vis, &i.ident),
        Item::Enum(i) => (&i.vis, &i.ident),
        Item::Fn(i) => (&i.vis, &i.sig.ident),
        Item::Mod(i) => (&i.vis, &i.ident),
        Item::Static(i) => (&i.vis, &i.ident),
        Item::Struct(i) => (&i.vis, &i.ident),
        Item::Trait(i) => (&i.vis, &i.ident),
        Item::Type(i) => (&i.vis, &i.ident),
        Item::Union(i) => (&i.vis, &i.ident),
        _ => return None,
    })
}

/// The attributes of an item of any kind.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::ExternCrate(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::ForeignMod(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::TraitAlias(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

/// A module of this text.
#[cfg(test)]
fn parsed(path: &[&str], file: &str, text: &str) -> Module {
    let mut items = syn::parse_file(text).expect("Rust").items;
    items.retain(|i| !for_tests(attributes(i)));
    Module {
        path: path.iter().map(ToString::to_string).collect(),
        file: PathBuf::from(file),
        inline: false,
        items,
    }
}
