// What the machine itself takes, without a NIC: the floor under every latency that a kernel can see.
#include "common.cuh"

// A word to the host and its answer: `warmup + iterations` round trips over two lines of the host's memory, which
// a thread there answers. Nothing else is ordered by these words, so nothing waits for anything. `ns` gets the time of each timed one.
extern "C" __global__ void rb_floor_flag(const rb_u64 *from_host, rb_u64 *to_host, rb_u32 warmup, rb_u32 iterations, rb_u32 timeout_us,
                                         rb_u64 *ns, rbk::perf_result *out) {
  rb_u64 begin = rb::detail::clock_ns(), last = begin, total = rb_u64(warmup) + iterations, i = 0, wrong = 0;
  rb_u64 limit = rb_u64(timeout_us) * 1000;
  bool in_time = true;
  for (; i < total && in_time; ++i) {
    if (i == warmup) begin = last = rb::detail::clock_ns();
    rb::detail::store_relaxed(to_host, i + 1);
    rb_u64 seen;
    rb_u32 turns = 0;
    while ((seen = rb::detail::load_relaxed(from_host)) <= i && in_time) {
      if (++turns % 4096) continue;
      __nanosleep(100); // also lets the host's thread run where it shares the core
      in_time = rb::detail::clock_ns() - last < limit;
    }
    wrong += in_time && seen != i + 1;
    if (i < warmup) continue;
    rb_u64 now = rb::detail::clock_ns();
    ns[i - warmup] = now - last;
    last = now;
  }
  rb_u32 status = in_time ? RB_STATUS_OK : RB_STATUS_TIMED_OUT;
  *out = rbk::perf_result{status, 0, 0, i, 0, wrong, last - begin};
}
