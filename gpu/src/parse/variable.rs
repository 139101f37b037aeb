//! A variable (§5.4) or parameter as it is written: type, extents, initial values.

use super::lexer::Number;
use super::reader::Reader;
use super::refusal::Refusal;
use super::scope::Names;
use crate::module::{function_address, Formal, Space, Type, Variable};

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
