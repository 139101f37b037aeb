/* One-sided operations of kernels: put, get, signals and atomics on a peer's memory, in which the peer takes no part.
 *
 *   gpu_remote there = gpu_remote_of(session, address, rkey);            // what the peer has told: an address and its key
 *   gpu_result r = gpu_put_signal<rb::block>(q, there, halo, bytes, 3, 1); // then 1 is added to word 3 of its region
 *   r = gpu_wait_signal<rb::block>(q, my_words + 3, step);               // the neighbour's has come
 *
 *   gpu_counter c{};                                                     // many puts, and one wait for all
 *   for (rb_u32 i = 0; i < n; ++i) gpu_counter_put(q, c, there + i * bytes, rows + i * bytes, bytes);
 *   r = gpu_counter_wait(q, c, c.posted);
 *
 * The peer's NIC checks key, protection domain, right and bounds. A put has completed when its bytes are in place there,
 * and its signal is set. Operations on one session, or on one rank of a communicator, are executed in the order in which
 * they were posted, so a signal announces every put before it. They are not ordered with sends and receives.
 *
 * Scopes, time-outs and requests are as in ringbell.cuh. A time-out ends the session, as one of a send does.
 *
 * **Signals** are 64-bit words at the start of the region that the put writes to: word w lies at byte 8 w of what was
 * registered or allocated. Reset them by a plain store while no peer signals, or wait for more than the last value.
 */
#ifndef RINGBELL_ONE_SIDED_CUH
#define RINGBELL_ONE_SIDED_CUH

#include "ringbell.cuh"
#include "ringbell_comm_handle.h"

namespace rb {

/* Memory of a peer. Plain data. */
struct gpu_remote {
  rb_u64 address; /* there; with a communicator, an offset into the window */
  rb_u32 target;  /* the session, or the communicator */
  rb_u32 key;     /* the remote key, or rank and window */
  rb_u32 flags;   /* RB_FLAG_SYMMETRIC, or 0 */
  rb_u32 reserved;
  /* The place that many bytes further. */
  RB_DEVICE gpu_remote operator+(rb_u64 bytes) const {
    gpu_remote r = *this;
    r.address += bytes;
    return r;
  }
};

/* Memory of the peer of a session, by its address there and its remote key. */
RB_DEVICE gpu_remote gpu_remote_of(rb_u32 session, rb_u64 address, rb_u32 rkey) {
  return gpu_remote{address, session, rkey, 0, 0};
}

/* A place in a window of a communicator (Communicator::alloc_symmetric): the rank's part, from this offset on. */
RB_DEVICE gpu_remote gpu_window(const rb_comm &c, rb_u32 window, rb_u32 rank, rb_u64 offset = 0) {
  rb_u32 key = rb_u32((RB_PUT(WQE_WINDOW_RANK, rank) | RB_PUT(WQE_WINDOW_ID, window)) >> 32);
  /* What does not fit names no rank of any communicator. */
  if (rank > 0xffff || window > 0xffff) key = 0xffff;
  return gpu_remote{offset, c.comm, key, RB_FLAG_SYMMETRIC, 0};
}

namespace detail {

RB_DEVICE entry remote_entry(rb_u32 opcode, const gpu_remote &at, rb_u64 operand, rb_u32 timeout_us, rb_u32 imm = 0, rb_u32 flags = 0) {
  entry e = make_entry(opcode, at.target, timeout_us, at.flags | flags);
  e.word[3] = at.address;
  e.word[4] = RB_PUT(WQE_IMM, imm) | RB_PUT(WQE_RKEY, at.key);
  e.word[5] = operand;
  return e;
}

RB_DEVICE_CALL entry put_entry(const gpu_remote &to, const void *from, rb_u32 len, rb_u32 timeout_us, rb_u32 lkey, rb_u32 flags,
                          rb_u32 word, rb_u64 value) {
  entry e = remote_entry(RB_OP_PUT, to, value, timeout_us, word, flags);
  rb_u64 va = reinterpret_cast<rb_u64>(from);
  if (len <= RB_PUT_INLINE_MAX && va < RB_NIC_VA) {
    e.word[0] |= RB_PUT(WQE_FLAGS, RB_FLAG_INLINE) | RB_PUT(WQE_INLINE_LEN, len);
    const unsigned char *p = static_cast<const unsigned char *>(from);
    rb_u64 v = 0;
    if (len == 8 && (va & 7) == 0)
      v = *static_cast<const rb_u64 *>(from);
    else
#pragma unroll 1
      for (rb_u32 b = 0; b < len; ++b) v |= rb_u64(p[b]) << b * 8;
    e.word[1] = v;
  } else {
    set_buffer(e, from, len, lkey);
  }
  return e;
}

RB_DEVICE entry get_entry(void *to, const gpu_remote &from, rb_u32 len, rb_u32 timeout_us, rb_u32 lkey) {
  entry e = remote_entry(RB_OP_GET, from, 0, timeout_us);
  set_buffer(e, to, len, lkey);
  return e;
}

RB_DEVICE entry cas_entry(const gpu_remote &at, rb_u64 compare, rb_u64 swap, rb_u32 timeout_us) {
  entry e = remote_entry(RB_OP_COMPARE_SWAP, at, compare, timeout_us);
  e.word[1] = swap;
  return e;
}

/* Puts in pieces of MAX_PIECE; the signal is the last one's. */
RB_DEVICE_CALL gpu_result put_all(const rb_queue &q, const gpu_remote &to, const void *from, rb_u64 len, rb_u32 timeout_us, rb_u32 lkey,
                             rb_u32 flags, rb_u32 word, rb_u64 value) {
  const char *p = static_cast<const char *>(from);
  gpu_result all{};
  do {
    rb_u64 piece = len - all.bytes < MAX_PIECE ? len - all.bytes : MAX_PIECE;
    bool last = all.bytes + piece == len;
    gpu_result r = run(q, put_entry(to + all.bytes, p + all.bytes, rb_u32(piece), timeout_us, lkey, last ? flags : 0, word, value), timeout_us);
    all = gpu_result{r.status, 0, all.bytes + r.bytes, r.detail};
  } while (all.ok() && all.bytes < len);
  return all;
}

RB_DEVICE gpu_request too_long() {
  gpu_request r{};
  r.done = 1;
  r.result = gpu_result{RB_STATUS_BAD_DESCRIPTOR, 0, 0, RB_WQE_LEN_WORD};
  return r;
}

/* The flags of a put with a signal. */
RB_DEVICE rb_u32 signal_flags(bool set) { return RB_FLAG_SIGNAL | (set ? RB_FLAG_SIGNAL_SET : 0); }

/* Updates the 32-bit word `at`, which is aligned, as half of the 64-bit word around it: compared and swapped until no other
 * update has come between. `post` executes an entry. detail: its value before. */
template <class Post, class Next> RB_DEVICE gpu_result update_half(const gpu_remote &at, rb_u32 timeout_us, Post post, Next next) {
  gpu_remote word = at;
  word.address &= ~rb_u64(7);
  rb_u32 shift = rb_u32(at.address & 4) * 8;
  if (at.address & 3) return gpu_result{RB_STATUS_INVALID_ARGUMENT, 0, 0, at.address};
  gpu_result r = post(remote_entry(RB_OP_FETCH_ADD, word, 0, timeout_us));
  while (r.ok()) {
    rb_u64 before = r.detail;
    rb_u32 half = rb_u32(before >> shift);
    rb_u64 after = (before & ~(rb_u64(0xffffffffu) << shift)) | rb_u64(next(half)) << shift;
    if (after != before) r = post(cas_entry(word, before, after, timeout_us));
    if (r.ok() && r.detail == before) {
      r.detail = half;
      return r;
    }
  }
  return r;
}

/* Adds to such a word. What the upper half overflows by is lost, so it is added to at once. */
template <class Post> RB_DEVICE gpu_result add_to_half(const gpu_remote &at, rb_u32 addend, rb_u32 timeout_us, Post post) {
  if ((at.address & 7) != 4) return update_half(at, timeout_us, post, [&](rb_u32 half) { return half + addend; });
  gpu_remote word = at;
  word.address -= 4;
  gpu_result r = post(remote_entry(RB_OP_FETCH_ADD, word, rb_u64(addend) << 32, timeout_us));
  if (r.ok()) r.detail >>= 32;
  return r;
}

/* The first i below `count` of which `is_there(i)` is true, from `begin` on and round; `count`: there is none. */
template <class F> RB_DEVICE rb_u64 first_of(rb_u64 count, rb_u64 begin, F is_there) {
  for (rb_u64 i = begin; i < count; ++i)
    if (is_there(i)) return i;
  for (rb_u64 i = 0; i < begin && i < count; ++i)
    if (is_there(i)) return i;
  return count;
}

} // namespace detail

/* --- blocking ------------------------------------------------------------------------------------------ */

/* Writes `len` bytes to a peer's memory, in pieces of MAX_PIECE with a time-out each; returns when they are in place. At most
 * RB_PUT_INLINE_MAX bytes travel inside the descriptor: their source need not be registered. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_put(const rb_queue &q, const gpu_remote &to, const void *from, rb_u64 len, rb_u32 timeout_us = 0,
                             rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    return detail::put_all(q, to, from, len, detail::effective_timeout(q, timeout_us), lkey, 0, 0, 0);
  });
}

/* The same, and then adds `value` to word number `word` of the region (`set`: stores it there). */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_put_signal(const rb_queue &q, const gpu_remote &to, const void *from, rb_u64 len, rb_u32 word, rb_u64 value,
                                    bool set = false, rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::put_all(q, to, from, len, t, lkey, detail::signal_flags(set), word, value);
  });
}

/* A signal alone: a put of no bytes. `to` names any place of the region. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_signal(const rb_queue &q, const gpu_remote &to, rb_u32 word, rb_u64 value, bool set = false, rb_u32 timeout_us = 0) {
  return gpu_put_signal<Scope>(q, to, nullptr, 0, word, value, set, timeout_us);
}

/* Reads `len` bytes of a peer's memory, in such pieces. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_get(const rb_queue &q, void *to, const gpu_remote &from, rb_u64 len, rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    char *p = static_cast<char *>(to);
    gpu_result all{};
    do {
      rb_u64 piece = len - all.bytes < MAX_PIECE ? len - all.bytes : MAX_PIECE;
      gpu_result r = detail::run(q, detail::get_entry(p + all.bytes, from + all.bytes, rb_u32(piece), t, lkey), t);
      all = gpu_result{r.status, 0, all.bytes + r.bytes, r.detail};
    } while (all.ok() && all.bytes < len);
    return all;
  });
}

/* Adds to an aligned 64-bit word of a peer; result: detail is its value before. Atomic with respect to the peer's kernels
 * (atomics of system scope) and to every NIC. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_atomic_add(const rb_queue &q, const gpu_remote &at, rb_u64 addend, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::run(q, detail::remote_entry(RB_OP_FETCH_ADD, at, addend, t), t);
  });
}

/* Replaces such a word by `swap` if it is equal to `compare`; result: detail is its value before. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_atomic_cas(const rb_queue &q, const gpu_remote &at, rb_u64 compare, rb_u64 swap, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::run(q, detail::cas_entry(at, compare, swap, t), t);
  });
}

/* The same of an aligned 32-bit word, alone in its 64-bit word or not. The NIC has atomics of 64 bits, so these take two round
 * trips, and more where others update the same 64 bits; an addition to the upper half takes one. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_atomic_add32(const rb_queue &q, const gpu_remote &at, rb_u32 addend, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::add_to_half(at, addend, t, [&](const detail::entry &e) { return detail::run(q, e, t); });
  });
}
template <class Scope = thread>
RB_DEVICE gpu_result gpu_atomic_cas32(const rb_queue &q, const gpu_remote &at, rb_u32 compare, rb_u32 swap, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    auto post = [&](const detail::entry &e) { return detail::run(q, e, t); };
    return detail::update_half(at, t, post, [&](rb_u32 half) { return half == compare ? swap : half; });
  });
}

/* --- waiting for a peer's ------------------------------------------------------------------------------ */

/* Waits until a word of this GPU's memory is at least `value`; what its puts have written before is visible then. Result:
 * detail is the value seen. TIMED_OUT: it has not come; nothing is under way here, and the wait may be repeated. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_wait_signal(const rb_queue &q, const void *word, rb_u64 value, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    const rb_u64 *w = static_cast<const rb_u64 *>(word);
    detail::bounded_wait bound(detail::effective_timeout(q, timeout_us));
    for (;;) {
      /* Acquire: pairs with the Release of the NIC's update. */
      rb_u64 now = detail::load_acquire(w);
      if (now >= value) return gpu_result{RB_STATUS_OK, 0, 0, now};
      if (!bound.turn()) return gpu_result{RB_STATUS_TIMED_OUT, 0, 0, now};
    }
  });
}

/* Waits for `count` more signals than `shadow` has counted, and counts them: a word that peers add 1 to is never reset. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_wait_signals(const rb_queue &q, const void *word, rb_u64 &shadow, rb_u64 count = 1, rb_u32 timeout_us = 0) {
  gpu_result r = gpu_wait_signal<Scope>(q, word, shadow + count, timeout_us);
  if (r.ok()) shadow += count;
  return r;
}

/* Waits until one of `count` words that lie behind each other is at least `value`. Result: detail is the number of the word.
 * TIMED_OUT: none is; detail is `count`. `begin` is the word that is looked at first: a server that serves all counts it on. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_wait_signal_any(const rb_queue &q, const void *words, rb_u32 count, rb_u64 value, rb_u32 begin = 0,
                                         rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    const rb_u64 *w = static_cast<const rb_u64 *>(words);
    detail::bounded_wait bound(detail::effective_timeout(q, timeout_us));
    for (;;) {
      rb_u64 i = detail::first_of(count, begin, [&](rb_u64 k) { return detail::load_acquire(w + k) >= value; });
      if (i < count) return gpu_result{RB_STATUS_OK, 0, 0, i};
      if (!bound.turn()) return gpu_result{RB_STATUS_TIMED_OUT, 0, 0, count};
    }
  });
}

/* Waits until each of `count` words is. TIMED_OUT: detail is the number of one that is not. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_wait_signal_all(const rb_queue &q, const void *words, rb_u32 count, rb_u64 value, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    const rb_u64 *w = static_cast<const rb_u64 *>(words);
    detail::bounded_wait bound(detail::effective_timeout(q, timeout_us));
    for (rb_u64 i = 0; i < count; ++i)
      while (detail::load_acquire(w + i) < value)
        if (!bound.turn()) return gpu_result{RB_STATUS_TIMED_OUT, 0, 0, i};
    return gpu_result{};
  });
}

/* Waits as gpu_wait_signal_any, and lists all words that are then: their numbers, in `indices`, which has room for `count`.
 * Result: detail is how many. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_wait_signal_some(const rb_queue &q, const void *words, rb_u32 count, rb_u64 value, rb_u32 *indices,
                                          rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    const rb_u64 *w = static_cast<const rb_u64 *>(words);
    detail::bounded_wait bound(detail::effective_timeout(q, timeout_us));
    for (;;) {
      rb_u32 found = 0;
      for (rb_u32 i = 0; i < count; ++i)
        if (detail::load_acquire(w + i) >= value) indices[found++] = i;
      if (found) return gpu_result{RB_STATUS_OK, 0, 0, found};
      if (!bound.turn()) return gpu_result{RB_STATUS_TIMED_OUT, 0, 0, 0};
    }
  });
}

/* Waits until every operation that was posted on the queue before has completed: puts are in place at their peers then, and
 * gets here. Requests stay to be waited for. The status is the first failure among those; detail is its own. Receives
 * count too: let them wait on another queue. `gpu_quiet` is NVSHMEM's name for it. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_flush(const rb_queue &q, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 depth = 1u << q.depth_log2;
    rb_u32 tail = q.own ? q.own_next : detail::load_acquire_device(reinterpret_cast<const rb_u32 *>(q.tail));
    detail::bounded_wait bound(rb_u64(detail::effective_timeout(q, timeout_us)) + q.silent_grace_us);
    gpu_result all{};
    for (rb_u32 t = tail - depth; t != tail; ++t) {
      detail::completion c;
      for (;;) {
        if (detail::look(q, t, &c)) {
          if (all.ok() && c.status != RB_STATUS_OK) all = gpu_result{c.status, 0, c.bytes, c.detail};
          break;
        }
        /* It was waited for, or its slot was never used. */
        rb_u32 next = detail::load_acquire_device(detail::released_of(q, detail::slot_of(q, t)));
        if (rb_u32(next - (t + depth)) < 0x80000000u) break;
        if (!bound.turn()) return detail::failed(RB_STATUS_NIC_SILENT);
      }
    }
    return all;
  });
}
template <class Scope = thread> RB_DEVICE gpu_result gpu_quiet(const rb_queue &q, rb_u32 timeout_us = 0) {
  return gpu_flush<Scope>(q, timeout_us);
}

/* --- as requests: gpu_test, gpu_wait ------------------------------------------------------------------- */

/* Starts a put of at most MAX_PIECE bytes; the source is the NIC's until the request is done. */
template <class Scope = thread>
RB_DEVICE gpu_request gpu_iput(const rb_queue &q, const gpu_remote &to, const void *from, rb_u64 len, rb_u32 timeout_us = 0,
                               rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_request>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) return detail::too_long();
    return detail::start(q, detail::put_entry(to, from, rb_u32(len), t, lkey, 0, 0, 0), t);
  });
}

/* The same with a signal. */
template <class Scope = thread>
RB_DEVICE gpu_request gpu_iput_signal(const rb_queue &q, const gpu_remote &to, const void *from, rb_u64 len, rb_u32 word, rb_u64 value,
                                      bool set = false, rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_request>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) return detail::too_long();
    return detail::start(q, detail::put_entry(to, from, rb_u32(len), t, lkey, detail::signal_flags(set), word, value), t);
  });
}

/* Starts a signal alone. */
template <class Scope = thread>
RB_DEVICE gpu_request gpu_isignal(const rb_queue &q, const gpu_remote &to, rb_u32 word, rb_u64 value, bool set = false, rb_u32 timeout_us = 0) {
  return gpu_iput_signal<Scope>(q, to, nullptr, 0, word, value, set, timeout_us);
}

/* Starts a get of at most MAX_PIECE bytes. */
template <class Scope = thread>
RB_DEVICE gpu_request gpu_iget(const rb_queue &q, void *to, const gpu_remote &from, rb_u64 len, rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_request>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) return detail::too_long();
    return detail::start(q, detail::get_entry(to, from, rb_u32(len), t, lkey), t);
  });
}

/* Starts atomics: the request's result has the value before in detail. */
template <class Scope = thread>
RB_DEVICE gpu_request gpu_iatomic_add(const rb_queue &q, const gpu_remote &at, rb_u64 addend, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_request>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::start(q, detail::remote_entry(RB_OP_FETCH_ADD, at, addend, t), t);
  });
}
template <class Scope = thread>
RB_DEVICE gpu_request gpu_iatomic_cas(const rb_queue &q, const gpu_remote &at, rb_u64 compare, rb_u64 swap, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_request>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::start(q, detail::cas_entry(at, compare, swap, t), t);
  });
}

/* --- counters ------------------------------------------------------------------------------------------ */

/* Counts operations of a set as they complete, so that they are not waited for one by one. An operation's slot of the queue is
 * free when it has been counted, which calls without the counter do not: threads that share a queue must not wait for its slots by those
 * while all are held by counters. All operations of a counter are on one queue. Plain data of one user, `gpu_counter c{}` in
 * the beginning: a thread, or a warp or block, of which the first lane's copy is used (let other lanes read one in shared
 * memory). */
struct gpu_counter {
  rb_u64 posted;    /* operations of the set */
  rb_u64 completed; /* those that were seen to have ended, failures too: it only rises */
  rb_u64 bytes;     /* that these have moved */
  rb_u64 detail;    /* of the first failure */
  rb_u64 pending;   /* bit i: ticket `oldest` + i was not counted */
  rb_u32 oldest;
  rb_u32 status; /* the first failure's, or OK */
};

namespace detail {

RB_DEVICE void count_one(gpu_counter &c, const completion &e) {
  ++c.completed;
  c.bytes += e.bytes;
  if (c.status != RB_STATUS_OK || e.status == RB_STATUS_OK) return;
  c.status = e.status;
  c.detail = e.detail;
}

/* Counts what has completed. */
RB_DEVICE_CALL void count(const rb_queue &q, gpu_counter &c) {
  rb_u32 t = c.oldest;
  for (rb_u64 bit = 1; bit && bit <= c.pending; bit <<= 1, ++t) {
    completion e;
    if (!(c.pending & bit) || !poll(q, t, &e)) continue;
    c.pending &= ~bit;
    count_one(c, e);
  }
}

/* Adds a ticket. Those before it that do not fit beside it are waited for. */
RB_DEVICE_CALL void count_ticket(const rb_queue &q, gpu_counter &c, rb_u32 ticket, rb_u32 timeout_us) {
  ++c.posted;
  for (; c.pending && (!(c.pending & 1) || ticket - c.oldest >= 64); c.pending >>= 1, ++c.oldest)
    if (c.pending & 1) count_one(c, wait(q, c.oldest, timeout_us));
  if (!c.pending) c.oldest = ticket;
  c.pending |= rb_u64(1) << (ticket - c.oldest);
}

RB_DEVICE gpu_result counted(const gpu_counter &c, rb_u32 status) {
  bool failed = status == RB_STATUS_OK && c.status != RB_STATUS_OK;
  return gpu_result{failed ? c.status : status, 0, c.bytes, failed ? c.detail : c.completed};
}

/* Posts an operation of the set. A full queue is waited for: the counter's own operations free their slots meanwhile. */
RB_DEVICE_CALL gpu_result post_counted(const rb_queue &q, gpu_counter &c, const entry &e, rb_u32 timeout_us) {
  rb_u32 ticket;
  if (!post(q, e, timeout_us, false, &ticket)) {
    bounded_wait bound(timeout_us);
    for (count(q, c); !post(q, e, timeout_us, false, &ticket); count(q, c))
      if (!bound.turn()) return queue_full(q);
  }
  count_ticket(q, c, ticket, timeout_us);
  return gpu_result{};
}

} // namespace detail

/* Starts a put, a put with a signal or a get of at most MAX_PIECE bytes, which the counter counts. The result says whether it was
 * posted: QUEUE_FULL, when no slot was free in time. Its end is the counter's. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_counter_put(const rb_queue &q, gpu_counter &c, const gpu_remote &to, const void *from, rb_u64 len,
                                     rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) return detail::too_long().result;
    return detail::post_counted(q, c, detail::put_entry(to, from, rb_u32(len), t, lkey, 0, 0, 0), t);
  });
}
template <class Scope = thread>
RB_DEVICE gpu_result gpu_counter_put_signal(const rb_queue &q, gpu_counter &c, const gpu_remote &to, const void *from, rb_u64 len,
                                            rb_u32 word, rb_u64 value, bool set = false, rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) return detail::too_long().result;
    return detail::post_counted(q, c, detail::put_entry(to, from, rb_u32(len), t, lkey, detail::signal_flags(set), word, value), t);
  });
}
template <class Scope = thread>
RB_DEVICE gpu_result gpu_counter_get(const rb_queue &q, gpu_counter &c, void *to, const gpu_remote &from, rb_u64 len,
                                     rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) return detail::too_long().result;
    return detail::post_counted(q, c, detail::get_entry(to, from, rb_u32(len), t, lkey), t);
  });
}

/* Adds a request of any kind, which is the counter's from then on. It waits when other operations have taken 64 tickets of the
 * queue since the oldest of the set, and when the request is older than the set's. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_counter_add(const rb_queue &q, gpu_counter &c, const gpu_request &request) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    if (request.done) {
      const gpu_result &r = request.result;
      ++c.posted;
      detail::count_one(c, detail::completion{r.status, r.bytes, r.detail});
    } else {
      detail::count_ticket(q, c, request.ticket, request.timeout_us);
    }
    return gpu_result{};
  });
}

/* How many have completed: the result's detail, unless one has failed; then status and detail are the first failure's. Never
 * waits. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_counter_read(const rb_queue &q, gpu_counter &c) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    detail::count(q, c);
    return detail::counted(c, RB_STATUS_OK);
  });
}

/* Waits until `value` operations have completed since the counter began, with results as above. TIMED_OUT: fewer have, as many as
 * detail says; they go on, and the wait may be repeated. INVALID_ARGUMENT: the set has fewer. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_counter_wait(const rb_queue &q, gpu_counter &c, rb_u64 value, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    if (value > c.posted) return detail::counted(c, RB_STATUS_INVALID_ARGUMENT);
    detail::bounded_wait bound(detail::effective_timeout(q, timeout_us));
    for (;;) {
      detail::count(q, c);
      if (c.completed >= value) return detail::counted(c, RB_STATUS_OK);
      if (!bound.turn()) return detail::counted(c, RB_STATUS_TIMED_OUT);
    }
  });
}

/* --- rows of a matrix ---------------------------------------------------------------------------------- */

/* Writes `count` pieces of `bytes` each (at most MAX_PIECE): piece i from `from` + i * from_stride to `to` + i * to_stride, strides
 * in bytes. Returns when all are in place. The status is the first failure's; bytes are those of pieces that are in place. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_put_strided(const rb_queue &q, const gpu_remote &to, rb_u64 to_stride, const void *from, rb_u64 from_stride,
                                     rb_u64 bytes, rb_u64 count, rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    gpu_counter c{};
    const char *p = static_cast<const char *>(from);
    for (rb_u64 i = 0; i < count; ++i) {
      gpu_result r = gpu_counter_put(q, c, to + i * to_stride, p + i * from_stride, bytes, timeout_us, lkey);
      if (!r.ok()) return r;
    }
    return gpu_counter_wait(q, c, c.posted, timeout_us);
  });
}

/* Reads such pieces. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_get_strided(const rb_queue &q, void *to, rb_u64 to_stride, const gpu_remote &from, rb_u64 from_stride,
                                     rb_u64 bytes, rb_u64 count, rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    gpu_counter c{};
    char *p = static_cast<char *>(to);
    for (rb_u64 i = 0; i < count; ++i) {
      gpu_result r = gpu_counter_get(q, c, p + i * to_stride, from + i * from_stride, bytes, timeout_us, lkey);
      if (!r.ok()) return r;
    }
    return gpu_counter_wait(q, c, c.posted, timeout_us);
  });
}

/* --- the same calls with a suffix ---------------------------------------------------------------------- */

#define RB_SCOPED_NAMES(type, name)                                                                   \
  template <class... A> RB_DEVICE type name##_warp(const rb_queue &q, A &&...a) {                     \
    return name<warp>(q, static_cast<A &&>(a)...);                                                    \
  }                                                                                                   \
  template <class... A> RB_DEVICE type name##_block(const rb_queue &q, A &&...a) {                    \
    return name<block>(q, static_cast<A &&>(a)...);                                                   \
  }
RB_SCOPED_NAMES(gpu_result, gpu_put)
RB_SCOPED_NAMES(gpu_result, gpu_put_signal)
RB_SCOPED_NAMES(gpu_result, gpu_signal)
RB_SCOPED_NAMES(gpu_result, gpu_get)
RB_SCOPED_NAMES(gpu_result, gpu_atomic_add)
RB_SCOPED_NAMES(gpu_result, gpu_atomic_cas)
RB_SCOPED_NAMES(gpu_result, gpu_atomic_add32)
RB_SCOPED_NAMES(gpu_result, gpu_atomic_cas32)
RB_SCOPED_NAMES(gpu_result, gpu_wait_signal)
RB_SCOPED_NAMES(gpu_result, gpu_wait_signals)
RB_SCOPED_NAMES(gpu_result, gpu_wait_signal_any)
RB_SCOPED_NAMES(gpu_result, gpu_wait_signal_all)
RB_SCOPED_NAMES(gpu_result, gpu_wait_signal_some)
RB_SCOPED_NAMES(gpu_result, gpu_flush)
RB_SCOPED_NAMES(gpu_result, gpu_quiet)
RB_SCOPED_NAMES(gpu_request, gpu_iput)
RB_SCOPED_NAMES(gpu_request, gpu_iput_signal)
RB_SCOPED_NAMES(gpu_request, gpu_isignal)
RB_SCOPED_NAMES(gpu_request, gpu_iget)
RB_SCOPED_NAMES(gpu_request, gpu_iatomic_add)
RB_SCOPED_NAMES(gpu_request, gpu_iatomic_cas)
RB_SCOPED_NAMES(gpu_result, gpu_counter_put)
RB_SCOPED_NAMES(gpu_result, gpu_counter_put_signal)
RB_SCOPED_NAMES(gpu_result, gpu_counter_get)
RB_SCOPED_NAMES(gpu_result, gpu_counter_add)
RB_SCOPED_NAMES(gpu_result, gpu_counter_read)
RB_SCOPED_NAMES(gpu_result, gpu_counter_wait)
RB_SCOPED_NAMES(gpu_result, gpu_put_strided)
RB_SCOPED_NAMES(gpu_result, gpu_get_strided)
#undef RB_SCOPED_NAMES

} // namespace rb

#ifndef RINGBELL_NO_USING
using rb::gpu_remote;
using rb::gpu_counter;
using rb::gpu_remote_of;
using rb::gpu_window;
#define RB_USING(name) \
  using rb::name;      \
  using rb::name##_warp; \
  using rb::name##_block;
RB_USING(gpu_put)
RB_USING(gpu_put_signal)
RB_USING(gpu_signal)
RB_USING(gpu_get)
RB_USING(gpu_atomic_add)
RB_USING(gpu_atomic_cas)
RB_USING(gpu_atomic_add32)
RB_USING(gpu_atomic_cas32)
RB_USING(gpu_wait_signal)
RB_USING(gpu_wait_signals)
RB_USING(gpu_wait_signal_any)
RB_USING(gpu_wait_signal_all)
RB_USING(gpu_wait_signal_some)
RB_USING(gpu_flush)
RB_USING(gpu_quiet)
RB_USING(gpu_iput)
RB_USING(gpu_iput_signal)
RB_USING(gpu_isignal)
RB_USING(gpu_iget)
RB_USING(gpu_iatomic_add)
RB_USING(gpu_iatomic_cas)
RB_USING(gpu_counter_put)
RB_USING(gpu_counter_put_signal)
RB_USING(gpu_counter_get)
RB_USING(gpu_counter_add)
RB_USING(gpu_counter_read)
RB_USING(gpu_counter_wait)
RB_USING(gpu_put_strided)
RB_USING(gpu_get_strided)
#undef RB_USING
#endif

#endif /* RINGBELL_ONE_SIDED_CUH */
