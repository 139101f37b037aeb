//! A function's body: registers, variables, labels, instructions (§4.3, §11.5.3).

use std::collections::HashMap;

use super::form::Form;
use super::operand::{arg, Arg};
use super::reader::Reader;
use super::refusal::{Refusal, MOST};
use super::scope::Scope;
use super::variable::{parameters, variable};
use super::{access, arithmetic, asynchronous, control, convert, extended, half, matrix};
use crate::module::{
    Base, Formal, Function, Instruction, Label, Op, Reg, Site, Space, Statement, Symbol, Type,
    Variable,
};

/// Deepest nesting of blocks.
const DEEPEST: usize = 64;

/// Reads the body behind its `{`.
pub(super) fn function(
    r: &mut Reader<'_>,
    f: &mut Function,
    scope: &mut Scope<'_>,
) -> Result<(), Refusal> {
    let formals = f.variables.iter().enumerate();
    let formals = formals.map(|(i, v)| (v.name.clone(), i as u32)).collect();
    scope.variables.push(formals);
    block(r, f, scope)?;
    name_callers(f);
    Ok(())
}

/// Lines of another file than the function's own are of functions that the compiler put into it:
/// where they were called is the last line before of the function's own file, which is that of its
/// last `ret`.
fn name_callers(f: &mut Function) {
    let is_end = |s: &&Instruction| matches!(s.op, Op::Return | Op::Exit);
    let own = f.body.iter().rev().filter_map(Statement::instruction);
    let Some((own, _)) = own.filter(is_end).find_map(|s| s.site.source) else {
        return;
    };
    let mut last = None;
    for s in &mut f.body {
        let Statement::Instruction(i) = s else {
            continue;
        };
        match i.site.source {
            Some((file, _)) if file == own => last = i.site.source,
            Some(_) if i.site.caller.is_none() => i.site.caller = last,
            _ => {}
        }
    }
}

fn block(r: &mut Reader<'_>, f: &mut Function, scope: &mut Scope<'_>) -> Result<(), Refusal> {
    if scope.registers.len() > DEEPEST {
        return Err((r.line(), "blocks are nested too deep".to_owned()));
    }
    scope.registers.push(HashMap::new());
    scope.ranges.push(Vec::new());
    scope.variables.push(HashMap::new());
    scope.labels.push(labels_ahead(r, f)?);
    while !r.eat("}") {
        if r.at_end() {
            return Err(r.unexpected("`}`"));
        }
        statement(r, f, scope)?;
    }
    scope.registers.pop();
    scope.ranges.pop();
    scope.variables.pop();
    scope.labels.pop();
    Ok(())
}

/// The labels of this block, which branches may name before they come.
fn labels_ahead(r: &Reader<'_>, f: &mut Function) -> Result<HashMap<String, Label>, Refusal> {
    let (mut depth, mut n, mut out) = (0u32, 0, HashMap::new());
    loop {
        match (r.ahead(n), r.ahead(n + 1)) {
            ("", _) => return Ok(out),
            ("{", _) => depth += 1,
            ("}", _) if depth == 0 => return Ok(out),
            ("}", _) => depth -= 1,
            (_, ":") if is_prototype(r.ahead(n + 2)) => {}
            (name, ":") if depth == 0 => {
                if out.insert(name.to_owned(), Label(f.labels)).is_some() {
                    return Err((r.line(), format!("label `{name}` is there twice")));
                }
                f.labels += 1;
            }
            _ => {}
        }
        n += 1;
    }
}

fn statement(r: &mut Reader<'_>, f: &mut Function, scope: &mut Scope<'_>) -> Result<(), Refusal> {
    let line = r.line();
    match r.peek() {
        "{" => {
            r.take();
            return block(r, f, scope);
        }
        ";" => {
            r.take();
        }
        ".reg" => {
            r.take();
            registers(r, f, scope)?;
        }
        space @ (".shared" | ".local" | ".param") => {
            r.take();
            let space = Space::named(&space[1..]).expect("one of the three");
            loop {
                let v = variable(r, space, scope.names)?;
                if !v.initial.is_empty() {
                    return Err((line, format!("`{}` cannot have an initial value", v.name)));
                }
                let innermost = scope.variables.last_mut().expect("inside a block");
                innermost.insert(v.name.clone(), f.variables.len() as u32);
                f.variables.push(v);
                if !r.eat(",") {
                    break;
                }
            }
            r.expect(";")?;
        }
        ".loc" => {
            r.take();
            loc(r, scope)?;
        }
        ".pragma" => r.skip_past(";")?,
        word if word.starts_with('.') => {
            return Err((line, format!("the emulated GPU does not have `{word}`")));
        }
        name if r.ahead(1) == ":" && is_prototype(r.ahead(2)) => {
            let name = name.to_owned();
            r.take();
            r.take();
            if r.peek() == ".branchtargets" {
                let labels = branch_targets(r, scope)?;
                scope.tables.insert(name, labels);
            } else {
                let formals = prototype(r, scope)?;
                scope.prototypes.insert(name, formals);
            }
        }
        name if r.ahead(1) == ":" => {
            let label = scope.label(name).expect("found ahead");
            r.take();
            r.take();
            push(f, scope, line, Statement::Label(label))?;
        }
        _ => instruction(r, f, scope)?,
    }
    Ok(())
}

/// Instructions of units that are not there, whose operands are of their own kinds.
fn is_elsewhere(opcode: &str) -> bool {
    let mut parts = opcode.split('.');
    let unit = matches!(
        parts.next(),
        Some(
            "wgmma"
                | "tcgen05"
                | "setmaxnreg"
                | "tensormap"
                | "tex"
                | "tld4"
                | "txq"
                | "suld"
                | "sust"
                | "sured"
                | "suq"
                | "istypep"
                | "clusterlaunchcontrol"
        )
    );
    unit || parts.any(|p| p == "tensor" || p.starts_with("tensormap"))
}

/// Behind a name: what a call by address may be of, or where a branch by a number may go (§11.3).
fn is_prototype(word: &str) -> bool {
    matches!(word, ".callprototype" | ".calltargets" | ".branchtargets")
}

/// `.branchtargets L1, L2;`
fn branch_targets(r: &mut Reader<'_>, scope: &Scope<'_>) -> Result<Vec<Label>, Refusal> {
    r.take();
    let mut labels = Vec::new();
    loop {
        let line = r.line();
        let name = r.word("a label")?;
        let label = scope.label(name);
        labels.push(label.ok_or_else(|| (line, format!("there is no label `{name}`")))?);
        if r.eat(";") {
            return Ok(labels);
        }
        r.expect(",")?;
    }
}

/// `.callprototype (.param .b32 _) _ (.param .b64 _);`, `.calltargets f, g;`: the parameters.
fn prototype(r: &mut Reader<'_>, scope: &mut Scope<'_>) -> Result<Vec<Variable>, Refusal> {
    let mut formals = Vec::new();
    let line = r.line();
    if r.take() == ".calltargets" {
        let name = r.word("a function")?;
        let function = scope.names.functions.get(name);
        let function = function.ok_or_else(|| (line, format!("there is no function `{name}`")))?;
        let function = &scope.module.functions[*function as usize];
        formals.extend(function.formals().cloned());
        r.skip_past(";")?;
        return Ok(formals);
    }
    if r.peek() == "(" {
        parameters(r, &mut formals, Formal::Result, scope.names)?;
    }
    r.word("`_`")?;
    if r.peek() == "(" {
        parameters(r, &mut formals, Formal::Argument, scope.names)?;
    }
    // `.noreturn`.
    r.skip_past(";")?;
    Ok(formals)
}

fn push(f: &mut Function, scope: &mut Scope<'_>, line: u32, s: Statement) -> Result<(), Refusal> {
    scope.names.room = scope
        .names
        .room
        .checked_sub(1)
        .ok_or_else(|| (line, format!("the module has more than {MOST} statements")))?;
    f.body.push(s);
    Ok(())
}

/// `.reg .b32 %r<5>, %x;` (§5.4.5).
fn registers(r: &mut Reader<'_>, f: &mut Function, scope: &mut Scope<'_>) -> Result<(), Refusal> {
    let line = r.line();
    let word = r.word("a type")?;
    let ty = word.strip_prefix('.').and_then(Type::named);
    let ty = ty.ok_or_else(|| {
        (
            line,
            format!("the emulated GPU does not have registers of `{word}`"),
        )
    })?;
    loop {
        let name = r.word("a register")?.to_owned();
        let first = f.registers.len() as u32;
        let mut count = 1;
        if r.eat("<") {
            count = r.count("the number of registers")?;
            r.expect(">")?;
        }
        if count > MOST || first + count > MOST {
            return Err((line, format!("the function has more than {MOST} registers")));
        }
        f.registers.resize((first + count) as usize, ty);
        // Only a range has numbered names.
        if count == 1 && !name.is_empty() {
            let innermost = scope.registers.last_mut().expect("inside a block");
            innermost.insert(name.clone(), Reg(first));
        }
        let innermost = scope.ranges.last_mut().expect("inside a block");
        innermost.push((name, first, count));
        if !r.eat(",") {
            break;
        }
    }
    r.expect(";")
}

/// `.loc file line column[, function_name label, inlined_at file line column]`.
fn loc(r: &mut Reader<'_>, scope: &mut Scope<'_>) -> Result<(), Refusal> {
    let first = scope.names.first_file;
    let file = r.count("the file's number")?.saturating_add(first);
    let line = r.count("the line")?;
    r.count("the column")?;
    // Line 0 says that the compiler made the code up; the line before is nearer.
    if line > 0 {
        scope.source = Some((file, line));
        scope.caller = None;
    }
    while r.eat(",") {
        match r.word("an attribute")? {
            "function_name" => {
                r.word("a label")?;
                if r.eat("+") {
                    r.number()?;
                }
            }
            "inlined_at" => {
                let file = r.count("the file's number")?.saturating_add(first);
                scope.caller = Some((file, r.count("the line")?));
                r.count("the column")?;
            }
            // DWARF's flags: `is_stmt 0`, `prologue_end`.
            _ => {
                while r.peek().starts_with(|c: char| c.is_ascii_digit()) {
                    r.number()?;
                }
            }
        }
    }
    Ok(())
}

fn instruction(r: &mut Reader<'_>, f: &mut Function, scope: &mut Scope<'_>) -> Result<(), Refusal> {
    let line = r.line();
    let guard = if r.eat("@") {
        let negated = r.eat("!");
        let name = r.word("a predicate")?;
        let reg = scope.register(name);
        let is_pred = |reg: &Reg| f.registers[reg.0 as usize] == Type::Pred;
        let reg = reg.filter(is_pred);
        Some((
            reg.ok_or_else(|| (line, format!("there is no predicate `{name}`")))?,
            negated,
        ))
    } else {
        None
    };
    let line = r.line();
    let opcode = r.word("an instruction")?;
    if is_elsewhere(opcode) {
        return Err(Form::new(opcode, line).refuse());
    }
    let mut args = Vec::new();
    if !r.eat(";") {
        loop {
            args.push(arg(r, scope, 0)?);
            if r.eat(";") {
                break;
            }
            // The result of a call stands in parentheses of its own.
            if !r.eat(",") {
                return Err(r.unexpected("`,` or `;`"));
            }
        }
    }
    if scope.carry.is_none() && extended::has_carry(opcode) {
        scope.carry = Some(Reg(f.registers.len() as u32));
        f.registers.push(Type::Pred);
    }
    // The address of what is not called is taken.
    if opcode.split('.').next() != Some("call") {
        let functions = args.iter().filter_map(|a| match a {
            Arg::Function(_, f) => Some(*f),
            _ => None,
        });
        scope.names.addressed.extend(functions);
    }
    let form = Form::new(opcode, line);
    let op = decode(form, &args, f, scope)?;
    check_registers(&op, f, line)?;
    let site = Site {
        line,
        source: scope.source,
        caller: scope.caller,
    };
    let i = Instruction { guard, op, site };
    push(f, scope, line, Statement::Instruction(i))
}

fn decode(
    mut form: Form<'_>,
    args: &[Arg<'_>],
    f: &Function,
    scope: &Scope<'_>,
) -> Result<Op, Refusal> {
    let mut decoded = extended::decode(&mut form, args, scope)?;
    if decoded.is_none() {
        decoded = convert::decode(&mut form, args)?;
    }
    if decoded.is_none() {
        decoded = matrix::decode(&mut form, args)?;
    }
    if decoded.is_none() {
        decoded = half::decode(&mut form, args)?;
    }
    if decoded.is_none() {
        decoded = arithmetic::decode(&mut form, args)?;
    }
    if decoded.is_none() {
        decoded = access::decode(&mut form, args)?;
    }
    if decoded.is_none() {
        decoded = asynchronous::decode(&mut form, args, f)?;
    }
    if decoded.is_none() {
        decoded = control::decode(&mut form, args, f, scope)?;
    }
    let op = decoded.ok_or_else(|| form.refuse())?;
    form.done()?;
    Ok(op)
}

/// Predicates and numbers do not mix (§5.2.1), and 128 bits are only moved.
fn check_registers(op: &Op, f: &Function, line: u32) -> Result<(), Refusal> {
    let is_pred = |reg: Reg| f.registers[reg.0 as usize] == Type::Pred;
    let mut bad = None;
    let moves = matches!(
        op,
        Op::Move { .. }
            | Op::Pack { .. }
            | Op::Unpack { .. }
            | Op::Load { .. }
            | Op::Store { .. }
            | Op::Atomic { .. }
    );
    let mut wide = |reg: Reg| {
        if !moves && f.registers[reg.0 as usize] == Type::B128 {
            bad = Some("a register of 128 bits is only moved, loaded and stored");
        }
    };
    op.reads(&mut wide);
    op.writes(&mut wide);
    // Parameters of a kernel and constants are only read (§5.1.3, §5.1.6).
    let written = match op {
        Op::Store { access, .. } | Op::Atomic { access, .. } => Some(access),
        _ => None,
    };
    if let Some(access) = written {
        let parameter = match access.at.base {
            Base::Symbol(Symbol::Own(v)) => f.entry && f.variables[v as usize].formal.is_some(),
            _ => false,
        };
        if parameter {
            bad = Some("a parameter of the kernel is only read");
        } else if access.space == Space::Const {
            bad = Some("constants are only read");
        }
    }
    let mut predicate = |o: &crate::module::Operand| {
        use crate::module::Operand;
        match o {
            Operand::Reg(r) | Operand::Not(r) if is_pred(*r) => {}
            Operand::Int(_) => {}
            _ => bad = Some("a predicate is expected"),
        }
    };
    match op {
        Op::Select { p, .. } => predicate(p),
        Op::Compare {
            combine: Some((_, p)),
            ..
        }
        | Op::Set {
            combine: Some((_, p)),
            ..
        } => predicate(p),
        Op::Barrier { p: Some(p), .. } => predicate(p),
        _ => {}
    }
    match bad {
        Some(why) => Err((line, why.to_owned())),
        None => Ok(()),
    }
}
