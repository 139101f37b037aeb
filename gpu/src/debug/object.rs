//! A kernel as an object file: a symbol, and debugging information with the addresses that the code
//! has.

use object::elf;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};
use object::Endianness;

use super::dwarf;
use crate::code::Code;
use crate::module::Module;

/// The file; `None` for code without lines.
pub(super) fn image(code: &Code, module: &Module) -> Option<Box<[u8]>> {
    let sections = dwarf::sections(code, module)?;
    let (address, bytes) = code.extent();
    let mut out = Vec::new();
    let mut w = Writer::new(Endianness::Little, true, &mut out);
    w.reserve_file_header();
    let text_name = w.add_section_name(b".text");
    let text = w.reserve_section_index();
    let mut placed = Vec::new();
    for (name, data) in &sections {
        let name = w.add_section_name(name.as_bytes());
        w.reserve_section_index();
        placed.push((name, w.reserve(data.len(), 8), data));
    }
    w.reserve_symtab_section_index();
    w.reserve_strtab_section_index();
    w.reserve_shstrtab_section_index();
    let kernel = w.add_string(code.name.as_bytes());
    w.reserve_null_symbol_index();
    w.reserve_symbol_index(Some(text));
    w.reserve_symtab();
    w.reserve_strtab();
    w.reserve_shstrtab();
    w.reserve_section_headers();

    w.write_file_header(&FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        // Addresses are final, so that nothing of it is moved.
        e_type: elf::ET_EXEC,
        e_machine: if cfg!(target_arch = "aarch64") {
            elf::EM_AARCH64
        } else {
            elf::EM_X86_64
        },
        e_entry: 0,
        e_flags: 0,
    })
    .ok()?;
    for (_, _, data) in &placed {
        w.write_align(8);
        w.write(data);
    }
    w.write_null_symbol();
    w.write_symbol(&Sym {
        name: Some(kernel),
        section: Some(text),
        st_info: elf::STB_GLOBAL << 4 | elf::STT_FUNC,
        st_other: 0,
        st_shndx: 0,
        st_value: address,
        st_size: bytes,
    });
    w.write_strtab();
    w.write_shstrtab();
    w.write_null_section_header();
    w.write_section_header(&SectionHeader {
        name: Some(text_name),
        // The code is in memory, not in this file.
        sh_type: elf::SHT_NOBITS,
        sh_flags: u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR),
        sh_addr: address,
        sh_offset: 0,
        sh_size: bytes,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 1,
        sh_entsize: 0,
    });
    for (name, offset, data) in &placed {
        w.write_section_header(&SectionHeader {
            name: Some(*name),
            sh_type: elf::SHT_PROGBITS,
            sh_flags: 0,
            sh_addr: 0,
            sh_offset: *offset as u64,
            sh_size: data.len() as u64,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 8,
            sh_entsize: 0,
        });
    }
    w.write_symtab_section_header(1);
    w.write_strtab_section_header();
    w.write_shstrtab_section_header();
    Some(out.into())
}
