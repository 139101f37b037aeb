// Measuring kernels of one-sided operations: latency and bandwidth of puts and gets, latency of atomics.
//
// As in perf.cu: one lane's, with its queue for itself, and each verifies its data. In the ping-pong both sides put with a
// signal; the other kernels work alone, and their peer runs none.
#include "common.cuh"
#include "ringbell_one_sided.cuh"

using rbk::message;
using rbk::perf_result;

namespace {

RB_DEVICE perf_result one_sided_failed(const gpu_result &r, rb_u64 messages, rb_u64 wrong) {
  return perf_result{r.status, 0, r.detail, messages, 0, wrong, 0};
}

} // namespace

// Puts with signals there and back: role 0 begins, and writes the round-trip time of each timed iteration to `round_trip_ns`.
// `mine` is this side's region: word 0 counts signals, messages come to `mine + 64`. `peer` and `rkey` are the same there.
extern "C" __global__ void rb_perf_put_pingpong(rb_queue q, rb_u32 session, rb_u32 role, unsigned char *sbuf, unsigned char *mine,
                                                rb_u64 peer, rb_u32 rkey, rb_u64 len, rb_u32 warmup, rb_u32 iterations,
                                                rb_u32 full, rb_u32 timeout_us, rb_u64 *round_trip_ns, perf_result *out) {
  q = gpu_own_queue(q);
  gpu_remote there = gpu_remote_of(session, peer + 64, rkey);
  message sent{sbuf, len}, got{mine + 64, len};
  rb_u64 my_seed = role + 1, their_seed = 2 - role, wrong = 0, begin = 0, total = rb_u64(warmup) + iterations, i = 0;
  sent.fill(my_seed, 0, full);
  gpu_result r{};
  for (; i < total && r.ok(); ++i) {
    if (i == warmup) begin = rb::detail::clock_ns();
    rb_u64 t0 = rb::detail::clock_ns();
    if (role) {
      r = gpu_wait_signal(q, mine, i + 1, timeout_us);
      if (!r.ok()) break;
      wrong += full ? got.wrong_words(their_seed, i, true) : got.wrong_ends(their_seed, i);
    }
    full ? sent.fill(my_seed, i, true) : sent.stamp(my_seed, i);
    gpu_request put = gpu_iput_signal(q, there, sbuf, len, 0, 1, false, timeout_us);
    if (!role) {
      r = gpu_wait_signal(q, mine, i + 1, timeout_us);
      rb_u64 t1 = rb::detail::clock_ns();
      if (i >= warmup && round_trip_ns) round_trip_ns[i - warmup] = t1 - t0;
      if (r.ok()) wrong += full ? got.wrong_words(their_seed, i, true) : got.wrong_ends(their_seed, i);
    }
    gpu_result s = gpu_wait(q, put);
    if (r.ok() && !s.ok()) r = s;
  }
  rb_u64 end = rb::detail::clock_ns();
  if (r.ok() && total) wrong += got.wrong_words(their_seed, total - 1, full);
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, i, rb_u64(iterations) * len, wrong, begin ? end - begin : 0} : one_sided_failed(r, i, wrong);
}

// Puts (`reads` 0) from `buf` to the peer, or gets from there: messages of `stride` bytes, up to `window` under way. What is
// got is checked against the peer's pattern `seed`; what is put, the peer's program checks. `message_ns`: time from post to
// completion of each timed message, or null.
extern "C" __global__ void rb_perf_one_sided_bw(rb_queue q, rb_u32 session, rb_u32 reads, unsigned char *buf, rb_u64 peer,
                                                rb_u32 rkey, rb_u64 len, rb_u64 stride, rb_u32 window, rb_u32 warmup,
                                                rb_u32 count, rb_u64 seed, rb_u32 timeout_us, rb_u64 *message_ns,
                                                perf_result *out) {
  __shared__ rb_u64 started[rbk::window::MAX];
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, window, tickets);
  window = w.size;
  q = gpu_own_queue(q);
  if (!reads)
    for (rb_u32 s = 0; s < window; ++s) message{buf + s * stride, len}.fill(seed, s, true);
  rb_u64 total = rb_u64(warmup) + count, begin = 0, oldest = 0, wrong = 0;
  gpu_result r{};
  auto pop = [&] {
    gpu_result last = w.pop(q, timeout_us);
    if (oldest >= warmup && message_ns && last.ok()) message_ns[oldest - warmup] = rb::detail::clock_ns() - started[oldest % window];
    ++oldest;
    if (r.ok()) r = last;
  };
  for (rb_u64 i = 0; i < total && r.ok(); ++i) {
    if (w.full()) pop();
    if (!r.ok()) break;
    if (i == warmup) {
      // The timed part begins with an idle wire.
      while (w.count) pop();
      begin = rb::detail::clock_ns();
    }
    rb_u64 at = i % window * stride;
    started[i % window] = rb::detail::clock_ns();
    gpu_remote there = gpu_remote_of(session, peer + at, rkey);
    rb::detail::entry e = reads ? rb::detail::get_entry(buf + at, there, rb_u32(len), timeout_us, 0)
                                : rb::detail::put_entry(there, buf + at, rb_u32(len), timeout_us, 0, 0, 0, 0);
    if (!w.push(q, e, timeout_us)) r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
  }
  while (w.count) pop();
  rb_u64 end = rb::detail::clock_ns();
  if (reads && r.ok())
    for (rb_u32 s = 0; s < window && s < total; ++s) wrong += message{buf + s * stride, len}.wrong_words(seed, s, true);
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, oldest, rb_u64(count) * len, wrong, end - begin} : one_sided_failed(r, oldest, wrong);
}

// Checks, or fills, the messages of a run of the kernel above on the peer's side.
extern "C" __global__ void rb_perf_one_sided_peer(rb_queue q, rb_u32 check, unsigned char *buf, rb_u64 len, rb_u64 stride,
                                                  rb_u32 window, rb_u64 seed, perf_result *out) {
  (void)q;
  rb_u64 wrong = 0;
  for (rb_u32 s = 0; s < window; ++s) {
    message m{buf + s * stride, len};
    if (check)
      wrong += m.wrong_words(seed, s, true);
    else
      m.fill(seed, s, true);
  }
  *out = perf_result{RB_STATUS_OK, 0, 0, window, 0, wrong, 0};
}

// Atomics on the word at `peer`, one after the other, which no other thread updates: an add, and a compare and swap, in turn.
extern "C" __global__ void rb_perf_atomics(rb_queue q, rb_u32 session, rb_u64 peer, rb_u32 rkey, rb_u32 warmup, rb_u32 count,
                                           rb_u32 timeout_us, rb_u64 *operation_ns, perf_result *out) {
  q = gpu_own_queue(q);
  gpu_remote word = gpu_remote_of(session, peer, rkey);
  rb_u64 total = rb_u64(warmup) + count, begin = 0, value = 0, wrong = 0, i = 0;
  gpu_result r{};
  for (; i < total && r.ok(); ++i) {
    if (i == warmup) begin = rb::detail::clock_ns();
    rb_u64 t0 = rb::detail::clock_ns();
    r = i & 1 ? gpu_atomic_cas(q, word, value, value + 5, timeout_us) : gpu_atomic_add(q, word, 3, timeout_us);
    if (i >= warmup && operation_ns) operation_ns[i - warmup] = rb::detail::clock_ns() - t0;
    wrong += r.ok() && r.detail != value;
    value += i & 1 ? 5 : 3;
  }
  rb_u64 end = rb::detail::clock_ns();
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, i, rb_u64(count) * 8, wrong, end - begin} : one_sided_failed(r, i, wrong);
}
