//! Control flow, barriers and warps to [`Op`] (§9.7.12, §9.7.13).

use super::form::Form;
use super::operand::Arg;
use super::refusal::Refusal;
use super::scope::Scope;
use crate::module::{
    BarrierOp, Formal, Function, Op, Operand, ShuffleOp, Symbol, Type, Variable, WarpOp,
};

/// Decodes an instruction of this group; `None` if there is none of that name.
pub(super) fn decode(
    form: &mut Form<'_>,
    args: &[Arg<'_>],
    f: &Function,
    scope: &Scope<'_>,
) -> Result<Option<Op>, Refusal> {
    let line = form.line;
    let n = args.len();
    let arity = |least: usize, most: usize| {
        if (least..=most).contains(&n) {
            Ok(())
        } else {
            Err((line, format!("{least} operands are expected, not {n}")))
        }
    };
    let o = |i: usize| args[i].operand(line);
    let base = form.base;
    Ok(Some(match base {
        "bra" => {
            arity(1, 1)?;
            form.flag("uni");
            let label = match &args[0] {
                Arg::Name(name) => scope.label(name),
                _ => None,
            };
            Op::Branch {
                to: label.ok_or_else(|| (line, "there is no such label".to_owned()))?,
            }
        }
        "brx" => {
            arity(2, 2)?;
            form.flag("uni");
            let known = match &args[1] {
                Arg::Name(name) if form.flag("idx") => scope.tables.get(*name),
                _ => None,
            };
            Op::BranchTable {
                index: o(0)?,
                to: known
                    .cloned()
                    .ok_or_else(|| (line, "there is no such list of labels".to_owned()))?,
            }
        }
        "call" => {
            form.flag("uni");
            call(form, args, f, scope)?
        }
        // Memory of the stack (§9.7.17).
        "alloca" => {
            arity(2, 3)?;
            let align = match args.get(2).map(|a| a.operand(line)).transpose()? {
                None => 8,
                Some(Operand::Int(align @ 1..=4096)) if align & (align - 1) == 0 => align,
                Some(_) => return Err((line, "an alignment is a power of two".to_owned())),
            };
            if form.ty()?.bits() != 64 {
                return Err(form.refuse());
            }
            Op::StackAllocate {
                to: args[0].target(line)?,
                bytes: o(1)?,
                align: align as u32,
            }
        }
        "stacksave" | "stackrestore" => {
            arity(1, 1)?;
            if form.ty()?.bits() != 64 {
                return Err(form.refuse());
            }
            match base {
                "stacksave" => Op::StackSave {
                    to: args[0].target(line)?,
                },
                _ => Op::StackRestore { from: o(0)? },
            }
        }
        "ret" => {
            arity(0, 0)?;
            form.flag("uni");
            Op::Return
        }
        "exit" => Op::Exit,
        "trap" | "brkpt" => Op::Trap,
        "nanosleep" => {
            arity(1, 1)?;
            form.ty()?;
            Op::Sleep { ns: o(0)? }
        }
        "activemask" => {
            arity(1, 1)?;
            form.ty()?;
            Op::Warp {
                op: WarpOp::Active,
                ty: Type::B32,
                to: args[0].target(line)?,
                second: None,
                args: vec![],
                mask: Operand::Int(-1),
            }
        }
        "bar" | "barrier" if form.flag("warp") => {
            arity(1, 1)?;
            form.flag("sync");
            warp(WarpOp::Sync, Type::B32, vec![], o(0)?)
        }
        "bar" | "barrier" => {
            form.flag("cta");
            // `bar` is `barrier.cta.aligned`.
            let aligned = form.flag("aligned") || form.base == "bar";
            let reduces = form.flag("red");
            let op = match form.take(|p| match p {
                "popc" => Some(BarrierOp::Popc),
                "and" => Some(BarrierOp::And),
                "or" => Some(BarrierOp::Or),
                _ => None,
            }) {
                Some(op) if reduces => op,
                None if !reduces && form.flag("sync") => BarrierOp::Sync,
                _ => return Err(form.refuse()),
            };
            if !reduces {
                arity(1, 2)?;
                let count = if n == 2 { Some(o(1)?) } else { None };
                Op::Barrier {
                    op,
                    aligned,
                    id: o(0)?,
                    count,
                    to: None,
                    p: None,
                }
            } else {
                arity(3, 4)?;
                form.ty()?;
                let count = if n == 4 { Some(o(2)?) } else { None };
                Op::Barrier {
                    op,
                    aligned,
                    id: o(1)?,
                    count,
                    to: args[0].target(line)?,
                    p: Some(o(n - 1)?),
                }
            }
        }
        "shfl" => {
            // Without `.sync` it is of architectures before sm_70.
            arity(5, 5)?;
            if !form.flag("sync") {
                return Err(form.refuse());
            }
            let op = form.take(|p| {
                Some(match p {
                    "up" => ShuffleOp::Up,
                    "down" => ShuffleOp::Down,
                    "bfly" => ShuffleOp::Bfly,
                    "idx" => ShuffleOp::Idx,
                    _ => return None,
                })
            });
            let op = WarpOp::Shuffle(op.ok_or_else(|| form.refuse())?);
            let ty = form.ty()?;
            with_targets(
                warp(op, ty, vec![o(1)?, o(2)?, o(3)?], o(4)?),
                &args[0],
                line,
            )?
        }
        "vote" => {
            arity(3, 3)?;
            let op = form.take(|p| {
                Some(match p {
                    "ballot" => WarpOp::Ballot,
                    "any" => WarpOp::Any,
                    "all" => WarpOp::All,
                    "uni" => WarpOp::Uni,
                    _ => return None,
                })
            });
            let op = op.ok_or_else(|| form.refuse())?;
            if !form.flag("sync") {
                return Err(form.refuse());
            }
            let ty = form.ty()?;
            with_targets(warp(op, ty, vec![o(1)?], o(2)?), &args[0], line)?
        }
        "match" => {
            arity(3, 3)?;
            form.flag("sync");
            let op = if form.flag("any") {
                WarpOp::MatchAny
            } else if form.flag("all") {
                WarpOp::MatchAll
            } else {
                return Err(form.refuse());
            };
            let ty = form.ty()?;
            with_targets(warp(op, ty, vec![o(1)?], o(2)?), &args[0], line)?
        }
        "redux" => {
            arity(3, 3)?;
            form.flag("sync");
            let name = form.take(|p| {
                let known = matches!(p, "add" | "min" | "max" | "and" | "or" | "xor");
                known.then(|| p.to_owned())
            });
            let ty = form.ty()?;
            let signed = ty.is_signed();
            if ty == Type::F32 {
                // Other magnitudes, and a NaN instead of a number, are two bits (§9.7.13.8).
                let flags = u8::from(form.flag("abs")) | u8::from(form.flag("NaN")) << 1;
                let op = match name.as_deref() {
                    Some("min") => WarpOp::ReduxFloat(flags),
                    Some("max") => WarpOp::ReduxFloat(flags | 4),
                    _ => return Err(form.refuse()),
                };
                return with_targets(warp(op, ty, vec![o(1)?], o(2)?), &args[0], line).map(Some);
            }
            let op = match name.as_deref() {
                Some("add") => WarpOp::ReduxAdd(signed),
                Some("min") => WarpOp::ReduxMin(signed),
                Some("max") => WarpOp::ReduxMax(signed),
                Some("and") => WarpOp::ReduxAnd,
                Some("or") => WarpOp::ReduxOr,
                Some("xor") => WarpOp::ReduxXor,
                _ => return Err(form.refuse()),
            };
            if ty.bits() != 32 || ty.is_float() {
                return Err(form.refuse());
            }
            with_targets(warp(op, ty, vec![o(1)?], o(2)?), &args[0], line)?
        }
        "elect" => {
            arity(2, 2)?;
            form.flag("sync");
            with_targets(
                warp(WarpOp::Elect, Type::B32, vec![], o(1)?),
                &args[0],
                line,
            )?
        }
        // One grid at a time depends on another by the stream's order (§9.7.13.13).
        "griddepcontrol" => {
            form.drop_all(|p| matches!(p, "launch_dependents" | "wait"));
            Op::Nothing
        }
        // The only block of the cluster (§9.7.9.23, §9.7.9.24).
        "mapa" | "getctarank" => {
            let map = base == "mapa";
            let want = if map { 3 } else { 2 };
            arity(want, want)?;
            form.flag("shared::cluster");
            let ty = form.ty()?;
            if !matches!(ty, Type::U32 | Type::U64) {
                return Err(form.refuse());
            }
            Op::Move {
                ty: if map { ty } else { Type::U32 },
                to: args[0].target(line)?,
                from: if map { o(1)? } else { Operand::Int(0) },
            }
        }
        _ => return Ok(None),
    }))
}

fn warp(op: WarpOp, ty: Type, args: Vec<Operand>, mask: Operand) -> Op {
    Op::Warp {
        op,
        ty,
        to: None,
        second: None,
        args,
        mask,
    }
}

/// `d`, or `d|p`.
fn with_targets(mut op: Op, arg: &Arg<'_>, line: u32) -> Result<Op, Refusal> {
    if let Op::Warp { to, second, .. } = &mut op {
        match arg {
            Arg::Pair(d, p) => (*to, *second) = (d.target(line)?, p.target(line)?),
            d => *to = d.target(line)?,
        }
    }
    Ok(op)
}

/// `call (results), name, (arguments)` (§9.7.12.5).
fn call(form: &Form<'_>, args: &[Arg<'_>], f: &Function, scope: &Scope<'_>) -> Result<Op, Refusal> {
    let line = form.line;
    let (results, rest) = match args {
        [r @ Arg::List(_), rest @ ..] => (r.each(|a| a.symbol(line))?, rest),
        rest => (Vec::new(), rest),
    };
    let symbols = |given: &Arg<'_>| given.each(|a| a.symbol(line));
    let (name, given) = match rest {
        [Arg::Function(name, _) | Arg::Name(name)] => (*name, Vec::new()),
        [Arg::Function(name, _) | Arg::Name(name), given @ Arg::List(_)] => {
            (*name, symbols(given)?)
        }
        [Arg::Value(address @ Operand::Reg(_)), given @ .., Arg::Name(prototype)] => {
            let given = match given {
                [] => Vec::new(),
                [given] => symbols(given)?,
                _ => return Err((line, "a call has one list of arguments".to_owned())),
            };
            let formals = scope.prototypes.get(*prototype);
            let formals =
                formals.ok_or_else(|| (line, format!("there is no prototype `{prototype}`")))?;
            fits(formals.iter(), &results, &given)
                .map_err(|why| (line, format!("prototype `{prototype}` {why}")))?;
            return Ok(Op::CallAddress {
                function: *address,
                formals: formals.clone(),
                results,
                args: given,
            });
        }
        _ => {
            return Err((
                line,
                "a function, or a register and a prototype, are expected".to_owned(),
            ))
        }
    };
    let index = scope.names.functions.get(name).copied();
    let index = index.ok_or_else(|| (line, format!("there is no function `{name}`")))?;
    // Its own signature is not in the module yet, when a function calls itself.
    let callee = if name == f.name {
        f
    } else {
        &scope.module.functions[index as usize]
    };
    if callee.entry {
        return Err((
            line,
            format!("`{name}` is a kernel, which cannot be called"),
        ));
    }
    fits(callee.variables.iter(), &results, &given)
        .map_err(|why| (line, format!("function `{name}` {why}")))?;
    Ok(Op::Call {
        function: index,
        results,
        args: given,
    })
}

fn fits<'v>(
    formals: impl Iterator<Item = &'v Variable>,
    results: &[Symbol],
    args: &[Symbol],
) -> Result<(), &'static str> {
    let mut counts = [0, 0];
    for v in formals {
        match v.formal {
            Some(Formal::Result) => counts[0] += 1,
            Some(Formal::Argument) => counts[1] += 1,
            None => {}
        }
    }
    match counts == [results.len(), args.len()] {
        true => Ok(()),
        false => Err("has another number of parameters"),
    }
}
