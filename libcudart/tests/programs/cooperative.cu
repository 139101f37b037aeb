// A grid whose blocks wait for each other, its occupancy, attributes of kernels, launches by a configuration.
#include <cuda_runtime.h>

#include "check.h"

// All blocks meet here; a counter for each meeting.
__device__ void meet(unsigned *counter) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(counter, 1);
    while (*static_cast<volatile unsigned *>(counter) < gridDim.x) {
    }
    __threadfence();
  }
  __syncthreads();
}

// Each round reads what the next block has written in the one before.
__global__ void rotate(int *values, int *next, unsigned *counters, int rounds) {
  for (int r = 0; r < rounds; r++) {
    if (threadIdx.x == 0) next[blockIdx.x] = values[(blockIdx.x + 1) % gridDim.x];
    meet(&counters[2 * r]);
    if (threadIdx.x == 0) values[blockIdx.x] = next[blockIdx.x];
    meet(&counters[2 * r + 1]);
  }
}

__global__ void __launch_bounds__(128) large(int *out) {
  extern __shared__ int room[];
  for (int i = threadIdx.x; i < 25000; i += blockDim.x) room[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) *out = room[24999];
}

int main() {
  int blocks = 0, processors = 0;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, rotate, 64, 0));
  OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  int grid = blocks * processors, rounds = 5;
  CHECK(grid > 64);
  int *values, *next;
  unsigned *counters;
  OK(cudaMallocManaged(&values, grid * sizeof(int)));
  OK(cudaMallocManaged(&next, grid * sizeof(int)));
  OK(cudaMallocManaged(&counters, 2 * rounds * sizeof(unsigned)));
  OK(cudaMemset(counters, 0, 2 * rounds * sizeof(unsigned)));
  for (int i = 0; i < grid; i++) values[i] = i;
  void *args[] = {&values, &next, &counters, &rounds};
  OK(cudaLaunchCooperativeKernel(rotate, dim3(grid), dim3(64), args));
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < grid; i++) CHECK(values[i] == (i + rounds) % grid);
  CHECK(cudaLaunchCooperativeKernel(rotate, dim3(grid + 1), dim3(64), args) == cudaErrorCooperativeLaunchTooLarge);
  CHECK(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge && cudaGetLastError() == cudaSuccess);

  cudaFuncAttributes a;
  OK(cudaFuncGetAttributes(&a, large));
  CHECK(a.maxThreadsPerBlock == 128 && a.maxDynamicSharedSizeBytes == 48 << 10 && a.sharedSizeBytes == 0);
  int suggested = 0, threads = 0;
  OK(cudaOccupancyMaxPotentialBlockSize(&suggested, &threads, large));
  CHECK(threads == 128 && suggested == 16 * processors);
  int *out;
  OK(cudaMallocManaged(&out, sizeof(int)));
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(1), c.blockDim = dim3(128), c.dynamicSmemBytes = 100000;
  CHECK(cudaLaunchKernelEx(&c, large, out) == cudaErrorInvalidValue);
  OK(cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
  cudaLaunchAttribute together = {};
  together.id = cudaLaunchAttributeCooperative, together.val.cooperative = 1;
  c.attrs = &together, c.numAttrs = 1;
  OK(cudaLaunchKernelEx(&c, large, out));
  OK(cudaDeviceSynchronize());
  CHECK(*out == 24999);
  std::printf("ok\n");
}
