// What is refused, and a fault that no call recovers from.
#include <cuda_runtime.h>

#include <cstring>

#include "check.h"

__global__ void nothing() {}
__global__ void store(int *at) { *at = 1; }

static void host_function_calls_cuda(void *result) {
  void *p;
  *static_cast<cudaError_t *>(result) = cudaMalloc(&p, 16);
}

int main() {
  nothing<<<0, 32>>>();
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
  nothing<<<1, 2000>>>();
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
  nothing<<<1, 32, 60000>>>();
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  void *p;
  CHECK(cudaMalloc(&p, size_t(1) << 40) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(static_cast<void **>(nullptr), 16) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(&p, &p, 8, static_cast<cudaMemcpyKind>(9)) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaSetDevice(3) == cudaErrorInvalidDevice);
  CHECK(cudaLaunchKernel(reinterpret_cast<const void *>(&p), dim3(1), dim3(1), nullptr, 0, 0) ==
        cudaErrorInvalidDeviceFunction);
  cudaGetLastError();
  cudaError_t inside = cudaSuccess;
  OK(cudaLaunchHostFunc(0, host_function_calls_cuda, &inside));
  OK(cudaDeviceSynchronize());
  CHECK(inside == cudaErrorNotPermitted);
  nothing<<<1, 1>>>();
  OK(cudaDeviceSynchronize());
  CHECK(!std::strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress"));
  CHECK(std::strlen(cudaGetErrorString(cudaErrorNotReady)) > 0);

  store<<<1, 1>>>(reinterpret_cast<int *>(64));
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(cudaMalloc(&p, 16) == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress && cudaGetLastError() == cudaErrorIllegalAddress);
  std::printf("ok\n");
}
