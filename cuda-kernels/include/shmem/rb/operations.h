/* Puts, gets and values of kernels by bytes, which the names of each type are made of.
 *
 * A put that is waited for returns when its bytes are in place at the PE, and not only when the source may be used again.
 * Operations on one PE are executed in the order in which they were posted, so a fence has nothing to do.
 */
#ifndef RINGBELL_SHMEM_OPERATIONS_H
#define RINGBELL_SHMEM_OPERATIONS_H

#include <string.h>

#include "state.h"
#include "types.h"

namespace rb {
namespace shmem {

/* A signal at the end of a put. */
struct signal_of {
  const uint64_t *word; /* null: none */
  rb_u64 value;
  int op;
};

RB_DEVICE rb_u32 word_of(const state &w, const void *word) { return rb_u32((reinterpret_cast<rb_u64>(word) - w.heap) / 8); }

/* Does something once for all threads of a scope, between barriers. */
template <class Scope, class F> RB_DEVICE void once(F work) {
  detail::scoped<Scope>::template run<rb_u32>([&] {
    work();
    return 0u;
  });
}

/* In pieces of MAX_PIECE; the signal is the last one's. */
template <class Scope> RB_DEVICE void put(void *to, const void *from, size_t bytes, int pe, bool waits, const signal_of &s, const char *call) {
  once<Scope>([&] {
    const state w = world();
    rb_u32 flags = !s.word ? 0 : detail::signal_flags(s.op == NVSHMEM_SIGNAL_SET), word = s.word ? word_of(w, s.word) : 0;
    if (s.word && (reinterpret_cast<rb_u64>(s.word) & 7)) return fail(call, pe, RB_STATUS_INVALID_ARGUMENT, reinterpret_cast<rb_u64>(s.word));
    if (!bytes && !flags) return;
    gpu_remote there = place(bytes ? to : s.word, pe);
    size_t done = 0;
    do {
      size_t piece = bytes - done < MAX_PIECE ? bytes - done : MAX_PIECE;
      bool last = done + piece == bytes;
      detail::entry e = detail::put_entry(there + done, static_cast<const char *>(from) + done, rb_u32(piece), w.timeout_us, 0,
                                          last ? flags : 0, word, s.value);
      waits ? void(run(e, call, pe)) : start(e, call, pe);
      done += piece;
    } while (done < bytes);
  });
}

template <class Scope> RB_DEVICE void get(void *to, const void *from, size_t bytes, int pe, bool waits, const char *call) {
  once<Scope>([&] {
    const state w = world();
    gpu_remote there = place(from, pe);
    for (size_t done = 0; done < bytes;) {
      size_t piece = bytes - done < MAX_PIECE ? bytes - done : MAX_PIECE;
      detail::entry e = detail::get_entry(static_cast<char *>(to) + done, there + done, rb_u32(piece), w.timeout_us, 0);
      waits ? void(run(e, call, pe)) : start(e, call, pe);
      done += piece;
    }
  });
}

/* A value, which travels inside the descriptor: the first `bytes` of these. */
RB_DEVICE void put_value(void *to, rb_u64 bits, rb_u32 bytes, int pe) {
  start(detail::put_entry(place(to, pe), &bits, bytes, world().timeout_us, 0, 0, 0, 0), "nvshmem_p", pe);
}

/* A value of another PE: nothing is added to the aligned word around it, which tells its value. So it needs no memory here. */
RB_DEVICE rb_u64 get_value(const void *from, rb_u32 bytes, int pe, const char *call) {
  rb_u64 at = reinterpret_cast<rb_u64>(from), skip = at & 7;
  if (skip + bytes > 8) fail("a value of an address that is not aligned", pe, RB_STATUS_INVALID_ARGUMENT, at);
  gpu_remote word = place(reinterpret_cast<const void *>(at - skip), pe);
  return run(detail::remote_entry(RB_OP_FETCH_ADD, word, 0, world().timeout_us), call, pe) >> skip * 8;
}

/* The bytes of a value, and a value of its bytes. */
template <class T> __host__ __device__ __forceinline__ rb_u64 bits_of(const T &value) {
  static_assert(sizeof(T) <= 8, "a value of at most 8 bytes");
  rb_u64 bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T> __host__ __device__ __forceinline__ T of_bits(rb_u64 bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

} // namespace shmem
} // namespace rb

#endif /* RINGBELL_SHMEM_OPERATIONS_H */
