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

// As it, for graphs: a failure stays until the host has read it and clears `out`, however often this is replayed meanwhile.
extern "C" __global__ void rb_collective_replayed(rb_comm c, rb_u32 kind, const void *src, void *dst, rb_u64 count, rb_u32 dtype,
                                                  rb_u32 op, rb_u32 root, rb_u32 tag, rb_u32 algo, rb_u32 wire, rb_u32 timeout_us,
                                                  gpu_result *out) {
  rb::collective_options o;
  o.timeout_us = timeout_us;
  o.algo = algo;
  o.wire = wire;
  gpu_result r = by_kind(c, kind, src, dst, count, dtype, op, root, tag, o);
  if (rb::detail::thread_index() == 0 && out->ok()) *out = r;
}

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

// Pushes what lies at `from`, in elements of T.
template <class T>
RB_DEVICE gpu_result push_all(const rb_comm &c, gpu_pusher &p, const void *from, rb_u64 count, rb_u32 timeout_us) {
  const T *x = static_cast<const T *>(from);
  return gpu_stream_push_each<rb::block>(c.queue, p, count, [&](rb_u64 i) { return x[i]; }, timeout_us);
}

// Pops to `to`.
template <class T>
RB_DEVICE gpu_result pop_all(const rb_comm &c, gpu_popper &p, void *to, rb_u64 count, rb_u32 timeout_us) {
  T *x = static_cast<T *>(to);
  return gpu_stream_pop_each<rb::block, T>(c.queue, p, count, [&](rb_u64 i, T v) { x[i] = v; }, timeout_us);
}

// As rb_perf_collective, with kernels' streams for operands (ACCL+, Listing 2): block 0 posts, and pushes the
// elements at `src` as if it computed them; block 1 pops to `dst`. `push` and `pop` say whether this rank has
// such an operand. STREAM_SEND sends to the next rank and receives from the one before. `popped` says how
// block 1 ended; the time of an operation is that from post to completion.
extern "C" __global__ void rb_perf_streamed(rb_comm c, rb_u32 kind, rb_stream_handle to_nic, rb_stream_handle from_nic, rb_u32 push, rb_u32 pop,
                                            const void *src, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 bytes, rb_u32 op,
                                            rb_u32 root, rb_u32 warmup, rb_u32 iters, rb_u32 timeout_us, rb_u64 *times,
                                            rbk::perf_result *out, gpu_result *popped) {
  gpu_result r{};
  if (blockIdx.x == 1) {
    gpu_popper p(from_nic);
    for (rb_u32 i = 0; pop && i < warmup + iters && r.ok(); ++i) {
      switch (bytes) {
      case 1: r = pop_all<unsigned char>(c, p, dst, count, timeout_us); break;
      case 2: r = pop_all<unsigned short>(c, p, dst, count, timeout_us); break;
      case 4: r = pop_all<rb_u32>(c, p, dst, count, timeout_us); break;
      default: r = pop_all<rb_u64>(c, p, dst, count, timeout_us);
      }
    }
    if (rb::detail::thread_index() == 0) *popped = r;
    return;
  }
  rb::collective_options o;
  o.timeout_us = timeout_us;
  const rb_u64 streamed = RB_PUT(COLL_STREAMED, 1);
  const rb_u64 from = push ? RB_PUT(COLL_FROM_STREAM, 1) : 0, to = pop ? RB_PUT(COLL_TO_STREAM, 1) : 0;
  void *in = reinterpret_cast<void *>(push ? to_nic.word : 0), *result = reinterpret_cast<void *>(pop ? from_nic.word : 0);
  gpu_pusher p(to_nic);
  rb_u64 begin = 0, last = 0;
  rb_u32 done = 0;
  for (rb_u32 i = 0; i < warmup + iters && r.ok(); ++i) {
    if (i == warmup) begin = last = rb::detail::clock_ns();
    gpu_request requests[2];
    rb_u32 posted = 1;
    if (kind == RB_COLL_STREAM_SEND) {
      rb_u32 before = (c.rank + c.size - 1) % c.size, next = (c.rank + 1) % c.size;
      requests[0] = rb::detail::post_collective<rb::block>(
          c, {RB_COLL_STREAM_RECV, nullptr, result, count, dtype, op, before, 0, streamed | to}, o);
      requests[posted++] =
          rb::detail::post_collective<rb::block>(c, {kind, in, nullptr, count, dtype, op, next, 0, streamed | from}, o);
    } else {
      requests[0] =
          rb::detail::post_collective<rb::block>(c, {kind, in, result, count, dtype, op, root, 0, streamed | from | to}, o);
    }
    if (push) {
      switch (bytes) {
      case 1: r = push_all<unsigned char>(c, p, src, count, timeout_us); break;
      case 2: r = push_all<unsigned short>(c, p, src, count, timeout_us); break;
      case 4: r = push_all<rb_u32>(c, p, src, count, timeout_us); break;
      default: r = push_all<rb_u64>(c, p, src, count, timeout_us);
      }
    }
    for (rb_u32 k = 0; k < posted; ++k) {
      gpu_result end = gpu_wait<rb::block>(c, requests[k]);
      if (!end.ok()) r = end;
    }
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
