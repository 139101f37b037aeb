// Waits for several words, and looks at them: block 1 waits for what block 0 of the PE before puts, in an order that it has drawn.
#include <stdio.h>
#include <stdlib.h>

#include <nvshmem.h>
#include <nvshmemx.h>

constexpr size_t N = 24;
constexpr int ROUNDS = 3;

struct words {
  uint64_t *longs; // N, round r makes them r
  int *ints;       // N, value of each: 100 * r + i
  short *shorts;   // N
  int *ready;      // the waiter has come so far
  int *status, *values, *answers;
  size_t *indices;
};

#define WRONG(what) do { if (!(what)) { printf("PE %d, line %d, round %d: %s\n", nvshmem_my_pe(), __LINE__, round, #what); ++*w.answers; } } while (0)

__device__ unsigned order(int round, unsigned i) { return (i * 7 + unsigned(round) * 5) % N; }

__device__ void send(const words &w, int round) {
  int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
  for (unsigned i = 0; i < N; ++i) nvshmemx_signal_op(w.longs + order(round, i), uint64_t(round), NVSHMEM_SIGNAL_SET, next);
  nvshmem_int_wait_until(w.ready, NVSHMEM_CMP_GE, 2 * round - 1);
  for (unsigned i = 0; i < N; ++i) {
    unsigned k = order(round + 1, i);
    nvshmem_int_p(w.ints + k, 100 * round + int(k), next);
    nvshmem_short_p(w.shorts + k, short(-round), next);
  }
  nvshmem_int_wait_until(w.ready, NVSHMEM_CMP_GE, 2 * round);
}

__device__ void wait(const words &w, int round) {
  int before = (nvshmem_my_pe() + nvshmem_n_pes() - 1) % nvshmem_n_pes();
  uint64_t now = uint64_t(round);
  // One after the other, each once.
  for (size_t i = 0; i < N; ++i) w.status[i] = 0;
  for (size_t i = 0; i < N; ++i) {
    size_t k = nvshmem_uint64_wait_until_any(w.longs, N, w.status, NVSHMEM_CMP_EQ, now);
    WRONG(k < N && !w.status[k] && w.longs[k] == now);
    w.status[k] = 1;
  }
  WRONG(nvshmem_uint64_wait_until_any(w.longs, N, w.status, NVSHMEM_CMP_EQ, now) == SIZE_MAX);
  WRONG(nvshmem_uint64_test_any(w.longs, N, w.status, NVSHMEM_CMP_EQ, now) == SIZE_MAX);
  WRONG(nvshmem_uint64_wait_until_some(w.longs, N, w.indices, w.status, NVSHMEM_CMP_EQ, now) == 0);
  WRONG(nvshmem_uint64_test_all(w.longs, N, nullptr, NVSHMEM_CMP_EQ, now));
  WRONG(!nvshmem_uint64_test_all(w.longs, N, nullptr, NVSHMEM_CMP_GT, now));
  // All of them are excluded, and there are none.
  WRONG(nvshmem_uint64_test_all(w.longs, N, w.status, NVSHMEM_CMP_GT, now) && nvshmem_uint64_test_all(w.longs, 0, nullptr, NVSHMEM_CMP_GT, now));
  nvshmem_uint64_wait_until_all(w.longs, N, w.status, NVSHMEM_CMP_GT, now);
  WRONG(nvshmem_uint64_wait_until_any(w.longs, 0, nullptr, NVSHMEM_CMP_GT, now) == SIZE_MAX);

  // The others have not come: each word of ints has a value of its own.
  for (size_t i = 0; i < N; ++i) w.status[i] = 0, w.values[i] = 100 * round + int(i);
  WRONG(nvshmem_int_test_any_vector(w.ints, N, nullptr, NVSHMEM_CMP_EQ, w.values) == SIZE_MAX);
  WRONG(nvshmem_int_test_some_vector(w.ints, N, w.indices, nullptr, NVSHMEM_CMP_EQ, w.values) == 0);
  WRONG(!nvshmem_int_test_all_vector(w.ints, N, nullptr, NVSHMEM_CMP_EQ, w.values));
  nvshmem_int_p(w.ready, 2 * round - 1, before);
  for (size_t left = N; left;) {
    size_t found = nvshmem_int_wait_until_some_vector(w.ints, N, w.indices, w.status, NVSHMEM_CMP_EQ, w.values);
    WRONG(found > 0 && found <= left);
    for (size_t i = 0; i < found; ++i) {
      size_t k = w.indices[i];
      WRONG(k < N && !w.status[k] && (i == 0 || w.indices[i - 1] < k));
      w.status[k] = 1;
    }
    left -= found;
  }
  nvshmem_int_wait_until_all_vector(w.ints, N, nullptr, NVSHMEM_CMP_EQ, w.values);
  WRONG(nvshmem_int_wait_until_any_vector(w.ints, N, nullptr, NVSHMEM_CMP_GE, w.values) < N);
  WRONG(nvshmem_int_test_some(w.ints, N, w.indices, nullptr, NVSHMEM_CMP_GE, 100 * round + 20) == 4 && w.indices[0] == 20);
  WRONG(nvshmem_int_wait_until_some(w.ints, N, w.indices, nullptr, NVSHMEM_CMP_LT, 100 * round + 3) == 3 && w.indices[2] == 2);
  // Two words of 16 bits in one of 32.
  nvshmem_short_wait_until_all(w.shorts, N, nullptr, NVSHMEM_CMP_LE, short(-round));
  nvshmem_short_wait_until(w.shorts + 1, NVSHMEM_CMP_EQ, short(-round));
  WRONG(nvshmem_short_test(w.shorts, NVSHMEM_CMP_LT, 0) && !nvshmem_ushort_test((unsigned short *)w.shorts, NVSHMEM_CMP_LT, 0xff00));
  nvshmem_int_p(w.ready, 2 * round, before);
}

__global__ void run(words w) {
  if (threadIdx.x) return;
  for (int round = 1; round <= ROUNDS; ++round) blockIdx.x ? wait(w, round) : send(w, round);
  nvshmem_quiet();
}

int main() {
  nvshmem_init();
  words w;
  w.longs = (uint64_t *)nvshmem_calloc(N, 8);
  w.ints = (int *)nvshmem_calloc(N, 4);
  w.shorts = (short *)nvshmem_calloc(N, 2);
  w.ready = (int *)nvshmem_calloc(1, 4);
  cudaMalloc((void **)&w.status, N * 4);
  cudaMalloc((void **)&w.values, N * 4);
  cudaMalloc((void **)&w.indices, N * 8);
  cudaMallocManaged((void **)&w.answers, 4);
  *w.answers = 0;
  void *args[] = {&w};
  int wrong = nvshmemx_collective_launch((const void *)run, dim3(2), dim3(32), args, 0, nullptr);
  // Behind the kernel: what it has waited for is there.
  nvshmemx_int_wait_until_on_stream(w.ints + 1, NVSHMEM_CMP_GE, 100 * ROUNDS, nullptr);
  nvshmemx_uint64_wait_until_all_on_stream(w.longs, N, nullptr, NVSHMEM_CMP_GE, 1, nullptr);
  wrong += cudaDeviceSynchronize() != cudaSuccess;
  wrong += *w.answers;
  printf("PE %d of %d: %s\n", nvshmem_my_pe(), nvshmem_n_pes(), wrong ? "WRONG" : "all as they should be");
  nvshmem_finalize();
  return wrong != 0;
}
