//! DWARF 4 of a kernel: its lines, its frame, and the indices of the thread that runs, by CUDA's
//! names.

use std::collections::HashMap;
use std::mem::offset_of;

use gimli::write::{
    Address, AttributeValue, DwarfUnit, EndianVec, Expression, FileId, LineProgram, LineString,
    Sections, UnitEntryId,
};
use gimli::{Encoding, Format, LineEncoding, LittleEndian, Register};

use crate::code::{Code, Lines, DISPATCH, ENTRY};
use crate::context::{BlockState, Thread};
use crate::module::{Module, Site};

/// Version 4: gdb of 2013 and later read it.
const ENCODING: Encoding = Encoding {
    format: Format::Dwarf32,
    version: 4,
    address_size: 8,
};

/// The register of the frame pointer.
const FRAME: Register = if cfg!(target_arch = "aarch64") {
    gimli::AArch64::X29
} else {
    gimli::X86_64::RBP
};

/// Sections by name; `None` for code without lines.
pub(super) fn sections(code: &Code, module: &Module) -> Option<Vec<(&'static str, Vec<u8>)>> {
    let lines = code.lines.as_ref()?;
    let mut dwarf = DwarfUnit::new(ENCODING);
    let places = Places { code, module };
    dwarf.unit.line_program = places.line_program(lines);
    describe(&mut dwarf, lines, &places);
    let mut written = Sections::new(EndianVec::new(LittleEndian));
    dwarf.write(&mut written).ok()?;
    let mut sections = vec![(".debug_frame", frame(lines, code.extent().0)?)];
    let _ = written.for_each(|id, data| -> Result<(), std::convert::Infallible> {
        if !data.slice().is_empty() {
            sections.push((id.name(), data.slice().to_vec()));
        }
        Ok(())
    });
    Some(sections)
}

/// The frame's description, for the address that the code has.
fn frame(lines: &Lines, address: u64) -> Option<Vec<u8>> {
    let mut bytes = lines.frame.clone();
    // The first entry is common to all; in the second the address follows length and pointer to the
    // first.
    let first = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize + 4;
    let at = first + 8;
    bytes
        .get_mut(at..at + 8)?
        .copy_from_slice(&address.to_le_bytes());
    Some(bytes)
}

/// Lines of a kernel of a module.
struct Places<'a> {
    code: &'a Code,
    module: &'a Module,
}

impl Places<'_> {
    /// File and line of a site: of the source, else of the text.
    fn of(&self, site: Site) -> (&str, u32) {
        let sources = &self.module.sources;
        let named = site.source.and_then(|(file, line)| {
            let (_, name) = sources.iter().find(|(n, _)| *n == file)?;
            Some((name.as_str(), line))
        });
        named.unwrap_or_else(|| self.module.place(site.line))
    }

    /// Where the kernel begins.
    fn begin(&self) -> (&str, u32) {
        self.of(self.code.sites.first().copied().unwrap_or(Site::NOWHERE))
    }

    fn site(&self, index: u32) -> Option<(&str, u32)> {
        match index {
            ENTRY | DISPATCH => Some(self.begin()),
            index => self.code.sites.get(index as usize).map(|s| self.of(*s)),
        }
    }

    fn line_program(&self, lines: &Lines) -> LineProgram {
        let text = |name: &str| LineString::String(name.replace('\0', "?").into_bytes());
        let (main, _) = self.begin();
        let mut program = LineProgram::new(
            ENCODING,
            LineEncoding::default(),
            text(&folder()),
            None,
            text(main),
            None,
        );
        let folder = program.default_directory();
        let mut files: HashMap<&str, FileId> = HashMap::new();
        let (address, bytes) = self.code.extent();
        program.begin_sequence(Some(Address::Constant(address)));
        for [offset, site] in &lines.rows {
            // Line 0 says that code is of no line.
            let (file, line) = self.site(*site).unwrap_or((main, 0));
            let id = files.entry(file);
            let id = id.or_insert_with(|| program.add_file(text(file), folder, None));
            let row = program.row();
            row.address_offset = u64::from(*offset);
            row.file = *id;
            row.line = u64::from(line);
            program.generate_row();
        }
        program.end_sequence(bytes);
        program
    }
}

/// Names of files are from here, unless they begin at the root.
fn folder() -> String {
    let here = std::env::current_dir().unwrap_or_default();
    here.to_string_lossy().into_owned()
}

/// A text as the value of an attribute.
fn string(dwarf: &mut DwarfUnit, text: &str) -> AttributeValue {
    AttributeValue::StringRef(dwarf.strings.add(text.replace('\0', "?")))
}

/// The unit, the kernel in it, and its variables.
fn describe(dwarf: &mut DwarfUnit, lines: &Lines, places: &Places<'_>) {
    let (address, bytes) = places.code.extent();
    let (main, line) = places.begin();
    let root = dwarf.unit.root();
    let (name, here) = (string(dwarf, main), string(dwarf, &folder()));
    let producer = string(dwarf, "ringbell");
    let unit = dwarf.unit.get_mut(root);
    unit.set(gimli::DW_AT_producer, producer);
    unit.set(
        gimli::DW_AT_language,
        AttributeValue::Language(gimli::DW_LANG_C_plus_plus),
    );
    unit.set(gimli::DW_AT_name, name);
    unit.set(gimli::DW_AT_comp_dir, here);
    let begin = AttributeValue::Address(Address::Constant(address));
    unit.set(gimli::DW_AT_low_pc, begin.clone());
    unit.set(gimli::DW_AT_high_pc, AttributeValue::Udata(bytes));

    let name = string(dwarf, &places.code.name);
    let kernel = dwarf.unit.add(root, gimli::DW_TAG_subprogram);
    let mut base = Expression::new();
    base.op_reg(FRAME);
    let entry = dwarf.unit.get_mut(kernel);
    entry.set(gimli::DW_AT_name, name.clone());
    entry.set(gimli::DW_AT_linkage_name, name);
    entry.set(gimli::DW_AT_external, AttributeValue::Flag(true));
    entry.set(gimli::DW_AT_decl_line, AttributeValue::Udata(line.into()));
    entry.set(gimli::DW_AT_low_pc, begin);
    entry.set(gimli::DW_AT_high_pc, AttributeValue::Udata(bytes));
    entry.set(gimli::DW_AT_frame_base, AttributeValue::Exprloc(base));
    indices(dwarf, kernel, lines.thread);
}

/// `threadIdx` and its kin, in the thread to which the frame has a pointer.
fn indices(dwarf: &mut DwarfUnit, kernel: UnitEntryId, thread: i32) {
    let root = dwarf.unit.root();
    let number = dwarf.unit.add(root, gimli::DW_TAG_base_type);
    let unsigned = string(dwarf, "unsigned int");
    let entry = dwarf.unit.get_mut(number);
    entry.set(gimli::DW_AT_name, unsigned);
    entry.set(
        gimli::DW_AT_encoding,
        AttributeValue::Encoding(gimli::DW_ATE_unsigned),
    );
    entry.set(gimli::DW_AT_byte_size, AttributeValue::Udata(4));
    let index = dwarf.unit.add(root, gimli::DW_TAG_structure_type);
    let uint3 = string(dwarf, "uint3");
    let entry = dwarf.unit.get_mut(index);
    entry.set(gimli::DW_AT_name, uint3);
    entry.set(gimli::DW_AT_byte_size, AttributeValue::Udata(12));
    for (n, field) in ["x", "y", "z"].into_iter().enumerate() {
        let member = dwarf.unit.add(index, gimli::DW_TAG_member);
        let field = string(dwarf, field);
        let entry = dwarf.unit.get_mut(member);
        entry.set(gimli::DW_AT_name, field);
        entry.set(gimli::DW_AT_type, AttributeValue::UnitRef(number));
        entry.set(
            gimli::DW_AT_data_member_location,
            AttributeValue::Udata(n as u64 * 4),
        );
    }
    let block = offset_of!(Thread, block);
    for (variable, path) in [
        ("threadIdx", &[offset_of!(Thread, tid)][..]),
        ("blockIdx", &[block, offset_of!(BlockState, ctaid)]),
        ("blockDim", &[block, offset_of!(BlockState, ntid)]),
        ("gridDim", &[block, offset_of!(BlockState, nctaid)]),
    ] {
        let mut at = Expression::new();
        at.op_fbreg(i64::from(thread));
        for offset in path {
            at.op_deref();
            at.op_plus_uconst(*offset as u64);
        }
        let entry = dwarf.unit.add(kernel, gimli::DW_TAG_variable);
        let variable = string(dwarf, variable);
        let entry = dwarf.unit.get_mut(entry);
        entry.set(gimli::DW_AT_name, variable);
        entry.set(gimli::DW_AT_type, AttributeValue::UnitRef(index));
        entry.set(gimli::DW_AT_location, AttributeValue::Exprloc(at));
    }
}
