// A program of one PE: nothing has started it.
#include <stdio.h>

#include <nvshmem.h>

__global__ void add(long *sum) {
  nvshmem_long_atomic_add(sum, 40, nvshmem_my_pe());
  nvshmem_long_atomic_inc(sum, nvshmem_my_pe());
  nvshmem_barrier_all();
}

int main() {
  nvshmem_init();
  long *sum = (long *)nvshmem_calloc(1, sizeof(long));
  add<<<1, 1>>>(sum);
  long got = 0;
  cudaMemcpy(&got, sum, sizeof got, cudaMemcpyDeviceToHost);
  printf("PE %d of %d: %ld\n", nvshmem_my_pe(), nvshmem_n_pes(), got);
  nvshmem_finalize();
}
