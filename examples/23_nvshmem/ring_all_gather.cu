// A ring all-gather in one kernel: each block passes its stripe on to the next PE with a signal, and waits for that of the one
// before. Plain NVSHMEM: the same file compiles with NVIDIA's headers.
#include <cstdio>
#include <vector>

#include <nvshmem.h>
#include <nvshmemx.h>

constexpr int BLOCKS = 4, THREADS = 128, STRIPE = 3000; // floats of a PE that a block passes on

// `all` has a part for each PE; of part p, block b has the stripe b. `flags[b * PEs + p]` says that it is here.
__global__ void all_gather(float *all, uint64_t *flags) {
  int me = nvshmem_my_pe(), pes = nvshmem_n_pes(), next = (me + 1) % pes, b = blockIdx.x;
  for (int step = 0; step + 1 < pes; ++step) {
    int part = (me - step + pes) % pes;
    uint64_t *flag = flags + b * pes + part;
    if (step && threadIdx.x == 0) nvshmem_signal_wait_until(flag, NVSHMEM_CMP_EQ, 1);
    __syncthreads();
    float *stripe = all + (size_t(part) * BLOCKS + b) * STRIPE;
    nvshmemx_float_put_signal_nbi_block(stripe, stripe, STRIPE, flag, 1, NVSHMEM_SIGNAL_SET, next);
  }
  // The last part to come.
  if (pes > 1 && threadIdx.x == 0) nvshmem_signal_wait_until(flags + b * pes + next, NVSHMEM_CMP_EQ, 1);
  __syncthreads();
  if (threadIdx.x == 0) nvshmem_quiet();
}

int main() {
  nvshmem_init();
  int me = nvshmem_my_pe(), pes = nvshmem_n_pes();
  cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE));
  size_t part = size_t(BLOCKS) * STRIPE;
  float *all = (float *)nvshmem_malloc(pes * part * sizeof(float));
  uint64_t *flags = (uint64_t *)nvshmem_calloc(size_t(BLOCKS) * pes, sizeof(uint64_t));
  std::vector<float> mine(part), got(pes * part);
  for (size_t i = 0; i < part; ++i) mine[i] = float(me * 100000 + int(i));
  cudaMemcpy(all + me * part, mine.data(), part * sizeof(float), cudaMemcpyHostToDevice);
  nvshmem_barrier_all();

  void *args[] = {&all, &flags};
  int launched = nvshmemx_collective_launch((const void *)all_gather, dim3(BLOCKS), dim3(THREADS), args, 0, nullptr);
  cudaError_t ended = cudaDeviceSynchronize();

  size_t wrong = 0;
  cudaMemcpy(got.data(), all, got.size() * sizeof(float), cudaMemcpyDeviceToHost);
  for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != float(int(i / part) * 100000 + int(i % part));
  std::printf("PE %d of %d: %zu floats, %zu wrong, %s\n", me, pes, got.size(), wrong, cudaGetErrorString(ended));
  nvshmem_free(flags);
  nvshmem_free(all);
  nvshmem_finalize();
  return launched || ended != cudaSuccess || wrong;
}
