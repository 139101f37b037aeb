//! What debuggers must know of a kernel's code: which line an instruction is of, how its frame is
//! left, and where it keeps the thread that it runs.

use cranelift_codegen::ir::StackSlot;
use cranelift_codegen::isa::TargetIsa;
use cranelift_codegen::CompiledCode;
use gimli::write::{Address, DebugFrame, EndianVec, FrameTable};
use gimli::LittleEndian;

/// Of code that was compiled for debuggers.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// From which offset in the code on which site is executed, as an index; [`ENTRY`] or
    /// [`DISPATCH`] where threads come in.
    pub(crate) rows: Vec<[u32; 2]>,
    /// A section `.debug_frame` of a function at address 0.
    pub(crate) frame: Vec<u8>,
    /// Where the pointer to the thread is, from the frame pointer.
    pub(crate) thread: i32,
}

/// The site of code that makes the frame.
pub(crate) const ENTRY: u32 = u32::MAX - 1;

/// The site of code that decides where a thread goes on: where gdb stops at the kernel's name,
/// behind the first line. (The compiler keeps distances from the first location of a function, and
/// -1 says that there is none.)
pub(crate) const DISPATCH: u32 = u32::MAX - 3;

impl Lines {
    pub(crate) fn of(
        compiled: &CompiledCode,
        slot: StackSlot,
        isa: &dyn TargetIsa,
    ) -> Result<Lines, String> {
        let layout = compiled.buffer.frame_layout();
        let layout = layout.ok_or("its frame is not known")?;
        let at = layout.stackslots[slot].offset as i32;
        let mut rows: Vec<[u32; 2]> = Vec::new();
        for range in compiled.buffer.get_srclocs_sorted() {
            // What the compiler adds is of the line before.
            let site = match (range.loc.is_default(), rows.last()) {
                (true, None) => ENTRY,
                (true, Some([_, before])) => *before,
                (false, _) => range.loc.bits(),
            };
            if rows.last().is_none_or(|[_, last]| *last != site) {
                rows.push([range.start, site]);
            }
        }
        Ok(Lines {
            rows,
            frame: frame(compiled, isa)?,
            thread: at - layout.frame_to_fp_offset as i32,
        })
    }
}

/// How each instruction's frame is left.
fn frame(compiled: &CompiledCode, isa: &dyn TargetIsa) -> Result<Vec<u8>, String> {
    use cranelift_codegen::isa::unwind::UnwindInfo;
    let info = compiled
        .create_unwind_info(isa)
        .map_err(|e| e.to_string())?;
    let (Some(UnwindInfo::SystemV(info)), Some(cie)) = (info, isa.create_systemv_cie()) else {
        return Err("its frame cannot be described".to_owned());
    };
    let mut table = FrameTable::default();
    let cie = table.add_cie(cie);
    table.add_fde(cie, info.to_fde(Address::Constant(0)));
    let mut section = DebugFrame(EndianVec::new(LittleEndian));
    table
        .write_debug_frame(&mut section)
        .map_err(|e| e.to_string())?;
    Ok(section.0.into_vec())
}
