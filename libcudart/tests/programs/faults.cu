// A fault for each name, which only checks find: 100 integers share no page with others then.
#include <cuda_runtime.h>

#include <cstring>

#include "check.h"

constexpr int N = 100;

__global__ void fill(int *to, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) to[i] = i; // beyond
}

__global__ void fill_freed(int *to) {
  to[threadIdx.x] = 1; // freed
}

__global__ void add(const int *from, int *to) {
  to[threadIdx.x] += from[threadIdx.x]; // unwritten
}

__global__ void fill_when_told(int *to, const volatile int *told) {
  while (!*told) {}
  to[threadIdx.x] = 2; // copied
}

int main(int, char **argv) {
  const char *fault = argv[1];
  int *a, *b, host[N] = {};
  OK(cudaMalloc(&a, sizeof host));
  OK(cudaMalloc(&b, sizeof host));
  OK(cudaMemcpy(b, host, sizeof host, cudaMemcpyHostToDevice));
  if (!strcmp(fault, "beyond")) fill<<<1, 128>>>(a, N + 1);
  if (!strcmp(fault, "freed")) {
    OK(cudaFree(a));
    fill_freed<<<1, 32>>>(a);
  }
  if (!strcmp(fault, "unwritten")) add<<<1, 32>>>(a, b);
  if (!strcmp(fault, "copied")) {
    // A copy in another stream, which nothing orders behind the kernel's stores.
    cudaStream_t one, two;
    int *told;
    OK(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&two, cudaStreamNonBlocking));
    OK(cudaHostAlloc(&told, sizeof *told, cudaHostAllocMapped));
    *told = 0;
    fill_when_told<<<1, 32, 0, one>>>(a, told);
    OK(cudaMemcpyAsync(a, b, sizeof host, cudaMemcpyDeviceToDevice, two));
    OK(cudaStreamSynchronize(two));
    *(volatile int *)told = 1;
  }
  OK(cudaDeviceSynchronize());
  std::printf("no fault was found\n");
}
