// Waits for a peer that never comes, and goes on when the wait has ended: for closing.c.
#include "ringbell.cuh"

extern "C" __global__ void wait_for_peer(rb_queue q, rb_u32 port, rb_u32 *memory, unsigned *waiting, unsigned *ended, rb_u32 *statuses) {
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
  statuses[2 * blockIdx.x] = r.status;
  statuses[2 * blockIdx.x + 1] = gpu_nop(q).status;
  atomicAdd(ended, 1u);
}
