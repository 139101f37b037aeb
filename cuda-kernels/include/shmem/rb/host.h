/* The host's half: it makes the job's NIC and communicator by the C API, and writes the state of each module.
 *
 * nvshmem_init finds the job by the launcher's variables (`ringbell run`, mpirun, mpiexec, torchrun, srun; none: one PE), or by a
 * unique id. The NIC stands beside the CUDA device that is current when it is opened: at once where there is one device, else
 * when something needs it first, after the program has chosen.
 *
 * NVSHMEM_SYMMETRIC_SIZE: bytes of the heap, with K, M or G [64M]. RINGBELL_SHMEM_TIMEOUT_MS: deadline of every wait [60000].
 */
#ifndef RINGBELL_SHMEM_HOST_H
#define RINGBELL_SHMEM_HOST_H

#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "../../ringbell.h"
#include "heap.h"
#include "state.h"
#include "types.h"

#define NVSHMEMX_INIT_WITH_MPI_COMM 2u
#define NVSHMEMX_INIT_WITH_SHMEM 4u
#define NVSHMEMX_INIT_WITH_UNIQUEID 8u

/* The text of an rb_unique_id. */
typedef struct nvshmemx_uniqueid_v1 {
  int version;
  char internal[124];
} nvshmemx_uniqueid_v1;
typedef nvshmemx_uniqueid_v1 nvshmemx_uniqueid_t;
#define NVSHMEMX_UNIQUEID_INITIALIZER {1, {0}}

typedef struct {
  int version;
  const nvshmemx_uniqueid_t *id;
  int myrank;
  int nranks;
} nvshmemx_uniqueid_args_t;
typedef struct {
  int version;
  nvshmemx_uniqueid_args_t uid_args;
  char content[96];
} nvshmemx_init_args_t;
typedef struct {
  int version;
  void *mpi_comm;
  nvshmemx_init_args_t args;
} nvshmemx_init_attr_t;
#define NVSHMEMX_INIT_ATTR_INITIALIZER {1, nullptr, {1, {1, nullptr, 0, 0}, {0}}}

enum nvshmemx_status {
  NVSHMEMX_SUCCESS = 0,
  NVSHMEMX_ERROR_INVALID_VALUE = 1,
  NVSHMEMX_ERROR_OUT_OF_MEMORY = 2,
  NVSHMEMX_ERROR_NOT_SUPPORTED = 3,
  NVSHMEMX_ERROR_INTERNAL = 7,
};

enum { NVSHMEM_STATUS_NOT_INITIALIZED = 0, NVSHMEM_STATUS_IS_BOOTSTRAPPED = 1, NVSHMEM_STATUS_IS_INITIALIZED = 2 };

namespace rb {
namespace shmem {

/* A translation unit's copy of the state, which its module has. */
struct module_copy {
  cudaError_t (*write)(const state &);
  module_copy *next;
};

/* A team as the host knows it. */
struct host_team {
  team device{};
  rb_communicator *comm = nullptr;
  nvshmem_team_config_t config = NVSHMEM_TEAM_CONFIG_INITIALIZER;
};

/* This process. */
struct process {
  rb_nic *nic = nullptr;
  rb_communicator *comm = nullptr;
  rb_unique_id id{}; /* with one, not the launcher's job */
  bool has_id = false, joined = false, open = false;
  uint32_t rank = 0, ranks = 0;
  state device{};
  void *posted = nullptr, *table = nullptr;
  host_team teams[MAX_TEAMS];
  heap room;
  cudaStream_t stream = nullptr;
  module_copy *modules = nullptr;
};

inline process &here() {
  static process p;
  return p;
}

/* NVSHMEM's programs end where they cannot begin. */
inline void give_up(const char *what, const char *why) {
  fprintf(stderr, "ringbell: %s: %s\n", what, why);
  exit(1);
}
inline void need(const char *what, rb_result r) {
  if (r) give_up(what, rb_last_error());
}
inline void need_cuda(const char *what, cudaError_t e) {
  if (e != cudaSuccess) give_up(what, cudaGetErrorString(e));
}

/* Registers the copy of a translation unit, before main. */
struct registration {
  module_copy copy;
  explicit registration(cudaError_t (*write)(const state &)) : copy{write, here().modules} { here().modules = &copy; }
};

inline uint64_t number_of(const char *variable, uint64_t otherwise) {
  const char *text = getenv(variable);
  if (!text || !*text) return otherwise;
  char *end = nullptr;
  double n = strtod(text, &end);
  int shift = 0;
  switch (*end) {
  case 'k': case 'K': shift = 10; break;
  case 'm': case 'M': shift = 20; break;
  case 'g': case 'G': shift = 30; break;
  default: break;
  }
  if (!(n > 0) || n > 1e12 || (*end && end[shift ? 1 : 0])) give_up(variable, "it is no number of bytes, such as 64M or 1G");
  return uint64_t(n * double(uint64_t(1) << shift));
}

/* Tells the GPU of a team. */
inline cudaError_t show(int number) {
  process &p = here();
  team *to = static_cast<team *>(p.table) + number;
  cudaError_t e = cudaMemcpyAsync(to, &p.teams[number].device, sizeof(team), cudaMemcpyHostToDevice, p.stream);
  return e == cudaSuccess ? cudaStreamSynchronize(p.stream) : e;
}

/* Opens the NIC beside the current device, makes the communicator and the heap, and writes the state of every module. */
inline void open() {
  process &p = here();
  if (p.open) return;
  if (!p.joined) give_up("the library", "it is not initialised: call nvshmem_init first");
  int device = 0;
  need_cuda("cudaGetDevice", cudaGetDevice(&device));
  char gpu[24];
  snprintf(gpu, sizeof gpu, "cuda:%d", device);
  rb_nic_config config = {};
  config.size = sizeof config;
  config.gpu = gpu;
  need("the NIC", p.has_id ? rb_nic_open_rank(&config, &p.id, p.rank, &p.nic) : rb_nic_open_env(&config, &p.nic));
  need("the communicator",
       p.has_id ? rb_comm_init_rank(&p.comm, p.nic, p.ranks, &p.id, p.rank, nullptr) : rb_comm_init_env(&p.comm, p.nic, nullptr));
  uint64_t bytes = (number_of("NVSHMEM_SYMMETRIC_SIZE", 64u << 20) + 0xffff) & ~uint64_t(0xffff);
  void *heap = nullptr;
  uint32_t window = 0;
  need("the symmetric heap (NVSHMEM_SYMMETRIC_SIZE)", rb_comm_alloc_symmetric(p.comm, bytes, &heap, &window));
  state &s = p.device;
  need("the communicator's handle", rb_comm_kernel_handle(p.comm, &s.comm));
  /* A word of 64 bits for each slot, then one of 32. */
  size_t slots = size_t(1) << s.comm.queue.depth_log2, marks = slots * (sizeof(uint64_t) + sizeof(uint32_t));
  need_cuda("memory for the queue", cudaMalloc(&p.posted, marks));
  need_cuda("memory for the queue", cudaMemset(p.posted, 0, marks));
  need_cuda("memory for the teams", cudaMalloc(&p.table, MAX_TEAMS * sizeof(team)));
  need_cuda("memory for the teams", cudaMemset(p.table, 0, MAX_TEAMS * sizeof(team)));
  need_cuda("a stream", cudaStreamCreateWithFlags(&p.stream, cudaStreamNonBlocking));
  p.teams[NVSHMEM_TEAM_WORLD].device = team{s.comm, 0, 1, int(p.ranks), int(p.rank)};
  for (int alone = NVSHMEM_TEAM_SHARED; alone <= NVSHMEMX_TEAM_SAME_MYPE_NODE; ++alone)
    p.teams[alone].device = team{rb_comm{}, int(p.rank), 1, 1, 0};
  s.heap = reinterpret_cast<uint64_t>(heap);
  s.bytes = bytes;
  s.counted = reinterpret_cast<uint64_t>(p.posted);
  s.posted = s.counted + slots * sizeof(uint64_t);
  s.teams = reinterpret_cast<uint64_t>(p.table);
  s.window = window;
  s.timeout_us = uint32_t(number_of("RINGBELL_SHMEM_TIMEOUT_MS", 60000) * 1000);
  p.room.begin(bytes);
  for (module_copy *m = p.modules; m; m = m->next) need_cuda("the state of a module", m->write(s));
  need_cuda("the state of a module", cudaDeviceSynchronize());
  for (int number = 0; number <= NVSHMEMX_TEAM_SAME_MYPE_NODE; ++number) need_cuda("the teams", show(number));
  p.open = true;
}

/* Becomes a PE of the job. */
inline int join(const rb_unique_id *id, uint32_t rank, uint32_t ranks) {
  process &p = here();
  if (p.joined) return NVSHMEMX_SUCCESS;
  rb_job job;
  if (id) {
    p.id = *id, p.has_id = true, p.rank = rank, p.ranks = ranks;
  } else if (rb_job_from_env(&job) == 0) {
    p.rank = job.rank, p.ranks = job.ranks;
  } else {
    /* No launcher: a job of one. */
    need("a job of one PE", rb_get_unique_id(&p.id));
    p.has_id = true, p.rank = 0, p.ranks = 1;
  }
  p.joined = true;
  int devices = 0;
  need_cuda("the CUDA devices", cudaGetDeviceCount(&devices));
  if (devices == 1) open();
  return NVSHMEMX_SUCCESS;
}

/* A kernel on a stream of the library's, and its end. */
template <class... P, class... A> void run_here(void (*kernel)(P...), A... args) {
  open();
  kernel<<<1, 1, 0, here().stream>>>(P(args)...);
  need_cuda("a call of the host", cudaGetLastError());
  need_cuda("a call of the host", cudaStreamSynchronize(here().stream));
}

static __global__ void barrier_kernel() {
  quiet();
  check("a barrier of the host", -1, gpu_barrier(world().comm, collective_options{world().timeout_us}));
}

/* The end of the communicator, its memory and the NIC, when all ranks have come here. */
inline void leave() {
  process &p = here();
  if (p.open) {
    for (host_team &t : p.teams) {
      if (t.comm) need("the end of a team", rb_comm_destroy(t.comm));
      t = host_team{};
    }
    need("the end of the job", rb_comm_finalize(p.comm, 0));
    need("the end of the job", rb_comm_destroy(p.comm));
    need("the end of the NIC", rb_nic_close(p.nic));
    cudaStreamDestroy(p.stream);
    cudaFree(p.posted);
    cudaFree(p.table);
  }
  p.open = p.joined = p.has_id = false;
}

} // namespace shmem
} // namespace rb

/* Of this translation unit. */
static const rb::shmem::registration rb_shmem_registration(
    [](const rb::shmem::state &s) { return cudaMemcpyToSymbol(rb_shmem_state, &s, sizeof s); });

/* --- the job ------------------------------------------------------------------------------------------------ */

inline void nvshmem_init() { rb::shmem::join(nullptr, 0, 0); }
inline int nvshmem_init_thread(int requested, int *provided) {
  (void)requested;
  if (provided) *provided = NVSHMEM_THREAD_SERIALIZED;
  return rb::shmem::join(nullptr, 0, 0);
}
inline void nvshmem_query_thread(int *provided) { *provided = NVSHMEM_THREAD_SERIALIZED; }
inline int nvshmemx_init_status() {
  return rb::shmem::here().open     ? NVSHMEM_STATUS_IS_INITIALIZED
         : rb::shmem::here().joined ? NVSHMEM_STATUS_IS_BOOTSTRAPPED
                                    : NVSHMEM_STATUS_NOT_INITIALIZED;
}

inline int nvshmemx_get_uniqueid(nvshmemx_uniqueid_t *id) {
  rb_unique_id made;
  if (!id || rb_get_unique_id(&made)) return NVSHMEMX_ERROR_INTERNAL;
  size_t len = strlen(made.text);
  if (len >= sizeof id->internal) return NVSHMEMX_ERROR_INTERNAL;
  memcpy(id->internal, made.text, len + 1);
  return NVSHMEMX_SUCCESS;
}
inline int nvshmemx_set_attr_uniqueid_args(const int rank, const int ranks, const nvshmemx_uniqueid_t *id, nvshmemx_init_attr_t *attr) {
  if (!id || !attr || rank < 0 || rank >= ranks) return NVSHMEMX_ERROR_INVALID_VALUE;
  attr->args.uid_args = nvshmemx_uniqueid_args_t{1, id, rank, ranks};
  return NVSHMEMX_SUCCESS;
}
/* The world of MPI is the launcher's job. */
inline int nvshmemx_set_attr_mpi_comm_args(void *mpi_comm, nvshmemx_init_attr_t *attr) {
  if (!attr) return NVSHMEMX_ERROR_INVALID_VALUE;
  attr->mpi_comm = mpi_comm;
  return NVSHMEMX_SUCCESS;
}
inline int nvshmemx_init_attr(unsigned int flags, nvshmemx_init_attr_t *attr) {
  if (!(flags & NVSHMEMX_INIT_WITH_UNIQUEID)) return rb::shmem::join(nullptr, 0, 0);
  if (!attr || !attr->args.uid_args.id) return NVSHMEMX_ERROR_INVALID_VALUE;
  const nvshmemx_uniqueid_args_t &a = attr->args.uid_args;
  rb_unique_id id = {};
  memcpy(id.text, a.id->internal, sizeof a.id->internal);
  return rb::shmem::join(&id, uint32_t(a.myrank), uint32_t(a.nranks));
}
inline int nvshmemx_hostlib_init_attr(unsigned int flags, nvshmemx_init_attr_t *attr) { return nvshmemx_init_attr(flags, attr); }

/* Every PE calls it. The memory of the heap goes. */
inline void nvshmem_finalize() {
  if (rb::shmem::here().open) rb::shmem::run_here(rb::shmem::barrier_kernel);
  rb::shmem::leave();
}
inline void nvshmemx_hostlib_finalize() { nvshmem_finalize(); }

/* --- the heap: every PE makes the same calls in the same order -------------------------------------------------- */

inline void *nvshmem_align(size_t alignment, size_t bytes) {
  rb::shmem::open();
  rb::shmem::process &p = rb::shmem::here();
  uint64_t at = 0;
  bool found = p.room.take(bytes, alignment, &at);
  /* No PE writes before all have it. */
  rb::shmem::need("a barrier of the heap", rb_barrier(p.comm, nullptr));
  return found ? reinterpret_cast<void *>(p.device.heap + at) : nullptr;
}
inline void *nvshmem_malloc(size_t bytes) { return nvshmem_align(rb::shmem::heap::GRAIN, bytes); }
inline void *nvshmem_calloc(size_t count, size_t size) {
  if (size && count > SIZE_MAX / size) return nullptr;
  rb::shmem::open();
  rb::shmem::process &p = rb::shmem::here();
  uint64_t at = 0;
  bool found = p.room.take(count * size, rb::shmem::heap::GRAIN, &at);
  void *memory = reinterpret_cast<void *>(p.device.heap + at);
  if (found) {
    rb::shmem::need_cuda("nvshmem_calloc", cudaMemset(memory, 0, count * size));
    rb::shmem::need_cuda("nvshmem_calloc", cudaDeviceSynchronize());
  }
  rb::shmem::need("a barrier of the heap", rb_barrier(p.comm, nullptr));
  return found ? memory : nullptr;
}
inline void nvshmem_free(void *memory) {
  if (!memory) return;
  rb::shmem::process &p = rb::shmem::here();
  if (!p.open) rb::shmem::give_up("nvshmem_free", "the library is not initialised");
  /* Nobody uses it any more when all have come. */
  rb::shmem::run_here(rb::shmem::barrier_kernel);
  if (!p.room.give(reinterpret_cast<uint64_t>(memory) - p.device.heap))
    rb::shmem::give_up("nvshmem_free", "the address is not one of nvshmem_malloc");
}

/* Memory of this GPU outside of the heap as the source of puts, or the destination of gets. */
inline int nvshmemx_buffer_register(void *memory, size_t bytes) {
  rb::shmem::open();
  return rb_mem_register(rb::shmem::here().nic, memory, bytes) ? NVSHMEMX_ERROR_INVALID_VALUE : NVSHMEMX_SUCCESS;
}
inline int nvshmemx_buffer_unregister(void *memory) {
  return rb_mem_unregister(rb::shmem::here().nic, memory) ? NVSHMEMX_ERROR_INVALID_VALUE : NVSHMEMX_SUCCESS;
}

/* --- launches ------------------------------------------------------------------------------------------------- */

/* All blocks of the kernel run at once, so they may wait for other PEs. A grid of 0 is the largest. */
inline int nvshmemx_collective_launch_query_gridsize(const void *kernel, dim3 block, void **args, size_t shared, int *grid) {
  (void)args;
  int device = 0, multiprocessors = 0, blocks = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, int(block.x * block.y * block.z), shared) != cudaSuccess)
    return NVSHMEMX_ERROR_INTERNAL;
  *grid = blocks * multiprocessors;
  return NVSHMEMX_SUCCESS;
}
inline int nvshmemx_collective_launch(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
  rb::shmem::open();
  if (grid.x == 0) {
    int most = 0;
    int r = nvshmemx_collective_launch_query_gridsize(kernel, block, args, shared, &most);
    if (r) return r;
    grid = dim3(unsigned(most));
  }
  return cudaLaunchCooperativeKernel(kernel, grid, block, args, shared, stream) == cudaSuccess ? NVSHMEMX_SUCCESS : NVSHMEMX_ERROR_INTERNAL;
}

#endif /* RINGBELL_SHMEM_HOST_H */
