// Netcat's kernels: bytes between the NIC and a ring in GPU memory that the host fills or drains.
//
// One kernel per direction, each with a queue of its own: a receive that idles must not hold up the
// sends (see "One queue, one flow" in ringbell.cuh). Each end of a ring writes its own index with
// Release and reads the other's with Acquire; the indices count bytes and never wrap in practice.
#include "ringbell.cuh"

// Mirrored by `RingControl` in src/pump.rs. Indices 128 bytes apart: each has one writer.
struct nc_ring {
  rb_u64 produced; // bytes put into the ring
  rb_u64 pad0[15];
  rb_u64 consumed; // bytes taken out
  rb_u64 pad1[15];
  rb_u32 end;      // set by the producer: nothing follows what was produced
  rb_u32 stop;     // set by the host: leave now
  rb_u32 status;   // set by the kernel before `done`: why it ended
  rb_u32 done;     // set by the kernel last
  rb_u64 detail;
};

namespace {

RB_DEVICE rb_u64 ring_load(const rb_u64 *p) { return rb::detail::load_acquire(p); }
RB_DEVICE void ring_store(rb_u64 *p, rb_u64 v) {
#ifdef __CUDACC__
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
#else
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
#endif
}

RB_DEVICE void ring_done(nc_ring *c, rb_u32 status, rb_u64 detail) {
  c->status = status;
  c->detail = detail;
  rb::detail::store_release(&c->done, 1); // pairs with the host's Acquire load of `done`
}

// Waits for the host's end of the ring: there is no NIC to step, so it naps.
struct host_wait {
  rb_u64 deadline = 0;
  RB_DEVICE bool turn(rb_u64 idle_limit_us) {
    rb_u64 now = rb::detail::clock_ns();
    if (!deadline) deadline = now + idle_limit_us * 1000;
    __nanosleep(20000);
    return now < deadline;
  }
};

} // namespace

// NIC to ring, until the peer ends its stream, the host sets `stop`, or nothing happened for
// `idle_limit_us`. `poll_us` bounds how late `stop` is seen.
extern "C" __global__ void rb_nc_receive(rb_queue q, rb_u32 session, unsigned char *ring, rb_u64 size, nc_ring *control,
                                         rb_u32 poll_us, rb_u64 idle_limit_us) {
  rb_u64 produced = 0, idle_since = rb::detail::clock_ns();
  for (;;) {
    if (rb::detail::load_acquire(&control->stop)) return ring_done(control, RB_STATUS_ABORTED, 0);
    rb_u64 room = size - (produced - ring_load(&control->consumed));
    if (!room) {
      host_wait w;
      while (!(room = size - (produced - ring_load(&control->consumed)))) {
        if (rb::detail::load_acquire(&control->stop)) return ring_done(control, RB_STATUS_ABORTED, 0);
        if (!w.turn(idle_limit_us)) return ring_done(control, RB_STATUS_TIMED_OUT, 0);
      }
    }
    rb_u64 at = produced % size, piece = size - at < room ? size - at : room;
    gpu_result r = gpu_recv_some(q, session, ring + at, piece, poll_us);
    produced += r.bytes;
    // Release: pairs with the host's Acquire load; it then sees the bytes.
    if (r.bytes) ring_store(&control->produced, produced);
    if (r.ok()) {
      idle_since = rb::detail::clock_ns();
      continue;
    }
    if (r.status == RB_STATUS_TIMED_OUT && r.bytes == 0) {
      if (rb::detail::clock_ns() - idle_since < idle_limit_us * 1000) continue;
      return ring_done(control, RB_STATUS_TIMED_OUT, 0);
    }
    if (r.status == RB_STATUS_END_OF_STREAM) {
      rb::detail::store_release(&control->end, 1);
      return ring_done(control, RB_STATUS_OK, 0);
    }
    return ring_done(control, r.status, r.detail);
  }
}

// Ring to NIC, until the host has set `end` and all was sent (then the stream is half-closed), or
// `stop`, or the host gave nothing for `idle_limit_us`.
extern "C" __global__ void rb_nc_send(rb_queue q, rb_u32 session, unsigned char *ring, rb_u64 size, nc_ring *control,
                                      rb_u32 timeout_us, rb_u64 idle_limit_us) {
  rb_u64 consumed = 0;
  host_wait w;
  for (;;) {
    if (rb::detail::load_acquire(&control->stop)) return ring_done(control, RB_STATUS_ABORTED, 0);
    // `end` before `produced`: once it is set nothing more is produced.
    rb_u32 end = rb::detail::load_acquire(&control->end);
    rb_u64 have = ring_load(&control->produced) - consumed;
    if (!have) {
      if (end) {
        gpu_result r = gpu_shutdown(q, session, timeout_us);
        return ring_done(control, r.status, r.detail);
      }
      if (!w.turn(idle_limit_us)) return ring_done(control, RB_STATUS_TIMED_OUT, 0);
      continue;
    }
    w = host_wait{};
    rb_u64 at = consumed % size, piece = size - at < have ? size - at : have;
    gpu_result r = gpu_send(q, session, ring + at, piece, timeout_us);
    if (!r.ok()) return ring_done(control, r.status, r.detail);
    consumed += piece;
    // Release: pairs with the host's Acquire load; the host may then overwrite the sent bytes.
    ring_store(&control->consumed, consumed);
  }
}
