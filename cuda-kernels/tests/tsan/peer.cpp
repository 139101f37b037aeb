// The device header against a NIC made of a thread, under ThreadSanitizer (tests/tsan.rs).
//
// Payloads are plain memory on both sides, so every order that the protocol promises is checked:
// buffer before descriptor, received bytes before completion, reading a line before reusing its slot.
// With RB_TEST_RELAXED_PUBLISH the device publishes without Release, and a race must be reported.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "ringbell.cuh"

namespace {

constexpr rb_u32 DEPTH_LOG2 = 3, DEPTH = 1u << DEPTH_LOG2, FIRST = 0xffffff00u;
constexpr rb_u32 KERNELS = 3, ROUNDS = 400, BYTES = 96;

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
  __atomic_store_n(line + 1, 0, __ATOMIC_RELAXED);
  __atomic_store_n(line + 2, bytes, __ATOMIC_RELAXED);
  __atomic_store_n(line + 3, 0, __ATOMIC_RELAXED);
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
  int all = 0;
  for (int w : wrong) all += w;
  std::printf("%u transfers, %d wrong\n", KERNELS * ROUNDS, all);
  return all != 0;
}
