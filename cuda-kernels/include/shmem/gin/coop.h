/* Groups of threads that make a call together, and the orders and scopes of libcu++ where it is not at hand. */
#ifndef RINGBELL_GIN_COOP_H
#define RINGBELL_GIN_COOP_H

#include <cuda_runtime.h>

#if __has_include(<cuda/atomic>)
#include <cuda/atomic>
#else
namespace cuda {
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread = 10 };
enum memory_order {
  memory_order_relaxed,
  memory_order_consume,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
} // namespace cuda
#endif

#include "../../ringbell.cuh"

/* A group of 2^n threads of a warp, which begins at a multiple of its size. */
template <int N> struct ncclCoopTile {
  static_assert(N >= 1 && N <= 32 && (N & (N - 1)) == 0, "a power of two, at most a warp");
  RB_DEVICE int thread_rank() const { return int(rb::detail::thread_index() % N); }
  RB_DEVICE int size() const { return N; }
  RB_DEVICE int num_threads() const { return N; }
  RB_DEVICE void sync() const {
    unsigned lane = rb::detail::thread_index() & 31;
    if (N > 1) __syncwarp((0xffffffffu >> (32 - N)) << (lane & ~unsigned(N - 1)));
  }
};
typedef ncclCoopTile<1> ncclCoopThread;
typedef ncclCoopTile<32> ncclCoopWarp;

/* Some lanes of a warp. */
struct ncclCoopLanes {
  uint32_t lmask;
  RB_DEVICE ncclCoopLanes(uint32_t lanes = ~0u) : lmask(lanes) {}
  RB_DEVICE int thread_rank() const { return __popc(lmask & ((1u << (rb::detail::thread_index() & 31)) - 1)); }
  RB_DEVICE int size() const { return __popc(lmask); }
  RB_DEVICE int num_threads() const { return size(); }
  RB_DEVICE void sync() const { __syncwarp(lmask); }
};

/* A block. */
struct ncclCoopCta {
  RB_DEVICE int thread_rank() const { return int(rb::detail::thread_index()); }
  RB_DEVICE int size() const { return int(blockDim.x * blockDim.y * blockDim.z); }
  RB_DEVICE int num_threads() const { return size(); }
  RB_DEVICE void sync() const { __syncthreads(); }
};

#endif /* RINGBELL_GIN_COOP_H */
