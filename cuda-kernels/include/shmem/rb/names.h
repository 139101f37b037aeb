/* Puts, gets, values, atomics and waits under the names of each type, size and scope. */
#ifndef RINGBELL_SHMEM_NAMES_H
#define RINGBELL_SHMEM_NAMES_H

#include "atomics.h"
#include "calls.h"
#include "strided.h"
#include "waits.h"

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
static __global__ void get_value_kernel(const void *from, rb_u64 *bits, rb_u32 bytes, int pe) { *bits = get_value(from, bytes, pe, "nvshmem_g"); }

template <class T> RB_SHMEM_BOTH void p(T *to, T value, int pe) {
#ifdef __CUDA_ARCH__
  put_value(to, bits_of(value), sizeof(T), pe);
#else
  run_here(put_value_kernel, to, bits_of(value), sizeof(T), pe);
#endif
}
template <class T> RB_SHMEM_BOTH T g(const T *from, int pe) {
#ifdef __CUDA_ARCH__
  return of_bits<T>(get_value(from, sizeof(T), pe, "nvshmem_g"));
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

/* --- strided ---------------------------------------------------------------------------------------------------------- */

namespace rb {
namespace shmem {

static __global__ void put_strided_kernel(strided s) { put_strided<thread>(s); }
static __global__ void get_strided_kernel(strided s) { get_strided<thread>(s); }

RB_SHMEM_BOTH strided strided_of(void *to, const void *from, ptrdiff_t to_stride, ptrdiff_t from_stride, size_t bytes, size_t count, int pe) {
  return strided{static_cast<char *>(to), static_cast<const char *>(from), to_stride, from_stride, bytes, count, pe};
}
RB_SHMEM_BOTH void iput(const strided &s) {
#ifdef __CUDA_ARCH__
  put_strided<thread>(s);
#else
  run_here(put_strided_kernel, s);
#endif
}
RB_SHMEM_BOTH void iget(const strided &s) {
#ifdef __CUDA_ARCH__
  get_strided<thread>(s);
#else
  run_here(get_strided_kernel, s);
#endif
}

} // namespace shmem
} // namespace rb

#define RB_SHMEM_STRIDED_IN(WHAT, CALL, T, BYTES, SCOPE, _SCOPE)                                                            \
  RB_DEVICE void nvshmemx_##WHAT##_SCOPE(T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t n, int pe) {        \
    rb::shmem::CALL<SCOPE>(rb::shmem::strided_of(dest, source, dst, sst, BYTES, n, pe));                                    \
  }
#define RB_SHMEM_STRIDED(WHAT, HERE, CALL, T, BYTES)                                                                        \
  RB_SHMEM_BOTH void nvshmem_##WHAT(T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t n, int pe) {             \
    rb::shmem::HERE(rb::shmem::strided_of(dest, source, dst, sst, BYTES, n, pe));                                           \
  }                                                                                                                         \
  RB_SHMEM_STRIDED_IN(WHAT, CALL, T, BYTES, rb::warp, _warp)                                                                \
  RB_SHMEM_STRIDED_IN(WHAT, CALL, T, BYTES, rb::block, _block)
#define RB_SHMEM_OF_TYPE(NAME, T)                                       \
  RB_SHMEM_STRIDED(NAME##_iput, iput, put_strided, T, sizeof(T))        \
  RB_SHMEM_STRIDED(NAME##_iget, iget, get_strided, T, sizeof(T))
#define RB_SHMEM_OF_SIZE(BITS)                                          \
  RB_SHMEM_STRIDED(iput##BITS, iput, put_strided, void, BITS / 8)       \
  RB_SHMEM_STRIDED(iget##BITS, iget, get_strided, void, BITS / 8)
RB_SHMEM_TYPES(RB_SHMEM_OF_TYPE)
RB_SHMEM_SIZES(RB_SHMEM_OF_SIZE)
#undef RB_SHMEM_OF_TYPE
#undef RB_SHMEM_OF_SIZE
#undef RB_SHMEM_STRIDED
#undef RB_SHMEM_STRIDED_IN

/* --- atomics ---------------------------------------------------------------------------------------------------------- */

#define RB_SHMEM_ATOMICS(NAME, T)                                                                                     \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch_add(T *dest, T value, int pe) {                                           \
    return rb::shmem::fetch_add<T>(dest, value, pe, "nvshmem_atomic_fetch_add");                                      \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_add(T *dest, T value, int pe) {                                              \
    rb::shmem::fetch_add<T>(dest, value, pe, "nvshmem_atomic_add");                                                   \
  }                                                                                                                   \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch_inc(T *dest, int pe) {                                                    \
    return rb::shmem::fetch_add<T>(dest, 1, pe, "nvshmem_atomic_fetch_inc");                                          \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_inc(T *dest, int pe) { rb::shmem::fetch_add<T>(dest, 1, pe, "nvshmem_atomic_inc"); } \
  RB_DEVICE T nvshmem_##NAME##_atomic_compare_swap(T *dest, T cond, T value, int pe) {                                \
    return rb::shmem::compare_swap<T>(dest, cond, value, pe, "nvshmem_atomic_compare_swap");                          \
  }
RB_SHMEM_ATOMIC_TYPES(RB_SHMEM_ATOMICS)
#undef RB_SHMEM_ATOMICS

#define RB_SHMEM_SWAPS(NAME, T)                                                                                       \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch(const T *source, int pe) {                                                \
    return rb::shmem::fetch<T>(source, pe, "nvshmem_atomic_fetch");                                                   \
  }                                                                                                                   \
  RB_DEVICE T nvshmem_##NAME##_atomic_swap(T *dest, T value, int pe) {                                                \
    return rb::shmem::swap<T>(dest, value, pe, "nvshmem_atomic_swap");                                                \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_set(T *dest, T value, int pe) { rb::shmem::swap<T>(dest, value, pe, "nvshmem_atomic_set"); }
RB_SHMEM_ATOMIC_TYPES(RB_SHMEM_SWAPS)
RB_SHMEM_SWAPS(float, float)
RB_SHMEM_SWAPS(double, double)
#undef RB_SHMEM_SWAPS

#define RB_SHMEM_BITWISE_OP(NAME, T, OP, SIGN)                                                                        \
  RB_DEVICE T nvshmem_##NAME##_atomic_fetch_##OP(T *dest, T value, int pe) {                                          \
    using word = rb::shmem::word_for<T>;                                                                              \
    return static_cast<T>(                                                                                            \
        rb::shmem::update(dest, pe, "nvshmem_atomic_" #OP, [&](word before) { return before SIGN word(value); }));    \
  }                                                                                                                   \
  RB_DEVICE void nvshmem_##NAME##_atomic_##OP(T *dest, T value, int pe) { nvshmem_##NAME##_atomic_fetch_##OP(dest, value, pe); }
#define RB_SHMEM_BITWISE(NAME, T)       \
  RB_SHMEM_BITWISE_OP(NAME, T, and, &)  \
  RB_SHMEM_BITWISE_OP(NAME, T, or, |)   \
  RB_SHMEM_BITWISE_OP(NAME, T, xor, ^)
RB_SHMEM_BITWISE_TYPES(RB_SHMEM_BITWISE)
#undef RB_SHMEM_BITWISE
#undef RB_SHMEM_BITWISE_OP

/* --- waits and looks ---------------------------------------------------------------------------------------------------- */

/* Of several words. `_vector`: a value for each. */
#define RB_SHMEM_SEVERAL(NAME, T, _VECTOR, VALUE, OF)                                                                        \
  RB_DEVICE void nvshmem_##NAME##_wait_until_all##_VECTOR(T *words, size_t n, const int *status, int cmp, VALUE) {           \
    rb::shmem::several<T>{words, n, status, cmp, OF}.wait_all("nvshmem_wait_until_all");                                     \
  }                                                                                                                          \
  RB_DEVICE size_t nvshmem_##NAME##_wait_until_any##_VECTOR(T *words, size_t n, const int *status, int cmp, VALUE) {         \
    return rb::shmem::several<T>{words, n, status, cmp, OF}.wait_any("nvshmem_wait_until_any");                              \
  }                                                                                                                          \
  RB_DEVICE size_t nvshmem_##NAME##_wait_until_some##_VECTOR(T *words, size_t n, size_t *indices, const int *status,         \
                                                             int cmp, VALUE) {                                               \
    return rb::shmem::several<T>{words, n, status, cmp, OF}.wait_some(indices, "nvshmem_wait_until_some");                   \
  }                                                                                                                          \
  RB_DEVICE int nvshmem_##NAME##_test_all##_VECTOR(T *words, size_t n, const int *status, int cmp, VALUE) {                  \
    return rb::shmem::several<T>{words, n, status, cmp, OF}.test_all();                                                      \
  }                                                                                                                          \
  RB_DEVICE size_t nvshmem_##NAME##_test_any##_VECTOR(T *words, size_t n, const int *status, int cmp, VALUE) {               \
    return rb::shmem::several<T>{words, n, status, cmp, OF}.test_any();                                                      \
  }                                                                                                                          \
  RB_DEVICE size_t nvshmem_##NAME##_test_some##_VECTOR(T *words, size_t n, size_t *indices, const int *status, int cmp,      \
                                                       VALUE) {                                                              \
    return rb::shmem::several<T>{words, n, status, cmp, OF}.test_some(indices);                                              \
  }
#define RB_LIST(...) __VA_ARGS__
#define RB_SHMEM_WAITS(NAME, T)                                                                 \
  RB_DEVICE void nvshmem_##NAME##_wait_until(T *word, int cmp, T value) {                       \
    rb::shmem::wait_until(word, cmp, value, "nvshmem_wait_until");                              \
  }                                                                                             \
  RB_DEVICE int nvshmem_##NAME##_test(T *word, int cmp, T value) {                              \
    return rb::shmem::holds(rb::shmem::load(word), cmp, value);                                 \
  }                                                                                             \
  RB_SHMEM_SEVERAL(NAME, T, , T value, RB_LIST(nullptr, value))                                 \
  RB_SHMEM_SEVERAL(NAME, T, _vector, T *values, values)
RB_SHMEM_WAIT_TYPES(RB_SHMEM_WAITS)
#undef RB_SHMEM_WAITS
#undef RB_SHMEM_SEVERAL
#undef RB_LIST

#endif /* RINGBELL_SHMEM_NAMES_H */
