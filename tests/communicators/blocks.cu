// Blocks that exchange messages with their twins on another rank, several at a time, over one communicator.
#include "ringbell_collective.cuh"

// Block b sends its words to block b of rank `peer` and receives its, with tag b, `rounds` times `window` messages, over its own queue where
// there are queues for blocks. A full queue is waited for. `ends` gets how each block ended, and `wrong` counts words that are not the twin's.
extern "C" __global__ void exchange(rb_comm comm, rb_u32 peer, rb_u32 rounds, rb_u32 window, rb_u32 timeout_us, rb_u32 *memory, rb_u32 *wrong,
                                    gpu_result *ends) {
  if (threadIdx.x) return;
  rb_u32 b = blockIdx.x;
  rb_comm mine = gpu_comm_queue(comm, b);
  rb_u32 *out = memory + b * 32, *in = out + 16;
  rb::collective_options options;
  options.timeout_us = timeout_us;
  gpu_result end{};
  gpu_request sent[16], got[16];
  for (rb_u32 round = 0; round < rounds && end.ok(); ++round) {
    for (rb_u32 i = 0; i < window; ++i) out[i] = (comm.rank << 24 | b << 16) + round * window + i;
    for (rb_u32 i = 0; i < window; ++i) {
      rb_u64 until = rb::detail::clock_ns() + rb_u64(timeout_us) * 1000;
      do got[i] = gpu_icomm_recv(mine, in + i, 1, RB_DTYPE_U32, peer, b, options);
      while (got[i].done && got[i].result.status == RB_STATUS_QUEUE_FULL && rb::detail::clock_ns() < until);
      do sent[i] = gpu_icomm_send(mine, out + i, 1, RB_DTYPE_U32, peer, b, options);
      while (sent[i].done && sent[i].result.status == RB_STATUS_QUEUE_FULL && rb::detail::clock_ns() < until);
    }
    for (rb_u32 i = 0; i < window; ++i) {
      gpu_result r = gpu_wait(mine, got[i]), s = gpu_wait(mine, sent[i]);
      if (end.ok()) end = r.ok() ? s : r;
      if (end.ok() && in[i] != (peer << 24 | b << 16) + round * window + i) atomicAdd(wrong, 1);
    }
  }
  ends[b] = end;
}

// Fills a queue with receives that nothing answers, and reports how the first operation beyond them ends.
extern "C" __global__ void fill(rb_comm comm, rb_u32 peer, rb_u32 depth, rb_u32 *memory, gpu_result *end) {
  if (threadIdx.x) return;
  for (rb_u32 i = 0; i < depth; ++i) gpu_icomm_recv(comm, memory, 1, RB_DTYPE_U32, peer, i);
  gpu_request beyond = gpu_icomm_nop(comm);
  *end = beyond.result;
}
