//! Less usual arithmetic to [`ExtendedOp`]: with a carry (§9.7.2), dot products, bytes and halves
//! side by side (§9.7.17), pairs, mixed precision (§9.7.5), small formats.

use super::arithmetic::{rounding, xorsign};
use super::form::Form;
use super::operand::Arg;
use super::refusal::Refusal;
use super::scope::Scope;
use crate::module::{
    flag, CarryOp, ExtendedOp, FloatMode, Op, Operand, PureKind, PureOp, Rounding, SingleOp, Type,
    SMALL,
};

/// Whether the instruction reads or writes the condition code.
pub(super) fn has_carry(opcode: &str) -> bool {
    let base = opcode.split('.').next();
    matches!(base, Some("addc" | "subc" | "madc")) || opcode.split('.').any(|p| p == "cc")
}

/// Decodes an instruction of this group; `None` if it is of another, of which it then has taken no
/// part.
pub(super) fn decode(
    form: &mut Form<'_>,
    args: &[Arg<'_>],
    scope: &Scope<'_>,
) -> Result<Option<Op>, Refusal> {
    let found = match form.base {
        "add" | "addc" | "sub" | "subc" | "mad" | "madc" if has_carry(form.text) => {
            carry(form, args, scope)?
        }
        "dp4a" | "dp2a" | "bmsk" | "szext" | "fns" | "slct" | "testp" => words(form, args)?,
        "mul24" | "mad24" if form.has("hi") => high24(form, args)?,
        "mad" if form.has("sat") && form.has("hi") => high24(form, args)?,
        "cvt" => match convert(form, args)? {
            Some(op) => op,
            None => return Ok(None),
        },
        "add" | "min" | "max" if form.has("u16x2") || form.has("s16x2") => halves(form, args)?,
        "min" | "max" if form.has("relu") && form.has("s32") => relu(form, args)?,
        "add" | "sub" | "mul" | "fma" if form.has("f32x2") => pair(form, args)?,
        "add" | "sub" | "fma" if form.has("f32") && form.is_half() => mixed(form, args)?,
        "min" | "max" if form.has("f32") && args.len() == 4 => extreme(form, args)?,
        base if base.starts_with('v') && base.ends_with(['2', '4']) => {
            match side_by_side(form, args)? {
                Some(op) => op,
                None => return Ok(None),
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(Op::Extended(found)))
}

fn arity(form: &Form<'_>, args: &[Arg<'_>], want: usize) -> Result<(), Refusal> {
    match args.len() {
        n if n == want => Ok(()),
        n => Err((form.line, format!("{want} operands are expected, not {n}"))),
    }
}

fn operands(form: &Form<'_>, args: &[Arg<'_>]) -> Result<Vec<Operand>, Refusal> {
    args[1..].iter().map(|a| a.operand(form.line)).collect()
}

fn pure(
    form: &Form<'_>,
    args: &[Arg<'_>],
    (kind, flags): (PureKind, u32),
    types: &[Type],
) -> Result<ExtendedOp, Refusal> {
    arity(form, args, 1 + types.len())?;
    let values = operands(form, args)?;
    Ok(ExtendedOp::Pure {
        op: PureOp { kind, flags },
        to: args[0].target(form.line)?,
        args: values.into_iter().zip(types.iter().copied()).collect(),
    })
}

fn when(condition: bool, flag: u32) -> u32 {
    if condition {
        flag
    } else {
        0
    }
}

fn carry(form: &mut Form<'_>, args: &[Arg<'_>], scope: &Scope<'_>) -> Result<ExtendedOp, Refusal> {
    let product = form.base.starts_with("mad");
    let (low, high) = (form.flag("lo"), form.flag("hi"));
    let writes = form.flag("cc");
    let ty = form.ty()?;
    let whole = matches!(
        ty,
        Type::U32 | Type::S32 | Type::B32 | Type::U64 | Type::S64 | Type::B64
    );
    if !whole || product != (low != high) || (low || high) != product {
        return Err(form.refuse());
    }
    arity(form, args, if product { 4 } else { 3 })?;
    let op = match form.base {
        "add" | "addc" => CarryOp::Add,
        "sub" | "subc" => CarryOp::Subtract,
        _ => CarryOp::MultiplyAdd { high },
    };
    Ok(ExtendedOp::Carry {
        op,
        ty,
        to: args[0].target(form.line)?,
        args: operands(form, args)?,
        input: scope.carry.filter(|_| form.base.ends_with('c')),
        output: scope.carry.filter(|_| writes),
    })
}

fn words(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    let base = form.base;
    let b32 = Type::B32;
    match base {
        "dp4a" | "dp2a" => {
            let high = base == "dp2a" && form.flag("hi");
            if base == "dp2a" && !high && !form.flag("lo") {
                return Err(form.refuse());
            }
            let (first, second) = (form.ty()?, form.ty()?);
            if [first, second]
                .iter()
                .any(|t| !matches!(t, Type::U32 | Type::S32))
            {
                return Err(form.refuse());
            }
            let kind = if base == "dp4a" {
                PureKind::Dot4
            } else {
                PureKind::Dot2
            };
            let flags = when(first == Type::S32, flag::FIRST)
                | when(second == Type::S32, flag::SECOND)
                | when(high, flag::CLAMP);
            pure(form, args, (kind, flags), &[b32; 3])
        }
        "bmsk" | "szext" => {
            let clamp = form.flag("clamp");
            if !clamp && !form.flag("wrap") {
                return Err(form.refuse());
            }
            let ty = form.ty()?;
            let (kind, fits) = match base {
                "bmsk" => (PureKind::Mask, ty == b32),
                _ => (PureKind::Extend, matches!(ty, Type::U32 | Type::S32)),
            };
            if !fits {
                return Err(form.refuse());
            }
            let flags = when(clamp, flag::CLAMP) | when(ty == Type::S32, flag::FIRST);
            pure(form, args, (kind, flags), &[b32; 2])
        }
        "fns" => {
            if form.ty()? != b32 {
                return Err(form.refuse());
            }
            pure(form, args, (PureKind::NthSet, 0), &[b32; 3])
        }
        "slct" => {
            let flushes = form.flag("ftz");
            let (ty, sign) = (form.ty()?, form.ty()?);
            if !matches!(sign, Type::S32 | Type::F32)
                || ty == Type::Pred
                || !matches!(ty.bytes(), 2 | 4 | 8)
                || ty.is_half()
                || flushes && sign != Type::F32
            {
                return Err(form.refuse());
            }
            let flags = when(sign == Type::F32, flag::FIRST) | when(flushes, flag::RELU);
            pure(form, args, (PureKind::BySign, flags), &[ty, ty, sign])
        }
        _ => {
            let property = form.take(|p| {
                let all = [
                    "finite",
                    "infinite",
                    "number",
                    "notanumber",
                    "normal",
                    "subnormal",
                ];
                all.iter().position(|name| *name == p)
            });
            let (Some(property), ty @ (Type::F32 | Type::F64)) = (property, form.ty()?) else {
                return Err(form.refuse());
            };
            let flags = (property as u32) << flag::NUMBER | when(ty == Type::F64, flag::WIDE);
            pure(form, args, (PureKind::Test, flags), &[ty])
        }
    }
}

/// `mul24.hi`, `mad24.hi`, `mad.hi.sat.s32`.
fn high24(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    form.flag("hi");
    let saturates = form.flag("sat");
    let ty = form.ty()?;
    let adds = form.base != "mul24";
    let fits = matches!(ty, Type::U32 | Type::S32) && !(saturates && (ty == Type::U32 || !adds));
    if !fits {
        return Err(form.refuse());
    }
    if form.base == "mad" {
        return pure(form, args, (PureKind::SaturatedHigh, 0), &[Type::B32; 3]);
    }
    let flags = when(ty == Type::S32, flag::FIRST) | when(saturates, flag::SATURATE);
    let types = &[Type::B32; 3][..if adds { 3 } else { 2 }];
    pure(form, args, (PureKind::High24, flags), types)
}

/// `cvt` to and from `tf32` and formats of 8 and fewer bits (§9.7.9.21), `cvt.pack` (§9.7.9.22).
fn convert(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Option<ExtendedOp>, Refusal> {
    let b32 = Type::B32;
    if form.flag("pack") {
        if !form.flag("sat") {
            return Err(form.refuse());
        }
        let mut integers = Vec::new();
        while let Some(ty) = form.take(|p| match p {
            "u2" => Some((2, false)),
            "s2" => Some((2, true)),
            "u4" => Some((4, false)),
            "s4" => Some((4, true)),
            p => Type::named(p)
                .filter(|t| !t.is_float())
                .map(|t| (t.bits(), t.is_signed())),
        }) {
            integers.push(ty);
        }
        let flags = |width: u32, signed: bool| {
            (
                PureKind::Pack,
                width << flag::NUMBER | when(signed, flag::RESULT) | flag::FIRST,
            )
        };
        return match integers[..] {
            [(16, signed), (32, true)] => pure(form, args, flags(16, signed), &[b32; 2]).map(Some),
            [(width @ (2 | 4 | 8), signed), (32, true), (32, false)] => {
                pure(form, args, flags(width, signed), &[b32; 3]).map(Some)
            }
            _ => Err(form.refuse()),
        };
    }
    if form.has("tf32") {
        form.flag("tf32");
        let rounding = form.take(|p| match p {
            "rn" => Some(0),
            "rz" => Some(1),
            "rna" => Some(2),
            _ => None,
        });
        let (Some(rounding), true) = (rounding, form.flag("f32")) else {
            return Err(form.refuse());
        };
        let flags = rounding << flag::NUMBER
            | when(form.flag("satfinite"), flag::SATURATE)
            | when(rounding < 2 && form.flag("relu"), flag::RELU);
        return pure(form, args, (PureKind::Tf32, flags), &[Type::F32]).map(Some);
    }
    if form.has("ue8m0x2") {
        return scale(form, args).map(Some);
    }
    if form.flag("rs") {
        // Which of the bits each of four gets, the ISA does not say.
        let number = form.take(|p| match p {
            "f16x2" => Some(0),
            "bf16x2" => Some(1),
            _ => None,
        });
        let (Some(number), true) = (number, form.flag("f32")) else {
            return Err(form.refuse());
        };
        let flags = number << flag::NUMBER
            | when(form.flag("satfinite"), flag::SATURATE)
            | when(form.flag("relu"), flag::RELU);
        let types = [Type::F32, Type::F32, Type::B32];
        return pure(form, args, (PureKind::Random, flags), &types).map(Some);
    }
    let name = |p: &str| SMALL.iter().position(|(name, _)| *name == p);
    let halves = form.has("f16x2");
    let to_halves = form.first_of(&["f16x2"]) < form.first_of(&SMALL.map(|s| s.0));
    let Some(number) = form.take(name) else {
        return Ok(None);
    };
    let nearest = form.flag("rn");
    let flags = (number as u32) << flag::NUMBER | when(form.flag("relu"), flag::RELU);
    if halves {
        form.flag("f16x2");
        let finite = form.flag("satfinite");
        if !nearest || finite == to_halves {
            return Err(form.refuse());
        }
        let bits = if SMALL[number].1.bits == 4 {
            Type::B8
        } else {
            Type::B16
        };
        return match to_halves {
            true => pure(form, args, (PureKind::HalvesOfSmall, flags), &[bits]).map(Some),
            false => pure(form, args, (PureKind::SmallOfHalves, flags), &[Type::F16x2]).map(Some),
        };
    }
    if !nearest || !form.flag("satfinite") || !form.flag("f32") {
        return Err(form.refuse());
    }
    pure(
        form,
        args,
        (PureKind::SmallOfSingle, flags),
        &[Type::F32; 2],
    )
    .map(Some)
}

/// `cvt` to and from two numbers of `ue8m0`.
fn scale(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    let back = form.first_of(&["bf16x2"]) < form.first_of(&["ue8m0x2"]);
    form.flag("ue8m0x2");
    let rounding = form.take(|p| match p {
        "rn" if back => Some(0),
        "rz" if !back => Some(0),
        "rp" if !back => Some(1),
        _ => None,
    });
    let rounding = rounding.ok_or_else(|| form.refuse())?;
    let finite = !back && form.flag("satfinite");
    let flags = rounding << flag::NUMBER | when(finite, flag::SATURATE);
    if form.flag("bf16x2") {
        let (kind, ty) = match back {
            true => (PureKind::BfloatsOfScale, Type::B16),
            false => (PureKind::ScaleOfBfloats, Type::B32),
        };
        return pure(form, args, (kind, flags), &[ty]);
    }
    if !form.flag("f32") {
        return Err(form.refuse());
    }
    let kind = PureKind::ScaleOfSingle;
    pure(form, args, (kind, flags), &[Type::F32; 2])
}

/// `add`, `min` and `max` of two integers of 16 bits (§9.7.1).
fn halves(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    let signed = form.flag("s16x2");
    form.flag("u16x2");
    let kind = match form.base {
        "add" => PureKind::SideAdd,
        "min" => PureKind::SideMin,
        _ => PureKind::SideMax,
    };
    let relu = kind != PureKind::SideAdd && signed && form.flag("relu");
    let flags = when(signed, flag::FIRST | flag::SECOND | flag::RESULT) | when(relu, flag::RELU);
    pure(form, args, (kind, flags), &[Type::B32; 2])
}

fn relu(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    form.flag("relu");
    form.flag("s32");
    let kind = match form.base {
        "min" => PureKind::ReluMin,
        _ => PureKind::ReluMax,
    };
    pure(form, args, (kind, 0), &[Type::B32; 2])
}

/// `vadd4`, ... without masks and selectors (§9.7.17).
fn side_by_side(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Option<ExtendedOp>, Refusal> {
    let (name, count) = form.base.split_at(form.base.len() - 1);
    let kind = match name {
        "vadd" => PureKind::SideAdd,
        "vsub" => PureKind::SideSubtract,
        "vavrg" => PureKind::SideAverage,
        "vabsdiff" => PureKind::SideDifference,
        "vmin" => PureKind::SideMin,
        "vmax" => PureKind::SideMax,
        _ => return Ok(None),
    };
    let types = [form.ty()?, form.ty()?, form.ty()?];
    let (saturates, sum) = (form.flag("sat"), form.flag("add"));
    if types.iter().any(|t| !matches!(t, Type::U32 | Type::S32)) || saturates && sum {
        return Err(form.refuse());
    }
    let signed = types.map(|t| t == Type::S32);
    let flags = when(signed[0], flag::RESULT)
        | when(signed[1], flag::FIRST)
        | when(signed[2], flag::SECOND)
        | when(saturates, flag::SATURATE)
        | when(sum, flag::SUM)
        | when(count == "4", flag::BYTES);
    pure(form, args, (kind, flags), &[Type::B32; 3]).map(Some)
}

fn single(base: &str) -> SingleOp {
    match base {
        "add" => SingleOp::Add,
        "sub" => SingleOp::Subtract,
        "mul" => SingleOp::Multiply,
        _ => SingleOp::Fma,
    }
}

fn pair(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    form.flag("f32x2");
    let op = single(form.base);
    arity(form, args, if op == SingleOp::Fma { 4 } else { 3 })?;
    let round = rounding(form);
    if op == SingleOp::Fma && round.is_none() {
        return Err(form.refuse());
    }
    Ok(ExtendedOp::Pair {
        op,
        to: args[0].target(form.line)?,
        args: operands(form, args)?,
        mode: FloatMode {
            ftz: form.flag("ftz"),
            round: round.unwrap_or_default(),
            ..FloatMode::default()
        },
    })
}

fn mixed(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    let op = single(form.base);
    let round = rounding(form);
    if !form.flag("f32") || op == SingleOp::Fma && round.is_none() {
        return Err(form.refuse());
    }
    let half = form.ty()?;
    if !matches!(half, Type::F16 | Type::Bf16) {
        return Err(form.refuse());
    }
    arity(form, args, if op == SingleOp::Fma { 4 } else { 3 })?;
    Ok(ExtendedOp::Mixed {
        op,
        half,
        to: args[0].target(form.line)?,
        args: operands(form, args)?,
        mode: FloatMode {
            sat: form.flag("sat"),
            round: round.unwrap_or_default(),
            ..FloatMode::default()
        },
    })
}

fn extreme(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<ExtendedOp, Refusal> {
    form.flag("f32");
    let mode = FloatMode {
        ftz: form.flag("ftz"),
        nan: form.flag("NaN"),
        xorsign: xorsign(form)?,
        round: Rounding::Nearest,
        ..FloatMode::default()
    };
    let line = form.line;
    let o = |i: usize| args[i].operand(line);
    Ok(ExtendedOp::Extreme {
        min: form.base == "min",
        to: args[0].target(line)?,
        args: [o(1)?, o(2)?, o(3)?],
        mode,
    })
}
