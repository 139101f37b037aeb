/* Puts and gets of elements that do not lie behind each other, each an operation of its own. The threads of a scope share them. */
#ifndef RINGBELL_SHMEM_STRIDED_H
#define RINGBELL_SHMEM_STRIDED_H

#include "../../ringbell_move.cuh"
#include "operations.h"

namespace rb {
namespace shmem {

/* Strides are in elements of `bytes` bytes. Plain data. */
struct strided {
  char *to;
  const char *from;
  ptrdiff_t to_stride, from_stride;
  size_t bytes, count;
  int pe;

  RB_DEVICE char *to_at(size_t i) const { return to + ptrdiff_t(i) * to_stride * ptrdiff_t(bytes); }
  RB_DEVICE const char *from_at(size_t i) const { return from + ptrdiff_t(i) * from_stride * ptrdiff_t(bytes); }
};

/* Every thread posts its elements; all wait for everything that was posted. */
template <class Scope, class F> RB_DEVICE void each(const strided &s, F post) {
  lanes who = detail::lanes_in<Scope>::all();
  once<Scope>([] {});
  for (size_t i = who.index; i < s.count; i += who.count) post(i);
  once<Scope>([] { quiet(); });
}

template <class Scope> RB_DEVICE void put_strided(const strided &s) {
  rb_u32 timeout_us = world().timeout_us;
  each<Scope>(s, [&](size_t i) {
    start(detail::put_entry(place(s.to_at(i), s.pe), s.from_at(i), rb_u32(s.bytes), timeout_us, 0, 0, 0, 0), "nvshmem_iput", s.pe);
  });
}

template <class Scope> RB_DEVICE void get_strided(const strided &s) {
  rb_u32 timeout_us = world().timeout_us;
  each<Scope>(s, [&](size_t i) {
    start(detail::get_entry(s.to_at(i), place(s.from_at(i), s.pe), rb_u32(s.bytes), timeout_us, 0), "nvshmem_iget", s.pe);
  });
}

} // namespace shmem
} // namespace rb

#endif /* RINGBELL_SHMEM_STRIDED_H */
