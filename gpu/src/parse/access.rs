//! Accesses of memory to [`Op`] (§9.7.9, §9.7.13).

use super::form::Form;
use super::operand::Arg;
use super::refusal::Refusal;
use crate::module::{Access, AtomicOp, ExtendedOp, MemoryOrder, Op, Operand, Scope, Space, Type};

/// Decodes an instruction of this group; `None` if it is of another.
pub(super) fn decode(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Option<Op>, Refusal> {
    let line = form.line;
    let n = args.len();
    let arity = |least: usize, most: usize| {
        if (least..=most).contains(&n) {
            Ok(())
        } else {
            Err((line, format!("{least} operands are expected, not {n}")))
        }
    };
    Ok(Some(match form.base {
        // Of `asynchronous`.
        "st" | "red" if form.has("async") => return Ok(None),
        "ld" | "ldu" | "st" => {
            // The third operand is a cache policy, a hint.
            arity(2, 3)?;
            let load = form.base != "st";
            let (scope, order) = (scope(form), order(form));
            hints(form);
            let lanes = form.take(|p| match p {
                "v2" => Some(2),
                "v4" => Some(4),
                "v8" => Some(8),
                _ => None,
            });
            let space = space(form);
            let ty = form.ty()?;
            // 16 bytes, and 32 of global memory (§9.7.9.8).
            let most = match space {
                Space::Generic | Space::Global => 32,
                _ => 16,
            };
            if lanes.unwrap_or(1) as u32 * ty.bytes() > most {
                return Err(form.refuse());
            }
            let values = &args[usize::from(!load)];
            let at = args[usize::from(load)].address(line)?;
            let list = matches!(values, Arg::List(_));
            let access = Access {
                space,
                order,
                scope,
                ty,
                at,
            };
            let count = |n: usize| {
                if n == lanes.unwrap_or(1) && (list || lanes.is_none()) {
                    Ok(())
                } else {
                    Err((
                        line,
                        "the number of elements is not that of the vector".to_owned(),
                    ))
                }
            };
            let allowed = match order {
                MemoryOrder::Weak | MemoryOrder::Relaxed => true,
                MemoryOrder::Acquire => load,
                MemoryOrder::Release => !load,
                _ => false,
            };
            if ty == Type::Pred || !allowed {
                return Err(form.refuse());
            }
            if load {
                let to = values.each(|a| a.target(line))?;
                count(to.len())?;
                Op::Load { access, to }
            } else {
                let from = values.each(|a| a.operand(line))?;
                count(from.len())?;
                Op::Store { access, from }
            }
        }
        "atom" | "red" => {
            let returns = form.base == "atom";
            let (scope, order) = (scope(form), order(form));
            let order = match order {
                MemoryOrder::Weak => MemoryOrder::Relaxed,
                other => other,
            };
            hints(form);
            let keeps = form.flag("noftz");
            let space = space(form);
            let op = form.take(AtomicOp::named).ok_or_else(|| form.refuse())?;
            let lanes = form.take(|p| match p {
                "v2" => Some(2),
                "v4" => Some(4),
                "v8" => Some(8),
                _ => None,
            });
            let ty = form.ty()?;
            let first = usize::from(returns);
            if let Some(lanes) = lanes {
                arity(first + 2, first + 3)?;
                return vector(form, args, (op, ty, lanes), (space, order, keeps)).map(Some);
            }
            let values = if op == AtomicOp::Cas { 2 } else { 1 };
            arity(first + 1 + values, first + 1 + values)?;
            let fits = match ty {
                Type::F32 | Type::F64 => op == AtomicOp::Add,
                Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => op == AtomicOp::Add && keeps,
                Type::B32 | Type::U32 | Type::S32 => true,
                Type::B64 | Type::U64 | Type::S64 => !matches!(op, AtomicOp::Inc | AtomicOp::Dec),
                Type::B16 | Type::U16 => op == AtomicOp::Cas,
                Type::B128 => returns && matches!(op, AtomicOp::Cas | AtomicOp::Exch),
                _ => false,
            };
            if !fits || matches!(space, Space::Const | Space::Param | Space::Local) {
                return Err(form.refuse());
            }
            let to = if returns { args[0].target(line)? } else { None };
            let at = args[first].address(line)?;
            let args = args[first + 1..].iter().map(|a| a.operand(line));
            Op::Atomic {
                op,
                access: Access {
                    space,
                    order,
                    scope,
                    ty,
                    at,
                },
                to,
                args: args.collect::<Result<_, _>>()?,
            }
        }
        "fence" | "membar" => {
            arity(0, 0)?;
            let membar = form.base == "membar";
            let order = form.take(|p| match p {
                "sc" => Some(MemoryOrder::SeqCst),
                "acq_rel" | "acquire" | "release" => Some(MemoryOrder::AcqRel),
                _ => None,
            });
            let scope = scope(form);
            form.drop_all(|p| is_scope(p) || (membar && p == "gl"));
            // Accesses of all proxies are the same here (§8.1). Descriptors of tensors are not
            // there.
            let proxy = form.flag("proxy");
            form.drop_all(|p| {
                p == "mbarrier_init"
                    || p.starts_with("sync_restrict::")
                    || proxy && (p == "alias" || p.starts_with("async"))
            });
            form.drop_all(|p| proxy && matches!(p, "global" | "shared::cta" | "shared::cluster"));
            // `membar` is `fence.sc`, and `fence` is so by default (§9.7.13.4).
            Op::Fence {
                order: order.unwrap_or(MemoryOrder::SeqCst),
                scope,
            }
        }
        "cvta" => {
            arity(2, 2)?;
            let into = form.flag("to");
            let space = space(form);
            if form.ty()?.bits() != 64 || space == Space::Generic {
                return Err(form.refuse());
            }
            Op::ConvertAddress {
                space,
                into,
                to: args[0].target(line)?,
                a: args[1].operand(line)?,
            }
        }
        "isspacep" => {
            arity(2, 2)?;
            let space = space(form);
            if space == Space::Generic {
                return Err(form.refuse());
            }
            Op::IsSpace {
                space,
                to: args[0].target(line)?,
                a: args[1].operand(line)?,
            }
        }
        // Hints about caches (§9.7.9.15, §9.7.9.17), and to who measures.
        "prefetch" | "prefetchu" | "applypriority" | "discard" | "pmevent"
            if !form.has("tensormap") =>
        {
            form.drop_all(|_| true);
            Op::Nothing
        }
        "createpolicy" => {
            form.drop_all(|_| true);
            Op::Move {
                ty: Type::B64,
                to: args.first().map_or(Ok(None), |a| a.target(line))?,
                from: Operand::Int(0),
            }
        }
        // A multicast object of one GPU is its memory (§9.7.9.18).
        "multimem" => return multimem(form, args).map(Some),
        _ => return Ok(None),
    }))
}

/// `atom` and `red` of vectors (§9.7.13.5).
fn vector(
    form: &mut Form<'_>,
    args: &[Arg<'_>],
    (op, ty, lanes): (AtomicOp, Type, usize),
    (space, order, keeps): (Space, MemoryOrder, bool),
) -> Result<Op, Refusal> {
    let line = form.line;
    let returns = form.base == "atom";
    let fits = match ty {
        Type::F32 => op == AtomicOp::Add && lanes <= 4,
        Type::F16x2 | Type::Bf16x2 => keeps && lanes <= 4,
        Type::F16 | Type::Bf16 => keeps,
        _ => false,
    };
    let known = matches!(op, AtomicOp::Add | AtomicOp::Min | AtomicOp::Max);
    if !fits || !known || !matches!(space, Space::Generic | Space::Global) {
        return Err(form.refuse());
    }
    let first = usize::from(returns);
    let to = if returns {
        args[0].each(|a| a.target(line))?
    } else {
        Vec::new()
    };
    let at = args[first].address(line)?;
    let values = args[first + 1].each(|a| a.operand(line))?;
    if values.len() != lanes || returns && to.len() != lanes {
        return Err((
            line,
            "the number of elements is not that of the vector".to_owned(),
        ));
    }
    Ok(Op::Extended(ExtendedOp::Atomics {
        op,
        access: Access {
            space,
            order,
            // Its own is not looked at: the widest is allowed.
            scope: Scope::System,
            ty,
            at,
        },
        to,
        args: values,
    }))
}

/// `multimem.ld_reduce`, `multimem.st`, `multimem.red` (§9.7.9.18) of an object with one GPU.
fn multimem(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Op, Refusal> {
    let line = form.line;
    let (load, store) = (form.flag("ld_reduce"), form.flag("st"));
    if !load && !store && !form.flag("red") {
        return Err(form.refuse());
    }
    if args.len() != 2 {
        let n = args.len();
        return Err((line, format!("2 operands are expected, not {n}")));
    }
    let (scope, order) = (scope(form), order(form));
    let keeps = form.flag("noftz");
    let space = space(form);
    let op = form.take(AtomicOp::named);
    form.drop_all(|p| p.starts_with("acc::"));
    let lanes = form.take(|p| match p {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    });
    let ty = form.ty()?;
    let reduces = matches!(
        op,
        Some(
            AtomicOp::Add
                | AtomicOp::Min
                | AtomicOp::Max
                | AtomicOp::And
                | AtomicOp::Or
                | AtomicOp::Xor
        )
    );
    if reduces == store || !matches!(space, Space::Generic | Space::Global) || ty == Type::B128 {
        return Err(form.refuse());
    }
    let at = args[usize::from(load)].address(line)?;
    let values = &args[usize::from(!load)];
    let access = Access {
        space,
        order,
        scope,
        ty,
        at,
    };
    let fits = |n: usize| match n == lanes.unwrap_or(1) {
        true => Ok(()),
        false => Err((
            line,
            "the number of elements is not that of the vector".to_owned(),
        )),
    };
    if load {
        let to = values.each(|a| a.target(line))?;
        fits(to.len())?;
        return Ok(Op::Load { access, to });
    }
    let from = values.each(|a| a.operand(line))?;
    fits(from.len())?;
    match (op, lanes) {
        (None, _) => Ok(Op::Store { access, from }),
        (Some(op), Some(lanes)) => vector(
            form,
            &[args[0].clone(), values.clone()],
            (op, ty, lanes),
            (space, order, keeps),
        ),
        (Some(op), None) => Ok(Op::Atomic {
            op,
            access,
            to: None,
            args: from,
        }),
    }
}

pub(super) fn is_scope(part: &str) -> bool {
    matches!(part, "cta" | "cluster" | "gpu" | "sys")
}

/// The scope, before the order is taken. Without one it is the GPU's, and the system's of
/// `.volatile` and `.mmio` (§8.5).
fn scope(form: &mut Form<'_>) -> Scope {
    let named = form.take(Scope::named);
    let system = form.has("volatile") || form.has("mmio") || form.base == "membar";
    let otherwise = if system { Scope::System } else { Scope::Gpu };
    named.unwrap_or(otherwise)
}

/// The order.
fn order(form: &mut Form<'_>) -> MemoryOrder {
    let order = form.take(|p| {
        Some(match p {
            "weak" => MemoryOrder::Weak,
            "relaxed" | "volatile" | "mmio" => MemoryOrder::Relaxed,
            "acquire" => MemoryOrder::Acquire,
            "release" => MemoryOrder::Release,
            "acq_rel" => MemoryOrder::AcqRel,
            _ => return None,
        })
    });
    // `.mmio.relaxed`.
    form.flag("relaxed");
    form.drop_all(is_scope);
    order.unwrap_or(MemoryOrder::Weak)
}

/// Cache operators and eviction priorities (§9.7.9.1, §9.7.9.2).
pub(super) fn hints(form: &mut Form<'_>) {
    form.drop_all(|p| {
        matches!(
            p,
            "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc" | "unified"
        ) || p.starts_with("L1::")
            || p.starts_with("L2::")
    });
}

fn space(form: &mut Form<'_>) -> Space {
    form.take(Space::named).unwrap_or(Space::Generic)
}
