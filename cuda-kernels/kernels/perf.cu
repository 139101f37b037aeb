// Measuring kernels: latency, bandwidth, message rate, registers, copies. Each verifies what it receives.
//
// Timed parts begin and end with a message of the other side, so that the time is that of a finished
// transfer, not of handing work to the NIC. `full` rewrites and checks every byte of every message (a
// checking run); without it first and last word of every message are checked, and at the end every
// byte of the messages that are still in the buffers.
//
// Each has its queue for itself (gpu_own_queue), as a connection of perftest has its queue pair.
//
// Launch with one block. `rb_perf_bw_*` may have up to 1,024 lanes, which share filling and checking;
// the others are one lane's.
#include "common.cuh"

using rbk::message;
using rbk::perf_result;

namespace {

RB_DEVICE perf_result perf_failed(const gpu_result &r, rb_u64 messages) {
  return perf_result{r.status, 0, r.detail, messages, 0, 0, 0};
}

// The 8-byte messages between timed parts.
constexpr rb_u64 READY = 0x7265616479ull, FINISHED = 0x66696e6973686564ull;

RB_DEVICE gpu_result tell(const rb_queue &q, rb_u32 session, rb_u64 word, rb_u32 timeout_us) {
  return gpu_send(q, session, &word, sizeof(word), timeout_us);
}

// Receives one control word to `at` (registered memory) and checks it.
RB_DEVICE gpu_result hear(const rb_queue &q, rb_u32 session, rb_u64 *at, rb_u64 word, rb_u32 timeout_us, rb_u64 *wrong) {
  gpu_result r = gpu_recv(q, session, at, sizeof(word), timeout_us);
  if (r.ok() && *at != word) ++*wrong;
  return r;
}

} // namespace

// Ping-pong: role 0 sends first and writes the round-trip time of each timed iteration to
// `round_trip_ns`, role 1 answers. `sbuf` and `rbuf` hold `len` bytes each.
extern "C" __global__ void rb_perf_pingpong(rb_queue q, rb_u32 session, rb_u32 role, unsigned char *sbuf, unsigned char *rbuf,
                                            rb_u64 len, rb_u32 warmup, rb_u32 iterations, rb_u32 full, rb_u32 timeout_us,
                                            rb_u64 *round_trip_ns, perf_result *out) {
  q = gpu_own_queue(q);
  message mine{sbuf, len}, theirs{rbuf, len};
  rb_u64 my_seed = role + 1, their_seed = 2 - role, wrong = 0, begin = 0;
  rb_u64 total = rb_u64(warmup) + iterations;
  mine.fill(my_seed, 0, full);
  gpu_result r{};
  rb_u64 i = 0;
  // Two receives are posted ahead, as latency tests of verbs do: a message is always matched, and no
  // receive is posted between a message and its answer. Both may use the one buffer, because the peer
  // sends message i + 1 only after it has our i, and by then its i was checked.
  __shared__ gpu_request recv[2]; // an array of the thread's own would lie on its stack
  for (rb_u32 k = 0; k < 2; ++k) {
    recv[k] = gpu_request{};
    recv[k].done = 1;
    if (k < total) recv[k] = gpu_irecv(q, session, rbuf, len, timeout_us);
  }
  auto receive = [&](rb_u64 k) { return gpu_wait(q, recv[k & 1]); };
  auto post_after = [&](rb_u64 k) {
    if (k + 2 < total) recv[k & 1] = gpu_irecv(q, session, rbuf, len, timeout_us);
  };
  for (; i < total && r.ok(); ++i) {
    if (i == warmup) begin = rb::detail::clock_ns();
    if (role == 0) {
      rb_u64 t0 = rb::detail::clock_ns();
      full ? mine.fill(my_seed, i, true) : mine.stamp(my_seed, i);
      gpu_request send = gpu_isend(q, session, sbuf, len, timeout_us, 0, RB_FLAG_PUSH);
      r = receive(i);
      rb_u64 t1 = rb::detail::clock_ns();
      if (i >= warmup && round_trip_ns) round_trip_ns[i - warmup] = t1 - t0;
      if (!r.ok()) {
        gpu_wait(q, send);
        break;
      }
      wrong += full ? theirs.wrong_words(their_seed, i, true) : theirs.wrong_ends(their_seed, i);
      gpu_result s = gpu_wait(q, send);
      if (!s.ok()) r = s;
      post_after(i);
    } else {
      r = receive(i);
      if (!r.ok()) break;
      wrong += full ? theirs.wrong_words(their_seed, i, true) : theirs.wrong_ends(their_seed, i);
      full ? mine.fill(my_seed, i, true) : mine.stamp(my_seed, i);
      gpu_result s = gpu_send(q, session, sbuf, len, timeout_us);
      if (!s.ok()) r = s;
      post_after(i);
    }
  }
  rb_u64 end = rb::detail::clock_ns();
  // After a failure some may be left: their buffer is the NIC's until they have retired.
  for (rb_u32 k = 0; k < 2; ++k) gpu_wait(q, recv[k]);
  if (r.ok() && total) wrong += theirs.wrong_words(their_seed, total - 1, full);
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, i, rb_u64(iterations) * len, wrong, begin ? end - begin : 0} : perf_failed(r, i);
  if (!r.ok()) out->wrong = wrong;
}

// Bandwidth, sending side. `buf` holds `window` messages of `stride` bytes (at least `len`) each, and
// behind them one line of 64 bytes for control words. `message_ns`: time from post to completion of
// each timed message, or null.
extern "C" __global__ void rb_perf_bw_send(rb_queue q, rb_u32 session, unsigned char *buf, rb_u64 len, rb_u64 stride,
                                           rb_u32 window, rb_u32 warmup, rb_u32 count, rb_u64 seed, rb_u32 full,
                                           rb_u32 timeout_us, rb_u64 *message_ns, perf_result *out) {
  __shared__ gpu_result r;
  __shared__ rb_u64 started[rbk::window::MAX];
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, window, tickets);
  window = w.size;
  rb_u64 *control = reinterpret_cast<rb_u64 *>(buf + rb_u64(window) * stride);
  bool leader = rb::detail::thread_index() == 0;
  if (leader) q = gpu_own_queue(q);
  for (rb_u32 s = 0; s < window; ++s) message{buf + s * stride, len}.fill(seed, 0, false);
  rb_u64 number = 0, wrong = 0, begin = 0, end = 0;
  if (leader) r = gpu_result{};
  __syncthreads();
  for (rb_u32 part = 0; part < 2; ++part) {
    rb_u32 todo = part ? count : warmup;
    if (leader && r.ok()) {
      r = hear(q, session, control, READY, timeout_us, &wrong);
      begin = rb::detail::clock_ns();
    }
    __syncthreads();
    rb_u64 oldest = number;
    for (rb_u32 i = 0; i < todo; ++i, ++number) {
      message m{buf + number % window * stride, len};
      if (leader && r.ok() && w.full()) {
        r = w.pop(q, timeout_us);
        if (part && message_ns) message_ns[oldest - warmup] = rb::detail::clock_ns() - started[oldest % window];
        ++oldest;
      }
      if (full) {
        __syncthreads();
        m.fill(seed, number, true);
        __syncthreads();
      }
      if (!leader) continue;
      if (!r.ok()) {
        if (!full) break;
        continue; /* the other lanes keep coming to the barriers */
      }
      if (!full) m.stamp(seed, number);
      if (part && message_ns) started[number % window] = rb::detail::clock_ns();
      if (!w.push(q, rb::detail::send_entry(session, m.at, rb_u32(len), timeout_us, 0, 0), timeout_us))
        r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
    }
    // Also after a failure: the buffers are the NIC's until every operation has retired.
    while (leader && w.count) {
      gpu_result last = w.pop(q, timeout_us);
      if (part && message_ns && last.ok()) message_ns[oldest - warmup] = rb::detail::clock_ns() - started[oldest % window];
      ++oldest;
      if (r.ok()) r = last;
    }
    if (leader && r.ok()) {
      r = hear(q, session, control, FINISHED, timeout_us, &wrong);
      end = rb::detail::clock_ns();
    }
    __syncthreads();
  }
  if (leader) {
    *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, number, rb_u64(count) * len, wrong, end - begin} : perf_failed(r, number);
  }
}

// Bandwidth, receiving side; arguments as for the sender, with the same window, warm-up and count.
extern "C" __global__ void rb_perf_bw_recv(rb_queue q, rb_u32 session, unsigned char *buf, rb_u64 len, rb_u64 stride,
                                           rb_u32 window, rb_u32 warmup, rb_u32 count, rb_u64 seed, rb_u32 full,
                                           rb_u32 timeout_us, perf_result *out) {
  __shared__ gpu_result r;
  __shared__ unsigned long long all_wrong;
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, window, tickets);
  window = w.size;
  bool leader = rb::detail::thread_index() == 0;
  if (leader) q = gpu_own_queue(q);
  rb_u64 number = 0, wrong = 0, begin = 0, end = 0;
  if (leader) r = gpu_result{}, all_wrong = 0;
  __syncthreads();
  for (rb_u32 part = 0; part < 2; ++part) {
    rb_u32 todo = part ? count : warmup;
    rb_u64 posted = number, last = number + todo;
    auto post_next = [&] {
      if (!w.push(q, rb::detail::recv_entry(session, buf + posted % window * stride, rb_u32(len), timeout_us, 0, 0), timeout_us))
        r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
      ++posted;
    };
    if (leader && r.ok()) {
      // One slot of the window is left for the control word.
      while (posted < last && w.count + 1 < window && r.ok()) post_next();
      if (r.ok()) r = tell(q, session, READY, timeout_us);
      begin = rb::detail::clock_ns();
    }
    for (rb_u32 i = 0; i < todo; ++i, ++number) {
      message m{buf + number % window * stride, len};
      if (leader && r.ok()) {
        if (!w.count) post_next();
        if (r.ok()) r = w.pop(q, timeout_us);
        if (r.ok()) wrong += full ? 0 : m.wrong_ends(seed, number);
      }
      if (full) {
        __syncthreads();
        if (r.ok()) wrong += m.wrong_words(seed, number, true);
        __syncthreads();
      }
      if (!leader) continue;
      if (!r.ok()) {
        if (!full) break;
        continue; /* the other lanes keep coming to the barriers */
      }
      if (posted < last && !w.full()) post_next();
    }
    while (leader && w.count) {
      gpu_result rest = w.pop(q, timeout_us);
      if (r.ok()) r = rest;
    }
    if (leader) end = rb::detail::clock_ns();
    if (leader && r.ok()) r = tell(q, session, FINISHED, timeout_us);
    __syncthreads();
  }
  // Every byte of what is still in the buffers.
  rb_u64 kept = number < window ? number : window;
  for (rb_u64 k = 0; k < kept && r.ok() && !full; ++k) {
    rb_u64 i = number - kept + k;
    wrong += message{buf + i % window * stride, len}.wrong_words(seed, i, false);
  }
  atomicAdd(&all_wrong, (unsigned long long)wrong);
  __syncthreads();
  if (leader) {
    *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, number, rb_u64(count) * len, all_wrong, end - begin} : perf_failed(r, number);
    out->wrong = all_wrong;
  }
}

// Message rate: `count` messages of 8 bytes, each inline and carrying its number. `control` is 8
// bytes of registered memory.
extern "C" __global__ void rb_perf_rate_send(rb_queue q, rb_u32 session, rb_u64 *control, rb_u64 count, rb_u32 window, rb_u64 seed,
                                             rb_u32 timeout_us, perf_result *out) {
  q = gpu_own_queue(q);
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, window, tickets);
  rb_u64 wrong = 0, i = 0;
  gpu_result r = hear(q, session, control, READY, timeout_us, &wrong);
  rb_u64 begin = rb::detail::clock_ns();
  for (; i < count && r.ok(); ++i) {
    if (w.full()) r = w.pop(q, timeout_us);
    rb_u64 word = rbk::pattern(seed, i, 0);
    if (r.ok() && !w.push(q, rb::detail::send_entry(session, &word, 8, timeout_us, 0, 0), timeout_us))
      r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
  }
  while (w.count) {
    gpu_result last = w.pop(q, timeout_us);
    if (r.ok()) r = last;
  }
  if (r.ok()) r = hear(q, session, control, FINISHED, timeout_us, &wrong);
  rb_u64 end = rb::detail::clock_ns();
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, i, i * 8, wrong, end - begin} : perf_failed(r, i);
}

// Receives the stream of rb_perf_rate_send in chunks of `chunk` bytes (a multiple of 8) and checks
// every message. `buf` holds `chunks` of them.
extern "C" __global__ void rb_perf_rate_recv(rb_queue q, rb_u32 session, unsigned char *buf, rb_u64 chunk, rb_u32 chunks,
                                             rb_u64 count, rb_u64 seed, rb_u32 timeout_us, perf_result *out) {
  q = gpu_own_queue(q);
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, chunks, tickets);
  chunks = w.size;
  rb_u64 total = count * 8, posted = 0, seen = 0, wrong = 0;
  gpu_result r{};
  auto post_next = [&] {
    rb_u64 n = total - posted < chunk ? total - posted : chunk;
    if (!w.push(q, rb::detail::recv_entry(session, buf + posted / chunk % chunks * chunk, rb_u32(n), timeout_us, 0, 0), timeout_us))
      r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
    posted += n;
  };
  while (posted < total && w.count + 1 < chunks && r.ok()) post_next();
  if (r.ok()) r = tell(q, session, READY, timeout_us);
  rb_u64 begin = rb::detail::clock_ns();
  while (seen < total && r.ok()) {
    if (!w.count) post_next();
    if (r.ok()) r = w.pop(q, timeout_us);
    if (!r.ok()) break;
    const rb_u64 *words = reinterpret_cast<const rb_u64 *>(buf + seen / chunk % chunks * chunk);
    for (rb_u64 k = 0; k < r.bytes / 8; ++k) wrong += words[k] != rbk::pattern(seed, seen / 8 + k, 0);
    seen += r.bytes;
    if (posted < total && !w.full()) post_next();
  }
  while (w.count) w.pop(q, timeout_us);
  rb_u64 end = rb::detail::clock_ns();
  if (r.ok()) r = tell(q, session, FINISHED, timeout_us);
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, seen / 8, seen, wrong, end - begin} : perf_failed(r, seen / 8);
  out->wrong = wrong;
}

// Latency of a status register read (FpgaNIC Figure 3).
extern "C" __global__ void rb_perf_register(rb_queue q, rb_u32 reg, rb_u32 iterations, rb_u64 *ns, perf_result *out) {
  rb_u64 begin = rb::detail::clock_ns(), last = begin, values = 0;
  for (rb_u32 i = 0; i < iterations; ++i) {
    values += gpu_read_status_register(q, reg);
    rb_u64 now = rb::detail::clock_ns();
    ns[i] = now - last;
    last = now;
  }
  // `detail` depends on every value read, so that no read can be left out.
  *out = perf_result{RB_STATUS_OK, 0, values, iterations, rb_u64(iterations) * 4, 0, last - begin};
}

// Latency of the empty command.
extern "C" __global__ void rb_perf_nop(rb_queue q, rb_u32 warmup, rb_u32 iterations, rb_u32 timeout_us, rb_u64 *ns, perf_result *out) {
  q = gpu_own_queue(q);
  gpu_result r{};
  for (rb_u32 i = 0; i < warmup && r.ok(); ++i) r = gpu_nop(q, timeout_us);
  rb_u64 begin = rb::detail::clock_ns(), last = begin, done = 0;
  for (; done < iterations && r.ok(); ++done) {
    r = gpu_nop(q, timeout_us);
    rb_u64 now = rb::detail::clock_ns();
    ns[done] = now - last;
    last = now;
  }
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, done, 0, 0, last - begin} : perf_failed(r, done);
}

// NIC DMA inside GPU memory, in bursts of `burst` bytes (FpgaNIC Figure 5), `window` copies of `len`
// bytes in flight. The last copy is checked against the source.
extern "C" __global__ void rb_perf_copy(rb_queue q, unsigned char *dst, unsigned char *src, rb_u64 len, rb_u32 burst,
                                        rb_u32 window, rb_u32 warmup, rb_u32 iterations, rb_u64 seed, rb_u32 timeout_us,
                                        perf_result *out) {
  q = gpu_own_queue(q);
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, window, tickets);
  message from{src, len}, to{dst, len};
  from.fill(seed, 0, false);
  gpu_result r{};
  rb_u64 begin = 0, done = 0;
  for (rb_u32 i = 0; i < warmup + iterations && r.ok(); ++i) {
    if (i == warmup) {
      while (w.count && r.ok()) r = w.pop(q, timeout_us);
      begin = rb::detail::clock_ns();
    }
    if (r.ok() && w.full()) r = w.pop(q, timeout_us);
    rb::detail::entry e = rb::detail::make_entry(RB_OP_COPY, 0, timeout_us);
    rb::detail::set_buffer(e, src, len, 0);
    e.word[3] = reinterpret_cast<rb_u64>(dst);
    e.word[4] = RB_PUT(WQE_IMM, burst);
    if (r.ok() && !w.push(q, e, timeout_us)) r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
    done += r.ok();
  }
  while (w.count) {
    gpu_result last = w.pop(q, timeout_us);
    if (r.ok()) r = last;
  }
  rb_u64 end = rb::detail::clock_ns();
  rb_u64 wrong = done ? to.wrong_words(seed, 0, false) : 0;
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, done, iterations * len, wrong, end - begin} : perf_failed(r, done);
  out->wrong = wrong;
}

// Many connections, sending side: `rounds` messages of `len` bytes on each of `sessions`, in turn.
// `buf` holds `window` messages of `stride` bytes. `session[i]` is the i-th session.
extern "C" __global__ void rb_perf_many_send(rb_queue q, const rb_u32 *session, rb_u32 sessions, unsigned char *buf, rb_u64 len,
                                             rb_u64 stride, rb_u32 window, rb_u32 rounds, rb_u64 seed, rb_u32 timeout_us,
                                             perf_result *out) {
  q = gpu_own_queue(q);
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, window, tickets);
  window = w.size;
  for (rb_u32 s = 0; s < window; ++s) message{buf + s * stride, len}.fill(seed, 0, false);
  gpu_result r{};
  rb_u64 number = 0, total = rb_u64(sessions) * rounds, begin = rb::detail::clock_ns();
  for (; number < total && r.ok(); ++number) {
    if (w.full()) r = w.pop(q, timeout_us);
    message m{buf + number % window * stride, len};
    m.stamp(seed, number);
    if (r.ok() && !w.push(q, rb::detail::send_entry(session[number % sessions], m.at, rb_u32(len), timeout_us, 0, 0), timeout_us))
      r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
  }
  while (w.count) {
    gpu_result last = w.pop(q, timeout_us);
    if (r.ok()) r = last;
  }
  rb_u64 end = rb::detail::clock_ns();
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, number, number * len, 0, end - begin} : perf_failed(r, number);
}

// Many connections, receiving side; arguments as for the sender. Every byte of every message is checked.
extern "C" __global__ void rb_perf_many_recv(rb_queue q, const rb_u32 *session, rb_u32 sessions, unsigned char *buf, rb_u64 len,
                                             rb_u64 stride, rb_u32 window, rb_u32 rounds, rb_u64 seed, rb_u32 timeout_us,
                                             perf_result *out) {
  q = gpu_own_queue(q);
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, window, tickets);
  window = w.size;
  gpu_result r{};
  rb_u64 number = 0, posted = 0, wrong = 0, total = rb_u64(sessions) * rounds, begin = rb::detail::clock_ns();
  while (number < total && r.ok()) {
    while (posted < total && !w.full() && r.ok()) {
      if (!w.push(q, rb::detail::recv_entry(session[posted % sessions], buf + posted % window * stride, rb_u32(len), timeout_us, 0, 0),
                  timeout_us))
        r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
      ++posted;
    }
    if (r.ok()) r = w.pop(q, timeout_us);
    if (!r.ok()) break;
    wrong += message{buf + number % window * stride, len}.wrong_words(seed, number, false);
    ++number;
  }
  while (w.count) w.pop(q, timeout_us);
  rb_u64 end = rb::detail::clock_ns();
  *out = r.ok() ? perf_result{RB_STATUS_OK, 0, 0, number, number * len, wrong, end - begin} : perf_failed(r, number);
  out->wrong = wrong;
}
