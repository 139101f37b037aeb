//! Loading: what must be there, what may be missing, and a piece of memory through all calls.
#![allow(unsafe_code)] // Calls the library.

use std::ffi::c_void;
use std::path::PathBuf;

use gdrcopy_sys::testing::build_mock;
use gdrcopy_sys::{gdr_info_v2, gdr_mh_t, load_from, Gdrapi, LoadError};
use rustix::mm::{MapFlags, ProtFlags};

const PAGE: usize = 65536;

/// A folder of its own for each test: the loader tells libraries apart by their files.
struct Dir(PathBuf);

impl Dir {
    fn new(test: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("gdr-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary folder");
        Dir(dir)
    }

    fn mock(&self, arguments: &[&str]) -> Result<Gdrapi, LoadError> {
        load_from(build_mock(&self.0, arguments).expect("the mock compiles"))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_missing_library_and_one_without_a_function_are_named() {
    let dir = Dir::new("missing");
    let nowhere = load_from(dir.0.join("libgdrapi.so.2"));
    let text = nowhere.expect_err("there is none").to_string();
    assert!(text.contains("libgdrapi"), "{text}");
    let broken = dir.mock(&["-Dgdr_map=gdr_another_map"]);
    let text = broken.expect_err("it lacks gdr_map").to_string();
    assert!(text.contains("no function gdr_map"), "{text}");
}

#[test]
fn an_old_library_loads_without_the_younger_functions() {
    let dir = Dir::new("old");
    let api = dir.mock(&["-DMOCK_OLD"]).expect("2.0 is enough");
    assert_eq!(api.version(), (2, 0));
    assert!(api.gdr_pin_buffer_v2.is_err() && api.gdr_map_v2.is_err());
    assert!(api.gdr_get_info_v2.is_err() && api.gdr_get_attribute.is_err());
    assert!(api.gdr_get_info.is_ok());
}

#[test]
fn bytes_go_through_a_mapping_and_everything_is_given_back() {
    let dir = Dir::new("bytes");
    let api = dir.mock(&[]).expect("the mock loads");
    assert_eq!(format!("{api:?}"), "Gdrapi(2.6)");
    // SAFETY: a new mapping.
    let memory = unsafe {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4 * PAGE, prot, flags)
    };
    let memory = memory.expect("memory").cast::<u8>();
    // Pieces are of whole pages of the GPU: the address asked for lies inside one.
    let first = (memory as usize).next_multiple_of(PAGE);
    let asked = first + 100;
    let message = b"over the mapping";
    let mut back = [0u8; 16];
    // SAFETY: the arguments are live, and sizes as promised; the memory outlives its mapping.
    unsafe {
        let g = api.gdr_open();
        assert!(!g.is_null());
        let mut piece = gdr_mh_t { h: 0 };
        assert_eq!(
            api.gdr_pin_buffer(g, asked as u64, PAGE, 0, 0, &mut piece),
            0
        );
        let mut info: gdr_info_v2 = std::mem::zeroed();
        let mut at: *mut c_void = std::ptr::null_mut();
        assert_eq!(api.gdr_map(g, piece, &mut at, 2 * PAGE), 0);
        assert_eq!(api.gdr_get_info_v2(g, piece, &mut info), 0);
        assert_eq!((info.va, info.mapped_size), (first as u64, 2 * PAGE as u64));
        assert_eq!((info.page_size, info.mapping_type), (PAGE as u32, 1));
        let inside = at.byte_add(asked - info.va as usize);
        assert_ne!(inside as usize, asked, "a mapping of its own");
        assert_eq!(
            api.gdr_copy_to_mapping(piece, inside, message.as_ptr().cast(), 16),
            0
        );
        assert_eq!(
            memory
                .add(asked - memory as usize)
                .cast::<[u8; 16]>()
                .read(),
            *message
        );
        assert_eq!(
            api.gdr_copy_from_mapping(piece, back.as_mut_ptr().cast(), inside, 16),
            0
        );
        assert_eq!(&back, message);
        assert_eq!(api.gdr_unmap(g, piece, at, 2 * PAGE), 0);
        assert_eq!(api.gdr_unpin_buffer(g, piece), 0);
        assert_eq!(api.gdr_close(g), 0);
    }
}
