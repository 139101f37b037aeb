/* Cooperative groups: blocks, tiles of a warp, threads that have met, whole grids. Source: CUDA C++ Programming Guide,
 * "Cooperative Groups". A grid waits for its blocks, so it must be launched with all of them resident (a cooperative launch).
 */
#ifndef RB_CUDA_COOPERATIVE_GROUPS_H
#define RB_CUDA_COOPERATIVE_GROUPS_H

#include "cuda_runtime.h"

#define RB_CG static __device__ __forceinline__ RB_CUDA_NO_LINES
#define RB_CG_METHOD __device__ __forceinline__ RB_CUDA_NO_LINES

/* libcu++ declares the groups in this inner namespace before their header is read. */
namespace cooperative_groups {
namespace __v1 {

namespace details {
RB_CG unsigned lane() { return __nvvm_read_ptx_sreg_laneid(); }
RB_CG unsigned lanes_below() {
  unsigned m;
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(m));
  return m;
}
RB_CG unsigned thread_of_block() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
RB_CG unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
RB_CG unsigned long long block_of_grid() {
  return blockIdx.x + (unsigned long long)gridDim.x * (blockIdx.y + (unsigned long long)gridDim.y * blockIdx.z);
}
RB_CG unsigned long long blocks_of_grid() { return (unsigned long long)gridDim.x * gridDim.y * gridDim.z; }
/* Lanes of a warp that the block has. */
RB_CG unsigned lanes_of_warp() {
  unsigned first = thread_of_block() & ~31u, left = threads_of_block() - first;
  return left >= 32 ? 0xffffffffu : (1u << left) - 1;
}

/* A value of any type by the shuffles of its words. */
template <class T, class F> RB_CG T by_words(const T &v, F shuffle) {
  constexpr unsigned n = (sizeof(T) + 3) / 4;
  unsigned words[n] = {};
  __builtin_memcpy(words, &v, sizeof(T));
#pragma unroll
  for (unsigned i = 0; i < n; ++i) words[i] = shuffle(words[i]);
  T r;
  __builtin_memcpy(&r, words, sizeof(T));
  return r;
}

/* Arrivals of blocks at a grid's barrier: the launch's number in the upper 24 bits, and a count. Launches with other
 * numbers share a word only when 64 of them run at once; a launch that has failed leaves nothing behind. */
static __device__ unsigned long long grid_arrivals[64];
RB_CG unsigned launch() {
  unsigned long long n;
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(n));
  return unsigned(n) & 0xffffffu;
}
static __device__ __noinline__ unsigned long long grid_arrive() {
  unsigned number = launch();
  unsigned long long *word = &grid_arrivals[number % 64], mine = (unsigned long long)number << 40;
  unsigned long long seen = atomicAdd(word, 0ull), next;
  for (;;) {
    next = seen >> 40 == number ? seen + 1 : mine | 1;
    unsigned long long was = atomicCAS(word, seen, next);
    if (was == seen) break;
    seen = was;
  }
  /* The count at which all have come. */
  unsigned long long count = next & 0xffffffffffull, all = blocks_of_grid();
  return (count + all - 1) / all * all;
}
static __device__ __noinline__ void grid_wait(unsigned long long until) {
  unsigned number = launch();
  unsigned long long *word = &grid_arrivals[number % 64], seen;
  do {
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(seen) : "l"(word) : "memory");
  } while (seen >> 40 != number || (seen & 0xffffffffffull) < until);
}
} // namespace details

/* Any group, by what it has at run time. */
class thread_group {
 public:
  enum class Kind : unsigned { block, lanes, grid };
  Kind kind;
  unsigned mask, threads, rank;

  RB_CG_METHOD thread_group(Kind k, unsigned m, unsigned n, unsigned r) : kind(k), mask(m), threads(n), rank(r) {}
  RB_CG_METHOD unsigned long long size() const { return threads; }
  RB_CG_METHOD unsigned long long num_threads() const { return threads; }
  RB_CG_METHOD unsigned long long thread_rank() const { return rank; }
  RB_CG_METHOD bool is_valid() const { return true; }
  RB_CG_METHOD void sync() const {
    if (kind == Kind::block) __syncthreads();
    else __syncwarp(mask);
  }
};

class thread_block {
 public:
  struct arrival_token {};
  RB_CG_METHOD static void sync() { __syncthreads(); }
  RB_CG_METHOD static unsigned thread_rank() { return details::thread_of_block(); }
  RB_CG_METHOD static dim3 group_index() { return dim3(blockIdx); }
  RB_CG_METHOD static dim3 thread_index() { return dim3(threadIdx); }
  RB_CG_METHOD static dim3 group_dim() { return dim3(blockDim); }
  RB_CG_METHOD static dim3 dim_threads() { return dim3(blockDim); }
  RB_CG_METHOD static unsigned size() { return details::threads_of_block(); }
  RB_CG_METHOD static unsigned num_threads() { return details::threads_of_block(); }
  RB_CG_METHOD arrival_token barrier_arrive() const { return arrival_token{}; }
  RB_CG_METHOD void barrier_wait(arrival_token &&) const { __syncthreads(); }
  RB_CG_METHOD operator thread_group() const {
    return thread_group(thread_group::Kind::block, 0, num_threads(), thread_rank());
  }
};
RB_CG thread_block this_thread_block() { return thread_block(); }

class grid_group {
 public:
  struct arrival_token {
    unsigned long long until;
  };
  RB_CG_METHOD bool is_valid() const { return true; }
  RB_CG_METHOD arrival_token barrier_arrive() const {
    __syncthreads();
    arrival_token token = {0};
    if (details::thread_of_block() == 0) {
      __threadfence();
      token.until = details::grid_arrive();
    }
    return token;
  }
  RB_CG_METHOD void barrier_wait(arrival_token &&token) const {
    if (details::thread_of_block() == 0) {
      details::grid_wait(token.until);
      __threadfence();
    }
    __syncthreads();
  }
  RB_CG_METHOD void sync() const { barrier_wait(barrier_arrive()); }
  RB_CG_METHOD unsigned long long thread_rank() const {
    return details::block_of_grid() * details::threads_of_block() + details::thread_of_block();
  }
  RB_CG_METHOD unsigned long long size() const { return num_threads(); }
  RB_CG_METHOD unsigned long long num_threads() const { return details::blocks_of_grid() * details::threads_of_block(); }
  RB_CG_METHOD unsigned long long block_rank() const { return details::block_of_grid(); }
  RB_CG_METHOD unsigned long long num_blocks() const { return details::blocks_of_grid(); }
  RB_CG_METHOD dim3 block_index() const { return dim3(blockIdx); }
  RB_CG_METHOD dim3 group_dim() const { return dim3(gridDim); }
  RB_CG_METHOD dim3 dim_blocks() const { return dim3(gridDim); }
};
RB_CG grid_group this_grid() { return grid_group(); }

/* A cluster is one block. */
class cluster_group {
 public:
  struct arrival_token {};
  RB_CG_METHOD static void sync() { __syncthreads(); }
  RB_CG_METHOD static arrival_token barrier_arrive() { return arrival_token{}; }
  RB_CG_METHOD static void barrier_wait(arrival_token &&) { __syncthreads(); }
  RB_CG_METHOD static unsigned thread_rank() { return details::thread_of_block(); }
  RB_CG_METHOD static unsigned num_threads() { return details::threads_of_block(); }
  RB_CG_METHOD static unsigned size() { return details::threads_of_block(); }
  RB_CG_METHOD static unsigned block_rank() { return 0; }
  RB_CG_METHOD static unsigned num_blocks() { return 1; }
  RB_CG_METHOD static dim3 block_index() { return dim3(0, 0, 0); }
  RB_CG_METHOD static dim3 dim_blocks() { return dim3(1, 1, 1); }
  template <class T> RB_CG_METHOD static T *map_shared_rank(T *p, int) { return p; }
  RB_CG_METHOD static unsigned query_shared_rank(const void *) { return 0; }
};
RB_CG cluster_group this_cluster() { return cluster_group(); }

/* Threads of one warp that have come to the same place, or lanes that a partition has put together. */
class coalesced_group {
  unsigned mask_, metas_, meta_;

 public:
  RB_CG_METHOD coalesced_group(unsigned mask, unsigned metas = 1, unsigned meta = 0) : mask_(mask), metas_(metas), meta_(meta) {}
  RB_CG_METHOD unsigned mask() const { return mask_; }
  RB_CG_METHOD unsigned size() const { return __popc(mask_); }
  RB_CG_METHOD unsigned num_threads() const { return __popc(mask_); }
  RB_CG_METHOD unsigned thread_rank() const { return __popc(mask_ & details::lanes_below()); }
  RB_CG_METHOD unsigned meta_group_size() const { return metas_; }
  RB_CG_METHOD unsigned meta_group_rank() const { return meta_; }
  RB_CG_METHOD void sync() const { __syncwarp(mask_); }
  RB_CG_METHOD unsigned lane_of(unsigned rank) const { return __fns(mask_, 0, int(rank) + 1); }
  template <class T> RB_CG_METHOD T shfl(const T &v, unsigned rank) const {
    unsigned lane = lane_of(rank % size());
    return details::by_words(v, [=](unsigned w) { return __shfl_sync(mask_, w, int(lane)); });
  }
  template <class T> RB_CG_METHOD T shfl_up(const T &v, unsigned delta) const {
    unsigned rank = thread_rank(), lane = rank < delta ? details::lane() : lane_of(rank - delta);
    return details::by_words(v, [=](unsigned w) { return __shfl_sync(mask_, w, int(lane)); });
  }
  template <class T> RB_CG_METHOD T shfl_down(const T &v, unsigned delta) const {
    unsigned rank = thread_rank() + delta, lane = rank >= size() ? details::lane() : lane_of(rank);
    return details::by_words(v, [=](unsigned w) { return __shfl_sync(mask_, w, int(lane)); });
  }
  RB_CG_METHOD int any(int p) const { return __any_sync(mask_, p); }
  RB_CG_METHOD int all(int p) const { return __all_sync(mask_, p); }
  /* By ranks, not lanes. */
  RB_CG_METHOD unsigned packed(unsigned lanes) const {
    unsigned r = 0, at = 0;
    for (unsigned m = mask_; m; m &= m - 1, ++at) r |= (lanes >> (__ffs(int(m)) - 1) & 1) << at;
    return r;
  }
  RB_CG_METHOD unsigned ballot(int p) const { return packed(__ballot_sync(mask_, p)); }
  template <class T> RB_CG_METHOD unsigned match_any(T v) const { return packed(__match_any_sync(mask_, v)); }
  template <class T> RB_CG_METHOD unsigned match_all(T v, int &same) const { return packed(__match_all_sync(mask_, v, &same)); }
  RB_CG_METHOD operator thread_group() const {
    return thread_group(thread_group::Kind::lanes, mask_, size(), thread_rank());
  }
};
RB_CG coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <unsigned Size, class Parent = void> class thread_block_tile {
  static_assert(Size && Size <= 32 && !(Size & (Size - 1)), "a tile has 1, 2, 4, 8, 16 or 32 threads here");

 public:
  RB_CG_METHOD static unsigned mask() {
    unsigned all = Size == 32 ? 0xffffffffu : (1u << (Size & 31)) - 1;
    return (all << (details::lane() & ~(Size - 1))) & details::lanes_of_warp();
  }
  RB_CG_METHOD static void sync() { __syncwarp(mask()); }
  RB_CG_METHOD static constexpr unsigned size() { return Size; }
  RB_CG_METHOD static constexpr unsigned num_threads() { return Size; }
  RB_CG_METHOD static unsigned thread_rank() { return details::thread_of_block() & (Size - 1); }
  RB_CG_METHOD static unsigned meta_group_rank() { return details::thread_of_block() / Size; }
  RB_CG_METHOD static unsigned meta_group_size() { return (details::threads_of_block() + Size - 1) / Size; }
  template <class T> RB_CG_METHOD T shfl(const T &v, int rank) const {
    unsigned m = mask();
    return details::by_words(v, [=](unsigned w) { return __shfl_sync(m, w, rank, int(Size)); });
  }
  template <class T> RB_CG_METHOD T shfl_up(const T &v, unsigned delta) const {
    unsigned m = mask();
    return details::by_words(v, [=](unsigned w) { return __shfl_up_sync(m, w, delta, int(Size)); });
  }
  template <class T> RB_CG_METHOD T shfl_down(const T &v, unsigned delta) const {
    unsigned m = mask();
    return details::by_words(v, [=](unsigned w) { return __shfl_down_sync(m, w, delta, int(Size)); });
  }
  template <class T> RB_CG_METHOD T shfl_xor(const T &v, unsigned with) const {
    unsigned m = mask();
    return details::by_words(v, [=](unsigned w) { return __shfl_xor_sync(m, w, int(with), int(Size)); });
  }
  RB_CG_METHOD int any(int p) const { return __any_sync(mask(), p); }
  RB_CG_METHOD int all(int p) const { return __all_sync(mask(), p); }
  RB_CG_METHOD static unsigned of_tile(unsigned lanes) { return (lanes & mask()) >> (details::lane() & ~(Size - 1)); }
  RB_CG_METHOD unsigned ballot(int p) const { return of_tile(__ballot_sync(mask(), p)); }
  template <class T> RB_CG_METHOD unsigned match_any(T v) const { return of_tile(__match_any_sync(mask(), v)); }
  template <class T> RB_CG_METHOD unsigned match_all(T v, int &same) const { return of_tile(__match_all_sync(mask(), v, &same)); }
  RB_CG_METHOD operator thread_group() const {
    return thread_group(thread_group::Kind::lanes, mask(), Size, thread_rank());
  }
};

template <unsigned Size, class Group> RB_CG thread_block_tile<Size, Group> tiled_partition(const Group &) {
  return thread_block_tile<Size, Group>();
}
/* A tile whose size is known at run time. */
RB_CG thread_group tiled_partition(const thread_block &, unsigned size) {
  unsigned all = size >= 32 ? 0xffffffffu : (1u << size) - 1;
  unsigned mask = (all << (details::lane() & ~(size - 1))) & details::lanes_of_warp();
  return thread_group(thread_group::Kind::lanes, mask, size, details::thread_of_block() & (size - 1));
}
RB_CG coalesced_group tiled_partition(const coalesced_group &g, unsigned size) {
  unsigned rank = g.thread_rank(), mask = 0, at = 0;
  for (unsigned m = g.mask(); m; m &= m - 1, ++at)
    if (at / size == rank / size) mask |= m & (0u - m);
  return coalesced_group(mask, (g.size() + size - 1) / size, rank / size);
}
/* Threads with the same label, and with the same predicate. */
template <class Group> RB_CG coalesced_group labeled_partition(const Group &g, int label) {
  return coalesced_group(__match_any_sync(g.mask(), label));
}
template <class Group> RB_CG coalesced_group binary_partition(const Group &g, bool p) {
  unsigned set = __ballot_sync(g.mask(), p);
  return coalesced_group(p ? set : g.mask() & ~set, 2, p ? 0 : 1);
}

template <class Group> RB_CG void sync(const Group &g) { g.sync(); }
template <class Group> RB_CG auto thread_rank(const Group &g) -> decltype(g.thread_rank()) { return g.thread_rank(); }
template <class Group> RB_CG auto group_size(const Group &g) -> decltype(g.num_threads()) { return g.num_threads(); }
/* By one thread of the group. */
template <class Group, class F, class... Args> RB_CG void invoke_one(const Group &g, F &&f, Args &&...args) {
  if (g.thread_rank() == 0) f(args...);
}

} // namespace __v1
using namespace __v1;
} // namespace cooperative_groups

#endif /* RB_CUDA_COOPERATIVE_GROUPS_H */
