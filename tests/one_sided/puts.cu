// Kernels of the tests of one-sided operations: one call each, in the scope that is asked for.
#include "ringbell_collective.cuh"
#include "ringbell_one_sided.cuh"

enum what : rb_u32 { PUT, PUT_SIGNAL, SIGNAL, GET, ADD, CAS, WAIT, ADD32, CAS32, PUT_ROWS, GET_ROWS, WAIT_ANY, WAIT_ALL, WAIT_SOME };

struct call {
  gpu_remote at;
  void *local;
  rb_u64 len;
  rb_u64 value;
  rb_u64 second;
  rb_u32 what;
  rb_u32 word;
  rb_u32 timeout_us;
  rb_u32 asynchronous;
};

template <class Scope> __device__ gpu_result run(const rb_queue &q, const call &c) {
  rb_u32 t = c.timeout_us;
  if (c.asynchronous) {
    gpu_request r{};
    switch (c.what) {
    case PUT: r = gpu_iput<Scope>(q, c.at, c.local, c.len, t); break;
    case PUT_SIGNAL: r = gpu_iput_signal<Scope>(q, c.at, c.local, c.len, c.word, c.value, c.second, t); break;
    case SIGNAL: r = gpu_isignal<Scope>(q, c.at, c.word, c.value, c.second, t); break;
    case GET: r = gpu_iget<Scope>(q, c.local, c.at, c.len, t); break;
    case ADD: r = gpu_iatomic_add<Scope>(q, c.at, c.value, t); break;
    default: r = gpu_iatomic_cas<Scope>(q, c.at, c.value, c.second, t); break;
    }
    return gpu_wait<Scope>(q, r);
  }
  switch (c.what) {
  case PUT: return gpu_put<Scope>(q, c.at, c.local, c.len, t);
  case PUT_SIGNAL: return gpu_put_signal<Scope>(q, c.at, c.local, c.len, c.word, c.value, c.second, t);
  case SIGNAL: return gpu_signal<Scope>(q, c.at, c.word, c.value, c.second, t);
  case GET: return gpu_get<Scope>(q, c.local, c.at, c.len, t);
  case ADD: return gpu_atomic_add<Scope>(q, c.at, c.value, t);
  case CAS: return gpu_atomic_cas<Scope>(q, c.at, c.value, c.second, t);
  case ADD32: return gpu_atomic_add32<Scope>(q, c.at, rb_u32(c.value), t);
  case CAS32: return gpu_atomic_cas32<Scope>(q, c.at, rb_u32(c.value), rb_u32(c.second), t);
  // `word` rows of `len` bytes, which lie `value` bytes apart at the peer and `second` here.
  case PUT_ROWS: return gpu_put_strided<Scope>(q, c.at, c.value, c.local, c.second, c.len, c.word, t);
  case GET_ROWS: return gpu_get_strided<Scope>(q, c.local, c.second, c.at, c.value, c.len, c.word, t);
  // `word` words; the numbers of those that are there go behind them.
  case WAIT_ANY: return gpu_wait_signal_any<Scope>(q, c.local, c.word, c.value, rb_u32(c.second), t);
  case WAIT_ALL: return gpu_wait_signal_all<Scope>(q, c.local, c.word, c.value, t);
  case WAIT_SOME:
    return gpu_wait_signal_some<Scope>(q, c.local, c.word, c.value, reinterpret_cast<rb_u32 *>(static_cast<rb_u64 *>(c.local) + c.word), t);
  default: return gpu_wait_signal<Scope>(q, c.local, c.value, t);
  }
}

// One call by one thread, a warp or a block.
extern "C" __global__ void one_call(rb_queue q, const call *c, rb_u32 scope, gpu_result *out) {
  gpu_result r;
  if (scope == 0) {
    if (threadIdx.x) return;
    r = run<rb::thread>(q, *c);
  } else if (scope == 1) {
    if (threadIdx.x >= 32) return;
    r = run<rb::warp>(q, *c);
  } else {
    r = run<rb::block>(q, *c);
  }
  if (threadIdx.x == 0) *out = r;
}

// Posts `count` puts without waiting, then flushes: all are in place then, and each request has ended. `out`: the flush's result,
// and the number of requests that had.
extern "C" __global__ void flush_puts(rb_queue q, rb_u32 session, rb_u64 peer, rb_u32 rkey, unsigned char *from, rb_u64 len,
                                      rb_u32 count, gpu_result *out) {
  __shared__ gpu_request requests[16];
  gpu_remote there = gpu_remote_of(session, peer, rkey);
  for (rb_u32 i = 0; i < count; ++i) requests[i] = gpu_iput(q, there + i * len, from + i * len, len);
  out[0] = gpu_flush(q);
  out[1] = gpu_result{};
  for (rb_u32 i = 0; i < count; ++i) out[1].bytes += gpu_test(q, requests[i]);
}

// Puts pieces to the peer and gets them back to `to` under a counter, all posted before the first is waited for. `refused`: this put
// has a wrong key. `out`: results of a wait for more than there are, for half, for all, and of a last read.
template <class Scope> __device__ void count_all(const rb_queue &q, gpu_counter &c, const gpu_remote &there, unsigned char *from,
                                                 unsigned char *to, rb_u64 len, rb_u32 pieces, rb_u32 refused, gpu_result *out) {
  gpu_result r[4] = {};
  bool posted = true;
  for (rb_u32 i = 0; i < pieces; ++i) {
    gpu_remote piece = there + i * len;
    if (i == refused) piece.key ^= 0x100;
    posted &= i & 1 ? gpu_counter_put<Scope>(q, c, piece, from + i * len, len).ok()
                    : gpu_counter_put_signal<Scope>(q, c, piece, from + i * len, len, 0, 1).ok();
    posted &= gpu_counter_get<Scope>(q, c, to + i * len, there + i * len, len).ok();
  }
  r[0] = gpu_counter_wait<Scope>(q, c, 2 * pieces + 1);
  r[1] = gpu_counter_wait<Scope>(q, c, pieces);
  r[2] = gpu_counter_wait<Scope>(q, c, 2 * pieces);
  r[3] = gpu_counter_read<Scope>(q, c);
  if (threadIdx.x == 0)
    for (int i = 0; i < 4; ++i) out[i] = posted ? r[i] : gpu_result{RB_STATUS_QUEUE_FULL, 0, 0, 0};
}

extern "C" __global__ void count_puts(rb_queue q, rb_u32 session, rb_u64 peer, rb_u32 rkey, unsigned char *from, unsigned char *to,
                                      rb_u64 len, rb_u32 pieces, rb_u32 refused, rb_u32 scope, gpu_result *out) {
  __shared__ gpu_counter c;
  if (threadIdx.x == 0) c = gpu_counter{};
  gpu_remote there = gpu_remote_of(session, peer, rkey);
  if (scope == 2)
    count_all<rb::block>(q, c, there, from, to, len, pieces, refused, out);
  else if (scope == 1 && threadIdx.x < 32)
    count_all<rb::warp>(q, c, there, from, to, len, pieces, refused, out);
  else if (threadIdx.x == 0)
    count_all<rb::thread>(q, c, there, from, to, len, pieces, refused, out);
}

// Adds requests to a counter, the later one first, and waits while the earlier one, a receive, has no message; then for both. The
// third request was never posted.
extern "C" __global__ void count_requests(rb_queue q, rb_u32 session, rb_u64 peer, rb_u32 rkey, unsigned char *into, rb_u32 short_us,
                                          gpu_result *out) {
  gpu_counter c{};
  gpu_request message = gpu_irecv(q, session, into, 1);
  gpu_request add = gpu_iatomic_add(q, gpu_remote_of(session, peer, rkey), 1);
  gpu_counter_add(q, c, add);
  gpu_counter_add(q, c, message);
  out[0] = gpu_counter_wait(q, c, 1);
  out[1] = gpu_counter_wait(q, c, 2, short_us);
  // The peer's program sends when it sees this.
  gpu_signal(q, gpu_remote_of(session, peer, rkey), 1, 1);
  out[2] = gpu_counter_wait(q, c, 2);
  gpu_request refused = gpu_iput(q, gpu_remote_of(session, peer, rkey), into, rb::MAX_PIECE + 1);
  gpu_counter_add(q, c, refused);
  out[3] = gpu_counter_wait(q, c, c.posted);
}

// Every lane adds to the peer's word `rounds` times, each with a request of its own; and every block adds to its own word, which
// peers update as well.
extern "C" __global__ void add_many(rb_queue q, rb_u32 session, rb_u64 peer, rb_u32 rkey, rb_u32 rounds,
                                    unsigned long long *own, gpu_result *out) {
  gpu_remote word = gpu_remote_of(session, peer, rkey);
  gpu_result all{};
  for (rb_u32 i = 0; i < rounds; ++i) {
    gpu_result r = gpu_atomic_add(q, word, 1);
    if (!r.ok()) all = r;
    atomicAdd_system(own, 1ull);
  }
  out[blockIdx.x] = all;
}

// Rank r of a ring puts its number to the next rank's part, and waits for the one before, `rounds` times.
extern "C" __global__ void ring_of_puts(rb_comm c, rb_u32 window, rb_u64 *mine, rb_u32 rounds, gpu_result *out) {
  rb_u32 next = (c.rank + 1) % c.size, before = (c.rank + c.size - 1) % c.size;
  rb_u64 seen = 0;
  gpu_result r{};
  for (rb_u32 i = 0; i < rounds && r.ok(); ++i) {
    rb_u64 value = (rb_u64(c.rank) << 32) | i;
    // Word 0 counts the signals, word 1 counts those of the next rank that has taken the value; values alternate in 2 and 3.
    if (i >= 2) r = gpu_wait_signal(c.queue, mine + 1, i - 1);
    if (r.ok()) r = gpu_put_signal(c.queue, gpu_window(c, window, next, (2 + i % 2) * 8), &value, 8, 0, 1);
    if (r.ok()) r = gpu_wait_signals(c.queue, mine, seen);
    if (!r.ok()) break;
    rb_u64 got = rb::detail::load_acquire(mine + 2 + i % 2);
    if (got != ((rb_u64(before) << 32) | i)) {
      *out = gpu_result{RB_STATUS_MISMATCH, 0, i, got};
      return;
    }
    r = gpu_signal(c.queue, gpu_window(c, window, before), 1, 1);
  }
  *out = r;
}
