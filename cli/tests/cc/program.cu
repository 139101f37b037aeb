// A program as `ringbell cc` builds it: kernels, main, and launches of every kind. Run by tests/cc.rs.
// Exits with the number of failed checks.
#include <cstdio>
#include <cstring>

#include "ringbell.hpp"

static int failed;
#define CHECK(condition)                                                                        \
  do {                                                                                          \
    if (!(condition)) ++failed, std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition);    \
  } while (0)

// Every lane of every block counts once, and has its own index.
__global__ void count(unsigned *lanes, unsigned *places, unsigned step) {
  __shared__ unsigned mine;
  if (threadIdx.x == 0 && threadIdx.y == 0) mine = 0;
  __syncthreads();
  atomicAdd(&mine, step);
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) atomicAdd(lanes, mine);
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned lane = threadIdx.x + blockDim.x * threadIdx.y;
  atomicAdd(&places[block * blockDim.x * blockDim.y + lane], 1u);
  step = 0; // a copy of this lane's own
}

__global__ void empty_commands(rb_queue q, int n, gpu_result *out) {
  gpu_result r{};
  for (int i = 0; i < n && r.ok(); ++i) r = gpu_nop_block(q);
  if (threadIdx.x == 0) out[blockIdx.x] = r;
}

// Runs until the host sets the flag.
__global__ void until(unsigned *flag) {
  while (atomicAdd(flag, 0u) == 0) __nanosleep(100000);
}

__global__ void trap_in(unsigned block) {
  if (blockIdx.x == block && threadIdx.x == 1) __trap();
}

__global__ void diverge() {
  if (threadIdx.x == 0) __syncthreads();
  else if (threadIdx.x == 1) __syncwarp(0xfffffffe); // lanes 2 to 31 never come: they wait below
  if (threadIdx.x > 1) __syncwarp(0x7fffffff);
}

// Waits for a peer that never comes, and goes on when the wait has ended: by SHUTTING_DOWN, or it traps.
__global__ void wait_for_peer(rb_queue q, rb_u32 port, rb_u32 *memory, unsigned *waiting) {
  gpu_result r = gpu_socket(q);
  if (r.ok()) {
    rb_u32 sock = r.session;
    r = gpu_listen(q, sock, port + blockIdx.x);
    if (r.ok()) {
      atomicAdd(waiting, 1u);
      r = gpu_accept(q, sock, 60000000);
    }
    gpu_close(q, sock);
  }
  memory[blockIdx.x] = r.status;
  if (r.status != RB_STATUS_SHUTTING_DOWN || gpu_nop(q).status != RB_STATUS_SHUTTING_DOWN) __trap();
}

// The NIC is closed while kernels wait: they end, by a status, and what they touch is there until then.
static void close_under_kernels(const char *directory) {
  for (int run = 0; run < 20; ++run) {
    rb_nic_config config{};
    config.size = sizeof config;
    config.ip = "10.6.1.2";
    config.local_directory = directory;
    rb_nic *nic = nullptr;
    rb_queue q;
    void *memory = nullptr, *waiting = nullptr;
    unsigned count = 0;
    CHECK(rb_nic_open(&config, &nic) == 0 && rb_queue_create(nic, &q) == 0 && rb_mem_alloc(nic, 4096, &memory) == 0);
    CHECK(rb_mem_alloc(nic, sizeof count, &waiting) == 0 && rb_mem_write(nic, waiting, &count, sizeof count) == 0);
    rb::running kernels = rb::launch(nic, wait_for_peer, 4, 1, q, 7000u, (rb_u32 *)memory, (unsigned *)waiting);
    for (int i = 0; i < 10000 && count < 4; ++i) {
      CHECK(kernels.wait(1) == RB_STATUS_TIMED_OUT);
      CHECK(rb_mem_read(nic, &count, waiting, sizeof count) == 0);
    }
    CHECK(count == 4);
    CHECK(rb_nic_close(nic) == 0);
    // Long before the kernels' own time-out.
    CHECK(kernels.wait(20000) == 0);
  }
}

int main(int argc, char **argv) {
  if (argc != 2) return 100;
  rb_nic_config config{};
  config.size = sizeof config;
  config.ip = "10.6.1.1";
  config.local_directory = argv[1];
  rb_nic *nic = nullptr;
  CHECK(rb_nic_open(&config, &nic) == 0);

  // 2 * 3 * 70 blocks: more than run at the same time.
  constexpr unsigned BLOCKS = 2 * 3 * 70, LANES = 16 * 3;
  void *lanes = nullptr, *places = nullptr;
  CHECK(rb_mem_alloc(nic, 4, &lanes) == 0 && rb_mem_alloc(nic, BLOCKS * LANES * 4, &places) == 0);
  CHECK(rb::launch(nic, count, dim3(2, 3, 70), dim3(16, 3), (unsigned *)lanes, (unsigned *)places, 1).wait() == 0);
  static unsigned seen[BLOCKS * LANES];
  unsigned total = 0, wrong = 0;
  CHECK(rb_mem_read(nic, &total, lanes, 4) == 0 && total == BLOCKS * LANES);
  CHECK(rb_mem_read(nic, seen, places, sizeof seen) == 0);
  for (unsigned s : seen) wrong += s != 1;
  CHECK(wrong == 0);

  rb_queue q;
  void *out = nullptr;
  gpu_result results[4];
  CHECK(rb_queue_create(nic, &q) == 0 && rb_mem_alloc(nic, sizeof results, &out) == 0);
  rb::running nops = rb::launch(nic, empty_commands, 4, 32, q, 100, (gpu_result *)out);
  CHECK(nops.wait() == 0 && !std::strcmp(nops.error(), ""));
  CHECK(rb_mem_read(nic, results, out, sizeof results) == 0);
  for (const gpu_result &r : results) CHECK(r.ok());

  // It is still running for as long as the host wants.
  unsigned zero = 0, one = 1;
  CHECK(rb_mem_write(nic, lanes, &zero, 4) == 0);
  rb::running held = rb::launch(nic, until, 1, 1, (unsigned *)lanes);
  CHECK(held.wait(5) == RB_STATUS_TIMED_OUT);
  CHECK(rb_mem_write(nic, lanes, &one, 4) == 0);
  CHECK(held.wait() == 0 && held.wait() == 0);

  rb::running trapped = rb::launch(nic, trap_in, 5, 32, 3u);
  CHECK(trapped.wait() == RB_ERR_KERNEL && std::strstr(trapped.error(), "(3,0,0)") && std::strstr(trapped.error(), "__trap"));
  rb::running diverged = rb::launch(nic, diverge, 1, 32);
  CHECK(diverged.wait() == RB_ERR_KERNEL && std::strstr(diverged.error(), "wait at a"));
  rb::running large = rb::launch(nic, trap_in, 1, 1025, 9u);
  CHECK(large.wait() == RB_ERR_KERNEL && std::strstr(large.error(), "1 to 1,024 lanes"));
  rb::running nothing = rb::launch(nic, trap_in, 0, 1, 9u);
  CHECK(nothing.wait() == RB_ERR_KERNEL && std::strstr(nothing.error(), "at least one block"));

  CHECK(rb_nic_close(nic) == 0);
  close_under_kernels(argv[1]);
  if (!failed) std::puts("all launches as they should be");
  return failed;
}
