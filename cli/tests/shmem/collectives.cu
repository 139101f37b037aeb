// Collectives, waits, and calls of the host and of streams, each against the numbers that it should give.
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include <nvshmem.h>
#include <nvshmemx.h>

constexpr int N = 37, THREADS = 96;

static int wrong = 0;
#define CHECK(what) do { if (!(what)) { printf("PE %d, line %d: %s\n", nvshmem_my_pe(), __LINE__, #what); ++wrong; } } while (0)
#define CUDA(call) do { cudaError_t e = (call); if (e != cudaSuccess) { printf("%s: %s\n", #call, cudaGetErrorString(e)); exit(1); } } while (0)

struct arrays {
  int *in, *out;          // n_pes * N
  double *sums;           // N, and N
  __half *halves;         // N, and N
  short *shorts;          // N, and N
  uint64_t *flag;
  int *answers;
};

__global__ void run(arrays a) {
  int me = nvshmem_my_pe(), pes = nvshmem_n_pes(), bad = 0;
  int *in = a.in, *out = a.out, t = threadIdx.x;
  nvshmemx_int_fcollect_block(NVSHMEM_TEAM_WORLD, out, in, N);
  for (int i = t; i < pes * N; i += blockDim.x) bad += out[i] != i / N * 1000 + i % N;
  nvshmemx_int_alltoall_block(NVSHMEM_TEAM_WORLD, out, in, N);
  for (int i = t; i < pes * N; i += blockDim.x) bad += out[i] != i / N * 1000 + me * N + i % N;
  if (t < 32) nvshmemx_int_broadcast_warp(NVSHMEM_TEAM_WORLD, out, in, N, pes - 1);
  __syncthreads();
  for (int i = t; i < N; i += blockDim.x) bad += out[i] != (pes - 1) * 1000 + i;
  nvshmemx_int_max_reduce_block(NVSHMEM_TEAM_WORLD, out, in, N);
  for (int i = t; i < N; i += blockDim.x) bad += out[i] != (pes - 1) * 1000 + i;
  nvshmemx_int_sum_reducescatter_block(NVSHMEM_TEAM_WORLD, out, in, N);
  for (int i = t; i < N; i += blockDim.x) bad += out[i] != pes * (pes - 1) / 2 * 1000 + pes * (me * N + i);
  nvshmemx_half_sum_reduce_block(NVSHMEM_TEAM_WORLD, a.halves + N, a.halves, N);
  for (int i = t; i < N; i += blockDim.x) bad += __half2float(a.halves[N + i]) != pes * (pes - 1) / 2 + pes * i;
  nvshmemx_short_min_reduce_block(NVSHMEM_TEAM_WORLD, a.shorts + N, a.shorts, N);
  for (int i = t; i < N; i += blockDim.x) bad += a.shorts[N + i] != -(pes - 1) * 1000 + i;
  nvshmemx_ushort_prod_reduce_block(NVSHMEM_TEAM_WORLD, (unsigned short *)a.shorts + N, (unsigned short *)a.shorts, N);
  for (int i = t; i < N; i += blockDim.x) {
    unsigned p = 1;
    for (int pe = 0; pe < pes; ++pe) p *= (unsigned short)(-pe * 1000 + i);
    bad += (unsigned short)a.shorts[N + i] != (unsigned short)p;
  }
  // Bits of integers of each size, over the same words.
  auto bits = [&](int op) {
    __syncthreads();
    if (op == 0) nvshmemx_uint_and_reduce_block(NVSHMEM_TEAM_WORLD, (unsigned *)out, (unsigned *)in, N);
    if (op == 1) nvshmemx_uint16_or_reduce_block(NVSHMEM_TEAM_WORLD, (uint16_t *)out, (uint16_t *)in, 2 * N);
    if (op == 2) nvshmemx_int8_xor_reduce_block(NVSHMEM_TEAM_WORLD, (int8_t *)out, (int8_t *)in, 4 * N);
    for (int i = t; i < N; i += blockDim.x) {
      unsigned want = unsigned(i);
      for (int pe = 1; pe < pes; ++pe) {
        unsigned word = unsigned(pe * 1000 + i);
        want = op == 0 ? want & word : op == 1 ? want | word : want ^ word;
      }
      bad += unsigned(out[i]) != want;
    }
  };
  for (int op = 0; op < 3; ++op) bits(op);
  __syncthreads();
  if (t == 0) nvshmem_uint64_xor_reducescatter(NVSHMEM_TEAM_WORLD, (uint64_t *)out, (uint64_t *)in, 2);
  __syncthreads();
  if (t < 4) {
    int i = me * 4 + t, want = 0;
    for (int pe = 0; pe < pes; ++pe) want ^= pe * 1000 + i;
    bad += out[t] != want;
  }
  if (t == 0) {
    nvshmem_double_prod_reduce(NVSHMEM_TEAM_WORLD, a.sums + N, a.sums, N);
    double p = 1;
    for (int i = 1; i <= pes; ++i) p *= i;
    bad += a.sums[N] != p;
    // Comparisons of waits, each true already or by a signal.
    bad += nvshmem_signal_fetch(a.flag) != 0;
    nvshmemx_signal_op(a.flag, 7, NVSHMEM_SIGNAL_SET, me);
    bad += nvshmem_signal_wait_until(a.flag, NVSHMEM_CMP_EQ, 7) != 7;
    bad += nvshmem_signal_wait_until(a.flag, NVSHMEM_CMP_NE, 0) != 7;
    bad += nvshmem_signal_wait_until(a.flag, NVSHMEM_CMP_GT, 6) != 7;
    bad += nvshmem_signal_wait_until(a.flag, NVSHMEM_CMP_LE, 7) != 7;
    bad += nvshmem_signal_wait_until(a.flag, NVSHMEM_CMP_LT, 8) != 7;
    nvshmem_uint64_wait_until(a.flag, NVSHMEM_CMP_GE, 7);
    bad += nvshmem_int_test((int *)a.flag, NVSHMEM_CMP_EQ, 8);
    // Values of 32 bits that the next PE waits for.
    nvshmem_int_p((int *)(a.flag + 1), 40 + me, (me + 1) % pes);
    nvshmem_int_wait_until((int *)(a.flag + 1), NVSHMEM_CMP_NE, 0);
    bad += *(int *)(a.flag + 1) != 40 + (me + pes - 1) % pes;
    // Only own memory has an address here; other teams have this PE alone.
    bad += nvshmem_ptr(a.flag, me) != a.flag || (pes > 1 && nvshmem_ptr(a.flag, (me + 1) % pes));
    bad += nvshmem_team_n_pes(NVSHMEMX_TEAM_NODE) != 1 || nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) != 0;
    nvshmem_int_fcollect(NVSHMEMX_TEAM_NODE, out, in + 1, N - 1);
    bad += out[0] != me * 1000 + 1;
    nvshmem_sync(NVSHMEM_TEAM_SHARED);
  }
  __syncthreads();
  atomicAdd(a.answers, bad);
  nvshmemx_barrier_all_block();
}

int main() {
  nvshmem_init();
  int me = nvshmem_my_pe(), pes = nvshmem_n_pes(), next = (me + 1) % pes, before = (me + pes - 1) % pes;
  arrays a;
  size_t all = size_t(pes) * N;
  a.in = (int *)nvshmem_malloc(all * sizeof(int));
  a.out = (int *)nvshmem_malloc(all * sizeof(int));
  a.sums = (double *)nvshmem_malloc(2 * N * sizeof(double));
  a.halves = (__half *)nvshmem_malloc(2 * N * sizeof(__half));
  a.shorts = (short *)nvshmem_malloc(2 * N * sizeof(short));
  a.flag = (uint64_t *)nvshmem_calloc(2, 8);
  CHECK(nvshmem_align(4096, 10) && !nvshmem_malloc(0) && !nvshmem_malloc(size_t(1) << 40));
  CUDA(cudaMallocManaged((void **)&a.answers, sizeof(int)));
  *a.answers = 0;
  std::vector<int> in(all);
  std::vector<double> sums(2 * N, me + 1.0);
  std::vector<__half> halves(2 * N);
  std::vector<short> shorts(N);
  for (size_t i = 0; i < all; ++i) in[i] = me * 1000 + int(i);
  for (int i = 0; i < N; ++i) halves[size_t(i)] = __float2half(float(me + i)), shorts[size_t(i)] = short(-me * 1000 + i);
  CUDA(cudaMemcpy(a.in, in.data(), all * sizeof(int), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(a.sums, sums.data(), 2 * N * sizeof(double), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(a.shorts, shorts.data(), N * sizeof(short), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(a.halves, halves.data(), N * sizeof(__half), cudaMemcpyHostToDevice));
  nvshmem_barrier_all();
  void *args[] = {&a};
  CHECK(nvshmemx_collective_launch((const void *)run, dim3(1), dim3(THREADS), args, 0, nullptr) == 0);
  CUDA(cudaDeviceSynchronize());
  CHECK(*a.answers == 0);

  // The host's own calls.
  nvshmem_int_put(a.out, a.in, N, next);
  nvshmem_double_p(a.sums, 2.5 + me, next);
  nvshmem_barrier_all();
  std::vector<int> got(all);
  CUDA(cudaMemcpy(got.data(), a.out, N * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(got[3] == before * 1000 + 3);
  CHECK(nvshmem_double_g(a.sums, next) == 2.5 + me);
  CHECK(nvshmem_int_sum_reduce(NVSHMEM_TEAM_WORLD, a.out, a.in, N) == 0);
  CUDA(cudaMemcpy(got.data(), a.out, N * sizeof(int), cudaMemcpyDeviceToHost));
  CHECK(got[5] == pes * (pes - 1) / 2 * 1000 + pes * 5);

  // Memory of the program's own as a source.
  int *own;
  CUDA(cudaMalloc((void **)&own, 4 << 20));
  CUDA(cudaMemcpy(own, in.data(), N * sizeof(int), cudaMemcpyHostToDevice));
  CHECK(nvshmemx_buffer_register(own, 4 << 20) == 0);

  // In a stream's order.
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  nvshmemx_barrier_all_on_stream(stream);
  nvshmemx_int_put_signal_on_stream(a.out + N, own, N, a.flag + 1, 99, NVSHMEM_SIGNAL_SET, next, stream);
  nvshmemx_signal_wait_until_on_stream(a.flag + 1, NVSHMEM_CMP_EQ, 99, stream);
  nvshmemx_int_get_on_stream(a.out, a.out + N, N, next, stream);
  nvshmemx_double_max_reduce_on_stream(NVSHMEM_TEAM_WORLD, a.sums + 1, a.sums, 1, stream);
  nvshmemx_barrier_all_on_stream(stream);
  CUDA(cudaMemcpyAsync(got.data(), a.out, 2 * N * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaMemcpyAsync(sums.data(), a.sums, 2 * sizeof(double), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(got[N + 1] == before * 1000 + 1 && sums[1] == 2.5 + pes - 1);
  CHECK(nvshmemx_buffer_unregister(own) == 0);
  printf("PE %d of %d: %s\n", me, pes, wrong ? "WRONG" : "all as they should be");
  nvshmem_free(a.in);
  nvshmem_finalize();
  return wrong != 0;
}
