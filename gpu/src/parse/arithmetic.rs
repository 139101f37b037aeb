//! Arithmetic, logic, comparison and moves to [`Op`] (§9.7.1 to §9.7.9).

use super::form::Form;
use super::operand::Arg;
use super::refusal::Refusal;
use crate::module::{
    BinaryOp, BoolOp, Compare, FloatMode, Half, Op, Operand, Rounding, Target, Type, UnaryOp,
};

/// Decodes an instruction of this group; `None` if it is of another.
pub(super) fn decode(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Option<Op>, Refusal> {
    let line = form.line;
    let n = args.len();
    let arity = |want: usize| {
        if n == want {
            Ok(())
        } else {
            Err((line, format!("{want} operands are expected, not {n}")))
        }
    };
    let to = || -> Result<Target, Refusal> { args[0].target(line) };
    let o = |i: usize| -> Result<Operand, Refusal> { args[i].operand(line) };
    let three = || -> Result<[Operand; 3], Refusal> { Ok([o(1)?, o(2)?, o(3)?]) };
    let unary = |op| Some(Kind::Unary(op));
    let binary = |op| Some(Kind::Binary(op));
    let kind = match form.base {
        "neg" => unary(UnaryOp::Neg),
        "abs" => unary(UnaryOp::Abs),
        "not" => unary(UnaryOp::Not),
        "cnot" => unary(UnaryOp::Cnot),
        "popc" => unary(UnaryOp::Popc),
        "clz" => unary(UnaryOp::Clz),
        "brev" => unary(UnaryOp::Brev),
        "bfind" => unary(UnaryOp::Bfind(form.flag("shiftamt"))),
        "sqrt" => unary(UnaryOp::Sqrt),
        "rsqrt" => unary(UnaryOp::Rsqrt),
        "rcp" => unary(UnaryOp::Rcp),
        "ex2" => unary(UnaryOp::Ex2),
        "lg2" => unary(UnaryOp::Lg2),
        "sin" => unary(UnaryOp::Sin),
        "cos" => unary(UnaryOp::Cos),
        "tanh" => unary(UnaryOp::Tanh),
        "add" => binary(BinaryOp::Add),
        "sub" => binary(BinaryOp::Sub),
        "div" => binary(BinaryOp::Div),
        "rem" => binary(BinaryOp::Rem),
        "min" => binary(BinaryOp::Min),
        "max" => binary(BinaryOp::Max),
        "and" => binary(BinaryOp::And),
        "or" => binary(BinaryOp::Or),
        "xor" => binary(BinaryOp::Xor),
        "shl" => binary(BinaryOp::Shl),
        "shr" => binary(BinaryOp::Shr),
        "copysign" => binary(BinaryOp::CopySign),
        _ => None,
    };
    Ok(Some(match (kind, form.base) {
        (Some(Kind::Unary(op)), _) => {
            arity(2)?;
            let mode = mode(form)?;
            let ty = numeric(form)?;
            let float = ty.is_float();
            let fits = match op {
                UnaryOp::Neg | UnaryOp::Abs => true,
                UnaryOp::Not
                | UnaryOp::Cnot
                | UnaryOp::Popc
                | UnaryOp::Clz
                | UnaryOp::Brev
                | UnaryOp::Bfind(_) => !float,
                UnaryOp::Sqrt | UnaryOp::Rcp | UnaryOp::Rsqrt => float,
                // The double forms are approximations whose error the ISA states by tables.
                _ => ty == Type::F32,
            };
            let directed = matches!(op, UnaryOp::Sqrt | UnaryOp::Rcp);
            let fits = fits && (directed || mode.round == Rounding::Nearest);
            let fits = fits && !mode.sat && !mode.nan;
            if !fits || (ty == Type::Pred && op != UnaryOp::Not) {
                return Err(form.refuse());
            }
            Op::Unary {
                op,
                ty,
                to: to()?,
                a: o(1)?,
                mode,
            }
        }
        (Some(Kind::Binary(op)), _) => {
            arity(3)?;
            // `div.full` is an approximation of less error than asked for.
            form.flag("full");
            let mut mode = mode(form)?;
            if matches!(op, BinaryOp::Min | BinaryOp::Max) {
                mode.xorsign = xorsign(form)?;
            }
            let ty = numeric(form)?;
            let directed =
                ty.is_float() && matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Div);
            let sum =
                matches!(ty, Type::F32 | Type::S32) && matches!(op, BinaryOp::Add | BinaryOp::Sub);
            let logic = matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor);
            let integer = logic || matches!(op, BinaryOp::Rem | BinaryOp::Shl | BinaryOp::Shr);
            let bad = (integer && ty.is_float())
                || (mode.round != Rounding::Nearest && !directed)
                || (mode.xorsign && ty != Type::F32)
                || (op == BinaryOp::CopySign && !ty.is_float())
                || (ty == Type::Pred && !logic)
                // Saturation is of the sum and difference, and of no other integers (§9.7.1.1,
                // §9.7.3).
                || (mode.sat && !sum)
                || (mode.nan && !matches!(op, BinaryOp::Min | BinaryOp::Max));
            if bad {
                return Err(form.refuse());
            }
            Op::Binary {
                op,
                ty,
                to: to()?,
                a: o(1)?,
                b: o(2)?,
                mode,
            }
        }
        (_, base @ ("mul" | "mad" | "fma")) => {
            arity(if base == "mul" { 3 } else { 4 })?;
            let half = form.take(|p| match p {
                "lo" => Some(Half::Low),
                "hi" => Some(Half::High),
                "wide" => Some(Half::Wide),
                _ => None,
            });
            let mode = mode(form)?;
            let ty = numeric(form)?;
            let bad = ty == Type::Pred
                || ty.is_float() == half.is_some()
                || (half == Some(Half::Wide) && ty.bits() > 32)
                || (mode.round != Rounding::Nearest && !ty.is_float())
                || (mode.sat && ty != Type::F32)
                || mode.nan;
            if bad {
                return Err(form.refuse());
            }
            let half = half.unwrap_or(Half::Low);
            if base == "mul" {
                Op::Multiply {
                    half,
                    ty,
                    to: to()?,
                    a: o(1)?,
                    b: o(2)?,
                    mode,
                }
            } else {
                Op::MultiplyAdd {
                    half,
                    ty,
                    to: to()?,
                    args: three()?,
                    mode,
                }
            }
        }
        (_, base @ ("mul24" | "mad24")) => {
            arity(if base == "mul24" { 3 } else { 4 })?;
            if !form.flag("lo") {
                return Err(form.refuse());
            }
            let add = if base == "mad24" { Some(o(3)?) } else { None };
            Op::Multiply24 {
                ty: numeric(form)?,
                to: to()?,
                a: o(1)?,
                b: o(2)?,
                add,
            }
        }
        (_, "sad") => {
            arity(4)?;
            Op::SumOfDifferences {
                ty: integer(form)?,
                to: to()?,
                args: three()?,
            }
        }
        (_, "shf") => {
            arity(4)?;
            let left = form.flag("l");
            if !left && !form.flag("r") {
                return Err(form.refuse());
            }
            let clamp = form.flag("clamp");
            form.flag("wrap");
            form.ty()?;
            Op::Funnel {
                left,
                clamp,
                to: to()?,
                args: three()?,
            }
        }
        (_, "bfe") => {
            arity(4)?;
            Op::Extract {
                ty: integer(form)?,
                to: to()?,
                args: three()?,
            }
        }
        (_, "bfi") => {
            arity(5)?;
            Op::Insert {
                ty: integer(form)?,
                to: to()?,
                args: [o(1)?, o(2)?, o(3)?, o(4)?],
            }
        }
        (_, "prmt") => {
            arity(4)?;
            form.ty()?;
            Op::Permute {
                to: to()?,
                args: three()?,
            }
        }
        (_, "lop3") => {
            arity(5)?;
            form.ty()?;
            let Operand::Int(table @ 0..=255) = o(4)? else {
                return Err((
                    line,
                    "the table of lop3 is a constant from 0 to 255".to_owned(),
                ));
            };
            Op::Lop3 {
                to: to()?,
                args: three()?,
                table: table as u8,
            }
        }
        (_, "mov") => {
            arity(2)?;
            let ty = form.ty()?;
            match (&args[0], &args[1]) {
                (Arg::List(_), from) => {
                    let to = args[0].each(|a| a.target(line))?;
                    lanes(form, ty, to.len())?;
                    Op::Unpack {
                        ty,
                        to,
                        from: from.operand(line)?,
                    }
                }
                (_, Arg::List(_)) => {
                    let from = args[1].each(|a| a.operand(line))?;
                    lanes(form, ty, from.len())?;
                    Op::Pack {
                        ty,
                        to: to()?,
                        from,
                    }
                }
                _ => Op::Move {
                    ty,
                    to: to()?,
                    from: o(1)?,
                },
            }
        }
        (_, "selp") => {
            arity(4)?;
            Op::Select {
                ty: form.ty()?,
                to: to()?,
                a: o(1)?,
                b: o(2)?,
                p: o(3)?,
            }
        }
        (_, "setp") => {
            let (compare, bool_op, ftz) = comparison(form)?;
            let ty = numeric(form)?;
            arity(if bool_op.is_some() { 4 } else { 3 })?;
            let to = match &args[0] {
                Arg::Pair(p, q) => [p.target(line)?, q.target(line)?],
                one => [one.target(line)?, None],
            };
            let combine = match bool_op {
                Some(op) => Some((op, o(3)?)),
                None => None,
            };
            Op::Compare {
                compare,
                ty,
                to,
                a: o(1)?,
                b: o(2)?,
                combine,
                ftz,
            }
        }
        (_, "set") => {
            let (compare, bool_op, ftz) = comparison(form)?;
            let (result, ty) = (numeric(form)?, numeric(form)?);
            arity(if bool_op.is_some() { 4 } else { 3 })?;
            let combine = match bool_op {
                Some(op) => Some((op, o(3)?)),
                None => None,
            };
            Op::Set {
                compare,
                result,
                ty,
                to: to()?,
                a: o(1)?,
                b: o(2)?,
                combine,
                ftz,
            }
        }
        _ => return Ok(None),
    }))
}

enum Kind {
    Unary(UnaryOp),
    Binary(BinaryOp),
}

/// `.approx` may be better than it must.
fn mode(form: &mut Form<'_>) -> Result<FloatMode, Refusal> {
    let round = rounding(form);
    if form.flag("approx") && round.is_some() {
        return Err(form.refuse());
    }
    Ok(FloatMode {
        ftz: form.flag("ftz"),
        sat: form.flag("sat"),
        nan: form.flag("NaN"),
        round: round.unwrap_or_default(),
        ..FloatMode::default()
    })
}

/// Rounding to a format (§9.7.3).
pub(super) fn rounding(form: &mut Form<'_>) -> Option<Rounding> {
    form.take(|p| {
        Some(match p {
            "rn" => Rounding::Nearest,
            "rz" => Rounding::Zero,
            "rm" => Rounding::Down,
            "rp" => Rounding::Up,
            _ => return None,
        })
    })
}

/// `.xorsign.abs`, of which none goes without the other.
pub(super) fn xorsign(form: &mut Form<'_>) -> Result<bool, Refusal> {
    let (sign, magnitude) = (form.flag("xorsign"), form.flag("abs"));
    if sign == magnitude {
        Ok(sign)
    } else {
        Err(form.refuse())
    }
}

/// A type for arithmetic; `half` has those of half precision.
fn numeric(form: &mut Form<'_>) -> Result<Type, Refusal> {
    let ty = form.ty()?;
    if ty.is_half() || ty == Type::B128 {
        return Err(form.refuse());
    }
    Ok(ty)
}

fn integer(form: &mut Form<'_>) -> Result<Type, Refusal> {
    let ty = numeric(form)?;
    if ty.is_float() || ty == Type::Pred {
        return Err(form.refuse());
    }
    Ok(ty)
}

/// Parts of a vector move are 8 to 64 bits (§9.7.9.4).
fn lanes(form: &Form<'_>, ty: Type, n: usize) -> Result<(), Refusal> {
    let ok = matches!(n, 2 | 4) && ty.bits() / n as u32 >= 8;
    if ok {
        Ok(())
    } else {
        Err(form.refuse())
    }
}

pub(super) fn comparison(form: &mut Form<'_>) -> Result<(Compare, Option<BoolOp>, bool), Refusal> {
    let compare = form.take(|p| {
        Some(match p {
            "eq" => Compare::Eq,
            "ne" => Compare::Ne,
            "lt" => Compare::Lt,
            "le" => Compare::Le,
            "gt" => Compare::Gt,
            "ge" => Compare::Ge,
            "lo" => Compare::Lo,
            "ls" => Compare::Ls,
            "hi" => Compare::Hi,
            "hs" => Compare::Hs,
            "equ" => Compare::Equ,
            "neu" => Compare::Neu,
            "ltu" => Compare::Ltu,
            "leu" => Compare::Leu,
            "gtu" => Compare::Gtu,
            "geu" => Compare::Geu,
            "num" => Compare::Num,
            "nan" => Compare::Nan,
            _ => return None,
        })
    });
    let bool_op = form.take(|p| {
        Some(match p {
            "and" => BoolOp::And,
            "or" => BoolOp::Or,
            "xor" => BoolOp::Xor,
            _ => return None,
        })
    });
    let ftz = form.flag("ftz");
    Ok((compare.ok_or_else(|| form.refuse())?, bool_op, ftz))
}
