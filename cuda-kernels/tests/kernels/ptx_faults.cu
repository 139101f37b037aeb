// Kernels of PTX alone, each with a fault or a wait between threads (ptx_faults.ptx, by clang).
#include "ringbell_platform.h"

extern "C" __global__ void p_store_at(unsigned *p, unsigned long long index) {
  if (threadIdx.x == 3) p[index] = 7;
}

extern "C" __global__ void p_shared_beyond(unsigned *out, unsigned index) {
  __shared__ unsigned tile[16];
  if (threadIdx.x < 16) tile[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = tile[index];
}

extern "C" __global__ void p_divergent(unsigned *out) {
  if (threadIdx.x < 2) __syncthreads();
  else out[0] = __shfl_sync(0xffffffffu, out[1], 1);
}

extern "C" __global__ void p_trap(unsigned *out) {
  if (threadIdx.x == out[0]) __trap();
}

// A lock that every thread takes, without a yield in the source.
extern "C" __global__ void p_lock(unsigned *sum, unsigned *lock) {
  while (atomicCAS(lock, 0u, 1u) != 0) {}
  __threadfence();
  *(volatile unsigned *)sum = *(volatile unsigned *)sum + 1;
  __threadfence();
  atomicExch(lock, 0u);
}

// Every block waits for the one behind it: all must have begun.
extern "C" __global__ void p_chain(volatile unsigned *flags) {
  if (threadIdx.x) return;
  if (blockIdx.x + 1 < gridDim.x)
    while (flags[blockIdx.x + 1] == 0) {}
  __threadfence();
  flags[blockIdx.x] = 1;
}

static __device__ __noinline__ unsigned twice(unsigned *p, unsigned v) {
  __syncthreads();
  return v * 2 + p[0];
}
static __device__ unsigned counter = 5;
static __constant__ unsigned table[4] = {3, 1, 4, 1};
extern __shared__ unsigned dynamic[];
// A called function with a barrier, variables of the module, dynamic shared memory, an array of a thread.
extern "C" __global__ void p_features(unsigned *out, unsigned n) {
  unsigned own[8];
  for (unsigned i = 0; i < n; ++i) own[i & 7] = i * n;
  dynamic[threadIdx.x] = twice(out + 1023, threadIdx.x) + twice(out + 1022, table[threadIdx.x & 3]);
  __syncthreads();
  out[threadIdx.x] = dynamic[blockDim.x - 1 - threadIdx.x] + own[n & 7];
  if (threadIdx.x == 0) out[1021] = atomicAdd(&counter, 1u);
}

extern "C" __global__ void p_sleep(unsigned long long *out) {
  unsigned long long a, b;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(a));
  __nanosleep(200000);
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(b));
  out[threadIdx.x] = b - a;
}
