/* NCCL's names for what its device API needs of the host: communicators of one rank a process, memory and windows.
 *
 * The collectives and messages of NCCL's host API have other names here, rb_all_reduce and so on (ringbell_comm.h, docs/c-api.md).
 * Source: the NCCL documentation, 2.28 and later.
 */
#ifndef RINGBELL_NCCL_H
#define RINGBELL_NCCL_H

#include <stddef.h>
#include <stdint.h>

#include "rb/host.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 0
#define NCCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))
#define NCCL_VERSION_CODE NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
} ncclResult_t;

/* The process's one communicator. */
typedef struct rb_communicator *ncclComm_t;

/* A window, in the GPU's memory: where a buffer lies in the heap of each rank. */
struct ncclWindow_vidmem {
  uint64_t own;   /* its address here */
  uint64_t bytes; /* of it */
  uint64_t in_heap[1]; /* of each rank, from the heap's first byte */
};
typedef struct ncclWindow_vidmem *ncclWindow_t;

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

inline const char *ncclGetErrorString(ncclResult_t r) {
  switch (r) {
  case ncclSuccess: return "no error";
  case ncclUnhandledCudaError: return "unhandled cuda error";
  case ncclSystemError: return "unhandled system error";
  case ncclInvalidArgument: return "invalid argument";
  case ncclInvalidUsage: return "invalid usage";
  default: return "internal error";
  }
}
inline const char *ncclGetLastError(ncclComm_t) { return rb_last_error(); }
inline ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

inline ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  static_assert(sizeof(ncclUniqueId) == sizeof(rb_unique_id), "the text fits");
  rb_unique_id made;
  if (!id) return ncclInvalidArgument;
  if (rb_get_unique_id(&made)) return ncclSystemError;
  memcpy(id->internal, made.text, sizeof made.text);
  return ncclSuccess;
}

/* On the device that is current. One communicator at a time: its memory is the process's. */
inline ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
  rb::shmem::process &p = rb::shmem::here();
  if (!comm || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  if (p.joined) {
    fprintf(stderr, "ringbell: ncclCommInitRank: this process has a communicator already, and one is the most\n");
    return ncclInvalidUsage;
  }
  rb_unique_id text;
  memcpy(text.text, id.internal, sizeof text.text);
  rb::shmem::join(&text, uint32_t(rank), uint32_t(ranks));
  rb::shmem::open();
  *comm = p.comm;
  return ncclSuccess;
}

namespace rb {
namespace shmem {
inline bool is_here(ncclComm_t comm) { return here().open && comm == here().comm; }
} // namespace shmem
} // namespace rb

/* Waits for the other ranks. */
inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!rb::shmem::is_here(comm)) return ncclInvalidArgument;
  rb::shmem::run_here(rb::shmem::barrier_kernel);
  return ncclSuccess;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!rb::shmem::is_here(comm)) return ncclInvalidArgument;
  rb::shmem::leave();
  return ncclSuccess;
}
inline ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
  if (!rb::shmem::is_here(comm) || !count) return ncclInvalidArgument;
  *count = int(rb::shmem::here().ranks);
  return ncclSuccess;
}
inline ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
  if (!rb::shmem::is_here(comm) || !rank) return ncclInvalidArgument;
  *rank = int(rb::shmem::here().rank);
  return ncclSuccess;
}

/* Memory of the communicator's heap (NVSHMEM_SYMMETRIC_SIZE): so after ncclCommInitRank. */
inline ncclResult_t ncclMemAlloc(void **memory, size_t bytes) {
  rb::shmem::process &p = rb::shmem::here();
  if (!memory) return ncclInvalidArgument;
  if (!p.open) {
    fprintf(stderr, "ringbell: ncclMemAlloc: it takes memory of the communicator's heap; call it after ncclCommInitRank\n");
    return ncclInvalidUsage;
  }
  uint64_t at = 0;
  if (!p.room.take(bytes ? bytes : 1, NCCL_WIN_REQUIRED_ALIGNMENT, &at)) return ncclSystemError;
  *memory = reinterpret_cast<void *>(p.device.heap + at);
  return ncclSuccess;
}
inline ncclResult_t ncclMemFree(void *memory) {
  rb::shmem::process &p = rb::shmem::here();
  if (!memory) return ncclSuccess;
  return p.open && p.room.give(reinterpret_cast<uint64_t>(memory) - p.device.heap) ? ncclSuccess : ncclInvalidArgument;
}

/* Every rank calls it, for memory of ncclMemAlloc: the ranks tell each other where it lies. */
inline ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window, int flags) {
  (void)flags;
  rb::shmem::process &p = rb::shmem::here();
  if (!rb::shmem::is_here(comm) || !window) return ncclInvalidArgument;
  uint64_t in_heap = reinterpret_cast<uint64_t>(buffer) - p.device.heap;
  if (in_heap >= p.device.bytes || bytes > p.device.bytes - in_heap) {
    fprintf(stderr, "ringbell: ncclCommWindowRegister: the memory is not ncclMemAlloc's\n");
    return ncclInvalidArgument;
  }
  size_t list = p.ranks * sizeof(uint64_t);
  uint64_t at = 0, head[2] = {reinterpret_cast<uint64_t>(buffer), bytes};
  if (!p.room.take(list + sizeof in_heap, 8, &at)) return ncclSystemError;
  char *places = reinterpret_cast<char *>(p.device.heap + at), *own = places + list;
  void *made = nullptr;
  bool failed = cudaMalloc(&made, sizeof head + list) != cudaSuccess || cudaMemcpy(own, &in_heap, sizeof in_heap, cudaMemcpyHostToDevice) != cudaSuccess;
  /* Also after a failure: the others wait for this rank. */
  failed |= rb_all_gather(own, places, 1, RB_DTYPE_U64, p.comm, nullptr) != 0;
  failed = failed || cudaMemcpy(made, head, sizeof head, cudaMemcpyHostToDevice) != cudaSuccess ||
           cudaMemcpy(static_cast<char *>(made) + sizeof head, places, list, cudaMemcpyDeviceToDevice) != cudaSuccess ||
           cudaDeviceSynchronize() != cudaSuccess;
  p.room.give(at);
  if (failed) {
    cudaFree(made);
    return ncclSystemError;
  }
  *window = static_cast<ncclWindow_t>(made);
  return ncclSuccess;
}
inline ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (!rb::shmem::is_here(comm)) return ncclInvalidArgument;
  return cudaFree(window) == cudaSuccess ? ncclSuccess : ncclInvalidArgument;
}

#endif /* RINGBELL_NCCL_H */
