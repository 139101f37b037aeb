// Kernels of the kinds that people write, in plain CUDA; tests/cuda_patterns.rs launches them and checks what they compute.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

// A sum of all elements: tiles, then one atomic a block.
extern "C" __global__ void cg_sum(const int *in, int n, int *out) {
  cg::thread_block block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  __shared__ int part[32];
  int s = 0;
  for (int i = cg::this_grid().thread_rank(); i < n; i += cg::this_grid().num_threads()) s += in[i];
  s = cg::reduce(warp, s, cg::plus<int>());
  if (warp.thread_rank() == 0) part[warp.meta_group_rank()] = s;
  block.sync();
  if (warp.meta_group_rank() == 0) {
    s = warp.thread_rank() < warp.meta_group_size() ? part[warp.thread_rank()] : 0;
    s = cg::reduce(warp, s, cg::plus<int>());
    if (warp.thread_rank() == 0) atomicAdd(out, s);
  }
}

// Each round reads what the next block has written in the one before.
extern "C" __global__ void cg_rotate(int *values, int *next, int rounds) {
  cg::grid_group grid = cg::this_grid();
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x == 0) next[blockIdx.x] = values[(blockIdx.x + 1) % gridDim.x];
    grid.sync();
    if (threadIdx.x == 0) values[blockIdx.x] = next[blockIdx.x];
    grid.sync();
  }
}

// One atomic for all threads of a warp that have come here (in no order), and scans by tile.
extern "C" __global__ void cg_filter(const int *in, int n, int *out, int *count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && in[i] % 3 == 0) {
    cg::coalesced_group g = cg::coalesced_threads();
    int at = 0;
    if (g.thread_rank() == 0) at = atomicAdd(count, int(g.num_threads()));
    out[g.shfl(at, 0) + g.thread_rank()] = in[i];
  }
}
struct Pair {
  int a;
  double b;
  short c;
};
extern "C" __global__ void cg_tiles(const int *in, int *out) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int v = in[block.thread_rank()], *o = out + 8 * block.thread_rank();
  o[0] = cg::inclusive_scan(tile, v);
  o[1] = cg::exclusive_scan(tile, v, cg::plus<int>());
  o[2] = cg::reduce(tile, v, cg::greater<int>());
  o[3] = tile.shfl(Pair{v, v * 0.5, short(v)}, 3).b * 2;
  o[4] = tile.ballot(v & 1);
  o[5] = cg::binary_partition(tile, v & 1).num_threads();
  auto label = cg::labeled_partition(tile, v % 3);
  o[6] = cg::reduce(label, v, cg::less<int>());
  cg::thread_group half = cg::tiled_partition(block, 16);
  half.sync();
  o[7] = half.thread_rank() + 100 * tile.meta_group_rank();
}

// C = A B, half precision by pairs, sums in half precision; the columns of B are contiguous. n is even.
extern "C" __global__ void half2_gemm(const half2 *a, const half2 *b, half *c, int n) {
  int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n || column >= n) return;
  half2 s = __float2half2_rn(0.0f);
  for (int k = 0; k < n / 2; ++k) s = __hfma2(a[row * n / 2 + k], b[column * n / 2 + k], s);
  c[row * n + column] = __low2half(s) + __high2half(s);
}
// The same of bfloat16, with sums in single precision.
extern "C" __global__ void bf16_gemm(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c, int n) {
  __shared__ __nv_bfloat16 ta[16][16], tb[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float s = 0;
  for (int t = 0; t < n; t += 16) {
    ta[threadIdx.y][threadIdx.x] = a[row * n + t + threadIdx.x];
    tb[threadIdx.y][threadIdx.x] = b[(blockIdx.x * 16 + threadIdx.y) * n + t + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < 16; ++k) s += __bfloat162float(ta[threadIdx.y][k]) * __bfloat162float(tb[threadIdx.x][k]);
    __syncthreads();
  }
  c[row * n + column] = __float2bfloat16(s);
}
// 16 by 8 by 16 of a tensor core, one warp, by inline PTX; sums in single precision.
extern "C" __global__ void mma_gemm(const half *a, const half *b, float *c, int n) {
  int group = threadIdx.x / 4, in_group = threadIdx.x % 4;
  int row = blockIdx.y * 16, column = blockIdx.x * 8;
  float d[4] = {};
  for (int k = 0; k < n; k += 16) {
    auto pair = [&](const half *m, int line, int at) { return *(const unsigned *)&m[line * n + k + at]; };
    unsigned x[4] = {pair(a, row + group, in_group * 2), pair(a, row + group + 8, in_group * 2),
                     pair(a, row + group, in_group * 2 + 8), pair(a, row + group + 8, in_group * 2 + 8)};
    unsigned y[2] = {pair(b, column + group, in_group * 2), pair(b, column + group, in_group * 2 + 8)};
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  }
  for (int i = 0; i < 4; ++i) c[(row + group + i / 2 * 8) * n + column + in_group * 2 + i % 2] = d[i];
}

// Prefix sums in one pass: each block waits for its predecessor's (StreamScan; Yan et al. 2013).
extern "C" __global__ void chained_scan(const unsigned *in, unsigned *out, int n, volatile unsigned long long *state) {
  __shared__ unsigned warps[32], before;
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned v = cg::inclusive_scan(warp, i < n ? in[i] : 0u);
  if (warp.thread_rank() == 31) warps[warp.meta_group_rank()] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned sum = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) {
      unsigned own = warps[w];
      warps[w] = sum;
      sum += own;
    }
    unsigned long long last = 0;
    if (blockIdx.x > 0)
      while (!(last = state[blockIdx.x - 1])) {
      }
    before = unsigned(last);
    __threadfence();
    state[blockIdx.x] = 1ull << 32 | (before + sum);
  }
  __syncthreads();
  if (i < n) out[i] = v + warps[warp.meta_group_rank()] + before;
}

// A block sorts its keys, four bits a pass, stable.
extern "C" __global__ void radix_sort(unsigned *keys, int n) {
  extern __shared__ unsigned room[];
  unsigned *from = room, *to = room + blockDim.x;
  __shared__ unsigned count[16], base[17];
  int i = threadIdx.x;
  from[i] = i < n ? keys[i] : 0xffffffffu;
  for (int shift = 0; shift < 32; shift += 4) {
    if (i < 16) count[i] = 0;
    __syncthreads();
    unsigned key = from[i], digit = key >> shift & 15, rank = 0;
    // Warp after warp, so that equal digits keep their order.
    for (int w = 0; w < blockDim.x / 32; ++w) {
      if (i / 32 == w) {
        unsigned peers = __match_any_sync(0xffffffffu, digit), lower = peers & ((1u << i % 32) - 1);
        rank = count[digit] + __popc(lower);
        __syncwarp();
        if (lower == 0) count[digit] += __popc(peers);
      }
      __syncthreads();
    }
    if (i == 0) {
      base[0] = 0;
      for (int d = 0; d < 16; ++d) base[d + 1] = base[d] + count[d];
    }
    __syncthreads();
    to[base[digit] + rank] = key;
    __syncthreads();
    unsigned *other = from;
    from = to;
    to = other;
  }
  if (i < n) keys[i] = from[i];
}

template <class F> __device__ float over_block(float v, F f, float *room) {
  for (int d = 16; d; d >>= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
  __syncthreads();
  v = room[0];
  for (int w = 1; w < blockDim.x / 32; ++w) v = f(v, room[w]);
  return v;
}
// A block a row.
extern "C" __global__ void softmax(const float *in, float *out, int n) {
  __shared__ float room[32];
  const float *x = in + blockIdx.x * n;
  float most = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, x[i]);
  most = over_block(most, [](float a, float b) { return fmaxf(a, b); }, room);
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(x[i] - most);
  sum = over_block(sum, [](float a, float b) { return a + b; }, room);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = expf(x[i] - most) / sum;
}
extern "C" __global__ void layer_norm(const __nv_bfloat16 *in, const float *scale, float *out, int n) {
  __shared__ float room[32];
  auto add = [](float a, float b) { return a + b; };
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __bfloat162float(in[blockIdx.x * n + i]);
  float mean = over_block(sum, add, room) / n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float d = float(in[blockIdx.x * n + i]) - mean;
    squares += d * d;
  }
  float by = rsqrtf(over_block(squares, add, room) / n + 1e-5f);
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    out[blockIdx.x * n + i] = (float(in[blockIdx.x * n + i]) - mean) * by * scale[i];
}

// softmax(Q K^T / sqrt(D)) V without the matrix in between: a warp a row of Q, with running maximum and sum.
template <int D> __device__ void attention(const half *q, const half *k, const half *v, float *out, int n) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= n) return;
  float most = -INFINITY, sum = 0, acc[D / 32] = {};
  for (int j = 0; j < n; ++j) {
    float dot = 0;
    for (int d = lane; d < D; d += 32) dot += __half2float(q[row * D + d]) * __half2float(k[j * D + d]);
    for (int s = 16; s; s >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, s);
    dot *= rsqrtf(float(D));
    float next = fmaxf(most, dot), old = __expf(most - next), p = __expf(dot - next);
    sum = sum * old + p;
    for (int d = 0; d < D / 32; ++d) acc[d] = acc[d] * old + p * __half2float(v[j * D + d * 32 + lane]);
    most = next;
  }
  for (int d = 0; d < D / 32; ++d) out[row * D + d * 32 + lane] = acc[d] / sum;
}
extern "C" __global__ void attention_64(const half *q, const half *k, const half *v, float *out, int n) {
  attention<64>(q, k, v, out, n);
}

// Tokens go to the two experts with the highest scores: places, then a weighted sum of what the experts made of them.
extern "C" __global__ void moe_dispatch(const float *scores, const half2 *tokens, int experts, int width, int room, int *fill,
                                        int2 *places, float2 *weights, half2 *inbox) {
  int t = blockIdx.x, lane = threadIdx.x;
  float s = lane < experts ? scores[t * experts + lane] : -INFINITY;
  int chosen[2];
  float best[2];
  for (int r = 0; r < 2; ++r) {
    float most = s;
    for (int d = 16; d; d >>= 1) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, d));
    chosen[r] = __ffs(__ballot_sync(0xffffffffu, s == most)) - 1;
    best[r] = most;
    if (lane == chosen[r]) s = -INFINITY;
  }
  int at[2];
  for (int r = 0; r < 2; ++r) {
    int slot = 0;
    if (lane == 0) slot = atomicAdd(&fill[chosen[r]], 1);
    at[r] = chosen[r] * room + __shfl_sync(0xffffffffu, slot, 0);
    for (int i = lane; i < width / 2; i += 32) inbox[at[r] * width / 2 + i] = tokens[t * width / 2 + i];
  }
  float second = expf(best[1] - best[0]), w = 1 / (1 + second);
  if (lane == 0) places[t] = make_int2(at[0], at[1]), weights[t] = make_float2(w, second * w);
}
extern "C" __global__ void moe_expert(half2 *inbox, const int *fill, int width, int room) {
  int expert = blockIdx.x;
  for (int i = threadIdx.x; i < fill[expert] * width / 2; i += blockDim.x)
    inbox[expert * room * width / 2 + i] *= __float2half2_rn(float(expert + 1));
}
extern "C" __global__ void moe_combine(const half2 *inbox, const int2 *places, const float2 *weights, int width, half2 *out) {
  int t = blockIdx.x;
  int2 p = places[t];
  float2 w = weights[t];
  for (int i = threadIdx.x; i < width / 2; i += blockDim.x) {
    float2 a = __half22float2(inbox[p.x * width / 2 + i]), b = __half22float2(inbox[p.y * width / 2 + i]);
    out[t * width / 2 + i] = __floats2half2_rn(w.x * a.x + w.y * b.x, w.x * a.y + w.y * b.y);
  }
}

// A grid that stays: it takes tasks from a ring in memory until it is told to end.
struct Task {
  unsigned ready, operation;
  float value, result;
};
extern "C" __global__ void persistent(Task *ring, int slots, int client_tasks) {
  if (blockIdx.x == gridDim.x - 1) {
    // The client is a block of its own.
    for (int t = threadIdx.x; t < client_tasks; t += blockDim.x) {
      volatile Task *task = &ring[t % slots];
      task->value = t;
      task->operation = t % 2;
      __threadfence();
      task->ready = 1;
      while (task->ready != 2) {
      }
      __threadfence();
      task->operation = 9;
    }
    return;
  }
  for (int s = blockIdx.x; s < client_tasks; s += gridDim.x - 1) {
    volatile Task *task = &ring[s % slots];
    if (threadIdx.x == 0) {
      while (task->ready != 1) {
      }
      __threadfence();
      float v = task->value;
      task->result = task->operation ? v * v : sqrtf(v);
      __threadfence();
      task->ready = 2;
    }
  }
}

// All that one operand can be: conversions and functions of 16 bits.
extern "C" __global__ void half_all(float *to_float, unsigned short *back, unsigned short *functions) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  half h = __ushort_as_half((unsigned short)i);
  __nv_bfloat16 b = __ushort_as_bfloat16((unsigned short)i);
  to_float[2 * i] = __half2float(h);
  to_float[2 * i + 1] = __bfloat162float(b);
  back[2 * i] = __half_as_ushort(__float2half(to_float[2 * i]));
  back[2 * i + 1] = __bfloat16_as_ushort(__float2bfloat16(to_float[2 * i + 1]));
  unsigned short *f = functions + 8 * i;
  f[0] = __half_as_ushort(hexp(h));
  f[1] = __half_as_ushort(hsqrt(h));
  f[2] = __half_as_ushort(hlog2(h));
  f[3] = __half_as_ushort(-h);
  f[4] = (unsigned short)(__half2int_rz(h) + (__hisnan(h) ? 1 : 0));
  f[5] = __bfloat16_as_ushort(hrsqrt(b));
  f[6] = __bfloat16_as_ushort(__habs(b));
  f[7] = __hisinf(b);
}
extern "C" __global__ void half_two(const half2 *a, const half2 *b, half2 *out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  half2 *o = out + 10 * i, x = a[i], y = b[i];
  o[0] = x + y;
  o[1] = x - y;
  o[2] = x * y;
  o[3] = x / y;
  o[4] = __hmax2(x, y);
  o[5] = __hmin2(x, y);
  o[6] = __hgt2(x, y);
  o[7] = __lowhigh2highlow(x);
  o[8] = __halves2half2(__hadd_sat(x.x, y.x), __hfma_relu(x.x, y.x, x.y));
  o[9] = __floats2half2_rn(__low2float(x) * 1.00001f, x.x == y.x || __hltu(x.x, y.x) ? 1 : 0);
}
