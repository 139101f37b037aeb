// One collective per launch: what stream-ordered host calls queue, and what `ringbell perf --gpu` times.
#include "common.cuh"
#include "ringbell_collective.cuh"

namespace {

// An operation by number, as the host knows it: each through its own call of the device API.
RB_DEVICE gpu_result by_kind(const rb_comm &c, rb_u32 kind, const void *src, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 op,
                             rb_u32 root, rb_u32 tag, const rb::collective_options &o) {
  switch (kind) {
    case RB_COLL_NOP: return gpu_comm_nop<rb::block>(c, o);
    case RB_COLL_SEND: return gpu_comm_send<rb::block>(c, src, count, dtype, root, tag, o);
    case RB_COLL_RECV: return gpu_comm_recv<rb::block>(c, dst, count, dtype, root, tag, o);
    case RB_COLL_COPY: return gpu_comm_copy<rb::block>(c, src, dst, count, dtype, o);
    case RB_COLL_COMBINE: return gpu_combine<rb::block>(c, src, dst, count, dtype, op, o);
    case RB_COLL_BROADCAST: return gpu_broadcast<rb::block>(c, src, dst, count, dtype, root, o);
    case RB_COLL_REDUCE: return gpu_reduce<rb::block>(c, src, dst, count, dtype, op, root, o);
    case RB_COLL_SCATTER: return gpu_scatter<rb::block>(c, src, dst, count, dtype, root, o);
    case RB_COLL_GATHER: return gpu_gather<rb::block>(c, src, dst, count, dtype, root, o);
    case RB_COLL_ALL_GATHER: return gpu_all_gather<rb::block>(c, src, dst, count, dtype, o);
    case RB_COLL_REDUCE_SCATTER: return gpu_reduce_scatter<rb::block>(c, src, dst, count, dtype, op, o);
    case RB_COLL_ALL_REDUCE: return gpu_all_reduce<rb::block>(c, src, dst, count, dtype, op, o);
    case RB_COLL_ALL_TO_ALL: return gpu_all_to_all<rb::block>(c, src, dst, count, dtype, o);
    case RB_COLL_BARRIER: return gpu_barrier<rb::block>(c, o);
    default: return gpu_result{RB_STATUS_INVALID_ARGUMENT, 0, 0, kind};
  }
}

} // namespace

// Runs one operation to its end.
extern "C" __global__ void rb_collective(rb_comm c, rb_u32 kind, const void *src, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 op,
                                         rb_u32 root, rb_u32 tag, rb_u32 algo, rb_u32 wire, rb_u32 timeout_us, gpu_result *out) {
  rb::collective_options o;
  o.timeout_us = timeout_us;
  o.algo = algo;
  o.wire = wire;
  gpu_result r = by_kind(c, kind, src, dst, count, dtype, op, root, tag, o);
  if (rb::detail::thread_index() == 0) *out = r;
}
RB_KERNEL(rb_collective)

// Runs the same operation again and again, and times it after `warmup` of them; `times` gets nanoseconds
// of each timed one.
extern "C" __global__ void rb_perf_collective(rb_comm c, rb_u32 kind, const void *src, void *dst, rb_u64 count, rb_u32 dtype,
                                              rb_u32 op, rb_u32 root, rb_u32 warmup, rb_u32 iters, rb_u32 algo, rb_u32 wire,
                                              rb_u32 timeout_us, rb_u64 *times, rbk::perf_result *out) {
  rb::collective_options o;
  o.timeout_us = timeout_us;
  o.algo = algo;
  o.wire = wire;
  gpu_result r{};
  rb_u64 begin = 0, last = 0;
  rb_u32 done = 0;
  for (rb_u32 i = 0; i < warmup + iters && r.ok(); ++i) {
    if (i == warmup) begin = last = rb::detail::clock_ns();
    r = by_kind(c, kind, src, dst, count, dtype, op, root, 0, o);
    if (!r.ok()) break;
    if (i < warmup) continue;
    rb_u64 now = rb::detail::clock_ns();
    if (rb::detail::thread_index() == 0) times[done] = now - last;
    last = now;
    ++done;
  }
  if (rb::detail::thread_index() == 0) {
    *out = rbk::perf_result{};
    out->status = r.status;
    out->detail = r.detail;
    out->messages = done;
    out->elapsed_ns = last - begin;
  }
}
RB_KERNEL(rb_perf_collective)
