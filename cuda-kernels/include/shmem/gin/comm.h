/* A communicator as kernels see it, its teams, and places in windows.
 *
 * Signals, their shadows and the words of barriers lie in a window of the communicator's own, the resource window: in words of 64 bits,
 * first the signals, then the shadows, then the counters, then for each barrier a word of each rank, then each barrier's count.
 */
#ifndef RINGBELL_GIN_COMM_H
#define RINGBELL_GIN_COMM_H

#include "../nccl.h"
#include "../rb/operations.h"
#include "../rb/waits.h"
#include "coop.h"

typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;

typedef struct ncclTeam {
  int nRanks, rank, stride;
} ncclTeam_t;
struct ncclTeamTagWorld {};
struct ncclTeamTagLsa {};
struct ncclTeamTagRail {};

typedef struct ncclLsaBarrierHandle {
  int unused;
} ncclLsaBarrierHandle_t;

typedef struct ncclDevComm {
  int rank, nRanks;
  int lsaRank, lsaSize; /* 0 and 1: no other rank is reached by loads and stores */
  int ginContextCount, ginSignalCount, ginCounterCount;
  ncclWindow_t resourceWindow;
  ncclLsaBarrierHandle_t lsaBarrier;
  uint64_t rb_words; /* of the resource window, here */
  uint32_t rb_world, rb_rail, rb_hybrid; /* barriers of each kind */
} ncclDevComm_t;

typedef enum { NCCL_GIN_CONNECTION_NONE, NCCL_GIN_CONNECTION_FULL, NCCL_GIN_CONNECTION_RAIL } ncclGinConnectionType_t;
typedef enum { NCCL_GIN_TYPE_NONE = 0, NCCL_GIN_TYPE_PROXY = 2, NCCL_GIN_TYPE_GDAKI = 3 } ncclGinType_t;

/* What a program asks of ncclDevCommCreate. All ranks ask the same. */
typedef struct ncclDevCommRequirements {
  size_t size;
  void *resourceRequirementsList; /* null */
  void *teamRequirementsList;     /* null */
  bool lsaMultimem;               /* false */
  int barrierCount, lsaBarrierCount, railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount; /* 0 */
  bool ginForceEnable;
  int ginContextCount, ginSignalCount, ginCounterCount;
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth, ginTrafficClass;
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired, ginVaSignalsRequired;
} ncclDevCommRequirements_t;
#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER \
  {sizeof(ncclDevCommRequirements_t), nullptr, nullptr, false, 0, 0, 0, 0, 0, false, 1, 0, 0, NCCL_GIN_CONNECTION_NONE, false, 0, 0, 0, true, true}

typedef struct ncclCommProperties {
  size_t size;
  int rank, nRanks, cudaDev, nvmlDev;
  bool deviceApiSupport, multimemSupport;
  ncclGinType_t ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  ncclGinType_t railedGinType;
} ncclCommProperties_t;
#define NCCL_COMM_PROPERTIES_INITIALIZER {sizeof(ncclCommProperties_t), 0, 0, 0, 0, false, false, NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE}

/* --- the host's side --------------------------------------------------------------------------------------------- */

inline ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties) {
  if (!rb::shmem::is_here(comm) || !properties) return ncclInvalidArgument;
  const rb::shmem::process &p = rb::shmem::here();
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  *properties = ncclCommProperties_t{sizeof(ncclCommProperties_t), int(p.rank), int(p.ranks), device, device, true, false,
                                     NCCL_GIN_TYPE_PROXY, int(p.ranks), false, NCCL_GIN_TYPE_PROXY};
  return ncclSuccess;
}

/* Every rank calls it. */
inline ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t *asked, ncclDevComm_t *made) {
  rb::shmem::process &p = rb::shmem::here();
  if (!rb::shmem::is_here(comm) || !asked || !made) return ncclInvalidArgument;
  const ncclDevCommRequirements_t &a = *asked;
  const char *refused = a.size != sizeof a                        ? "size is another: begin with NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER"
                        : a.resourceRequirementsList              ? "resourceRequirementsList: use memory of a window"
                        : a.teamRequirementsList || a.lsaMultimem ? "multimem: put to each rank"
                        : a.lsaLLA2ABlockCount                    ? "lsaLLA2ABlockCount: no rank is reached by stores"
                                                                  : nullptr;
  if (refused) {
    fprintf(stderr, "ringbell: ncclDevCommCreate: %s\n", refused);
    return ncclInvalidArgument;
  }
  if (a.ginSignalCount < 0 || a.ginCounterCount < 0 || a.worldGinBarrierCount < 0 || a.railGinBarrierCount < 0 || a.barrierCount < 0) return ncclInvalidArgument;
  ncclDevComm_t d = {};
  d.rank = int(p.rank), d.nRanks = int(p.ranks), d.lsaRank = 0, d.lsaSize = 1;
  d.ginContextCount = 1, d.ginSignalCount = a.ginSignalCount, d.ginCounterCount = a.ginCounterCount;
  d.rb_world = uint32_t(a.worldGinBarrierCount), d.rb_rail = uint32_t(a.railGinBarrierCount), d.rb_hybrid = uint32_t(a.barrierCount);
  uint64_t barriers = uint64_t(d.rb_world) + d.rb_rail + d.rb_hybrid;
  uint64_t words = 2 * uint64_t(a.ginSignalCount) + uint64_t(a.ginCounterCount) + barriers * (p.ranks + 1) + 1;
  void *memory = nullptr;
  ncclResult_t r = ncclMemAlloc(&memory, words * 8);
  if (r == ncclSuccess && (cudaMemset(memory, 0, words * 8) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess)) r = ncclUnhandledCudaError;
  if (r == ncclSuccess) r = ncclCommWindowRegister(comm, memory, words * 8, &d.resourceWindow, NCCL_WIN_COLL_SYMMETRIC);
  if (r != ncclSuccess) return r;
  d.rb_words = reinterpret_cast<uint64_t>(memory);
  *made = d;
  /* All have reset their words before any is written. */
  return rb_barrier(comm, nullptr) ? ncclSystemError : ncclSuccess;
}
inline ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t *d) {
  ncclResult_t r = ncclCommWindowDeregister(comm, d->resourceWindow);
  return r == ncclSuccess ? ncclMemFree(reinterpret_cast<void *>(d->rb_words)) : r;
}

/* --- teams --------------------------------------------------------------------------------------------------------- */

#define RB_GIN_BOTH __host__ __device__ __forceinline__
RB_GIN_BOTH ncclTeam ncclTeamWorld(const ncclDevComm &c) { return ncclTeam{c.nRanks, c.rank, 1}; }
RB_GIN_BOTH ncclTeam ncclTeamLsa(const ncclDevComm &) { return ncclTeam{1, 0, 1}; }
RB_GIN_BOTH ncclTeam ncclTeamRail(const ncclDevComm &c) { return ncclTeamWorld(c); }
RB_GIN_BOTH int ncclTeamRankToWorld(const ncclDevComm &c, ncclTeam team, int rank) { return c.rank + (rank - team.rank) * team.stride; }
RB_GIN_BOTH int ncclTeamRankToLsa(const ncclDevComm &, ncclTeam, int) { return 0; }
RB_GIN_BOTH bool ncclTeamRankIsMember(ncclTeam a, ncclTeam b, int peer) {
  int wb = (peer - b.rank) * b.stride, adelta = wb / a.stride, amod = wb % a.stride, rank = a.rank + adelta;
  return amod == 0 && rank >= 0 && rank < a.nRanks;
}
RB_GIN_BOTH int ncclTeamRankToTeam(ncclTeam a, ncclTeam b, int peer) { return a.rank + (peer - b.rank) * b.stride / a.stride; }
RB_GIN_BOTH ncclTeam ncclTeamInnerFactor(ncclTeam t, int size) { return ncclTeam{size, t.rank % size, t.stride}; }
RB_GIN_BOTH ncclTeam ncclTeamOuterFactor(ncclTeam t, int size) { return ncclTeam{t.nRanks / size, t.rank / size, t.stride * size}; }

/* --- windows --------------------------------------------------------------------------------------------------------- */

RB_DEVICE void *ncclGetLocalPointer(ncclWindow_t w, size_t offset) { return reinterpret_cast<void *>(w->own + offset); }
/* The team has this rank alone. */
RB_DEVICE void *ncclGetLsaPointer(ncclWindow_t w, size_t offset, int peer) { return peer == 0 ? ncclGetLocalPointer(w, offset) : nullptr; }
RB_DEVICE void *ncclGetPeerPointer(ncclWindow_t w, size_t offset, int peer) {
  return peer == int(rb::shmem::world().comm.rank) ? ncclGetLocalPointer(w, offset) : nullptr;
}

/* An element of a window. */
template <class T> struct ncclSymPtr {
  ncclWindow_t window;
  size_t offset;
  RB_GIN_BOTH ncclSymPtr(ncclWindow_t w = nullptr, size_t o = 0) : window(w), offset(o) {}
  RB_GIN_BOTH ncclSymPtr operator+(ptrdiff_t n) const { return ncclSymPtr(window, offset + n * sizeof(T)); }
  RB_GIN_BOTH ncclSymPtr operator-(ptrdiff_t n) const { return ncclSymPtr(window, offset - n * sizeof(T)); }
  RB_DEVICE T *localPtr() const { return static_cast<T *>(ncclGetLocalPointer(window, offset)); }
  RB_DEVICE T *lsaPtr(int peer) const { return static_cast<T *>(ncclGetLsaPointer(window, offset, peer)); }
};

namespace rb {
namespace gin {

/* From the first byte of a rank's heap. */
RB_DEVICE rb_u64 in_heap(ncclWindow_t w, int rank, size_t offset) { return w->in_heap[rank] + offset; }
RB_DEVICE gpu_remote place(ncclWindow_t w, int rank, size_t offset) {
  const shmem::state &s = shmem::world();
  return gpu_window(s.comm, s.window, rb_u32(rank), in_heap(w, rank, offset));
}

/* Ends the kernel where a place lies outside of its window: the heap around it is other windows' memory. */
RB_DEVICE void inside(ncclWindow_t w, size_t offset, size_t bytes, const char *call, int rank) {
  if (RB_UNLIKELY(offset > w->bytes || bytes > w->bytes - offset)) shmem::fail(call, rank, RB_STATUS_OUT_OF_BOUNDS, offset);
}

} // namespace gin
} // namespace rb

#endif /* RINGBELL_GIN_COMM_H */
