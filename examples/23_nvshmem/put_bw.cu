// Bandwidth of puts from one kernel, in the shape of NVSHMEM's own measurement: a block puts without waiting, `quiet` ends a
// run, and sizes double. On the emulated GPU the numbers say nothing about a GPU.
#include <cstdio>
#include <vector>

#include <nvshmem.h>
#include <nvshmemx.h>

constexpr int PUTS = 20;
constexpr size_t MOST = 256 << 10;

__global__ void bandwidth(char *to, const char *from, size_t bytes, int pe) {
  for (int i = 0; i < PUTS; ++i) nvshmemx_putmem_nbi_block(to, from, bytes, pe);
  if (threadIdx.x == 0) nvshmem_quiet();
}

int main() {
  nvshmem_init();
  int me = nvshmem_my_pe(), pes = nvshmem_n_pes();
  char *to = (char *)nvshmem_calloc(1, MOST), *from = (char *)nvshmem_malloc(MOST);
  std::vector<char> sent(MOST), got(MOST);
  for (size_t i = 0; i < MOST; ++i) sent[i] = char(i * 31 >> 3);
  cudaMemcpy(from, sent.data(), MOST, cudaMemcpyHostToDevice);
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  if (me == 0) std::printf("%10s %12s\n", "bytes", "GB/s");
  for (size_t bytes = 1 << 10; bytes <= MOST; bytes *= 4) {
    nvshmem_barrier_all();
    if (me != 0) continue;
    bandwidth<<<1, 64>>>(to, from, bytes, pes - 1); // once before, so that it is compiled and connected
    cudaEventRecord(begin);
    bandwidth<<<1, 64>>>(to, from, bytes, pes - 1);
    cudaEventRecord(end);
    if (cudaEventSynchronize(end) != cudaSuccess) return 1;
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    std::printf("%10zu %12.3f\n", bytes, double(bytes) * PUTS / (double(ms) * 1e6));
  }
  nvshmem_barrier_all();
  size_t wrong = 0;
  if (me == pes - 1) {
    cudaMemcpy(got.data(), to, MOST, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < MOST; ++i) wrong += got[i] != sent[i];
    std::printf("PE %d: %zu bytes wrong\n", me, wrong);
  }
  nvshmem_finalize();
  return wrong != 0;
}
