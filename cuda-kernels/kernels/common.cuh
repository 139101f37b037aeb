// Common parts of kernels: the data pattern with its check, and an in-order window of operations.
#ifndef RINGBELL_KERNELS_COMMON_CUH
#define RINGBELL_KERNELS_COMMON_CUH

#include "ringbell.cuh"

namespace rbk {

// The result of a measuring kernel. Mirrored by `PerfResult` in src/perf.rs.
struct perf_result {
  rb_u32 status;
  rb_u32 reserved;
  rb_u64 detail;
  rb_u64 messages;  // messages that the status covers
  rb_u64 bytes;     // payload bytes moved in the timed part
  rb_u64 wrong;     // 8-byte words (the last may be shorter) that differed from what was expected
  rb_u64 elapsed_ns; // timed part, warm-up excluded
};

// Word `j` of message `i` of the stream `seed`: every rank, message and place differs, so that a
// message that is lost, doubled, shifted or another's is seen.
RB_DEVICE rb_u64 pattern(rb_u64 seed, rb_u64 i, rb_u64 j) {
  rb_u64 z = (seed * 0x9e3779b97f4a7c15ull) ^ (i * 0xbf58476d1ce4e5b9ull) ^ ((j + 1) * 0x94d049bb133111ebull);
  return z ^ (z >> 29);
}

// A message in memory: words, the last one maybe shorter.
struct message {
  unsigned char *at;
  rb_u64 len;
  RB_DEVICE rb_u64 words() const { return (len + 7) / 8; }
  RB_DEVICE rb_u64 word_bytes(rb_u64 j) const { return len - j * 8 < 8 ? len - j * 8 : 8; }
  RB_DEVICE void put(rb_u64 j, rb_u64 v) const {
    if (word_bytes(j) == 8 && (reinterpret_cast<rb_u64>(at) & 7) == 0) {
      *reinterpret_cast<rb_u64 *>(at + j * 8) = v;
      return;
    }
    for (rb_u64 b = 0; b < word_bytes(j); ++b) at[j * 8 + b] = (unsigned char)(v >> (b * 8));
  }
  RB_DEVICE bool holds(rb_u64 j, rb_u64 v) const {
    // Not volatile: the completion that was acquired before orders these reads.
    if (word_bytes(j) == 8 && (reinterpret_cast<rb_u64>(at) & 7) == 0) return *reinterpret_cast<const rb_u64 *>(at + j * 8) == v;
    for (rb_u64 b = 0; b < word_bytes(j); ++b)
      if (at[j * 8 + b] != (unsigned char)(v >> (b * 8))) return false;
    return true;
  }
  // First and last word always carry the message's number; the body carries it only when `full`, so
  // that a timed run need not rewrite it and still notices a message that is not the one expected.
  RB_DEVICE rb_u64 expected(rb_u64 seed, rb_u64 i, rb_u64 j, bool full) const {
    return pattern(seed, full || j == 0 || j + 1 == words() ? i : 0, j);
  }
  // Every lane of the block fills its share.
  RB_DEVICE void fill(rb_u64 seed, rb_u64 i, bool full) const {
    for (rb_u64 j = rb::detail::thread_index(); j < words(); j += blockDim.x) put(j, expected(seed, i, j, full));
  }
  RB_DEVICE void stamp(rb_u64 seed, rb_u64 i) const {
    if (!len) return;
    put(0, pattern(seed, i, 0));
    put(words() - 1, pattern(seed, i, words() - 1));
  }
  RB_DEVICE rb_u64 wrong_ends(rb_u64 seed, rb_u64 i) const {
    if (!len) return 0;
    rb_u64 last = words() - 1;
    return !holds(0, pattern(seed, i, 0)) + (last && !holds(last, pattern(seed, i, last)));
  }
  // The calling lane's share of the wrong words.
  RB_DEVICE rb_u64 wrong_words(rb_u64 seed, rb_u64 i, bool full) const {
    rb_u64 wrong = 0;
    for (rb_u64 j = rb::detail::thread_index(); j < words(); j += blockDim.x) wrong += !holds(j, expected(seed, i, j, full));
    return wrong;
  }
};

// Operations of one thread in flight, waited for in order. Their tickets lie in memory of the kernel's,
// shared memory: an array of the thread's own would lie on its stack, which is memory far away.
struct window {
  static constexpr rb_u32 MAX = 256;
  rb_u32 *ticket; // MAX of them, the thread's own
  rb_u32 size, first = 0, count = 0;
  RB_DEVICE window(const rb_queue &q, rb_u32 want, rb_u32 *tickets) : ticket(tickets) {
    rb_u32 depth = 1u << q.depth_log2;
    size = want < 1 ? 1 : want;
    if (size > depth) size = depth;
    if (size > MAX) size = MAX;
  }
  RB_DEVICE bool full() const { return count == size; }
  // Posts; `full()` must be false. Other producers of the queue may hold its slots meanwhile.
  RB_DEVICE bool push(const rb_queue &q, const rb::detail::entry &e, rb_u32 timeout_us) {
    if (!rb::detail::post(q, e, timeout_us, true, &ticket[(first + count) % MAX])) return false;
    ++count;
    return true;
  }
  RB_DEVICE gpu_result pop(const rb_queue &q, rb_u32 timeout_us) {
    gpu_result r = rb::detail::result_of(rb::detail::wait(q, ticket[first], timeout_us));
    first = (first + 1) % MAX;
    --count;
    return r;
  }
};

} // namespace rbk

#endif
