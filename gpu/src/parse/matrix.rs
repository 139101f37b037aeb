//! `ldmatrix`, `stmatrix`, `movmatrix`, `mma`, `wmma` to [`MatrixOp`] (§9.7.14).

use super::form::Form;
use super::operand::Arg;
use super::refusal::Refusal;
use crate::module::{Element, Fragment, MatrixOp, Op, Operand, Place, Product, Space, Type};

/// Decodes an instruction of this group; `None` if it is of another.
pub(super) fn decode(form: &mut Form<'_>, args: &[Arg<'_>]) -> Result<Option<Op>, Refusal> {
    let line = form.line;
    let base = form.base;
    if !matches!(base, "ldmatrix" | "stmatrix" | "movmatrix" | "mma" | "wmma") {
        return Ok(None);
    }
    // `wmma` is older than `.aligned`, and `mma` of other warps is not there.
    form.flag("aligned");
    if !form.flag("sync") {
        return Err(form.refuse());
    }
    let want = |n: usize| match args.len() {
        have if have == n => Ok(()),
        have => Err((line, format!("{n} operands are expected, not {have}"))),
    };
    let op = match base {
        "ldmatrix" | "stmatrix" => {
            want(2)?;
            let count = form.take(|p| match p {
                "x1" => Some(1),
                "x2" => Some(2),
                "x4" => Some(4),
                _ => None,
            });
            let transpose = form.flag("trans");
            let space = form.take(Space::named).unwrap_or(Space::Generic);
            let small = form.flag("m8n8") && form.ty()? == Type::B16;
            let (Some(count), true) = (count, small) else {
                return Err(form.refuse());
            };
            let store = base == "stmatrix";
            let place = Place {
                space,
                at: args[usize::from(!store)].address(line)?,
            };
            let registers = &args[usize::from(store)];
            if !matches!(space, Space::Generic | Space::Shared) {
                return Err(form.refuse());
            }
            let wrong = || (line, format!("`{}` has {count} registers", form.text));
            if store {
                let from = registers.each(|a| a.operand(line))?;
                if from.len() != count {
                    return Err(wrong());
                }
                MatrixOp::Store {
                    transpose,
                    to: place,
                    from,
                }
            } else {
                let to = registers.each(|a| a.target(line))?;
                if to.len() != count {
                    return Err(wrong());
                }
                MatrixOp::Load {
                    transpose,
                    from: place,
                    to,
                }
            }
        }
        "movmatrix" => {
            want(2)?;
            if !form.flag("m8n8") || !form.flag("trans") || form.ty()? != Type::B16 {
                return Err(form.refuse());
            }
            MatrixOp::Transpose {
                to: args[0].target(line)?,
                from: args[1].operand(line)?,
            }
        }
        "mma" => multiply(form, args, false)?,
        _ => {
            if form.flag("mma") {
                multiply(form, args, true)?
            } else {
                let load = form.flag("load");
                if !load && !form.flag("store") {
                    return Err(form.refuse());
                }
                fragment(form, args, load)?
            }
        }
    };
    Ok(Some(Op::Matrix(op)))
}

/// `m16n8k16`.
fn shape(part: &str) -> Option<[u32; 3]> {
    let (m, rest) = part.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

/// The shapes of `mma` (§9.7.14.1).
fn mma_has(a: Element, shape: [u32; 3]) -> bool {
    match a {
        Element::F16 | Element::Bf16 => matches!(shape, [16, 8, 8 | 16]),
        Element::Tf32 => matches!(shape, [16, 8, 4 | 8]),
        Element::F64 => matches!(shape, [8, 8, 4] | [16, 8, 4 | 8 | 16]),
        Element::S8 | Element::U8 => matches!(shape, [8, 8, 16] | [16, 8, 16 | 32]),
        Element::S4 | Element::U4 => matches!(shape, [8, 8, 32] | [16, 8, 32 | 64]),
        Element::B1 => matches!(shape, [8, 8, 128] | [16, 8, 128 | 256]),
        Element::E4m3 | Element::E5m2 => matches!(shape, [16, 8, 16 | 32]),
        Element::F32 | Element::S32 => false,
    }
}

/// The shapes of `wmma`.
fn wmma_has(a: Element, shape: [u32; 3]) -> bool {
    let large = matches!(shape, [16, 16, 16] | [8, 32, 16] | [32, 8, 16]);
    match a {
        Element::F16 | Element::Bf16 | Element::S8 | Element::U8 => large,
        Element::Tf32 => shape == [16, 16, 8],
        Element::F64 => shape == [8, 8, 4],
        Element::S4 | Element::U4 => shape == [8, 8, 32],
        Element::B1 => shape == [8, 8, 128],
        _ => false,
    }
}

fn multiply(form: &mut Form<'_>, args: &[Arg<'_>], wmma: bool) -> Result<MatrixOp, Refusal> {
    let line = form.line;
    let Some([m, n, k]) = form.take(shape) else {
        return Err(form.refuse());
    };
    // The orders of `A` and `B` were decided when they were loaded.
    let mut orders = 0;
    while form
        .take(|p| matches!(p, "row" | "col").then_some(()))
        .is_some()
    {
        orders += 1;
    }
    let mut elements = Vec::new();
    while let Some(e) = form.take(Element::named) {
        elements.push(e);
    }
    let [d, a, b, c] = match elements[..] {
        [d, a, b, c] => [d, a, b, c],
        [d, c] if wmma => [d, Element::F16, Element::F16, c],
        _ => return Err(form.refuse()),
    };
    let single = a == Element::B1;
    let and = single && form.flag("and");
    let bits = !single || (form.flag("popc") && (and || form.flag("xor")));
    let result = match a {
        Element::F16 if wmma => [c, d]
            .iter()
            .all(|e| matches!(e, Element::F16 | Element::F32)),
        Element::F16 | Element::E4m3 | Element::E5m2 => {
            c == d && matches!(c, Element::F16 | Element::F32)
        }
        Element::F64 => [c, d] == [Element::F64; 2],
        a if a.is_integer() => [c, d] == [Element::S32; 2],
        _ => [c, d] == [Element::F32; 2],
    };
    // Numbers of eight and of four bits may have different signs, and small floats different
    // exponents.
    let eight = |e| matches!(e, Element::E4m3 | Element::E5m2);
    let same = a == b || (a.is_integer() && a.bits() == b.bits()) || (eight(a) && eight(b));
    let shaped = match wmma {
        true => wmma_has(a, [m, n, k]),
        false => mma_has(a, [m, n, k]),
    };
    if a == Element::F64 {
        form.flag("rn");
    }
    let saturate =
        (a.is_integer() && !single || wmma && a == Element::F16) && form.flag("satfinite");
    if !(bits && result && same && shaped && orders == 2) {
        return Err(form.refuse());
    }
    let product = Product {
        m,
        n,
        k,
        a,
        b,
        c,
        d,
        saturate,
        and,
        linear: wmma,
    };
    if args.len() != 4 {
        let n = args.len();
        return Err((line, format!("4 operands are expected, not {n}")));
    }
    let counts = registers(&product);
    let to = args[0].each(|a| a.target(line))?;
    let operands = |i: usize| args[i].each(|a| a.operand(line));
    let mut args = [operands(1)?, operands(2)?, operands(3)?];
    let have = [args[0].len(), args[1].len(), args[2].len(), to.len()];
    if have != counts {
        return Err((line, format!("`{}` has {counts:?} registers", form.text)));
    }
    let words = product.words();
    for (list, (words, e)) in args.iter_mut().zip(words.iter().zip([a, b, c])) {
        list.truncate((words * 32 / e.bits().max(32)) as usize);
    }
    if args.iter().flatten().any(|o| !matches!(o, Operand::Reg(_))) {
        return Err((line, "parts of matrices are registers".to_owned()));
    }
    Ok(MatrixOp::Multiply { product, to, args })
}

/// How many registers `A`, `B`, `C` and `D` have.
fn registers(p: &Product) -> [usize; 4] {
    let of = |words: u32, e: Element| (words * 32 / e.bits().max(32)) as usize;
    let words = p.words();
    let mut counts = [
        of(words[0], p.a),
        of(words[1], p.b),
        of(words[2], p.c),
        of(words[3], p.d),
    ];
    if p.linear && p.a == Element::F16 {
        // Elements stand in two lanes on GPUs of the first kind that had them.
        (counts[0], counts[1]) = (8, 8);
    }
    counts
}

fn fragment(form: &mut Form<'_>, args: &[Arg<'_>], load: bool) -> Result<MatrixOp, Refusal> {
    let line = form.line;
    let which = form.take(|p| matches!(p, "a" | "b" | "c" | "d").then(|| p.to_owned()));
    let (Some(which), Some([m, n, k])) = (which, form.take(shape)) else {
        return Err(form.refuse());
    };
    let row = form.flag("row");
    let space = form.take(Space::named).unwrap_or(Space::Generic);
    let element = form.take(Element::named);
    let (Some(element), true) = (element, row || form.flag("col")) else {
        return Err(form.refuse());
    };
    let (rows, columns, by_rows) = match which.as_str() {
        "a" if load => (m, k, row),
        "b" if load => (n, k, !row),
        "c" if load => (m, n, row),
        "d" if !load => (m, n, row),
        _ => return Err(form.refuse()),
    };
    let operand = matches!(which.as_str(), "a" | "b");
    let shape = [m, n, k];
    // A sum does not tell what it is a sum of.
    let fits = match element {
        e if operand => wmma_has(e, shape),
        Element::F16 => wmma_has(Element::F16, shape),
        Element::F32 => wmma_has(Element::F16, shape) || wmma_has(Element::Tf32, shape),
        Element::F64 => wmma_has(Element::F64, shape),
        Element::S32 => [Element::S8, Element::S4, Element::B1]
            .iter()
            .any(|e| wmma_has(*e, shape)),
        _ => false,
    };
    let whole = element.bits() >= 8 || by_rows;
    let reached = matches!(space, Space::Generic | Space::Global | Space::Shared);
    if !(fits && whole && reached) {
        return Err(form.refuse());
    }
    if !(2..=3).contains(&args.len()) {
        let n = args.len();
        return Err((line, format!("2 operands are expected, not {n}")));
    }
    let stride = match args.get(2) {
        Some(a) => Some(a.operand(line)?),
        None => None,
    };
    let words = rows * columns * element.bits() / 1024;
    let count = match (operand, element) {
        (true, Element::F16) => 8,
        (_, Element::F64) => words / 2,
        _ => words,
    } as usize;
    let wrong = || (line, format!("`{}` has {count} registers", form.text));
    let fragment = Fragment {
        rows,
        columns,
        element,
        by_rows,
    };
    let place = Place {
        space,
        at: args[usize::from(load)].address(line)?,
    };
    if load {
        let to = args[0].each(|a| a.target(line))?;
        if to.len() != count {
            return Err(wrong());
        }
        return Ok(MatrixOp::LoadFragment {
            fragment,
            from: place,
            stride,
            to,
        });
    }
    let from = args[1].each(|a| a.operand(line))?;
    if from.len() != count {
        return Err(wrong());
    }
    Ok(MatrixOp::StoreFragment {
        fragment,
        to: place,
        stride,
        from,
    })
}
