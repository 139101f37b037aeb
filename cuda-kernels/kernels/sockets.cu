// One call per kernel. Two families:
//
//  - `rb_socket`, `rb_connect`, ...: the session is given by number; for a host that waits for each.
//  - `rb_stream_*`: the session is in GPU memory, where an earlier kernel of the same stream put it, so
//    that the host can queue socket, connect, send and close without waiting (FpgaNIC §A.1.1, Figure 10;
//    `SocketContext` in Rust). A socket whose last step failed refuses the later ones with its status.
//
// Handshakes run as one thread (FpgaNIC §A.1.3, step two); transfers as one block of any size.
#include "ringbell.cuh"

// Empty commands, one after the other; the last result goes to `out`.
extern "C" __global__ void rb_nop(rb_queue q, rb_u32 count, rb_u32 timeout_us, gpu_result *out) {
  gpu_result r{};
  for (rb_u32 i = 0; i < count && r.ok(); ++i) r = gpu_nop(q, timeout_us);
  *out = r;
}

extern "C" __global__ void rb_socket(rb_queue q, rb_u32 timeout_us, gpu_result *out) { *out = gpu_socket(q, timeout_us); }

extern "C" __global__ void rb_listen(rb_queue q, rb_u32 session, rb_u32 port, rb_u32 backlog, rb_u32 timeout_us, gpu_result *out) {
  *out = gpu_listen(q, session, port, backlog, timeout_us);
}

extern "C" __global__ void rb_accept(rb_queue q, rb_u32 listener, rb_u32 timeout_us, gpu_result *out) {
  *out = gpu_accept(q, listener, timeout_us);
}

extern "C" __global__ void rb_connect(rb_queue q, rb_u32 session, rb_u32 ipv4, rb_u32 port, rb_u32 timeout_us, gpu_result *out) {
  *out = gpu_connect(q, session, ipv4, port, timeout_us);
}

extern "C" __global__ void rb_shutdown(rb_queue q, rb_u32 session, rb_u32 timeout_us, gpu_result *out) {
  *out = gpu_shutdown(q, session, timeout_us);
}

extern "C" __global__ void rb_close(rb_queue q, rb_u32 session, rb_u32 timeout_us, gpu_result *out) {
  *out = gpu_close(q, session, timeout_us);
}

extern "C" __global__ void rb_abort(rb_queue q, rb_u32 session, rb_u32 timeout_us, gpu_result *out) {
  *out = gpu_abort(q, session, timeout_us);
}

// Sends a buffer; one message per block.
extern "C" __global__ void rb_send_all(rb_queue q, rb_u32 session, const void *buf, rb_u64 len, rb_u32 timeout_us, gpu_result *out) {
  gpu_result r = gpu_send<rb::block>(q, session, buf, len, timeout_us);
  if (rb::detail::thread_index() == 0) out[blockIdx.x] = r;
}

// Receives into a buffer.
extern "C" __global__ void rb_recv_all(rb_queue q, rb_u32 session, void *buf, rb_u64 len, rb_u32 timeout_us, gpu_result *out) {
  gpu_result r = gpu_recv<rb::block>(q, session, buf, len, timeout_us);
  if (rb::detail::thread_index() == 0) out[blockIdx.x] = r;
}

// Receives the bytes that have arrived, 1 to `len`.
extern "C" __global__ void rb_recv_some(rb_queue q, rb_u32 session, void *buf, rb_u64 len, rb_u32 timeout_us, gpu_result *out) {
  gpu_result r = gpu_recv_some<rb::block>(q, session, buf, len, timeout_us);
  if (rb::detail::thread_index() == 0) out[blockIdx.x] = r;
}

// --- stream-ordered -------------------------------------------------------------------------------

namespace {

constexpr rb_u32 NO_SESSION = ~0u; // 0 is one

// The result of opening: a socket without a session has nothing to close.
RB_DEVICE void opened(gpu_result *socket, const gpu_result &r) {
  *socket = r;
  if (!r.ok()) socket->session = NO_SESSION;
}

// A socket in GPU memory: its session, and the first failure, which later steps of the stream report too. A step
// that the stream has posted without a kernel fails at the NIC alone, which keeps the failure for chained steps.
RB_DEVICE bool usable(const gpu_result *socket, gpu_result *out) {
  if (socket->ok()) return true;
  *out = *socket;
  out->bytes = 0;
  return false;
}

RB_DEVICE void conclude(gpu_result *socket, const gpu_result &r, gpu_result *out) {
  *out = r;
  if (r.ok()) return;
  rb_u32 session = socket->session;
  *socket = r;
  socket->session = session;
}

} // namespace

extern "C" __global__ void rb_stream_socket(rb_queue q, rb_u32 timeout_us, gpu_result *socket) {
  opened(socket, gpu_socket(q, timeout_us));
}

extern "C" __global__ void rb_stream_listen(rb_queue q, gpu_result *socket, rb_u32 port, rb_u32 backlog, rb_u32 timeout_us,
                                            gpu_result *out) {
  if (usable(socket, out)) conclude(socket, gpu_listen(q, socket->session, port, backlog, timeout_us), out);
}

// The accepted connection becomes `socket`; the listener stays usable after a time-out.
extern "C" __global__ void rb_stream_accept(rb_queue q, gpu_result *listener, rb_u32 timeout_us, gpu_result *socket) {
  opened(socket, usable(listener, socket) ? gpu_accept(q, listener->session, timeout_us) : *socket);
}

extern "C" __global__ void rb_stream_connect(rb_queue q, gpu_result *socket, rb_u32 ipv4, rb_u32 port, rb_u32 timeout_us,
                                             gpu_result *out) {
  if (usable(socket, out)) conclude(socket, gpu_connect(q, socket->session, ipv4, port, timeout_us), out);
}

extern "C" __global__ void rb_stream_send(rb_queue q, gpu_result *socket, const void *buf, rb_u64 len, rb_u32 timeout_us,
                                          gpu_result *out) {
  if (usable(socket, out)) {
    conclude(socket, gpu_send(q, socket->session, buf, len, timeout_us, 0, RB_FLAG_PUSH | RB_FLAG_CHAIN), out);
  }
}

extern "C" __global__ void rb_stream_recv(rb_queue q, gpu_result *socket, void *buf, rb_u64 len, rb_u32 timeout_us, gpu_result *out) {
  if (usable(socket, out)) {
    conclude(socket, gpu_recv(q, socket->session, buf, len, timeout_us, 0, RB_FLAG_CHAIN), out);
  }
}

extern "C" __global__ void rb_stream_shutdown(rb_queue q, gpu_result *socket, rb_u32 timeout_us, gpu_result *out) {
  if (usable(socket, out)) conclude(socket, gpu_shutdown(q, socket->session, timeout_us), out);
}

// Closes also a socket that has failed, as long as it ever had a session.
extern "C" __global__ void rb_stream_close(rb_queue q, gpu_result *socket, rb_u32 timeout_us, gpu_result *out) {
  if (socket->session == NO_SESSION) {
    usable(socket, out);
    return;
  }
  *out = gpu_close(q, socket->session, timeout_us);
  *socket = gpu_result{RB_STATUS_BAD_SESSION, NO_SESSION, 0, socket->session};
}
