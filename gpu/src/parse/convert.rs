//! `cvt` to [`Op`] (§9.7.9.21).

use super::arithmetic::rounding;
use super::form::Form;
use super::half::{half_operand, is_bfloat};
use super::operand::Arg;
use super::refusal::Refusal;
use crate::module::{FloatMode, Op, Rounding, Type};

/// Decodes a conversion; `None` if it is another instruction.
pub(super) fn decode(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Option<Op>, Refusal> {
    if form.base != "cvt" {
        return Ok(None);
    }
    let line = form.line;
    let arity = |want: usize| match args.len() {
        n if n == want => Ok(()),
        n => Err((line, format!("{want} operands are expected, not {n}"))),
    };
    let whole = form.take(|p| {
        Some(match p {
            "rni" => Rounding::Nearest,
            "rzi" => Rounding::Zero,
            "rmi" => Rounding::Down,
            "rpi" => Rounding::Up,
            _ => return None,
        })
    });
    let round = rounding(form);
    let mode = FloatMode {
        ftz: form.flag("ftz"),
        sat: form.flag("sat"),
        relu: form.flag("relu"),
        finite: form.flag("satfinite"),
        round: round.unwrap_or_default(),
        ..FloatMode::default()
    };
    // Types that it does not know are left over.
    let to_ty = form.ty().map_err(|_| form.refuse())?;
    let ty = form.ty().map_err(|_| form.refuse())?;
    form.done()?;
    if matches!(to_ty, Type::F16x2 | Type::Bf16x2) {
        let toward = matches!(round, Some(Rounding::Nearest | Rounding::Zero));
        if ty != Type::F32 || !toward || whole.is_some() || mode.ftz || mode.sat {
            return Err(form.refuse());
        }
        arity(3)?;
        return Ok(Some(Op::ConvertPair {
            ty: to_ty,
            to: args[0].target(line)?,
            a: args[1].operand(line)?,
            b: args[2].operand(line)?,
            mode,
        }));
    }
    let float = |ty: Type| ty.is_float() || ty.is_half();
    let clamps = mode.relu || mode.finite;
    // Only from single precision to halves, to the nearest or towards zero, and instead of `.sat`.
    let clampable = to_ty.is_half()
        && ty == Type::F32
        && !mode.sat
        && matches!(round, Some(Rounding::Nearest | Rounding::Zero));
    let bad = [to_ty, ty].iter().any(|t| !is_number(*t)) || (clamps && !clampable)
        // The result of a rounding to a format is a number of that format, to a whole number one of
        // a whole number.
        || (round.is_some() && !float(to_ty))
        || (whole.is_some() && !float(ty))
        || (whole.is_some() && float(to_ty) && to_ty != ty)
        || (whole.is_some() && round.is_some())
        || (whole.is_none() && float(ty) && !float(to_ty))
        || (mode.sat && is_bfloat(to_ty))
        || (mode.ftz && to_ty != Type::F32 && ty != Type::F32);
    if bad {
        return Err(form.refuse());
    }
    arity(2)?;
    Ok(Some(Op::Convert {
        to_ty,
        ty,
        to: args[0].target(line)?,
        a: if ty.is_half() {
            half_operand(&args[1], line)?
        } else {
            args[1].operand(line)?
        },
        round: whole,
        mode,
    }))
}

/// Not a pair, and not bits without a meaning.
fn is_number(ty: Type) -> bool {
    let bits = matches!(
        ty,
        Type::Pred | Type::B8 | Type::B16 | Type::B32 | Type::B64 | Type::B128
    );
    !bits && !matches!(ty, Type::F16x2 | Type::Bf16x2)
}
