/* The CUDA language for g++: the same .cu sources run on the emulated GPU.
 *
 * Supplied: execution and memory qualifiers, threadIdx and friends, __syncthreads and its counting
 * forms, warp shuffles, votes and __syncwarp, atomics, fences, __nanosleep, clocks, __trap, vector
 * types, and RB_KERNEL, which registers a kernel under its name.
 *
 * Differences from a GPU:
 *  - `__shared__` is thread_local of the OS thread that runs the block: uninitialised, with the last
 *    block's values, as on a GPU. `extern __shared__` has no equivalent: use RB_DYNAMIC_SHARED.
 *  - Lanes are not preempted. A lane that spins on memory which another lane of its block writes must
 *    call __nanosleep, an atomic or a Ringbell function in its loop (all of them yield).
 *  - A wild pointer is the process's segmentation fault; there is no sandbox.
 */
#ifndef RINGBELL_EMU_H
#define RINGBELL_EMU_H

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "the emulated GPU needs C++20 (g++ -std=c++20)"
#endif

#include <climits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "ringbell_fiber.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __managed__ static
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

/* A block's dynamic shared memory: `RB_DYNAMIC_SHARED(float, tile, 1024);` The count is a bound for
 * the emulated GPU; on a GPU the launch decides. */
#define RB_DYNAMIC_SHARED(type, name, max_count) static thread_local type name[max_count]

struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct int2 { int x, y; };
struct int3 { int x, y, z; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct float3 { float x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4{x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }

#define threadIdx (::rb::emu::this_lane->tid)
#define blockIdx (::rb::emu::this_block->index)
#define blockDim (::rb::emu::this_block->shape)
#define gridDim (::rb::emu::this_block->grid)
#define warpSize 32

inline void __syncthreads() { rb::emu::barrier(false); }
inline int __syncthreads_count(int predicate) { return int(rb::emu::barrier(predicate != 0)); }
inline int __syncthreads_or(int predicate) { return rb::emu::barrier(predicate != 0) != 0; }
inline int __syncthreads_and(int predicate) { return rb::emu::barrier(predicate == 0) == 0; }

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return unsigned(rb::emu::warp_exchange(mask, predicate != 0, -1));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) { rb::emu::warp_exchange(mask, 0, -1); }
/* Every lane of the warp that has not returned; on a GPU only those that happen to be converged. */
inline unsigned __activemask() {
  rb::emu::block &b = *rb::emu::this_block;
  return b.lanes == 1 ? 1u : b.warp_of[rb::emu::this_lane->index >> 5].live;
}

namespace rb {
namespace emu {
template <class T> T shuffle(unsigned mask, T value, int src) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "shuffles move values of at most 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(mask, bits, src);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
inline int in_warp() { return int(this_lane->index & 31); }
} // namespace emu
} // namespace rb

template <class T> T __shfl_sync(unsigned mask, T v, int src, int width = 32) {
  int me = rb::emu::in_warp();
  return rb::emu::shuffle(mask, v, (me & ~(width - 1)) | (src & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
  int me = rb::emu::in_warp(), from = me ^ lanes;
  return rb::emu::shuffle(mask, v, (from & ~(width - 1)) > (me & ~(width - 1)) ? me : from);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  int me = rb::emu::in_warp(), from = me - int(delta);
  return rb::emu::shuffle(mask, v, from < (me & ~(width - 1)) ? me : from);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  int me = rb::emu::in_warp(), from = me + int(delta);
  return rb::emu::shuffle(mask, v, from > (me | (width - 1)) ? me : from);
}

inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline void __nanosleep(unsigned ns) {
  if (rb::emu::this_block && rb::emu::this_block->lanes > 1) {
    rb::emu::yield_lane();
    return;
  }
  timespec t{0, long(ns % 1000000000u)};
  nanosleep(&t, nullptr);
}
inline long long clock64() { return (long long)rb::emu::now_ns(); }
[[noreturn]] inline void __trap() { rb::emu::trap(); }

namespace rb {
namespace emu {
/* A spin lock between lanes makes progress only when the spinning lane lets others run. */
inline void count_rmw() {
  block *b = this_block;
  if (b && b->lanes > 1 && --b->rmw_budget == 0) {
    b->rmw_budget = 64;
    yield_lane();
  }
}
template <class T, class F> T update(T *p, F f) {
  T old;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  for (;;) {
    T want = f(old);
    if (__atomic_compare_exchange(p, &old, &want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
  }
  count_rmw();
  return old;
}
} // namespace emu
} // namespace rb

/* Relaxed, as CUDA's are; the _system and _block forms are the same on a CPU. */
#define RB_EMU_ATOMIC(name, expression)                                                     \
  template <class T> T name(T *p, std::type_identity_t<T> v) {                              \
    return rb::emu::update(p, [v](T old) -> T { return expression; });                      \
  }                                                                                         \
  template <class T> T name##_system(T *p, std::type_identity_t<T> v) { return name(p, v); } \
  template <class T> T name##_block(T *p, std::type_identity_t<T> v) { return name(p, v); }
RB_EMU_ATOMIC(atomicAdd, old + v)
RB_EMU_ATOMIC(atomicSub, old - v)
RB_EMU_ATOMIC(atomicExch, ((void)old, v))
RB_EMU_ATOMIC(atomicMin, v < old ? v : old)
RB_EMU_ATOMIC(atomicMax, old < v ? v : old)
RB_EMU_ATOMIC(atomicAnd, old & v)
RB_EMU_ATOMIC(atomicOr, old | v)
RB_EMU_ATOMIC(atomicXor, old ^ v)
RB_EMU_ATOMIC(atomicInc, old >= v ? T(0) : T(old + 1))
RB_EMU_ATOMIC(atomicDec, (old == 0 || old > v) ? v : T(old - 1))
#undef RB_EMU_ATOMIC
template <class T> T atomicCAS(T *p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  __atomic_compare_exchange(p, &expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  rb::emu::count_rmw();
  return expected;
}
template <class T> T atomicCAS_system(T *p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  return atomicCAS(p, expected, desired);
}
template <class T> T atomicCAS_block(T *p, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  return atomicCAS(p, expected, desired);
}

inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldcv(const T *p) { return *const_cast<const volatile T *>(p); }
template <class T> void __stcg(T *p, T v) { *p = v; }

/* --- kernels by name -------------------------------------------------------------------------- */

extern "C" {
/* One kernel of a module. */
struct rb_emu_kernel {
  const char *name;
  void (*body)(void **args);
  const uint32_t *arg_bytes;
  uint32_t arg_count;
  const struct rb_emu_kernel *next;
};
/* A module as the host library loads it; see EmulatedGpu::load_module. */
struct rb_emu_module {
  uint32_t version;
  uint32_t abi_version;
  const struct rb_emu_kernel *kernels;
  int (*run_block)(void (*body)(void **), void **args, const rb::emu::dim *grid, const rb::emu::dim *shape,
                   const rb::emu::dim *index, size_t stack_bytes, char *text, size_t len);
};
}
#define RB_EMU_MODULE_VERSION 1u

namespace rb {
namespace emu {
inline RB_EMU_HIDDEN rb_emu_kernel *first_kernel = nullptr;

template <class F> struct unpack;
template <class... A> struct unpack<void (*)(A...)> {
  static constexpr uint32_t count = sizeof...(A);
  static constexpr uint32_t bytes[sizeof...(A) + 1] = {uint32_t(sizeof(A))..., 0};
  template <void (*kernel)(A...), size_t... I> static void call(void **args, std::index_sequence<I...>) {
    (void)args;
    kernel(*static_cast<std::remove_reference_t<A> *>(args[I])...);
  }
  template <void (*kernel)(A...)> static void body(void **args) {
    call<kernel>(args, std::index_sequence_for<A...>{});
  }
};

struct registration {
  rb_emu_kernel node;
  registration(const char *name, void (*body)(void **), const uint32_t *bytes, uint32_t count)
      : node{name, body, bytes, count, first_kernel} {
    first_kernel = &node;
  }
};
} // namespace emu
} // namespace rb

/* The module's entry point. Default visibility, found with dlsym in a user's shared object. */
inline RB_EMU_HIDDEN rb_emu_module rb_emu_this_module = {RB_EMU_MODULE_VERSION, RB_ABI_VERSION, nullptr,
                                                          &rb::emu::run_block};
extern "C" __attribute__((visibility("default"), used)) inline const rb_emu_module *ringbell_module() {
  rb_emu_this_module.kernels = rb::emu::first_kernel;
  return &rb_emu_this_module;
}

/* After `extern "C" __global__ void name(...) {...}`: makes the kernel launchable by name. Overloads
 * and templates need a plain function in front of them. */
#define RB_KERNEL(name)                                                                                  \
  static ::rb::emu::registration rb_registration_of_##name{                                              \
      #name, &::rb::emu::unpack<decltype(&name)>::template body<&name>,                                  \
      ::rb::emu::unpack<decltype(&name)>::bytes, ::rb::emu::unpack<decltype(&name)>::count};

#endif /* RINGBELL_EMU_H */
