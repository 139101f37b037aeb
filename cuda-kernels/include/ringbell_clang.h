/* The CUDA language for clang without NVIDIA's headers (-nocudainc -nocudalib): what Ringbell's own kernels use.
 *
 * Supplied: qualifiers, threadIdx and friends, barriers, warp shuffles and votes, fences, __nanosleep, the atomics of
 * 32 and 64 bits, vector types, bit counts. clang's own functions and PTX are behind them; with CUDA's
 * headers, or nvcc, this file is not used.
 */
#ifndef RINGBELL_CLANG_H
#define RINGBELL_CLANG_H

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __grid_constant__

struct dim3;
struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct __attribute__((aligned(16))) uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct int3 { int x, y, z; };
struct __attribute__((aligned(16))) int4 { int x, y, z, w; };
struct __attribute__((aligned(8))) float2 { float x, y; };
struct float3 { float x, y, z; };
struct __attribute__((aligned(16))) float4 { float x, y, z, w; };
struct __attribute__((aligned(16))) double2 { double x, y; };
struct __attribute__((aligned(16))) ulonglong2 { unsigned long long x, y; };

/* Without lines of their own: errors and breakpoints are at the line that calls them. */
#define RB_CLANG_DEVICE static __device__ __forceinline__ __attribute__((nodebug))

RB_CLANG_DEVICE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }
RB_CLANG_DEVICE float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }

/* clang's header: threadIdx, blockIdx, blockDim, gridDim, warpSize. */
#include <__clang_cuda_builtin_vars.h>

/* __syncthreads is a built-in function of clang. */
RB_CLANG_DEVICE int __syncthreads_count(int p) {
  int n;
  asm volatile("{ .reg .pred q; setp.ne.s32 q, %1, 0; bar.red.popc.u32 %0, 0, q; }" : "=r"(n) : "r"(p) : "memory");
  return n;
}
RB_CLANG_DEVICE int __syncthreads_and(int p) { return __syncthreads_count(!p) == 0; }
RB_CLANG_DEVICE int __syncthreads_or(int p) { return __syncthreads_count(p != 0) != 0; }

RB_CLANG_DEVICE void __syncwarp(unsigned mask = 0xffffffffu) {
  asm volatile("bar.warp.sync %0;" ::"r"(mask) : "memory");
}
RB_CLANG_DEVICE unsigned __ballot_sync(unsigned mask, int p) {
  unsigned b;
  asm volatile("{ .reg .pred q; setp.ne.s32 q, %1, 0; vote.sync.ballot.b32 %0, q, %2; }" : "=r"(b) : "r"(p), "r"(mask));
  return b;
}
RB_CLANG_DEVICE int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
RB_CLANG_DEVICE int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
RB_CLANG_DEVICE unsigned __activemask() {
  unsigned m;
  asm volatile("activemask.b32 %0;" : "=r"(m));
  return m;
}

/* A value of at most 8 bytes moves in one or two words. */
#define RB_CLANG_SHUFFLE(name, kind, second, clamp)                                                              \
  RB_CLANG_DEVICE unsigned rb_clang_##name(unsigned mask, unsigned v, unsigned at, unsigned c) {                 \
    unsigned r;                                                                                                  \
    asm volatile("shfl.sync." kind ".b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(v), "r"(at), "r"(c), "r"(mask));   \
    return r;                                                                                                    \
  }                                                                                                              \
  template <class T> RB_CLANG_DEVICE T name(unsigned mask, T v, second at, int width = 32) {                     \
    static_assert(sizeof(T) <= 8, "shuffles move values of at most 8 bytes");                                    \
    union U { T v; unsigned w[2]; __device__ U() {} } u;                                                         \
    u.w[0] = u.w[1] = 0;                                                                                         \
    u.v = v;                                                                                                     \
    unsigned c = unsigned(32 - width) << 8 | (clamp);                                                            \
    u.w[0] = rb_clang_##name(mask, u.w[0], unsigned(at), c);                                                     \
    if (sizeof(T) > 4) u.w[1] = rb_clang_##name(mask, u.w[1], unsigned(at), c);                                  \
    return u.v;                                                                                                  \
  }
RB_CLANG_SHUFFLE(__shfl_sync, "idx", int, 0x1f)
RB_CLANG_SHUFFLE(__shfl_up_sync, "up", unsigned, 0)
RB_CLANG_SHUFFLE(__shfl_down_sync, "down", unsigned, 0x1f)
RB_CLANG_SHUFFLE(__shfl_xor_sync, "bfly", int, 0x1f)
#undef RB_CLANG_SHUFFLE

RB_CLANG_DEVICE void __threadfence_block() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
RB_CLANG_DEVICE void __threadfence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
RB_CLANG_DEVICE void __threadfence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
RB_CLANG_DEVICE void __nanosleep(unsigned ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns) : "memory"); }
RB_CLANG_DEVICE long long clock64() {
  long long t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
  return t;
}
RB_CLANG_DEVICE void __trap() { asm volatile("trap;"); }

#define RB_CLANG_ATOMIC(name, op, type, suffix, reg)                                                                \
  RB_CLANG_DEVICE type name(type *p, type v) {                                                                      \
    type old;                                                                                                       \
    asm volatile("atom.relaxed.gpu." op "." suffix " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory");    \
    return old;                                                                                                     \
  }                                                                                                                 \
  RB_CLANG_DEVICE type name##_system(type *p, type v) {                                                             \
    type old;                                                                                                       \
    asm volatile("atom.relaxed.sys." op "." suffix " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory");    \
    return old;                                                                                                     \
  }
#define RB_CLANG_ATOMICS(name, op, u, s, ull)            \
  RB_CLANG_ATOMIC(name, op, unsigned, u, "r")            \
  RB_CLANG_ATOMIC(name, op, int, s, "r")                 \
  RB_CLANG_ATOMIC(name, op, unsigned long long, ull, "l") \
  RB_CLANG_ATOMIC(name, op, unsigned long, ull, "l")
RB_CLANG_ATOMICS(atomicAdd, "add", "u32", "s32", "u64")
RB_CLANG_ATOMICS(atomicExch, "exch", "b32", "b32", "b64")
RB_CLANG_ATOMICS(atomicMin, "min", "u32", "s32", "u64")
RB_CLANG_ATOMICS(atomicMax, "max", "u32", "s32", "u64")
RB_CLANG_ATOMICS(atomicAnd, "and", "b32", "b32", "b64")
RB_CLANG_ATOMICS(atomicOr, "or", "b32", "b32", "b64")
RB_CLANG_ATOMICS(atomicXor, "xor", "b32", "b32", "b64")
RB_CLANG_ATOMIC(atomicAdd, "add", float, "f32", "f")
RB_CLANG_ATOMIC(atomicAdd, "add", double, "f64", "d")
RB_CLANG_ATOMIC(atomicInc, "inc", unsigned, "u32", "r")
RB_CLANG_ATOMIC(atomicDec, "dec", unsigned, "u32", "r")
RB_CLANG_DEVICE unsigned atomicSub(unsigned *p, unsigned v) { return atomicAdd(p, 0u - v); }
RB_CLANG_DEVICE int atomicSub(int *p, int v) { return int(atomicSub(reinterpret_cast<unsigned *>(p), unsigned(v))); }
#undef RB_CLANG_ATOMICS
#undef RB_CLANG_ATOMIC

#define RB_CLANG_CAS(type, suffix, reg)                                                                                  \
  RB_CLANG_DEVICE type atomicCAS(type *p, type expected, type desired) {                                                 \
    type old;                                                                                                            \
    asm volatile("atom.relaxed.gpu.cas." suffix " %0, [%1], %2, %3;"                                                     \
                 : "=" reg(old) : "l"(p), reg(expected), reg(desired) : "memory");                                       \
    return old;                                                                                                          \
  }                                                                                                                      \
  RB_CLANG_DEVICE type atomicCAS_system(type *p, type expected, type desired) {                                          \
    type old;                                                                                                            \
    asm volatile("atom.relaxed.sys.cas." suffix " %0, [%1], %2, %3;"                                                     \
                 : "=" reg(old) : "l"(p), reg(expected), reg(desired) : "memory");                                       \
    return old;                                                                                                          \
  }
RB_CLANG_CAS(unsigned, "b32", "r")
RB_CLANG_CAS(int, "b32", "r")
RB_CLANG_CAS(unsigned long long, "b64", "l")
RB_CLANG_CAS(unsigned long, "b64", "l")
#undef RB_CLANG_CAS

RB_CLANG_DEVICE float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
RB_CLANG_DEVICE unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
RB_CLANG_DEVICE double __longlong_as_double(long long v) { return __builtin_bit_cast(double, v); }
RB_CLANG_DEVICE long long __double_as_longlong(double v) { return __builtin_bit_cast(long long, v); }

/* Not contracted with another operation. */
#define RB_CLANG_ROUNDED(name, op, type, reg)                                            \
  RB_CLANG_DEVICE type name(type a, type b) {                                            \
    type r;                                                                              \
    asm(op " %0, %1, %2;" : "=" reg(r) : reg(a), reg(b));                                \
    return r;                                                                            \
  }
RB_CLANG_ROUNDED(__fadd_rn, "add.rn.f32", float, "f")
RB_CLANG_ROUNDED(__fmul_rn, "mul.rn.f32", float, "f")
RB_CLANG_ROUNDED(__dadd_rn, "add.rn.f64", double, "d")
RB_CLANG_ROUNDED(__dmul_rn, "mul.rn.f64", double, "d")
#undef RB_CLANG_ROUNDED

RB_CLANG_DEVICE int __popc(unsigned v) { return __builtin_popcount(v); }
RB_CLANG_DEVICE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
RB_CLANG_DEVICE int __ffs(int v) { return __builtin_ffs(v); }
RB_CLANG_DEVICE int __ffsll(long long v) { return __builtin_ffsll(v); }
RB_CLANG_DEVICE int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
RB_CLANG_DEVICE int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
template <class T> RB_CLANG_DEVICE T __ldg(const T *p) { return *p; }
template <class T> RB_CLANG_DEVICE T __ldcg(const T *p) { return *p; }
template <class T> RB_CLANG_DEVICE T __ldcv(const T *p) { return *const_cast<const volatile T *>(p); }
template <class T> RB_CLANG_DEVICE void __stcg(T *p, T v) { *p = v; }

#endif /* RINGBELL_CLANG_H */
