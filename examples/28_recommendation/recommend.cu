// The ranks of a recommendation model (ACCL+, OSDI'24, Fig. 16), a kernel for each role. A kernel serves all requests, one
// after the other: it takes its input from a stream, and pushes each value of its output when it has computed it. Rank 0 is
// node 1 of the figure.
//
// An operation that lasts for all requests is on a queue of its own: the slots of a queue are used again in order, and those
// of each request go on past it.
//
// Values are fixed-point numbers of 32 bits, 8 of them behind the point. Sums are kept to 32 bits.
#include "ringbell_collective.cuh"

// Tags of the messages.
constexpr rb_u32 REQUEST = 1, PARTIAL = 2, SECOND = 3, ANSWER = 4;

// An element of an embedding table; model.rs has the same.
static __device__ int embedding(rb_u32 table, rb_u32 row, rb_u32 element) {
  rb_u32 x = (table * 0x9e3779b9u ^ row) * 2654435761u + element * 0x85ebca6bu;
  x = (x ^ x >> 15) * 0x2c1b3c6du;
  return int(x >> 24) - 128;
}

// What a layer makes of a sum of products: back to 8 bits behind the point, and not below zero.
static __device__ int activate(int sum) { return sum > 0 ? sum >> 8 : 0; }

// Four elements at once: `columns` is a multiple of four, and so is each address.
static __device__ int dot(const int *weights, const int *x, rb_u32 columns) {
  const int4 *w = reinterpret_cast<const int4 *>(weights), *v = reinterpret_cast<const int4 *>(x);
  int sum = 0;
  for (rb_u32 i = 0; i < columns / 4; ++i) sum += w[i].x * v[i].x + w[i].y * v[i].y + w[i].z * v[i].z + w[i].w * v[i].w;
  return sum;
}

// Keeps the first failure.
static __device__ void also(gpu_result &end, const gpu_result &r) {
  if (end.ok()) end = r;
}

// Nodes 1 to 4: looks up the rows of its tables, and multiplies them by the upper half of its columns of the first layer.
// The vector and the partial result go to the node with the lower half.
extern "C" __global__ void embed(rb_comm comm, rb_stream_handle in, rb_stream_handle out, const int *held, rb_u32 held_rows,
                                 rb_u32 tables, rb_u32 width, const int *weights, rb_u32 rows, int *x, rb_u32 requests,
                                 gpu_result *ends) {
  const rb_u32 columns = tables * width, client = comm.size - 1;
  const rb_comm all = gpu_comm_queue(comm, 0);
  gpu_request sent =
      gpu_istream_send<rb::block>(all, out, rb_u64(requests) * (columns + rows), RB_DTYPE_I32, comm.rank + 4, PARTIAL);
  gpu_popper asked(in);
  gpu_pusher to(out);
  gpu_result end{};
  for (rb_u32 n = 0; n < requests && end.ok(); ++n) {
    gpu_request come = gpu_istream_recv<rb::block>(comm, in, tables, RB_DTYPE_U32, client, REQUEST);
    also(end, gpu_stream_pop_each<rb::block, rb_u32>(comm.queue, asked, tables, [&](rb_u64 t, rb_u32 row) {
           for (rb_u32 i = 0; i < width; ++i)
             x[t * width + i] = row < held_rows ? held[(t * held_rows + row) * width + i]
                                                : embedding(comm.rank * tables + rb_u32(t), row, i);
         }));
    __syncthreads();
    if (end.ok()) end = gpu_stream_push_each<rb::block>(comm.queue, to, columns, [&](rb_u64 i) { return x[i]; });
    if (end.ok())
      end = gpu_stream_push_each<rb::block>(comm.queue, to, rows, [&](rb_u64 i) { return dot(weights + i * columns, x, columns); });
    also(end, gpu_wait<rb::block>(comm, come));
    __syncthreads();
  }
  gpu_result last = gpu_wait<rb::block>(all, sent);
  if (threadIdx.x == 0) ends[0] = last, ends[1] = end;
}

// Nodes 5 to 8: the lower half of its columns of the first layer. Both halves go into a reduction to node 9.
extern "C" __global__ void first_layer(rb_comm comm, rb_comm group, rb_stream_handle in, rb_stream_handle out, rb_u32 columns,
                                       const int *weights, rb_u32 rows, int *x, int *halves, rb_u32 requests, gpu_result *ends) {
  const rb_comm all = gpu_comm_queue(comm, 0);
  gpu_request come =
      gpu_istream_recv<rb::block>(all, in, rb_u64(requests) * (columns + rows), RB_DTYPE_I32, comm.rank - 4, PARTIAL);
  gpu_popper from(in);
  gpu_pusher to(out);
  gpu_result end{};
  for (rb_u32 n = 0; n < requests && end.ok(); ++n) {
    gpu_request sum = gpu_istream_reduce<rb::block>(group, out, nullptr, 2 * rows, RB_DTYPE_I32, RB_REDOP_SUM, group.size - 1);
    also(end, gpu_stream_pop_each<rb::block, int>(comm.queue, from, columns, [&](rb_u64 i, int v) { x[i] = v; }));
    __syncthreads();
    for (rb_u32 i = threadIdx.x; i < rows; i += blockDim.x) halves[rows + i] = dot(weights + rb_u64(i) * columns, x, columns);
    if (end.ok()) end = gpu_stream_pop_each<rb::block, int>(comm.queue, from, rows, [&](rb_u64 i, int v) { halves[i] = v; });
    __syncthreads();
    if (end.ok()) end = gpu_stream_push_each<rb::block>(group.queue, to, 2 * rows, [&](rb_u64 i) { return halves[i]; });
    if (end.ok()) end = gpu_wait<rb::block>(group, sum);
    __syncthreads();
  }
  gpu_result last = gpu_wait<rb::block>(all, come);
  if (threadIdx.x == 0) ends[0] = last, ends[1] = end;
}

// Node 9: the root of the reduction, and the second layer. `zeros` is what it adds to the sums.
extern "C" __global__ void second_layer(rb_comm comm, rb_comm group, rb_stream_handle in, rb_stream_handle out, const int *zeros,
                                        rb_u32 columns, const int *weights, rb_u32 rows, int *x, rb_u32 requests,
                                        gpu_result *ends) {
  const rb_comm all = gpu_comm_queue(comm, 0);
  gpu_request sent = gpu_istream_send<rb::block>(all, out, rb_u64(requests) * rows, RB_DTYPE_I32, comm.rank + 1, SECOND);
  gpu_popper from(in);
  gpu_pusher to(out);
  gpu_result end{};
  for (rb_u32 n = 0; n < requests && end.ok(); ++n) {
    gpu_request sum = gpu_istream_reduce<rb::block>(group, zeros, in, columns, RB_DTYPE_I32, RB_REDOP_SUM, group.size - 1);
    also(end, gpu_stream_pop_each<rb::block, int>(group.queue, from, columns, [&](rb_u64 i, int v) { x[i] = activate(v); }));
    __syncthreads();
    if (end.ok())
      end = gpu_stream_push_each<rb::block>(comm.queue, to, rows, [&](rb_u64 i) { return dot(weights + i * columns, x, columns); });
    if (end.ok()) end = gpu_wait<rb::block>(group, sum);
    __syncthreads();
  }
  gpu_result last = gpu_wait<rb::block>(all, sent);
  if (threadIdx.x == 0) ends[0] = last, ends[1] = end;
}

// Node 10: the third layer, and the answer.
extern "C" __global__ void third_layer(rb_comm comm, rb_stream_handle in, rb_stream_handle out, rb_u32 columns,
                                       const int *weights, rb_u32 rows, int *x, rb_u32 requests, gpu_result *ends) {
  const rb_comm all = gpu_comm_queue(comm, 0);
  gpu_request come = gpu_istream_recv<rb::block>(all, in, rb_u64(requests) * columns, RB_DTYPE_I32, comm.rank - 1, SECOND);
  gpu_popper from(in);
  gpu_pusher to(out);
  gpu_result end{};
  for (rb_u32 n = 0; n < requests && end.ok(); ++n) {
    gpu_request answer = gpu_istream_send<rb::block>(comm, out, rows, RB_DTYPE_I32, comm.size - 1, ANSWER);
    also(end, gpu_stream_pop_each<rb::block, int>(comm.queue, from, columns, [&](rb_u64 i, int v) { x[i] = activate(v); }));
    __syncthreads();
    if (end.ok())
      end = gpu_stream_push_each<rb::block>(comm.queue, to, rows,
                                            [&](rb_u64 i) { return activate(dot(weights + i * columns, x, columns)); });
    if (end.ok()) end = gpu_wait<rb::block>(comm, answer);
    __syncthreads();
  }
  gpu_result last = gpu_wait<rb::block>(all, come);
  if (threadIdx.x == 0) ends[0] = last, ends[1] = end;
}
