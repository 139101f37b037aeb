/* Atomics on words of a PE, of 64 and of 32 bits.
 *
 * The NIC adds to a word of 64 bits, and compares and swaps one. Everything else is compared and swapped until no other update has come
 * between: two round trips, and more where others update the same 64 bits.
 */
#ifndef RINGBELL_SHMEM_ATOMICS_H
#define RINGBELL_SHMEM_ATOMICS_H

#include "operations.h"

namespace rb {
namespace shmem {

/* The bits of a value as a word of its size. */
template <size_t SIZE> struct word_of_size;
template <> struct word_of_size<4> { using type = rb_u32; };
template <> struct word_of_size<8> { using type = rb_u64; };
template <class T> using word_for = typename word_of_size<sizeof(T)>::type;

/* Posts an entry, and waits for its end. A refusal has ended the kernel. */
struct posting {
  const char *call;
  int pe;
  RB_DEVICE gpu_result operator()(const detail::entry &e) const { return gpu_result{RB_STATUS_OK, 0, 0, run(e, call, pe)}; }
};

/* Replaces a word by `next` of it; its value before. */
template <class T, class F> RB_DEVICE word_for<T> update(const T *at, int pe, const char *call, F next) {
  rb_u32 timeout_us = world().timeout_us;
  gpu_remote there = place(at, pe);
  posting post{call, pe};
  if constexpr (sizeof(T) == 4) {
    gpu_result r = detail::update_half(there, timeout_us, post, next);
    check(call, pe, r);
    return rb_u32(r.detail);
  } else {
    rb_u64 before = post(detail::remote_entry(RB_OP_FETCH_ADD, there, 0, timeout_us)).detail;
    for (;;) {
      rb_u64 seen = post(detail::cas_entry(there, before, next(before), timeout_us)).detail;
      if (seen == before) return before;
      before = seen;
    }
  }
}

template <class T> RB_DEVICE T fetch_add(const T *at, T value, int pe, const char *call) {
  rb_u32 timeout_us = world().timeout_us;
  gpu_remote there = place(at, pe);
  posting post{call, pe};
  gpu_result r = sizeof(T) == 4 ? detail::add_to_half(there, rb_u32(value), timeout_us, post)
                                : post(detail::remote_entry(RB_OP_FETCH_ADD, there, rb_u64(value), timeout_us));
  check(call, pe, r);
  return T(r.detail);
}

template <class T> RB_DEVICE T compare_swap(const T *at, T compare, T swap, int pe, const char *call) {
  if constexpr (sizeof(T) == 4) {
    return T(update(at, pe, call, [&](rb_u32 before) { return before == rb_u32(compare) ? rb_u32(swap) : before; }));
  } else {
    return T(run(detail::cas_entry(place(at, pe), rb_u64(compare), rb_u64(swap), world().timeout_us), call, pe));
  }
}

/* The value of a word: nothing is added to it. */
template <class T> RB_DEVICE T fetch(const T *at, int pe, const char *call) { return of_bits<T>(get_value(at, sizeof(T), pe, call)); }

template <class T> RB_DEVICE T swap(const T *at, T value, int pe, const char *call) {
  return of_bits<T>(update(at, pe, call, [&](word_for<T>) { return word_for<T>(bits_of(value)); }));
}

} // namespace shmem
} // namespace rb

#endif /* RINGBELL_SHMEM_ATOMICS_H */
