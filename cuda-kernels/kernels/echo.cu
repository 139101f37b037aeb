// An echo server inside one kernel: one thread accepts and serves many connections by requests.
#include "ringbell.cuh"

// A connection being served; the host provides the array in GPU memory.
struct echo_connection {
  gpu_request request;
  rb_u32 session;
  rb_u32 state; // see below
  rb_u64 bytes; // to be sent back
};

static_assert(sizeof(gpu_request) == 40 && sizeof(echo_connection) == 56, "src/echo.rs allocates these");

// Mirrored by `EchoResult` in src/echo.rs.
struct echo_result {
  rb_u32 status;
  rb_u32 failed; // connections that ended with an error
  rb_u64 served; // connections that ended
  rb_u64 bytes;  // echoed
};

namespace {
constexpr rb_u32 FREE = 0, WANT_RECEIVE = 1, RECEIVING = 2, WANT_SEND = 3, SENDING = 4;
} // namespace

// Serves until `serve` connections have ended, or nothing happened for `idle_limit_us` (status
// TIMED_OUT). `queues[0]` accepts and closes; connection `c` uses queue 1 + c mod (count - 1), so that
// a silent client holds up only those who share its queue, and those for `poll_us` at most. `buf` holds
// `chunk` bytes per connection.
extern "C" __global__ void rb_echo_server(const rb_queue *queues, rb_u32 queue_count, rb_u32 listener, unsigned char *buf,
                                          rb_u64 chunk, echo_connection *connection, rb_u32 connections, rb_u64 serve,
                                          rb_u32 poll_us, rb_u64 idle_limit_us, echo_result *out) {
  const rb_queue main_queue = queues[0];
  echo_result result{};
  for (rb_u32 c = 0; c < connections; ++c) connection[c].state = FREE;
  rb_u32 open = 0;
  gpu_request accept{};
  bool accepting = false;
  rb::detail::bounded_wait idle(idle_limit_us);
  rb_u64 started = 0;

  while (result.served < serve) {
    bool progress = false;
    if (!accepting && open < connections && started < serve) {
      rb_u32 t = poll_us;
      accept = rb::detail::start(main_queue, rb::detail::make_entry(RB_OP_ACCEPT, listener, t), t);
      accepting = !accept.done;
    }
    if (accepting && gpu_test(main_queue, accept)) {
      accepting = false;
      if (accept.result.ok()) {
        progress = true;
        ++started;
        rb_u32 c = 0;
        while (connection[c].state != FREE) ++c; // there is one: open < connections
        connection[c].session = rb_u32(accept.result.detail);
        connection[c].state = WANT_RECEIVE;
        ++open;
      } else if (accept.result.status != RB_STATUS_TIMED_OUT) {
        result.status = accept.result.status;
        break;
      }
    }
    for (rb_u32 c = 0; c < connections; ++c) {
      echo_connection &e = connection[c];
      if (e.state == FREE) continue;
      const rb_queue &q = queues[queue_count > 1 ? 1 + c % (queue_count - 1) : 0];
      unsigned char *mine = buf + rb_u64(c) * chunk;
      bool ended = false;
      if (e.state == WANT_RECEIVE) {
        e.request = gpu_irecv(q, e.session, mine, chunk, poll_us, 0, RB_FLAG_SOME);
        if (!e.request.done) e.state = RECEIVING; // else the queue is full: try again next round
      } else if (e.state == WANT_SEND) {
        e.request = gpu_isend(q, e.session, mine, e.bytes, 0, 0, RB_FLAG_PUSH);
        if (!e.request.done) e.state = SENDING;
      } else if (gpu_test(q, e.request)) {
        const gpu_result &r = e.request.result;
        if (e.state == SENDING) {
          progress = true;
          result.bytes += r.bytes;
          ended = !r.ok();
          result.failed += ended;
          e.state = WANT_RECEIVE;
        } else if (r.bytes) {
          progress = true;
          e.bytes = r.bytes;
          e.state = WANT_SEND; // an end of stream shows again at the next receive
        } else if (r.status == RB_STATUS_TIMED_OUT) {
          e.state = WANT_RECEIVE; // the client is silent: nothing is wrong
        } else {
          progress = ended = true;
          result.failed += r.status != RB_STATUS_END_OF_STREAM;
        }
      }
      if (ended) {
        gpu_close(main_queue, e.session);
        e.state = FREE;
        --open;
        ++result.served;
      }
    }
    if (progress) {
      idle = rb::detail::bounded_wait(idle_limit_us);
    } else if (!idle.turn()) {
      result.status = RB_STATUS_TIMED_OUT;
      break;
    }
  }
  // What is under way has buffers of ours: it must retire before the kernel ends.
  if (accepting) {
    gpu_result r = gpu_wait(main_queue, accept);
    if (r.ok()) gpu_close(main_queue, rb_u32(r.detail));
  }
  for (rb_u32 c = 0; c < connections; ++c) {
    echo_connection &e = connection[c];
    const rb_queue &q = queues[queue_count > 1 ? 1 + c % (queue_count - 1) : 0];
    if (e.state == RECEIVING || e.state == SENDING) gpu_wait(q, e.request);
    if (e.state != FREE) gpu_close(main_queue, e.session);
  }
  *out = result;
}
