//! Functions that the GPU provides: `vprintf`, `__assertfail`.

use std::mem::offset_of;

use cranelift_codegen::ir::{types, InstBuilder, MemFlags, Value};

use super::emit::Place;
use super::emit::{Emit, Lowered};
use super::helper::Helper;
use crate::context::{why, Thread};
use crate::module::{Address, Base, Site, Symbol, System};

impl Emit<'_, '_> {
    /// A call of such a function; whether control goes on behind it.
    pub(super) fn system(
        &mut self,
        system: System,
        results: &[Symbol],
        args: &[Symbol],
        site: Site,
    ) -> Lowered<bool> {
        let (base, len) = self.gpu_memory();
        let (thread, place) = (self.thread, self.site(site));
        match (system, args, results) {
            (System::Print, [format, list], [result]) => {
                let [format, list] = [format, list].map(|s| self.argument(*s, 8));
                let args = [thread, format?, list?, place, base, len];
                let v = self.call_helper(Helper::Print, &args)?;
                self.unless_unreadable(v);
                let v = self.b.ins().ireduce(types::I32, v);
                if !matches!(self.place(*result).0, Place::Local(_) | Place::Stack(_)) {
                    return Err("a result is no variable of the function".to_owned());
                }
                let at = self.variable_at(*result, 4)?;
                self.b.ins().store(MemFlags::trusted(), v, at, 0);
                Ok(true)
            }
            (System::AssertFail, [message, file, line, function, _], []) => {
                let words = [message, file, function].map(|s| self.argument(*s, 8));
                let [message, file, function] = words;
                let line = self.argument(*line, 4)?;
                let args = [thread, message?, file?, line, function?, place, base, len];
                let v = self.call_helper(Helper::AssertFail, &args)?;
                self.unless_unreadable(v);
                self.put(place, offset_of!(Thread, site));
                self.leave(why::ASSERTION);
                Ok(false)
            }
            _ => Err(format!("{system:?} has other parameters")),
        }
    }

    fn variable_at(&mut self, s: Symbol, bytes: u32) -> Lowered<Value> {
        let at = Address {
            base: Base::Symbol(s),
            offset: 0,
        };
        let at = self.known(&at, bytes)?;
        at.ok_or_else(|| "a parameter is no variable of the function".to_owned())
    }

    fn argument(&mut self, s: Symbol, bytes: u32) -> Lowered<Value> {
        let at = self.variable_at(s, bytes)?;
        let t = if bytes == 8 { types::I64 } else { types::I32 };
        Ok(self.b.ins().load(t, MemFlags::trusted(), at, 0))
    }

    /// Leaves with the fault that the helper has noted.
    fn unless_unreadable(&mut self, v: Value) {
        let unreadable = self.b.ins().ushr_imm(v, 32);
        let next = self.b.create_block();
        let fault = self.fault;
        self.b.ins().brif(unreadable, fault, &[], next, &[]);
        self.enter(next);
    }
}
