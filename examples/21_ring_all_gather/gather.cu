// C = A B where each rank has some rows of B: a ring all-gather by puts with signals, overlapped with the product.
//
// A rank multiplies with the rows that it has while they travel to the next rank, and then waits for the previous rank's.
// The window begins with 64 bytes of signals, of which word 0 counts what has come; then all of B, so that each part has a place
// of its own on every rank, and none is overwritten.
#include <cuda_fp16.h>

#include "ringbell_collective.cuh"
#include "ringbell_one_sided.cuh"

constexpr rb_u64 SIGNALS = 64;

// c += a b of this rank's `rows` and one part: `a` has rows of `k` pairs, of which the part begins at `from`.
static __device__ void multiply(float *c, const half2 *a, const half2 *b, int rows, int columns, int k, int from, int part) {
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    int row = i / columns, column = i % columns;
    float sum = 0;
    for (int p = 0; p < part; ++p) {
      float2 x = __half22float2(a[row * k + from + p]), y = __half22float2(b[p * columns + column]);
      sum += x.x * y.x + x.y * y.y;
    }
    c[i] += sum;
  }
}

// `part`: pairs of rows of B that a rank has; a pair of two rows is one half2.
extern "C" __global__ void ring_gemm(rb_comm comm, rb_u32 window, unsigned char *mine, const half2 *a, float *c, rb_u32 rows,
                                     rb_u32 columns, rb_u32 part, rb_u32 timeout_us, gpu_result *out) {
  const rb_u64 *signals = reinterpret_cast<const rb_u64 *>(mine);
  rb_u64 bytes = rb_u64(part) * columns * sizeof(half2);
  rb_u32 next = (comm.rank + 1) % comm.size;
  gpu_result r{};
  for (rb_u32 step = 0; step < comm.size && r.ok(); ++step) {
    rb_u32 whose = (comm.rank + comm.size - step) % comm.size;
    rb_u64 at = SIGNALS + whose * bytes;
    gpu_request put{};
    put.done = 1;
    bool last = step + 1 == comm.size;
    if (!last) put = gpu_iput_signal_block(comm.queue, gpu_window(comm, window, next, at), mine + at, bytes, 0, 1, false, timeout_us);
    multiply(c, a, reinterpret_cast<const half2 *>(mine + at), rows, columns, part * comm.size, whose * part, part);
    r = gpu_wait_block(comm.queue, put);
    if (!last && r.ok()) r = gpu_wait_signal_block(comm.queue, signals, step + 1, timeout_us);
  }
  if (threadIdx.x == 0) *out = r;
}
