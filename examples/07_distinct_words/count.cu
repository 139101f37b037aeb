// A kernel that lets the NIC count: it puts an engine on the path of a connection, takes the stream as any
// other, asks for the engine's result in GPU memory, and answers with it. No thread of it counts.
#include "ringbell.cuh"

// `result` has room for `room` bytes; `end` gets what failed first, or the length of the result.
extern "C" __global__ void count_distinct(rb_queue q, rb_u32 port, rb_u32 kind, rb_u64 parameter, unsigned char *data, rb_u64 len,
                                          unsigned char *result, rb_u32 room, gpu_result *end) {
  gpu_result r = gpu_socket_block(q);
  const rb_u32 sock = r.session;
  if (r.ok()) r = gpu_listen_block(q, sock, port);
  if (r.ok()) r = gpu_accept_block(q, sock);
  const rb_u32 conn = r.session;
  if (r.ok()) {
    // From the first byte on: none has been received yet.
    r = gpu_engine_attach_block(q, conn, kind, parameter);
    const rb_u64 engine = r.detail;
    if (r.ok()) {
      r = gpu_recv_block(q, conn, data, len);
      if (r.ok()) r = gpu_engine_result_block(q, engine, result, room);
      const gpu_result asked = r;
      gpu_engine_detach_block(q, engine);
      if (asked.ok()) r = gpu_send_block(q, conn, result, asked.bytes);
      if (asked.ok() && r.ok()) r = asked;
    }
    gpu_close_block(q, conn);
  }
  gpu_close_block(q, sock);
  if (threadIdx.x == 0) *end = r;
}
