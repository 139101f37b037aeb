/* Calls of the host that run when their stream gets there, as kernels of one thread. */
#ifndef RINGBELL_SHMEM_ON_STREAM_H
#define RINGBELL_SHMEM_ON_STREAM_H

#include "collectives.h"

namespace rb {
namespace shmem {

static __global__ void wait_kernel(uint64_t *word, int cmp, uint64_t value) {
  wait_until(word, cmp, value, "nvshmemx_signal_wait_until_on_stream");
}

template <class... P, class... A> void run_on(cudaStream_t stream, void (*kernel)(P...), A... args) {
  open();
  kernel<<<1, 1, 0, stream>>>(P(args)...);
  need_cuda("a call on a stream", cudaGetLastError());
}

} // namespace shmem
} // namespace rb

inline void nvshmemx_barrier_all_on_stream(cudaStream_t stream) { rb::shmem::run_on(stream, rb::shmem::barrier_kernel, true); }
inline void nvshmemx_sync_all_on_stream(cudaStream_t stream) { rb::shmem::run_on(stream, rb::shmem::barrier_kernel, false); }
inline int nvshmemx_barrier_on_stream(nvshmem_team_t team, cudaStream_t stream) {
  if (team == NVSHMEM_TEAM_WORLD) nvshmemx_barrier_all_on_stream(stream);
  return nvshmem_team_n_pes(team) < 0 ? -1 : 0;
}
inline int nvshmemx_team_sync_on_stream(nvshmem_team_t team, cudaStream_t stream) {
  if (team == NVSHMEM_TEAM_WORLD) nvshmemx_sync_all_on_stream(stream);
  return nvshmem_team_n_pes(team) < 0 ? -1 : 0;
}
inline void nvshmemx_quiet_on_stream(cudaStream_t stream) { rb::shmem::run_on(stream, rb::shmem::quiet_kernel); }
inline void nvshmemx_signal_op_on_stream(uint64_t *word, uint64_t value, int op, int pe, cudaStream_t stream) {
  rb::shmem::run_on(stream, rb::shmem::put_kernel, nullptr, nullptr, size_t(0), pe, true, rb::shmem::signal_of{word, value, op});
}
inline void nvshmemx_signal_wait_until_on_stream(uint64_t *word, int cmp, uint64_t value, cudaStream_t stream) {
  rb::shmem::run_on(stream, rb::shmem::wait_kernel, word, cmp, value);
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
  inline void nvshmemx_##NAME##_p_on_stream(T *dest, const T value, int pe, cudaStream_t stream) { \
    rb::shmem::run_on(stream, rb::shmem::put_value_kernel, dest, rb::shmem::bits_of(value), sizeof(T), pe);                  \
  }
#define RB_SHMEM_OF_SIZE(BITS) RB_SHMEM_MOVE(put##BITS, get##BITS, void, BITS / 8)
RB_SHMEM_TYPES(RB_SHMEM_OF_TYPE)
RB_SHMEM_SIZES(RB_SHMEM_OF_SIZE)
RB_SHMEM_MOVE(putmem, getmem, void, 1)
#undef RB_SHMEM_OF_TYPE
#undef RB_SHMEM_OF_SIZE
#undef RB_SHMEM_MOVE

#endif /* RINGBELL_SHMEM_ON_STREAM_H */
