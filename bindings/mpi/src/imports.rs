//! Which functions the loaded objects import, by their relocations: MPICH's `mpi_f08` lies in the
//! same file as its other functions of Fortran, so that only the imports of the program say which
//! of them it calls.
#![allow(unsafe_code)] // Reads tables that the dynamic loader has mapped.

use std::ffi::{c_char, c_int, c_void, CStr};

/// Tags of an object's dynamic section (System V ABI, "Dynamic Section").
mod tag {
    pub(super) const PLT_BYTES: i64 = 2;
    pub(super) const STRINGS: i64 = 5;
    pub(super) const SYMBOLS: i64 = 6;
    pub(super) const RELOCATIONS: i64 = 7;
    pub(super) const RELOCATION_BYTES: i64 = 8;
    pub(super) const PLT: i64 = 23;
}

/// `PT_DYNAMIC`.
const DYNAMIC: u32 = 2;

/// An entry of a dynamic section.
#[repr(C)]
struct Entry {
    tag: i64,
    value: u64,
}

/// `Elf64_Rela`.
#[repr(C)]
struct Relocation {
    at: u64,
    /// The symbol's index in the upper half.
    info: u64,
    addend: i64,
}

struct Search<'a> {
    wanted: &'a dyn Fn(&str) -> bool,
    found: bool,
}

/// Whether an object imports a function whose name is wanted.
pub(crate) fn any(wanted: impl Fn(&str) -> bool) -> bool {
    let mut search = Search {
        wanted: &wanted,
        found: false,
    };
    // SAFETY: `look` has the search for the time of the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn look(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader gives an object that stays loaded during the call, and passes our search
    // on.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    // SAFETY: the object's headers, as the loader counts them.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    for header in headers.iter().filter(|h| h.p_type == DYNAMIC) {
        // SAFETY: the object's dynamic section.
        search.found |= unsafe { imports(info.dlpi_addr, header.p_vaddr, search.wanted) };
    }
    c_int::from(search.found)
}

/// # Safety
/// A loaded object's base and the offset of its dynamic section.
unsafe fn imports(base: u64, dynamic: u64, wanted: &dyn Fn(&str) -> bool) -> bool {
    let at = |address: u64| std::ptr::with_exposed_provenance::<u8>(address as usize);
    // The loader has made most addresses absolute, but not those of the kernel's own object.
    let absolute = |value: u64| at(if value < base { base + value } else { value });
    let (mut symbols, mut strings) = (std::ptr::null(), std::ptr::null());
    let mut tables = [(std::ptr::null(), 0), (std::ptr::null(), 0)];
    let mut entry = at(base + dynamic).cast::<Entry>();
    loop {
        // SAFETY: the section ends with an entry of tag 0.
        let Entry { tag, value } = unsafe { entry.read() };
        match tag {
            0 => break,
            tag::SYMBOLS => symbols = absolute(value).cast::<libc::Elf64_Sym>(),
            tag::STRINGS => strings = absolute(value).cast::<c_char>(),
            tag::RELOCATIONS => tables[0].0 = absolute(value),
            tag::RELOCATION_BYTES => tables[0].1 = value,
            tag::PLT => tables[1].0 = absolute(value),
            tag::PLT_BYTES => tables[1].1 = value,
            _ => {}
        }
        entry = entry.wrapping_add(1);
    }
    if symbols.is_null() || strings.is_null() {
        return false;
    }
    tables.iter().filter(|t| !t.0.is_null()).any(|(at, bytes)| {
        let count = *bytes as usize / size_of::<Relocation>();
        // SAFETY: the table, of as many bytes.
        let table = unsafe { std::slice::from_raw_parts(at.cast::<Relocation>(), count) };
        table.iter().filter(|r| r.info >> 32 != 0).any(|r| {
            // SAFETY: a symbol of the object, whose name lies among its strings.
            let name = unsafe {
                let symbol = symbols.add((r.info >> 32) as usize).read();
                if symbol.st_shndx != 0 {
                    return false;
                }
                CStr::from_ptr(strings.add(symbol.st_name as usize))
            };
            name.to_str().is_ok_and(wanted)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_imported_and_others_not() {
        assert!(any(|name| name == "dl_iterate_phdr"));
        assert!(!any(|name| name == "mpi_send_f08ts_"));
        // What the C library itself has is no import of it.
        assert!(!any(|name| name == "__libc_early_init"));
    }
}
