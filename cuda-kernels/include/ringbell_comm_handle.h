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
  rb_u64 staging;       /* pinned memory of the host: source and result of small all-reduces, a pair for each slot of the queue */
  rb_u32 staging_bytes; /* of a source; a multiple of 16; 0: there is none */
  rb_u32 block_queue_count; /* queues for blocks; 0: there are none */
  rb_u64 block_queues;  /* their rb_queue, an array in the GPU's memory: gpu_comm_queue */
};
typedef struct rb_comm rb_comm;

#endif /* RINGBELL_COMM_HANDLE_H */
