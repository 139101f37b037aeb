//! Graphs: by capture, over several streams, and node by node.

use std::ffi::c_void;
use std::ptr::null_mut;

use ringbell_libcuda::copy::*;
use ringbell_libcuda::fill::*;
use ringbell_libcuda::graph::*;
use ringbell_libcuda::launch::*;
use ringbell_libcuda::memory::*;
use ringbell_libcuda::stream::*;

use super::{alloc, alone, kernel, ok, start};

const N: usize = 256;

fn new_stream() -> *mut c_void {
    let mut s = null_mut();
    // SAFETY: a live pointer.
    ok(unsafe { cuStreamCreate(&mut s, 1) });
    s
}

fn new_event() -> *mut c_void {
    let mut e = null_mut();
    // SAFETY: a live pointer.
    ok(unsafe { cuEventCreate(&mut e, 0) });
    e
}

/// `scale` over N words: times three.
fn triple(f: *mut c_void, va: u64, s: *mut c_void) {
    let (mut va, mut n) = (va, N as u32);
    let mut params = [
        std::ptr::from_mut(&mut va).cast(),
        std::ptr::from_mut(&mut n).cast::<c_void>(),
    ];
    let none = null_mut();
    // SAFETY: the kernel's two parameters.
    ok(unsafe { cuLaunchKernel(f, 1, 1, 1, 256, 1, 1, 0, s, params.as_mut_ptr(), none) });
}

fn words(va: u64) -> Vec<u32> {
    let mut words = vec![0u32; N];
    // SAFETY: memory of this size.
    ok(unsafe { cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), va, N * 4) });
    words
}

unsafe extern "C" fn count(at: *mut c_void) {
    // SAFETY: the test's counter.
    unsafe { *at.cast::<u32>() += 1 };
}

#[test]
fn copies_fills_and_host_functions_are_captured_and_replayed() {
    let name = "graphs::copies_fills_and_host_functions_are_captured_and_replayed";
    alone(name, || {
        let scale = kernel(start(), c"scale");
        let (a, b, s) = (alloc(N * 4), alloc(N * 4), new_stream());
        let (mut input, mut output) = (vec![7u32; N], vec![0u32; N]);
        let mut calls = 0u32;
        let (mut graph, mut exec, mut status) = (null_mut(), null_mut(), 9);
        // SAFETY: memory of these sizes, and live pointers, until the graph has run.
        unsafe {
            ok(cuStreamBeginCapture_v2(s, 0));
            ok(cuStreamIsCapturing(s, &mut status));
            assert_eq!(status, 1);
            let from = input.as_mut_ptr().cast();
            ok(cuMemcpyHtoDAsync_v2(a, from, N * 4, s));
            triple(scale, a, s);
            ok(cuMemcpyDtoDAsync_v2(b, a, N * 4, s));
            ok(cuMemsetD32Async(b, 1, 1, s));
            ok(cuMemcpyDtoHAsync_v2(
                output.as_mut_ptr().cast(),
                b,
                N * 4,
                s,
            ));
            ok(cuLaunchHostFunc(s, Some(count), (&raw mut calls).cast()));
            ok(cuStreamEndCapture(s, &mut graph));
            let mut nodes = 0;
            ok(cuGraphGetNodes(graph, null_mut(), &mut nodes));
            assert_eq!(nodes, 6);
            ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            ok(cuGraphDestroy(graph));
        }
        // Nothing has run.
        assert_eq!((output[5], calls), (0, 0));
        for (i, value) in [7, 11].into_iter().enumerate() {
            input.fill(value);
            // SAFETY: as above.
            unsafe {
                ok(cuGraphLaunch(exec, s));
                ok(cuStreamSynchronize(s));
            }
            assert_eq!((output[0], output[N - 1]), (1, 3 * value));
            assert_eq!(calls, i as u32 + 1);
        }
        // SAFETY: handles.
        unsafe {
            ok(cuGraphExecDestroy(exec));
            assert_eq!(cuGraphExecDestroy(exec), 1);
            assert_eq!(cuGraphLaunch(exec, s), 400);
        }
    });
}

#[test]
fn a_capture_forks_to_other_streams_and_joins_them() {
    let name = "graphs::a_capture_forks_to_other_streams_and_joins_them";
    alone(name, || {
        let scale = kernel(start(), c"scale");
        let (a, b) = (alloc(N * 4), alloc(N * 4));
        let (s, t) = (new_stream(), new_stream());
        let (forked, joined) = (new_event(), new_event());
        let (mut graph, mut exec) = (null_mut(), null_mut());
        // SAFETY: memory of these sizes, and live pointers.
        unsafe {
            ok(cuStreamBeginCapture_v2(s, 2));
            ok(cuMemsetD32Async(a, 1, N, s));
            ok(cuEventRecord(forked, s));
            ok(cuStreamWaitEvent(t, forked, 0));
            triple(scale, a, t);
            ok(cuMemsetD32Async(b, 2, N, s));
            ok(cuEventRecord(joined, t));
            assert_eq!(cuEventQuery(joined), 907, "it is recorded in a graph");
            ok(cuStreamWaitEvent(s, joined, 0));
            ok(cuMemcpyDtoDAsync_v2(b, a, 4, s));
            assert_eq!(cuStreamEndCapture(t, &mut graph), 903);
            assert_eq!(cuStreamEndCapture(s, &mut graph), 901);
            // Again, without that call.
            ok(cuStreamBeginCapture_v2(s, 2));
            ok(cuMemsetD32Async(a, 1, N, s));
            ok(cuEventRecord(forked, s));
            ok(cuStreamWaitEvent(t, forked, 0));
            triple(scale, a, t);
            ok(cuMemsetD32Async(b, 2, N, s));
            ok(cuEventRecord(joined, t));
            ok(cuStreamWaitEvent(s, joined, 0));
            ok(cuMemcpyDtoDAsync_v2(b, a, 4, s));
            ok(cuStreamEndCapture(s, &mut graph));
            ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            ok(cuGraphLaunch(exec, t));
            ok(cuStreamSynchronize(t));
            let got = words(b);
            assert_eq!((got[0], got[1]), (3, 2));
            // What is not joined is an error, and so is what waits for work outside.
            ok(cuStreamBeginCapture_v2(s, 2));
            ok(cuEventRecord(forked, s));
            ok(cuStreamWaitEvent(t, forked, 0));
            ok(cuMemsetD32Async(a, 1, N, t));
            assert_eq!(cuStreamEndCapture(s, &mut graph), 904);
            ok(cuEventRecord(forked, t));
            ok(cuStreamBeginCapture_v2(s, 2));
            assert_eq!(cuStreamWaitEvent(s, forked, 0), 905);
            assert_eq!(cuMemsetD32Async(a, 1, N, s), 901, "spoiled");
            assert_eq!(cuStreamEndCapture(s, &mut graph), 901);
            // A call that no graph can hold.
            ok(cuStreamBeginCapture_v2(s, 2));
            assert_eq!(cuStreamSynchronize(s), 900);
            assert_eq!(cuStreamEndCapture(s, &mut graph), 901);
            assert_eq!(cuStreamEndCapture(s, &mut graph), 401);
            assert_eq!(cuStreamBeginCapture_v2(null_mut(), 2), 1);
        }
    });
}

/// CUDA_KERNEL_NODE_PARAMS, by its words.
fn kernel_node(f: *mut c_void, params: *mut *mut c_void) -> [usize; 9] {
    let two = |low: usize, high: usize| low | high << 32;
    let (grid, block) = ([1, 1, 1], [256, 1, 1]);
    [
        f as usize,
        two(grid[0], grid[1]),
        two(grid[2], block[0]),
        two(block[1], block[2]),
        0,
        params as usize,
        0,
        0,
        0,
    ]
}

#[test]
fn a_graph_is_built_node_by_node() {
    let name = "graphs::a_graph_is_built_node_by_node";
    alone(name, || {
        let module = start();
        let (scale, counter) = (kernel(module, c"scale"), kernel(module, c"count"));
        let (a, b, s) = (alloc(N * 4), alloc(N * 4), new_stream());
        let (mut va, mut n) = (a, N as u32);
        let mut params = [
            std::ptr::from_mut(&mut va).cast::<c_void>(),
            std::ptr::from_mut(&mut n).cast(),
        ];
        // CUDA_MEMSET_NODE_PARAMS: address, pitch, value and size, width, height.
        let fill = [a as usize, 0, 5 | 4 << 32, N, 1];
        // CUDA_MEMCPY3D: row 1 of two of 512 bytes each, of `a` to `b`.
        let side = |va: u64, y: usize| [0, y, 0, 0, 4, 0, va as usize, 0, 0, 512, 2];
        let copy: Vec<usize> = side(a, 1)
            .into_iter()
            .chain(side(b, 0))
            .chain([512, 1, 1])
            .collect();
        let mut calls = 0u32;
        let run: unsafe extern "C" fn(*mut c_void) = count;
        let host = [run as usize, (&raw mut calls) as usize];
        let (mut graph, mut exec) = (null_mut(), null_mut());
        let (mut first, mut second, mut third, mut last, mut apart) =
            (null_mut(), null_mut(), null_mut(), null_mut(), null_mut());
        let none = std::ptr::null();
        let node = kernel_node(scale, params.as_mut_ptr());
        // SAFETY: structures as the interface has them, and live pointers.
        unsafe {
            ok(cuGraphCreate(&mut graph, 0));
            // In another order than that in which they must run.
            let at = |words: &[usize]| words.as_ptr();
            ok(cuGraphAddMemcpyNode(
                &mut third,
                graph,
                none,
                0,
                at(&copy).cast(),
                null_mut(),
            ));
            ok(cuGraphAddKernelNode_v2(
                &mut second,
                graph,
                none,
                0,
                at(&node).cast(),
            ));
            ok(cuGraphAddMemsetNode(
                &mut first,
                graph,
                none,
                0,
                at(&fill).cast(),
                null_mut(),
            ));
            ok(cuGraphAddHostNode(
                &mut last,
                graph,
                &third,
                1,
                at(&host).cast(),
            ));
            ok(cuGraphAddEmptyNode(&mut apart, graph, &last, 1));
            let (from, to) = ([first, second], [second, third]);
            ok(cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 2));
            assert_eq!(
                cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 1),
                1,
                "twice"
            );
            ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            ok(cuMemsetD32_v2(b, 0, N));
            ok(cuGraphLaunch(exec, s));
            ok(cuStreamSynchronize(s));
        }
        let (got, copied) = (words(a), words(b));
        assert_eq!((got[0], got[N - 1], calls), (15, 15, 1));
        assert_eq!((copied[0], copied[127], copied[128]), (15, 15, 0));
        // Another kernel for later replays.
        let other = kernel_node(counter, null_mut());
        // SAFETY: as above.
        unsafe {
            ok(cuGraphExecKernelNodeSetParams_v2(
                exec,
                second,
                other.as_ptr().cast(),
            ));
            let wrong = cuGraphExecKernelNodeSetParams_v2(exec, first, other.as_ptr().cast());
            assert_eq!(wrong, 1, "no kernel");
            ok(cuGraphLaunch(exec, s));
            ok(cuStreamSynchronize(s));
        }
        assert_eq!(words(a)[0], 5);
        // Nodes that wait for each other, of another graph, and kernels that the GPU does not take.
        let mut bad = kernel_node(scale, params.as_mut_ptr());
        bad[2] = 1 | 2000 << 32;
        let (mut child, mut empty) = (null_mut(), null_mut());
        // SAFETY: as above.
        unsafe {
            let mut node = null_mut();
            assert_eq!(
                cuGraphAddKernelNode_v2(&mut node, graph, none, 0, bad.as_ptr().cast()),
                1
            );
            ok(cuGraphAddDependencies(graph, &apart, &first, 1));
            assert_eq!(cuGraphInstantiateWithFlags(&mut exec, graph, 0), 1);
            ok(cuGraphCreate(&mut child, 0));
            assert_eq!(cuGraphAddEmptyNode(&mut empty, child, &first, 1), 1);
            ok(cuGraphAddEmptyNode(&mut empty, child, none, 0));
            ok(cuGraphDestroy(graph));
            assert_eq!(cuGraphDestroy(graph), 1);
        }
    });
}

#[test]
fn boxes_are_copied_by_rows_and_layers() {
    let name = "graphs::boxes_are_copied_by_rows_and_layers";
    alone(name, || {
        start();
        // Layers of 4 rows of 8 bytes; 2 layers of 2 rows of 3 bytes are copied, from (1, 1, 1) to
        // (2, 0, 0).
        let host: Vec<u8> = (0..96).collect();
        let va = alloc(96);
        // SAFETY: memory of these sizes.
        unsafe {
            ok(cuMemsetD8_v2(va, 0xee, 96));
            let from = [1, 1, 1, 0, 1, host.as_ptr() as usize, 0, 0, 0, 8, 4];
            let to = [2, 0, 0, 0, 2, 0, va as usize, 0, 0, 16, 3];
            let copy: Vec<usize> = from.into_iter().chain(to).chain([3, 2, 2]).collect();
            ok(cuMemcpy3D_v2(copy.as_ptr().cast()));
            let mut wrong = copy.clone();
            wrong[9] = 2;
            assert_eq!(cuMemcpy3D_v2(wrong.as_ptr().cast()), 1, "rows overlap");
            wrong = copy;
            wrong[4] = 3;
            assert_eq!(cuMemcpy3D_v2(wrong.as_ptr().cast()), 1, "an array");
        }
        let mut got = vec![0u8; 96];
        // SAFETY: memory of this size.
        ok(unsafe { cuMemcpyDtoH_v2(got.as_mut_ptr().cast(), va, 96) });
        let mut want = vec![0xee; 96];
        for (layer, row, x) in (0..12).map(|i| (i / 6, i / 3 % 2, i % 3)) {
            want[layer * 48 + row * 16 + 2 + x] = ((layer + 1) * 32 + (row + 1) * 8 + 1 + x) as u8;
        }
        assert_eq!(got, want);
    });
}

#[test]
fn a_freed_address_has_no_attributes() {
    let name = "graphs::a_freed_address_has_no_attributes";
    alone(name, || {
        start();
        let va = alloc(100);
        let (mut kind, mut bytes, mut base) = (9u32, 9u64, 9u64);
        let ids = [2, 12, 11];
        let to = [
            (&raw mut kind).cast(),
            (&raw mut bytes).cast(),
            (&raw mut base).cast::<c_void>(),
        ];
        // SAFETY: values of the attributes' types.
        unsafe {
            ok(cuPointerGetAttributes(3, ids.as_ptr(), to.as_ptr(), va + 4));
            assert_eq!((kind, bytes, base), (2, 100, va));
            ok(cuMemFree_v2(va));
            ok(cuPointerGetAttributes(3, ids.as_ptr(), to.as_ptr(), va + 4));
            assert_eq!((kind, bytes, base), (0, 0, 0));
            assert_eq!(cuPointerGetAttribute(to[0], 2, va), 1);
        }
    });
}
