// Small kernels with one planted fault each. The line of the fault ends with "// kernel: check", which misuse.rs reads;
// `p` has 1,024 words and `q` 1,022, unless the table there says otherwise.
#include "ringbell_platform.h"

#define KERNEL(name) extern "C" __global__ void name(unsigned *p, unsigned *q, unsigned n)

// --- accesses outside of what is allocated ---

KERNEL(m_beyond) {
  p[n + threadIdx.x] = 1;  // m_beyond: memcheck
}
KERNEL(m_before) {
  q[threadIdx.x] = p[int(threadIdx.x) - int(n)];  // m_before: memcheck
}
KERNEL(m_one_byte) {
  reinterpret_cast<volatile char *>(p)[n] = 1;  // m_one_byte: memcheck
}
KERNEL(m_far) {
  p[n] = p[threadIdx.x];  // m_far: memcheck
}
KERNEL(m_freed) {
  p[threadIdx.x] = n;  // m_freed: memcheck
}
KERNEL(m_shared_beyond) {
  __shared__ volatile unsigned a[16], b[16];
  a[threadIdx.x & 15] = b[threadIdx.x & 15] = n;
  __syncthreads();
  p[threadIdx.x] = a[n + (threadIdx.x & 1)] + b[0];  // m_shared_beyond: memcheck
}
KERNEL(m_shared_before) {
  __shared__ volatile unsigned a[16], b[16];
  a[threadIdx.x & 15] = b[threadIdx.x & 15] = n;
  __syncthreads();
  if (threadIdx.x == 5) b[-int(n)] = a[-int(n)] = 2;  // m_shared_before: memcheck
}
extern __shared__ unsigned dynamic[];
KERNEL(m_dynamic_beyond) {
  dynamic[n + threadIdx.x] = 1;  // m_dynamic_beyond: memcheck
}
KERNEL(m_local_beyond) {
  volatile unsigned a[8];
  for (unsigned i = 0; i < 8; i++) a[i] = i * n;
  p[threadIdx.x] = a[n + threadIdx.x];  // m_local_beyond: memcheck
}
KERNEL(m_misaligned) {
  *reinterpret_cast<unsigned long long *>(p + n) = 1;  // m_misaligned: memcheck
}
KERNEL(m_shared_misaligned) {
  __shared__ __attribute__((aligned(16))) volatile unsigned a[32];
  a[threadIdx.x] = n;
  __syncthreads();
  if (threadIdx.x == 0)
    *reinterpret_cast<volatile unsigned long long *>(a + n) = 1;  // m_shared_misaligned: memcheck
  __syncthreads();
  p[threadIdx.x] = a[threadIdx.x];
}
KERNEL(m_null) {
  if (threadIdx.x == 31) *q = *p;  // m_null: memcheck
}
__device__ unsigned table[8], behind[8];
KERNEL(m_variable_beyond) {
  table[n] = behind[threadIdx.x & 7] = threadIdx.x;  // m_variable_beyond: memcheck
  p[threadIdx.x] = table[threadIdx.x & 7];
}
__constant__ unsigned constants[6] = {3, 1, 4, 1, 5, 9};
KERNEL(m_constant_beyond) {
  p[threadIdx.x] = constants[n + threadIdx.x];  // m_constant_beyond: memcheck
}
KERNEL(m_atomic_beyond) {
  atomicAdd(p + n, 1u);  // m_atomic_beyond: memcheck
}
KERNEL(m_vector_beyond) {
  uint4 v = reinterpret_cast<uint4 *>(q)[n + threadIdx.x];  // m_vector_beyond: memcheck
  p[threadIdx.x] = v.x + v.y + v.z + v.w;
}
KERNEL(m_host_pointer) {
  p[threadIdx.x] = q[threadIdx.x];  // m_host_pointer: memcheck
}
// Called with a length where the second pointer belongs.
KERNEL(m_wrong_argument) {
  p[threadIdx.x] = q[threadIdx.x] + n;  // m_wrong_argument: memcheck
}
static __device__ __noinline__ unsigned sum(const volatile unsigned *v, unsigned n) {
  unsigned s = 0;
  for (unsigned i = 0; i < n; i++) s += v[i];  // m_generic_beyond: memcheck
  return s;
}
KERNEL(m_generic_beyond) {
  __shared__ volatile unsigned a[16], b[16];
  a[threadIdx.x & 15] = b[threadIdx.x & 15] = n;
  __syncthreads();
  p[threadIdx.x] = sum(a, n) + sum(b, 16);
}
KERNEL(m_local_of_another) {
  __shared__ volatile unsigned *at;
  volatile unsigned own[4] = {n, n, n, n};
  if (threadIdx.x == 0) at = own;
  __syncthreads();
  p[threadIdx.x] = own[n & 3];
  if (threadIdx.x == 1) p[threadIdx.x] = at[0];  // m_local_of_another: memcheck
}
KERNEL(m_freed_part) {
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) q[i & 255] = p[i];  // m_freed_part: memcheck
}
// The second half of a bulk copy is behind the buffer.
KERNEL(m_bulk_beyond) {
  __shared__ __align__(16) unsigned part[8];
  for (unsigned i = 0; i < 8; i++) part[i] = i;
  unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(part));
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 32;" ::"l"(p + n), "r"(from) : "memory");  // m_bulk_beyond: memcheck
  asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
}

// --- barriers and warp operations ---

KERNEL(s_ended) {
  if (threadIdx.x >= n) return;
  q[threadIdx.x] = p[threadIdx.x];
  __syncthreads();  // s_ended: synccheck
  p[threadIdx.x] = q[threadIdx.x ^ 1];
}
KERNEL(s_two_places) {
  if (threadIdx.x & 1) {
    p[threadIdx.x] = n;
    __syncthreads();  // s_two_places: synccheck
    p[threadIdx.x] += 1;
  } else {
    asm volatile("bar.sync 0;" ::: "memory");
  }
}
KERNEL(s_mask_without_self) {
  if (threadIdx.x < 4) __syncwarp(n);  // s_mask_without_self: synccheck
}
KERNEL(s_value_of_none) {
  if (threadIdx.x < 16) p[threadIdx.x] = __shfl_sync(0xffffu, n + threadIdx.x, n);  // s_value_of_none: synccheck
}
KERNEL(s_exchange_with_none) {
  unsigned v = threadIdx.x;
  if (threadIdx.x < 24)
    for (unsigned o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffu, v, int(o));  // s_exchange_with_none: synccheck
  p[threadIdx.x] = v;
}
KERNEL(s_value_of_ended) {
  if (threadIdx.x == n) return;
  p[threadIdx.x] = __shfl_sync(0xffffffffu, threadIdx.x, int(n));  // s_value_of_ended: synccheck
}
KERNEL(s_odd_count) {
  if (threadIdx.x < n) asm volatile("bar.sync 1, %0;" ::"r"(n) : "memory");  // s_odd_count: synccheck
}
KERNEL(s_two_counts) {
  asm volatile("bar.sync 1, %0;" ::"r"(threadIdx.x < 32 ? n : n + 32) : "memory");  // s_two_counts: synccheck
}

// --- kernels that do not end ---

KERNEL(h_lock_twice) {
  while (atomicCAS(p, 0u, 1u) != 0) {}
  q[0] = n;
  while (atomicCAS(p, 0u, 1u) != 0) {}  // h_lock_twice: loops
}
// Two blocks take two locks in opposite orders.
KERNEL(h_lock_order) {
  unsigned *first = p + blockIdx.x, *second = p + (1 - blockIdx.x);
  while (atomicCAS(first, 0u, 1u) != 0) {}
  atomicAdd(p + 2, 1u);
  while (atomicAdd(p + 2, 0u) < gridDim.x) {}
  while (atomicCAS(second, 0u, 1u) != 0) {}  // h_lock_order: loops
}
KERNEL(h_missed_signal) {
  volatile unsigned *signal = p + 6;
  if (threadIdx.x) atomicAdd(p + 6, 1u);
  else while (*signal < n) {}  // h_missed_signal: loops
}
KERNEL(h_ticket) {
  unsigned mine = atomicAdd(p, 1u);
  while (atomicAdd(p + 1, 0u) != mine) {}  // h_ticket: loop
  q[0] += 1;
  __threadfence();
  if (mine != n) atomicAdd(p + 1, 1u);
}
KERNEL(h_grid) {
  atomicAdd(p, 1u);
  if (threadIdx.x == 0)
    while (atomicAdd(p, 0u) < gridDim.x * n) {}  // h_grid: loops
  __syncthreads();
}
KERNEL(h_sleep) {
  volatile unsigned *flag = p;
  while (*flag == 0) __nanosleep(1000000 * n);  // h_sleep: threads 0–31
}
KERNEL(h_half) {
  if (threadIdx.x < n) __syncthreads();  // h_half: wait at barrier 0
  else p[threadIdx.x] = __shfl_sync(0xffffffffu, p[0], 0);
}
KERNEL(h_named) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, %0;" ::"r"(n) : "memory");  // h_named: wait at barrier 1 of 64
}
KERNEL(h_masks) {
  if (threadIdx.x < 2) __syncwarp(threadIdx.x ? n : 3u);  // h_masks: at a warp operation of mask
  else __syncthreads();
}

// --- reads of what was never written ---

KERNEL(i_shared) {
  __shared__ unsigned a[32];
  if (threadIdx.x < n) a[threadIdx.x] = threadIdx.x;
  __syncthreads();
  p[threadIdx.x] = a[threadIdx.x];  // i_shared: initcheck
}
KERNEL(i_dynamic) {
  dynamic[threadIdx.x * 2] = n;
  __syncthreads();
  p[threadIdx.x] = dynamic[threadIdx.x + 1];  // i_dynamic: initcheck
}
KERNEL(i_counter) {
  __shared__ unsigned count;
  atomicAdd(&count, n);  // i_counter: initcheck
  __syncthreads();
  p[threadIdx.x] = count;
}
KERNEL(i_global) {
  p[threadIdx.x] = q[threadIdx.x + n];  // i_global: initcheck
}
KERNEL(i_byte) {
  volatile unsigned char *bytes = reinterpret_cast<volatile unsigned char *>(q);
  if (threadIdx.x != n) bytes[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) p[0] = q[1];  // i_byte: initcheck
}

// --- accesses without an order between them ---

KERNEL(r_shared_write) {
  __shared__ unsigned last;
  last = threadIdx.x;  // r_shared_write: racecheck
  __syncthreads();
  if (threadIdx.x == 0) p[0] = last + n;
}
KERNEL(r_neighbour) {
  __shared__ unsigned a[64];
  a[threadIdx.x] = n;
  p[threadIdx.x] = a[(threadIdx.x + 1) & 63];  // r_neighbour: racecheck
}
// The barrier at the end of the loop is missing.
KERNEL(r_loop) {
  __shared__ unsigned tile[64];
  unsigned sum = 0;
  for (unsigned i = 0; i < n; i++) {
    tile[threadIdx.x] = q[i * 64 + threadIdx.x];  // r_loop: racecheck
    __syncthreads();
    sum += tile[threadIdx.x ^ 33];
  }
  p[threadIdx.x] = sum;
}
// Lanes of a warp do not run in step.
KERNEL(r_warp) {
  __shared__ unsigned a[33];
  a[threadIdx.x] = threadIdx.x;
  if (threadIdx.x == 0) a[32] = 0;
  __syncwarp();
  if (threadIdx.x < n) a[threadIdx.x] += a[threadIdx.x + 1];  // r_warp: racecheck
  __syncwarp();
  p[threadIdx.x] = a[threadIdx.x];
}
KERNEL(r_blocks) {
  if (threadIdx.x == n) p[0] = p[0] + 1;  // r_blocks: racecheck
}
KERNEL(r_half_atomic) {
  if (threadIdx.x & 1) atomicAdd(p, n);
  else *p = 0;  // r_half_atomic: racecheck
}
KERNEL(r_plain_flag) {
  if (blockIdx.x == 1) {
    q[0] = n;
    __threadfence();
    p[0] = 1;
  } else {
    unsigned seen;
    do asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(p) : "memory");  // r_plain_flag: racecheck
    while (seen == 0);
  }
}
// The flag is ordered, the data are not: no fence.
KERNEL(r_no_fence) {
  volatile unsigned *flag = p;
  if (blockIdx.x == 1) {
    q[0] = n;
    *flag = 1;
  } else {
    while (*flag == 0) {}
    __threadfence();
    p[1] = q[0];  // r_no_fence: racecheck
  }
}
KERNEL(r_no_acquire) {
  volatile unsigned *flag = p;
  if (blockIdx.x == 1) {
    q[0] = n;
    __threadfence();
    *flag = 1;
  } else {
    while (*flag == 0) {}
    p[1] = *reinterpret_cast<unsigned char *>(q);  // r_no_acquire: racecheck
  }
}
// A fence of the block, for another block.
KERNEL(r_scope) {
  volatile unsigned *flag = p;
  if (blockIdx.x == 1) {
    q[0] = n;
    __threadfence_block();
    *flag = 1;
  } else {
    while (*flag == 0) {}
    __threadfence();
    p[1] = q[0];  // r_scope: racecheck
  }
}
// The lock is released before what it protects is written.
KERNEL(r_lock) {
  while (atomicCAS(p, 0u, 1u) != 0) {}
  __threadfence();
  unsigned v = q[0];
  __threadfence();
  atomicExch(p, 0u);
  q[0] = v + n;  // r_lock: racecheck
}
// The last block sums up what the others have written, without a fence before the ticket.
KERNEL(r_last_block) {
  q[blockIdx.x] = n + blockIdx.x;
  unsigned ticket = atomicAdd(p, 1u);
  if (ticket + 1 == gridDim.x) {
    __threadfence();
    unsigned sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++) sum += q[i];  // r_last_block: racecheck
    p[1] = sum;
  }
}

// --- kernels without a fault ---

KERNEL(c_reduce) {
  __shared__ unsigned part[256];
  part[threadIdx.x] = n + threadIdx.x;
  __syncthreads();
  for (unsigned o = blockDim.x / 2; o > 16; o >>= 1) {
    if (threadIdx.x < o) part[threadIdx.x] += part[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    for (unsigned o = 16; o > 0; o >>= 1) {
      unsigned v = threadIdx.x < o ? part[threadIdx.x + o] : 0;
      __syncwarp();
      if (threadIdx.x < o) part[threadIdx.x] += v;
      __syncwarp();
    }
  }
  if (threadIdx.x == 0) atomicAdd(p, part[0]);
}
KERNEL(c_lock) {
  while (atomicCAS(p, 0u, 1u) != 0) {}
  __threadfence();
  q[0] += n;
  __threadfence();
  atomicExch(p, 0u);
}
KERNEL(c_grid) {
  q[blockIdx.x * blockDim.x + threadIdx.x] = n;
  for (unsigned round = 1; round < 4; round++) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(p, 1u);
      while (atomicAdd(p, 0u) < round * gridDim.x) {}
      __threadfence();
    }
    __syncthreads();
    unsigned other = ((blockIdx.x + round) % gridDim.x) * blockDim.x + threadIdx.x;
    unsigned v = q[other];
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(p + 1, 1u);
      while (atomicAdd(p + 1, 0u) < round * gridDim.x) {}
      __threadfence();
    }
    __syncthreads();
    q[blockIdx.x * blockDim.x + threadIdx.x] = v + round;
  }
}
KERNEL(c_chain) {
  if (threadIdx.x) return;
  unsigned before = 0;
  if (blockIdx.x)
    do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(before) : "l"(p + blockIdx.x - 1) : "memory");
    while (before == 0);
  q[0] += n;
  asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p + blockIdx.x), "r"(1u) : "memory");
}
KERNEL(c_last_block) {
  __shared__ unsigned last;
  q[blockIdx.x * blockDim.x + threadIdx.x] = n;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(p, 1u) + 1 == gridDim.x;
    __threadfence();
  }
  __syncthreads();
  if (last) {
    unsigned sum = 0;
    for (unsigned i = threadIdx.x; i < gridDim.x * blockDim.x; i += blockDim.x) sum += q[i];
    atomicAdd(p + 1, sum);
  }
}
// The compiler may load `status` in all threads, and use it in the first alone.
KERNEL(c_leader) {
  __shared__ unsigned status;
  bool leader = threadIdx.x == 0;
  if (leader) status = 0;
  __syncthreads();
  for (unsigned i = 0; i < n; i++) {
    if (leader && status == 0) {
      p[0] = i;
      status = q[i];
    }
    __syncthreads();
  }
}
// Bytes next to each other, by different threads.
KERNEL(c_bytes) {
  unsigned char *bytes = reinterpret_cast<unsigned char *>(q);
  bytes[threadIdx.x] = n;
  __syncthreads();
  p[threadIdx.x] = q[threadIdx.x >> 2];
}
