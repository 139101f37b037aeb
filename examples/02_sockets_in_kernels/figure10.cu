// The two sides of FpgaNIC's Figure 10, each a kernel of one block. Every lane of the block makes each call; the
// leader works, all get the same result, and the barriers inside the calls order the block's own writes
// and reads with the transfer.
#include "ringbell.cuh"

namespace {

// What byte i must be.
__device__ unsigned char pattern(rb_u64 i) { return (unsigned char)(i * 2654435761u >> 20); }

// A server that does not listen yet refuses: try again with a fresh socket, for about `tries` ms.
__device__ gpu_result connect(rb_queue q, rb_u32 ip, rb_u32 port, rb_u32 tries) {
  for (;;) {
    gpu_result r = gpu_socket_block(q);
    if (!r.ok()) return r;
    const rb_u32 sock = r.session;
    r = gpu_connect_block(q, sock, ip, port);
    r.session = sock;
    if (r.ok() || r.status == RB_STATUS_TIMED_OUT || tries-- == 0) return r;
    gpu_close_block(q, sock);
    __nanosleep(1000000);
  }
}

} // namespace

// Figure 10 (a): makes the data and sends it.
extern "C" __global__ void client(rb_queue q, rb_u32 ip, rb_u32 port, unsigned char *send_data, rb_u64 len, gpu_result *end) {
  for (rb_u64 i = threadIdx.x; i < len; i += blockDim.x) send_data[i] = pattern(i);
  gpu_result r = connect(q, ip, port, 5000);
  const rb_u32 sock = r.session;
  if (r.ok()) {
    r = gpu_send_block(q, sock, send_data, len);
    gpu_close_block(q, sock);
  }
  if (threadIdx.x == 0) *end = r;
}

// Figure 10 (b): receives it and counts wrong bytes.
extern "C" __global__ void server(rb_queue q, rb_u32 port, unsigned char *rcv_data, rb_u64 len, gpu_result *end, rb_u32 *wrong) {
  gpu_result r = gpu_socket_block(q);
  const rb_u32 sock = r.session;
  if (r.ok()) r = gpu_listen_block(q, sock, port);
  if (r.ok()) r = gpu_accept_block(q, sock);
  const rb_u32 conn = r.session;
  if (r.ok()) {
    r = gpu_recv_block(q, conn, rcv_data, len);
    for (rb_u64 i = threadIdx.x; i < r.bytes; i += blockDim.x)
      if (rcv_data[i] != pattern(i)) atomicAdd(wrong, 1u);
    gpu_close_block(q, conn);
  }
  gpu_close_block(q, sock);
  if (threadIdx.x == 0) *end = r;
}
