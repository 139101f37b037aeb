// A managed variable, which clang does not have.
#include <cuda_runtime.h>

#include "check.h"

__device__ __managed__ int counter = 40;
__managed__ double table[4] = {1, 2, 3, 4};

__global__ void add(double by) {
  atomicAdd(&counter, 1);
  table[threadIdx.x] += by;
}

int main() {
  CHECK(counter == 40 && table[2] == 3);
  counter++;
  add<<<1, 4>>>(0.5);
  OK(cudaDeviceSynchronize());
  CHECK(counter == 45);
  for (int i = 0; i < 4; i++) CHECK(table[i] == i + 1.5);
  void *at = nullptr;
  OK(cudaGetSymbolAddress(&at, counter));
  CHECK(at == &counter);
  std::printf("ok\n");
}
