//! A module's directives (§11): version, files, variables, functions.

use std::collections::{BTreeSet, HashMap};

use super::body;
use super::lexer::Token;
use super::reader::Reader;
use super::refusal::{ParseError, Refusal, MOST};
use super::scope::{Names, Scope};
use super::variable::{parameters, variable};
use crate::module::{Formal, Function, Module, Space, Variable};

/// Who sees a name (§11.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linkage {
    /// Its text alone.
    Own,
    /// Defined in another text.
    Extern,
    /// All texts; one definition is enough, and others are left out.
    Weak,
    /// All texts, defined once.
    Visible,
}

/// A module of the texts that were read so far.
pub(super) struct Linked {
    module: Module,
    names: Names,
    /// Lines of the texts before.
    lines: u32,
    /// Variables that have their definition.
    defined: BTreeSet<u32>,
    /// Lines of the first declarations of variables.
    declared: Vec<u32>,
    /// Names that end with the text.
    own: Vec<String>,
}

impl Linked {
    pub(super) fn new(file: &str) -> Linked {
        Linked {
            module: Module {
                file: file.into(),
                version: (0, 0),
                target: 0,
                environment: false,
                variables: Vec::new(),
                functions: Vec::new(),
                addressed: Vec::new(),
                outlined: Vec::new(),
                sources: Vec::new(),
                texts: Vec::new(),
                text_hash: [0; 32],
            },
            names: Names {
                variables: HashMap::new(),
                functions: HashMap::new(),
                addressed: BTreeSet::new(),
                room: MOST,
                first_file: 0,
            },
            lines: 0,
            defined: BTreeSet::new(),
            declared: Vec::new(),
            own: Vec::new(),
        }
    }

    /// Reads a text of so many lines.
    pub(super) fn add(
        &mut self,
        file: &str,
        mut tokens: Vec<Token<'_>>,
        lines: u32,
    ) -> Result<(), ParseError> {
        // Lines count through all texts, and `Module::place` finds a text again.
        for t in &mut tokens {
            t.line = t.line.saturating_add(self.lines);
        }
        self.module.texts.push((self.lines, file.into()));
        let numbers = self.module.sources.iter().map(|(n, _)| n.saturating_add(1));
        self.names.first_file = numbers.max().unwrap_or(0);
        self.directives(&mut Reader::new(tokens))
            .map_err(|refusal| self.refuse(refusal))?;
        self.lines = self.lines.saturating_add(lines);
        for name in self.own.drain(..) {
            self.names.variables.remove(&name);
            self.names.functions.remove(&name);
        }
        Ok(())
    }

    /// The module, in which nothing may be missing.
    pub(super) fn end(mut self) -> Result<Module, ParseError> {
        let m = &mut self.module;
        let missing = m.variables.iter().zip(0u32..);
        let mut missing = missing.filter(|(v, i)| v.is_global() && !self.defined.contains(i));
        if let Some((v, i)) = missing.next() {
            let what = format!("variable `{}` is `.extern` and defined nowhere", v.name);
            let line = self.declared[i as usize];
            return Err(self.refuse((line, what)));
        }
        m.addressed = self.names.addressed.iter().copied().collect();
        match m.outline() {
            Ok(()) => Ok(self.module),
            Err(refusal) => Err(self.refuse(refusal)),
        }
    }

    fn refuse(&self, (line, what): Refusal) -> ParseError {
        let (file, line) = self.module.place(line);
        ParseError {
            file: file.to_owned(),
            line,
            what,
        }
    }

    fn directives(&mut self, r: &mut Reader<'_>) -> Result<(), Refusal> {
        if r.peek() != ".version" {
            return Err(r.unexpected("`.version`, with which PTX begins"));
        }
        let mut linkage = Linkage::Own;
        while !r.at_end() {
            let line = r.line();
            let m = &mut self.module;
            match r.take() {
                ".version" => m.version = m.version.max(version(r, line)?),
                ".target" => m.target = m.target.max(targets(r)?),
                ".address_size" => {
                    if r.count("the address size")? != 64 {
                        return Err((line, "addresses have 64 bits here, not 32".to_owned()));
                    }
                }
                ".file" => source(r, m, self.names.first_file)?,
                ".section" => section(r)?,
                ".pragma" => r.skip_past(";")?,
                ".alias" => alias(r, m, &self.names)?,
                ".visible" => linkage = Linkage::Visible,
                ".weak" | ".common" => linkage = Linkage::Weak,
                ".extern" => linkage = Linkage::Extern,
                ".entry" => {
                    self.function(r, true, Linkage::Visible)?;
                    linkage = Linkage::Own;
                }
                ".func" => {
                    self.function(r, false, linkage)?;
                    linkage = Linkage::Own;
                }
                space @ (".global" | ".const" | ".shared") => {
                    let space = Space::named(&space[1..]).expect("one of the three");
                    loop {
                        let v = variable(r, space, &mut self.names)?;
                        self.declare(v, linkage, line)?;
                        if !r.eat(",") {
                            break;
                        }
                    }
                    r.expect(";")?;
                    linkage = Linkage::Own;
                }
                other => {
                    return Err((line, format!("the emulated GPU does not have `{other}`")));
                }
            }
        }
        Ok(())
    }

    /// A definition takes the place of declarations.
    fn declare(&mut self, v: Variable, linkage: Linkage, line: u32) -> Result<(), Refusal> {
        let m = &mut self.module;
        let known = self.names.variables.get(&v.name).copied();
        let i = known.unwrap_or(m.variables.len() as u32);
        let defines = linkage != Linkage::Extern;
        match m.variables.get_mut(i as usize) {
            Some(_) if defines && self.defined.contains(&i) => {
                if linkage == Linkage::Weak {
                    return Ok(());
                }
                return Err((line, format!("variable `{}` is defined twice", v.name)));
            }
            Some(old) if defines || old.bytes == 0 => {
                if !self.defined.contains(&i) {
                    *old = v;
                }
            }
            Some(_) => {}
            None => {
                if linkage == Linkage::Own {
                    self.own.push(v.name.clone());
                }
                self.names.variables.insert(v.name.clone(), i);
                m.variables.push(v);
                self.declared.push(line);
            }
        }
        if defines {
            self.defined.insert(i);
        }
        Ok(())
    }
}

/// `.alias name, function;` (§11.6.5): another name of a function that is defined before.
fn alias(r: &mut Reader<'_>, m: &mut Module, names: &Names) -> Result<(), Refusal> {
    let line = r.line();
    let name = |r: &mut Reader<'_>| {
        let name = r.word("a function's name")?;
        let known = names.functions.get(name).copied();
        known.ok_or_else(|| (line, format!("there is no function `{name}`")))
    };
    let alias = name(r)? as usize;
    r.expect(",")?;
    let of = name(r)? as usize;
    r.expect(";")?;
    let (function, own) = (&m.functions[of], &m.functions[alias]);
    if !function.defined || function.entry || own.defined || own.entry {
        let what = "an alias is declared as a `.func` without a body, of one with a body";
        return Err((line, what.to_owned()));
    }
    let copy = Function {
        name: own.name.clone(),
        ..function.clone()
    };
    m.functions[alias] = copy;
    Ok(())
}

/// §11.1.1.
fn version(r: &mut Reader<'_>, line: u32) -> Result<(u32, u32), Refusal> {
    let text = r.take();
    let parsed = text
        .split_once('.')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parsed {
        Some(v @ (3..=9, _)) => Ok(v),
        _ => Err((
            line,
            format!("PTX of version `{text}`: versions 3.0 to 9.x can be read"),
        )),
    }
}

/// §11.1.2.
fn targets(r: &mut Reader<'_>) -> Result<u32, Refusal> {
    let mut newest = 0;
    loop {
        let line = r.line();
        let t = r.word("a target")?;
        let known = t.starts_with("sm_")
            || matches!(
                t,
                "texmode_unified" | "texmode_independent" | "debug" | "map_f64_to_f32"
            );
        if !known || t == "map_f64_to_f32" {
            return Err((
                line,
                format!("the emulated GPU does not have the target `{t}`"),
            ));
        }
        // `sm_90a` has features of 9.0 alone.
        let number = t
            .strip_prefix("sm_")
            .map(|n| n.trim_end_matches(['a', 'f']));
        newest = newest.max(number.and_then(|n| n.parse().ok()).unwrap_or(0));
        if !r.eat(",") {
            return Ok(newest);
        }
    }
}

/// `.file number "name"[, time, size]` (§11.5.4).
fn source(r: &mut Reader<'_>, m: &mut Module, first: u32) -> Result<(), Refusal> {
    let n = r.count("the file's number")?.saturating_add(first);
    let name = r.take().to_owned();
    while r.eat(",") {
        r.number()?;
    }
    m.sources.push((n, name));
    Ok(())
}

/// DWARF (§11.5.2), which is skipped.
fn section(r: &mut Reader<'_>) -> Result<(), Refusal> {
    r.word("the section's name")?;
    r.expect("{")?;
    r.skip_past("}")
}

/// A kernel or device function, without its body (§11.2).
fn head(r: &mut Reader<'_>, names: &mut Names, entry: bool) -> Result<Function, Refusal> {
    let line = r.line();
    let mut variables = Vec::new();
    if !entry && r.peek() == "(" {
        parameters(r, &mut variables, Formal::Result, names)?;
    }
    let name = r.word("the function's name")?.to_owned();
    if r.peek() == "(" {
        parameters(r, &mut variables, Formal::Argument, names)?;
    }
    let mut f = Function {
        name,
        entry,
        line,
        max_threads: None,
        variables,
        registers: Vec::new(),
        body: Vec::new(),
        labels: 0,
        defined: false,
    };
    while r.peek().starts_with('.') {
        attribute(r, &mut f)?;
    }
    Ok(f)
}

impl Linked {
    fn function(
        &mut self,
        r: &mut Reader<'_>,
        entry: bool,
        linkage: Linkage,
    ) -> Result<(), Refusal> {
        let (m, names) = (&mut self.module, &mut self.names);
        let mut f = head(r, names, entry)?;
        // Known before its body, because it may call itself.
        let index = match names.functions.get(&f.name) {
            Some(i) => *i,
            None => {
                let i = m.functions.len() as u32;
                if linkage == Linkage::Own {
                    self.own.push(f.name.clone());
                }
                names.functions.insert(f.name.clone(), i);
                m.functions.push(f.clone());
                i
            }
        };
        if r.eat(";") {
            return Ok(());
        }
        let known = &m.functions[index as usize];
        if known.defined && linkage != Linkage::Weak {
            return Err((f.line, format!("function `{}` is defined twice", f.name)));
        }
        if known.variables.len() != f.variables.len() {
            let what = format!(
                "function `{}` is declared with {} parameters and results, and defined with {}",
                f.name,
                known.variables.len(),
                f.variables.len()
            );
            return Err((f.line, what));
        }
        r.expect("{")?;
        f.defined = true;
        let first = !known.defined;
        let mut scope = Scope::new(m, names);
        body::function(r, &mut f, &mut scope)?;
        if first {
            m.functions[index as usize] = f;
        }
        Ok(())
    }
}

/// `.maxntid` and its like, between parameters and body (§11.4).
fn attribute(r: &mut Reader<'_>, f: &mut Function) -> Result<(), Refusal> {
    let line = r.line();
    let name = r.take();
    match name {
        ".maxntid" | ".reqntid" => {
            let mut n = 1u64;
            loop {
                n = n.saturating_mul(u64::from(r.count("a number of threads")?));
                if !r.eat(",") {
                    break;
                }
            }
            f.max_threads = Some(n.min(1024) as u32);
        }
        ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => {
            r.count("the attribute")?;
        }
        ".noreturn" => {}
        ".pragma" => r.skip_past(";")?,
        _ => {
            return Err((
                line,
                format!("the emulated GPU does not have functions with `{name}`"),
            ))
        }
    }
    Ok(())
}
