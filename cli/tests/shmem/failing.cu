// One operation that cannot be, by PE 0; the program ends with its message.
#include <stdio.h>
#include <string.h>

#include <nvshmem.h>

__global__ void fail(char what, char *heap, char *own) {
  switch (what) {
  case 'p': nvshmem_putmem(heap, heap, 64, 7); break;               // no such PE
  case 'h': nvshmem_putmem(heap + (1 << 30), heap, 64, 1); break;   // no symmetric memory
  case 's': nvshmem_putmem(heap, own, 64, 1); break;                // a source that is not registered
  case 'a': nvshmem_int_wait_until_any((int *)heap, 4, nullptr, NVSHMEM_CMP_EQ, 5); break; // no PE puts
  case 'i': nvshmem_uint_atomic_inc((unsigned *)(heap + 2), 1); break; // an address that is not aligned
  case 't': nvshmem_team_sync(9); break;                            // no such team
  default: nvshmem_signal_wait_until((uint64_t *)heap, NVSHMEM_CMP_EQ, 5); break; // nobody signals
  }
}

int main(int, char **argv) {
  nvshmem_init();
  char *heap = (char *)nvshmem_calloc(1, 64), *own = nullptr;
  cudaMalloc((void **)&own, 64);
  if (nvshmem_my_pe() == 0) {
    fail<<<1, 1>>>(argv[1][0], heap, own);
    if (cudaDeviceSynchronize() != cudaSuccess) return 3;
  }
  nvshmem_barrier_all();
  nvshmem_finalize();
}
