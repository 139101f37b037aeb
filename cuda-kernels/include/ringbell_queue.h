/* A kernel's side of a queue: take a slot, write the entry, ring, wait for the completion line.
 *
 * The protocol is that of nic-abi/src/queue.rs, and the only one; every call of ringbell.cuh is built
 * on `post`, `poll` and `wait`. Ordering:
 *
 *  - the words of an entry and the doorbell are stored behind one fence of the whole system (pairs with the NIC's
 *    Acquire of the words that it validates, and of the doorbell): a reader of the whole entry also sees the payload
 *    written before it, even when the NIC reads it because of another producer's doorbell;
 *  - word 0 of a completion line is loaded with Acquire (pairs with the Release store in
 *    `gtlb::CompletionWrite::store`): a reader that sees the ticket also sees words 1-3 and the received bytes;
 *  - `released[slot]` is stored with Release by the waiter (pairs with the Acquire load in `post`): a
 *    producer that reuses a slot comes after the last reader of its completion line. Only kernels use it
 *    and `tail`, which lie in the GPU's memory.
 */
#ifndef RINGBELL_QUEUE_H
#define RINGBELL_QUEUE_H

#include "ringbell_platform.h"

namespace rb {
namespace detail {

/* An entry before it is published: words as the descriptor defines them, all 64 bits usable. */
struct entry {
  rb_u64 word[8];
};

/* A completion line, copied. */
struct completion {
  rb_u32 status;
  rb_u64 bytes;
  rb_u64 detail;
};

/* Time-out of a call that passed `timeout_us`; never 0, so that every wait ends. */
RB_DEVICE rb_u32 effective_timeout(const rb_queue &q, rb_u32 timeout_us) {
  if (timeout_us) return timeout_us;
  return q.default_timeout_us ? q.default_timeout_us : 10u * 1000 * 1000;
}

/* A bounded wait. Reading the clock costs more than a poll, so it is read on every 32nd idle turn
 * at first; the deadline therefore starts at the 32nd turn, a microsecond or so late. */
struct bounded_wait {
  rb_u64 deadline_ns = 0;
  rb_u64 budget_ns;
  rb_u32 turns = 0;

  RB_DEVICE explicit bounded_wait(rb_u64 budget_us) : budget_ns(budget_us * 1000) {}

  /* One idle turn; false when the deadline has passed. */
  RB_DEVICE bool turn() {
#if __CUDA_ARCH__ >= 700
    if (turns > 4096) __nanosleep(100);
#endif
    ++turns;
    if ((turns & 31) != 0 && turns < 1024) return true;
    if (turns > 0x40000000u) turns = 0x40000000u; /* stay past 1,024 instead of wrapping */
    rb_u64 now = clock_ns();
    if (!deadline_ns) {
      deadline_ns = now + budget_ns;
      return true;
    }
    return now < deadline_ns;
  }
};

RB_DEVICE rb_u32 slot_of(const rb_queue &q, rb_u32 ticket) { return ticket & ((1u << q.depth_log2) - 1); }
RB_DEVICE rb_u32 *released_of(const rb_queue &q, rb_u32 slot) { return reinterpret_cast<rb_u32 *>(q.released) + slot; }
RB_DEVICE const rb_u64 *line_of(const rb_queue &q, rb_u32 ticket) {
  return reinterpret_cast<const rb_u64 *>(q.cq + rb_u64(slot_of(q, ticket)) * RB_COMPLETION_BYTES);
}

/* The same for a queue whose only user is the calling thread (gpu_own_queue): from registers, unless slots seem
 * to be in use. Stores keep the words in memory up to date for the queue's next user. */
RB_DEVICE bool take_own_ticket(rb_queue &q, rb_u32 *ticket) {
  rb_u32 depth = 1u << q.depth_log2, t = q.own_next;
  if (RB_UNLIKELY(t - q.own_oldest >= depth)) {
    /* Waits out of order are not seen in registers. Acquire as below. */
    while (q.own_oldest != t && load_acquire_device(released_of(q, slot_of(q, q.own_oldest))) == q.own_oldest + depth) ++q.own_oldest;
    if (t - q.own_oldest >= depth) return false;
  }
  q.own_next = t + 1;
  store_relaxed_device(reinterpret_cast<rb_u32 *>(q.tail), t + 1);
  *ticket = t;
  return true;
}

/* Takes the next ticket if its slot is free; else leaves the queue untouched, so that no hole is left. */
RB_DEVICE bool take_ticket(const rb_queue &q, rb_u32 *ticket) {
  /* Only a copy that gpu_own_queue has made, never the kernel's argument itself: that one says 0. */
  if (q.own) return take_own_ticket(const_cast<rb_queue &>(q), ticket);
  rb_u32 *tail = reinterpret_cast<rb_u32 *>(q.tail);
  for (;;) {
    rb_u32 t = load_relaxed_device(tail);
    /* Acquire: pairs with the Release store in `release`. */
    if (load_acquire_device(released_of(q, slot_of(q, t))) != t) {
      if (load_relaxed_device(tail) == t) return false;
      continue; /* another producer took it meanwhile: look at the new tail */
    }
    if (compare_and_swap_device(tail, t, t + 1)) {
      *ticket = t;
      return true;
    }
    /* A lost swap means that another producer got a ticket: at most `depth` of them in a row. */
  }
}

/* What holds the slot that the next ticket needs, after `take_ticket` has failed: its ticket, its opcode << 32, and bit 40 when it has
 * ended and nothing has waited for it. */
RB_DEVICE_CALL rb_u64 holder_of(const rb_queue &q) {
  rb_u32 next = q.own ? q.own_next : load_relaxed_device(reinterpret_cast<rb_u32 *>(q.tail));
  rb_u32 ticket = next - (1u << q.depth_log2);
  rb_u64 word = load_relaxed(reinterpret_cast<const rb_u64 *>(q.sq + rb_u64(slot_of(q, ticket)) * RB_DESCRIPTOR_BYTES));
  rb_u64 ended = rb_u32(RB_GET(CQE_TICKET, load_relaxed(line_of(q, ticket)))) == ticket + 1;
  return ticket | RB_GET(WQE_OPCODE, word) << 32 | ended << 40;
}

/* Writes the entry of a taken ticket and rings the doorbell. */
RB_DEVICE void publish(const rb_queue &q, rb_u32 ticket, const entry &e) {
  rb_u64 lap = (ticket >> q.depth_log2) & 1 ? 0 : RB_LAP;
  rb_u64 w[8];
  rb_u64 saved = 0;
#pragma unroll
  for (int i = 0; i < 7; ++i) {
    saved |= (e.word[i] >> 63) << i;
    w[i] = (e.word[i] & ~RB_LAP) | lap;
  }
  w[7] = (e.word[7] & ~RB_LAP) | RB_PUT(WQE_SAVED, saved) | lap;
  rb_u64 *slot = reinterpret_cast<rb_u64 *>(q.sq + rb_u64(slot_of(q, ticket)) * RB_DESCRIPTOR_BYTES);
  order_before_publishing();
  store_pair_relaxed(slot + 6, w[6], w[7]);
  store_pair_relaxed(slot + 4, w[4], w[5]);
  store_pair_relaxed(slot + 2, w[2], w[3]);
  store_pair_relaxed(slot, w[0], w[1]);
  store_relaxed(reinterpret_cast<rb_u32 *>(q.doorbell), ticket + 1);
}

/* Takes a slot, waiting for one until the time-out when `may_wait`, and publishes the entry. */
RB_DEVICE_CALL bool post(const rb_queue &q, const entry &e, rb_u32 timeout_us, bool may_wait, rb_u32 *ticket) {
  if (RB_UNLIKELY(!take_ticket(q, ticket))) {
    if (!may_wait) return false;
    bounded_wait w(effective_timeout(q, timeout_us));
    do {
      if (!w.turn()) return false;
    } while (!take_ticket(q, ticket));
  }
  publish(q, *ticket, e);
  return true;
}

/* Frees the slot: the completion line of `ticket` was read. */
RB_DEVICE void release(const rb_queue &q, rb_u32 ticket) {
  rb_u32 *word = released_of(q, slot_of(q, ticket)), next = ticket + (1u << q.depth_log2);
  if (!q.own) return store_release_device(word, next);
  /* The thread that reads it next is this one. */
  store_relaxed_device(word, next);
  if (ticket == q.own_oldest) ++const_cast<rb_queue &>(q).own_oldest;
}

/* Stores the bytes of a small receive from its completion line to their destination (scatter to CQE). Words are read at
 * once and by constant index, so that they stay in registers. */
RB_DEVICE void take_from_line(const rb_u64 *line, rb_u32 bytes) {
  rb_u64 va = load_relaxed(line + RB_CQE_LINE_VA_WORD), w[RB_SCATTER_MAX / 8];
#pragma unroll
  for (rb_u32 i = 0; i < RB_SCATTER_MAX / 8; ++i) w[i] = load_relaxed(line + RB_CQE_LINE_BYTES_WORD + i);
  unsigned char *to = reinterpret_cast<unsigned char *>(va);
  bool whole = ((va | bytes) & 7) == 0;
#pragma unroll
  for (rb_u32 i = 0; i < RB_SCATTER_MAX / 8; ++i) {
    if (i * 8 >= bytes) break;
    if (whole)
      *reinterpret_cast<rb_u64 *>(to + i * 8) = w[i];
    else
#pragma unroll 1
      for (rb_u32 b = 0; b < 8 && i * 8 + b < bytes; ++b) to[i * 8 + b] = (unsigned char)(w[i] >> b * 8);
  }
}

/* Copies the completion of `ticket`, if it has arrived; its slot stays taken. */
RB_DEVICE_CALL bool look(const rb_queue &q, rb_u32 ticket, completion *c) {
  const rb_u64 *line = line_of(q, ticket);
  rb_u64 w0, bytes;
  load_pair_acquire(line, &w0, &bytes);
  if (rb_u32(RB_GET(CQE_TICKET, w0)) != ticket + 1) return false;
  c->bytes = bytes;
  if (RB_UNLIKELY(RB_GET(CQE_SCATTERED, w0))) take_from_line(line, bytes < RB_SCATTER_MAX ? rb_u32(bytes) : RB_SCATTER_MAX);
  c->detail = RB_GET(CQE_HAS_DETAIL, w0) ? load_relaxed(line + RB_CQE_DETAIL_WORD) : 0;
  rb_u32 status = rb_u32(RB_GET(CQE_STATUS, w0));
  /* An unknown code means a broken contract: the buffer must not be touched (nic-abi, completion.rs). */
  c->status = status < RB_STATUS_COUNT ? status : RB_STATUS_NIC_SILENT;
  return true;
}

/* The same, and frees the slot. */
RB_DEVICE bool poll(const rb_queue &q, rb_u32 ticket, completion *c) {
  bool there = look(q, ticket, c);
  if (there) release(q, ticket);
  return there;
}

/* Waits for the completion of `ticket`; NIC_SILENT when the NIC has not kept its own deadline by
 * more than the queue's grace. The slot of a silent ticket is not freed: the NIC may still write its line. */
RB_DEVICE_CALL completion wait(const rb_queue &q, rb_u32 ticket, rb_u32 timeout_us) {
  completion c;
  if (poll(q, ticket, &c)) return c;
  bounded_wait w(rb_u64(effective_timeout(q, timeout_us)) + q.silent_grace_us);
  for (;;) {
    bool in_time = w.turn();
    if (poll(q, ticket, &c)) return c;
    if (!in_time) return completion{RB_STATUS_NIC_SILENT, 0, 0};
  }
}

} // namespace detail
} // namespace rb

#endif /* RINGBELL_QUEUE_H */
