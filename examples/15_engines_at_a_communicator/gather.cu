// A kernel that lets the NIC count while a collective runs: it puts an engine at the results of its communicator,
// gathers every rank's users, and asks for the engine's result. No thread of it looks at the data.
#include "ringbell_collective.cuh"

// `all` has room for every rank's `count` users, `result` for `room` bytes; `end` gets what failed first, or the length of
// the result.
extern "C" __global__ void gather_and_count(rb_comm comm, rb_u32 kind, rb_u64 precision, const rb_u32 *users, rb_u32 *all,
                                            rb_u64 count, unsigned char *result, rb_u32 room, gpu_result *end) {
  // Operations that are posted from here on are seen.
  gpu_result r = gpu_engine_attach_comm<rb::block>(comm, rb::engine_output, kind, precision);
  const rb_u64 engine = r.detail;
  if (r.ok()) {
    r = gpu_all_gather<rb::block>(comm, users, all, count);
    // It completes when its result has passed the engine.
    if (r.ok()) r = gpu_engine_result_block(comm.queue, engine, result, room);
    gpu_engine_detach_block(comm.queue, engine);
  }
  if (threadIdx.x == 0) *end = r;
}
