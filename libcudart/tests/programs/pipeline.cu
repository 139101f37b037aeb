// cuda::pipeline and cuda::barrier with memcpy_async: tiles are copied to shared memory while others are summed.
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cooperative_groups.h>

#include <vector>

#include "check.h"

constexpr int THREADS = 64, STAGES = 2;
// clang gives no variable in shared memory a constructor, so that their storage is raw.
using State = cuda::pipeline_shared_state<cuda::thread_scope_block, STAGES>;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

// Each block sums `tiles` tiles of THREADS words of its own.
__global__ void staged(const int *in, int *out, int tiles) {
  __shared__ int room[STAGES][THREADS];
  alignas(State) __shared__ char state[sizeof(State)];
  auto block = cooperative_groups::this_thread_block();
  auto pipe = cuda::make_pipeline(block, reinterpret_cast<State *>(state));
  const int *own = in + static_cast<size_t>(blockIdx.x) * tiles * THREADS;
  int sum = 0, next = 0;
  for (int tile = 0; tile < tiles; tile++) {
    for (; next < tiles && next < tile + STAGES; next++) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, room[next % STAGES], own + next * THREADS, sizeof(int) * THREADS, pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    // Of another thread's copy too.
    sum += room[tile % STAGES][threadIdx.x] + 3 * room[tile % STAGES][(threadIdx.x + 1) % THREADS];
    pipe.consumer_release();
  }
  atomicAdd(&out[blockIdx.x], sum);
}

// One tile by a barrier that counts the copies' bytes as arrivals.
__global__ void by_barrier(const int *in, int *out) {
  __shared__ int room[THREADS];
  alignas(Barrier) __shared__ char storage[sizeof(Barrier)];
  Barrier &barrier = *reinterpret_cast<Barrier *>(storage);
  auto block = cooperative_groups::this_thread_block();
  if (threadIdx.x == 0) init(&barrier, THREADS);
  __syncthreads();
  cuda::memcpy_async(block, room, in + blockIdx.x * THREADS, sizeof(int) * THREADS, barrier);
  barrier.arrive_and_wait();
  out[blockIdx.x * THREADS + threadIdx.x] = room[THREADS - 1 - threadIdx.x];
}

int main() {
  const int blocks = 5, tiles = 7, n = blocks * tiles * THREADS;
  int *in, *out;
  OK(cudaMallocManaged(&in, n * sizeof(int)));
  OK(cudaMallocManaged(&out, n * sizeof(int)));
  for (int i = 0; i < n; i++) in[i] = i % 1000, out[i] = 0;
  staged<<<blocks, THREADS>>>(in, out, tiles);
  OK(cudaDeviceSynchronize());
  for (int b = 0; b < blocks; b++) {
    int want = 0;
    for (int i = 0; i < tiles * THREADS; i++) want += 4 * in[b * tiles * THREADS + i];
    CHECK(out[b] == want);
  }
  by_barrier<<<blocks, THREADS>>>(in, out);
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < blocks * THREADS; i++) CHECK(out[i] == in[i / THREADS * THREADS + THREADS - 1 - i % THREADS]);
  std::printf("ok\n");
}
