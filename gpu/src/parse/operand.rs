//! Operands of instructions (§6).

use super::lexer::Number;
use super::reader::Reader;
use super::refusal::Refusal;
use super::scope::Scope;
use crate::module::{function_address, Address, Base, Operand, Special, Symbol, Target};

/// An operand as it is written.
#[derive(Debug, Clone)]
pub(super) enum Arg<'t> {
    Value(Operand),
    Address(Address),
    /// `{a, b}`, or `(a, b)` of a call.
    List(Vec<Arg<'t>>),
    /// `d|p`.
    Pair(Box<Arg<'t>>, Box<Arg<'t>>),
    /// `_`.
    Sink,
    /// A label, or another name.
    Name(&'t str),
    /// A function.
    Function(&'t str, u32),
}

/// Deepest nesting of lists; the ISA has one.
const DEEPEST: u32 = 4;

pub(super) fn arg<'t>(
    r: &mut Reader<'t>,
    scope: &Scope<'_>,
    depth: u32,
) -> Result<Arg<'t>, Refusal> {
    let line = r.line();
    if depth > DEEPEST {
        return Err((line, "operands are nested too deep".to_owned()));
    }
    let first = match r.peek() {
        open @ ("{" | "(") => {
            let close = if open == "{" { "}" } else { ")" };
            r.take();
            let mut list = Vec::new();
            while !r.eat(close) {
                list.push(arg(r, scope, depth + 1)?);
                if !r.eat(",") && r.peek() != close {
                    return Err(r.unexpected(&format!("`,` or `{close}`")));
                }
            }
            Arg::List(list)
        }
        "[" => {
            r.take();
            Arg::Address(address(r, scope)?)
        }
        "!" => {
            r.take();
            let name = r.word("a predicate")?;
            let reg = scope.register(name);
            Arg::Value(Operand::Not(reg.ok_or_else(|| unknown(line, name))?))
        }
        "_" => {
            r.take();
            Arg::Sink
        }
        "-" => Arg::Value(constant(r.number()?)),
        word if word.starts_with(|c: char| c.is_ascii_digit()) => Arg::Value(constant(r.number()?)),
        _ => {
            let name = r.word("an operand")?;
            match named(scope, name) {
                Some(Operand::Symbol(s, _)) => {
                    let offset = offset(r)?;
                    Arg::Value(Operand::Symbol(s, offset))
                }
                Some(o) => Arg::Value(o),
                None if name.starts_with('%') => return Err(unknown(line, name)),
                None => match scope.names.functions.get(name) {
                    Some(f) => Arg::Function(name, *f),
                    None => Arg::Name(name),
                },
            }
        }
    };
    if r.eat("|") {
        let second = arg(r, scope, depth + 1)?;
        return Ok(Arg::Pair(Box::new(first), Box::new(second)));
    }
    Ok(first)
}

fn unknown(line: u32, name: &str) -> Refusal {
    (line, format!("there is no register `{name}`"))
}

fn constant(n: Number) -> Operand {
    match n {
        Number::Int(v) => Operand::Int(v),
        Number::F32(v) => Operand::F32(v),
        Number::F64(v) => Operand::F64(v),
    }
}

/// Registers go before variables, and the function's own before the module's.
fn named(scope: &Scope<'_>, name: &str) -> Option<Operand> {
    if let Some(reg) = scope.register(name) {
        return Some(Operand::Reg(reg));
    }
    if let Some(special) = name.strip_prefix('%').and_then(special) {
        return Some(Operand::Special(special));
    }
    if name == "WARP_SZ" {
        return Some(Operand::Int(32));
    }
    scope.symbol(name).map(|s| Operand::Symbol(s, 0))
}

/// `+ 4`, `+ -4`, `- 4`, or nothing.
fn offset(r: &mut Reader<'_>) -> Result<i64, Refusal> {
    let line = r.line();
    let negative = match r.peek() {
        "+" => false,
        "-" => true,
        _ => return Ok(0),
    };
    r.take();
    match r.number()? {
        Number::Int(v) if negative => Ok(v.wrapping_neg()),
        Number::Int(v) => Ok(v),
        _ => Err((line, "an offset is a whole number".to_owned())),
    }
}

/// Behind `[`.
fn address(r: &mut Reader<'_>, scope: &Scope<'_>) -> Result<Address, Refusal> {
    let line = r.line();
    let absolute = r
        .peek()
        .starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let at = if absolute {
        match r.number()? {
            Number::Int(offset) => Address {
                base: Base::Absolute,
                offset,
            },
            _ => return Err((line, "an address is a whole number".to_owned())),
        }
    } else {
        let name = r.word("an address")?;
        let base = match named(scope, name) {
            Some(Operand::Reg(reg)) => Base::Reg(reg),
            Some(Operand::Symbol(s, _)) => Base::Symbol(s),
            _ => return Err((line, format!("there is no variable or register `{name}`"))),
        };
        Address {
            base,
            offset: offset(r)?,
        }
    };
    r.expect("]")?;
    if i32::try_from(at.offset).is_err() && at.base != Base::Absolute {
        return Err((line, "an offset has at most 32 bits".to_owned()));
    }
    Ok(at)
}

/// §10.
fn special(name: &str) -> Option<Special> {
    let axis = |n: &str| match n {
        "x" => Some(0u8),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    if let Some((base, part)) = name.split_once('.') {
        let a = axis(part)?;
        return Some(match base {
            "tid" => Special::Tid(a),
            "ntid" => Special::Ntid(a),
            "ctaid" => Special::Ctaid(a),
            "nctaid" => Special::Nctaid(a),
            // Each cluster is one block (§10.13 to §10.17).
            "clusterid" => Special::Ctaid(a),
            "nclusterid" => Special::Nctaid(a),
            "cluster_ctaid" => Special::Zero,
            "cluster_nctaid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "laneid" => Special::LaneId,
        "warpid" => Special::WarpId,
        "nwarpid" => Special::NwarpId,
        "WARP_SZ" => Special::WarpSize,
        "lanemask_eq" => Special::LanemaskEq,
        "lanemask_lt" => Special::LanemaskLt,
        "lanemask_le" => Special::LanemaskLe,
        "lanemask_gt" => Special::LanemaskGt,
        "lanemask_ge" => Special::LanemaskGe,
        "clock" | "clock_lo" => Special::Clock,
        "clock64" => Special::Clock64,
        "globaltimer" => Special::GlobalTimer,
        "globaltimer_lo" => Special::GlobalTimerLo,
        "globaltimer_hi" | "clock_hi" => Special::GlobalTimerHi,
        "gridid" => Special::GridId,
        "envreg1" => Special::Environment(1),
        "envreg2" => Special::Environment(0),
        _ if is_environment(name) => Special::Zero,
        "smid" | "cluster_ctarank" | "is_explicit_cluster" => Special::Zero,
        "nsmid" | "cluster_nctarank" => Special::One,
        "dynamic_smem_size" => Special::DynamicSharedBytes,
        "total_smem_size" => Special::TotalSharedBytes,
        _ => return None,
    })
}

/// `envreg0` to `envreg31`.
fn is_environment(name: &str) -> bool {
    let number = name
        .strip_prefix("envreg")
        .and_then(|n| n.parse::<u8>().ok());
    number.is_some_and(|n| n < 32)
}

impl Arg<'_> {
    /// What an instruction reads.
    pub(super) fn operand(&self, line: u32) -> Result<Operand, Refusal> {
        match self {
            Arg::Value(o) => Ok(*o),
            Arg::Function(_, f) => Ok(Operand::Int(function_address(*f))),
            _ => Err((line, "a register or constant is expected".to_owned())),
        }
    }

    /// What an instruction writes.
    pub(super) fn target(&self, line: u32) -> Result<Target, Refusal> {
        match self {
            Arg::Value(Operand::Reg(r)) => Ok(Some(*r)),
            Arg::Sink => Ok(None),
            _ => Err((line, "a register is expected as destination".to_owned())),
        }
    }

    pub(super) fn address(&self, line: u32) -> Result<Address, Refusal> {
        match self {
            Arg::Address(a) => Ok(*a),
            _ => Err((line, "an address in brackets is expected".to_owned())),
        }
    }

    /// A variable's name.
    pub(super) fn symbol(&self, line: u32) -> Result<Symbol, Refusal> {
        match self {
            Arg::Value(Operand::Symbol(s, 0)) => Ok(*s),
            _ => Err((line, "a variable of `.param` is expected".to_owned())),
        }
    }

    /// One, or those of a list.
    pub(super) fn each<T>(
        &self,
        f: impl Fn(&Arg<'_>) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        match self {
            Arg::List(list) => list.iter().map(f).collect(),
            one => Ok(vec![f(one)?]),
        }
    }
}
