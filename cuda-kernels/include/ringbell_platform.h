/* Platform layer over clang, nvcc and NVRTC: qualifiers, memory order, clock.
 *
 * Ordered accesses are PTX (`st.release.sys`, `ld.acquire.sys`; PTX ISA §8, memory consistency model), because NVRTC has no
 * <cuda/atomic>.
 */
#ifndef RINGBELL_PLATFORM_H
#define RINGBELL_PLATFORM_H

#include "ringbell_abi.h"

/* clang defines __CUDA__, and headers define __CUDACC__: where nothing has brought CUDA's language, ours does. */
#if defined(__clang__) && defined(__CUDA__) && !defined(__CUDACC__)
#include "cuda/cuda_runtime.h"
#endif

#ifndef __CUDACC__
#error "device code of Ringbell is CUDA: compile it with `ringbell cc`, clang -x cuda, or nvcc"
#endif

#define RB_DEVICE __device__ __forceinline__
#define RB_DEVICE_NOINLINE __device__ __noinline__
/* With -DRB_SMALL_CODE, functions of a queue and of a reduction are called where they are otherwise copied: a third of the
 * code, compiled in a third of the time, and slower by a few calls an operation. */
#ifdef RB_SMALL_CODE
#define RB_DEVICE_CALL inline __device__ __noinline__
#else
#define RB_DEVICE_CALL RB_DEVICE
#endif
#define RB_UNLIKELY(x) __builtin_expect(!!(x), 0)

namespace rb {
namespace detail {

RB_DEVICE rb_u32 load_relaxed(const rb_u32 *p) {
  rb_u32 v;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
RB_DEVICE rb_u32 load_acquire(const rb_u32 *p) {
  rb_u32 v;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
RB_DEVICE rb_u64 load_relaxed(const rb_u64 *p) {
  rb_u64 v;
  asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
RB_DEVICE rb_u64 load_acquire(const rb_u64 *p) {
  rb_u64 v;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
/* 16 bytes in one load that nothing can tear (PTX ISA §9.7.9.8, `.b128`), acquired. */
RB_DEVICE void load_pair_acquire(const rb_u64 *p, rb_u64 *a, rb_u64 *b) {
  asm volatile(
      "{ .reg .b128 pair; .reg .u64 at; cvta.to.global.u64 at, %2; ld.acquire.sys.global.b128 pair, [at];\n"
      "  mov.b128 {%0, %1}, pair; }"
      : "=l"(*a), "=l"(*b)
      : "l"(p)
      : "memory");
}
RB_DEVICE void store_relaxed(rb_u32 *p, rb_u32 v) {
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
RB_DEVICE void store_relaxed(rb_u64 *p, rb_u64 v) {
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* Before the stores that publish: a thread that acquires one of those sees all earlier writes. */
RB_DEVICE void order_before_publishing() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
RB_DEVICE void store_release(rb_u32 *p, rb_u32 v) {
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
RB_DEVICE void store_release(rb_u64 *p, rb_u64 v) {
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/* 16 bytes in one store: two words of an entry, each with its lap bit. */
RB_DEVICE void store_pair_relaxed(rb_u64 *p, rb_u64 a, rb_u64 b) {
  asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
}
/* Device-resident words: only kernels of one GPU use them, and the GPU's scope orders them. */
RB_DEVICE rb_u32 load_relaxed_device(const rb_u32 *p) {
  rb_u32 v;
  asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
RB_DEVICE rb_u32 load_acquire_device(const rb_u32 *p) {
  rb_u32 v;
  asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
RB_DEVICE void store_relaxed_device(rb_u32 *p, rb_u32 v) {
  asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
RB_DEVICE void store_release_device(rb_u32 *p, rb_u32 v) {
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* Whether `*p` was `expected` and is now `desired`. */
RB_DEVICE bool compare_and_swap_device(rb_u32 *p, rb_u32 expected, rb_u32 desired) {
  rb_u32 old;
  asm volatile("atom.relaxed.gpu.cas.b32 %0, [%1], %2, %3;" : "=r"(old) : "l"(p), "r"(expected), "r"(desired) : "memory");
  return old == expected;
}
/* Nanoseconds; resolution is 32 ns to 1 µs, depending on the GPU. */
RB_DEVICE rb_u64 clock_ns() {
  rb_u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

} // namespace detail
} // namespace rb

#endif /* RINGBELL_PLATFORM_H */
