// A token goes around a ring of ranks by messages, and then all ranks add up what they have: the same kernel on
// GPUs of a job and in the simulator (`ringbell sim run`).
//
// A kernel that finds something wrong ends with an assertion.
#include <assert.h>
#include <stdio.h>

#include "ringbell_collective.cuh"

constexpr rb_u32 TIMEOUT_US = 10 * 1000 * 1000;

// Elements of a rank.
static __device__ float expected(rb_u32 rank, rb_u64 i) { return float((rank * 5 + i * 7) % 13); }

// The buffer has the rank's own elements, those of the rank before, and the sums.
extern "C" __global__ void ring(rb_comm comm, void *buffer, rb_u64 bytes) {
  rb_u64 count = bytes / sizeof(float) / 3;
  float *mine = static_cast<float *>(buffer), *come = mine + count, *sums = come + count;
  rb_u32 next = (comm.rank + 1) % comm.size, before = (comm.rank + comm.size - 1) % comm.size;
  for (rb_u64 i = threadIdx.x; i < count; i += blockDim.x) mine[i] = expected(comm.rank, i);
  // These calls begin with a barrier of the block.
  gpu_request receive = gpu_icomm_recv_block(comm, come, count, RB_DTYPE_F32, before, 1);
  rb::collective_options options;
  options.timeout_us = TIMEOUT_US;
  gpu_result sent = gpu_comm_send_block(comm, mine, count, RB_DTYPE_F32, next, 1, options);
  gpu_result received = gpu_wait_block(comm.queue, receive);
  assert(sent.ok() && received.ok() && received.bytes == count * sizeof(float));
  for (rb_u64 i = threadIdx.x; i < count; i += blockDim.x) assert(come[i] == expected(before, i));
  gpu_result summed = gpu_all_reduce_block(comm, mine, sums, count, RB_DTYPE_F32, RB_REDOP_SUM, options);
  assert(summed.ok());
  for (rb_u64 i = threadIdx.x; i < count; i += blockDim.x) {
    float sum = 0;
    for (rb_u32 rank = 0; rank < comm.size; ++rank) sum += expected(rank, i);
    assert(sums[i] == sum);
  }
  __syncthreads();
  if (threadIdx.x == 0) printf("%llu values are right\n", (unsigned long long)count);
}

// Rank 0 waits for a message that no rank sends, and finds it missing when its time-out is over.
extern "C" __global__ void lost(rb_comm comm, void *buffer, rb_u64 bytes) {
  if (comm.rank != 0) return;
  rb::collective_options options;
  options.timeout_us = TIMEOUT_US;
  gpu_result received = gpu_comm_recv(comm, buffer, bytes, RB_DTYPE_U8, 1, 7, options);
  assert(received.ok());
}

// Rank 0 waits for a word that nobody writes, and reads no clock.
extern "C" __global__ void hangs(rb_comm comm, void *buffer, rb_u64 bytes) {
  volatile rb_u64 *word = static_cast<rb_u64 *>(buffer);
  if (comm.rank != 0) return;
  *word = bytes;
  while (*word == bytes) {}
}

// Ranks add up a hundred times, unless one of them dies (`--kill`): each of the others says whom its NIC names.
extern "C" __global__ void outlives(rb_comm comm, void *buffer, rb_u64 bytes) {
  rb_u64 count = bytes / sizeof(float) / 2;
  float *mine = static_cast<float *>(buffer), *sums = mine + count;
  rb::collective_options options;
  options.timeout_us = TIMEOUT_US;
  for (rb_u32 round = 0; round < 100; ++round) {
    gpu_result summed = gpu_all_reduce_block(comm, mine, sums, count, RB_DTYPE_F32, RB_REDOP_SUM, options);
    if (summed.ok()) continue;
    assert(summed.status == RB_STATUS_PEER_FAILED);
    if (threadIdx.x == 0) printf("rank %llu died before sum %u\n", (unsigned long long)summed.detail, round);
    return;
  }
  if (threadIdx.x == 0) printf("all live\n");
}

// Tells in which order warps run.
extern "C" __global__ void order(rb_comm comm, void *buffer, rb_u64) {
  if (threadIdx.x % 32 == 0) printf("block %u warp %u\n", blockIdx.x, threadIdx.x / 32);
}
