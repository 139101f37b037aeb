// CUB and libcu++ as they ship (Apache-2.0; pip download cuda-cccl), compiled by clang with the headers of include/cuda.
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/std/array>
#include <cuda/std/limits>

extern "C" __global__ void cub_sort(unsigned *keys) {
  using Sort = cub::BlockRadixSort<unsigned, 128, 4>;
  __shared__ typename Sort::TempStorage room;
  unsigned own[4];
  for (int i = 0; i < 4; ++i) own[i] = keys[threadIdx.x * 4 + i];
  Sort(room).Sort(own);
  for (int i = 0; i < 4; ++i) keys[threadIdx.x * 4 + i] = own[i];
}

extern "C" __global__ void cub_reduce_and_scan(const int *in, int *out) {
  using Reduce = cub::BlockReduce<int, 128>;
  using Scan = cub::BlockScan<int, 128>;
  using Warp = cub::WarpReduce<int>;
  __shared__ typename Reduce::TempStorage reduce;
  __shared__ typename Scan::TempStorage scan;
  __shared__ typename Warp::TempStorage warps[4];
  int v = in[threadIdx.x], before;
  int sum = Reduce(reduce).Sum(v);
  Scan(scan).ExclusiveSum(v, before);
  int most = Warp(warps[threadIdx.x / 32]).Reduce(v, [](int a, int b) { return a > b ? a : b; });
  out[threadIdx.x] = before;
  if (threadIdx.x == 0) out[128] = sum;
  if (threadIdx.x % 32 == 0) out[129 + threadIdx.x / 32] = most;
}

// A ticket lock by atomics of the device's scope, and a barrier object in shared memory. clang initialises no variable in
// shared memory, so the barrier's storage is raw.
extern "C" __global__ void libcudacxx(unsigned *words, int *values) {
  cuda::atomic_ref<unsigned, cuda::thread_scope_device> next(words[0]), serving(words[1]);
  if (threadIdx.x == 0) {
    unsigned mine = next.fetch_add(1, cuda::memory_order_relaxed);
    while (serving.load(cuda::memory_order_acquire) != mine) {
    }
    words[2] += 1;
    serving.store(mine + 1, cuda::memory_order_release);
  }
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ __align__(alignof(Barrier)) unsigned char storage[sizeof(Barrier)];
  Barrier *barrier = reinterpret_cast<Barrier *>(storage);
  if (threadIdx.x == 0) init(barrier, blockDim.x);
  __syncthreads();
  int *own = values + blockIdx.x * blockDim.x;
  own[threadIdx.x] += 1;
  barrier->arrive_and_wait();
  int right = own[(threadIdx.x + 1) % blockDim.x];
  auto token = barrier->arrive();
  barrier->wait(cuda::std::move(token));
  own[threadIdx.x] = right * 10 + cuda::std::array<int, 3>{4, 5, 6}[threadIdx.x % 3] * (cuda::std::numeric_limits<int>::max() > 0);
}
