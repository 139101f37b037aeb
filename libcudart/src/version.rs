//! Which CUDA version's runtime a program takes this library for: the name under which it was
//! loaded says so.
//!
//! CUDA 13 has changed some functions without a new name. `libcudart.so.12` has them as CUDA 12
//! has; under any other name, and inside a program that was linked with it, they are those of
//! CUDA 13. (Programs that our own header has compiled call functions whose names have not changed
//! their meaning.)

use std::ffi::CStr;
use std::sync::OnceLock;

/// A version whose functions differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// 12, in which some plain names are those of CUDA 11.
    Twelve,
    Thirteen,
}

impl Version {
    /// Of a file's name.
    fn of(name: &[u8]) -> Version {
        let older = [&b"libcudart.so.12"[..], b"libcudart.so.11.0"];
        match older.iter().any(|o| name.ends_with(o)) {
            true => Version::Twelve,
            false => Version::Thirteen,
        }
    }

    /// As `cudaRuntimeGetVersion` says it.
    pub(crate) fn number(self) -> i32 {
        match self {
            Version::Twelve => 12_090,
            Version::Thirteen => 13_000,
        }
    }
}

/// The version of this library in this process.
pub(crate) fn version() -> Version {
    static VERSION: OnceLock<Version> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let mut info = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        let here: fn() -> Version = version;
        // SAFETY: an address of this object, and a live structure.
        let found = unsafe { libc::dladdr(here as *const libc::c_void, &mut info) };
        if found == 0 || info.dli_fname.is_null() {
            return Version::Thirteen;
        }
        // SAFETY: the loader's own terminated string.
        Version::of(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_file_says_the_version() {
        assert_eq!(Version::of(b"/opt/x/libcudart.so.12"), Version::Twelve);
        assert_eq!(Version::of(b"libcudart.so.11.0"), Version::Twelve);
        for name in [
            &b"/opt/x/libcudart.so.13"[..],
            b"./a.out",
            b"/usr/lib/libcudart.so",
        ] {
            assert_eq!(Version::of(name), Version::Thirteen);
        }
    }
}
