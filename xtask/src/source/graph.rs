//! Module graph of a crate: which module uses another one's items, and the cycles in it.
//!
//! An edge goes from the module that names an item to the module that defines it; re-exports are
//! followed. Modules of one folder are compared with each other: an edge between deeper modules
//! counts for the folders that hold them. The folder's own module is among them, as [`OWN`]: its
//! edges are those between a module and the one that holds it. A module that only re-exports an
//! item of its child does not use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{Item, UseTree, Visibility};

use super::{named, Module};

/// The module that a folder belongs to, among the modules of that folder.
pub(crate) const OWN: &str = "mod";

/// Names of modules from a crate's root.
type ModulePath = Vec<String>;
/// For each folder of modules: which of its children use which.
pub(crate) type Levels = BTreeMap<ModulePath, BTreeMap<String, BTreeSet<String>>>;

/// Modules of one folder that reach each other.
pub(crate) struct Cycle {
    /// Path of the folder from the crate's root, with `::`.
    pub(crate) folder: String,
    /// Their names.
    pub(crate) modules: Vec<String>,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (folder, count) = (&self.folder, self.modules.len());
        let modules = self.modules.join(" ");
        write!(f, "cycle of {count} in crate::{folder}: {modules}")
    }
}

/// All cycles of the graph.
pub(crate) fn cycles(levels: &Levels) -> Vec<Cycle> {
    let mut out = Vec::new();
    for (folder, graph) in levels {
        for modules in components(graph).into_iter().filter(|c| c.len() > 1) {
            let folder = folder.join("::");
            out.push(Cycle { folder, modules });
        }
    }
    out
}

/// The top level's modules by floor: a module stands one above the highest that it uses. Modules of
/// a cycle share a floor.
pub(crate) fn floors(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let mut height: BTreeMap<&str, usize> = BTreeMap::new();
    // Components come lowest first: what they use outside themselves has its height already.
    let components = components(graph);
    for component in &components {
        let own = component
            .iter()
            .filter_map(|m| graph.get(m))
            .flatten()
            .filter(|u| !component.contains(u))
            .map(|u| height.get(u.as_str()).map_or(0, |h| h + 1))
            .max()
            .unwrap_or(0);
        for module in component {
            height.insert(module, own);
        }
    }
    let mut floors = vec![Vec::new(); height.values().max().map_or(0, |h| h + 1)];
    for (module, floor) in height {
        floors[floor].push(module.to_string());
    }
    floors
}

/// The edges among a crate's modules.
pub(crate) fn levels(modules: &[Module]) -> Levels {
    let names = Names::of(modules);
    let mut out = Levels::new();
    for module in modules {
        for child in names.children(&module.path) {
            out.entry(module.path.clone())
                .or_default()
                .entry(child)
                .or_default();
        }
        for (used, needed) in names.used(module) {
            let shared = module
                .path
                .iter()
                .zip(&used)
                .take_while(|(a, b)| a == b)
                .count();
            let own = || OWN.to_string();
            let (from, to) = (module.path.get(shared), used.get(shared));
            if from.is_none() && !needed {
                continue;
            }
            let (from, to) = (
                from.cloned().unwrap_or_else(own),
                to.cloned().unwrap_or_else(own),
            );
            let level = out.entry(module.path[..shared].to_vec()).or_default();
            level.entry(from).or_default().insert(to);
        }
    }
    out
}

/// Definitions and imports of each module, for the resolution of paths.
pub(crate) struct Names {
    modules: BTreeSet<ModulePath>,
    defined: BTreeSet<(ModulePath, String)>,
    imported: BTreeMap<(ModulePath, String), Vec<String>>,
    globs: BTreeMap<ModulePath, Vec<Vec<String>>>,
}

impl Names {
    pub(crate) fn of(modules: &[Module]) -> Self {
        let mut names = Self {
            modules: modules.iter().map(|m| m.path.clone()).collect(),
            defined: BTreeSet::new(),
            imported: BTreeMap::new(),
            globs: BTreeMap::new(),
        };
        for module in modules {
            for item in &module.items {
                match item {
                    Item::Use(import) => {
                        for (path, alias) in leaves(&import.tree) {
                            match alias {
                                Some(alias) => {
                                    names.imported.insert((module.path.clone(), alias), path);
                                }
                                None => names
                                    .globs
                                    .entry(module.path.clone())
                                    .or_default()
                                    .push(path),
                            }
                        }
                    }
                    other => {
                        if let Some(name) = defines(other) {
                            names.defined.insert((module.path.clone(), name));
                        }
                    }
                }
            }
        }
        names
    }

    fn children(&self, path: &[String]) -> Vec<String> {
        self.modules
            .iter()
            .filter(|m| m.len() == path.len() + 1 && m.starts_with(path))
            .filter_map(|m| m.last().cloned())
            .collect()
    }

    /// The module that defines the type which `path` names in module `at`.
    pub(crate) fn defined_in(&self, at: &[String], path: &[String]) -> Option<ModulePath> {
        let name = path.last()?;
        if path.len() == 1 && self.defined.contains(&(at.to_vec(), name.clone())) {
            return Some(at.to_vec());
        }
        self.resolve(at, path, 0)
    }

    /// Modules whose items `module` names, itself left out; and whether it does more than re-export
    /// them.
    fn used(&self, module: &Module) -> BTreeMap<ModulePath, bool> {
        let (mut paths, mut words) = (Vec::new(), BTreeSet::new());
        for item in &module.items {
            // Inline modules are modules of their own.
            if !matches!(item, Item::Use(_) | Item::Mod(_)) {
                written(item.to_token_stream(), &mut paths);
                idents(item.to_token_stream(), &mut words);
            }
        }
        let mut paths: Vec<_> = paths.into_iter().map(|p| (p, true)).collect();
        for item in &module.items {
            let Item::Use(import) = item else { continue };
            let own = matches!(import.vis, Visibility::Inherited);
            let leaves = leaves(&import.tree).into_iter();
            paths.extend(leaves.map(|(path, alias)| {
                let needed = own || alias.is_some_and(|name| words.contains(&name));
                (path, needed)
            }));
        }
        let mut out = BTreeMap::new();
        for (path, needed) in paths {
            let used = self.resolve(&module.path, &path, 0);
            if let Some(used) = used.filter(|m| *m != module.path) {
                *out.entry(used).or_default() |= needed;
            }
        }
        out
    }

    /// The module that defines the item that `path` names in module `at`; none for items outside
    /// the crate.
    fn resolve(&self, at: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        // Re-exports that name each other in a ring do not compile; the bound protects against
        // errors of this parser.
        if depth > 16 {
            return None;
        }
        let mut here = at.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                here.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|s| s == "super") {
                    here.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                let known = self.modules.contains(&child(&here, first))
                    || self
                        .imported
                        .contains_key(&(here.clone(), first.to_string()));
                if !known {
                    return None;
                }
            }
        }
        while let Some(name) = rest.first() {
            let below = child(&here, name);
            let key = (here.clone(), name.clone());
            if self.modules.contains(&below) {
                here = below;
                rest = &rest[1..];
            } else if self.defined.contains(&key) {
                return Some(here);
            } else if let Some(target) = self.imported.get(&key) {
                let longer: Vec<String> = target.iter().chain(&rest[1..]).cloned().collect();
                // An import of the same name from outside, for example `use std::fmt`.
                return self.resolve(&here, &longer, depth + 1);
            } else {
                let through = self
                    .globs
                    .get(&here)
                    .into_iter()
                    .flatten()
                    .find_map(|glob| {
                        let longer: Vec<String> = glob.iter().chain(rest).cloned().collect();
                        let module = self.resolve(&here, &longer, depth + 1)?;
                        self.defined
                            .contains(&(module.clone(), name.clone()))
                            .then_some(module)
                    });
                return through.or(Some(here));
            }
        }
        Some(here)
    }
}

fn child(path: &[String], name: &str) -> ModulePath {
    path.iter().cloned().chain([name.to_string()]).collect()
}

fn defines(item: &Item) -> Option<String> {
    match item {
        // Modules are known by their paths.
        Item::Mod(_) => None,
        Item::Macro(i) => i.ident.as_ref().map(ToString::to_string),
        other => named(other).map(|(_, name)| name.to_string()),
    }
}

/// The paths of an import, each with the name it gets; none for a glob.
pub(super) fn leaves(tree: &UseTree) -> Vec<(Vec<String>, Option<String>)> {
    match tree {
        UseTree::Path(path) => leaves(&path.tree)
            .into_iter()
            .map(|(mut rest, name)| {
                rest.insert(0, path.ident.to_string());
                // `use a::b::{self}` gives the name `b`.
                match rest.last().map(String::as_str) {
                    Some("self") if rest.len() > 1 => {
                        rest.pop();
                        let name = name
                            .filter(|n| n != "self")
                            .or_else(|| rest.last().cloned());
                        (rest, name)
                    }
                    _ => (rest, name),
                }
            })
            .collect(),
        UseTree::Name(name) => vec![(vec![name.ident.to_string()], Some(name.ident.to_string()))],
        UseTree::Rename(as_) => {
            vec![(vec![as_.ident.to_string()], Some(as_.rename.to_string()))]
        }
        UseTree::Glob(_) => vec![(Vec::new(), None)],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
    }
}

/// Paths that begin with `crate`, `self`, `super` or a module's name, in code and inside macros.
fn written(tokens: TokenStream, paths: &mut Vec<Vec<String>>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let colons = |i: usize| {
        let colon =
            |t: Option<&TokenTree>| matches!(t, Some(TokenTree::Punct(p)) if p.as_char() == ':');
        colon(tokens.get(i)) && colon(tokens.get(i + 1))
    };
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            // `pub(in path)` says who may use an item, and uses nothing.
            TokenTree::Ident(word) if word == "pub" && in_path(tokens.get(i + 1)) => i += 1,
            TokenTree::Group(group) => written(group.stream(), paths),
            TokenTree::Ident(first) if i < 2 || !colons(i - 2) => {
                let mut path = vec![first.to_string()];
                while let (true, Some(TokenTree::Ident(next))) = (colons(i + 1), tokens.get(i + 3))
                {
                    path.push(next.to_string());
                    i += 3;
                }
                if path.len() > 1 {
                    paths.push(path);
                }
            }
            _ => {}
        }
        i += 1;
    }
}

/// Whether it is the `(in path)` of a visibility.
fn in_path(token: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(group)) = token else {
        return false;
    };
    let first = group.stream().into_iter().next();
    matches!(first, Some(TokenTree::Ident(word)) if word == "in")
}

/// Every word of code, inside macros too.
fn idents(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => idents(group.stream(), words),
            TokenTree::Ident(word) => drop(words.insert(word.to_string())),
            _ => {}
        }
    }
}

/// Groups of modules that reach each other, those that others depend on first.
fn components(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let mut reached: Vec<(&str, BTreeSet<&str>)> = Vec::new();
    for node in graph.keys() {
        let (mut seen, mut next) = (BTreeSet::new(), vec![node.as_str()]);
        while let Some(node) = next.pop() {
            if seen.insert(node) {
                next.extend(graph.get(node).into_iter().flatten().map(String::as_str));
            }
        }
        reached.push((node, seen));
    }
    // Nodes that reach each other reach the same; what a node depends on reaches less than itself.
    reached.sort_by_key(|(_, seen)| seen.len());
    let mut out: Vec<(BTreeSet<&str>, Vec<String>)> = Vec::new();
    for (node, seen) in reached {
        match out.iter_mut().find(|(of, _)| *of == seen) {
            Some((_, component)) => component.push(node.to_owned()),
            None => out.push((seen, vec![node.to_owned()])),
        }
    }
    out.into_iter().map(|(_, component)| component).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &[&str], text: &str) -> Module {
        crate::source::parsed(path, "", text)
    }

    fn told(modules: &[Module]) -> Vec<String> {
        let cycles = cycles(&levels(modules)).into_iter();
        cycles.map(|cycle| cycle.to_string()).collect()
    }

    fn edges(modules: &[Module]) -> Vec<String> {
        let mut out = Vec::new();
        for (folder, graph) in levels(modules) {
            for (from, used) in graph {
                out.extend(
                    used.iter()
                        .map(|to| format!("{}:{from}>{to}", folder.join("::"))),
                );
            }
        }
        out
    }

    #[test]
    fn a_planted_cycle_is_found_and_named() {
        let mut modules = vec![
            module(&[], "mod a; mod b; mod c; pub use a::A;"),
            module(&["a"], "use crate::b::B; pub struct A(B);"),
            module(&["b"], "pub struct B; fn f() { crate::c::run() }"),
            module(&["c"], "pub fn run() {}"),
        ];
        assert!(told(&modules).is_empty());
        // Through a re-export of the root, inside a macro.
        modules[3] = module(&["c"], "pub fn run() { log!(\"{}\", crate::A::NAME) }");
        assert_eq!(told(&modules), ["cycle of 3 in crate::: a b c"]);
    }

    #[test]
    fn a_module_and_its_parent_form_a_cycle_unless_the_parent_only_re_exports() {
        let child = module(&["a"], "pub struct A; impl crate::Root { fn f() {} }");
        let facade = module(&[], "mod a; pub use a::A; pub struct Root;");
        assert!(told(&[facade, child]).is_empty());
        let child = || module(&["a"], "pub struct A; impl crate::Root { fn f() {} }");
        for user in [
            "mod a; pub use a::A; pub struct Root(A);",
            "mod a; use a::A; pub struct Root;",
            "mod a; pub struct Root; fn f() { a::A }",
        ] {
            let cycle = told(&[module(&[], user), child()]);
            assert_eq!(cycle, ["cycle of 2 in crate::: a mod"], "{user}");
        }
    }

    #[test]
    fn the_path_of_a_visibility_is_no_use() {
        let parent = module(&[], "mod a; use a::A; pub struct Root;");
        let child = module(
            &["a"],
            "pub(in crate::Root) struct A { pub(in crate::Root) x: u8 }",
        );
        assert!(told(&[parent, child]).is_empty());
    }

    #[test]
    fn edges_lie_between_the_folders_that_hold_the_modules() {
        let modules = [
            module(&[], "mod a; mod b;"),
            module(&["a"], "mod x; mod y; pub struct Own;"),
            module(
                &["a", "x"],
                "use super::{y::{self, Y as Why}, Own}; use crate::b::*; use std::fmt;",
            ),
            module(&["a", "y"], "pub struct Y;"),
            module(&["b"], "pub struct B;"),
        ];
        assert_eq!(edges(&modules), [":a>b", "a:x>mod", "a:x>y"]);
    }

    #[test]
    fn a_name_belongs_to_the_module_that_defines_it_not_to_an_importer() {
        let modules = [
            module(&[], "mod a; mod b; mod c;"),
            module(&["a"], "use crate::b::B; use super::c::*; fn f(b: B) {}"),
            module(&["b"], "pub use crate::c::B;"),
            module(&["c"], "pub struct B;"),
        ];
        assert_eq!(edges(&modules), [":a>c", ":b>c"]);
    }

    #[test]
    fn floors_are_ordered_by_use_and_cycles_share_one() {
        let graph: BTreeMap<String, BTreeSet<String>> = [
            ("a", vec!["b", "c"]),
            ("b", vec!["c"]),
            ("c", vec!["d"]),
            ("d", vec!["c"]),
        ]
        .into_iter()
        .map(|(k, v)| (k.to_string(), v.into_iter().map(str::to_string).collect()))
        .collect();
        assert_eq!(floors(&graph), [vec!["c", "d"], vec!["b"], vec!["a"]]);
    }
}
