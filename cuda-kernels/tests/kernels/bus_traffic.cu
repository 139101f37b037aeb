// What one operation costs on the bus: kernels of bus_traffic.rs.
#include "bus_count.h"

#include "ringbell.cuh"

using bus_count::bus;

// Operations one after the other; what all of them cost goes to `out`, looks at the line apart.
template <class F> RB_DEVICE void t_count(const rb_queue &q, rb_u32 times, rb_u32 *out, F operation) {
  bus = {};
  rb_u32 failed = 0;
  for (rb_u32 i = 0; i < times; ++i) failed += !operation(q).ok();
  rb_u32 all[7] = {bus.read, bus.store, bus.fence, bus.stall, bus.device, bus.look, failed};
  for (int i = 0; i < 7; ++i) out[i] = all[i];
}

template <class F> RB_DEVICE void t_both(const rb_queue &q, rb_u32 times, rb_u32 *out, F operation) {
  t_count(q, times, out, operation);
  rb_queue own = gpu_own_queue(q);
  t_count(own, times, out + 7, operation);
  // Other threads may use the queue again, and its words are up to date.
  t_count(q, times, out + 14, operation);
}

extern "C" __global__ void t_bus_nop(rb_queue q, rb_u32 times, rb_u32 *out) {
  t_both(q, times, out, [](const rb_queue &q) { return gpu_nop(q); });
}
RB_KERNEL(t_bus_nop)

extern "C" __global__ void t_bus_send(rb_queue q, rb_u32 times, const unsigned char *buf, rb_u32 *out) {
  t_both(q, times, out, [&](const rb_queue &q) { return gpu_send(q, 9, buf, 8); });
}
RB_KERNEL(t_bus_send)

extern "C" __global__ void t_bus_socket(rb_queue q, rb_u32 times, rb_u32 *out) {
  t_both(q, times, out, [](const rb_queue &q) { return gpu_socket(q); });
}
RB_KERNEL(t_bus_socket)
