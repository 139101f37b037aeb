//! Handles and constants of the three ABIs, as their public headers have them.
//!
//! MPICH's handles are `int` (`mpi.h` of MPICH 3 to 5; the ABI initiative's `libmpi.so.12`). Open
//! MPI's are pointers to objects with public names (`mpi.h` of Open MPI 3 to 5, `libmpi.so.40`).
//! MPI 5's are pointers with fixed values (`mpi_abi.h`, `libmpi_abi.so`). A test compiles a program
//! against each header and compares.
#![allow(unsafe_code)] // Converts handles of Fortran by functions of the library below.

use std::ffi::{c_int, c_void, CStr, CString};

use ringbell::{DataType, ReduceOp};

use crate::below::{below, file_of, find};

/// A handle as a word; of MPICH the low 32 bits count.
pub(crate) type Handle = usize;

/// Which ABI the library below has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Abi {
    Mpich,
    OpenMpi,
    Standard,
}

/// A predefined type whose elements lie one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plain {
    pub(crate) bytes: u64,
    /// Ringbell's type, and how many of it make an element: two for a complex number, which is only
    /// added.
    pub(crate) reduced: Option<(DataType, u64)>,
}

/// A predefined type: Open MPI's symbol without `ompi_mpi_`, MPICH's handle, the standard's, and
/// what it is.
type Row = (&'static str, usize, usize, u64, Option<(DataType, u64)>);

const fn one(of: DataType) -> Option<(DataType, u64)> {
    Some((of, 1))
}

const fn two(of: DataType) -> Option<(DataType, u64)> {
    Some((of, 2))
}

use DataType as D;

/// Types of C and Fortran on the platforms of these ABIs: 64 bits, `long` of 8 bytes. 0: none
/// there.
const TYPES: &[Row] = &[
    ("char", 0x4c00_0101, 0x243, 1, None),
    ("byte", 0x4c00_010d, 0x247, 1, None),
    ("packed", 0x4c00_010f, 0x207, 1, None),
    ("character", 0x4c00_011a, 0x21e, 1, None),
    ("c_bool", 0x4c00_013f, 0x238, 1, None),
    ("cxx_bool", 0x4c00_0133, 0x239, 1, None),
    ("wchar", 0x4c00_040e, 0x23c, 4, None),
    ("logical", 0x4c00_041d, 0x218, 4, None),
    ("short", 0x4c00_0203, 0x208, 2, one(D::I16)),
    ("unsigned_short", 0x4c00_0204, 0x20c, 2, one(D::U16)),
    ("int16_t", 0x4c00_0238, 0x248, 2, one(D::I16)),
    ("uint16_t", 0x4c00_023c, 0x249, 2, one(D::U16)),
    ("integer2", 0x4c00_022f, 0x2c9, 2, one(D::I16)),
    ("long_double", 0x4c00_100c, 0x220, 16, None),
    ("2int", 0x4c00_0816, 0x22b, 8, None),
    ("2integer", 0x4c00_0820, 0x232, 8, None),
    ("2real", 0x4c00_0821, 0x230, 8, None),
    ("2dblprec", 0x4c00_1023, 0x231, 16, None),
    ("signed_char", 0x4c00_0118, 0x244, 1, one(D::I8)),
    ("int8_t", 0x4c00_0137, 0x240, 1, one(D::I8)),
    ("integer1", 0x4c00_012d, 0x2c1, 1, one(D::I8)),
    ("unsigned_char", 0x4c00_0102, 0x245, 1, one(D::U8)),
    ("uint8_t", 0x4c00_013b, 0x241, 1, one(D::U8)),
    ("int", 0x4c00_0405, 0x209, 4, one(D::I32)),
    ("int32_t", 0x4c00_0439, 0x250, 4, one(D::I32)),
    ("integer", 0x4c00_041b, 0x219, 4, one(D::I32)),
    ("integer4", 0x4c00_0430, 0x2d1, 4, one(D::I32)),
    ("unsigned", 0x4c00_0406, 0x20d, 4, one(D::U32)),
    ("uint32_t", 0x4c00_043d, 0x251, 4, one(D::U32)),
    ("long", 0x4c00_0807, 0x20a, 8, one(D::I64)),
    ("long_long_int", 0x4c00_0809, 0x20b, 8, one(D::I64)),
    ("int64_t", 0x4c00_083a, 0x258, 8, one(D::I64)),
    ("integer8", 0x4c00_0831, 0x2d9, 8, one(D::I64)),
    ("aint", 0x4c00_0843, 0x201, 8, one(D::I64)),
    ("offset", 0x4c00_0844, 0x203, 8, one(D::I64)),
    ("count", 0x4c00_0845, 0x202, 8, one(D::I64)),
    ("unsigned_long", 0x4c00_0808, 0x20e, 8, one(D::U64)),
    ("unsigned_long_long", 0x4c00_0819, 0x20f, 8, one(D::U64)),
    ("uint64_t", 0x4c00_083e, 0x259, 8, one(D::U64)),
    ("float", 0x4c00_040a, 0x210, 4, one(D::F32)),
    ("real", 0x4c00_041c, 0x21a, 4, one(D::F32)),
    ("real4", 0x4c00_0427, 0x2d2, 4, one(D::F32)),
    ("double", 0x4c00_080b, 0x214, 8, one(D::F64)),
    ("dblprec", 0x4c00_081f, 0x21c, 8, one(D::F64)),
    ("real8", 0x4c00_0829, 0x2da, 8, one(D::F64)),
    ("c_float_complex", 0x4c00_0840, 0x212, 8, two(D::F32)),
    ("cxx_cplex", 0x4c00_0834, 0x213, 8, two(D::F32)),
    ("cplex", 0x4c00_081e, 0x21b, 8, two(D::F32)),
    ("complex8", 0x4c00_0828, 0x2db, 8, two(D::F32)),
    ("c_double_complex", 0x4c00_1041, 0x216, 16, two(D::F64)),
    ("cxx_dblcplex", 0x4c00_1035, 0x217, 16, two(D::F64)),
    ("dblcplex", 0x4c00_1022, 0x21d, 16, two(D::F64)),
    ("complex16", 0x4c00_102a, 0x2e3, 16, two(D::F64)),
];

/// Operations: Open MPI's symbol without `ompi_mpi_op_`, MPICH's handle, the standard's.
const OPERATIONS: [(&str, usize, usize, ReduceOp); 7] = [
    ("sum", 0x5800_0003, 0x21, ReduceOp::Sum),
    ("prod", 0x5800_0004, 0x24, ReduceOp::Prod),
    ("min", 0x5800_0002, 0x22, ReduceOp::Min),
    ("max", 0x5800_0001, 0x23, ReduceOp::Max),
    ("band", 0x5800_0006, 0x28, ReduceOp::And),
    ("bor", 0x5800_0008, 0x29, ReduceOp::Or),
    ("bxor", 0x5800_000a, 0x2a, ReduceOp::Xor),
];

/// Communicators: Open MPI's symbol without `ompi_mpi_comm_`, MPICH's handle, the standard's.
const COMMUNICATORS: [(&str, usize, usize); 3] = [
    ("world", 0x4400_0000, 0x101),
    ("self", 0x4400_0001, 0x102),
    ("null", 0x0400_0000, 0x100),
];

/// What the handles of the library below mean.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) abi: Abi,
    /// By handle.
    types: Vec<(Handle, Plain)>,
    operations: Vec<(Handle, ReduceOp)>,
    pub(crate) world: Handle,
    /// `MPI_COMM_SELF`.
    pub(crate) own: Handle,
    pub(crate) no_comm: Handle,
    pub(crate) byte: Handle,
    pub(crate) int: Handle,
    pub(crate) min: Handle,
    /// Addresses that stand for `MPI_IN_PLACE` and `MPI_BOTTOM` in Fortran.
    fortran_in_place: Vec<usize>,
    fortran_bottom: Vec<usize>,
    /// `MPI_STATUS_IGNORE` and `MPI_STATUSES_IGNORE`.
    fortran_ignored: Vec<usize>,
}

impl Tables {
    /// Of the library that the program has loaded; `None` without one.
    pub(crate) fn load() -> Option<Tables> {
        let init = find(c"PMPI_Init");
        if init.is_null() {
            return None;
        }
        let abi = if !find(c"ompi_mpi_comm_world").is_null() {
            Abi::OpenMpi
        } else if file_of(init).contains("mpi_abi") {
            Abi::Standard
        } else {
            Abi::Mpich
        };
        let handle = |symbol: String, mpich, standard| match abi {
            Abi::Mpich => mpich,
            Abi::Standard => standard,
            Abi::OpenMpi => CString::new(symbol).map_or(0, |s| find(&s).addr()),
        };
        let mut types: Vec<(Handle, Plain)> = TYPES
            .iter()
            .map(|(symbol, mpich, standard, bytes, reduced)| {
                let plain = Plain {
                    bytes: *bytes,
                    reduced: *reduced,
                };
                (
                    handle(format!("ompi_mpi_{symbol}"), *mpich, *standard),
                    plain,
                )
            })
            .filter(|(handle, _)| *handle != 0)
            .collect();
        types.sort_unstable_by_key(|(handle, _)| *handle);
        let operations: Vec<(Handle, ReduceOp)> = OPERATIONS
            .iter()
            .map(|(s, m, n, op)| (handle(format!("ompi_mpi_op_{s}"), *m, *n), *op))
            .collect();
        let [world, own, no_comm] =
            COMMUNICATORS.map(|(s, m, n)| handle(format!("ompi_mpi_comm_{s}"), m, n));
        let of_fortran = |names: &[&CStr]| {
            let all = names.iter().map(|n| find(n).addr());
            all.filter(|at| *at != 0 && abi == Abi::OpenMpi).collect()
        };
        Some(Tables {
            abi,
            world,
            own,
            no_comm,
            byte: handle("ompi_mpi_byte".into(), 0x4c00_010d, 0x247),
            int: handle("ompi_mpi_int".into(), 0x4c00_0405, 0x209),
            min: operations[2].0,
            types,
            operations,
            fortran_in_place: of_fortran(&[
                c"mpi_fortran_in_place_",
                c"mpi_fortran_in_place",
                c"mpi_fortran_in_place__",
                c"MPI_FORTRAN_IN_PLACE",
            ]),
            fortran_bottom: of_fortran(&[
                c"mpi_fortran_bottom_",
                c"mpi_fortran_bottom",
                c"mpi_fortran_bottom__",
                c"MPI_FORTRAN_BOTTOM",
            ]),
            fortran_ignored: of_fortran(&[
                c"mpi_fortran_status_ignore_",
                c"mpi_fortran_status_ignore",
                c"mpi_fortran_status_ignore__",
                c"MPI_FORTRAN_STATUS_IGNORE",
                c"mpi_fortran_statuses_ignore_",
                c"mpi_fortran_statuses_ignore",
                c"mpi_fortran_statuses_ignore__",
                c"MPI_FORTRAN_STATUSES_IGNORE",
            ]),
        })
    }

    /// The bits of a handle that count.
    pub(crate) fn handle(&self, given: Handle) -> Handle {
        match self.abi {
            Abi::Mpich => given & 0xffff_ffff,
            Abi::OpenMpi | Abi::Standard => given,
        }
    }

    /// A predefined type; `None` of one that the program has made, or that has gaps.
    pub(crate) fn plain(&self, ty: Handle) -> Option<Plain> {
        let ty = self.handle(ty);
        let found = self.types.binary_search_by_key(&ty, |(handle, _)| *handle);
        found.ok().map(|at| self.types[at].1)
    }

    /// A predefined operation that the NIC has.
    pub(crate) fn operation(&self, op: Handle) -> Option<ReduceOp> {
        let op = self.handle(op);
        let found = self.operations.iter().find(|(handle, _)| *handle == op);
        found.map(|(_, op)| *op)
    }

    /// Whether a buffer's address stands for `MPI_IN_PLACE`.
    pub(crate) fn is_in_place(&self, at: *const c_void) -> bool {
        match self.abi {
            Abi::Mpich => at.addr() == usize::MAX,
            Abi::OpenMpi | Abi::Standard => at.addr() == 1,
        }
    }

    /// `MPI_UNDEFINED`, which the three have in common.
    pub(crate) const UNDEFINED: c_int = -32766;

    /// A buffer of Fortran as C has it.
    pub(crate) fn buffer_of_fortran(&self, at: *mut c_void) -> *mut c_void {
        if self.fortran_in_place.contains(&at.addr()) {
            return std::ptr::without_provenance_mut(1);
        }
        if self.fortran_bottom.contains(&at.addr()) {
            return std::ptr::null_mut();
        }
        at
    }

    /// Whether a status of Fortran stands for `MPI_STATUS_IGNORE` or `MPI_STATUSES_IGNORE`.
    pub(crate) fn ignores_in_fortran(&self, status: *const c_int) -> bool {
        self.fortran_ignored.contains(&status.addr())
    }

    /// A communicator of Fortran as C has it.
    pub(crate) fn comm_of_fortran(&self, comm: c_int) -> Handle {
        match self.abi {
            Abi::Mpich => comm as u32 as usize,
            // SAFETY: the signature of MPI's standard.
            _ => unsafe { below!("PMPI_Comm_f2c", fn(c_int) -> Handle)(comm) },
        }
    }

    /// A type of Fortran as C has it.
    pub(crate) fn type_of_fortran(&self, ty: c_int) -> Handle {
        match self.abi {
            Abi::Mpich => ty as u32 as usize,
            // SAFETY: the signature of MPI's standard.
            _ => unsafe { below!("PMPI_Type_f2c", fn(c_int) -> Handle)(ty) },
        }
    }

    /// An operation of Fortran as C has it.
    pub(crate) fn op_of_fortran(&self, op: c_int) -> Handle {
        match self.abi {
            Abi::Mpich => op as u32 as usize,
            // SAFETY: the signature of MPI's standard.
            _ => unsafe { below!("PMPI_Op_f2c", fn(c_int) -> Handle)(op) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// MPI's name of a type, from Open MPI's symbol.
    fn name(symbol: &str) -> String {
        let known = match symbol {
            "dblprec" => "DOUBLE_PRECISION",
            "2dblprec" => "2DOUBLE_PRECISION",
            "cplex" => "COMPLEX",
            "dblcplex" => "DOUBLE_COMPLEX",
            "cxx_cplex" => "CXX_FLOAT_COMPLEX",
            "cxx_dblcplex" => "CXX_DOUBLE_COMPLEX",
            other => return format!("MPI_{}", other.to_uppercase()),
        };
        format!("MPI_{known}")
    }

    /// A program that prints what differs from the tables.
    fn program(standard: bool) -> String {
        let mut text = String::from(
            "#include <mpi.h>\n#include <stddef.h>\n#include <stdio.h>\nstatic int wrong;\n\
             #ifdef OPEN_MPI\n#define SAME(name, symbol, value) ((void *)(name) == (void *)&(symbol))\n\
             #else\n#define SAME(name, symbol, value) ((unsigned long)(name) == (value))\n#endif\n\
             #define CHECK(name, symbol, value) if (!SAME(name, symbol, value)) wrong = puts(#name) | 1\n\
             int main(void) {\n",
        );
        let mut check = |name: &str, symbol: &str, mpich: usize, other: usize| {
            let value = if standard { other } else { mpich };
            text += &format!("CHECK({name}, ompi_mpi_{symbol}, {value:#x}ul);\n");
        };
        for (symbol, mpich, other, ..) in TYPES {
            check(&name(symbol), symbol, *mpich, *other);
        }
        for (symbol, mpich, other, _) in OPERATIONS {
            let name = format!("MPI_{}", symbol.to_uppercase());
            check(&name, &format!("op_{symbol}"), mpich, other);
        }
        for (name, mpich, other) in COMMUNICATORS {
            let of = format!("MPI_COMM_{}", name.to_uppercase());
            check(&of, &format!("comm_{name}"), mpich, other);
        }
        text + "if (MPI_UNDEFINED != -32766 || MPI_ERR_COUNT != 2) wrong = puts(\"a constant\") | 1;\n\
                #if defined(OPEN_MPI)\n#define ANY -1, -1, 1, 15, 18, 6, 0\n#elif defined(STANDARD)\n#define ANY -1, -2, 1, 15, 19, 8, 0\n\
                #else\n#define ANY -2, -1, -1, 14, 17, 5, 2\n#endif\n\
                long any[] = {ANY};\n\
                if (MPI_ERR_TRUNCATE != any[3] || MPI_ERR_IN_STATUS != any[4]) wrong = puts(\"a class of errors\") | 1;\n\
                if (sizeof(MPI_Status) != 4 * any[5] || offsetof(MPI_Status, MPI_SOURCE) != 4 * any[6] || offsetof(MPI_Status, MPI_ERROR) != 4 * any[6] + 8) wrong = puts(\"a status\") | 1;\n\
                if (MPI_ANY_SOURCE != any[0] || MPI_ANY_TAG != any[1] || (long)MPI_IN_PLACE != any[2]) wrong = puts(\"an address\") | 1;\n\
                return wrong;\n}\n"
    }

    #[test]
    fn handles_are_those_of_the_headers() {
        let own = std::env::current_exe().expect("this test");
        // Where `cargo xtask mpi` has installed PyPI's MPICH.
        let wheel = own
            .ancestors()
            .map(|f| f.join("venv-mpi-mpich/bin/mpicc_abi"));
        let wheel = wheel.into_iter().find(|f| f.is_file());
        let compilers = [
            (Some(PathBuf::from("mpicc.mpich")), false),
            (Some(PathBuf::from("mpicc.openmpi")), false),
            (wheel, true),
        ];
        let folder = std::env::temp_dir().join(format!("ringbell-handles-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a new folder");
        for (compiler, standard) in compilers {
            let found = compiler.filter(|c| Command::new(c).arg("--version").output().is_ok());
            let Some(compiler) = found else {
                println!("skipped: no mpicc of one library. Debian: apt-get install libmpich-dev libopenmpi-dev");
                continue;
            };
            let source = folder.join("handles.c");
            let program_at = folder.join("handles");
            std::fs::write(&source, program(standard)).expect("written");
            let mut cc = Command::new(&compiler);
            cc.arg(&source).arg("-o").arg(&program_at);
            let cc = cc
                .args(standard.then_some("-DSTANDARD"))
                .output()
                .expect("it starts");
            let said = String::from_utf8_lossy(&cc.stderr);
            // The package may be unpacked just now, by a step beside this one.
            if said.contains("mpi.h: No such file") {
                println!("skipped: {} has no headers", compiler.display());
                continue;
            }
            assert!(cc.status.success(), "{said}");
            let run = Command::new(&program_at).output().expect("it starts");
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(run.status.success(), "{}: {said}", compiler.display());
        }
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn sizes_are_those_in_the_handles_of_mpich() {
        for (symbol, mpich, _, bytes, reduced) in TYPES {
            assert_eq!((mpich >> 8 & 0xff) as u64, *bytes, "{symbol}");
            if let Some((dtype, times)) = reduced {
                assert_eq!(dtype.bytes() * times, *bytes, "{symbol}");
            }
        }
    }
}
