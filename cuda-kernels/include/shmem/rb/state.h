/* What kernels know of their job: the communicator, its queue, and the symmetric heap. The host writes it once.
 *
 * The heap is one window of the communicator, so an address in it names the same place of every PE, and any aligned word of it
 * can be a signal. Puts that nothing waits for (`_nbi`, `p`) keep their slot of the queue until somebody needs it, or calls
 * `quiet`: `posted` has a word for each slot, which says of which ticket such a put is, and `counted` the address of a word to which 1
 * is added at its end, if the first word says so.
 */
#ifndef RINGBELL_SHMEM_STATE_H
#define RINGBELL_SHMEM_STATE_H

#include <stdio.h>

#include "../../ringbell_collective.cuh"
#include "../../ringbell_one_sided.cuh"

namespace rb {
namespace shmem {

/* A team that this PE belongs to. Its PEs have the numbers start + i * stride in the world. Plain data. */
struct team {
  rb_comm comm; /* of its PEs, where there are several */
  int start, stride;
  int size; /* 0: there is no such team */
  int rank; /* this PE's number in it */

  __host__ __device__ __forceinline__ int in_world(int pe) const { return start + pe * stride; }
  /* The number of a PE of the world; -1: it does not belong to the team. */
  __host__ __device__ __forceinline__ int number_of(int world_pe) const {
    int behind = world_pe - start, i = behind / stride;
    return behind % stride == 0 && i >= 0 && i < size ? i : -1;
  }
};

/* Teams that a PE may have at once. */
constexpr int MAX_TEAMS = 64;

/* Plain data. */
struct state {
  rb_comm comm;
  rb_u64 heap;    /* its first byte here */
  rb_u64 bytes;   /* of it */
  rb_u64 posted;  /* words of 32 bits, in the GPU's memory */
  rb_u64 counted; /* words of 64 bits, in the GPU's memory */
  rb_u64 teams;   /* MAX_TEAMS, in the GPU's memory */
  rb_u32 window;  /* number of the heap's window */
  rb_u32 timeout_us;
};

} // namespace shmem
} // namespace rb

/* Each translation unit is a module of the GPU, with a copy. Constant memory: a kernel reads it at no cost. */
static __constant__ rb::shmem::state rb_shmem_state;

namespace rb {
namespace shmem {

/* A copy, of which only what is used is read: a thread that has a queue to itself writes into it, and nvcc warns where that may be
 * constant memory. */
RB_DEVICE state world() { return rb_shmem_state; }

/* Ends the kernel: calls of NVSHMEM and of GIN return nothing that could tell. */
static RB_DEVICE_NOINLINE void fail(const char *call, int pe, rb_u32 status, rb_u64 detail) {
  const state w = world();
  printf("ringbell: rank %d, block (%u,%u,%u), thread (%u,%u,%u): %s, rank %d: status %u, detail 0x%llx (docs/registers.md)\n", int(w.comm.rank),
         blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, call, pe, status, (unsigned long long)detail);
  __trap();
}

RB_DEVICE void check(const char *call, int pe, const gpu_result &r) {
  if (RB_UNLIKELY(!r.ok())) fail(call, pe, r.status, r.detail);
}

/* The place of a symmetric address on a PE. An address outside of the heap, and a PE that there is not, are the NIC's to refuse. */
RB_DEVICE gpu_remote place(const void *symmetric, int pe) {
  const state w = world();
  return gpu_window(w.comm, w.window, rb_u32(pe), reinterpret_cast<rb_u64>(symmetric) - w.heap);
}

/* --- the queue ------------------------------------------------------------------------------------------- */

RB_DEVICE rb_u32 *posted_of(const state &w, rb_u32 ticket) {
  return reinterpret_cast<rb_u32 *>(w.posted) + detail::slot_of(w.comm.queue, ticket);
}

RB_DEVICE rb_u64 *counted_of(const state &w, rb_u32 ticket) {
  return reinterpret_cast<rb_u64 *>(w.counted) + detail::slot_of(w.comm.queue, ticket);
}

/* What says so: never 0, and another for each use of the slot. COUNTED: a word is added to at the end. */
constexpr rb_u32 COUNTED = 2;
RB_DEVICE rb_u32 mark_of(const state &w, rb_u32 ticket) { return ticket >> w.comm.queue.depth_log2 << 2 | 1; }

/* Frees the slot of a put that nothing waits for, when it has ended: false while it has not. One of several threads that see its
 * end does. */
RB_DEVICE bool settle(const state &w, rb_u32 ticket) {
  const rb_queue &q = w.comm.queue;
  rb_u32 *at = posted_of(w, ticket), mark = detail::load_relaxed_device(at);
  if ((mark & ~COUNTED) != mark_of(w, ticket)) return true;
  detail::completion c;
  if (!detail::look(q, ticket, &c)) return false;
  if (detail::compare_and_swap_device(at, mark, 0)) {
    /* The slot is this thread's until it is released. */
    rb_u64 counter = mark & COUNTED ? *counted_of(w, ticket) : 0;
    detail::release(q, ticket);
    if (RB_UNLIKELY(c.status != RB_STATUS_OK)) fail("a put or get that nothing has waited for", -1, c.status, c.detail);
    if (counter) {
      __threadfence();
      atomicAdd(reinterpret_cast<unsigned long long *>(counter), 1ull);
    }
  }
  return true;
}

/* Puts under way are at most as many as the queue has slots, and these are its last tickets. */
RB_DEVICE void settle_what_has_ended(const state &w) {
  rb_u32 tail = detail::load_acquire_device(reinterpret_cast<const rb_u32 *>(w.comm.queue.tail));
  for (rb_u32 t = tail - (1u << w.comm.queue.depth_log2); t != tail; ++t) settle(w, t);
}

/* Waits until every put and get that was posted before has ended. */
RB_DEVICE void quiet() {
  const state w = world();
  rb_u32 tail = detail::load_acquire_device(reinterpret_cast<const rb_u32 *>(w.comm.queue.tail));
  detail::bounded_wait bound(rb_u64(w.timeout_us) + w.comm.queue.silent_grace_us);
  for (rb_u32 t = tail - (1u << w.comm.queue.depth_log2); t != tail; ++t)
    while (!settle(w, t))
      if (!bound.turn()) return fail("nvshmem_quiet", -1, RB_STATUS_NIC_SILENT, t);
}

/* A slot of the queue. */
RB_DEVICE rb_u32 take(const state &w, const char *call, int pe) {
  rb_u32 ticket;
  if (RB_UNLIKELY(!detail::take_ticket(w.comm.queue, &ticket))) {
    detail::bounded_wait bound(w.timeout_us);
    do {
      settle_what_has_ended(w);
      if (!bound.turn()) fail(call, pe, RB_STATUS_QUEUE_FULL, detail::holder_of(w.comm.queue));
    } while (!detail::take_ticket(w.comm.queue, &ticket));
  }
  return ticket;
}

/* Posts an operation, and waits for its end. The result is its detail. */
RB_DEVICE rb_u64 run(const detail::entry &e, const char *call, int pe) {
  const state w = world();
  rb_u32 ticket = take(w, call, pe);
  detail::publish(w.comm.queue, ticket, e);
  gpu_result r = detail::result_of(detail::wait(w.comm.queue, ticket, w.timeout_us));
  check(call, pe, r);
  return r.detail;
}

/* Posts one that nothing waits for but `quiet`, and at whose end 1 is added to a word of this GPU. */
RB_DEVICE void start(const detail::entry &e, const char *call, int pe, rb_u64 *counter = nullptr) {
  const state w = world();
  rb_u32 ticket = take(w, call, pe);
  if (counter) *counted_of(w, ticket) = reinterpret_cast<rb_u64>(counter);
  /* Before the entry: what sees the end sees the mark. */
  detail::store_relaxed_device(posted_of(w, ticket), mark_of(w, ticket) | (counter ? COUNTED : 0));
  detail::publish(w.comm.queue, ticket, e);
}

} // namespace shmem
} // namespace rb

#endif /* RINGBELL_SHMEM_STATE_H */
