/* Barriers of blocks, warps or threads of all ranks, by signals: each has a number, and those of different numbers do not meet. */
#ifndef RINGBELL_GIN_BARRIERS_H
#define RINGBELL_GIN_BARRIERS_H

#include "gin.h"

enum ncclGinFenceLevel : uint32_t { None = 0, Put = 1, Get = 2, Relaxed = None };
RB_GIN_BOTH constexpr ncclGinFenceLevel operator|(ncclGinFenceLevel a, ncclGinFenceLevel b) {
  return ncclGinFenceLevel(uint32_t(a) | uint32_t(b));
}

namespace rb {
namespace gin {

/* Barrier `i` of all: a word of each rank, where that rank counts the times that it has come; and how often this one has. */
RB_DEVICE void meet(const ncclDevComm &c, uint32_t i) {
  uint64_t barriers = uint64_t(c.rb_world) + c.rb_rail + c.rb_hybrid, begin = 2 * uint64_t(c.ginSignalCount) + c.ginCounterCount;
  uint64_t first = begin + uint64_t(i) * c.nRanks;
  if (i >= barriers) shmem::fail("a barrier that ncclDevCommCreate was not asked for", c.rank, RB_STATUS_INVALID_ARGUMENT, i);
  uint64_t *words = reinterpret_cast<uint64_t *>(c.rb_words), *count = words + begin + barriers * c.nRanks + i;
  uint64_t now = ++*count;
  for (int rank = 0; rank < c.nRanks; ++rank)
    start_put(nullptr, 0, nullptr, 0, rank, signal_at{true, c.resourceWindow, (first + uint64_t(c.rank)) * 8, 1}, "a barrier");
  for (int rank = 0; rank < c.nRanks; ++rank) shmem::wait_until(words + first + rank, NVSHMEM_CMP_GE, now, "a barrier");
}

} // namespace gin
} // namespace rb

/* Of the world, or of the rail, which is the world where every rank is an LSA team. */
template <class Coop> struct ncclGinBarrierSession {
  RB_DEVICE ncclGinBarrierSession(Coop, const ncclGin &gin, ncclTeamTagWorld, uint32_t index) : comm_(gin.comm), index_(index) {}
  RB_DEVICE ncclGinBarrierSession(Coop, const ncclGin &gin, ncclTeamTagRail, uint32_t index) : comm_(gin.comm), index_(gin.comm.rb_world + index) {}
  ncclGinBarrierSession(const ncclGinBarrierSession &) = delete;
  /* Puts before it are in place at their ranks behind it: the signals of the barrier come after them. */
  RB_DEVICE void sync(Coop coop, cuda::memory_order = cuda::memory_order_acq_rel,
                      ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    rb::gin::by_leader(coop, [&] {
      if (uint32_t(fence) & uint32_t(ncclGinFenceLevel::Get)) rb::shmem::quiet();
      rb::gin::meet(comm_, index_);
    });
  }

 private:
  const ncclDevComm &comm_;
  uint32_t index_;
};

/* Of the LSA team: of this rank alone. */
template <class Coop> struct ncclLsaBarrierSession {
  RB_DEVICE ncclLsaBarrierSession(Coop, const ncclDevComm &, ncclTeamTagLsa, uint32_t, bool = false) {}
  RB_DEVICE ncclLsaBarrierSession(Coop, const ncclDevComm &, ncclTeam, ncclLsaBarrierHandle, uint32_t, bool = false) {}
  ncclLsaBarrierSession(const ncclLsaBarrierSession &) = delete;
  RB_DEVICE void arrive(Coop coop, cuda::memory_order) { coop.sync(); }
  RB_DEVICE void wait(Coop coop, cuda::memory_order) { coop.sync(); }
  RB_DEVICE void sync(Coop coop, cuda::memory_order) {
    __threadfence_system();
    coop.sync();
  }
};

/* Of both. */
template <class Coop> struct ncclBarrierSession {
  RB_DEVICE ncclBarrierSession(Coop, ncclTeamTagWorld, const ncclGin &gin, uint32_t index, bool = false)
      : comm_(gin.comm), index_(gin.comm.rb_world + gin.comm.rb_rail + index) {}
  ncclBarrierSession(const ncclBarrierSession &) = delete;
  RB_DEVICE void sync(Coop coop, cuda::memory_order = cuda::memory_order_acq_rel,
                      ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    rb::gin::by_leader(coop, [&] {
      if (uint32_t(fence) & uint32_t(ncclGinFenceLevel::Get)) rb::shmem::quiet();
      rb::gin::meet(comm_, index_);
    });
  }

 private:
  const ncclDevComm &comm_;
  uint32_t index_;
};

#endif /* RINGBELL_GIN_BARRIERS_H */
