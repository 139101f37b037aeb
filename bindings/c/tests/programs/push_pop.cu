// Block 0 pushes a value for each place, block 1 pops what comes: for streams.c.
#include "ringbell_collective.cuh"

extern "C" __global__ void push_pop(rb_comm comm, rb_stream_handle to_nic, rb_stream_handle from_nic, rb_u64 count, rb_u32 *popped,
                                    gpu_result *ends) {
  gpu_result r;
  if (blockIdx.x == 0) {
    gpu_pusher p(to_nic);
    r = gpu_stream_push_each<rb::block>(comm.queue, p, count,
                                        [&](rb_u64 i) { return (comm.rank + 1) * 1000003u + rb_u32(i) * 7919u; });
  } else {
    gpu_popper p(from_nic);
    r = gpu_stream_pop_each<rb::block, rb_u32>(comm.queue, p, count, [&](rb_u64 i, rb_u32 v) { popped[i] = v; });
  }
  if (threadIdx.x == 0) ends[blockIdx.x] = r;
}
