// A kernel that lets the NIC count what its queue receives, for each session, and what it sends, for all.
#include "ringbell.cuh"

// `results` gets the states of sessions `a` and `b`, and of what was sent back, in `room` bytes each.
extern "C" __global__ void count_each(rb_queue q, rb_u32 a, rb_u32 b, rb_u32 kind, unsigned char *data, rb_u64 len,
                                      unsigned char *results, rb_u32 room, gpu_result *end) {
  gpu_result r = gpu_engine_attach_queue_block(q, kind, 0, false, true);
  const rb_u64 apart = r.detail;
  if (r.ok()) r = gpu_engine_attach_queue_block(q, kind, 0, true);
  const rb_u64 shared = r.detail;
  if (r.ok()) r = gpu_recv_block(q, a, data, len);
  if (r.ok()) r = gpu_send_block(q, a, data, len);
  if (r.ok()) r = gpu_recv_block(q, b, data, len);
  if (r.ok()) r = gpu_send_block(q, b, data, len);
  if (r.ok()) r = gpu_engine_result_of_block(q, apart, a, results, room);
  if (r.ok()) r = gpu_engine_result_of_block(q, apart, b, results + room, room);
  if (r.ok()) r = gpu_engine_result_block(q, shared, results + 2 * room, room);
  // A state for all was never kept there.
  if (r.ok() && gpu_engine_result_block(q, apart, results, room).status != RB_STATUS_INVALID_ARGUMENT) r.status = 255;
  if (r.ok()) r = gpu_engine_detach_block(q, apart);
  if (r.ok()) r = gpu_engine_detach_block(q, shared);
  if (threadIdx.x == 0) *end = r;
}
