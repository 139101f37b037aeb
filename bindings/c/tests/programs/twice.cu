// Two kernels without a NIC: for capi.c.
#include "ringbell_platform.h"

extern "C" __global__ void twice(rb_u64 *x) { *x *= 2; }

// Bytes of dynamic shared memory, of which the last word is used.
extern "C" __global__ void tell_shared(rb_u64 *bytes) {
  extern __shared__ rb_u32 room[];
  rb_u32 size;
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
  room[size / 4 - 1] = size;
  *bytes = room[size / 4 - 1];
}
