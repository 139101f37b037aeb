//! Shape of types: fields of a struct, and files over which the `impl` blocks of one type are
//! spread.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use syn::{Item, Type};

use super::graph::Names;
use super::Module;

/// More fields than this are several units in one structure.
pub(crate) const MOST_FIELDS: usize = 16;
/// More files than this with inherent `impl` blocks of one type are one unit cut into slices.
pub(crate) const MOST_IMPL_FILES: usize = 3;

/// Types of a crate that are too wide.
pub(crate) fn breaches(modules: &[Module]) -> Vec<String> {
    let names = Names::of(modules);
    let mut out = Vec::new();
    // By the module that defines the type: two types of one name are two types.
    let mut impls: BTreeMap<(Vec<String>, String), BTreeSet<PathBuf>> = BTreeMap::new();
    for module in modules {
        for item in &module.items {
            match item {
                Item::Struct(s) => {
                    let name = s.ident.to_string();
                    let count = s.fields.len();
                    if count > MOST_FIELDS && !exempt(&s.attrs, &name) {
                        let place = typed(&module.path, &name);
                        out.push(format!("{count} fields of {place}, at most {MOST_FIELDS}"));
                    }
                }
                Item::Impl(block) if block.trait_.is_none() => {
                    let Type::Path(path) = &*block.self_ty else {
                        continue;
                    };
                    let path: Vec<String> = path
                        .path
                        .segments
                        .iter()
                        .map(|s| s.ident.to_string())
                        .collect();
                    let Some(name) = path.last() else { continue };
                    let owner = names.defined_in(&module.path, &path);
                    let owner = owner.unwrap_or_else(|| module.path.clone());
                    let files = impls.entry((owner, name.clone())).or_default();
                    files.insert(module.file.clone());
                }
                _ => {}
            }
        }
    }
    for ((owner, name), files) in impls {
        if files.len() > MOST_IMPL_FILES {
            let (place, count) = (typed(&owner, &name), files.len());
            out.push(format!(
                "impl blocks of {place} in {count} files, at most {MOST_IMPL_FILES}"
            ));
        }
    }
    out
}

fn typed(module: &[String], name: &str) -> String {
    let mut path = module.to_vec();
    path.push(name.to_string());
    path.join("::")
}

/// Layouts of the contract, command lines and settings are lists by nature.
fn exempt(attributes: &[syn::Attribute], name: &str) -> bool {
    let by_attribute = attributes.iter().any(|a| {
        let text = match &a.meta {
            syn::Meta::List(list) => list.tokens.to_string(),
            _ => String::new(),
        };
        (a.path().is_ident("repr") && text.contains('C'))
            || (a.path().is_ident("derive") && (text.contains("Args") || text.contains("Parser")))
    });
    by_attribute
        || ["Config", "Options", "Settings"]
            .iter()
            .any(|e| name.ends_with(e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(file: &str, text: &str) -> Module {
        crate::source::parsed(&[file], file, text)
    }

    #[test]
    fn wide_structures_and_scattered_types_are_named() {
        let fields: String = (0..=MOST_FIELDS).map(|i| format!("f{i}: u8,")).collect();
        let wide = module("a", &format!("struct Wide {{ {fields} }} #[repr(C)] struct Line {{ {fields} }} struct XConfig {{ {fields} }}"));
        assert_eq!(breaches(&[wide]), ["17 fields of a::Wide, at most 16"]);

        let mut files: Vec<Module> = (0..MOST_IMPL_FILES)
            .map(|i| module(&i.to_string(), "use crate::a::Core; impl Core { } impl Clone for Core {} struct Own; impl Own {}"))
            .collect();
        // A type of the same name elsewhere is another one.
        files.push(module("b", "struct Core; impl Core {}"));
        files.push(module("a", "pub struct Core;"));
        assert_eq!(breaches(&files), Vec::<String>::new());
        files.push(module("c", "impl crate::a::Core {}"));
        let spread = "impl blocks of a::Core in 4 files, at most 3";
        assert_eq!(breaches(&files), [spread]);
    }
}
