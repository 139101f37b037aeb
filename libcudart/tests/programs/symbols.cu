// Variables of the device, constants, templates, shared memory of any size, functions of the device.
#include <cuda_runtime.h>

#include "check.h"

__constant__ float factors[4];
__device__ int counter = 5;
__device__ double table[8];

template <class T>
__device__ T twice(T v) {
  return v + v;
}

template <class T, int N>
__global__ void scale(T *out, int n) {
  extern __shared__ int room[];
  int i = threadIdx.x;
  room[i] = i;
  __syncthreads();
  // Another thread's word.
  if (i < n) out[i] = twice(static_cast<T>(room[n - 1 - i])) * static_cast<T>(factors[N]);
  if (i == 0) atomicAdd(&counter, N);
}

__global__ void fill_table() { table[threadIdx.x] = threadIdx.x * 0.5; }

int main() {
  float f[4] = {1, 2, 3, 4};
  OK(cudaMemcpyToSymbol(factors, f, sizeof f));
  f[0] = 9;
  OK(cudaMemcpyToSymbol(factors, f, sizeof(float), 3 * sizeof(float)));
  const int n = 64;
  float *out;
  int *ints;
  OK(cudaMalloc(&out, n * sizeof(float)));
  OK(cudaMalloc(&ints, n * sizeof(int)));
  scale<float, 2><<<1, n, n * sizeof(int)>>>(out, n);
  scale<int, 3><<<1, n, n * sizeof(int)>>>(ints, n);
  OK(cudaGetLastError());
  float host[n];
  int host_ints[n];
  OK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy(host_ints, ints, sizeof host_ints, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; i++) CHECK(host[i] == 2.0f * (n - 1 - i) * 3 && host_ints[i] == 2 * (n - 1 - i) * 9);
  int count = 0;
  OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
  CHECK(count == 5 + 2 + 3);

  fill_table<<<1, 8>>>();
  size_t bytes = 0;
  void *address = nullptr;
  double last = 0;
  OK(cudaGetSymbolSize(&bytes, table));
  OK(cudaGetSymbolAddress(&address, table));
  OK(cudaMemcpy(&last, static_cast<double *>(address) + 7, sizeof last, cudaMemcpyDeviceToHost));
  CHECK(bytes == sizeof table && last == 3.5);
  CHECK(cudaMemcpyFromSymbol(&last, table, sizeof last, sizeof table) == cudaErrorInvalidValue);
  CHECK(cudaGetSymbolAddress(&address, host) == cudaErrorInvalidSymbol);
  std::printf("ok\n");
}
