//! A module's directives (§11): version, files, variables, functions.

use std::collections::{BTreeSet, HashMap};

use super::body::{self, Scope};
use super::lexer::{Number, Token};
use super::reader::Reader;
use super::{Refusal, MOST};
use crate::module::{function_address, Formal, Function, Module, Space, Type, Variable};

/// What the whole module declares.
pub(super) struct Names {
    pub(super) variables: HashMap<String, u32>,
    pub(super) functions: HashMap<String, u32>,
    /// Functions whose address is taken.
    pub(super) addressed: BTreeSet<u32>,
    /// Statements that are still allowed.
    pub(super) room: u32,
}

pub(super) fn module(file: &str, tokens: Vec<Token<'_>>) -> Result<Module, Refusal> {
    let mut r = Reader::new(tokens);
    let mut names = Names {
        variables: HashMap::new(),
        functions: HashMap::new(),
        addressed: BTreeSet::new(),
        room: MOST,
    };
    let mut m = Module {
        file: file.into(),
        version: (0, 0),
        variables: Vec::new(),
        functions: Vec::new(),
        addressed: Vec::new(),
        outlined: Vec::new(),
        sources: Vec::new(),
        text_hash: [0; 32],
    };
    if r.peek() != ".version" {
        return Err(r.unexpected("`.version`, with which PTX begins"));
    }
    while !r.at_end() {
        let line = r.line();
        match r.take() {
            ".version" => m.version = version(&mut r, line)?,
            ".target" => targets(&mut r)?,
            ".address_size" => {
                if r.count("the address size")? != 64 {
                    return Err((line, "addresses have 64 bits here, not 32".to_owned()));
                }
            }
            ".file" => source(&mut r, &mut m)?,
            ".section" => section(&mut r)?,
            ".pragma" | ".alias" => r.skip_past(";")?,
            ".visible" | ".weak" | ".common" | ".extern" => {}
            ".entry" => function(&mut r, &mut m, &mut names, true)?,
            ".func" => function(&mut r, &mut m, &mut names, false)?,
            space @ (".global" | ".const" | ".shared") => {
                let space = Space::named(&space[1..]).expect("one of the three");
                loop {
                    let v = variable(&mut r, space, &mut names)?;
                    declare(&mut m, &mut names, v);
                    if !r.eat(",") {
                        break;
                    }
                }
                r.expect(";")?;
            }
            other => {
                return Err((line, format!("the emulated GPU does not have `{other}`")));
            }
        }
    }
    m.addressed = names.addressed.into_iter().collect();
    m.outline()?;
    Ok(m)
}

/// A definition takes the place of an earlier declaration.
fn declare(m: &mut Module, names: &mut Names, v: Variable) {
    match names.variables.get(&v.name) {
        Some(i) => {
            let old = &mut m.variables[*i as usize];
            if v.bytes > 0 || old.bytes == 0 {
                *old = v;
            }
        }
        None => {
            names
                .variables
                .insert(v.name.clone(), m.variables.len() as u32);
            m.variables.push(v);
        }
    }
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
fn targets(r: &mut Reader<'_>) -> Result<(), Refusal> {
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
        if !r.eat(",") {
            return Ok(());
        }
    }
}

/// `.file number "name"[, time, size]` (§11.5.4).
fn source(r: &mut Reader<'_>, m: &mut Module) -> Result<(), Refusal> {
    let n = r.count("the file's number")?;
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

/// A variable behind its space: `.align 4 .b8 name[16] = {1, 2}` (§5.4).
pub(super) fn variable(
    r: &mut Reader<'_>,
    space: Space,
    names: &mut Names,
) -> Result<Variable, Refusal> {
    let (mut ty, mut align, mut lanes) = (None, 0, 1u32);
    let name = loop {
        let line = r.line();
        let word = r.word("a variable")?;
        match word {
            ".align" => align = r.count("the alignment")?,
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            // What the pointer points to (§5.4.8): nothing that matters here.
            ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
            ".attribute" => {
                r.expect("(")?;
                r.skip_past(")")?;
            }
            _ if word.starts_with('.') => match Type::named(&word[1..]) {
                Some(t) if t != Type::Pred => ty = Some(t),
                _ => {
                    return Err((
                        line,
                        format!("the emulated GPU does not have variables of `{word}`"),
                    ))
                }
            },
            _ => break word.to_owned(),
        }
    };
    let line = r.line();
    let ty = ty.ok_or_else(|| (line, format!("variable `{name}` has no type")))?;
    let mut count = u64::from(lanes);
    while r.eat("[") {
        count = match r.peek() {
            "]" => 0,
            _ => count.saturating_mul(u64::from(r.count("the number of elements")?)),
        };
        r.expect("]")?;
    }
    let bytes = count
        .checked_mul(u64::from(ty.bytes()))
        .filter(|b| *b <= 1 << 31);
    let bytes = bytes.ok_or_else(|| (line, format!("variable `{name}` is larger than 2 GiB")))?;
    let align = if align == 0 {
        ty.bytes() * lanes
    } else {
        align
    };
    if !align.is_power_of_two() || align > 1 << 16 {
        return Err((
            line,
            format!("variable `{name}` has an alignment of {align}"),
        ));
    }
    let mut v = Variable {
        name,
        space,
        bytes: bytes as u32,
        align,
        initial: Vec::new(),
        pointers: Vec::new(),
        formal: None,
    };
    if r.eat("=") {
        initialiser(r, &mut v, ty, names)?;
    }
    Ok(v)
}

/// §5.4.4: numbers, and addresses of variables, in braces of any depth.
fn initialiser(
    r: &mut Reader<'_>,
    v: &mut Variable,
    ty: Type,
    names: &mut Names,
) -> Result<(), Refusal> {
    let mut depth = 0u32;
    loop {
        let line = r.line();
        match r.peek() {
            "{" => {
                r.take();
                depth += 1;
            }
            "}" if depth > 0 => {
                r.take();
                depth -= 1;
            }
            "," if depth > 0 => {
                r.take();
            }
            word if word.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.') => {
                let bits = match (r.number()?, ty) {
                    (Number::Int(n), Type::F32) => u64::from((n as f32).to_bits()),
                    (Number::Int(n), Type::F64) => (n as f64).to_bits(),
                    (Number::F64(n), Type::F32) => u64::from((f64::from_bits(n) as f32).to_bits()),
                    (Number::Int(n), _) => n as u64,
                    (Number::F32(n), _) => u64::from(n),
                    (Number::F64(n), _) => n,
                };
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&bits.to_le_bytes());
                v.initial.extend_from_slice(&bytes[..ty.bytes() as usize]);
            }
            _ => {
                let mut name = r.word("an initial value")?;
                if name == "generic" {
                    r.expect("(")?;
                    name = r.word("a variable")?;
                    r.expect(")")?;
                }
                if let Some(f) = names.functions.get(name).filter(|_| ty.bytes() == 8) {
                    names.addressed.insert(*f);
                    let address = function_address(*f).to_le_bytes();
                    v.initial.extend_from_slice(&address);
                    if depth == 0 {
                        break;
                    }
                    continue;
                }
                let target = names
                    .variables
                    .get(name)
                    .copied()
                    .filter(|_| ty.bytes() == 8);
                let Some(target) = target else {
                    return Err((
                        line,
                        format!("initial value `{name}` is no known variable's address"),
                    ));
                };
                let add = if r.eat("+") {
                    i64::from(r.count("the offset")?)
                } else {
                    0
                };
                v.pointers.push((v.initial.len() as u32, target, add));
                v.initial.extend_from_slice(&[0; 8]);
            }
        }
        if depth == 0 {
            break;
        }
    }
    if v.bytes == 0 {
        v.bytes = v.initial.len() as u32;
    }
    if v.initial.len() > v.bytes as usize {
        return Err((
            r.line(),
            format!("variable `{}` has too many initial values", v.name),
        ));
    }
    Ok(())
}

/// A kernel or device function (§11.2).
fn function(
    r: &mut Reader<'_>,
    m: &mut Module,
    names: &mut Names,
    entry: bool,
) -> Result<(), Refusal> {
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
    // Known before its body, because it may call itself.
    let index = match names.functions.get(&f.name) {
        Some(i) => *i,
        None => {
            let i = m.functions.len() as u32;
            names.functions.insert(f.name.clone(), i);
            m.functions.push(f.clone());
            i
        }
    };
    if r.eat(";") {
        return Ok(());
    }
    r.expect("{")?;
    f.defined = true;
    let mut scope = Scope::new(m, names);
    body::function(r, &mut f, &mut scope)?;
    m.functions[index as usize] = f;
    Ok(())
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

pub(super) fn parameters(
    r: &mut Reader<'_>,
    out: &mut Vec<Variable>,
    formal: Formal,
    names: &mut Names,
) -> Result<(), Refusal> {
    r.expect("(")?;
    while !r.eat(")") {
        let line = r.line();
        if r.eat(".reg") {
            return Err((
                line,
                "the emulated GPU does not have parameters in registers".to_owned(),
            ));
        }
        r.expect(".param")?;
        let mut v = variable(r, Space::Param, names)?;
        v.formal = Some(formal);
        out.push(v);
        if !r.eat(",") && r.peek() != ")" {
            return Err(r.unexpected("`,` or `)`"));
        }
    }
    Ok(())
}
