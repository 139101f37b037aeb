//! A module in typed form: variables, functions, instructions.

mod asynchronous;
mod calls;
mod extended;
mod matrix;
mod op;
mod operand;
mod pure;
mod types;
mod variable;

use std::sync::Arc;

pub(crate) use asynchronous::{AsyncOp, PhaseOp, Place};
pub(crate) use calls::{formal_offsets, function_address};
pub(crate) use extended::{CarryOp, ExtendedOp, SingleOp};
pub(crate) use matrix::{Element, Fragment, MatrixOp, Product};
pub(crate) use op::Op;
pub(crate) use operand::*;
pub(crate) use pure::{flag, PureKind, PureOp, SmallFormat, SMALL};
pub(crate) use types::Space;
pub use types::Type;
pub(crate) use variable::Formal;
pub use variable::Variable;

/// PTX text that was read and found complete: everything in it can be compiled.
#[derive(Debug, Clone)]
pub struct Module {
    /// The name by which errors call it: a file's.
    pub file: Arc<str>,
    /// Version of the ISA (§11.1.1), as major and minor.
    pub version: (u32, u32),
    /// The newest architecture that it asks for (§11.1.2): 80 for `sm_80`.
    pub target: u32,
    /// Whether its kernels read [`Block::environment`](crate::Block::environment).
    pub environment: bool,
    /// Variables outside functions.
    pub variables: Vec<Variable>,
    /// Kernels and device functions.
    pub functions: Vec<Function>,
    /// Functions whose address is taken.
    pub(crate) addressed: Vec<u32>,
    /// Those with code of their own.
    pub(crate) outlined: Vec<bool>,
    /// Names of source files, by the number of `.file` (§11.5.4).
    pub(crate) sources: Vec<(u32, String)>,
    /// Texts by the lines in front of each, and what errors call them.
    pub(crate) texts: Vec<(u32, Arc<str>)>,
    /// SHA-256 of the text.
    pub(crate) text_hash: [u8; 32],
}

impl Module {
    /// The kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|f| f.entry)
    }

    /// The text of a line that counts through all texts, and the line in it.
    pub(crate) fn place(&self, line: u32) -> (&str, u32) {
        let text = self.texts.iter().rev().find(|(before, _)| *before < line);
        text.map_or((&self.file, line), |(before, file)| (file, line - before))
    }

    /// A place in words: line of the text, and of the source if the compiler has said it.
    pub fn describe(&self, site: Site) -> String {
        let (file, line) = self.place(site.line);
        let text = format!("{file}:{line}");
        let named = |place: Option<(u32, u32)>| {
            let (file, line) = place?;
            let (_, name) = self.sources.iter().find(|(n, _)| *n == file)?;
            Some(format!("{name}:{line}"))
        };
        match (named(site.caller), named(site.source)) {
            (Some(caller), Some(source)) => format!("{caller} ({source}; {text})"),
            (_, Some(source)) => format!("{source} ({text})"),
            _ => text,
        }
    }
}

/// A parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Bytes.
    pub bytes: u32,
    /// Byte offset among the parameters.
    pub offset: u32,
}

/// A kernel or a device function.
#[derive(Debug, Clone)]
pub struct Function {
    /// Its name, as a launch gives it.
    pub name: String,
    /// Whether it is a kernel.
    pub entry: bool,
    /// Line of the text.
    pub line: u32,
    /// Most threads of a block (`.maxntid`, `.reqntid`), if it says so.
    pub max_threads: Option<u32>,
    /// Variables, parameters first.
    pub(crate) variables: Vec<Variable>,
    pub(crate) registers: Vec<Type>,
    pub(crate) body: Vec<Statement>,
    pub(crate) labels: u32,
    /// False for a declaration without a body.
    pub(crate) defined: bool,
}

/// A function of the system, which needs no body (CUDA's "System calls").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Print,
    AssertFail,
}

impl Function {
    /// Which function of the system it is, if the text has no body for it.
    pub(crate) fn system(&self) -> Option<System> {
        match self.name.as_str() {
            "vprintf" if !self.defined => Some(System::Print),
            "__assertfail" if !self.defined => Some(System::AssertFail),
            _ => None,
        }
    }

    /// A kernel's parameters, in order.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut at = 0u32;
        let formals = self.variables.iter().filter(|v| v.formal.is_some());
        formals
            .map(|v| {
                let offset = at.next_multiple_of(v.align.max(1));
                at = offset + v.bytes;
                Parameter {
                    bytes: v.bytes,
                    offset,
                }
            })
            .collect()
    }
}

/// A line of the PTX text, and of the source by `.loc` (§11.5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site {
    /// Line of the PTX text.
    pub line: u32,
    /// Number of the source file and line in it.
    pub source: Option<(u32, u32)>,
    /// Where the function that the source line is in was called, if it was compiled into its caller
    /// from another file.
    pub caller: Option<(u32, u32)>,
}

impl Site {
    pub(crate) const NOWHERE: Site = Site {
        line: 0,
        source: None,
        caller: None,
    };
}

#[derive(Debug, Clone)]
pub(crate) enum Statement {
    Label(Label),
    Instruction(Instruction),
}

impl Statement {
    pub(crate) fn instruction(&self) -> Option<&Instruction> {
        match self {
            Statement::Instruction(i) => Some(i),
            Statement::Label(_) => None,
        }
    }
}

/// An instruction with its guard (§9.3).
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    /// It is executed if the register is true, or false when negated.
    pub(crate) guard: Option<(Reg, bool)>,
    pub(crate) op: Op,
    pub(crate) site: Site,
}
