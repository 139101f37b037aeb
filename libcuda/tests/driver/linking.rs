//! Texts that are linked, options of compilation, and images that are damaged.

use std::ffi::{c_void, CStr, CString};
use std::ptr::null_mut;

use ringbell_libcuda::copy::*;
use ringbell_libcuda::link::*;
use ringbell_libcuda::module::*;

use super::{alloc, alone, kernel, launch, ok, start};

const HEAD: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

/// A kernel that calls `twice` and reads `table` of another text. `own` is a name of each text
/// alone.
const KERNEL: &str = "
.extern .func (.param .b32 r) twice (.param .b32 x);
.extern .global .align 4 .u32 table[4];
.global .align 4 .u32 own[1] = {100};
.visible .entry use(.param .u64 p)
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  ld.global.u32 %r1, [table+8];
  {
  .param .b32 a;
  .param .b32 b;
  st.param.b32 [a], %r1;
  call.uni (b), twice, (a);
  ld.param.b32 %r2, [b];
  }
  ld.global.u32 %r3, [own];
  add.u32 %r2, %r2, %r3;
  st.global.u32 [%rd1], %r2;
  ret;
}
";

const HELPERS: &str = "
.visible .global .align 4 .u32 table[4] = {1, 2, 30, 4};
.global .align 4 .u32 own[1] = {7};
.visible .func (.param .b32 r) twice (.param .b32 x)
{
  .reg .b32 %r<4>;
  ld.param.b32 %r1, [x];
  ld.global.u32 %r2, [own];
  shl.b32 %r1, %r1, 1;
  add.u32 %r1, %r1, %r2;
  st.param.b32 [r], %r1;
  ret;
}
";

/// A link with buffers for what it says.
struct Link {
    state: *mut c_void,
    info: Box<[u8; 256]>,
    error: Box<[u8; 512]>,
    values: Box<[*mut c_void; 5]>,
    _options: Box<[i32; 5]>,
}

impl Link {
    fn new() -> Link {
        let (mut info, mut error) = (Box::new([9; 256]), Box::new([9; 512]));
        let size = std::ptr::without_provenance_mut;
        let mut values = Box::new([
            info.as_mut_ptr().cast(),
            size(256),
            error.as_mut_ptr().cast(),
            size(512),
            null_mut(),
        ]);
        let mut options = Box::new([3, 4, 5, 6, 2]);
        let mut state = null_mut();
        // SAFETY: options with buffers of these sizes, which live as long as the state.
        ok(unsafe { cuLinkCreate_v2(5, options.as_mut_ptr(), values.as_mut_ptr(), &mut state) });
        Link {
            state,
            info,
            error,
            values,
            _options: options,
        }
    }

    fn add(&self, text: &str, name: &CStr) -> u32 {
        let text = CString::new(format!("{HEAD}{text}")).unwrap();
        let bytes = text.as_bytes_with_nul();
        let none = null_mut();
        // SAFETY: a terminated text of that length.
        unsafe {
            let (at, n) = (bytes.as_ptr().cast(), bytes.len());
            cuLinkAddData_v2(self.state, 1, at, n, name.as_ptr(), 0, none, null_mut())
        }
    }

    fn complete(&self) -> Result<*mut c_void, u32> {
        let (mut image, mut bytes) = (null_mut(), 0);
        // SAFETY: live pointers.
        match unsafe { cuLinkComplete(self.state, &mut image, &mut bytes) } {
            0 => Ok(image),
            code => Err(code),
        }
    }

    fn errors(&self) -> String {
        let text = CStr::from_bytes_until_nul(&self.error[..]).unwrap();
        text.to_string_lossy().into_owned()
    }
}

#[test]
fn several_texts_are_linked_to_one_module() {
    let name = "linking::several_texts_are_linked_to_one_module";
    alone(name, || {
        start();
        let va = alloc(4);
        for order in [[KERNEL, HELPERS], [HELPERS, KERNEL]] {
            let link = Link::new();
            ok(link.add(order[0], c"first.ptx"));
            ok(link.add(order[1], c"second.ptx"));
            let image = link.complete().unwrap();
            let said = CStr::from_bytes_until_nul(&link.info[..]).unwrap();
            assert_eq!(said.to_string_lossy(), "2 texts linked, with 1 kernels\n");
            assert_eq!(
                link.values[1] as usize,
                said.count_bytes() + 1,
                "bytes used"
            );
            assert_eq!(link.values[3] as usize, 0, "no error");
            let (mut module, mut word) = (null_mut(), 0u32);
            // SAFETY: an image of ours, which is not needed once it is loaded.
            unsafe {
                ok(cuModuleLoadData(&mut module, image));
                ok(cuLinkDestroy(link.state));
                assert_eq!(cuLinkDestroy(link.state), 400);
            }
            let one = [1, 1, 1];
            ok(launch(kernel(module, c"use"), one, one, 0, &[va]));
            // SAFETY: memory of this size.
            ok(unsafe { cuMemcpyDtoH_v2((&raw mut word).cast(), va, 4) });
            assert_eq!(word, 2 * 30 + 7 + 100);
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_with_name_and_line() {
    let name = "linking::what_does_not_fit_is_refused_with_name_and_line";
    alone(name, || {
        start();
        let link = Link::new();
        ok(link.add(KERNEL, c"kernel.ptx"));
        ok(link.add("\n.visible .entry k() { ret; }", c"other.ptx"));
        assert_eq!(link.complete().unwrap_err(), 200);
        let missing = "kernel.ptx:6: variable `table` is `.extern` and defined nowhere";
        assert!(link.errors().contains(missing), "{}", link.errors());
        assert!(link.values[3] as usize > 10, "bytes of the error");
        assert_eq!(link.add(HELPERS, c"late.ptx"), 1, "after an error");

        let link = Link::new();
        ok(link.add(HELPERS, c"helpers.ptx"));
        assert_eq!(link.add(HELPERS, c"again.ptx"), 218);
        assert!(link
            .errors()
            .contains("again.ptx:5: variable `table` is defined twice"));

        let link = Link::new();
        assert_eq!(
            link.add(".visible .entry k() { frob.u32; }", c"bad.ptx"),
            218
        );
        assert!(link.errors().contains("bad.ptx:4"), "{}", link.errors());

        let link = Link::new();
        assert_eq!(link.complete().unwrap_err(), 1, "nothing was added");

        let link = Link::new();
        let bytes = [0u8; 64];
        // SAFETY: bytes of that length.
        unsafe {
            let (at, none) = (bytes.as_ptr().cast(), null_mut());
            let add = |kind| {
                cuLinkAddData_v2(link.state, kind, at, 64, c"x".as_ptr(), 0, none, null_mut())
            };
            assert_eq!((add(0), add(2), add(3), add(9)), (209, 200, 801, 1));
            let file = c"/nonexistent/file.ptx".as_ptr();
            assert_eq!(
                cuLinkAddFile_v2(link.state, 1, file, 0, none, null_mut()),
                301
            );
            let (mut options, mut values) = ([99], [null_mut(); 1]);
            let mut state = null_mut();
            let unknown = cuLinkCreate_v2(1, options.as_mut_ptr(), values.as_mut_ptr(), &mut state);
            assert_eq!(unknown, 1);
        }
    });
}

/// Each part of a fat binary and of a linked image, cut off: an error, whatever is behind it.
#[test]
fn images_that_are_cut_off_are_refused() {
    let name = "linking::images_that_are_cut_off_are_refused";
    alone(name, || {
        start();
        let whole = ringbell_fatbin::of_ptx(&[(80, super::TEXT)]);
        let load = |image: &[u8]| {
            let mut module = null_mut();
            // SAFETY: an image in memory of its whole length, whose header says less or the same.
            unsafe { cuModuleLoadData(&mut module, image.as_ptr().cast()) }
        };
        // The header says how long all of it is, so that it is what a cut changes.
        let entries = u64::from_le_bytes(whole[8..16].try_into().unwrap());
        for kept in [0, 1, 63, 64, 65, entries / 2, entries - 1] {
            let mut cut = whole.clone();
            cut[8..16].copy_from_slice(&kept.to_le_bytes());
            assert!(
                matches!(load(&cut), 200 | 209 | 218),
                "{kept} of {entries} bytes"
            );
        }
        let link = Link::new();
        ok(link.add(HELPERS, c"helpers.ptx"));
        ok(link.add(KERNEL, c"kernel.ptx"));
        let image = link.complete().unwrap();
        // SAFETY: the image says its length.
        let image = unsafe {
            let len = image.cast::<u64>().add(1).read();
            std::slice::from_raw_parts(image.cast::<u8>(), len as usize).to_vec()
        };
        ok(load(&image));
        for kept in [16, 17, 24, 40, image.len() - 1] {
            let mut cut = image.clone();
            cut[8..16].copy_from_slice(&(kept as u64).to_le_bytes());
            assert!(
                matches!(load(&cut), 200 | 218),
                "{kept} of {} bytes",
                image.len()
            );
        }
    });
}
