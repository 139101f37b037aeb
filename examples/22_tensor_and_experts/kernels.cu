// Two layers of a model over several GPUs: a product whose sum over the ranks overlaps with it (tensor parallelism), and experts
// to which tokens travel and from which they return (expert parallelism). One launch of one block each; the ranks' NICs do the rest.
#include "ringbell_collective.cuh"
#include "ringbell_one_sided.cuh"

// C = sum over the ranks of a b: each rank has `k` of the columns of A and rows of B. While the NICs sum a tile of rows, the
// block multiplies the next one.
extern "C" __global__ void gemm_all_reduce(rb_comm comm, const float *a, const float *b, float *partial, float *c, rb_u32 rows,
                                           rb_u32 columns, rb_u32 k, rb_u32 tile, rb_u32 timeout_us, gpu_result *out) {
  rb::collective_options options;
  options.timeout_us = timeout_us;
  gpu_request before{};
  before.done = 1;
  gpu_result r{};
  for (rb_u32 first = 0; first < rows && r.ok(); first += tile) {
    rb_u32 n = (first + tile < rows ? tile : rows - first) * columns;
    float *part = partial + first * columns;
    for (rb_u32 i = threadIdx.x; i < n; i += blockDim.x) {
      const float *left = a + (first + i / columns) * k;
      float sum = 0;
      for (rb_u32 p = 0; p < k; ++p) sum += left[p] * b[p * columns + i % columns];
      part[i] = sum;
    }
    __syncthreads();
    gpu_request now = gpu_iall_reduce_block(comm, part, c + first * columns, n, RB_DTYPE_F32, RB_REDOP_SUM, options);
    r = gpu_wait_block(comm.queue, before);
    before = now;
  }
  gpu_result last = gpu_wait_block(comm.queue, before);
  if (threadIdx.x == 0) *out = r.ok() ? last : r;
}

// Words of an item that travels: the expert, the place where its answer belongs, then the values.
constexpr rb_u32 WIDTH = 16, ITEM = 2 + WIDTH, SIGNALS = 16;

// What an expert makes of a token; `weights` has a row of WIDTH for each of its outputs.
static __device__ float apply(const float *weights, const float *x, rb_u32 row) {
  float sum = 0;
  for (rb_u32 i = 0; i < WIDTH; ++i) sum += weights[row * WIDTH + i] * x[i];
  return sum;
}

// The window: SIGNALS words, of which the 64-bit words 0 and 1 count what has come and what has returned; then for each rank a
// count and room for all its items, first those that it asks about (inbox), then its answers to this rank (returned).
// `chosen` and `gates`: two experts of each token, and their parts of the sum. Expert e is number e % experts of rank e / experts.
extern "C" __global__ void experts(rb_comm comm, rb_u32 window, float *mine, float *outbox, const float *tokens, const rb_u32 *chosen,
                                   const float *gates, const float *weights, float *sums, rb_u32 count, rb_u32 experts,
                                   rb_u32 timeout_us, gpu_result *out) {
  __shared__ rb_u32 to[64];
  rb_u32 me = comm.rank, size = comm.size, t = threadIdx.x;
  rb_u32 room = 1 + 2 * count * ITEM;
  const rb_u64 *signals = reinterpret_cast<const rb_u64 *>(mine);
  float *inbox = mine + SIGNALS, *returned = inbox + size * room;
  gpu_result r{};

  // Dispatch: items for each rank, packed behind their count; those for this rank go straight to its inbox.
  if (t < size) to[t] = 0;
  __syncthreads();
  for (rb_u32 i = t; i < 2 * count; i += blockDim.x) {
    rb_u32 rank = chosen[i] / experts, at = atomicAdd(&to[rank], 1u);
    float *item = (rank == me ? inbox + me * room : outbox + rank * room) + 1 + at * ITEM;
    item[0] = __uint_as_float(chosen[i] % experts);
    item[1] = __uint_as_float(i);
    for (rb_u32 w = 0; w < WIDTH; ++w) item[2 + w] = tokens[i / 2 * WIDTH + w];
  }
  __syncthreads();
  if (t < size) (t == me ? inbox : outbox)[t * room] = __uint_as_float(to[t]);
  __syncthreads();
  auto exchange = [&](const float *from, rb_u64 there, rb_u32 word, auto items) {
    for (rb_u32 step = 1; step < size && r.ok(); ++step) {
      rb_u32 rank = (me + step) % size;
      rb_u64 bytes = 4 * (1 + items(rank) * ITEM), at = 4 * (SIGNALS + there + me * room);
      gpu_remote remote = gpu_window(comm, window, rank, at);
      r = gpu_put_signal_block(comm.queue, remote, from + rank * room, bytes, word, 1, false, timeout_us);
    }
    if (r.ok() && size > 1) r = gpu_wait_signal_block(comm.queue, signals + word, size - 1, timeout_us);
  };
  exchange(outbox, 0, 0, [&](rb_u32 rank) { return to[rank]; });

  // The experts of this rank: each answer takes the place of its question, in the outbox or among what has returned.
  for (rb_u32 rank = 0; rank < size && r.ok(); ++rank) {
    const float *in = inbox + rank * room;
    float *answer = (rank == me ? returned : outbox) + rank * room;
    rb_u32 items = __float_as_uint(in[0]);
    if (t == 0) answer[0] = in[0];
    for (rb_u32 i = t; i < items * WIDTH; i += blockDim.x) {
      const float *item = in + 1 + i / WIDTH * ITEM;
      float *to_item = answer + 1 + i / WIDTH * ITEM;
      to_item[2 + i % WIDTH] = apply(weights + __float_as_uint(item[0]) * WIDTH * WIDTH, item + 2, i % WIDTH);
      if (i % WIDTH == 0) to_item[1] = item[1];
    }
  }
  __syncthreads();
  exchange(outbox, size * room, 1, [&](rb_u32 rank) { return __float_as_uint(inbox[rank * room]); });

  // Combine: the two answers to each token, by their gates.
  // First all first answers, then all second ones, so that each sum has one order.
  for (rb_u32 which = 0; which < 2 && r.ok(); ++which) {
    for (rb_u32 rank = 0; rank < size; ++rank) {
      const float *in = returned + rank * room;
      for (rb_u32 i = t; i < __float_as_uint(in[0]) * WIDTH; i += blockDim.x) {
        const float *item = in + 1 + i / WIDTH * ITEM;
        rb_u32 question = __float_as_uint(item[1]);
        if (question % 2 == which) sums[question / 2 * WIDTH + i % WIDTH] += gates[question] * item[2 + i % WIDTH];
      }
    }
    __syncthreads();
  }
  if (t == 0) *out = r;
}
