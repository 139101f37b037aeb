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

/* --- atomics of 32 bits ------------------------------------------------------------------------------------------------ */

#define RB_SHMEM_SHORT(OP, NAME) \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_atomic_##OP, "atomics have 64 bits; use a word of uint64_t and nvshmem_uint64_atomic_" #OP)
#define RB_SHMEM_SHORT_ATOMICS(NAME, T)                                                                              \
  RB_SHMEM_SHORT(fetch, NAME) RB_SHMEM_SHORT(set, NAME) RB_SHMEM_SHORT(swap, NAME) RB_SHMEM_SHORT(compare_swap, NAME) \
  RB_SHMEM_SHORT(inc, NAME) RB_SHMEM_SHORT(fetch_inc, NAME) RB_SHMEM_SHORT(add, NAME) RB_SHMEM_SHORT(fetch_add, NAME)
RB_SHMEM_SHORT_ATOMIC_TYPES(RB_SHMEM_SHORT_ATOMICS)
#define RB_SHMEM_SHORT_BITS(NAME)                                                                                    \
  RB_SHMEM_SHORT(and, NAME) RB_SHMEM_SHORT(or, NAME) RB_SHMEM_SHORT(xor, NAME)                                       \
  RB_SHMEM_SHORT(fetch_and, NAME) RB_SHMEM_SHORT(fetch_or, NAME) RB_SHMEM_SHORT(fetch_xor, NAME)
RB_SHMEM_SHORT_BITS(uint)
RB_SHMEM_SHORT_BITS(int32)
RB_SHMEM_SHORT_BITS(uint32)
RB_SHMEM_SHORT(fetch, float)
RB_SHMEM_SHORT(set, float)
RB_SHMEM_SHORT(swap, float)
#undef RB_SHMEM_SHORT
#undef RB_SHMEM_SHORT_ATOMICS
#undef RB_SHMEM_SHORT_BITS

/* --- waits for several words, and for words of 16 bits ------------------------------------------------------------------- */

#define RB_SHMEM_SEVERAL(NAME, T)                                                                                     \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_wait_until_all, "wait for one word after the other by nvshmem_" #NAME "_wait_until") \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_wait_until_any, "look at the words in a loop by nvshmem_" #NAME "_test")          \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_wait_until_some, "look at the words in a loop by nvshmem_" #NAME "_test")         \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_wait_until_all_vector, "wait for one word after the other by nvshmem_" #NAME "_wait_until") \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_wait_until_any_vector, "look at the words in a loop by nvshmem_" #NAME "_test")   \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_wait_until_some_vector, "look at the words in a loop by nvshmem_" #NAME "_test")  \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_test_all, "look at one word after the other by nvshmem_" #NAME "_test")           \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_test_any, "look at the words in a loop by nvshmem_" #NAME "_test")                \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_test_some, "look at the words in a loop by nvshmem_" #NAME "_test")               \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_test_all_vector, "look at one word after the other by nvshmem_" #NAME "_test")    \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_test_any_vector, "look at the words in a loop by nvshmem_" #NAME "_test")         \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_test_some_vector, "look at the words in a loop by nvshmem_" #NAME "_test")
RB_SHMEM_WAIT_TYPES(RB_SHMEM_SEVERAL)
#undef RB_SHMEM_SEVERAL
RB_SHMEM_REFUSED(nvshmem_short_wait_until, "wait for a word of 32 or 64 bits, nvshmem_int_wait_until")
RB_SHMEM_REFUSED(nvshmem_ushort_wait_until, "wait for a word of 32 or 64 bits, nvshmem_uint_wait_until")
RB_SHMEM_REFUSED(nvshmem_short_test, "look at a word of 32 or 64 bits, nvshmem_int_test")
RB_SHMEM_REFUSED(nvshmem_ushort_test, "look at a word of 32 or 64 bits, nvshmem_uint_test")

/* --- strided puts and gets ------------------------------------------------------------------------------------------------ */

#define RB_SHMEM_STRIDED(NAME, T)                                                                                      \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_iput, "put each element by nvshmem_" #NAME "_p, or each row by nvshmem_" #NAME "_put_nbi") \
  RB_SHMEM_REFUSED(nvshmem_##NAME##_iget, "get each row by nvshmem_" #NAME "_get_nbi")                                 \
  RB_SHMEM_REFUSED(nvshmemx_##NAME##_iput_warp, "put each row by nvshmemx_" #NAME "_put_nbi_warp")                     \
  RB_SHMEM_REFUSED(nvshmemx_##NAME##_iput_block, "put each row by nvshmemx_" #NAME "_put_nbi_block")                   \
  RB_SHMEM_REFUSED(nvshmemx_##NAME##_iget_warp, "get each row by nvshmemx_" #NAME "_get_nbi_warp")                     \
  RB_SHMEM_REFUSED(nvshmemx_##NAME##_iget_block, "get each row by nvshmemx_" #NAME "_get_nbi_block")
RB_SHMEM_TYPES(RB_SHMEM_STRIDED)
#undef RB_SHMEM_STRIDED
#define RB_SHMEM_STRIDED(BITS)                                                            \
  RB_SHMEM_REFUSED(nvshmem_iput##BITS, "put each row by nvshmem_put" #BITS "_nbi")        \
  RB_SHMEM_REFUSED(nvshmem_iget##BITS, "get each row by nvshmem_get" #BITS "_nbi")
RB_SHMEM_SIZES(RB_SHMEM_STRIDED)
#undef RB_SHMEM_STRIDED

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

/* --- teams, contexts and modules ------------------------------------------------------------------------------------------- */

RB_SHMEM_REFUSED(nvshmem_team_split_strided, "collectives are the world's, NVSHMEM_TEAM_WORLD")
RB_SHMEM_REFUSED(nvshmem_team_split_2d, "collectives are the world's, NVSHMEM_TEAM_WORLD")
RB_SHMEM_REFUSED(nvshmemx_team_init, "collectives are the world's, NVSHMEM_TEAM_WORLD")
RB_SHMEM_REFUSED(nvshmem_team_translate_pe, "name PEs by their number in the world")
RB_SHMEM_REFUSED(nvshmem_team_get_config, "collectives are the world's, NVSHMEM_TEAM_WORLD")
RB_SHMEM_REFUSED(nvshmem_team_destroy, "collectives are the world's, NVSHMEM_TEAM_WORLD")
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
