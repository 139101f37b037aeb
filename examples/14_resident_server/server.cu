// A resident kernel: one block, one SM, serves requests until a client asks it to leave or none connects.
//
// A request is a header and its operands; the answer is a header and the result. The block receives, computes and
// sends by itself: no launch and no CPU between two requests.
#include "ringbell_reduce.cuh"

struct header {
  rb_u32 dtype;
  rb_u32 op;
  rb_u32 sources; // operands that follow; 0: leave
  rb_u32 status;  // of the answer
  rb_u64 count;   // elements of each operand
};

constexpr rb_u32 MOST_SOURCES = 8;

// Serves one client; false when it asks the kernel to leave. `room` holds the header's line and then the operands.
__device__ bool serve(const rb_queue &q, rb_u32 session, unsigned char *room, rb_u64 room_bytes, rb_u64 *served, gpu_result *end) {
  __shared__ header h;
  __shared__ const void *operands[MOST_SOURCES];
  unsigned char *data = room + 64;
  for (;;) {
    gpu_result r = gpu_recv_block(q, session, room, sizeof(header));
    // The client's end of the stream between two requests is a normal close.
    if (!r.ok()) {
      *end = r.status == RB_STATUS_END_OF_STREAM && !r.bytes ? gpu_result{} : r;
      return true;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      h = *reinterpret_cast<const header *>(room);
      h.status = RB_STATUS_OK;
    }
    __syncthreads();
    if (!h.sources) return false;
    // A client is not trusted: check that the type exists, and that the operands fit.
    bool known = h.dtype >= RB_DTYPE_F16 && h.dtype <= RB_DTYPE_U64;
    rb_u64 each = known ? h.count * rb::detail::element_bytes(h.dtype) : 0;
    bool fits = known && h.sources <= MOST_SOURCES && h.count <= room_bytes && each * h.sources <= room_bytes - 64;
    rb_u32 status = fits ? RB_STATUS_OK : RB_STATUS_INVALID_ARGUMENT;
    if (fits) {
      r = gpu_recv_block(q, session, data, each * h.sources);
      if (!r.ok()) {
        *end = r;
        return true;
      }
      if (threadIdx.x == 0)
        for (rb_u32 i = 0; i < h.sources; ++i) operands[i] = data + i * each;
      __syncthreads();
      // In place: the result lies where the first operand was.
      status = gpu_local_reduce(data, operands, h.sources, h.count, h.dtype, h.op, rb::lanes::of_block());
      __syncthreads();
    }
    if (threadIdx.x == 0) {
      h.status = status;
      *reinterpret_cast<header *>(room) = h;
    }
    __syncthreads();
    r = gpu_send_block(q, session, room, sizeof(header));
    if (r.ok() && status == RB_STATUS_OK) r = gpu_send_block(q, session, data, each);
    // After a refusal the start of the next request is unknown.
    if (!r.ok() || status != RB_STATUS_OK) {
      *end = r;
      return true;
    }
    if (threadIdx.x == 0) ++*served;
  }
}

// Clients are served one after the other; `idle_us` without a new one ends the kernel as well.
extern "C" __global__ void resident_server(rb_queue q, rb_u32 listener, unsigned char *room, rb_u64 room_bytes, rb_u32 idle_us,
                                           rb_u64 *served, gpu_result *out) {
  gpu_result end{};
  for (bool stay = true; stay;) {
    gpu_result r = gpu_accept_block(q, listener, idle_us);
    if (!r.ok()) {
      end = r;
      break;
    }
    // How one client ends is no reason to stop serving the next.
    gpu_result of_client{};
    stay = serve(q, r.session, room, room_bytes, served, &of_client);
    gpu_close_block(q, r.session);
  }
  if (threadIdx.x == 0) *out = end;
}
