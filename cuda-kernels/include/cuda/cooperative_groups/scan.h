/* Prefix sums, or of another operator, over tiles and coalesced groups. */
#ifndef RB_CUDA_COOPERATIVE_GROUPS_SCAN_H
#define RB_CUDA_COOPERATIVE_GROUPS_SCAN_H

#include "reduce.h"

namespace cooperative_groups {
namespace __v1 {

template <class Group, class T, class Op> RB_CG T inclusive_scan(const Group &g, const T &value, Op op) {
  T v = value;
  unsigned n = g.num_threads(), rank = g.thread_rank();
  for (unsigned d = 1; d < n; d *= 2) {
    T other = g.shfl_up(v, d);
    if (rank >= d) v = op(other, v);
  }
  return v;
}
template <class Group, class T> RB_CG T inclusive_scan(const Group &g, const T &value) { return inclusive_scan(g, value, plus<T>()); }
/* The first thread gets T{}. */
template <class Group, class T, class Op> RB_CG T exclusive_scan(const Group &g, const T &value, Op op) {
  T v = g.shfl_up(inclusive_scan(g, value, op), 1);
  return g.thread_rank() == 0 ? T{} : v;
}
template <class Group, class T> RB_CG T exclusive_scan(const Group &g, const T &value) { return exclusive_scan(g, value, plus<T>()); }

} // namespace __v1
using namespace __v1;
} // namespace cooperative_groups

#endif /* RB_CUDA_COOPERATIVE_GROUPS_SCAN_H */
