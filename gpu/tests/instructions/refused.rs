//! What the emulated GPU does not have is refused when it is loaded, with its name and line.

use super::harness::refused;

#[test]
fn instructions_of_other_units_are_refused() {
    for statement in [
        "wgmma.fence.sync.aligned;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%a}, %at, %at, 1, 1, 1, 0, 0;",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%at], 32;",
        "tcgen05.mma.cta_group::1.kind::f16 [%a], %at, %at, %b, 1;",
        "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%a}, [%b];",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%at];",
        "setmaxnreg.inc.sync.aligned.u32 96;",
        "tensormap.replace.tile.global_address.global.b1024.b64 [%at], %n;",
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%a], [%at, {%b}], [%c];",
        "cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%at];",
        "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%at], [%a];",
        "fence.proxy.tensormap::generic.acquire.gpu [%at], 128;",
        "tex.1d.v4.f32.s32 {%a, %b, %c, %d}, [%at];",
        "tld4.r.2d.v4.f32.f32 {%a, %b, %c, %d}, [%at];",
        "txq.width.b32 %a, [%at];",
        "suld.b.1d.b32.trap {%a}, [%at];",
        "sust.b.1d.b32.trap [%at], {%a};",
        "sured.b.add.1d.u32.trap [%at], {%a};",
        "suq.width.b32 %a, [%at];",
        "istypep.texref %p0, %at;",
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%at], [%at];",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%a}, {%a}, {%a}, {%a}, %b, 0;",
        "vset.u32.u32.eq %a, %b, %c;",
        "st.async.weak.global.mbarrier::complete_tx::bytes.b32 [%at], %a, [%at];",
        "st.async.mmio.release.gpu.global.b32 [%at], %a, [%at];",
        "red.async.relaxed.cluster.mbarrier::complete_tx::bytes.exch.b32 [%at], %a, [%at];",
        "red.async.relaxed.cluster.global.mbarrier::complete_tx::bytes.add.u32 [%at], %a, [%at];",
        "cvt.rs.f16.f32 %d, %a, %c;",
        "cvt.rs.satfinite.e4m3x4.f32 %d, {%a, %b, %a, %b}, %c;",
        "cvt.rz.bf16x2.ue8m0x2 %d, %a;",
    ] {
        let name = statement.split(['.', ' ']).next().unwrap();
        refused(statement, name);
    }
}

#[test]
fn parameters_of_the_kernel_and_constants_are_only_read() {
    refused("st.param.u64 [p], %n;", "parameter of the kernel");
    refused("st.param.u32 [p+4], %a;", "parameter of the kernel");
    refused("st.const.u32 [%at], %a;", "constants are only read");
    refused("atom.const.add.u32 %a, [%at], %b;", "atom.const");
}

#[test]
fn parameters_in_registers_are_refused_where_they_stand() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n\
         .func (.reg .b32 r)\n twice(.reg .b32 x) { ret; }\n";
    let e = ringbell_gpu::parse("form.ptx", text).unwrap_err();
    assert_eq!((e.file.as_str(), e.line), ("form.ptx", 4), "{e}");
    assert!(e.what.contains("parameters in registers"), "{e}");
}
