/* Slots: the paper's staging buffers (FpgaNIC §A.1.2, §A.1.4, Figure 11), on top of requests.
 *
 * On GPUs that expose little memory to other devices (256 MiB BAR), user arrays cannot be registered.
 * Instead one window is (220 MB in the paper: 100 to send, 100 to receive, 20 reserved), divided among N
 * connections: each has a circular send and a circular receive buffer of M bytes in F = M / W slots of
 * W bytes. A block moves data between the user's array and the slots; the NIC moves the slots.
 *
 * Flow control: the sender's credit for a slot is the retirement of its send, the receiver's credit to
 * its peer is the window that a posted receive opens (`consumed_bytes` of §A.1.4); no credit bytes travel
 * inside the stream, so that a plain TCP peer works.
 *
 * Every call is made by all lanes of a block, converged. Nothing is under way when a call returns. A
 * connection's sends and its receives may run in two blocks at the same time, on a queue each.
 */
#ifndef RINGBELL_SLOTS_CUH
#define RINGBELL_SLOTS_CUH

#include "ringbell_move.cuh"

namespace rb {

/* The window and its division. Mirrored by `Slots` in src/slots.rs, which computes it. */
struct gpu_slots {
  unsigned char *window;  /* registered with the NIC */
  rb_u64 receive_offset;  /* where the receive buffers begin */
  rb_u64 buffer_bytes;    /* M, a multiple of W */
  rb_u64 slot_bytes;      /* W */
  rb_u32 connections;     /* N */
  rb_u32 credit_percent;  /* Th: receives are posted again when this share of M was consumed */
};

namespace detail {

/* Most slots that one call keeps in flight. */
constexpr rb_u32 MAX_SLOTS = 64;

RB_DEVICE rb_u32 slot_count(const rb_queue &q, const gpu_slots &s) {
  rb_u64 f = s.buffer_bytes / s.slot_bytes;
  rb_u64 depth = rb_u64(1) << q.depth_log2;
  if (f > depth) f = depth;
  return rb_u32(f > MAX_SLOTS ? MAX_SLOTS : f);
}

RB_DEVICE bool slots_fit(const gpu_slots &s, rb_u32 connection) {
  return connection < s.connections && s.slot_bytes && s.slot_bytes <= MAX_PIECE && s.buffer_bytes >= s.slot_bytes;
}

} // namespace detail

/* Sends `len` bytes of any memory, registered or not. */
RB_DEVICE gpu_result gpu_slots_send(const rb_queue &q, const gpu_slots &s, rb_u32 connection, rb_u32 session, const void *user,
                                    rb_u64 len, rb_u32 timeout_us = 0) {
  __shared__ gpu_result shared;
  if (!detail::slots_fit(s, connection)) return detail::failed(RB_STATUS_NO_RESOURCES);
  const unsigned char *from = static_cast<const unsigned char *>(user);
  unsigned char *ring = s.window + connection * s.buffer_bytes;
  rb_u32 slots = detail::slot_count(q, s), t = detail::effective_timeout(q, timeout_us);
  bool leader = detail::thread_index() == 0;
  __shared__ rb_u32 ticket[detail::MAX_SLOTS]; /* the leader's; an array of its own would lie on the stack */
  rb_u64 posted = 0, retired = 0, at = 0;
  __syncthreads();
  if (leader) shared = gpu_result{};
  __syncthreads();
  while (at < len) {
    /* The credit of a slot is back when its send has retired: the bytes have left the slot (❸, ❹). */
    if (leader && posted - retired == slots) {
      gpu_result r = detail::result_of(detail::wait(q, ticket[retired % slots], t));
      ++retired;
      rb_u64 before = shared.bytes;
      if (shared.ok()) shared = r;
      shared.bytes = before + r.bytes;
    }
    __syncthreads();
    if (!shared.ok()) break; /* the same for all lanes: no lane writes it before the next barrier */
    rb_u64 piece = len - at < s.slot_bytes ? len - at : s.slot_bytes;
    unsigned char *slot = ring + posted % slots * s.slot_bytes;
    detail::copy(slot, from + at, piece, lanes::of_block()); /* ❶ user array to tail slot */
    __syncthreads();
    at += piece;
    if (leader) { /* ❷ doorbell: the NIC reads the head slot by DMA (❸) and hands it to the transport (❹) */
      detail::entry e = detail::send_entry(session, slot, rb_u32(piece), t, 0, at == len ? RB_FLAG_PUSH : 0);
      if (!detail::post(q, e, t, true, &ticket[posted % slots])) {
        shared.status = RB_STATUS_QUEUE_FULL; /* all lanes see it after the next barrier, and leave */
        shared.detail = detail::holder_of(q);
        continue; /* `posted` is the leader's own from here: nothing was posted */
      }
    }
    ++posted;
  }
  while (leader && retired < posted) {
    gpu_result r = detail::result_of(detail::wait(q, ticket[retired % slots], t));
    ++retired;
    rb_u64 before = shared.bytes;
    if (shared.ok()) shared = r;
    shared.bytes = before + r.bytes;
  }
  __syncthreads();
  gpu_result result = shared;
  __syncthreads();
  return result;
}

/* Receives exactly `len` bytes into any memory. */
RB_DEVICE gpu_result gpu_slots_recv(const rb_queue &q, const gpu_slots &s, rb_u32 connection, rb_u32 session, void *user, rb_u64 len,
                                    rb_u32 timeout_us = 0) {
  __shared__ gpu_result shared;
  __shared__ rb_u64 arrived;
  if (!detail::slots_fit(s, connection)) return detail::failed(RB_STATUS_NO_RESOURCES);
  unsigned char *to = static_cast<unsigned char *>(user);
  unsigned char *ring = s.window + s.receive_offset + connection * s.buffer_bytes;
  rb_u32 slots = detail::slot_count(q, s), t = detail::effective_timeout(q, timeout_us);
  /* Credits go back in lots of Th x M (§A.1.4), at least one slot. */
  rb_u32 lot = rb_u32(rb_u64(slots) * s.credit_percent / 100);
  if (lot < 1) lot = 1;
  bool leader = detail::thread_index() == 0;
  __shared__ rb_u32 ticket[detail::MAX_SLOTS]; /* the leader's; an array of its own would lie on the stack */
  rb_u64 posted = 0, taken = 0, asked = 0, at = 0, consumed = 0;
  __syncthreads();
  if (leader) shared = gpu_result{};
  __syncthreads();
  while (at < len) {
    if (leader) {
      /* consumed_bytes: posting a receive is what opens the window (❺, ❻ fill the slot by DMA). */
      bool grant = posted == taken || posted - taken + lot <= slots;
      while (grant && shared.ok() && asked < len && posted - taken < slots) {
        rb_u64 piece = len - asked < s.slot_bytes ? len - asked : s.slot_bytes;
        detail::entry e = detail::recv_entry(session, ring + posted % slots * s.slot_bytes, rb_u32(piece), t, 0, 0);
        /* Only the first may wait for a slot of the queue: the others can be asked for later. */
        if (!detail::post(q, e, t, posted == taken, &ticket[posted % slots])) {
          if (posted == taken) shared.status = RB_STATUS_QUEUE_FULL, shared.detail = detail::holder_of(q);
          break;
        }
        ++posted;
        asked += piece;
      }
      arrived = 0;
      if (shared.ok()) {
        gpu_result r = detail::result_of(detail::wait(q, ticket[taken % slots], t));
        ++taken;
        arrived = r.bytes;
        rb_u64 before = shared.bytes;
        shared = r;
        shared.bytes = before + r.bytes;
      }
    }
    __syncthreads();
    /* ❼ head slot to user array: also the bytes that came before a failure. */
    detail::copy(to + at, ring + consumed % slots * s.slot_bytes, arrived, lanes::of_block());
    at += arrived;
    ++consumed;
    bool go_on = shared.ok();
    __syncthreads();
    if (!go_on) break;
  }
  /* After a failure: the slots are the NIC's until the receives under way have retired. */
  while (leader && taken < posted) detail::wait(q, ticket[taken++ % slots], t);
  __syncthreads();
  gpu_result result = shared;
  __syncthreads();
  return result;
}

} // namespace rb

#ifndef RINGBELL_NO_USING
using rb::gpu_slots;
using rb::gpu_slots_recv;
using rb::gpu_slots_send;
#endif

#endif /* RINGBELL_SLOTS_CUH */
