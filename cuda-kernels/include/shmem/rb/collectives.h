/* Collectives of a team, from a thread, a warp or a block of each PE, and from the host.
 *
 * The NIC runs them: one descriptor starts an operation, and its result is in place when the call returns. A team that has this PE
 * alone copies its source.
 */
#ifndef RINGBELL_SHMEM_COLLECTIVES_H
#define RINGBELL_SHMEM_COLLECTIVES_H

#include "../../ringbell_move.cuh"
#include "calls.h"

namespace rb {
namespace shmem {

enum collective { BROADCAST, FCOLLECT, ALLTOALL, REDUCE, REDUCESCATTER };

/* Plain data. */
struct collective_of {
  collective kind;
  void *dest;
  const void *source;
  size_t count;   /* of elements, for each PE where there is a block of each */
  size_t bytes;   /* of an element */
  rb_u32 dtype, op;
  int root;
};

template <class Scope> RB_DEVICE int collect(nvshmem_team_t number, const collective_of &c) {
  const state w = world();
  /* Puts of this PE come before. */
  once<Scope>([] { quiet(); });
  const team t = team_of(number, "a collective");
  if (t.size == 1) {
    detail::copy(static_cast<unsigned char *>(c.dest), static_cast<const unsigned char *>(c.source), c.dest == c.source ? 0 : c.count * c.bytes,
         detail::lanes_in<Scope>::all());
    once<Scope>([] {});
    return 0;
  }
  const rb_comm &comm = t.comm;
  collective_options options{w.timeout_us};
  rb_u64 n = c.count * c.bytes;
  switch (c.kind) {
  case BROADCAST: check("nvshmem_broadcast", c.root, gpu_broadcast<Scope>(comm, c.source, c.dest, n, RB_DTYPE_U8, rb_u32(c.root), options)); break;
  case FCOLLECT: check("nvshmem_fcollect", -1, gpu_all_gather<Scope>(comm, c.source, c.dest, n, RB_DTYPE_U8, options)); break;
  case ALLTOALL: check("nvshmem_alltoall", -1, gpu_all_to_all<Scope>(comm, c.source, c.dest, n, RB_DTYPE_U8, options)); break;
  case REDUCE: check("nvshmem_reduce", -1, gpu_all_reduce<Scope>(comm, c.source, c.dest, c.count, c.dtype, c.op, options)); break;
  case REDUCESCATTER:
    check("nvshmem_reducescatter", -1, gpu_reduce_scatter<Scope>(comm, c.source, c.dest, c.count, c.dtype, c.op, options));
    break;
  }
  return 0;
}

static __global__ void collective_kernel(nvshmem_team_t team, collective_of c) { collect<thread>(team, c); }

inline int collect_on(nvshmem_team_t team, const collective_of &c, cudaStream_t stream) {
  open();
  collective_kernel<<<1, 1, 0, stream>>>(team, c);
  return cudaGetLastError() == cudaSuccess ? 0 : -1;
}

RB_SHMEM_BOTH int collect_here(nvshmem_team_t team, const collective_of &c) {
#ifdef __CUDA_ARCH__
  return collect<thread>(team, c);
#else
  run_here(collective_kernel, team, c);
  return 0;
#endif
}

} // namespace shmem
} // namespace rb

/* A collective of a name in every scope, and on a stream. PARAMETERS and CALL are in parentheses. */
#define RB_SHMEM_COLLECTIVE(NAME, PARAMETERS, ON_STREAM, CALL)                                                    \
  RB_SHMEM_BOTH int nvshmem_##NAME PARAMETERS { return rb::shmem::collect_here(team, rb::shmem::collective_of CALL); }     \
  RB_DEVICE int nvshmemx_##NAME##_warp PARAMETERS { return rb::shmem::collect<rb::warp>(team, rb::shmem::collective_of CALL); }   \
  RB_DEVICE int nvshmemx_##NAME##_block PARAMETERS { return rb::shmem::collect<rb::block>(team, rb::shmem::collective_of CALL); } \
  inline int nvshmemx_##NAME##_on_stream ON_STREAM { return rb::shmem::collect_on(team, rb::shmem::collective_of CALL, stream); }
#define RB_LIST(...) (__VA_ARGS__)
#define RB_CALL(...) {__VA_ARGS__}

#define RB_SHMEM_GATHERS(NAME, FCOLLECT_, ALLTOALL_, BROADCAST_, T, BYTES)                                                       \
  RB_SHMEM_COLLECTIVE(FCOLLECT_, RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n),                                \
                      RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n, cudaStream_t stream),                      \
                      RB_CALL(rb::shmem::FCOLLECT, dest, source, n, BYTES, 0, 0, 0))                                              \
  RB_SHMEM_COLLECTIVE(ALLTOALL_, RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n),                                \
                      RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n, cudaStream_t stream),                      \
                      RB_CALL(rb::shmem::ALLTOALL, dest, source, n, BYTES, 0, 0, 0))                                              \
  RB_SHMEM_COLLECTIVE(BROADCAST_, RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n, int root),                     \
                      RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n, int root, cudaStream_t stream),            \
                      RB_CALL(rb::shmem::BROADCAST, dest, source, n, BYTES, 0, 0, root))
#define RB_SHMEM_OF_TYPE(NAME, T) RB_SHMEM_GATHERS(NAME, NAME##_fcollect, NAME##_alltoall, NAME##_broadcast, T, sizeof(T))
RB_SHMEM_TYPES(RB_SHMEM_OF_TYPE)
RB_SHMEM_GATHERS(mem, fcollectmem, alltoallmem, broadcastmem, void, 1)
#undef RB_SHMEM_OF_TYPE
#undef RB_SHMEM_GATHERS

#define RB_SHMEM_REDUCTION(NAME, T, DTYPE, OP, REDOP)                                                             \
  RB_SHMEM_COLLECTIVE(NAME##_##OP##_reduce, RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n),     \
                      RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n, cudaStream_t stream),      \
                      RB_CALL(rb::shmem::REDUCE, dest, source, n, sizeof(T), rb_u32(DTYPE), REDOP, 0))            \
  RB_SHMEM_COLLECTIVE(NAME##_##OP##_reducescatter, RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n), \
                      RB_LIST(nvshmem_team_t team, T *dest, const T *source, size_t n, cudaStream_t stream),      \
                      RB_CALL(rb::shmem::REDUCESCATTER, dest, source, n, sizeof(T), rb_u32(DTYPE), REDOP, 0))
#define RB_SHMEM_OF_TYPE(NAME, T, DTYPE)                   \
  RB_SHMEM_REDUCTION(NAME, T, DTYPE, sum, RB_REDOP_SUM)    \
  RB_SHMEM_REDUCTION(NAME, T, DTYPE, prod, RB_REDOP_PROD)  \
  RB_SHMEM_REDUCTION(NAME, T, DTYPE, min, RB_REDOP_MIN)    \
  RB_SHMEM_REDUCTION(NAME, T, DTYPE, max, RB_REDOP_MAX)
RB_SHMEM_REDUCE_TYPES(RB_SHMEM_OF_TYPE)
#undef RB_SHMEM_OF_TYPE
#define RB_SHMEM_OF_TYPE(NAME, T, DTYPE)                  \
  RB_SHMEM_REDUCTION(NAME, T, DTYPE, and, RB_REDOP_AND)   \
  RB_SHMEM_REDUCTION(NAME, T, DTYPE, or, RB_REDOP_OR)     \
  RB_SHMEM_REDUCTION(NAME, T, DTYPE, xor, RB_REDOP_XOR)
RB_SHMEM_REDUCE_BITS_TYPES(RB_SHMEM_OF_TYPE)
#undef RB_SHMEM_OF_TYPE
#undef RB_SHMEM_REDUCTION
#undef RB_SHMEM_COLLECTIVE
#undef RB_LIST
#undef RB_CALL

#endif /* RINGBELL_SHMEM_COLLECTIVES_H */
