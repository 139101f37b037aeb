/* Calls of the host that run when their stream gets there, as kernels of one thread. */
#ifndef RINGBELL_SHMEM_ON_STREAM_H
#define RINGBELL_SHMEM_ON_STREAM_H

#include "collectives.h"

namespace rb {
namespace shmem {

static __global__ void wait_kernel(uint64_t *word, int cmp, uint64_t value) {
  wait_until(word, cmp, value, "nvshmemx_signal_wait_until_on_stream");
}

template <class T> static __global__ void wait_all_kernel(several<T> words) { words.wait_all("nvshmemx_wait_until_all_on_stream"); }
template <class T> static __global__ void wait_word_kernel(T *word, int cmp, T value) {
  wait_until(word, cmp, value, "nvshmemx_wait_until_on_stream");
}

template <class... P, class... A> void run_on(cudaStream_t stream, void (*kernel)(P...), A... args) {
  open();
  kernel<<<1, 1, 0, stream>>>(P(args)...);
  need_cuda("a call on a stream", cudaGetLastError());
}

} // namespace shmem
} // namespace rb

inline int nvshmemx_barrier_on_stream(nvshmem_team_t team, cudaStream_t stream) {
  if (nvshmem_team_n_pes(team) < 0) return -1;
  rb::shmem::run_on(stream, rb::shmem::sync_kernel, team, true);
  return 0;
}
inline int nvshmemx_team_sync_on_stream(nvshmem_team_t team, cudaStream_t stream) {
  if (nvshmem_team_n_pes(team) < 0) return -1;
  rb::shmem::run_on(stream, rb::shmem::sync_kernel, team, false);
  return 0;
}
inline void nvshmemx_barrier_all_on_stream(cudaStream_t stream) { nvshmemx_barrier_on_stream(NVSHMEM_TEAM_WORLD, stream); }
inline void nvshmemx_sync_all_on_stream(cudaStream_t stream) { nvshmemx_team_sync_on_stream(NVSHMEM_TEAM_WORLD, stream); }
inline void nvshmemx_quiet_on_stream(cudaStream_t stream) { rb::shmem::run_on(stream, rb::shmem::quiet_kernel); }
inline void nvshmemx_signal_op_on_stream(uint64_t *word, uint64_t value, int op, int pe, cudaStream_t stream) {
  rb::shmem::run_on(stream, rb::shmem::put_kernel, nullptr, nullptr, size_t(0), pe, true, rb::shmem::signal_of{word, value, op});
}
inline void nvshmemx_signal_wait_until_on_stream(uint64_t *word, int cmp, uint64_t value, cudaStream_t stream) {
  rb::shmem::run_on(stream, rb::shmem::wait_kernel, word, cmp, value);
}

#define RB_SHMEM_WAITS(NAME, T)                                                                                                \
  inline void nvshmemx_##NAME##_wait_until_on_stream(T *word, int cmp, T value, cudaStream_t stream) {                         \
    rb::shmem::run_on(stream, rb::shmem::wait_word_kernel<T>, word, cmp, value);                                               \
  }                                                                                                                            \
  inline void nvshmemx_##NAME##_wait_until_all_on_stream(T *words, size_t n, const int *status, int cmp, T value,              \
                                                         cudaStream_t stream) {                                                \
    rb::shmem::run_on(stream, rb::shmem::wait_all_kernel<T>, rb::shmem::several<T>{words, n, status, cmp, nullptr, value});    \
  }                                                                                                                            \
  inline void nvshmemx_##NAME##_wait_until_all_vector_on_stream(T *words, size_t n, const int *status, int cmp, T *values,     \
                                                                cudaStream_t stream) {                                         \
    rb::shmem::run_on(stream, rb::shmem::wait_all_kernel<T>, rb::shmem::several<T>{words, n, status, cmp, values});       \
  }
RB_SHMEM_WAIT_TYPES(RB_SHMEM_WAITS)
#undef RB_SHMEM_WAITS

#define RB_SHMEM_STRIDED(WHAT, KERNEL, T, BYTES)                                                                               \
  inline void nvshmemx_##WHAT##_on_stream(T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t n, int pe,            \
                                          cudaStream_t stream) {                                                               \
    rb::shmem::run_on(stream, rb::shmem::KERNEL, rb::shmem::strided_of(dest, source, dst, sst, BYTES, n, pe));                 \
  }

#define RB_SHMEM_MOVE(P, G, T, BYTES)                                                                                          \
  inline void nvshmemx_##P##_on_stream(T *dest, const T *source, size_t n, int pe, cudaStream_t stream) {                      \
    rb::shmem::run_on(stream, rb::shmem::put_kernel, dest, source, (BYTES) * n, pe, true, rb::shmem::signal_of{});           \
  }                                                                                                                            \
  inline void nvshmemx_##P##_nbi_on_stream(T *dest, const T *source, size_t n, int pe, cudaStream_t stream) {                  \
    rb::shmem::run_on(stream, rb::shmem::put_kernel, dest, source, (BYTES) * n, pe, false, rb::shmem::signal_of{});          \
  }                                                                                                                            \
  inline void nvshmemx_##G##_on_stream(T *dest, const T *source, size_t n, int pe, cudaStream_t stream) {                      \
    rb::shmem::run_on(stream, rb::shmem::get_kernel, dest, source, (BYTES) * n, pe, true);                                   \
  }                                                                                                                            \
  inline void nvshmemx_##G##_nbi_on_stream(T *dest, const T *source, size_t n, int pe, cudaStream_t stream) {                  \
    rb::shmem::run_on(stream, rb::shmem::get_kernel, dest, source, (BYTES) * n, pe, false);                                  \
  }                                                                                                                            \
  inline void nvshmemx_##P##_signal_on_stream(T *dest, const T *source, size_t n, uint64_t *word, uint64_t value, int op,      \
                                              int pe, cudaStream_t stream) {                                                   \
    rb::shmem::run_on(stream, rb::shmem::put_kernel, dest, source, (BYTES) * n, pe, true, rb::shmem::signal_of{word, value, op}); \
  }                                                                                                                            \
  inline void nvshmemx_##P##_signal_nbi_on_stream(T *dest, const T *source, size_t n, uint64_t *word, uint64_t value, int op,  \
                                                  int pe, cudaStream_t stream) {                                               \
    rb::shmem::run_on(stream, rb::shmem::put_kernel, dest, source, (BYTES) * n, pe, false, rb::shmem::signal_of{word, value, op}); \
  }
#define RB_SHMEM_OF_TYPE(NAME, T)                          \
  RB_SHMEM_MOVE(NAME##_put, NAME##_get, T, sizeof(T))      \
  RB_SHMEM_STRIDED(NAME##_iput, put_strided_kernel, T, sizeof(T)) \
  RB_SHMEM_STRIDED(NAME##_iget, get_strided_kernel, T, sizeof(T)) \
  inline void nvshmemx_##NAME##_p_on_stream(T *dest, const T value, int pe, cudaStream_t stream) { \
    rb::shmem::run_on(stream, rb::shmem::put_value_kernel, dest, rb::shmem::bits_of(value), sizeof(T), pe);                  \
  }
#define RB_SHMEM_OF_SIZE(BITS)                                    \
  RB_SHMEM_MOVE(put##BITS, get##BITS, void, BITS / 8)             \
  RB_SHMEM_STRIDED(iput##BITS, put_strided_kernel, void, BITS / 8) \
  RB_SHMEM_STRIDED(iget##BITS, get_strided_kernel, void, BITS / 8)
RB_SHMEM_TYPES(RB_SHMEM_OF_TYPE)
RB_SHMEM_SIZES(RB_SHMEM_OF_SIZE)
RB_SHMEM_MOVE(putmem, getmem, void, 1)
#undef RB_SHMEM_OF_TYPE
#undef RB_SHMEM_OF_SIZE
#undef RB_SHMEM_MOVE
#undef RB_SHMEM_STRIDED

#endif /* RINGBELL_SHMEM_ON_STREAM_H */
