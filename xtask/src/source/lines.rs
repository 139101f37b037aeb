//! Product lines: lines of Rust with code on them that a user of the SDK or the command compiles.
//!
//! A line counts when a token of the program begins, ends or runs on it. Blank lines, comments and
//! documentation do not count, nor do tests, mocks, criterion benches, examples, fuzz targets and
//! xtask.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::{attributes, for_tests, modules, Module};
use crate::style::tracked;
use crate::workspace::root;

/// Folders whose crates are no product.
const NO_PRODUCT: [&str; 5] = ["xtask", "fuzz", "mocks", "tests", "examples"];

/// Prints product lines by crate and folder, and their sum.
pub(crate) fn report() -> Result<()> {
    let counts = count()?;
    let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
    for (file, lines) in &counts {
        *rooms.entry(room(file)).or_default() += lines;
    }
    for (room, lines) in &rooms {
        println!("{lines:>7}  {room}");
    }
    let files = counts.len();
    println!(
        "{:>7}  product lines in {files} files",
        counts.values().sum::<usize>()
    );
    Ok(())
}

/// The folder under which a file is reported: the crate, and one folder below its sources.
fn room(file: &Path) -> String {
    let parts: Vec<&str> = file.iter().filter_map(|p| p.to_str()).collect();
    let Some(sources) = parts.iter().position(|p| *p == "src") else {
        return parts.first().copied().unwrap_or_default().to_string();
    };
    let deep = (sources + 2).min(parts.len() - 1);
    parts[..deep.max(1)].join("/")
}

/// Product lines of each file.
fn count() -> Result<BTreeMap<PathBuf, usize>> {
    let mut lines: BTreeMap<PathBuf, BTreeSet<usize>> = BTreeMap::new();
    for root_file in crate_roots()? {
        for module in modules(&root_file)? {
            if !module.inline {
                lines
                    .entry(module.file.clone())
                    .or_default()
                    .extend(code(&module));
            }
        }
    }
    Ok(lines.into_iter().map(|(file, l)| (file, l.len())).collect())
}

/// `src/lib.rs` and `src/main.rs` of every crate of the product, and its build scripts.
fn crate_roots() -> Result<Vec<PathBuf>> {
    let roots = ["src/lib.rs", "src/main.rs", "build.rs"];
    let mut files = tracked()?;
    files.retain(|p| {
        let path = Path::new(p);
        let product = !NO_PRODUCT.iter().any(|folder| path.starts_with(folder));
        product && roots.iter().any(|r| path.ends_with(r)) && root().join(path).exists()
    });
    Ok(files.into_iter().map(PathBuf::from).collect())
}

/// Lines of a module's file that hold tokens of the product.
fn code(module: &Module) -> BTreeSet<usize> {
    use quote::ToTokens as _;
    let mut lines = BTreeSet::new();
    for item in &module.items {
        let mut item = item.clone();
        prune(&mut item);
        walk(item.to_token_stream(), &mut lines);
    }
    lines
}

/// Removes inline modules' and impls' items for tests.
fn prune(item: &mut syn::Item) {
    match item {
        syn::Item::Mod(module) => {
            if let Some((_, items)) = &mut module.content {
                items.retain(|i| !for_tests(attributes(i)));
                items.iter_mut().for_each(prune);
            }
        }
        syn::Item::Impl(block) => block.items.retain(|i| match i {
            syn::ImplItem::Fn(f) => !for_tests(&f.attrs),
            syn::ImplItem::Const(c) => !for_tests(&c.attrs),
            _ => true,
        }),
        _ => {}
    }
}

fn walk(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        // `///` is the attribute `doc`; so is `#[doc = "..."]`, which is documentation as well.
        if let (TokenTree::Punct(p), Some(TokenTree::Group(group))) = (&token, tokens.peek()) {
            let doc = group.delimiter() == Delimiter::Bracket
                && group
                    .stream()
                    .into_iter()
                    .next()
                    .is_some_and(|t| t.to_string() == "doc");
            if p.as_char() == '#' && doc {
                tokens.next();
                continue;
            }
        }
        match &token {
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                lines.insert(group.span_close().end().line);
                walk(group.stream(), lines);
            }
            other => {
                let span = other.span();
                lines.extend(span.start().line..=span.end().line);
            }
        }
    }
    lines.remove(&0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_tests_and_blank_lines_are_no_product() {
        let text = "//! Text.\n\n/// Doc.\nfn a() {\n    // why\n    b(\"x\n    y\");\n}\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\nmod d {\n    #[cfg(test)]\n    fn e() {}\n    fn f() {}\n}\n";
        let module = crate::source::parsed(&[], "", text);
        assert_eq!(
            code(&module).into_iter().collect::<Vec<_>>(),
            [4, 6, 7, 8, 13, 16, 17]
        );
    }

    #[test]
    fn rooms_are_a_crate_and_a_folder() {
        assert_eq!(room(Path::new("nic-core/src/queue.rs")), "nic-core/src");
        assert_eq!(room(Path::new("net/src/port/udp/proof.rs")), "net/src/port");
        assert_eq!(room(Path::new("cli/src/hll/mod.rs")), "cli/src/hll");
    }
}
