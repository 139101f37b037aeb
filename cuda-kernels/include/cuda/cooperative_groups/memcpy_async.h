/* Copies by a group. Each thread copies its part at once; `wait` is the barrier after which all parts are there. */
#ifndef RB_CUDA_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H
#define RB_CUDA_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H

#include "../cooperative_groups.h"

namespace cooperative_groups {
namespace __v1 {

template <class Group, class T, class U> RB_CG void memcpy_async(const Group &g, T *to, const U *from, unsigned long bytes) {
  unsigned long address = (unsigned long)to | (unsigned long)from | bytes, rank = g.thread_rank(), n = g.num_threads();
  if (address % 16 == 0) {
    for (unsigned long i = rank; i < bytes / 16; i += n) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
  } else if (address % 4 == 0) {
    for (unsigned long i = rank; i < bytes / 4; i += n) ((unsigned *)to)[i] = ((const unsigned *)from)[i];
  } else {
    for (unsigned long i = rank; i < bytes; i += n) ((char *)to)[i] = ((const char *)from)[i];
  }
}
/* With a number of elements, and the room of the destination. */
template <class Group, class T> RB_CG void memcpy_async(const Group &g, T *to, unsigned long room, const T *from, unsigned long n) {
  memcpy_async(g, to, from, (room < n ? room : n) * sizeof(T));
}
template <class Group> RB_CG void wait(const Group &g) { g.sync(); }
template <unsigned stages, class Group> RB_CG void wait_prior(const Group &g) { g.sync(); }

} // namespace __v1
using namespace __v1;
} // namespace cooperative_groups

#endif /* RB_CUDA_COOPERATIVE_GROUPS_MEMCPY_ASYNC_H */
