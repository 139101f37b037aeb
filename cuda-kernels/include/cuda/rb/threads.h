/* Threads of a block and of a warp: built-in variables, barriers, votes, shuffles, fences, sleep, clocks, ends. */
#ifndef RB_CUDA_THREADS_H
#define RB_CUDA_THREADS_H

#include <stddef.h>

#include "../vector_types.h"

/* clang's header: threadIdx, blockIdx, blockDim, gridDim, warpSize. */
#include <__clang_cuda_builtin_vars.h>
__device__ inline __cuda_builtin_threadIdx_t::operator dim3() const { return dim3(x, y, z); }
__device__ inline __cuda_builtin_threadIdx_t::operator uint3() const { return uint3{x, y, z}; }
__device__ inline __cuda_builtin_blockIdx_t::operator dim3() const { return dim3(x, y, z); }
__device__ inline __cuda_builtin_blockIdx_t::operator uint3() const { return uint3{x, y, z}; }
__device__ inline __cuda_builtin_blockDim_t::operator dim3() const { return dim3(x, y, z); }
__device__ inline __cuda_builtin_blockDim_t::operator uint3() const { return uint3{x, y, z}; }
__device__ inline __cuda_builtin_gridDim_t::operator dim3() const { return dim3(x, y, z); }
__device__ inline __cuda_builtin_gridDim_t::operator uint3() const { return uint3{x, y, z}; }

/* __syncthreads is a function of clang's. */
RB_CUDA_DEVICE int __syncthreads_count(int p) { return __nvvm_bar0_popc(p); }
RB_CUDA_DEVICE int __syncthreads_and(int p) { return __nvvm_bar0_and(p); }
RB_CUDA_DEVICE int __syncthreads_or(int p) { return __nvvm_bar0_or(p); }
RB_CUDA_DEVICE void __barrier_sync(unsigned id) { __nvvm_barrier_sync(id); }
RB_CUDA_DEVICE void __barrier_sync_count(unsigned id, unsigned n) { __nvvm_barrier_sync_cnt(id, n); }
RB_CUDA_DEVICE void __syncwarp(unsigned mask = 0xffffffffu) { __nvvm_bar_warp_sync(mask); }

RB_CUDA_DEVICE unsigned __ballot_sync(unsigned mask, int p) { return __nvvm_vote_ballot_sync(mask, p != 0); }
RB_CUDA_DEVICE int __any_sync(unsigned mask, int p) { return __nvvm_vote_any_sync(mask, p != 0); }
RB_CUDA_DEVICE int __all_sync(unsigned mask, int p) { return __nvvm_vote_all_sync(mask, p != 0); }
RB_CUDA_DEVICE int __uni_sync(unsigned mask, int p) { return __nvvm_vote_uni_sync(mask, p != 0); }
RB_CUDA_DEVICE unsigned __activemask() {
  unsigned m;
  asm volatile("activemask.b32 %0;" : "=r"(m));
  return m;
}
RB_CUDA_DEVICE unsigned __fns(unsigned mask, unsigned base, int offset) {
  int step = offset < 0 ? -1 : 1;
  int left = offset < 0 ? -offset : offset;
  if (offset == 0) return mask >> (base & 31) & 1 ? base : 0xffffffffu;
  for (int at = int(base); at >= 0 && at < 32; at += step)
    if (mask >> at & 1 && --left == 0) return unsigned(at);
  return 0xffffffffu;
}

/* `c`: the clamp in bits 0 to 4, the segment mask of the width in bits 8 to 12 (PTX ISA, shfl.sync). */
#define RB_CUDA_SHUFFLE(name, builtin, at_type, clamp)                                                              \
  RB_CUDA_DEVICE int name(unsigned mask, int v, at_type at, int width = 32) {                                       \
    return __nvvm_shfl_sync_##builtin##_i32(mask, v, int(at), (32 - width) << 8 | (clamp));                         \
  }                                                                                                                 \
  RB_CUDA_DEVICE unsigned name(unsigned mask, unsigned v, at_type at, int width = 32) {                             \
    return unsigned(name(mask, int(v), at, width));                                                                 \
  }                                                                                                                 \
  RB_CUDA_DEVICE float name(unsigned mask, float v, at_type at, int width = 32) {                                   \
    return __nvvm_shfl_sync_##builtin##_f32(mask, v, int(at), (32 - width) << 8 | (clamp));                         \
  }                                                                                                                 \
  RB_CUDA_DEVICE unsigned long long name(unsigned mask, unsigned long long v, at_type at, int width = 32) {         \
    unsigned low = name(mask, unsigned(v), at, width), high = name(mask, unsigned(v >> 32), at, width);             \
    return (unsigned long long)high << 32 | low;                                                                    \
  }                                                                                                                 \
  RB_CUDA_DEVICE long long name(unsigned mask, long long v, at_type at, int width = 32) {                           \
    return (long long)name(mask, (unsigned long long)v, at, width);                                                 \
  }                                                                                                                 \
  RB_CUDA_DEVICE unsigned long name(unsigned mask, unsigned long v, at_type at, int width = 32) {                   \
    return (unsigned long)name(mask, (unsigned long long)v, at, width);                                             \
  }                                                                                                                 \
  RB_CUDA_DEVICE long name(unsigned mask, long v, at_type at, int width = 32) {                                     \
    return (long)name(mask, (unsigned long long)v, at, width);                                                      \
  }                                                                                                                 \
  RB_CUDA_DEVICE double name(unsigned mask, double v, at_type at, int width = 32) {                                 \
    return __builtin_bit_cast(double, name(mask, __builtin_bit_cast(unsigned long long, v), at, width));            \
  }
RB_CUDA_SHUFFLE(__shfl_sync, idx, int, 0x1f)
RB_CUDA_SHUFFLE(__shfl_up_sync, up, unsigned, 0)
RB_CUDA_SHUFFLE(__shfl_down_sync, down, unsigned, 0x1f)
RB_CUDA_SHUFFLE(__shfl_xor_sync, bfly, int, 0x1f)
#undef RB_CUDA_SHUFFLE

#define RB_CUDA_MATCH(type, bits, suffix)                                                        \
  RB_CUDA_DEVICE unsigned __match_any_sync(unsigned mask, type v) {                              \
    return __nvvm_match_any_sync_##suffix(mask, __builtin_bit_cast(bits, v));                    \
  }                                                                                              \
  RB_CUDA_DEVICE unsigned __match_all_sync(unsigned mask, type v, int *all) {                    \
    return __nvvm_match_all_sync_##suffix##p(mask, __builtin_bit_cast(bits, v), all);            \
  }
RB_CUDA_MATCH(int, unsigned, i32)
RB_CUDA_MATCH(unsigned, unsigned, i32)
RB_CUDA_MATCH(float, unsigned, i32)
RB_CUDA_MATCH(long, unsigned long, i64)
RB_CUDA_MATCH(unsigned long, unsigned long, i64)
RB_CUDA_MATCH(long long, unsigned long long, i64)
RB_CUDA_MATCH(unsigned long long, unsigned long long, i64)
RB_CUDA_MATCH(double, unsigned long long, i64)
#undef RB_CUDA_MATCH

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define RB_CUDA_REDUX(name, op, type, suffix)                                                        \
  RB_CUDA_DEVICE type name(unsigned mask, type v) {                                                  \
    type r;                                                                                          \
    asm volatile("redux.sync." op "." suffix " %0, %1, %2;" : "=r"(r) : "r"(v), "r"(mask));          \
    return r;                                                                                        \
  }
RB_CUDA_REDUX(__reduce_add_sync, "add", unsigned, "u32")
RB_CUDA_REDUX(__reduce_add_sync, "add", int, "s32")
RB_CUDA_REDUX(__reduce_min_sync, "min", unsigned, "u32")
RB_CUDA_REDUX(__reduce_min_sync, "min", int, "s32")
RB_CUDA_REDUX(__reduce_max_sync, "max", unsigned, "u32")
RB_CUDA_REDUX(__reduce_max_sync, "max", int, "s32")
RB_CUDA_REDUX(__reduce_and_sync, "and", unsigned, "b32")
RB_CUDA_REDUX(__reduce_or_sync, "or", unsigned, "b32")
RB_CUDA_REDUX(__reduce_xor_sync, "xor", unsigned, "b32")
#undef RB_CUDA_REDUX
#endif

RB_CUDA_DEVICE void __threadfence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
RB_CUDA_DEVICE void __threadfence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
RB_CUDA_DEVICE void __threadfence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
RB_CUDA_DEVICE void __nanosleep(unsigned ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory"); }
RB_CUDA_DEVICE long long clock64() {
  long long t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
  return t;
}
/* The C library's `clock` is the host's. */
RB_CUDA_DEVICE long clock() {
  int t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t));
  return t;
}
RB_CUDA_DEVICE unsigned long long __globaltimer() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}
RB_CUDA_DEVICE void __trap() { asm volatile("trap;"); }
RB_CUDA_DEVICE void __brkpt() { asm volatile("brkpt;"); }
RB_CUDA_DEVICE void __prof_trigger(int) {}

#define RB_CUDA_SPACE(name, space)                                                                             \
  RB_CUDA_DEVICE unsigned __is##name(const void *p) {                                                          \
    unsigned r;                                                                                                \
    asm("{ .reg .pred q; isspacep." space " q, %1; selp.u32 %0, 1, 0, q; }" : "=r"(r) : "l"(p));               \
    return r;                                                                                                  \
  }
#define RB_CUDA_CVTA(name, space)                                                                              \
  RB_CUDA_DEVICE size_t __cvta_generic_to_##name(const void *p) {                                              \
    size_t r;                                                                                                  \
    asm("cvta.to." space ".u64 %0, %1;" : "=l"(r) : "l"(p));                                                   \
    return r;                                                                                                  \
  }                                                                                                            \
  RB_CUDA_DEVICE void *__cvta_##name##_to_generic(size_t a) {                                                  \
    void *r;                                                                                                   \
    asm("cvta." space ".u64 %0, %1;" : "=l"(r) : "l"(a));                                                      \
    return r;                                                                                                  \
  }
RB_CUDA_SPACE(Global, "global")
RB_CUDA_SPACE(Shared, "shared")
RB_CUDA_SPACE(Constant, "const")
RB_CUDA_SPACE(Local, "local")
/* A cluster is one block. */
RB_CUDA_DEVICE unsigned __isClusterShared(const void *p) { return __isShared(p); }
/* Kernel parameters are copied where their address is taken. */
RB_CUDA_DEVICE unsigned __isGridConstant(const void *) { return 0; }
RB_CUDA_CVTA(global, "global")
RB_CUDA_CVTA(shared, "shared")
RB_CUDA_CVTA(constant, "const")
RB_CUDA_CVTA(local, "local")
#undef RB_CUDA_CVTA
#undef RB_CUDA_SPACE

#endif /* RB_CUDA_THREADS_H */
