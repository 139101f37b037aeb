//! CCCL (CUB, libcu++) as it ships, compiled by clang with the headers of include/cuda:
//! `kernels/cccl.cu`.
//!
//! `CCCL` names its folder of headers, or it is in `target/venv` (`pip install cuda-cccl`).
#![allow(unsafe_code)] // Loads kernels.

use std::path::{Path, PathBuf};

use crate::ptx_files::{compiled_with, filled, halves, launch, numbers, with_module};

/// The folder that has `cub/cub.cuh`; nothing where there is none, which it says.
fn headers() -> Option<PathBuf> {
    let named = std::env::var_os("CCCL").map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/lib");
    let pythons = std::fs::read_dir(root).into_iter().flatten().flatten();
    let installed = pythons.map(|p| p.path().join("site-packages/cuda/cccl/headers/include"));
    let found = named
        .into_iter()
        .chain(installed)
        .find(|f| f.join("cub/cub.cuh").is_file());
    if found.is_none() {
        println!(
            "SKIPPED: no CCCL. `pip install cuda-cccl` in target/venv, or name its headers in CCCL"
        );
    }
    found
}

#[test]
fn cub_and_libcudacxx_compile_as_they_ship_and_run() {
    let Some(headers) = headers() else {
        return;
    };
    let headers = headers.to_str().expect("text");
    let flags = [
        "-isystem",
        headers,
        "-Xclang",
        "-fcuda-allow-variadic-functions",
    ];
    let Some(module) = compiled_with("cccl", &flags) else {
        return;
    };
    let gpu = with_module(&module);
    let mut keys: Vec<u32> = numbers(512, 31).iter().map(|v| *v as u32).collect();
    let buffer = filled(&gpu, &keys);
    launch(&gpu, "cub_sort", 1, 128, &[(&buffer).into()]).unwrap();
    keys.sort_unstable();
    assert_eq!(halves(&buffer, 512), keys);

    let values: Vec<i32> = numbers(128, 32).iter().map(|v| *v as i32 >> 8).collect();
    let (input, out) = (filled(&gpu, &values), filled(&gpu, &[0i32; 133]));
    launch(
        &gpu,
        "cub_reduce_and_scan",
        1,
        128,
        &[(&input).into(), (&out).into()],
    )
    .unwrap();
    let got: Vec<i32> = halves(&out, 133).into_iter().map(|v| v as i32).collect();
    let mut sum = 0i32;
    for (got, v) in got.iter().zip(&values) {
        assert_eq!(*got, sum);
        sum = sum.wrapping_add(*v);
    }
    assert_eq!(got[128], sum);
    let most: Vec<i32> = values
        .chunks(32)
        .map(|w| *w.iter().max().unwrap())
        .collect();
    assert_eq!(got[129..], most);

    let (words, all) = (filled(&gpu, &[0u32; 3]), filled(&gpu, &vec![5i32; 9 * 64]));
    launch(&gpu, "libcudacxx", 9, 64, &[(&words).into(), (&all).into()]).unwrap();
    assert_eq!(halves(&words, 3), [9, 9, 9]);
    for (i, v) in halves(&all, 9 * 64).into_iter().enumerate() {
        assert_eq!(v as usize, 60 + [4, 5, 6][i % 64 % 3]);
    }
}
