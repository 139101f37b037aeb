/* Waits for words of this PE, and looks at them: one, or several of an array.
 *
 * Of several, those count whose status is 0, or all without statuses; `values` has a value for each word, or `value` is that of all
 * (OpenSHMEM 1.5 §9.9).
 */
#ifndef RINGBELL_SHMEM_WAITS_H
#define RINGBELL_SHMEM_WAITS_H

#include "operations.h"

namespace rb {
namespace shmem {

template <class T> RB_DEVICE bool holds(T a, int cmp, T b) {
  switch (cmp) {
  case NVSHMEM_CMP_EQ: return a == b;
  case NVSHMEM_CMP_NE: return a != b;
  case NVSHMEM_CMP_GT: return a > b;
  case NVSHMEM_CMP_LE: return a <= b;
  case NVSHMEM_CMP_LT: return a < b;
  default: return a >= b;
  }
}

/* Acquire: what was put before the word is visible then. */
template <class T> RB_DEVICE T load(const T *word) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "a word of 16, 32 or 64 bits");
  if (sizeof(T) == 8) return T(detail::load_acquire(reinterpret_cast<const rb_u64 *>(word)));
  if (sizeof(T) == 4) return T(detail::load_acquire(reinterpret_cast<const rb_u32 *>(word)));
  rb_u64 at = reinterpret_cast<rb_u64>(word);
  return T(detail::load_acquire(reinterpret_cast<const rb_u32 *>(at & ~rb_u64(3))) >> (at & 2) * 8);
}

/* Waits until `is_there`, or ends the kernel. */
template <class F> RB_DEVICE void wait_for(const char *call, F is_there) {
  const state w = world();
  detail::bounded_wait bound(w.timeout_us);
  while (!is_there())
    if (!bound.turn()) return fail(call, int(w.comm.rank), RB_STATUS_TIMED_OUT, 0);
}

/* Waits for a word of this PE; gives its value. */
template <class T> RB_DEVICE T wait_until(const T *word, int cmp, T value, const char *call) {
  const state w = world();
  detail::bounded_wait bound(w.timeout_us);
  for (;;) {
    T now = load(word);
    if (holds(now, cmp, value)) return now;
    if (!bound.turn()) {
      fail(call, int(w.comm.rank), RB_STATUS_TIMED_OUT, rb_u64(now));
      return now;
    }
  }
}

/* Words of an array. Plain data. */
template <class T> struct several {
  const T *words;
  size_t count;
  const int *status;
  int cmp;
  const T *values; /* null: `value` is all words' */
  T value;

  RB_DEVICE bool counts(size_t i) const { return !status || status[i] == 0; }
  RB_DEVICE bool is_empty() const {
    for (size_t i = 0; i < count; ++i)
      if (counts(i)) return false;
    return true;
  }
  RB_DEVICE bool is_there(size_t i) const { return holds(load(words + i), cmp, values ? values[i] : value); }

  RB_DEVICE bool test_all() const {
    for (size_t i = 0; i < count; ++i)
      if (counts(i) && !is_there(i)) return false;
    return true;
  }
  /* The number of a word that is there, or SIZE_MAX. The look begins at any word, so that none is always last. */
  RB_DEVICE size_t test_any() const {
    if (!count) return SIZE_MAX;
    rb_u64 i = detail::first_of(count, detail::clock_ns() / 32 % count, [&](rb_u64 k) { return counts(k) && is_there(k); });
    return i < count ? i : SIZE_MAX;
  }
  /* Numbers of all that are there; how many. */
  RB_DEVICE size_t test_some(size_t *indices) const {
    size_t found = 0;
    for (size_t i = 0; i < count; ++i)
      if (counts(i) && is_there(i)) indices[found++] = i;
    return found;
  }

  RB_DEVICE void wait_all(const char *call) const {
    wait_for(call, [&] { return test_all(); });
  }
  RB_DEVICE size_t wait_any(const char *call) const {
    size_t found = SIZE_MAX;
    if (!is_empty()) wait_for(call, [&] { return (found = test_any()) != SIZE_MAX; });
    return found;
  }
  RB_DEVICE size_t wait_some(size_t *indices, const char *call) const {
    size_t found = 0;
    if (!is_empty()) wait_for(call, [&] { return (found = test_some(indices)) != 0; });
    return found;
  }
};

} // namespace shmem
} // namespace rb

#endif /* RINGBELL_SHMEM_WAITS_H */
