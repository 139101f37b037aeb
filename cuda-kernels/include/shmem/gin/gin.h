/* ncclGin: puts, values, gets, signals and flushes of a kernel. */
#ifndef RINGBELL_GIN_GIN_H
#define RINGBELL_GIN_GIN_H

#include "comm.h"

enum ncclGinOptFlags { ncclGinOptFlagsDefault = 0, ncclGinOptFlagsMaySkipCreditCheck = 1, ncclGinOptFlagsAggregateRequests = 2 };
enum ncclGinResourceSharingMode : uint8_t {
  NCCL_GIN_RESOURCE_SHARING_GPU = 0,
  NCCL_GIN_RESOURCE_SHARING_CTA = 1,
  NCCL_GIN_RESOURCE_SHARING_THREAD = 2,
};
typedef struct {
  uint64_t opaque[2];
} ncclGinRequest_t;

/* What a put does at the peer and here. Operations on one rank are executed in order, so every signal is a strong one. */
struct ncclGin_None {};
struct ncclGin_SignalInc { ncclGinSignal_t signal; };
struct ncclGin_SignalAdd { ncclGinSignal_t signal; uint64_t value; };
struct ncclGin_StrongSignalInc { ncclGinSignal_t signal; };
struct ncclGin_StrongSignalAdd { ncclGinSignal_t signal; uint64_t value; };
struct ncclGin_WeakSignalInc { ncclGinSignal_t signal; };
struct ncclGin_WeakSignalAdd { ncclGinSignal_t signal; uint64_t value; };
struct ncclGin_VASignalInc { ncclWindow_t signalWindow; size_t signalOffset; };
struct ncclGin_VASignalAdd { ncclWindow_t signalWindow; size_t signalOffset; uint64_t value; };
struct ncclGin_StrongVASignalInc { ncclWindow_t signalWindow; size_t signalOffset; };
struct ncclGin_StrongVASignalAdd { ncclWindow_t signalWindow; size_t signalOffset; uint64_t value; };
struct ncclGin_WeakVASignalInc { ncclWindow_t signalWindow; size_t signalOffset; };
struct ncclGin_WeakVASignalAdd { ncclWindow_t signalWindow; size_t signalOffset; uint64_t value; };
/* 1 is added when the put is in place: a strong one. */
struct ncclGin_CounterInc { ncclGinCounter_t counter; };
struct ncclGin_WeakCounterInc { ncclGinCounter_t counter; };
struct ncclGinDescriptorSmem { alignas(16) char space[64]; };
struct ncclGin_DescriptorSmem { ncclGinDescriptorSmem *descriptor; };
struct ncclGin_SegmentDevice {};

namespace rb {
namespace gin {

/* A signal's word, in the heap of its rank. */
struct signal_at {
  bool there;
  ncclWindow_t window;
  size_t offset;
  rb_u64 adds;
};
RB_DEVICE signal_at signal_of(const ncclDevComm &, ncclGin_None) { return signal_at{false, nullptr, 0, 0}; }
#define RB_GIN_SIGNAL(TYPE, ADDS)                                                          \
  RB_DEVICE signal_at signal_of(const ncclDevComm &c, TYPE a) {                            \
    return signal_at{true, c.resourceWindow, size_t(a.signal) * 8, ADDS};                  \
  }
RB_GIN_SIGNAL(ncclGin_SignalInc, 1)
RB_GIN_SIGNAL(ncclGin_StrongSignalInc, 1)
RB_GIN_SIGNAL(ncclGin_WeakSignalInc, 1)
RB_GIN_SIGNAL(ncclGin_SignalAdd, a.value)
RB_GIN_SIGNAL(ncclGin_StrongSignalAdd, a.value)
RB_GIN_SIGNAL(ncclGin_WeakSignalAdd, a.value)
#undef RB_GIN_SIGNAL
#define RB_GIN_SIGNAL(TYPE, ADDS) \
  RB_DEVICE signal_at signal_of(const ncclDevComm &, TYPE a) { return signal_at{true, a.signalWindow, a.signalOffset, ADDS}; }
RB_GIN_SIGNAL(ncclGin_VASignalInc, 1)
RB_GIN_SIGNAL(ncclGin_StrongVASignalInc, 1)
RB_GIN_SIGNAL(ncclGin_WeakVASignalInc, 1)
RB_GIN_SIGNAL(ncclGin_VASignalAdd, a.value)
RB_GIN_SIGNAL(ncclGin_StrongVASignalAdd, a.value)
RB_GIN_SIGNAL(ncclGin_WeakVASignalAdd, a.value)
#undef RB_GIN_SIGNAL

/* The word of a counter; null: none. */
RB_DEVICE rb_u64 *counter_word(const ncclDevComm &c, ncclGinCounter_t counter) {
  if (RB_UNLIKELY(counter >= uint32_t(c.ginCounterCount))) shmem::fail("a counter of ncclGin", c.rank, RB_STATUS_OUT_OF_BOUNDS, counter);
  return reinterpret_cast<rb_u64 *>(c.rb_words) + 2 * c.ginSignalCount + counter;
}
RB_DEVICE rb_u64 *counter_of(const ncclDevComm &, ncclGin_None) { return nullptr; }
RB_DEVICE rb_u64 *counter_of(const ncclDevComm &c, ncclGin_CounterInc a) { return counter_word(c, a.counter); }
RB_DEVICE rb_u64 *counter_of(const ncclDevComm &c, ncclGin_WeakCounterInc a) { return counter_word(c, a.counter); }

/* a <= b, where both have turned over after `bits`. */
RB_DEVICE bool rolled_to(rb_u64 a, rb_u64 b, int bits) {
  rb_u64 mask = ~rb_u64(0) >> (64 - bits);
  return ((b - a) & mask) <= mask >> 1;
}

/* Starts a put and its signal, in pieces. `flush` waits. */
RB_DEVICE void start_put(ncclWindow_t to, size_t to_offset, const void *from, size_t bytes, int rank, const signal_at &s, const char *call,
                         rb_u64 *counter = nullptr) {
  const shmem::state &w = shmem::world();
  rb_u32 flags = 0, word = 0;
  if (s.there) {
    inside(s.window, s.offset, 8, call, rank);
    rb_u64 at = in_heap(s.window, rank, s.offset);
    if (at & 7) shmem::fail(call, rank, RB_STATUS_INVALID_ARGUMENT, s.offset);
    flags = detail::signal_flags(false), word = rb_u32(at / 8);
  }
  if (!bytes && !s.there && !counter) return;
  gpu_remote there = bytes || !s.there ? place(to, rank, to_offset) : place(s.window, rank, s.offset);
  if (bytes) inside(to, to_offset, bytes, call, rank);
  size_t done = 0;
  do {
    size_t piece = bytes - done < MAX_PIECE ? bytes - done : MAX_PIECE;
    bool last = done + piece == bytes;
    shmem::start(detail::put_entry(there + done, static_cast<const char *>(from) + done, rb_u32(piece), w.timeout_us, 0, last ? flags : 0,
                                   word, s.adds),
                 call, rank, last ? counter : nullptr);
    done += piece;
  } while (done < bytes);
}

/* What one thread of a group does for all, between barriers. */
template <class Coop, class F> RB_DEVICE void by_leader(Coop coop, F work) {
  coop.sync();
  if (coop.thread_rank() == 0) work();
  coop.sync();
}

} // namespace gin
} // namespace rb

struct ncclGin {
  const ncclDevComm &comm;
  uint32_t contextId;

  /* All contexts are one. */
  RB_DEVICE ncclGin(const ncclDevComm &c, int context, ncclGinResourceSharingMode = NCCL_GIN_RESOURCE_SHARING_GPU)
      : comm(c), contextId(uint32_t(context)) {}

  /* Writes to a rank's part of a window. The source may be used again after `flush`. */
  template <class RemoteAction = ncclGin_None, class LocalAction = ncclGin_None, class Coop = ncclCoopThread, class Descriptor = ncclGin_None,
            class Segment = ncclGin_SegmentDevice>
  RB_DEVICE void put(ncclTeam team, int peer, ncclWindow_t to, size_t to_offset, ncclWindow_t from, size_t from_offset, size_t bytes,
                     RemoteAction remote = RemoteAction{}, LocalAction local = LocalAction{}, Coop coop = Coop{}, Descriptor = Descriptor{},
                     cuda::thread_scope = cuda::thread_scope_thread, cuda::thread_scope = cuda::thread_scope_device,
                     uint32_t = ncclGinOptFlagsDefault, Segment = Segment{}) const {
    rb::gin::by_leader(coop, [&] {
      int rank = ncclTeamRankToWorld(comm, team, peer);
      rb::gin::inside(from, from_offset, bytes, "ncclGin::put", rank);
      rb::gin::start_put(to, to_offset, ncclGetLocalPointer(from, from_offset), bytes, rank, rb::gin::signal_of(comm, remote), "ncclGin::put",
                         rb::gin::counter_of(comm, local));
    });
  }
  template <class T, class RemoteAction = ncclGin_None, class LocalAction = ncclGin_None, class Coop = ncclCoopThread>
  RB_DEVICE void put(ncclTeam team, int peer, ncclSymPtr<T> to, ncclSymPtr<T> from, size_t count, RemoteAction remote = RemoteAction{},
                     LocalAction local = LocalAction{}, Coop coop = Coop{}) const {
    put(team, peer, to.window, to.offset, from.window, from.offset, count * sizeof(T), remote, local, coop);
  }

  /* Writes a value of at most 8 bytes. */
  template <class T, class RemoteAction = ncclGin_None, class Coop = ncclCoopThread, class Descriptor = ncclGin_None>
  RB_DEVICE void putValue(ncclTeam team, int peer, ncclWindow_t to, size_t to_offset, T value, RemoteAction remote = RemoteAction{},
                          Coop coop = Coop{}, Descriptor = Descriptor{}, cuda::thread_scope = cuda::thread_scope_thread,
                          cuda::thread_scope = cuda::thread_scope_device, uint32_t = ncclGinOptFlagsDefault) const {
    static_assert(sizeof(T) <= RB_PUT_INLINE_MAX, "ncclGin::putValue takes at most 8 bytes; use put");
    rb::gin::by_leader(coop, [&] {
      rb::gin::start_put(to, to_offset, &value, sizeof(T), ncclTeamRankToWorld(comm, team, peer), rb::gin::signal_of(comm, remote),
                         "ncclGin::putValue");
    });
  }
  template <class T, class RemoteAction = ncclGin_None, class Coop = ncclCoopThread>
  RB_DEVICE void putValue(ncclTeam team, int peer, ncclSymPtr<T> to, T value, RemoteAction remote = RemoteAction{}, Coop coop = Coop{}) const {
    putValue(team, peer, to.window, to.offset, value, remote, coop);
  }

  /* A signal alone, behind every put to that rank before. */
  template <class RemoteAction, class Coop = ncclCoopThread, class Descriptor = ncclGin_None>
  RB_DEVICE void signal(ncclTeam team, int peer, RemoteAction remote, Coop coop = Coop{}, Descriptor = Descriptor{},
                        cuda::thread_scope = cuda::thread_scope_thread, cuda::thread_scope = cuda::thread_scope_device,
                        uint32_t = ncclGinOptFlagsDefault) const {
    rb::gin::by_leader(coop, [&] {
      rb::gin::start_put(nullptr, 0, nullptr, 0, ncclTeamRankToWorld(comm, team, peer), rb::gin::signal_of(comm, remote), "ncclGin::signal");
    });
  }

  /* Reads a rank's part of a window; the bytes are here after `flush`. */
  template <class Coop = ncclCoopThread, class Descriptor = ncclGin_None>
  RB_DEVICE void get(ncclTeam team, int peer, ncclWindow_t from, size_t from_offset, ncclWindow_t to, size_t to_offset, size_t bytes,
                     Coop coop = Coop{}, Descriptor = Descriptor{}, uint32_t = ncclGinOptFlagsDefault) const {
    rb::gin::by_leader(coop, [&] {
      int rank = ncclTeamRankToWorld(comm, team, peer);
      rb::gin::inside(from, from_offset, bytes, "ncclGin::get", rank);
      rb::gin::inside(to, to_offset, bytes, "ncclGin::get", rank);
      rb::gpu_remote there = rb::gin::place(from, rank, from_offset);
      char *here = static_cast<char *>(ncclGetLocalPointer(to, to_offset));
      for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < rb::MAX_PIECE ? bytes - done : rb::MAX_PIECE;
        rb::shmem::start(rb::detail::get_entry(here + done, there + done, rb_u32(piece), rb::shmem::world().timeout_us, 0), "ncclGin::get", rank);
        done += piece;
      }
    });
  }

  /* Waits until everything that this rank has posted is in place. */
  template <class Coop, class Descriptor = ncclGin_None>
  RB_DEVICE void flush(Coop coop, cuda::memory_order = cuda::memory_order_acquire, Descriptor = Descriptor{}) const {
    rb::gin::by_leader(coop, [] { rb::shmem::quiet(); });
  }
  template <class Coop = ncclCoopThread, class Descriptor = ncclGin_None>
  RB_DEVICE void flushAsync(ncclTeam, uint32_t peer, ncclGinRequest_t *request, Coop coop = Coop{}, uint32_t = ncclGinOptFlagsDefault,
                            Descriptor = Descriptor{}) const {
    rb::gin::by_leader(coop, [&] { *request = ncclGinRequest_t{{peer, 0}}; });
  }
  template <class Coop = ncclCoopThread, class Descriptor = ncclGin_None>
  RB_DEVICE void wait(ncclGinRequest_t &, Coop coop = Coop{}, Descriptor descriptor = Descriptor{},
                      cuda::memory_order order = cuda::memory_order_acquire) const {
    flush(coop, order, descriptor);
  }

  /* --- signals of this rank --- */

  RB_DEVICE uint64_t readSignal(ncclGinSignal_t signal, int bits = 64, cuda::memory_order = cuda::memory_order_acquire) const {
    return rb::shmem::load(word(signal)) & ~uint64_t(0) >> (64 - bits);
  }
  RB_DEVICE uint64_t readSignal(ncclWindow_t w, size_t offset, int bits = 64, cuda::memory_order = cuda::memory_order_acquire) const {
    return rb::shmem::load(static_cast<const uint64_t *>(ncclGetLocalPointer(w, offset))) & ~uint64_t(0) >> (64 - bits);
  }
  template <class Coop>
  RB_DEVICE void waitSignal(Coop coop, ncclGinSignal_t signal, uint64_t least, int bits = 64,
                            cuda::memory_order = cuda::memory_order_acquire) const {
    wait_for(coop, word(signal), least, bits);
  }
  template <class Coop>
  RB_DEVICE void waitSignal(Coop coop, ncclWindow_t w, size_t offset, uint64_t least, int bits = 64,
                            cuda::memory_order = cuda::memory_order_acquire) const {
    wait_for(coop, static_cast<const uint64_t *>(ncclGetLocalPointer(w, offset)), least, bits);
  }
  RB_DEVICE uint64_t *getSignalShadowPtr(ncclGinSignal_t signal) const { return word(uint32_t(comm.ginSignalCount) + signal); }
  RB_DEVICE void increaseSignalShadow(ncclGinSignal_t signal, uint64_t delta) const { *getSignalShadowPtr(signal) += delta; }
  template <class Coop>
  RB_DEVICE void waitSignalMeetShadow(Coop coop, ncclGinSignal_t signal, int bits = 64,
                                      cuda::memory_order order = cuda::memory_order_acquire) const {
    waitSignal(coop, signal, *getSignalShadowPtr(signal), bits, order);
  }
  /* The shadow becomes the signal's value. */
  template <class Coop, class Uint>
  RB_DEVICE void waitSignalFollowShadow(Coop coop, ncclGinSignal_t signal, Uint least, Uint *before, Uint *delta, int bits = 64,
                                        cuda::memory_order order = cuda::memory_order_acquire) const {
    uint64_t *shadow = getSignalShadowPtr(signal), was = *shadow;
    waitSignal(coop, signal, was + least, bits, order);
    uint64_t now = readSignal(signal, bits);
    coop.sync();
    if (coop.thread_rank() == 0) *shadow = now;
    coop.sync();
    *before = Uint(was), *delta = Uint((now - was) & ~uint64_t(0) >> (64 - bits));
  }
  /* While nobody signals. */
  RB_DEVICE void resetSignal(ncclGinSignal_t signal) const {
    rb::detail::store_release(reinterpret_cast<rb_u64 *>(word(signal)), rb_u64(0));
    *getSignalShadowPtr(signal) = 0;
  }
  RB_DEVICE void resetSignal(ncclWindow_t w, size_t offset) const {
    rb::detail::store_release(static_cast<rb_u64 *>(ncclGetLocalPointer(w, offset)), rb_u64(0));
  }

  /* --- counters of this rank --- */

  RB_DEVICE uint64_t readCounter(ncclGinCounter_t counter, int bits = 56, cuda::memory_order = cuda::memory_order_acquire) const {
    rb::shmem::settle_what_has_ended(rb::shmem::world());
    return rb::shmem::load(rb::gin::counter_word(comm, counter)) & ~uint64_t(0) >> (64 - bits);
  }
  template <class Coop>
  RB_DEVICE void waitCounter(Coop coop, ncclGinCounter_t counter, uint64_t least, int bits = 56,
                             cuda::memory_order = cuda::memory_order_acquire) const {
    rb::gin::by_leader(coop, [&] {
      rb::shmem::wait_for("ncclGin::waitCounter", [&] { return rb::gin::rolled_to(least, readCounter(counter, bits), bits); });
    });
  }
  /* While no put that counts is under way. */
  RB_DEVICE void resetCounter(ncclGinCounter_t counter) const {
    rb::detail::store_release(rb::gin::counter_word(comm, counter), rb_u64(0));
  }

 private:
  RB_DEVICE uint64_t *word(uint32_t i) const { return reinterpret_cast<uint64_t *>(comm.rb_words) + i; }
  template <class Coop> static RB_DEVICE void wait_for(Coop coop, const uint64_t *at, uint64_t least, int bits) {
    rb::gin::by_leader(coop, [&] {
      const rb::shmem::state &w = rb::shmem::world();
      rb::detail::bounded_wait bound(w.timeout_us);
      for (;;) {
        rb_u64 now = rb::shmem::load(at);
        if (rb::gin::rolled_to(least, now, bits)) return;
        if (!bound.turn()) return rb::shmem::fail("ncclGin::waitSignal", int(w.comm.rank), RB_STATUS_TIMED_OUT, now);
      }
    });
  }
};

#endif /* RINGBELL_GIN_GIN_H */
