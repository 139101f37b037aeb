//! The parts of an opcode, `atom.relaxed.gpu.add.u32`: each is taken once, and none may be left.

use super::refusal::Refusal;
use crate::module::Type;

pub(super) struct Form<'t> {
    /// The whole opcode, for messages.
    pub(super) text: &'t str,
    pub(super) base: &'t str,
    parts: Vec<&'t str>,
    pub(super) line: u32,
}

impl<'t> Form<'t> {
    pub(super) fn new(text: &'t str, line: u32) -> Form<'t> {
        let mut parts = text.split('.');
        let base = parts.next().unwrap_or("");
        Form {
            text,
            base,
            parts: parts.collect(),
            line,
        }
    }

    /// Takes a part that is there or not.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let found = self.parts.iter().position(|p| *p == name);
        found.map(|i| self.parts.remove(i)).is_some()
    }

    /// Whether a part is there, which is not taken.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parts.contains(&name)
    }

    /// The place of the first part that is among the names; beyond the last without one.
    pub(super) fn first_of(&self, names: &[&str]) -> usize {
        let found = self.parts.iter().position(|p| names.contains(p));
        found.unwrap_or(self.parts.len())
    }

    /// Takes the first part that `f` knows.
    pub(super) fn take<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (i, value) = self
            .parts
            .iter()
            .enumerate()
            .find_map(|(i, p)| Some((i, f(p)?)))?;
        self.parts.remove(i);
        Some(value)
    }

    /// Takes all parts that `f` knows.
    pub(super) fn drop_all(&mut self, f: impl Fn(&str) -> bool) {
        self.parts.retain(|p| !f(p));
    }

    /// Takes the first type.
    pub(super) fn ty(&mut self) -> Result<Type, Refusal> {
        self.take(Type::named)
            .ok_or_else(|| (self.line, format!("`{}` has no type", self.text)))
    }

    /// Whether a type of half precision is named.
    pub(super) fn is_half(&self) -> bool {
        let mut types = self.parts.iter().filter_map(|p| Type::named(p));
        types.any(Type::is_half)
    }

    pub(super) fn refuse(&self) -> Refusal {
        (
            self.line,
            format!("the emulated GPU does not have `{}`", self.text),
        )
    }

    /// Refuses what is left.
    pub(super) fn done(&self) -> Result<(), Refusal> {
        if self.parts.is_empty() {
            Ok(())
        } else {
            Err(self.refuse())
        }
    }
}
