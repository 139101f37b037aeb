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
