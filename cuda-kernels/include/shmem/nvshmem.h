/* NVSHMEM's names for kernels and programs, on Ringbell's one-sided operations: puts, gets, signals, atomics, collectives.
 *
 *   #include <nvshmem.h>
 *   #include <nvshmemx.h>
 *   __global__ void shift(int *to) { nvshmem_int_p(to, nvshmem_my_pe(), (nvshmem_my_pe() + 1) % nvshmem_n_pes()); }
 *
 *   ringbell cc shift.cu && ringbell run -R 2 -- ./shift
 *
 * A program of NVSHMEM's compiles with these headers unchanged, if it calls what is here. What is not here is refused when it
 * is compiled, by its name, with what to use instead (rb/refused.h). docs/nvshmem.md has each call and what differs:
 * every wait has a deadline, and what fails ends the kernel with a message.
 *
 * Source: the NVSHMEM API documentation, 3.x, and OpenSHMEM 1.5.
 */
#ifndef RINGBELL_NVSHMEM_H
#define RINGBELL_NVSHMEM_H

#include <cuda_runtime.h>

#include "rb/types.h"
#include "rb/state.h"
#include "rb/operations.h"
#include "rb/atomics.h"
#include "rb/waits.h"
#include "rb/strided.h"
#include "rb/host.h"
#include "rb/teams.h"
#include "rb/calls.h"
#include "rb/names.h"
#include "rb/collectives.h"
#include "rb/refused.h"

#endif /* RINGBELL_NVSHMEM_H */
