// The device header against a NIC made of a thread, under ThreadSanitizer (tests/tsan.rs).
//
// Payloads are plain memory on both sides, so every order that the protocol promises is checked:
// buffer before descriptor, received bytes before completion, reading a line before reusing its slot.
// With RB_TEST_RELAXED_PUBLISH the device publishes without Release, with RB_TEST_RELAXED_STREAM a stream's
// index, and a race must be reported.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "ringbell.cuh"
#include "ringbell_stream.cuh"

namespace {

constexpr rb_u32 DEPTH_LOG2 = 3, DEPTH = 1u << DEPTH_LOG2, FIRST = 0xffffff00u;
constexpr rb_u32 KERNELS = 3, ROUNDS = 400, BYTES = 96;
constexpr rb_u32 RING_LOG2 = 6, RING = 1u << RING_LOG2;
constexpr rb_u64 ELEMENTS = 3000, RING_FIRST = (rb_u64(1) << 32) - 400;

struct memory {
  alignas(64) rb_u64 sq[DEPTH][8];
  alignas(64) rb_u64 cq[DEPTH][8];
  alignas(64) rb_u32 released[DEPTH];
  alignas(64) rb_u32 tail;
  alignas(64) rb_u32 doorbell;
};

memory m;
// What the NIC "transported" last for each session: only the NIC thread touches it.
unsigned char wire[KERNELS][BYTES];

void complete(rb_u32 ticket, rb_u64 bytes) {
  rb_u64 *line = m.cq[ticket % DEPTH];
  __atomic_store_n(line + RB_CQE_BYTES_WORD, bytes, __ATOMIC_RELAXED);
  __atomic_store_n(line + RB_CQE_WR_ID_WORD, 0, __ATOMIC_RELAXED);
  __atomic_store_n(line + RB_CQE_DETAIL_WORD, 0, __ATOMIC_RELAXED);
  // Pairs with the Acquire load of word 0 in rb::detail::poll.
  __atomic_store_n(line, RB_PUT(CQE_STATUS, RB_STATUS_OK) | RB_PUT(CQE_TICKET, ticket + 1), __ATOMIC_RELEASE);
}

bool take(rb_u32 ticket, rb_u64 *w) {
  rb_u64 lap = (ticket >> DEPTH_LOG2) & 1 ? 0 : RB_LAP;
  // Word 0 last in the store order, first here: its Acquire load pairs with the Release store.
  for (int i = 0; i < 8; ++i) {
    w[i] = __atomic_load_n(&m.sq[ticket % DEPTH][i], __ATOMIC_ACQUIRE);
    if ((w[i] & RB_LAP) != lap) return false;
  }
  for (int i = 0; i < 7; ++i) w[i] = (w[i] & ~RB_LAP) | (RB_GET(WQE_SAVED, w[7]) >> i & 1) << 63;
  return true;
}

void nic(rb_u32 commands) {
  rb_u32 next = FIRST, bell = FIRST;
  while (next != FIRST + commands) {
    rb_u32 now = __atomic_load_n(&m.doorbell, __ATOMIC_ACQUIRE);
    if (now == bell) {
      std::this_thread::yield();
      continue;
    }
    bell = now;
    rb_u64 w[8];
    while (next != FIRST + commands && take(next, w)) {
      unsigned char *host = wire[RB_GET(WQE_SESSION, w[0])];
      void *gpu = reinterpret_cast<void *>(w[1]);
      if (RB_GET(WQE_OPCODE, w[0]) == RB_OP_SEND)
        std::memcpy(host, gpu, BYTES);
      else
        std::memcpy(gpu, host, BYTES);
      complete(next, BYTES);
      ++next;
    }
  }
}

int kernel(rb_queue q, rb_u32 session) {
  std::vector<unsigned char> sent(BYTES), got(BYTES);
  int wrong = 0;
  for (rb_u32 i = 0; i < ROUNDS; ++i) {
    for (rb_u32 k = 0; k < BYTES; ++k) sent[k] = (unsigned char)(i + k + session);
    gpu_result s = gpu_send(q, session, sent.data(), BYTES);
    gpu_result r = gpu_recv(q, session, got.data(), BYTES);
    wrong += !s.ok() || !r.ok() || std::memcmp(sent.data(), got.data(), BYTES) != 0;
  }
  return wrong;
}

// A kernel's stream into the NIC and one out of it; the NIC copies plain bytes from ring to ring.
struct alignas(128) ring {
  unsigned char bytes[RB_STREAM_DATA_AT + RING];
  rb_u64 *word(rb_u64 at) { return reinterpret_cast<rb_u64 *>(bytes + at); }
  rb_stream_handle stream() { return rb_stream_handle{rb_u64(bytes) | RING_LOG2}; }
};
ring to_nic, from_nic;

void relay(rb_u64 all) {
  rb_u64 at = RING_FIRST;
  while (at != RING_FIRST + all) {
    // Acquire: pairs with the Release of the index's writer.
    rb_u64 has = __atomic_load_n(to_nic.word(RB_STREAM_HEAD_AT), __ATOMIC_ACQUIRE) - at;
    rb_u64 room = RING - (at - __atomic_load_n(from_nic.word(RB_STREAM_TAIL_AT), __ATOMIC_ACQUIRE));
    rb_u64 n = has < room ? has : room;
    if (n == 0) {
      std::this_thread::yield();
      continue;
    }
    for (rb_u64 i = 0; i < n; ++i) {
      rb_u64 slot = RB_STREAM_DATA_AT + ((at + i) & (RING - 1));
      from_nic.bytes[slot] = to_nic.bytes[slot];
    }
    at += n;
    __atomic_store_n(to_nic.word(RB_STREAM_TAIL_AT), at, __ATOMIC_RELEASE);
    __atomic_store_n(from_nic.word(RB_STREAM_HEAD_AT), at, __ATOMIC_RELEASE);
  }
}

int pushes(rb_queue q) {
  gpu_pusher p(to_nic.stream());
  int wrong = 0;
  for (rb_u32 i = 0; i < 10; ++i) wrong += !gpu_stream_push(q, p, i * 7).ok();
  wrong += !gpu_stream_push_each(q, p, ELEMENTS - 10, [](rb_u64 i) { return rb_u32(i + 10) * 7; }).ok();
  return wrong;
}

int pops(rb_queue q) {
  gpu_popper p(from_nic.stream());
  int wrong = 0;
  for (rb_u32 i = 0; i < 10; ++i) {
    rb_u32 v = 0;
    wrong += !gpu_stream_pop(q, p, &v).ok() || v != i * 7;
  }
  auto look = [&](rb_u64 i, rb_u32 v) { wrong += v != rb_u32(i + 10) * 7; };
  wrong += !gpu_stream_pop_each<rb::thread, rb_u32>(q, p, ELEMENTS - 10, look).ok();
  return wrong;
}

} // namespace

int main() {
  for (rb_u32 i = 0; i < DEPTH; ++i) {
    rb_u32 ticket = FIRST + i;
    m.released[ticket % DEPTH] = ticket;
    for (rb_u64 &w : m.sq[ticket % DEPTH]) w = (ticket >> DEPTH_LOG2) & 1 ? RB_LAP : 0;
  }
  m.tail = m.doorbell = FIRST;
  rb_queue q{};
  q.sq = rb_u64(m.sq), q.cq = rb_u64(m.cq), q.released = rb_u64(m.released), q.tail = rb_u64(&m.tail);
  q.doorbell = rb_u64(&m.doorbell), q.depth_log2 = DEPTH_LOG2;
  q.default_timeout_us = 60u * 1000 * 1000, q.silent_grace_us = 1000000;
  std::thread peer(nic, KERNELS * ROUNDS * 2);
  int wrong[KERNELS] = {};
  std::vector<std::thread> kernels;
  for (rb_u32 k = 0; k < KERNELS; ++k) kernels.emplace_back([&, k] { wrong[k] = kernel(q, k); });
  for (std::thread &t : kernels) t.join();
  peer.join();
  for (ring *r : {&to_nic, &from_nic})
    *r->word(RB_STREAM_HEAD_AT) = *r->word(RB_STREAM_TAIL_AT) = RING_FIRST;
  int ends[2] = {};
  std::thread carrier(relay, ELEMENTS * 4);
  std::thread pusher([&] { ends[0] = pushes(q); }), popper([&] { ends[1] = pops(q); });
  for (std::thread *t : {&carrier, &pusher, &popper}) t->join();
  std::printf("%llu elements streamed, %d wrong\n", (unsigned long long)ELEMENTS, ends[0] + ends[1]);
  int all = ends[0] + ends[1];
  for (int w : wrong) all += w;
  std::printf("%u transfers, %d wrong\n", KERNELS * ROUNDS, all);
  return all != 0;
}
