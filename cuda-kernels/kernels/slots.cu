// Transfers through slots (FpgaNIC §A.1.2): from and to memory that the NIC cannot reach.
#include "common.cuh"
#include "ringbell_slots.cuh"

extern "C" __global__ void rb_slots_send(rb_queue q, gpu_slots slots, rb_u32 connection, rb_u32 session, const void *buf, rb_u64 len,
                                         rb_u32 timeout_us, gpu_result *out) {
  gpu_result r = gpu_slots_send(q, slots, connection, session, buf, len, timeout_us);
  if (rb::detail::thread_index() == 0) *out = r;
}

extern "C" __global__ void rb_slots_recv(rb_queue q, gpu_slots slots, rb_u32 connection, rb_u32 session, void *buf, rb_u64 len,
                                         rb_u32 timeout_us, gpu_result *out) {
  gpu_result r = gpu_slots_recv(q, slots, connection, session, buf, len, timeout_us);
  if (rb::detail::thread_index() == 0) *out = r;
}

// Slot-size sweep (FpgaNIC Figure 6a), sending side: `warmup + iterations` transfers of `len` bytes,
// after which the receiver sends their number back through the slots.
extern "C" __global__ void rb_perf_slots_send(rb_queue q, gpu_slots slots, rb_u32 connection, rb_u32 session, unsigned char *buf,
                                              rb_u64 len, rb_u32 warmup, rb_u32 iterations, rb_u64 seed, rb_u32 timeout_us,
                                              rbk::perf_result *out) {
  __shared__ rb_u64 word; // one for the block: every lane copies its part of it
  rbk::message m{buf, len};
  rb_u64 begin = 0, i = 0, total = rb_u64(warmup) + iterations;
  if (rb::detail::thread_index() == 0) word = 0;
  m.fill(seed, 0, false);
  gpu_result r{};
  for (; i < total && r.ok(); ++i) {
    if (i == warmup) begin = rb::detail::clock_ns();
    __syncthreads();
    if (rb::detail::thread_index() == 0) m.stamp(seed, i);
    r = gpu_slots_send(q, slots, connection, session, buf, len, timeout_us);
  }
  if (r.ok()) r = gpu_slots_recv(q, slots, connection, session, &word, sizeof(word), timeout_us);
  rb_u64 end = rb::detail::clock_ns();
  if (rb::detail::thread_index() == 0)
    *out = rbk::perf_result{r.status, 0, r.detail, i, r.ok() ? rb_u64(iterations) * len : 0, word != total, end - begin};
}

// Receiving side; arguments as for the sender. First and last word of every transfer are checked, every
// byte of the last one; then the count goes back as the sender's sign that all has arrived.
extern "C" __global__ void rb_perf_slots_recv(rb_queue q, gpu_slots slots, rb_u32 connection, rb_u32 session, unsigned char *buf,
                                              rb_u64 len, rb_u32 warmup, rb_u32 iterations, rb_u64 seed, rb_u32 timeout_us,
                                              rbk::perf_result *out) {
  __shared__ unsigned long long wrong;
  __shared__ rb_u64 word;
  rbk::message m{buf, len};
  rb_u64 begin = 0, i = 0, total = rb_u64(warmup) + iterations;
  bool leader = rb::detail::thread_index() == 0;
  if (leader) wrong = 0, word = total;
  gpu_result r{};
  for (; i < total && r.ok(); ++i) {
    if (i == warmup) begin = rb::detail::clock_ns();
    r = gpu_slots_recv(q, slots, connection, session, buf, len, timeout_us);
    if (leader && r.ok()) wrong += m.wrong_ends(seed, i);
    __syncthreads();
  }
  rb_u64 end = rb::detail::clock_ns();
  if (r.ok() && total) {
    rb_u64 mine = m.wrong_words(seed, total - 1, false);
    if (mine) atomicAdd(&wrong, (unsigned long long)mine);
  }
  if (r.ok()) r = gpu_slots_send(q, slots, connection, session, &word, sizeof(word), timeout_us);
  __syncthreads();
  if (leader) *out = rbk::perf_result{r.status, 0, r.detail, i, r.ok() ? rb_u64(iterations) * len : 0, wrong, end - begin};
}
