// The device header as PTX (ptx_queue.ptx, by clang): a block sends and receives.
#include "ringbell.cuh"

// Sends `bytes` bytes on session 9, which is looped back, and receives them behind.
extern "C" __global__ void p_loop_back(rb_queue q, unsigned char *data, rb_u64 bytes, gpu_result *out) {
  out[2 * threadIdx.x] = gpu_send_block(q, 9, data, bytes);
  out[2 * threadIdx.x + 1] = gpu_recv_block(q, 9, data + bytes, bytes);
}
