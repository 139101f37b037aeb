// What one operation costs on the bus: kernels of bus_traffic.rs, which counts their accesses. One thread makes `times`
// operations, one after the other, on the queue or on its own copy; `failed` is how many failed.
#include "ringbell.cuh"

template <class F> RB_DEVICE void t_repeat(const rb_queue &shared, rb_u32 own, rb_u32 times, rb_u32 *failed, F operation) {
  rb_queue q = shared;
  if (own) q = gpu_own_queue(shared);
  rb_u32 wrong = 0;
  for (rb_u32 i = 0; i < times; ++i) wrong += !operation(q).ok();
  *failed = wrong;
}

extern "C" __global__ void t_bus_nop(rb_queue q, rb_u32 own, rb_u32 times, unsigned char *, rb_u32 *failed) {
  t_repeat(q, own, times, failed, [](const rb_queue &q) { return gpu_nop(q); });
}

extern "C" __global__ void t_bus_send(rb_queue q, rb_u32 own, rb_u32 times, unsigned char *buf, rb_u32 *failed) {
  t_repeat(q, own, times, failed, [&](const rb_queue &q) { return gpu_send(q, 9, buf, 8); });
}

extern "C" __global__ void t_bus_socket(rb_queue q, rb_u32 own, rb_u32 times, unsigned char *, rb_u32 *failed) {
  t_repeat(q, own, times, failed, [](const rb_queue &q) { return gpu_socket(q); });
}
