// One call per kernel: the smallest whole path, and what the host uses for stream-ordered calls.
#include "ringbell.cuh"

// Empty commands, one after the other; the last result goes to `out`.
extern "C" __global__ void rb_nop(rb_queue q, rb_u32 count, rb_u32 timeout_us, gpu_result *out) {
  gpu_result r{};
  for (rb_u32 i = 0; i < count && r.ok(); ++i) r = gpu_nop(q, timeout_us);
  *out = r;
}
RB_KERNEL(rb_nop)

// Sends a buffer; any block shape, one message per block.
extern "C" __global__ void rb_send(rb_queue q, rb_u32 session, const void *buf, rb_u64 len, rb_u32 timeout_us, gpu_result *out) {
  gpu_result r = gpu_send<rb::block>(q, session, buf, len, timeout_us);
  if (rb::detail::thread_index() == 0) out[blockIdx.x] = r;
}
RB_KERNEL(rb_send)

// Receives into a buffer.
extern "C" __global__ void rb_recv(rb_queue q, rb_u32 session, void *buf, rb_u64 len, rb_u32 timeout_us, gpu_result *out) {
  gpu_result r = gpu_recv<rb::block>(q, session, buf, len, timeout_us);
  if (rb::detail::thread_index() == 0) out[blockIdx.x] = r;
}
RB_KERNEL(rb_recv)
