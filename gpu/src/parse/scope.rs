//! The names of a text: those of its module, and those that an instruction may use.

use std::collections::{BTreeSet, HashMap};

use crate::module::{Label, Module, Reg, Symbol, Variable};

/// What the whole module declares.
pub(super) struct Names {
    pub(super) variables: HashMap<String, u32>,
    pub(super) functions: HashMap<String, u32>,
    /// Functions whose address is taken.
    pub(super) addressed: BTreeSet<u32>,
    /// Statements that are still allowed.
    pub(super) room: u32,
    /// What is added to the numbers of source files of this text.
    pub(super) first_file: u32,
}

/// The names that an instruction may use, innermost block last.
pub(super) struct Scope<'m> {
    pub(super) module: &'m Module,
    pub(super) names: &'m mut Names,
    pub(super) registers: Vec<HashMap<String, Reg>>,
    /// `%r<5>` as prefix, first register and count: a map of a million names would take a second.
    pub(super) ranges: Vec<Vec<(String, u32, u32)>>,
    pub(super) variables: Vec<HashMap<String, u32>>,
    pub(super) labels: Vec<HashMap<String, Label>>,
    pub(super) source: Option<(u32, u32)>,
    /// Parameters of calls by address, by the name of their prototype.
    pub(super) prototypes: HashMap<String, Vec<Variable>>,
    /// Labels of branches by a number.
    pub(super) tables: HashMap<String, Vec<Label>>,
    /// The condition code (§9.7.2), a register without a name.
    pub(super) carry: Option<Reg>,
    /// Where the function of that line was called, if the text says so.
    pub(super) caller: Option<(u32, u32)>,
}

impl<'m> Scope<'m> {
    pub(super) fn new(module: &'m Module, names: &'m mut Names) -> Scope<'m> {
        Scope {
            module,
            names,
            registers: Vec::new(),
            ranges: Vec::new(),
            variables: Vec::new(),
            labels: Vec::new(),
            source: None,
            prototypes: HashMap::new(),
            tables: HashMap::new(),
            carry: None,
            caller: None,
        }
    }

    pub(super) fn register(&self, name: &str) -> Option<Reg> {
        let in_range = |(prefix, first, count): &(String, u32, u32)| {
            let digits = name.strip_prefix(prefix.as_str())?;
            let canonical = digits == "0" || !digits.starts_with('0');
            let n: u32 = digits.parse().ok().filter(|n| n < count && canonical)?;
            Some(Reg(first + n))
        };
        (0..self.registers.len()).rev().find_map(|depth| {
            let single = self.registers[depth].get(name).copied();
            single.or_else(|| self.ranges[depth].iter().rev().find_map(in_range))
        })
    }

    pub(super) fn symbol(&self, name: &str) -> Option<Symbol> {
        let own = self.variables.iter().rev().find_map(|v| v.get(name));
        if let Some(i) = own {
            return Some(Symbol::Own(*i));
        }
        self.names.variables.get(name).map(|i| Symbol::Module(*i))
    }

    /// A label of this block or one around it.
    pub(super) fn label(&self, name: &str) -> Option<Label> {
        self.labels.iter().rev().find_map(|l| l.get(name)).copied()
    }
}
