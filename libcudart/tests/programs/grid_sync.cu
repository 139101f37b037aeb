// Cooperative groups: blocks of a grid that meet, tiles of a warp, a reduction.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include "check.h"

namespace cg = cooperative_groups;

// Each round reads what the next block has written in the one before.
__global__ void rotate(int *values, int *next, int rounds) {
  cg::grid_group grid = cg::this_grid();
  for (int r = 0; r < rounds; r++) {
    if (threadIdx.x == 0) next[blockIdx.x] = values[(blockIdx.x + 1) % gridDim.x];
    grid.sync();
    if (threadIdx.x == 0) values[blockIdx.x] = next[blockIdx.x];
    grid.sync();
  }
}

__global__ void sums(const int *in, int *out) {
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  int total = cg::reduce(tile, in[threadIdx.x], cg::plus<int>());
  if (tile.thread_rank() == 0) out[threadIdx.x / 16] = total;
}

int main() {
  int grid = 200, rounds = 3, *values, *next;
  OK(cudaMallocManaged(&values, grid * sizeof(int)));
  OK(cudaMallocManaged(&next, grid * sizeof(int)));
  for (int i = 0; i < grid; i++) values[i] = i;
  void *args[] = {&values, &next, &rounds};
  OK(cudaLaunchCooperativeKernel(rotate, dim3(grid), dim3(64), args));
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < grid; i++) CHECK(values[i] == (i + rounds) % grid);
  for (int i = 0; i < 64; i++) values[i] = i;
  sums<<<1, 64>>>(values, next);
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < 4; i++) CHECK(next[i] == 16 * 16 * i + 120);
  std::printf("ok\n");
}
