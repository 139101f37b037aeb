/* A communicator as a kernel sees it: plain data, passed by value. Communicator::handle makes it in Rust,
 * rb_comm_kernel_handle in C. Valid while the communicator lives. */
#ifndef RINGBELL_COMM_HANDLE_H
#define RINGBELL_COMM_HANDLE_H

#include "ringbell_abi.h"

/* Mirrored by `CommHandle` of the Rust side. */
struct rb_comm {
  struct rb_queue queue;
  rb_u32 comm;     /* the NIC's number of it */
  rb_u32 rank;     /* own rank */
  rb_u32 size;     /* ranks */
  rb_u32 defaults; /* RB_ALGO_... | RB_WIRE_... << 8: what options of 0 mean; | kinds that have the algorithm << 16 */
  rb_u64 block_queues;  /* queues for blocks, an array of rb_queue in the GPU's memory: gpu_comm_queue */
  rb_u32 block_queue_count; /* how many; 0: there are none */
  rb_u32 zero;          /* up to the next 8 bytes */
};
typedef struct rb_comm rb_comm;

#endif /* RINGBELL_COMM_HANDLE_H */
