//! Functions of the host that compiled code calls. It finds their addresses in a table, so that
//! code which another process has compiled can be used.

use std::mem::offset_of;
use std::sync::OnceLock;

use cranelift_codegen::ir::{types, AbiParam, InstBuilder, MemFlags, Signature, Type, Value};

use super::emit::{Emit, Lowered};
use crate::context::Thread;
use crate::number;
use crate::schedule;

/// A function, by its place in the table.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(super) enum Helper {
    Check,
    Refused,
    Renew,
    Now,
    AddF32,
    AddF64,
    AddHalf,
    AddHalves,
    Increment,
    Decrement,
    Print,
    AssertFail,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
    /// A [`number::Task`].
    Float,
    /// A [`number::Conversion`].
    Convert,
    PhaseInit,
    PhaseExpect,
    PhaseComplete,
    PhaseArrive,
    PhaseDrop,
    PhaseTest,
    PhaseParity,
    PhasePending,
    Bulk,
    BarrierArrive,
    ClusterArrive,
    CheckAllocated,
    Touched,
    Fenced,
    /// A [`crate::module::PureOp`].
    Pure,
}

/// Addresses in the order of [`Helper`].
pub(super) fn helpers() -> &'static [usize] {
    static TABLE: OnceLock<[usize; 34]> = OnceLock::new();
    TABLE.get_or_init(|| {
        [
            schedule::check as *const () as usize,
            schedule::refused as *const () as usize,
            schedule::renew as *const () as usize,
            schedule::now as *const () as usize,
            schedule::add_f32 as *const () as usize,
            schedule::add_f64 as *const () as usize,
            schedule::add_half as *const () as usize,
            schedule::add_halves as *const () as usize,
            schedule::increment as *const () as usize,
            schedule::decrement as *const () as usize,
            schedule::vprintf as *const () as usize,
            schedule::assert_fail as *const () as usize,
            schedule::ex2 as *const () as usize,
            schedule::lg2 as *const () as usize,
            schedule::sin as *const () as usize,
            schedule::cos as *const () as usize,
            schedule::tanh as *const () as usize,
            number::float as *const () as usize,
            number::convert as *const () as usize,
            schedule::phase_init as *const () as usize,
            schedule::phase_expect as *const () as usize,
            schedule::phase_complete as *const () as usize,
            schedule::phase_arrive as *const () as usize,
            schedule::phase_drop as *const () as usize,
            schedule::phase_test as *const () as usize,
            schedule::phase_parity as *const () as usize,
            schedule::phase_pending as *const () as usize,
            schedule::bulk as *const () as usize,
            schedule::barrier_arrive as *const () as usize,
            schedule::cluster_arrive as *const () as usize,
            schedule::check_allocated as *const () as usize,
            schedule::touched as *const () as usize,
            schedule::fenced as *const () as usize,
            number::pure as *const () as usize,
        ]
    })
}

impl Helper {
    fn result(self) -> Option<Type> {
        match self {
            Helper::Check
            | Helper::CheckAllocated
            | Helper::Renew
            | Helper::AddHalf
            | Helper::AddHalves
            | Helper::Increment
            | Helper::Decrement => Some(types::I32),
            Helper::Now
            | Helper::Float
            | Helper::Convert
            | Helper::Print
            | Helper::AssertFail
            | Helper::PhaseInit
            | Helper::PhaseExpect
            | Helper::PhaseComplete
            | Helper::PhaseArrive
            | Helper::PhaseDrop
            | Helper::PhaseTest
            | Helper::PhaseParity
            | Helper::PhasePending
            | Helper::Bulk
            | Helper::Pure => Some(types::I64),
            Helper::AddF32
            | Helper::Ex2
            | Helper::Lg2
            | Helper::Sin
            | Helper::Cos
            | Helper::Tanh => Some(types::F32),
            Helper::AddF64 => Some(types::F64),
            Helper::Touched
            | Helper::Fenced
            | Helper::Refused
            | Helper::BarrierArrive
            | Helper::ClusterArrive => None,
        }
    }
}

impl Emit<'_, '_> {
    /// Calls a helper; those without a result answer with the first argument.
    pub(super) fn call_helper(&mut self, h: Helper, args: &[Value]) -> Lowered<Value> {
        let mut s = Signature::new(self.call_conv);
        for a in args {
            s.params.push(AbiParam::new(self.b.func.dfg.value_type(*a)));
        }
        s.returns.extend(h.result().map(AbiParam::new));
        let s = self.b.import_signature(s);
        // Loaded where it is called, which is mostly a cold place.
        let table = self.field(types::I64, offset_of!(Thread, helpers));
        let (at, flags) = (h as i32 * 8, MemFlags::trusted());
        let at = self.b.ins().load(types::I64, flags, table, at);
        let call = self.b.ins().call_indirect(s, at, args);
        let results = self.b.inst_results(call);
        results
            .first()
            .or(args.first())
            .copied()
            .ok_or_else(|| "a helper without result".to_owned())
    }
}
