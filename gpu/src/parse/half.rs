//! Arithmetic and comparison of half precision to [`Op`] (§9.7.4, §9.7.7).

use super::arithmetic::{comparison, rounding, xorsign};
use super::form::Form;
use super::operand::Arg;
use super::refusal::Refusal;
use crate::module::{BinaryOp, FloatMode, Half, Op, Operand, Rounding, Target, Type, UnaryOp};

/// Decodes an instruction of this group; `None` if it is of another.
pub(super) fn decode(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Option<Op>, Refusal> {
    if !form.is_half() {
        return Ok(None);
    }
    let line = form.line;
    let arity = |want: usize| match args.len() {
        n if n == want => Ok(()),
        n => Err((line, format!("{want} operands are expected, not {n}"))),
    };
    let to = || -> Result<Target, Refusal> { args[0].target(line) };
    let o = |i: usize| half_operand(&args[i], line);
    let op = match form.base {
        "setp" | "set" => return compare(form, args).map(Some),
        base @ ("neg" | "abs" | "tanh" | "ex2") => {
            arity(2)?;
            let ty = half_type(form)?;
            let op = match base {
                "neg" => UnaryOp::Neg,
                "abs" => UnaryOp::Abs,
                "tanh" => UnaryOp::Tanh,
                _ => UnaryOp::Ex2,
            };
            if matches!(op, UnaryOp::Tanh | UnaryOp::Ex2) && !form.flag("approx") {
                return Err(form.refuse());
            }
            // `ex2` of bf16 always flushes, `tanh` never does (§9.7.4.9, §9.7.4.10).
            let flushes = match op {
                UnaryOp::Ex2 => is_bfloat(ty),
                UnaryOp::Tanh => false,
                _ => !is_bfloat(ty),
            };
            let ftz = flushes && form.flag("ftz");
            if op == UnaryOp::Ex2 && flushes && !ftz {
                return Err(form.refuse());
            }
            Op::Unary {
                op,
                ty,
                to: to()?,
                a: o(1)?,
                mode: FloatMode {
                    ftz,
                    ..FloatMode::default()
                },
            }
        }
        base @ ("add" | "sub" | "mul" | "fma") => {
            let fma = base == "fma";
            arity(if fma { 4 } else { 3 })?;
            let ty = half_type(form)?;
            // Halves are rounded to the nearest alone.
            if rounding(form).unwrap_or_default() != Rounding::Nearest {
                return Err(form.refuse());
            }
            let relu = fma && form.flag("relu");
            let mode = FloatMode {
                ftz: !is_bfloat(ty) && form.flag("ftz"),
                sat: !is_bfloat(ty) && !relu && form.flag("sat"),
                relu,
                ..FloatMode::default()
            };
            let half = Half::Low;
            match base {
                "fma" => Op::MultiplyAdd {
                    half,
                    ty,
                    to: to()?,
                    args: [o(1)?, o(2)?, o(3)?],
                    mode,
                },
                "mul" => Op::Multiply {
                    half,
                    ty,
                    to: to()?,
                    a: o(1)?,
                    b: o(2)?,
                    mode,
                },
                _ => Op::Binary {
                    op: if base == "add" {
                        BinaryOp::Add
                    } else {
                        BinaryOp::Sub
                    },
                    ty,
                    to: to()?,
                    a: o(1)?,
                    b: o(2)?,
                    mode,
                },
            }
        }
        base @ ("min" | "max") => {
            arity(3)?;
            let ty = half_type(form)?;
            let mode = FloatMode {
                ftz: !is_bfloat(ty) && form.flag("ftz"),
                nan: form.flag("NaN"),
                xorsign: xorsign(form)?,
                ..FloatMode::default()
            };
            Op::Binary {
                op: if base == "min" {
                    BinaryOp::Min
                } else {
                    BinaryOp::Max
                },
                ty,
                to: to()?,
                a: o(1)?,
                b: o(2)?,
                mode,
            }
        }
        // Moves, loads and stores have no arithmetic.
        _ => return Ok(None),
    };
    Ok(Some(op))
}

/// `setp` (§9.7.7.2), `set` (§9.7.7.1).
fn compare(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Op, Refusal> {
    let line = form.line;
    let (compare, bool_op, ftz) = comparison(form)?;
    let want = if bool_op.is_some() { 4 } else { 3 };
    if args.len() != want {
        let n = args.len();
        return Err((line, format!("{want} operands are expected, not {n}")));
    }
    let combine = match bool_op {
        Some(op) => Some((op, args[3].operand(line)?)),
        None => None,
    };
    let first = form.ty()?;
    if form.base == "setp" {
        let to = match &args[0] {
            Arg::Pair(p, q) => [p.target(line)?, q.target(line)?],
            one => [one.target(line)?, None],
        };
        if !first.is_half() || compare.is_unsigned() || (ftz && is_bfloat(first)) {
            return Err(form.refuse());
        }
        return Ok(Op::Compare {
            compare,
            ty: first,
            to,
            a: half_operand(&args[1], line)?,
            b: half_operand(&args[2], line)?,
            combine,
            ftz,
        });
    }
    let ty = form.ty()?;
    let word = matches!(first, Type::U32 | Type::S32);
    let fits = match ty {
        Type::F16x2 | Type::Bf16x2 => word || first == ty,
        Type::F16 | Type::Bf16 => {
            let half = matches!(first, Type::F16 | Type::Bf16);
            word || half || matches!(first, Type::U16 | Type::S16)
        }
        Type::Pred | Type::B8 | Type::U8 | Type::S8 | Type::B128 => false,
        // Only the result is a half.
        _ => matches!(first, Type::F16 | Type::Bf16),
    };
    // Unsigned comparisons are of the integers alone (§9.3.1).
    let fits = fits && !(compare.is_unsigned() && (ty.is_half() || ty.is_float()));
    if !fits || (ftz && !matches!(ty, Type::F16 | Type::F16x2 | Type::F32)) {
        return Err(form.refuse());
    }
    let operand = |arg: &Arg<'_>| {
        if ty.is_half() {
            half_operand(arg, line)
        } else {
            arg.operand(line)
        }
    };
    Ok(Op::Set {
        compare,
        result: first,
        ty,
        to: args[0].target(line)?,
        a: operand(&args[1])?,
        b: operand(&args[2])?,
        combine,
        ftz,
    })
}

fn half_type(form: &mut Form<'_>) -> Result<Type, Refusal> {
    let ty = form.ty()?;
    if ty.is_half() {
        Ok(ty)
    } else {
        Err(form.refuse())
    }
}

pub(super) fn is_bfloat(ty: Type) -> bool {
    matches!(ty, Type::Bf16 | Type::Bf16x2)
}

/// There are no constants of half precision (§4.5.2).
pub(super) fn half_operand(arg: &Arg<'_>, line: u32) -> Result<Operand, Refusal> {
    match arg.operand(line)? {
        register @ Operand::Reg(_) => Ok(register),
        _ => Err((
            line,
            "an operand of half precision is a register".to_owned(),
        )),
    }
}
