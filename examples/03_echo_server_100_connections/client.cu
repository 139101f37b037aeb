// One block is one client: it connects, sends messages of its own, and compares what comes back.
#include "ringbell.cuh"

extern "C" __global__ void echo_client(const rb_queue *queues, rb_u32 ip, rb_u32 port, unsigned char *memory, rb_u64 len,
                                       rb_u32 rounds, gpu_result *ends, rb_u32 *wrong) {
  const rb_queue q = queues[blockIdx.x];
  unsigned char *out = memory + 2 * len * blockIdx.x, *back = out + len;
  gpu_result r = gpu_socket_block(q);
  const rb_u32 sock = r.session;
  if (r.ok()) r = gpu_connect_block(q, sock, ip, port);
  for (rb_u32 round = 0; round < rounds && r.ok(); ++round) {
    for (rb_u64 i = threadIdx.x; i < len; i += blockDim.x)
      out[i] = (unsigned char)((i + 31 * blockIdx.x + 7 * round) * 2654435761u >> 20);
    r = gpu_send_block(q, sock, out, len);
    if (r.ok()) r = gpu_recv_block(q, sock, back, len);
    for (rb_u64 i = threadIdx.x; i < r.bytes; i += blockDim.x)
      if (back[i] != out[i]) atomicAdd(wrong, 1u);
    __syncthreads();
  }
  gpu_close_block(q, sock);
  if (threadIdx.x == 0) ends[blockIdx.x] = r;
}
