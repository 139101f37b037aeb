//! Which line each instruction of a kernel's code is of, and where the code keeps the thread that
//! it runs: for debuggers.

use cranelift_codegen::ir::{InstBuilder, SourceLoc, StackSlot, StackSlotData, StackSlotKind};

use super::emit::Emit;
use crate::code::{DISPATCH, ENTRY};
use crate::module::Site;

impl Emit<'_, '_> {
    /// Keeps the thread where debuggers find it.
    pub(super) fn keep_thread(&mut self) -> StackSlot {
        let data = StackSlotData::new(StackSlotKind::ExplicitSlot, 8, 3);
        let slot = self.b.create_sized_stack_slot(data);
        self.b.set_srcloc(SourceLoc::new(ENTRY));
        let thread = self.thread;
        self.b.ins().stack_store(thread, slot, 0);
        slot
    }

    /// Code that follows is of this site.
    pub(super) fn mark_line(&mut self, site: Site) {
        let index = self.site_index(site);
        self.b.set_srcloc(SourceLoc::new(index));
    }

    /// Code that follows is of [`DISPATCH`].
    pub(super) fn mark_dispatch(&mut self) {
        self.b.set_srcloc(SourceLoc::new(DISPATCH));
    }
}
