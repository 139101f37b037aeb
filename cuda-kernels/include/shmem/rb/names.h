/* Puts, gets, values, atomics and waits under the names of each type, size and scope. */
#ifndef RINGBELL_SHMEM_NAMES_H
#define RINGBELL_SHMEM_NAMES_H

#include "calls.h"

/* --- a thread's, and the host's ------------------------------------------------------------------------------------ */

#define RB_SHMEM_MOVE(P, G, T, BYTES)                                                                                       \
  RB_SHMEM_BOTH void nvshmem_##P(T *dest, const T *source, size_t n, int pe) {                                              \
    rb::shmem::put_bytes<rb::thread>(dest, source, (BYTES) * n, pe, true);                                                  \
  }                                                                                                                         \
  RB_SHMEM_BOTH void nvshmem_##P##_nbi(T *dest, const T *source, size_t n, int pe) {                                        \
    rb::shmem::put_bytes<rb::thread>(dest, source, (BYTES) * n, pe, false);                                                 \
  }                                                                                                                         \
  RB_SHMEM_BOTH void nvshmem_##G(T *dest, const T *source, size_t n, int pe) {                                              \
    rb::shmem::get_bytes<rb::thread>(dest, source, (BYTES) * n, pe, true);                                                  \
  }                                                                                                                         \
  RB_SHMEM_BOTH void nvshmem_##G##_nbi(T *dest, const T *source, size_t n, int pe) {                                        \
    rb::shmem::get_bytes<rb::thread>(dest, source, (BYTES) * n, pe, false);                                                 \
  }                                                                                                                         \
  RB_DEVICE void nvshmem_##P##_signal(T *dest, const T *source, size_t n, uint64_t *word, uint64_t value, int op, int pe) { \
    rb::shmem::put_signal<rb::thread>(dest, source, (BYTES) * n, word, value, op, pe, true);                                \
  }                                                                                                                         \
  RB_DEVICE void nvshmem_##P##_signal_nbi(T *dest, const T *source, size_t n, uint64_t *word, uint64_t value, int op,       \
                                          int pe) {                                                                         \
    rb::shmem::put_signal<rb::thread>(dest, source, (BYTES) * n, word, value, op, pe, false);                               \
  }                                                                                                                         \
  RB_SHMEM_MOVE_IN(P, G, T, BYTES, rb::warp, _warp)                                                                         \
  RB_SHMEM_MOVE_IN(P, G, T, BYTES, rb::block, _block)

/* A warp's, a block's. */
#define RB_SHMEM_MOVE_IN(P, G, T, BYTES, SCOPE, _SCOPE)                                                                     \
  RB_DEVICE void nvshmemx_##P##_SCOPE(T *dest, const T *source, size_t n, int pe) {                                         \
    rb::shmem::put_bytes<SCOPE>(dest, source, (BYTES) * n, pe, true);                                                       \
  }                                                                                                                         \
  RB_DEVICE void nvshmemx_##P##_nbi##_SCOPE(T *dest, const T *source, size_t n, int pe) {                                   \
    rb::shmem::put_bytes<SCOPE>(dest, source, (BYTES) * n, pe, false);                                                      \
  }                                                                                                                         \
  RB_DEVICE void nvshmemx_##G##_SCOPE(T *dest, const T *source, size_t n, int pe) {                                         \
    rb::shmem::get_bytes<SCOPE>(dest, source, (BYTES) * n, pe, true);                                                       \
  }                                                                                                                         \
  RB_DEVICE void nvshmemx_##G##_nbi##_SCOPE(T *dest, const T *source, size_t n, int pe) {                                   \
    rb::shmem::get_bytes<SCOPE>(dest, source, (BYTES) * n, pe, false);                                                      \
  }                                                                                                                         \
  RB_DEVICE void nvshmemx_##P##_signal##_SCOPE(T *dest, const T *source, size_t n, uint64_t *word, uint64_t value, int op,  \
                                               int pe) {                                                                    \
    rb::shmem::put_signal<SCOPE>(dest, source, (BYTES) * n, word, value, op, pe, true);                                     \
  }                                                                                                                         \
  RB_DEVICE void nvshmemx_##P##_signal_nbi##_SCOPE(T *dest, const T *source, size_t n, uint64_t *word, uint64_t value,      \
                                                   int op, int pe) {                                                        \
    rb::shmem::put_signal<SCOPE>(dest, source, (BYTES) * n, word, value, op, pe, false);                                    \
  }

#define RB_SHMEM_OF_TYPE(NAME, T) RB_SHMEM_MOVE(NAME##_put, NAME##_get, T, sizeof(T))
#define RB_SHMEM_OF_SIZE(BITS) RB_SHMEM_MOVE(put##BITS, get##BITS, void, BITS / 8)
RB_SHMEM_TYPES(RB_SHMEM_OF_TYPE)
RB_SHMEM_SIZES(RB_SHMEM_OF_SIZE)
RB_SHMEM_MOVE(putmem, getmem, void, 1)
#undef RB_SHMEM_OF_TYPE
#undef RB_SHMEM_OF_SIZE
#undef RB_SHMEM_MOVE
#undef RB_SHMEM_MOVE_IN

/* --- values --------------------------------------------------------------------------------------------------------- */

namespace rb {
namespace shmem {

static __global__ void put_value_kernel(void *to, rb_u64 bits, rb_u32 bytes, int pe) { put_value(to, bits, bytes, pe); }
static __global__ void get_value_kernel(const void *from, rb_u64 *bits, rb_u32 bytes, int pe) { *bits = get_value(from, bytes, pe); }

template <class T> RB_SHMEM_BOTH void p(T *to, T value, int pe) {
#ifdef __CUDA_ARCH__
  put_value(to, bits_of(value), sizeof(T), pe);
#else
  run_here(put_value_kernel, to, bits_of(value), sizeof(T), pe);
#endif
}
template <class T> RB_SHMEM_BOTH T g(const T *from, int pe) {
#ifdef __CUDA_ARCH__
  return of_bits<T>(get_value(from, sizeof(T), pe));
#else
  rb_u64 *to = nullptr, bits;
  need_cuda("nvshmem_g", cudaMalloc(&to, sizeof bits));
  run_here(get_value_kernel, from, to, sizeof(T), pe);
  need_cuda("nvshmem_g", cudaMemcpy(&bits, to, sizeof bits, cudaMemcpyDeviceToHost));
  cudaFree(to);
  return of_bits<T>(bits);
#endif
}

} // namespace shmem
} // namespace rb

#define RB_SHMEM_VALUE(NAME, T)                                                                          \
  RB_SHMEM_BOTH void nvshmem_##NAME##_p(T *dest, const T value, int pe) { rb::shmem::p<T>(dest, value, pe); } \
  RB_SHMEM_BOTH T nvshmem_##NAME##_g(const T *source, int pe) { return rb::shmem::g<T>(source, pe); }
RB_SHMEM_TYPES(RB_SHMEM_VALUE)
#undef RB_SHMEM_VALUE

/* --- atomics of 64 bits ----------------------------------------------------------------------------------------------- */

#define RB_SHMEM_ATOMICS(NAME, T)                                                                                     \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch_add(T *dest, T value, int pe) {                                           \
    return static_cast<T>(rb::shmem::fetch_add(dest, rb_u64(value), pe, "nvshmem_atomic_fetch_add"));                              \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_add(T *dest, T value, int pe) {                                              \
    rb::shmem::fetch_add(dest, rb_u64(value), pe, "nvshmem_atomic_add");                                              \
  }                                                                                                                   \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch_inc(T *dest, int pe) {                                                    \
    return static_cast<T>(rb::shmem::fetch_add(dest, 1, pe, "nvshmem_atomic_fetch_inc"));                                          \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_inc(T *dest, int pe) { rb::shmem::fetch_add(dest, 1, pe, "nvshmem_atomic_inc"); } \
  RB_DEVICE T nvshmem_##NAME##_atomic_compare_swap(T *dest, T cond, T value, int pe) {                                \
    return static_cast<T>(rb::shmem::compare_swap(dest, rb_u64(cond), rb_u64(value), pe, "nvshmem_atomic_compare_swap"));          \
  }
RB_SHMEM_ATOMIC_TYPES(RB_SHMEM_ATOMICS)
#undef RB_SHMEM_ATOMICS

#define RB_SHMEM_SWAPS(NAME, T)                                                                                       \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch(const T *source, int pe) {                                                \
    return rb::shmem::of_bits<T>(rb::shmem::fetch_add(source, 0, pe, "nvshmem_atomic_fetch"));                        \
  }                                                                                                                   \
  RB_DEVICE T nvshmem_##NAME##_atomic_swap(T *dest, T value, int pe) {                                                \
    return rb::shmem::of_bits<T>(                                                                                     \
        rb::shmem::update(dest, pe, "nvshmem_atomic_swap", [&](rb_u64) { return rb::shmem::bits_of(value); }));       \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_set(T *dest, T value, int pe) {                                              \
    rb::shmem::update(dest, pe, "nvshmem_atomic_set", [&](rb_u64) { return rb::shmem::bits_of(value); });             \
  }
RB_SHMEM_ATOMIC_TYPES(RB_SHMEM_SWAPS)
RB_SHMEM_SWAPS(double, double)
#undef RB_SHMEM_SWAPS

#define RB_SHMEM_BITWISE_OP(NAME, T, OP, SIGN)                                                                        \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch_##OP(T *dest, T value, int pe) {                                          \
    return static_cast<T>(rb::shmem::update(dest, pe, "nvshmem_atomic_fetch_" #OP, [&](rb_u64 before) { return before SIGN rb_u64(value); })); \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_##OP(T *dest, T value, int pe) {                                             \
    rb::shmem::update(dest, pe, "nvshmem_atomic_" #OP, [&](rb_u64 before) { return before SIGN rb_u64(value); });     \
  }
#define RB_SHMEM_BITWISE(NAME, T)       \
  RB_SHMEM_BITWISE_OP(NAME, T, and, &)  \
  RB_SHMEM_BITWISE_OP(NAME, T, or, |)   \
  RB_SHMEM_BITWISE_OP(NAME, T, xor, ^)
RB_SHMEM_BITWISE_TYPES(RB_SHMEM_BITWISE)
#undef RB_SHMEM_BITWISE
#undef RB_SHMEM_BITWISE_OP

/* --- waits for one word --------------------------------------------------------------------------------------------- */

#define RB_SHMEM_WAITS(NAME, T)                                                                 \
  RB_DEVICE void nvshmem_##NAME##_wait_until(T *word, int cmp, T value) {                       \
    rb::shmem::wait_until(word, cmp, value, "nvshmem_wait_until");                              \
  }                                                                                             \
  RB_DEVICE int nvshmem_##NAME##_test(T *word, int cmp, T value) {                              \
    return rb::shmem::holds(rb::shmem::load(word), cmp, value);                                 \
  }
RB_SHMEM_WAIT_TYPES(RB_SHMEM_WAITS)
#undef RB_SHMEM_WAITS

#endif /* RINGBELL_SHMEM_NAMES_H */
