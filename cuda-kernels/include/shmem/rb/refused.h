/* Calls of NVSHMEM that Ringbell has not yet: each is refused when it is compiled, with what to use instead.
 *
 * A template whose body is never valid: it costs nothing until a program calls it, and the message names the call.
 */
#ifndef RINGBELL_SHMEM_REFUSED_H
#define RINGBELL_SHMEM_REFUSED_H

#include "types.h"

namespace rb {
namespace shmem {
template <class...> struct never {
  static constexpr bool value = false;
};
} // namespace shmem
} // namespace rb

#define RB_SHMEM_REFUSED(NAME, INSTEAD)                                                                              \
  template <class... A> __host__ __device__ int NAME(A...) {                                                         \
    static_assert(rb::shmem::never<A...>::value, #NAME " is not there yet (docs/nvshmem.md): " INSTEAD);             \
    return 0;                                                                                                        \
  }

/* --- reductions without an operation or a type of the NIC ---------------------------------------------------------------- */

#define RB_SHMEM_NO_REDUCTION(NAME, OP, INSTEAD)               \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_##OP##_reduce, INSTEAD)    \
  RB_SHMEM_REFUSED(nvshmemx_##NAME##_##OP##_reduce_warp, INSTEAD) \
  RB_SHMEM_REFUSED(nvshmemx_##NAME##_##OP##_reduce_block, INSTEAD)
#define RB_SHMEM_NO_BITS(NAME)                                                                             \
  RB_SHMEM_NO_REDUCTION(NAME, and, "gather by nvshmem_" #NAME "_fcollect, and combine in the kernel")      \
  RB_SHMEM_NO_REDUCTION(NAME, or, "gather by nvshmem_" #NAME "_fcollect, and combine in the kernel")       \
  RB_SHMEM_NO_REDUCTION(NAME, xor, "gather by nvshmem_" #NAME "_fcollect, and combine in the kernel")
RB_SHMEM_NO_BITS(uchar)
RB_SHMEM_NO_BITS(ushort)
RB_SHMEM_NO_BITS(uint)
RB_SHMEM_NO_BITS(ulong)
RB_SHMEM_NO_BITS(ulonglong)
RB_SHMEM_NO_BITS(int8)
RB_SHMEM_NO_BITS(int16)
RB_SHMEM_NO_BITS(int32)
RB_SHMEM_NO_BITS(int64)
RB_SHMEM_NO_BITS(uint8)
RB_SHMEM_NO_BITS(uint16)
RB_SHMEM_NO_BITS(uint32)
RB_SHMEM_NO_BITS(uint64)
RB_SHMEM_NO_BITS(size)
#undef RB_SHMEM_NO_BITS
#define RB_SHMEM_NO_SHORT(NAME)                                                                   \
  RB_SHMEM_NO_REDUCTION(NAME, sum, "the NIC adds no words of 16 bits; use nvshmem_int_sum_reduce")  \
  RB_SHMEM_NO_REDUCTION(NAME, prod, "the NIC multiplies no words of 16 bits; use nvshmem_int_prod_reduce") \
  RB_SHMEM_NO_REDUCTION(NAME, min, "the NIC compares no words of 16 bits; use nvshmem_int_min_reduce") \
  RB_SHMEM_NO_REDUCTION(NAME, max, "the NIC compares no words of 16 bits; use nvshmem_int_max_reduce")
RB_SHMEM_NO_SHORT(short)
RB_SHMEM_NO_SHORT(ushort)
RB_SHMEM_NO_SHORT(int16)
RB_SHMEM_NO_SHORT(uint16)
#undef RB_SHMEM_NO_SHORT
#undef RB_SHMEM_NO_REDUCTION

/* --- teams by an id, and modules ------------------------------------------------------------------------------------------- */

RB_SHMEM_REFUSED(nvshmemx_team_init, "split a team by nvshmem_team_split_strided")
RB_SHMEM_REFUSED(nvshmemx_team_get_uniqueid, "split a team by nvshmem_team_split_strided")
RB_SHMEM_REFUSED(nvshmemx_mc_ptr, "put to each PE, or broadcast by nvshmem_broadcastmem")
RB_SHMEM_REFUSED(nvshmemx_cumodule_init, "compile the kernels with the program, by ringbell cc")
RB_SHMEM_REFUSED(nvshmemx_cumodule_finalize, "compile the kernels with the program, by ringbell cc")
RB_SHMEM_REFUSED(nvshmemx_culibrary_init, "compile the kernels with the program, by ringbell cc")
RB_SHMEM_REFUSED(nvshmemx_culibrary_finalize, "compile the kernels with the program, by ringbell cc")
RB_SHMEM_REFUSED(nvshmemx_buffer_register_symmetric, "allocate by nvshmem_malloc")
RB_SHMEM_REFUSED(nvshmemx_buffer_unregister_symmetric, "allocate by nvshmem_malloc")
RB_SHMEM_REFUSED(nvshmem_global_exit, "end the program; the launcher ends the other ranks")

#undef RB_SHMEM_REFUSED

#endif /* RINGBELL_SHMEM_REFUSED_H */
