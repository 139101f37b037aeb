/* Reductions over tiles and coalesced groups: every thread gets the result. */
#ifndef RB_CUDA_COOPERATIVE_GROUPS_REDUCE_H
#define RB_CUDA_COOPERATIVE_GROUPS_REDUCE_H

#include "../cooperative_groups.h"

namespace cooperative_groups {
namespace __v1 {

#define RB_CG_OPERATOR(name, ...)                                                                    \
  template <class T = void> struct name {                                                            \
    RB_CG_METHOD T operator()(const T &a, const T &b) const { return __VA_ARGS__; }                  \
  };                                                                                                 \
  template <> struct name<void> {                                                                    \
    template <class T> RB_CG_METHOD T operator()(const T &a, const T &b) const { return __VA_ARGS__; } \
  };
RB_CG_OPERATOR(plus, a + b)
RB_CG_OPERATOR(less, b < a ? b : a)
RB_CG_OPERATOR(greater, a < b ? b : a)
RB_CG_OPERATOR(bit_and, a & b)
RB_CG_OPERATOR(bit_or, a | b)
RB_CG_OPERATOR(bit_xor, a ^ b)
#undef RB_CG_OPERATOR

template <unsigned Size, class Parent, class T, class Op>
RB_CG T reduce(const thread_block_tile<Size, Parent> &g, const T &value, Op op) {
  T v = value;
#pragma unroll
  for (unsigned d = Size / 2; d; d /= 2) v = op(v, g.shfl_xor(v, d));
  return v;
}
template <class T, class Op> RB_CG T reduce(const coalesced_group &g, const T &value, Op op) {
  T v = value;
  unsigned n = g.size(), rank = g.thread_rank();
  /* Thread `rank` has the values of `d` threads from it on, as far as there are. */
  for (unsigned d = 1; d < n; d *= 2) {
    T other = g.shfl_down(v, d);
    if (rank + d < n) v = op(v, other);
  }
  return g.shfl(v, 0);
}
/* Of each thread to one word in memory. */
template <class Group, class T, class Op> RB_CG void reduce_store_async(const Group &g, T *to, const T &value, Op op) {
  T v = reduce(g, value, op);
  if (g.thread_rank() == 0) *to = v;
}

} // namespace __v1
using namespace __v1;
} // namespace cooperative_groups

#endif /* RB_CUDA_COOPERATIVE_GROUPS_REDUCE_H */
