// Teams: split by stride, forth and back, in rows and columns, and out of each other; each collective gives what the numbers say.
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include <nvshmem.h>
#include <nvshmemx.h>

constexpr int N = 21, THREADS = 64;

static int wrong = 0;
#define CHECK(what) do { if (!(what)) { printf("PE %d, line %d: %s\n", nvshmem_my_pe(), __LINE__, #what); ++wrong; } } while (0)
#define CUDA(call) do { cudaError_t e = (call); if (e != cudaSuccess) { printf("%s: %s\n", #call, cudaGetErrorString(e)); exit(1); } } while (0)

// The world's numbers of a team's PEs.
typedef std::vector<int> pes;

// The numbers that each PE has and gets, in the heap.
struct arrays {
  int *in, *out;
};

__device__ int value(int pe, int i) { return pe * 1000 + i; }

// `world` are the team's PEs, `translated` what the calls of a kernel say of them.
__global__ void collect(nvshmem_team_t team, const int *world, int size, arrays a, int *translated, int *bad) {
  int me = nvshmem_team_my_pe(team), t = threadIdx.x, errors = 0;
  for (int i = t; i < size * N; i += blockDim.x) a.in[i] = value(nvshmem_my_pe(), i);
  nvshmemx_barrier_block(team);
  nvshmemx_int_fcollect_block(team, a.out, a.in, N);
  for (int i = t; i < size * N; i += blockDim.x) errors += a.out[i] != value(world[i / N], i % N);
  nvshmemx_int_alltoall_block(team, a.out, a.in, N);
  for (int i = t; i < size * N; i += blockDim.x) errors += a.out[i] != value(world[i / N], me * N + i % N);
  nvshmemx_int_broadcast_block(team, a.out, a.in, N, size - 1);
  for (int i = t; i < N; i += blockDim.x) errors += a.out[i] != value(world[size - 1], i);
  int sum = 0;
  for (int i = 0; i < size; ++i) sum += world[i] * 1000;
  nvshmemx_int_sum_reduce_block(team, a.out, a.in, N);
  for (int i = t; i < N; i += blockDim.x) errors += a.out[i] != sum + size * i;
  nvshmemx_int_sum_reducescatter_block(team, a.out, a.in, N);
  for (int i = t; i < N; i += blockDim.x) errors += a.out[i] != sum + size * (me * N + i);
  nvshmemx_team_sync_block(team);
  if (t == 0) {
    errors += nvshmem_team_n_pes(team) != size || world[me] != nvshmem_my_pe();
    for (int pe = 0; pe < nvshmem_n_pes(); ++pe) translated[pe] = nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, pe, team);
    for (int i = 0; i < size; ++i) errors += nvshmem_team_translate_pe(team, i, NVSHMEM_TEAM_WORLD) != world[i];
    errors += nvshmem_team_translate_pe(team, size, NVSHMEM_TEAM_WORLD) != -1 || nvshmem_team_translate_pe(team, -1, team) != -1;
    errors += nvshmem_team_sync(team) != 0;
  }
  atomicAdd(bad, errors);
}

static arrays memory;
static int *device_world, *translated, *bad;

static void check(nvshmem_team_t team, const pes &world) {
  int me = -1, size = int(world.size()), n = nvshmem_n_pes();
  for (int i = 0; i < size; ++i) me = world[size_t(i)] == nvshmem_my_pe() ? i : me;
  CHECK((team == NVSHMEM_TEAM_INVALID) == (me < 0));
  CHECK(nvshmem_team_my_pe(team) == me && nvshmem_team_n_pes(team) == (me < 0 ? -1 : size));
  if (me < 0) return;
  for (int pe = 0; pe < n; ++pe) {
    int number = -1;
    for (int i = 0; i < size; ++i) number = world[size_t(i)] == pe ? i : number;
    CHECK(nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, pe, team) == number);
  }
  CUDA(cudaMemcpy(device_world, world.data(), size_t(size) * 4, cudaMemcpyHostToDevice));
  *bad = 0;
  void *args[] = {&team, &device_world, &size, &memory, &translated, &bad};
  CHECK(nvshmemx_collective_launch((const void *)collect, dim3(1), dim3(THREADS), args, 0, nullptr) == 0);
  CUDA(cudaDeviceSynchronize());
  CHECK(*bad == 0);
  for (int pe = 0; pe < n; ++pe) CHECK(translated[pe] == nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, pe, team));
  // The host's calls, and a stream's.
  CHECK(nvshmem_int_max_reduce(team, memory.out, memory.in, 1) == 0);
  int got = 0, most = 0;
  for (int pe : world) most = pe > most ? pe : most;
  CUDA(cudaMemcpy(&got, memory.out, 4, cudaMemcpyDeviceToHost));
  CHECK(got == most * 1000);
  CHECK(nvshmemx_barrier_on_stream(team, nullptr) == 0);
  CHECK(nvshmemx_int_fcollect_on_stream(team, memory.out, memory.in + 1, 1, nullptr) == 0);
  CUDA(cudaMemcpy(&got, memory.out + size - 1, 4, cudaMemcpyDeviceToHost));
  CHECK(got == world.back() * 1000 + 1);
  CHECK(nvshmem_barrier(team) == 0);
}

// PEs of a team, of which `world` are all.
static pes strided(const pes &world, int start, int stride, int size) {
  pes some;
  for (int i = 0; i < size; ++i) some.push_back(world[size_t(start + i * stride)]);
  return some;
}

static nvshmem_team_t split(nvshmem_team_t parent, int start, int stride, int size) {
  nvshmem_team_t made = 77;
  CHECK(nvshmem_team_split_strided(parent, start, stride, size, nullptr, 0, &made) == 0);
  return made;
}

int main() {
  nvshmem_init();
  int n = nvshmem_n_pes(), me = nvshmem_my_pe();
  memory.in = (int *)nvshmem_malloc(size_t(n) * N * 4);
  memory.out = (int *)nvshmem_malloc(size_t(n) * N * 4);
  CUDA(cudaMalloc((void **)&device_world, size_t(n) * 4));
  CUDA(cudaMallocManaged((void **)&translated, size_t(n) * 4));
  CUDA(cudaMallocManaged((void **)&bad, 4));
  pes all;
  for (int i = 0; i < n; ++i) all.push_back(i);
  check(NVSHMEM_TEAM_WORLD, all);
  check(NVSHMEM_TEAM_SHARED, pes{me});

  nvshmem_team_t back = split(NVSHMEM_TEAM_WORLD, n - 1, -1, n), even = split(NVSHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2);
  pes back_pes = strided(all, n - 1, -1, n), even_pes = strided(all, 0, 2, (n + 1) / 2);
  check(back, back_pes);
  check(even, even_pes);
  // Out of another, and of one that has this PE alone.
  nvshmem_team_t inner = split(back, 1, 1, n - 1);
  check(inner, strided(back_pes, 1, 1, n - 1));
  nvshmem_team_t own = split(NVSHMEM_TEAM_SHARED, 0, 1, 1);
  check(own, pes{me});

  nvshmem_team_t row, column;
  nvshmem_team_config_t config = NVSHMEM_TEAM_CONFIG_INITIALIZER, told = NVSHMEM_TEAM_CONFIG_INITIALIZER;
  config.num_contexts = 5;
  CHECK(nvshmem_team_split_2d(NVSHMEM_TEAM_WORLD, 2, &config, NVSHMEM_TEAM_CONFIG_MASK_NUM_CONTEXTS, &row, nullptr, 0, &column) == 0);
  check(row, strided(all, me / 2 * 2, 1, n - me / 2 * 2 < 2 ? 1 : 2));
  check(column, strided(all, me % 2, 2, (n - me % 2 + 1) / 2));
  nvshmem_team_get_config(row, &told);
  CHECK(told.num_contexts == 5);

  // What cannot be.
  nvshmem_team_t none = 77;
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, n + 1, nullptr, 0, &none) != 0 && none == NVSHMEM_TEAM_INVALID);
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, -1, 1, 1, nullptr, 0, &none) != 0);
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 0, 2, nullptr, 0, &none) != 0);
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_INVALID, 0, 1, 1, nullptr, 0, &none) != 0);
  CHECK(nvshmem_barrier(NVSHMEM_TEAM_INVALID) != 0);

  // More than there may be at once, one after the other.
  for (int i = 0; i < 70; ++i) {
    nvshmem_team_t team = split(NVSHMEM_TEAM_WORLD, 0, 1, n);
    CHECK(team != NVSHMEM_TEAM_INVALID && nvshmem_team_n_pes(team) == n);
    if (i % 35 == 34) check(team, all);
    nvshmem_team_destroy(team);
    CHECK(nvshmem_team_n_pes(team) == -1);
  }
  nvshmem_team_destroy(inner);
  nvshmem_team_destroy(NVSHMEM_TEAM_INVALID);
  check(even, even_pes);
  printf("PE %d of %d: %s\n", me, n, wrong ? "WRONG" : "all as they should be");
  nvshmem_finalize();
  return wrong != 0;
}
