/* Calls of kernels and of the host that have no type: who this PE is, order, signals, barriers.
 *
 * A call of the host runs as a kernel of one thread, and returns when that has ended.
 */
#ifndef RINGBELL_SHMEM_CALLS_H
#define RINGBELL_SHMEM_CALLS_H

#include "host.h"
#include "operations.h"
#include "teams.h"
#include "waits.h"

#define RB_SHMEM_BOTH __host__ __device__ __forceinline__

namespace rb {
namespace shmem {

/* The same operations as kernels, for the host and for streams. */
static __global__ void put_kernel(void *to, const void *from, size_t bytes, int pe, bool waits, signal_of s) {
  put<thread>(to, from, bytes, pe, waits, s, "a put of the host");
}
static __global__ void get_kernel(void *to, const void *from, size_t bytes, int pe, bool waits) {
  get<thread>(to, from, bytes, pe, waits, "a get of the host");
}
static __global__ void quiet_kernel() { quiet(); }

template <class Scope> RB_SHMEM_BOTH void put_bytes(void *to, const void *from, size_t bytes, int pe, bool waits) {
#ifdef __CUDA_ARCH__
  put<Scope>(to, from, bytes, pe, waits, signal_of{}, waits ? "nvshmem_put" : "nvshmem_put_nbi");
#else
  run_here(put_kernel, to, from, bytes, pe, waits, signal_of{});
#endif
}
template <class Scope> RB_SHMEM_BOTH void get_bytes(void *to, const void *from, size_t bytes, int pe, bool waits) {
#ifdef __CUDA_ARCH__
  get<Scope>(to, from, bytes, pe, waits, waits ? "nvshmem_get" : "nvshmem_get_nbi");
#else
  run_here(get_kernel, to, from, bytes, pe, waits);
#endif
}
template <class Scope>
RB_DEVICE void put_signal(void *to, const void *from, size_t bytes, uint64_t *word, uint64_t value, int op, int pe, bool waits) {
  put<Scope>(to, from, bytes, pe, waits, signal_of{word, value, op}, "nvshmem_put_signal");
}

/* A team that has this PE alone needs no barrier. */
template <class Scope> RB_DEVICE int sync_team(nvshmem_team_t number, bool quiets) {
  if (quiets) once<Scope>([] { quiet(); });
  const team t = team_of(number, "nvshmem_team_sync");
  if (t.size > 1) check("nvshmem_team_sync", -1, gpu_barrier<Scope>(t.comm, collective_options{world().timeout_us}));
  return 0;
}

static __global__ void sync_kernel(nvshmem_team_t team, bool quiets) { sync_team<thread>(team, quiets); }

} // namespace shmem
} // namespace rb

RB_SHMEM_BOTH int nvshmem_my_pe() {
#ifdef __CUDA_ARCH__
  return int(rb::shmem::world().comm.rank);
#else
  return rb::shmem::here().joined ? int(rb::shmem::here().rank) : -1;
#endif
}
RB_SHMEM_BOTH int nvshmem_n_pes() {
#ifdef __CUDA_ARCH__
  return int(rb::shmem::world().comm.size);
#else
  return rb::shmem::here().joined ? int(rb::shmem::here().ranks) : -1;
#endif
}
RB_SHMEM_BOTH void nvshmem_info_get_version(int *major, int *minor) {
  *major = NVSHMEM_MAJOR_VERSION;
  *minor = NVSHMEM_MINOR_VERSION;
}
RB_SHMEM_BOTH void nvshmem_info_get_name(char *name) {
  const char text[] = NVSHMEM_VENDOR_STRING;
  for (size_t i = 0; i < sizeof text; ++i) name[i] = text[i];
}
RB_SHMEM_BOTH void nvshmemx_vendor_get_version_info(int *major, int *minor, int *patch) {
  *major = NVSHMEM_VENDOR_MAJOR_VERSION;
  *minor = NVSHMEM_VENDOR_MINOR_VERSION;
  *patch = NVSHMEM_VENDOR_PATCH_VERSION;
}

/* Only own memory can be reached by loads and stores. */
RB_SHMEM_BOTH void *nvshmem_ptr(const void *symmetric, int pe) {
#ifdef __CUDA_ARCH__
  const rb::shmem::state &w = rb::shmem::world();
#else
  const rb::shmem::state &w = rb::shmem::here().device;
#endif
  bool inside = uint64_t(symmetric) - w.heap < w.bytes;
  return inside && pe == nvshmem_my_pe() ? const_cast<void *>(symmetric) : nullptr;
}

/* --- order ------------------------------------------------------------------------------------------------------ */

RB_SHMEM_BOTH void nvshmem_quiet() {
#ifdef __CUDA_ARCH__
  rb::shmem::quiet();
#else
  rb::shmem::run_here(rb::shmem::quiet_kernel);
#endif
}
RB_SHMEM_BOTH void nvshmem_fence() {
#ifdef __CUDA_ARCH__
  __threadfence_system();
#else
  nvshmem_quiet();
#endif
}

RB_SHMEM_BOTH int nvshmem_barrier(nvshmem_team_t team) {
#ifdef __CUDA_ARCH__
  return rb::shmem::sync_team<rb::thread>(team, true);
#else
  if (nvshmem_team_n_pes(team) < 0) return -1;
  rb::shmem::run_here(rb::shmem::sync_kernel, team, true);
  return 0;
#endif
}
RB_SHMEM_BOTH int nvshmem_team_sync(nvshmem_team_t team) {
#ifdef __CUDA_ARCH__
  return rb::shmem::sync_team<rb::thread>(team, false);
#else
  if (nvshmem_team_n_pes(team) < 0) return -1;
  rb::shmem::run_here(rb::shmem::sync_kernel, team, false);
  return 0;
#endif
}
RB_SHMEM_BOTH void nvshmem_barrier_all() { nvshmem_barrier(NVSHMEM_TEAM_WORLD); }
RB_SHMEM_BOTH void nvshmem_sync_all() { nvshmem_team_sync(NVSHMEM_TEAM_WORLD); }
#define nvshmem_sync nvshmem_team_sync

#define RB_SHMEM_SYNC(SCOPE, _SCOPE)                                                                                        \
  RB_DEVICE void nvshmemx_barrier_all##_SCOPE() { rb::shmem::sync_team<SCOPE>(NVSHMEM_TEAM_WORLD, true); }                  \
  RB_DEVICE void nvshmemx_sync_all##_SCOPE() { rb::shmem::sync_team<SCOPE>(NVSHMEM_TEAM_WORLD, false); }                    \
  RB_DEVICE int nvshmemx_barrier##_SCOPE(nvshmem_team_t team) { return rb::shmem::sync_team<SCOPE>(team, true); }           \
  RB_DEVICE int nvshmemx_team_sync##_SCOPE(nvshmem_team_t team) { return rb::shmem::sync_team<SCOPE>(team, false); }
RB_SHMEM_SYNC(rb::warp, _warp)
RB_SHMEM_SYNC(rb::block, _block)
#undef RB_SHMEM_SYNC

/* --- signals ------------------------------------------------------------------------------------------------------ */

RB_DEVICE void nvshmemx_signal_op(uint64_t *word, uint64_t value, int op, int pe) {
  rb::shmem::put_signal<rb::thread>(nullptr, nullptr, 0, word, value, op, pe, false);
}
RB_DEVICE uint64_t nvshmem_signal_fetch(uint64_t *word) { return rb::shmem::load(word); }
RB_DEVICE uint64_t nvshmem_signal_wait_until(uint64_t *word, int cmp, uint64_t value) {
  return rb::shmem::wait_until(word, cmp, value, "nvshmem_signal_wait_until");
}

#endif /* RINGBELL_SHMEM_CALLS_H */
