/* Ringbell's device API: sockets, sends and receives of a kernel, through the NIC.
 *
 * One header for clang, nvcc and NVRTC (no standard headers needed). FpgaNIC §A.1.
 *
 *   rb::gpu_result r = gpu_connect(q, sock, ip, port);
 *   if (r.status == RB_STATUS_OK) r = gpu_send<rb::block>(q, sock, data, bytes);
 *
 * **Scope.** Every call takes the scope as template parameter, or as suffix: `gpu_send(...)` is one
 * thread's, `gpu_send<rb::warp>(...)` or `gpu_send_warp(...)` a warp's, `gpu_send<rb::block>(...)` or
 * `gpu_send_block(...)` a block's. In warp and block scope *all* lanes of the warp or block call,
 * converged, with the same arguments; the call begins with a barrier (so what any lane wrote to the
 * buffer is sent), the leader works, and it ends with a barrier after which every lane has the same
 * result and sees the received bytes.
 *
 * **Time-outs** are in microseconds from the call; 0 is the queue's default. Every wait ends. TIMED_OUT:
 * the operation has retired, and the buffer is yours. NIC_SILENT is the device's own watchdog (deadline plus
 * the queue's grace): the buffer is not yours until the NIC was reset.
 *
 * **Non-blocking** calls return a request. Every request must be waited for (or tested until done),
 * which frees its slot of the queue. They never wait for a slot: a full queue is QUEUE_FULL.
 *
 * **One queue, one flow.** An operation that waits holds its slot, and a queue gets no further than its
 * depth beyond the oldest operation that waits. Flows that must not wait for each other (a receive that
 * idles and the sends of another direction) need a queue each; several threads may share one otherwise.
 *
 * **Payloads** of at most 40 bytes travel inside the descriptor: the thread copies them, and the
 * buffer need be neither registered nor kept.
 */
#ifndef RINGBELL_CUH
#define RINGBELL_CUH

#include "ringbell_queue.h"

namespace rb {

/* Scopes. */
struct thread {};
struct warp {};
struct block {};

/* The result of a call. */
struct gpu_result {
  rb_u32 status;  /* RB_STATUS_... */
  rb_u32 session; /* gpu_socket, gpu_accept: the new session */
  rb_u64 bytes;   /* bytes moved, also when the call failed half-way; gpu_accept: peer as ip << 16 | port */
  rb_u64 detail;  /* what the status says, e.g. the address that faulted */
  __host__ RB_DEVICE bool ok() const { return status == RB_STATUS_OK; }
};

/* An operation under way. Plain data: may live in registers, local or shared memory. */
struct gpu_request {
  rb_u32 ticket;
  rb_u32 timeout_us;
  rb_u32 done; /* 1: `result` holds, the slot is free */
  rb_u32 reserved;
  gpu_result result;
};

/* Returned by gpu_wait_any when no request is pending. */
constexpr rb_u32 NONE = 0xffffffffu;
/* Most bytes of one descriptor; longer transfers are split. A multiple of 64 KiB, so that pieces of
 * an aligned buffer stay aligned. */
constexpr rb_u64 MAX_PIECE = 0xffff0000ull;

namespace detail {

RB_DEVICE gpu_result failed(rb_u32 status) { return gpu_result{status, 0, 0, 0}; }
/* No slot was free in time; the detail is `holder_of`. */
RB_DEVICE gpu_result queue_full(const rb_queue &q) { return gpu_result{RB_STATUS_QUEUE_FULL, 0, 0, holder_of(q)}; }
RB_DEVICE gpu_result result_of(const completion &c) { return gpu_result{c.status, 0, c.bytes, c.detail}; }

RB_DEVICE entry make_entry(rb_u32 opcode, rb_u32 session, rb_u32 timeout_us, rb_u32 flags = 0) {
  entry e{};
  e.word[0] = RB_PUT(WQE_OPCODE, opcode) | RB_PUT(WQE_SESSION, session) | RB_PUT(WQE_FLAGS, flags);
  e.word[7] = RB_PUT(WQE_TIMEOUT_US, timeout_us);
  return e;
}

RB_DEVICE void set_buffer(entry &e, const void *va, rb_u64 len, rb_u32 lkey) {
  e.word[1] = reinterpret_cast<rb_u64>(va);
  e.word[2] = RB_PUT(WQE_LEN, len) | RB_PUT(WQE_LKEY, lkey);
}

/* Copies a short payload into words 1-5. */
RB_DEVICE void set_inline(entry &e, const void *va, rb_u32 len) {
  e.word[0] |= RB_PUT(WQE_FLAGS, RB_FLAG_INLINE) | RB_PUT(WQE_INLINE_LEN, len);
  /* By constant index for every `len`: a variable index would put the entry on the stack. */
  const unsigned char *p = static_cast<const unsigned char *>(va);
  bool words = ((reinterpret_cast<rb_u64>(va) | len) & 7) == 0;
#pragma unroll
  for (rb_u32 w = 0; w < RB_INLINE_MAX / 8; ++w) {
    rb_u32 at = w * 8;
    if (at >= len) break;
    rb_u64 v = 0;
    if (words)
      v = *reinterpret_cast<const rb_u64 *>(p + at);
    else
#pragma unroll 1
      for (rb_u32 b = 0; b < 8 && at + b < len; ++b) v |= rb_u64(p[at + b]) << b * 8;
    e.word[1 + w] = v;
  }
}

RB_DEVICE_CALL entry send_entry(rb_u32 session, const void *va, rb_u32 len, rb_u32 timeout_us, rb_u32 lkey, rb_u32 flags) {
  entry e = make_entry(RB_OP_SEND, session, timeout_us, flags);
  /* A kernel cannot read the NIC's own memory, so the NIC reads payloads there, short ones too. */
  if (len <= RB_INLINE_MAX && reinterpret_cast<rb_u64>(va) < RB_NIC_VA)
    set_inline(e, va, len);
  else
    set_buffer(e, va, len, lkey);
  return e;
}

RB_DEVICE entry recv_entry(rb_u32 session, void *va, rb_u32 len, rb_u32 timeout_us, rb_u32 lkey, rb_u32 flags) {
  entry e = make_entry(RB_OP_RECV, session, timeout_us, flags);
  set_buffer(e, va, len, lkey);
  return e;
}

/* Posts and waits: one thread's blocking call. */
RB_DEVICE_CALL gpu_result run(const rb_queue &q, const entry &e, rb_u32 timeout_us) {
  rb_u32 ticket;
  if (!post(q, e, timeout_us, true, &ticket)) return queue_full(q);
  return result_of(wait(q, ticket, timeout_us));
}

RB_DEVICE_CALL gpu_request start(const rb_queue &q, const entry &e, rb_u32 timeout_us) {
  gpu_request r{};
  r.timeout_us = timeout_us;
  if (!post(q, e, timeout_us, false, &r.ticket)) {
    r.done = 1;
    r.result = queue_full(q);
  }
  return r;
}

RB_DEVICE unsigned thread_index() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
/* The lanes that the calling thread's warp has; the last warp of a block may be partial. */
RB_DEVICE unsigned warp_mask() {
  unsigned lanes = blockDim.x * blockDim.y * blockDim.z, first = thread_index() & ~31u;
  return lanes - first >= 32 ? 0xffffffffu : (1u << (lanes - first)) - 1;
}

/* Gives every lane of the scope the leader's value; barrier before and after the leader's work. */
template <class Scope> struct scoped;
template <> struct scoped<thread> {
  template <class T, class F> static RB_DEVICE T run(F leader_work) { return leader_work(); }
};
template <> struct scoped<warp> {
  template <class T, class F> static RB_DEVICE T run(F leader_work) {
    static_assert(sizeof(T) % 4 == 0, "moved in 4-byte shuffles");
    unsigned mask = warp_mask();
    union {
      T value;
      rb_u32 part[sizeof(T) / 4];
    } u{};
    __syncwarp(mask);
    if ((thread_index() & 31) == 0) u.value = leader_work();
    for (unsigned i = 0; i < sizeof(T) / 4; ++i) u.part[i] = __shfl_sync(mask, u.part[i], 0);
    /* Shuffles order registers, not memory: received bytes are ordered by this barrier. */
    __syncwarp(mask);
    return u.value;
  }
};
template <> struct scoped<block> {
  template <class T, class F> static RB_DEVICE T run(F leader_work) {
    __shared__ rb_u64 cell[(sizeof(T) + 7) / 8];
    __syncthreads();
    if (thread_index() == 0) *reinterpret_cast<T *>(cell) = leader_work();
    __syncthreads();
    T value = *reinterpret_cast<T *>(cell);
    __syncthreads(); /* no lane overwrites the cell before all have read it */
    return value;
  }
};

} // namespace detail

/* --- queues ---------------------------------------------------------------------------------------- */

/* A copy of the queue for the calling thread as its only user. Its posts read no memory, because the next ticket and the
 * free slots are known in registers. The queue's own words are kept up to date for its next user. When operations of
 * other threads are still under way, the copy is an ordinary one. Keep it in a variable of the thread; making it reads
 * the queue once, a word for each slot. */
RB_DEVICE_CALL rb_queue gpu_own_queue(const rb_queue &q) {
  rb_queue mine = q;
  rb_u32 depth = 1u << q.depth_log2, tail = detail::load_acquire_device(reinterpret_cast<const rb_u32 *>(q.tail)), in_use = 0;
#pragma unroll 8
  for (rb_u32 i = 0; i < depth; ++i) in_use |= detail::load_relaxed_device(detail::released_of(q, detail::slot_of(q, tail + i))) ^ (tail + i);
  detail::order_before_publishing(); /* with the loads above it acquires: pairs with `release` */
  mine.own = in_use == 0;
  mine.own_next = mine.own_oldest = tail;
  return mine;
}

/* --- sockets (FpgaNIC §A.1.3) ----------------------------------------------------------------- */

/* Does nothing, through the whole path: measures the empty command. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_nop(const rb_queue &q, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::run(q, detail::make_entry(RB_OP_NOP, 0, t), t);
  });
}

/* Allocates a socket; its number is `result.session`. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_socket(const rb_queue &q, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    gpu_result r = detail::run(q, detail::make_entry(RB_OP_SOCKET, 0, t), t);
    if (r.ok()) r.session = rb_u32(r.detail);
    return r;
  });
}

/* Makes the socket listen on a port; `backlog` connections may wait to be accepted (0: 16). */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_listen(const rb_queue &q, rb_u32 session, rb_u32 port, rb_u32 backlog = 0, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_LISTEN, session, t);
    e.word[4] = RB_PUT(WQE_IMM, (port & 0xffff) | backlog << 16);
    return detail::run(q, e, t);
  });
}

/* Waits for a connection: `result.session` is the new session, `result.bytes` the peer as ip << 16 | port. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_accept(const rb_queue &q, rb_u32 listener, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    gpu_result r = detail::run(q, detail::make_entry(RB_OP_ACCEPT, listener, t), t);
    if (r.ok()) r.session = rb_u32(r.detail);
    return r;
  });
}

/* Connects to an IPv4 address (a.b.c.d as 0xaabbccdd) and port. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_connect(const rb_queue &q, rb_u32 session, rb_u32 ipv4, rb_u32 port, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_CONNECT, session, t);
    e.word[4] = RB_PUT(WQE_IMM, port & 0xffff);
    e.word[5] = ipv4;
    return detail::run(q, e, t);
  });
}

/* Sends all of `len` bytes, in pieces of MAX_PIECE with a time-out each; returns when the buffer may be reused. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_send(const rb_queue &q, rb_u32 session, const void *buf, rb_u64 len, rb_u32 timeout_us = 0,
                              rb_u32 lkey = 0, rb_u32 flags = RB_FLAG_PUSH) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    const char *p = static_cast<const char *>(buf);
    gpu_result all{};
    do {
      rb_u64 piece = len - all.bytes < MAX_PIECE ? len - all.bytes : MAX_PIECE;
      gpu_result r = detail::run(q, detail::send_entry(session, p + all.bytes, rb_u32(piece), t, lkey, flags), t);
      all = gpu_result{r.status, 0, all.bytes + r.bytes, r.detail};
    } while (all.ok() && all.bytes < len);
    return all;
  });
}

/* Receives all of `len` bytes, in such pieces; END_OF_STREAM with the bytes so far when the peer stops early. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_recv(const rb_queue &q, rb_u32 session, void *buf, rb_u64 len, rb_u32 timeout_us = 0, rb_u32 lkey = 0,
                              rb_u32 flags = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    char *p = static_cast<char *>(buf);
    gpu_result all{};
    do {
      rb_u64 piece = len - all.bytes < MAX_PIECE ? len - all.bytes : MAX_PIECE;
      gpu_result r = detail::run(q, detail::recv_entry(session, p + all.bytes, rb_u32(piece), t, lkey, flags), t);
      all = gpu_result{r.status, 0, all.bytes + r.bytes, r.detail};
    } while (all.ok() && all.bytes < len);
    return all;
  });
}

/* Receives the bytes that have arrived, 1 to `len`. At most MAX_PIECE at once. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_recv_some(const rb_queue &q, rb_u32 session, void *buf, rb_u64 len, rb_u32 timeout_us = 0,
                                   rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    rb_u64 piece = len < MAX_PIECE ? len : MAX_PIECE;
    return detail::run(q, detail::recv_entry(session, buf, rb_u32(piece), t, lkey, RB_FLAG_SOME), t);
  });
}

/* Half-close: no more sends from here, receives go on (FIN). */
template <class Scope = thread> RB_DEVICE gpu_result gpu_shutdown(const rb_queue &q, rb_u32 session, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::run(q, detail::make_entry(RB_OP_SHUTDOWN, session, t), t);
  });
}

/* Closes after queued sends; the number is refused from then on. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_close(const rb_queue &q, rb_u32 session, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::run(q, detail::make_entry(RB_OP_CLOSE, session, t), t);
  });
}

/* Resets at once (RST); queued operations retire with ABORTED. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_abort(const rb_queue &q, rb_u32 session, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    return detail::run(q, detail::make_entry(RB_OP_ABORT, session, t), t);
  });
}

/* Copies within the protection domain by NIC DMA, in bursts of `burst` bytes (0: no limit). */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_copy(const rb_queue &q, void *dst, const void *src, rb_u64 len, rb_u32 burst = 0, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    gpu_result all{};
    do {
      rb_u64 piece = len - all.bytes < MAX_PIECE ? len - all.bytes : MAX_PIECE;
      detail::entry e = detail::make_entry(RB_OP_COPY, 0, t);
      detail::set_buffer(e, static_cast<const char *>(src) + all.bytes, piece, 0);
      e.word[3] = reinterpret_cast<rb_u64>(static_cast<char *>(dst) + all.bytes);
      e.word[4] = RB_PUT(WQE_IMM, burst);
      gpu_result r = detail::run(q, e, t);
      all = gpu_result{r.status, 0, all.bytes + r.bytes, r.detail};
    } while (all.ok() && all.bytes < len);
    return all;
  });
}

/* Puts an engine on the path of an established session, from its next byte on (FpgaNIC 3.5). `kind` is a
 * number that the host has registered with the NIC (Nic::register_engine_kind), `parameter` goes to it; or
 * kind 0, and `parameter` is the id of an engine of this protection domain to share. Result: detail is
 * the engine's id. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_engine_attach(const rb_queue &q, rb_u32 session, rb_u32 kind, rb_u64 parameter, bool sending = false,
                                       rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_ENGINE_ATTACH, session, t);
    e.word[4] = RB_PUT(WQE_IMM, (kind & 0xffffu) | (sending ? 1u << 16 : 0u));
    e.word[5] = parameter;
    return detail::run(q, e, t);
  });
}

/* Puts an engine of a registered kind on this queue: it sees the bytes that the queue's operations receive, or send, on
 * any session, from the next byte on. `apart`: every session gets its own engine (gpu_engine_result_of). Otherwise all
 * share one state, and items of `item` bytes are never mixed (1: no such items). Taps only. Result: detail is the
 * engine's id. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_engine_attach_queue(const rb_queue &q, rb_u32 kind, rb_u64 parameter, bool sending = false,
                                             bool apart = false, rb_u32 item = 1, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_ENGINE_ATTACH, q.queue, t);
    rb_u64 imm = RB_PUT(ENGINE_KIND, kind) | RB_PUT(ENGINE_SENDING, sending) | RB_PUT(ENGINE_TARGET, RB_ENGINE_ON_QUEUE) |
                 RB_PUT(ENGINE_APART, apart) | RB_PUT(ENGINE_ITEM, item);
    e.word[4] = RB_PUT(WQE_IMM, imm);
    e.word[5] = parameter;
    return detail::run(q, e, t);
  });
}

/* Writes an engine's result so far to GPU memory; it is there when the call returns. bytes: its length;
 * with RESULT_TOO_LARGE nothing was written and detail is the length that it needs. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_engine_result(const rb_queue &q, rb_u64 engine, void *buf, rb_u32 len, rb_u32 timeout_us = 0,
                                       rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_ENGINE_RESULT, 0, t);
    detail::set_buffer(e, buf, len, lkey);
    e.word[5] = engine;
    return detail::run(q, e, t);
  });
}

/* As gpu_engine_result for one stream of an engine that has a state for each: that of a session, or of a rank. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_engine_result_of(const rb_queue &q, rb_u64 engine, rb_u32 stream, void *buf, rb_u32 len,
                                          rb_u32 timeout_us = 0, rb_u32 lkey = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_ENGINE_RESULT, stream, t);
    detail::set_buffer(e, buf, len, lkey);
    e.word[4] |= RB_PUT(WQE_IMM, 1);
    e.word[5] = engine;
    return detail::run(q, e, t);
  });
}

/* Takes an engine off every path and ends it: ask for its result before. */
template <class Scope = thread> RB_DEVICE gpu_result gpu_engine_detach(const rb_queue &q, rb_u64 engine, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_ENGINE_DETACH, 0, t);
    e.word[5] = engine;
    return detail::run(q, e, t);
  });
}

/* Reads a status register (RB_REG_..., a byte offset) of the NIC. */
RB_DEVICE rb_u32 gpu_read_status_register(const rb_queue &q, rb_u32 reg) {
  return detail::load_relaxed(reinterpret_cast<const rb_u32 *>(q.bar + reg));
}

/* Tells the host `value`: its next event of kind RB_EVENT_MAILBOX has it as `data`. Returns when the NIC has taken it, in order. One thread of all
 * kernels of a NIC at a time: of two that write at once, one's value may be lost. RB_STATUS_TIMED_OUT: the NIC did not take it in time, or the
 * value before; it may still do so. */
RB_DEVICE rb_u32 gpu_mailbox(const rb_queue &q, rb_u32 value, rb_u32 timeout_us = 0) {
  const auto at = [&](rb_u32 reg) { return reinterpret_cast<rb_u32 *>(q.bar + reg); };
  detail::bounded_wait w(detail::effective_timeout(q, timeout_us));
  rb_u32 taken = 0;
  const auto is_free = [&] {
    /* Acquire: pairs with the NIC's Release store of the number, which follows its load of the value before. */
    taken = detail::load_acquire(at(RB_REG_MAILBOX_TAKEN));
    return taken == detail::load_relaxed(at(RB_REG_MAILBOX_RING));
  };
  while (!is_free())
    if (!w.turn()) return RB_STATUS_TIMED_OUT;
  const rb_u32 next = taken + 1;
  detail::store_relaxed(at(RB_REG_MAILBOX_DATA), value);
  detail::order_before_publishing();
  /* Behind the fence: pairs with the NIC's Acquire load of the number. */
  detail::store_relaxed(at(RB_REG_MAILBOX_RING), next);
  while (detail::load_relaxed(at(RB_REG_MAILBOX_TAKEN)) != next)
    if (!w.turn()) return RB_STATUS_TIMED_OUT;
  return RB_STATUS_OK;
}

/* --- non-blocking forms ------------------------------------------------------------------------ */

/* Starts to send at most MAX_PIECE bytes; the buffer is the NIC's until the request is done. */
template <class Scope = thread>
RB_DEVICE gpu_request gpu_isend(const rb_queue &q, rb_u32 session, const void *buf, rb_u64 len, rb_u32 timeout_us = 0,
                                rb_u32 lkey = 0, rb_u32 flags = 0) {
  return detail::scoped<Scope>::template run<gpu_request>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) {
      gpu_request r{};
      r.done = 1;
      r.result = gpu_result{RB_STATUS_BAD_DESCRIPTOR, 0, 0, RB_WQE_LEN_WORD};
      return r;
    }
    return detail::start(q, detail::send_entry(session, buf, rb_u32(len), t, lkey, flags), t);
  });
}

/* Starts to receive at most MAX_PIECE bytes; RB_FLAG_SOME completes with the first of them. */
template <class Scope = thread>
RB_DEVICE gpu_request gpu_irecv(const rb_queue &q, rb_u32 session, void *buf, rb_u64 len, rb_u32 timeout_us = 0,
                                rb_u32 lkey = 0, rb_u32 flags = 0) {
  return detail::scoped<Scope>::template run<gpu_request>([&] {
    rb_u32 t = detail::effective_timeout(q, timeout_us);
    if (len > MAX_PIECE) {
      gpu_request r{};
      r.done = 1;
      r.result = gpu_result{RB_STATUS_BAD_DESCRIPTOR, 0, 0, RB_WQE_LEN_WORD};
      return r;
    }
    return detail::start(q, detail::recv_entry(session, buf, rb_u32(len), t, lkey, flags), t);
  });
}

/* Whether the request is done; never waits. */
template <class Scope = thread> RB_DEVICE bool gpu_test(const rb_queue &q, gpu_request &request) {
  struct answer {
    gpu_request request;
  };
  gpu_request &mine = request;
  answer a = detail::scoped<Scope>::template run<answer>([&] {
    gpu_request r = mine;
    detail::completion c;
    if (!r.done && detail::poll(q, r.ticket, &c)) {
      r.done = 1;
      r.result = detail::result_of(c);
    }
    return answer{r};
  });
  request = a.request;
  return request.done != 0;
}

/* Waits for the request, until its own time-out plus the queue's grace (NIC_SILENT). */
template <class Scope = thread> RB_DEVICE gpu_result gpu_wait(const rb_queue &q, gpu_request &request) {
  gpu_request &mine = request;
  gpu_result result = detail::scoped<Scope>::template run<gpu_result>([&] {
    return mine.done ? mine.result : detail::result_of(detail::wait(q, mine.ticket, mine.timeout_us));
  });
  request.done = 1;
  request.result = result;
  return result;
}

/* Waits until one of the pending requests is done and returns its index, NONE when none was pending.
 * Thread scope only: requests are the calling thread's own. NIC_SILENT is given to the first pending
 * request when the longest of their time-outs has passed. */
RB_DEVICE rb_u32 gpu_wait_any(const rb_queue &q, gpu_request *requests, rb_u32 count) {
  rb_u32 longest = 0, first = NONE;
  for (rb_u32 i = 0; i < count; ++i) {
    if (requests[i].done) continue;
    if (first == NONE) first = i;
    if (gpu_test(q, requests[i])) return i;
    if (requests[i].timeout_us > longest) longest = requests[i].timeout_us;
  }
  if (first == NONE) return NONE;
  detail::bounded_wait w(rb_u64(longest) + q.silent_grace_us);
  for (;;) {
    bool in_time = w.turn();
    for (rb_u32 i = 0; i < count; ++i)
      if (!requests[i].done && gpu_test(q, requests[i])) return i;
    if (!in_time) {
      requests[first].done = 1;
      requests[first].result = detail::failed(RB_STATUS_NIC_SILENT);
      return first;
    }
  }
}

/* Waits for all requests; the first failure's result, or OK with the sum of bytes. It has thread scope: one thread calls it, for
   requests that it has started itself. Requests of a block are waited for one by one, by gpu_wait_block. */
RB_DEVICE gpu_result gpu_wait_all(const rb_queue &q, gpu_request *requests, rb_u32 count) {
  gpu_result all{};
  for (rb_u32 i = 0; i < count; ++i) {
    gpu_result r = gpu_wait(q, requests[i]);
    all.bytes += r.bytes;
    if (all.ok() && !r.ok()) {
      all.status = r.status;
      all.detail = r.detail;
    }
  }
  return all;
}

/* --- the same calls with a suffix --------------------------------------------------------------- */

#define RB_SCOPED_NAMES(type, name)                                                                   \
  template <class... A> RB_DEVICE type name##_warp(const rb_queue &q, A &&...a) {                     \
    return name<warp>(q, static_cast<A &&>(a)...);                                                    \
  }                                                                                                   \
  template <class... A> RB_DEVICE type name##_block(const rb_queue &q, A &&...a) {                    \
    return name<block>(q, static_cast<A &&>(a)...);                                                   \
  }
RB_SCOPED_NAMES(gpu_result, gpu_nop)
RB_SCOPED_NAMES(gpu_result, gpu_socket)
RB_SCOPED_NAMES(gpu_result, gpu_listen)
RB_SCOPED_NAMES(gpu_result, gpu_accept)
RB_SCOPED_NAMES(gpu_result, gpu_connect)
RB_SCOPED_NAMES(gpu_result, gpu_send)
RB_SCOPED_NAMES(gpu_result, gpu_recv)
RB_SCOPED_NAMES(gpu_result, gpu_recv_some)
RB_SCOPED_NAMES(gpu_result, gpu_shutdown)
RB_SCOPED_NAMES(gpu_result, gpu_close)
RB_SCOPED_NAMES(gpu_result, gpu_abort)
RB_SCOPED_NAMES(gpu_result, gpu_copy)
RB_SCOPED_NAMES(gpu_result, gpu_engine_attach)
RB_SCOPED_NAMES(gpu_result, gpu_engine_attach_queue)
RB_SCOPED_NAMES(gpu_result, gpu_engine_result)
RB_SCOPED_NAMES(gpu_result, gpu_engine_result_of)
RB_SCOPED_NAMES(gpu_result, gpu_engine_detach)
RB_SCOPED_NAMES(gpu_request, gpu_isend)
RB_SCOPED_NAMES(gpu_request, gpu_irecv)
RB_SCOPED_NAMES(bool, gpu_test)
RB_SCOPED_NAMES(gpu_result, gpu_wait)
#undef RB_SCOPED_NAMES

} // namespace rb

/* The paper's names, unqualified; define RINGBELL_NO_USING to keep them in namespace rb. */
#ifndef RINGBELL_NO_USING
using rb::gpu_result;
using rb::gpu_request;
using rb::gpu_own_queue;
using rb::gpu_nop;
using rb::gpu_socket;
using rb::gpu_listen;
using rb::gpu_accept;
using rb::gpu_connect;
using rb::gpu_send;
using rb::gpu_recv;
using rb::gpu_recv_some;
using rb::gpu_shutdown;
using rb::gpu_close;
using rb::gpu_abort;
using rb::gpu_copy;
using rb::gpu_engine_attach;
using rb::gpu_engine_attach_queue;
using rb::gpu_engine_result;
using rb::gpu_engine_result_of;
using rb::gpu_engine_detach;
using rb::gpu_isend;
using rb::gpu_irecv;
using rb::gpu_test;
using rb::gpu_wait;
using rb::gpu_nop_warp;
using rb::gpu_socket_warp;
using rb::gpu_listen_warp;
using rb::gpu_accept_warp;
using rb::gpu_connect_warp;
using rb::gpu_send_warp;
using rb::gpu_recv_warp;
using rb::gpu_recv_some_warp;
using rb::gpu_shutdown_warp;
using rb::gpu_close_warp;
using rb::gpu_abort_warp;
using rb::gpu_copy_warp;
using rb::gpu_engine_attach_warp;
using rb::gpu_engine_attach_queue_warp;
using rb::gpu_engine_result_warp;
using rb::gpu_engine_result_of_warp;
using rb::gpu_engine_detach_warp;
using rb::gpu_isend_warp;
using rb::gpu_irecv_warp;
using rb::gpu_test_warp;
using rb::gpu_wait_warp;
using rb::gpu_nop_block;
using rb::gpu_socket_block;
using rb::gpu_listen_block;
using rb::gpu_accept_block;
using rb::gpu_connect_block;
using rb::gpu_send_block;
using rb::gpu_recv_block;
using rb::gpu_recv_some_block;
using rb::gpu_shutdown_block;
using rb::gpu_close_block;
using rb::gpu_abort_block;
using rb::gpu_copy_block;
using rb::gpu_engine_attach_block;
using rb::gpu_engine_attach_queue_block;
using rb::gpu_engine_result_block;
using rb::gpu_engine_result_of_block;
using rb::gpu_engine_detach_block;
using rb::gpu_isend_block;
using rb::gpu_irecv_block;
using rb::gpu_test_block;
using rb::gpu_wait_block;
using rb::gpu_wait_any;
using rb::gpu_wait_all;
using rb::gpu_read_status_register;
using rb::gpu_mailbox;
#endif

#endif /* RINGBELL_CUH */
