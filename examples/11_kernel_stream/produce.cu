// One kernel, two blocks: the first computes values and pushes each as it is made, the second pops the
// sums of all ranks. No array holds either (ACCL+, Listing 2).
#include "ringbell_collective.cuh"

// The value that a rank computes for place `i`; main.rs has the same.
RB_DEVICE float value(rb_u32 rank, rb_u64 i) {
  rb_u32 x = (rb_u32(i) + 1) * 2654435761u ^ (rank + 1) * 0x9e3779b9u;
  return float(x >> 8) * 0.0009765625f - 8192.0f;
}

RB_DEVICE rb_u32 bits(float v) {
  union {
    float f;
    rb_u32 u;
  } both{v};
  return both.u;
}

// `digest` gets the sum of (i + 1) times the bits of sum i; `ends` how the operation, pushing and popping ended.
extern "C" __global__ void produce_and_consume(rb_comm comm, rb_stream_handle to_nic, rb_stream_handle from_nic, rb_u64 count,
                                               unsigned long long *digest, gpu_result *ends) {
  if (blockIdx.x == 0) {
    // The command, without a buffer; the values; and the end of the command.
    gpu_request sum = gpu_istream_all_reduce<rb::block>(comm, to_nic, from_nic, count);
    gpu_pusher out(to_nic);
    const gpu_result pushed =
        gpu_stream_push_each<rb::block>(comm.queue, out, count, [&](rb_u64 i) { return value(comm.rank, i); });
    const gpu_result end = gpu_wait<rb::block>(comm, sum);
    if (threadIdx.x == 0) ends[0] = end, ends[1] = pushed;
  } else {
    gpu_popper in(from_nic);
    unsigned long long mine = 0;
    const gpu_result popped = gpu_stream_pop_each<rb::block, float>(
        comm.queue, in, count, [&](rb_u64 i, float v) { mine += (i + 1) * bits(v); });
    atomicAdd(digest, mine);
    if (threadIdx.x == 0) ends[2] = popped;
  }
}
