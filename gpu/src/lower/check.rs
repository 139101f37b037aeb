//! What checked code does beside each access: it looks the address up in the map of what is
//! allocated, and tells the trace.

use std::mem::{offset_of, size_of};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, InstBuilder, MemFlags, Type, Value};

use super::emit::{Emit, Lowered};
use super::helper::Helper;
use super::masked::Condition;
use crate::context::mark::{ALLOCATED, LOCAL, SHARED, SPACE};
use crate::context::BlockState;
use crate::hooks::How;
use crate::module::{Scope, Site};

/// Ends the thread if a part of an access, which is aligned and inside of its memory at this
/// offset, belongs to no allocation or variable. One byte of the map stands for eight.
pub(super) fn allocated(
    e: &mut Emit<'_, '_>,
    offset: Value,
    bytes: u32,
    mark: u32,
    site: Site,
) -> Lowered<()> {
    if !e.facts.checks.memory {
        return Ok(());
    }
    let (map, mark) = match mark & SPACE {
        SHARED => (1, mark),
        LOCAL => (2, mark),
        _ => (0, mark | ALLOCATED),
    };
    let at = offset_of!(BlockState, maps) + map * size_of::<*const u8>();
    let map = e.block_field(types::I64, at);
    let granule = e.b.ins().ushr_imm(offset, 3);
    let at = e.b.ins().iadd(map, granule);
    let t = Type::int(bytes.div_ceil(8) as u16 * 8).unwrap_or(types::I32);
    let full = 0x0808_0808_0808_0808u64 >> (64 - t.bits());
    let have = e.b.ins().load(t, MemFlags::trusted(), at, 0);
    let ok = e.b.ins().icmp_imm(IntCC::Equal, have, full as i64);
    let next = e.unless_cold(ok);
    let allowed = e.ask(Helper::CheckAllocated, offset, mark, site)?;
    let fault = e.fault;
    e.b.ins().brif(allowed, next, &[], fault, &[]);
    e.enter(next);
    Ok(())
}

/// Tells the trace of an access that is allowed.
pub(super) fn touched(e: &mut Emit<'_, '_>, at: Value, how: How, site: Site) -> Lowered<()> {
    if e.facts.checks.traced() {
        let next = e.masked.map(|condition| {
            let holds = holds(e, condition);
            let (made, next) = (e.b.create_block(), e.b.create_block());
            e.b.ins().brif(holds, made, &[], next, &[]);
            e.enter(made);
            next
        });
        let how = e.int(types::I32, i64::from(how.pack()));
        let (thread, site) = (e.thread, e.site(site));
        e.call_helper(Helper::Touched, &[thread, at, how, site])?;
        if let Some(next) = next {
            e.b.ins().jump(next, &[]);
            e.enter(next);
        }
    }
    Ok(())
}

/// Tells the trace of a fence.
pub(super) fn fenced(e: &mut Emit<'_, '_>, scope: Scope) -> Lowered<()> {
    if e.facts.checks.races {
        let wide = e.int(types::I32, i64::from(scope != Scope::Block));
        let thread = e.thread;
        e.call_helper(Helper::Fenced, &[thread, wide])?;
    }
    Ok(())
}

/// Whether the condition holds, as a value that is not 0.
fn holds(e: &mut Emit<'_, '_>, condition: Condition) -> Value {
    let (r, cc) = match condition {
        Condition::Zero(r) => (r, IntCC::Equal),
        Condition::NotZero(r) => (r, IntCC::NotEqual),
    };
    let v = e.register(r);
    let v = e.cast(v, types::I64, false);
    e.b.ins().icmp_imm(cc, v, 0)
}
