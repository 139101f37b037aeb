// y = alpha A x + beta B x by two ranks with a program each (SMI §5.4.1, Fig. 12), or by both programs on one rank. The
// elements of the first product stream to the second program while they are computed, and have no array of their own.
#include "ringbell_collective.cuh"

// SMI's port of the channel.
constexpr rb_u32 PORT = 1;

// One element of a product, in the order of a serial program.
static __device__ float dot(const float *row, const float *x, rb_u64 columns) {
  float sum = 0;
  for (rb_u64 i = 0; i < columns; ++i) sum += row[i] * x[i];
  return sum;
}

// The program of rank 0: alpha A x, pushed to the last rank.
extern "C" __global__ void gemv(rb_comm comm, rb_stream_handle channel, const float *a, const float *x, float alpha,
                                rb_u64 rows, rb_u64 columns, gpu_result *ends) {
  gpu_request sent = gpu_istream_send<rb::block>(comm, channel, rows, RB_DTYPE_F32, comm.size - 1, PORT);
  gpu_pusher out(channel);
  gpu_result pushed = gpu_stream_push_each<rb::block>(
      comm.queue, out, rows, [&](rb_u64 i) { return alpha * dot(a + i * columns, x, columns); });
  gpu_result end = gpu_wait<rb::block>(comm, sent);
  if (threadIdx.x == 0) ends[0] = end, ends[1] = pushed;
}

// The program of the last rank: beta B x, and the sum with what is popped.
extern "C" __global__ void gemv_and_add(rb_comm comm, rb_stream_handle channel, const float *b, const float *x, float beta,
                                        rb_u64 rows, rb_u64 columns, float *y, gpu_result *ends) {
  gpu_request come = gpu_istream_recv<rb::block>(comm, channel, rows, RB_DTYPE_F32, 0, PORT);
  gpu_popper in(channel);
  gpu_result popped = gpu_stream_pop_each<rb::block, float>(
      comm.queue, in, rows, [&](rb_u64 i, float left) { y[i] = left + beta * dot(b + i * columns, x, columns); });
  gpu_result end = gpu_wait<rb::block>(comm, come);
  if (threadIdx.x == 0) ends[0] = end, ends[1] = popped;
}
