/* Kernels' streams: values that a kernel pushes while it computes them and the NIC takes, or that the NIC
 * pushes and a kernel pops, with no buffer between (ACCL+ §4.1, Listing 2; SMI's channels).
 *
 *   gpu_request sent = gpu_istream_send(comm, stream, count, RB_DTYPE_F32, peer);   // ringbell_collective.cuh
 *   gpu_pusher to_nic(stream);
 *   gpu_stream_push_each<rb::block>(comm.queue, to_nic, count, [&](rb_u64 i) { return f(i); });
 *   gpu_result r = gpu_wait(comm, sent);
 *
 * A stream is a small ring (nic-abi/src/kernel_stream.rs) with one pusher and one taker: threads of one
 * scope on the kernel's side, the NIC on the other. A `gpu_pusher` or `gpu_popper` is the kernel's end, plain
 * data in registers: every thread of the scope has its own, equal copy. It may live on from operation to
 * operation. Kernels may push before the operation is posted, as far as the ring goes.
 *
 * **Waiting.** A full ring makes a push wait, an empty one a pop, for at most the time-out. A failed
 * operation ends the wait with its status, so the pushing or popping thread need not hold the request. TIMED_OUT:
 * the elements that `bytes` does not count were not moved, and the call may be repeated for them.
 *
 * **One thread that pushes all and then pops** waits for itself when the operation answers before it has
 * everything, and the rings are shorter than the data: push and pop by turns, or in different warps.
 *
 * Ordering: the pusher's bytes come before its Release of `head`, which pairs with the taker's Acquire;
 * the taker's reads come before its Release of `tail`, which pairs with the pusher's Acquire before it
 * writes over them.
 */
#ifndef RINGBELL_STREAM_CUH
#define RINGBELL_STREAM_CUH

#include "ringbell.cuh"

/* A stream as kernels get it: its address word. `StreamRef` of nic-abi, as a kernel argument. */
struct rb_stream_handle {
  rb_u64 word;
};

namespace rb {
namespace detail {

/* One end of a ring. */
struct stream_end {
  rb_u64 base;
  rb_u64 size;
  rb_u64 own;  /* this end's index */
  rb_u64 seen; /* the NIC's, when it was last read */

  RB_DEVICE stream_end(const rb_stream_handle &s, rb_u64 own_at, rb_u64 nic_at)
      : base(s.word & ~rb_u64(RB_STREAM_ALIGN - 1)), size(rb_u64(1) << (s.word & (RB_STREAM_ALIGN - 1))) {
    own = load_relaxed(word_at(own_at)); /* it has no other writer */
    seen = load_acquire(word_at(nic_at));
  }
  RB_DEVICE rb_u64 *word_at(rb_u64 offset) const { return reinterpret_cast<rb_u64 *>(base + offset); }
  RB_DEVICE unsigned char *data() const { return reinterpret_cast<unsigned char *>(base + RB_STREAM_DATA_AT); }

  /* Whole and in one access where it lies whole and aligned, which is always so when all elements of the
   * stream have one size. */
  template <class T> RB_DEVICE bool is_plain(rb_u64 at) const { return at % alignof(T) == 0 && size - at >= sizeof(T); }
  template <class T> RB_DEVICE void put(rb_u64 offset, const T &value) const {
    rb_u64 at = (own + offset) & (size - 1);
    if (is_plain<T>(at)) {
      *reinterpret_cast<T *>(data() + at) = value;
      return;
    }
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(&value);
    for (rb_u64 i = 0; i < sizeof(T); ++i) data()[(at + i) & (size - 1)] = bytes[i];
  }
  template <class T> RB_DEVICE T get(rb_u64 offset) const {
    rb_u64 at = (own + offset) & (size - 1);
    if (is_plain<T>(at)) return *reinterpret_cast<const T *>(data() + at);
    T value;
    unsigned char *bytes = reinterpret_cast<unsigned char *>(&value);
    for (rb_u64 i = 0; i < sizeof(T); ++i) bytes[i] = data()[(at + i) & (size - 1)];
    return value;
  }
};

/* The result of a wait at a ring, the same in every lane. */
struct stream_news {
  rb_u64 seen;
  rb_u32 status;
  rb_u32 detail;
};

/* The lanes of a scope. */
template <class Scope> struct lanes_of;
template <> struct lanes_of<thread> {
  static RB_DEVICE unsigned index() { return 0; }
  static RB_DEVICE unsigned count() { return 1; }
};
template <> struct lanes_of<warp> {
  static RB_DEVICE unsigned index() { return thread_index() & 31; }
  static RB_DEVICE unsigned count() {
    unsigned lanes = 0;
    for (unsigned mask = warp_mask(); mask; mask >>= 1) ++lanes;
    return lanes;
  }
};
template <> struct lanes_of<block> {
  static RB_DEVICE unsigned index() { return thread_index(); }
  static RB_DEVICE unsigned count() { return blockDim.x * blockDim.y * blockDim.z; }
};

} // namespace detail

/* A kernel's pushing end of a stream. */
struct gpu_pusher : detail::stream_end {
  RB_DEVICE explicit gpu_pusher(const rb_stream_handle &s) : stream_end(s, RB_STREAM_HEAD_AT, RB_STREAM_TAIL_AT) {}
  /* Bytes of free room, by the last index read. */
  RB_DEVICE rb_u64 ready() const { return size - (own - seen); }
  static constexpr rb_u64 OWN_AT = RB_STREAM_HEAD_AT, NIC_AT = RB_STREAM_TAIL_AT;
};

/* A kernel's popping end of a stream. */
struct gpu_popper : detail::stream_end {
  RB_DEVICE explicit gpu_popper(const rb_stream_handle &s) : stream_end(s, RB_STREAM_TAIL_AT, RB_STREAM_HEAD_AT) {}
  /* Bytes that have come, by the last index read. */
  RB_DEVICE rb_u64 ready() const { return seen - own; }
  static constexpr rb_u64 OWN_AT = RB_STREAM_TAIL_AT, NIC_AT = RB_STREAM_HEAD_AT;
};

namespace detail {

/* Publishes `own`, then waits until `need` bytes are ready. */
template <class Scope, class End> RB_DEVICE_CALL gpu_result stream_turn(const rb_queue &q, End &e, bool moved, rb_u64 need, rb_u32 timeout_us) {
  stream_news n = scoped<Scope>::template run<stream_news>([&] {
    if (moved) store_release(e.word_at(End::OWN_AT), e.own);
    End mine = e;
    bounded_wait w(effective_timeout(q, timeout_us));
    while (mine.ready() < need) {
      mine.seen = load_acquire(mine.word_at(End::NIC_AT));
      if (mine.ready() >= need) break;
      rb_u64 state = load_acquire(mine.word_at(RB_STREAM_STATE_AT));
      if (state) return stream_news{mine.seen, rb_u32(state & 0xff), rb_u32(state >> 32)};
      if (!w.turn()) return stream_news{mine.seen, RB_STATUS_TIMED_OUT, 0};
    }
    return stream_news{mine.seen, RB_STATUS_OK, 0};
  });
  e.seen = n.seen;
  return gpu_result{n.status, 0, 0, n.detail};
}

/* Moves `count` elements: `move(offset in the ring, number of the element)` for each, by all lanes. */
template <class Scope, class T, class End, class Move>
RB_DEVICE gpu_result stream_each(const rb_queue &q, End &e, rb_u64 count, Move move, rb_u32 timeout_us) {
  static_assert(sizeof(T) <= 16, "an element is a number, or a pair of them");
  rb_u64 done = 0;
  /* A quarter of the ring at once: the NIC works on the rest meanwhile. */
  rb_u64 most = e.size / 4 / sizeof(T);
  while (done < count) {
    gpu_result r = stream_turn<Scope>(q, e, done > 0, sizeof(T), timeout_us);
    if (!r.ok()) {
      r.bytes = done * sizeof(T);
      return r;
    }
    rb_u64 n = e.ready() / sizeof(T);
    if (n > most) n = most;
    if (n > count - done) n = count - done;
    for (rb_u64 i = lanes_of<Scope>::index(); i < n; i += lanes_of<Scope>::count()) move(i * sizeof(T), done + i);
    e.own += n * sizeof(T);
    done += n;
  }
  gpu_result r{};
  if (done) r = stream_turn<Scope>(q, e, true, 0, timeout_us);
  r.bytes = done * sizeof(T);
  return r;
}

} // namespace detail

/* Pushes `count` elements; `make(i)` is asked for each once, by the lanes of the scope in turn. */
template <class Scope = thread, class Make>
RB_DEVICE gpu_result gpu_stream_push_each(const rb_queue &q, gpu_pusher &p, rb_u64 count, Make make, rb_u32 timeout_us = 0) {
  using T = decltype(make(rb_u64()));
  return detail::stream_each<Scope, T>(q, p, count, [&](rb_u64 at, rb_u64 i) { p.put<T>(at, make(i)); }, timeout_us);
}

/* Pops `count` elements; `use(i, value)` is called for each once, by the lanes of the scope in turn. */
template <class Scope = thread, class T, class Use>
RB_DEVICE gpu_result gpu_stream_pop_each(const rb_queue &q, gpu_popper &p, rb_u64 count, Use use, rb_u32 timeout_us = 0) {
  return detail::stream_each<Scope, T>(q, p, count, [&](rb_u64 at, rb_u64 i) { use(i, p.get<T>(at)); }, timeout_us);
}

/* Pushes one element (SMI_Push; `data.push` of ACCL+). Every lane of the scope gives the same. */
template <class Scope = thread, class T>
RB_DEVICE gpu_result gpu_stream_push(const rb_queue &q, gpu_pusher &p, const T &value, rb_u32 timeout_us = 0) {
  return gpu_stream_push_each<Scope>(q, p, 1, [&](rb_u64) { return value; }, timeout_us);
}

/* Pops one element (SMI_Pop); every lane of the scope gets it. */
template <class Scope = thread, class T>
RB_DEVICE gpu_result gpu_stream_pop(const rb_queue &q, gpu_popper &p, T *value, rb_u32 timeout_us = 0) {
  gpu_result r = detail::stream_turn<Scope>(q, p, false, sizeof(T), timeout_us);
  if (!r.ok()) return r;
  *value = p.get<T>(0);
  p.own += sizeof(T);
  r = detail::stream_turn<Scope>(q, p, true, 0, timeout_us);
  r.bytes = sizeof(T);
  return r;
}

/* Source or destination of a streamed operation: a stream or memory. */
struct operand {
  void *at;
  rb_u32 is_stream;
  RB_DEVICE operand(const rb_stream_handle &s) : at(reinterpret_cast<void *>(s.word)), is_stream(1) {}
  RB_DEVICE operand(const void *memory) : at(const_cast<void *>(memory)), is_stream(0) {}
};

} // namespace rb

#ifndef RINGBELL_NO_USING
using rb::gpu_popper;
using rb::gpu_pusher;
using rb::gpu_stream_pop;
using rb::gpu_stream_pop_each;
using rb::gpu_stream_push;
using rb::gpu_stream_push_each;
#endif

#endif /* RINGBELL_STREAM_CUH */
