// Kernels of two ranks with one planted fault each in what they and the NIC do to the same memory. The line of the fault ends
// with "// kernel: check", which tests/checked.rs reads. `p` and `q` have 1,024 words each; `words` is this rank's part of window
// `window`, of 1,032 words of 64 bits, of which the first eight are signals. n is 1.
#include "ringbell_collective.cuh"
#include "ringbell_one_sided.cuh"

using namespace rb;

#define KERNEL(name)                                                                                                       \
  extern "C" __global__ void name(rb_comm c, rb_u32 window, rb_u64 *words, volatile rb_u32 *p, volatile rb_u32 *q, rb_u64 peers, \
                                  rb_u32 n)

constexpr rb_u64 BYTES = 4096, DATA = 64;

// One copy of each call, so that the file stays small.
#define CALL static __device__ __noinline__
CALL gpu_request send(const rb_comm &c, const volatile rb_u32 *from, rb_u32 tag) {
  return gpu_icomm_send(c, const_cast<const rb_u32 *>(from), BYTES / 4, RB_DTYPE_U32, 1 - c.rank, tag);
}
CALL gpu_request receive(const rb_comm &c, volatile rb_u32 *to, rb_u32 tag) {
  return gpu_icomm_recv(c, const_cast<rb_u32 *>(to), BYTES / 4, RB_DTYPE_U32, 1 - c.rank, tag);
}
CALL gpu_request sum(const rb_comm &c, const volatile rb_u32 *from, volatile rb_u32 *to) {
  return gpu_iall_reduce(c, const_cast<const rb_u32 *>(from), const_cast<rb_u32 *>(to), BYTES / 4, RB_DTYPE_U32);
}
CALL gpu_request put(const rb_comm &c, rb_u32 window, const volatile rb_u32 *from, rb_u32 signal) {
  return gpu_iput_signal(c.queue, gpu_window(c, window, 1 - c.rank, DATA), const_cast<const rb_u32 *>(from), BYTES, signal, 1);
}
CALL gpu_request get(const rb_comm &c, rb_u32 window, volatile rb_u32 *to) {
  return gpu_iget(c.queue, const_cast<rb_u32 *>(to), gpu_window(c, window, 1 - c.rank, DATA), BYTES);
}
CALL gpu_request tell(const rb_comm &c, rb_u32 window, rb_u32 signal) {
  return gpu_isignal(c.queue, gpu_window(c, window, 1 - c.rank), signal, 1);
}
CALL gpu_result finish(const rb_comm &c, gpu_request &r) { return gpu_wait(c.queue, r); }
CALL gpu_result come(const rb_comm &c, const rb_u64 *word, rb_u64 value) { return gpu_wait_signal(c.queue, word, value); }

// Accesses of data are weak, and not removed. Macros, so that their lines are the kernels'.
#define load(at)                                                                             \
  ({                                                                                         \
    rb_u32 value;                                                                            \
    asm volatile("ld.weak.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");                \
    value;                                                                                   \
  })
#define store(at, v) asm volatile("st.weak.u32 [%0], %1;" ::"l"(at), "r"(rb_u32(v)) : "memory")
#define acquire(into, at) asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(into) : "l"(at) : "memory")
static __device__ volatile rb_u32 *data(rb_u64 *words) { return reinterpret_cast<volatile rb_u32 *>(words) + DATA / 4; }
static __device__ void fill(volatile rb_u32 *p, rb_u32 seed) {
  for (rb_u32 i = 0; i < BYTES / 4; ++i) store(p + i, seed + i);
}

KERNEL(n_receive_read) {
  gpu_request r = c.rank ? receive(c, p, 1) : send(c, p, 1);
  if (c.rank) store(q, load(p + n));  // n_receive_read: racecheck
  finish(c, r);
}
KERNEL(n_send_written) {
  gpu_request r = c.rank ? receive(c, p, 1) : send(c, p, 1);
  if (!c.rank) store(p + n, 5);  // n_send_written: racecheck
  finish(c, r);
}
KERNEL(n_put_source) {
  if (c.rank) {
    come(c, words, n);
    return;
  }
  gpu_request r = put(c, window, p, 0);
  store(p + 1023, n);  // n_put_source: racecheck
  finish(c, r);
}
KERNEL(n_put_target) {
  gpu_request r;
  if (c.rank) {
    r = tell(c, window, 1);
    store(p, load(data(words) + n));  // n_put_target: racecheck
    come(c, words, n);
  } else {
    come(c, words + 1, n);
    r = put(c, window, p, 0);
  }
  finish(c, r);
}
KERNEL(n_get_target) {
  gpu_request r = get(c, window, p);
  if (!c.rank) store(p + n, 7);  // n_get_target: racecheck
  finish(c, r);
}
KERNEL(n_weak_flag) {
  gpu_request r;
  if (c.rank) {
    r = tell(c, window, 1);
    rb_u64 seen;
    do asm volatile("ld.weak.u64 %0, [%1];" : "=l"(seen) : "l"(words) : "memory");  // n_weak_flag: racecheck
    while (seen < n);
  } else {
    come(c, words + 1, n);
    r = put(c, window, p, 0);
  }
  finish(c, r);
}
// The flag is relaxed, and no fence follows.
KERNEL(n_relaxed_flag) {
  gpu_request r;
  if (c.rank) {
    r = tell(c, window, 1);
    while (detail::load_relaxed(words) < n) {}
    store(p, load(data(words) + n));  // n_relaxed_flag: racecheck
  } else {
    come(c, words + 1, n);
    r = put(c, window, p, 0);
  }
  finish(c, r);
}
KERNEL(n_reduce_input) {
  gpu_request r = sum(c, p, q);
  if (c.rank) store(p + n, 1);  // n_reduce_input: racecheck
  finish(c, r);
}
KERNEL(n_reduce_output) {
  gpu_request r = sum(c, p, q);
  if (c.rank) store(p, load(q + n));  // n_reduce_output: racecheck
  finish(c, r);
}
// Two slots, and the third message is written before the first has gone.
KERNEL(n_slot_reused) {
  gpu_request r[3];
  volatile rb_u32 *slots[2] = {p, q};
  for (rb_u32 i = 0; i < 3; ++i) {
    if (!c.rank) store(slots[i & 1], n + i);  // n_slot_reused: racecheck
    r[i] = c.rank ? receive(c, i == 2 ? data(words) : slots[i], i) : send(c, slots[i & 1], i);
  }
  for (rb_u32 i = 0; i < 3; ++i) finish(c, r[i]);
}
// Both receives have one buffer, which is read when the peer was told already that it may send again.
KERNEL(n_received_twice) {
  if (c.rank) {
    gpu_request first = receive(c, p, 1), second = receive(c, p, 2);
    finish(c, first);
    gpu_request more = tell(c, window, 0);
    store(q, load(p + n));  // n_received_twice: racecheck
    finish(c, more);
    finish(c, second);
  } else {
    gpu_request r = send(c, p, 1);
    finish(c, r);
    come(c, words, n);
    r = send(c, q, 2);
    finish(c, r);
  }
}
// The completion of another operation was waited for.
KERNEL(n_wrong_request) {
  if (c.rank) {
    gpu_request first = receive(c, p, 1), second = receive(c, q, 2);
    finish(c, first);
    store(p, load(q + n));  // n_wrong_request: racecheck
    finish(c, second);
  } else {
    gpu_request second = send(c, q, 2);
    gpu_request first = send(c, p, 1);
    finish(c, first);
    finish(c, second);
  }
}
KERNEL(n_wrong_rank) {
  if (c.rank) store(reinterpret_cast<volatile rb_u32 *>(peers), n);  // n_wrong_rank: memcheck
}
KERNEL(n_missed_signal) {
  if (c.rank) {
    rb_u64 seen;
    do acquire(seen, words);  // n_missed_signal: loops
    while (seen <= n);
  } else {
    gpu_request r = put(c, window, p, 0);
    finish(c, r);
  }
}
// Each rank holds its own ticket and waits for the other's to be given back.
KERNEL(n_deadlock) {
  gpu_request r = tell(c, window, 1);
  finish(c, r);
  come(c, words + 1, n);
  rb_u64 seen;
  do acquire(seen, words + 2);  // n_deadlock: loops
  while (seen < n);
  r = tell(c, window, 2);
  finish(c, r);
}

// --- kernels without a fault ---

KERNEL(g_messages) {
  rb_u32 wrong = 0;
  for (rb_u32 i = 0; i < 5 * n; ++i) {
    gpu_request r = receive(c, q, i);
    fill(p, 100 * c.rank + i);
    gpu_request s = send(c, p, i);
    finish(c, s);
    finish(c, r);
    for (rb_u32 k = 0; k < BYTES / 4; ++k) wrong += load(q + k) != 100 * (1 - c.rank) + i + k;
  }
  store(p, wrong);
}
KERNEL(g_puts) {
  rb_u32 wrong = 0;
  for (rb_u32 i = 0; i < 5 * n; ++i) {
    fill(p, 100 * c.rank + i);
    gpu_request r = put(c, window, p, 0);
    come(c, words, i + 1);
    for (rb_u32 k = 0; k < BYTES / 4; ++k) wrong += load(data(words) + k) != 100 * (1 - c.rank) + i + k;
    finish(c, r);
    r = tell(c, window, 1);
    finish(c, r);
    come(c, words + 1, i + 1);
  }
  store(p, wrong);
}
KERNEL(g_reductions) {
  rb_u32 wrong = 0;
  for (rb_u32 i = 0; i < 5 * n; ++i) {
    fill(p, 100 * c.rank + i);
    gpu_request r = sum(c, p, i & 1 ? p : q);
    finish(c, r);
    for (rb_u32 k = 0; k < BYTES / 4; ++k) wrong += load((i & 1 ? p : q) + k) != 100 + 2 * (i + k);
  }
  store(p, wrong);
}
// The threads of a block write and read, the first one posts.
KERNEL(g_block) {
  __shared__ gpu_request r;
  rb_u32 wrong = 0, me = threadIdx.x;
  for (rb_u32 i = 0; i < 5 * n; ++i) {
    for (rb_u32 k = me; k < BYTES / 4; k += blockDim.x) store(p + k, 100 * c.rank + i + k);
    __syncthreads();
    if (me == 0) {
      r = send(c, p, i);
      gpu_request in = receive(c, q, i);
      finish(c, in);
    }
    __syncthreads();
    for (rb_u32 k = me; k < BYTES / 4; k += blockDim.x) wrong += load(q + k) != 100 * (1 - c.rank) + i + k;
    if (me == 0) finish(c, r);
    __syncthreads();
  }
  store(p + me, wrong);
}
// Two slots, each written when the message before in it has gone.
KERNEL(g_slots) {
  gpu_request r[2];
  volatile rb_u32 *slots[2] = {p, q};
  rb_u32 wrong = 0;
  for (rb_u32 i = 0; i < 6 * n; ++i) {
    if (i >= 2) {
      finish(c, r[i & 1]);
      if (c.rank) wrong += load(slots[i & 1] + 9) != i - 2;
    }
    if (!c.rank) store(slots[i & 1] + 9, i);
    r[i & 1] = c.rank ? receive(c, slots[i & 1], i) : send(c, slots[i & 1], i);
  }
  finish(c, r[0]);
  finish(c, r[1]);
  store(p, wrong);
}
// Two receives are posted ahead into one buffer: the peer sends its next message when it has this rank's answer.
KERNEL(g_answers) {
  gpu_request r[2] = {receive(c, q, 0), receive(c, q, 1)}, s;
  rb_u32 wrong = 0;
  for (rb_u32 i = 0; i < 6 * n; ++i) {
    if (!c.rank) {
      store(p + 9, i);
      s = send(c, p, i);
    }
    finish(c, r[i & 1]);
    wrong += load(q + 9) != i;
    if (c.rank) {
      store(p + 9, i);
      s = send(c, p, i);
    }
    finish(c, s);
    if (i + 2 < 6 * n) r[i & 1] = receive(c, q, i + 2);
  }
  store(p, wrong);
}
KERNEL(g_gets) {
  fill(data(words), 100 * c.rank);
  gpu_request r = tell(c, window, 0);
  finish(c, r);
  come(c, words, n);
  r = get(c, window, p);
  finish(c, r);
  rb_u32 wrong = 0;
  for (rb_u32 k = 0; k < BYTES / 4; ++k) wrong += load(p + k) != 100 * (1 - c.rank) + k;
  r = tell(c, window, 1);
  finish(c, r);
  come(c, words + 1, n);
  fill(data(words), 1);
  store(p, wrong);
}
