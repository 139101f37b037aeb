//! `cp.async`, `st.async`, `red.async`, `mbarrier`, `bar.arrive`, `barrier.cluster` to [`AsyncOp`]
//! (§9.7.9.25, §9.7.13).

use super::access::{self, hints, is_scope};
use super::form::Form;
use super::operand::Arg;
use super::refusal::Refusal;
use crate::module::{
    AsyncOp, AtomicOp, Function, MemoryOrder, Op, Operand, PhaseOp, Place, Reg, Space, Type,
};

/// Decodes an instruction of this group; `None` if it is of another.
pub(super) fn decode(
    form: &mut Form<'_>,
    args: &[Arg<'_>],
    f: &Function,
) -> Result<Option<Op>, Refusal> {
    let line = form.line;
    let n = args.len();
    let arity = |least: usize, most: usize| match n {
        n if (least..=most).contains(&n) => Ok(()),
        n => Err((line, format!("{least} operands are expected, not {n}"))),
    };
    let o = |i: usize| args[i].operand(line);
    let base = form.base;
    let op = match base {
        "cp" if form.flag("reduce") => {
            form.flag("async");
            bulk(form, args, true)?
        }
        "cp" if form.flag("async") => match copy(form, args, f)? {
            Some(op) => op,
            None => return Ok(Some(Op::Nothing)),
        },
        "st" | "red" if form.flag("async") => return told(form, args).map(Some),
        "mbarrier" => phase(form, args)?,
        "barrier" if form.flag("cluster") => {
            arity(0, 0)?;
            form.drop_all(|p| matches!(p, "aligned" | "release" | "relaxed" | "acquire"));
            if form.flag("wait") {
                AsyncOp::ClusterWait
            } else if form.flag("arrive") {
                AsyncOp::ClusterArrive
            } else {
                return Err(form.refuse());
            }
        }
        "bar" | "barrier" if form.flag("arrive") => {
            form.drop_all(|p| matches!(p, "cta" | "aligned"));
            arity(2, 2)?;
            AsyncOp::Arrive {
                id: o(0)?,
                count: o(1)?,
            }
        }
        _ => return Ok(None),
    };
    Ok(Some(Op::Async(op)))
}

fn place(form: &mut Form<'_>, arg: &Arg<'_>) -> Result<Place, Refusal> {
    Ok(Place {
        space: form.take(Space::named).unwrap_or(Space::Generic),
        at: arg.address(form.line)?,
    })
}

/// `cp.async` (§9.7.9.25.3); `None` for its groups: a copy is done when it is issued.
fn copy(form: &mut Form<'_>, args: &[Arg<'_>], f: &Function) -> Result<Option<AsyncOp>, Refusal> {
    let line = form.line;
    let n = args.len();
    let wrong = || (line, format!("`cp.async` does not have {n} operands"));
    if form.flag("wait_all") {
        return if n == 0 { Ok(None) } else { Err(wrong()) };
    }
    if form.flag("wait_group") || form.flag("commit_group") {
        form.drop_all(|p| matches!(p, "bulk" | "read"));
        return if n <= 1 { Ok(None) } else { Err(wrong()) };
    }
    if form.flag("bulk") {
        if form.flag("prefetch") {
            form.drop_all(|p| p == "global" || p.starts_with("L2"));
            return Ok(None);
        }
        return bulk(form, args, false).map(Some);
    }
    if form.flag("mbarrier") {
        let noinc = form.flag("noinc");
        let arrives = form.flag("arrive");
        if n != 1 || !arrives || form.ty()? != Type::B64 {
            return Err(form.refuse());
        }
        let at = place(form, &args[0])?;
        // Without `.noinc` an arrival more is expected, and comes at once.
        return Ok(noinc.then_some(AsyncOp::Phase {
            op: PhaseOp::Arrive {
                expect: false,
                drop: false,
            },
            at,
            to: None,
            arg: Operand::Int(1),
        }));
    }
    let whole = form.flag("cg");
    if !whole && !form.flag("ca") {
        return Err(form.refuse());
    }
    let policy = form.flag("L2::cache_hint");
    hints(form);
    let rest = n.checked_sub(usize::from(policy)).ok_or_else(wrong)?;
    if !(3..=4).contains(&rest) {
        return Err(wrong());
    }
    let bytes = match args[2].operand(line)? {
        Operand::Int(bytes @ (4 | 8)) if !whole => bytes as u32,
        Operand::Int(16) => 16,
        _ => {
            let sizes = if whole { "16" } else { "4, 8 and 16" };
            return Err((line, format!("`{}` copies {sizes} bytes", form.text)));
        }
    };
    let (to, from) = (place(form, &args[0])?, place(form, &args[1])?);
    if to.space != Space::Shared || from.space != Space::Global {
        return Err(form.refuse());
    }
    let (mut size, mut ignore) = (None, None);
    if rest == 4 {
        // A predicate, or the bytes that are there.
        let is_pred = |r: Reg| f.registers[r.0 as usize] == Type::Pred;
        match args[3].operand(line)? {
            p @ (Operand::Reg(r) | Operand::Not(r)) if is_pred(r) => ignore = Some(p),
            o => size = Some(o),
        }
    }
    Ok(Some(AsyncOp::Copy {
        to,
        from,
        bytes,
        size,
        ignore,
    }))
}

/// `st.async` (§9.7.9.12), `red.async` (§9.7.13.8): the plain access with an mbarrier as the last
/// operand.
fn told(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Op, Refusal> {
    let line = form.line;
    let told = form.flag("mbarrier::complete_tx::bytes");
    let ([.., done], 3) = (args, args.len()) else {
        let n = args.len();
        return Err((line, format!("3 operands are expected, not {n}")));
    };
    // Without one, the space is `.shared::cluster`.
    let space = form.take(Space::named).unwrap_or(Space::Shared);
    if !told || space != Space::Shared {
        return Err(form.refuse());
    }
    let plain = access::decode(form, &args[..2])?;
    let mut what = plain.ok_or_else(|| form.refuse())?;
    let bytes = match &mut what {
        Op::Store { access, from } if access.order == MemoryOrder::Weak => {
            access.space = space;
            access.ty.bytes() * from.len() as u32
        }
        Op::Atomic { op, access, .. } if access.order == MemoryOrder::Relaxed => {
            let (ty, sum) = (access.ty, *op == AtomicOp::Add);
            let plain = matches!(ty, Type::B32 | Type::U32 | Type::S32);
            if *op == AtomicOp::Exch || !(plain || sum && ty == Type::U64) {
                return Err(form.refuse());
            }
            access.space = space;
            ty.bytes()
        }
        _ => return Err(form.refuse()),
    };
    Ok(Op::Told {
        what: Box::new(what),
        bytes,
        done: Place {
            space,
            at: done.address(line)?,
        },
    })
}

/// `cp.async.bulk`, `cp.reduce.async.bulk` (§9.7.9.25.4).
fn bulk(form: &mut Form<'_>, args: &[Arg<'_>], reduces: bool) -> Result<AsyncOp, Refusal> {
    form.flag("bulk");
    let line = form.line;
    let told = form.flag("mbarrier::complete_tx::bytes");
    if !told && !form.flag("bulk_group") {
        return Err(form.refuse());
    }
    let policy = form.flag("L2::cache_hint");
    let want = 3 + usize::from(told) + usize::from(policy);
    if args.len() != want {
        let n = args.len();
        return Err((line, format!("{want} operands are expected, not {n}")));
    }
    let to = place(form, &args[0])?;
    let from = place(form, &args[1])?;
    // Which of them go together; only what leaves shared memory is counted by groups.
    let fits = match (to.space, from.space) {
        (Space::Shared, Space::Global) => told && !reduces,
        (Space::Shared, Space::Shared) => told,
        (Space::Global, Space::Shared) => !told,
        _ => false,
    };
    let reduce = if reduces {
        let keeps = form.flag("noftz");
        let op = form.take(AtomicOp::named).ok_or_else(|| form.refuse())?;
        let ty = form.ty()?;
        let allowed = match (op, ty) {
            (AtomicOp::Exch | AtomicOp::Cas, _) => false,
            (AtomicOp::Add, Type::F16 | Type::Bf16) => keeps,
            (AtomicOp::Min | AtomicOp::Max, Type::F16 | Type::Bf16) => true,
            (AtomicOp::Add, Type::F32 | Type::F64) => true,
            (AtomicOp::Inc | AtomicOp::Dec, ty) => ty == Type::U32,
            (_, ty) => matches!(ty.bytes(), 4 | 8) && !ty.is_float() && !ty.is_half(),
        };
        if !allowed {
            return Err(form.refuse());
        }
        Some((op, ty))
    } else {
        None
    };
    if !fits {
        return Err(form.refuse());
    }
    let done = match told {
        true => Some(Place {
            space: Space::Shared,
            at: args[3].address(line)?,
        }),
        false => None,
    };
    Ok(AsyncOp::Bulk {
        to,
        from,
        bytes: args[2].operand(line)?,
        reduce,
        done,
    })
}

/// `mbarrier` (§9.7.13.15).
fn phase(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<AsyncOp, Refusal> {
    let line = form.line;
    let n = args.len();
    let arity = |least: usize, most: usize| match n {
        n if (least..=most).contains(&n) => Ok(()),
        n => Err((line, format!("{least} operands are expected, not {n}"))),
    };
    let o = |i: usize| args[i].operand(line);
    form.drop_all(|p| matches!(p, "relaxed" | "acquire" | "release") || is_scope(p));
    if form.take(|p| (p == "b64").then_some(())).is_none() {
        return Err(form.refuse());
    }
    if form.flag("pending_count") {
        arity(2, 2)?;
        return Ok(AsyncOp::Pending {
            to: args[0].target(line)?,
            state: o(1)?,
        });
    }
    let space = form.take(Space::named).unwrap_or(Space::Generic);
    if !matches!(space, Space::Generic | Space::Shared) {
        return Err(form.refuse());
    }
    let at = |i: usize| -> Result<Place, Refusal> {
        Ok(Place {
            space,
            at: args[i].address(line)?,
        })
    };
    let plain = |op: PhaseOp, arg: Operand| -> Result<AsyncOp, Refusal> {
        Ok(AsyncOp::Phase {
            op,
            at: at(0)?,
            to: None,
            arg,
        })
    };
    let (arrive, drop) = (form.flag("arrive"), form.flag("arrive_drop"));
    if arrive || drop {
        let expect = form.flag("expect_tx");
        form.flag("noComplete");
        arity(if expect { 3 } else { 2 }, 3)?;
        return Ok(AsyncOp::Phase {
            op: PhaseOp::Arrive { expect, drop },
            at: at(1)?,
            to: args[0].target(line)?,
            arg: if n == 3 { o(2)? } else { Operand::Int(1) },
        });
    }
    let (test, wait) = (form.flag("test_wait"), form.flag("try_wait"));
    if test || wait {
        let parity = form.flag("parity");
        // The last is how long to wait, a hint.
        arity(3, if wait { 4 } else { 3 })?;
        return Ok(AsyncOp::Phase {
            op: PhaseOp::Test { parity, wait },
            at: at(1)?,
            to: args[0].target(line)?,
            arg: o(2)?,
        });
    }
    if form.flag("init") {
        arity(2, 2)?;
        return plain(PhaseOp::Init, o(1)?);
    }
    if form.flag("inval") {
        arity(1, 1)?;
        return plain(PhaseOp::Invalidate, Operand::Int(0));
    }
    if form.flag("expect_tx") {
        arity(2, 2)?;
        return plain(PhaseOp::Expect, o(1)?);
    }
    if form.flag("complete_tx") {
        arity(2, 2)?;
        return plain(PhaseOp::Complete, o(1)?);
    }
    Err(form.refuse())
}
