// The first program of most CUDA courses.
#include <cuda_runtime.h>

#include <vector>

#include "check.h"

__global__ void add(const float *a, const float *b, float *c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

int main() {
  const int n = 100003;
  std::vector<float> a(n), b(n), c(n);
  for (int i = 0; i < n; i++) a[i] = i, b[i] = 2 * i;
  float *da, *db, *dc;
  size_t bytes = n * sizeof(float);
  OK(cudaMalloc(&da, bytes));
  OK(cudaMalloc(&db, bytes));
  OK(cudaMalloc(&dc, bytes));
  OK(cudaMemcpy(da, a.data(), bytes, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(db, b.data(), bytes, cudaMemcpyHostToDevice));
  add<<<(n + 255) / 256, 256>>>(da, db, dc, n);
  OK(cudaGetLastError());
  OK(cudaMemcpy(c.data(), dc, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; i++) CHECK(c[i] == 3.0f * i);
  OK(cudaFree(da));
  OK(cudaFree(db));
  OK(cudaFree(dc));

  int count = 0, device = -1, version = 0;
  cudaDeviceProp p;
  OK(cudaGetDeviceCount(&count));
  OK(cudaGetDevice(&device));
  OK(cudaGetDeviceProperties(&p, device));
  OK(cudaRuntimeGetVersion(&version));
  CHECK(count == 1 && device == 0 && version >= 12000);
  CHECK(p.warpSize == 32 && p.maxThreadsPerBlock == 1024 && p.major == 9 && p.multiProcessorCount > 0);
  CHECK(p.totalGlobalMem > 0 && p.cooperativeLaunch == 1 && p.managedMemory == 1 && p.maxThreadsDim[2] == 64);
  std::printf("ok: %s\n", p.name);
}
