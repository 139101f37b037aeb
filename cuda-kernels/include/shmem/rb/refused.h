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
