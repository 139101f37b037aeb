/* Collectives of kernels: one descriptor and one doorbell start the operation, and the NIC runs it (the
 * off-path model, FpgaNIC §3.4). The kernel's lanes are free, or poll the completion line, meanwhile.
 *
 *   gpu_result r = gpu_all_reduce<rb::block>(comm, gradients, sums, count);       // blocking
 *   gpu_request q = gpu_iall_reduce(comm, gradients, sums, count);                // as a request
 *   ... compute ...
 *   r = gpu_wait(comm, q);
 *
 * `rb_comm` is plain data: a communicator of the NIC, and the queue that operations are posted on.
 * `Communicator::handle` in Rust makes it, rb_comm_kernel_handle in C. Counts are in elements; for scatter, gather, all-gather,
 * reduce-scatter and all-to-all they are per rank (per block). Every rank of the communicator must call
 * the same operations in the same order; ranks that disagree get MISMATCH with the rank that differs.
 *
 * Scopes, time-outs and requests are as in ringbell.cuh. Operations of one queue run side by side unless
 * `options.after` or `options.fence` orders them; the NIC chains them, no lane waits in between.
 */
#ifndef RINGBELL_COLLECTIVE_CUH
#define RINGBELL_COLLECTIVE_CUH

#include "ringbell.cuh"
#include "ringbell_comm_handle.h"
#include "ringbell_stream.cuh"

namespace rb {

/* The communicator with a queue for block `i`, of those that its option `block_queues` asks for; without any, the communicator as it is.
 * Slots of a queue are used again in order, so on a shared one the oldest operation that waits holds up every block a depth behind it:
 * blocks that wait for each other's messages need a queue each. Requests belong to the copy that posted them.
 *
 *   rb_comm mine = gpu_comm_queue(comm, blockIdx.x);
 */
RB_DEVICE rb_comm gpu_comm_queue(const rb_comm &c, rb_u32 i) {
  rb_comm mine = c;
  if (!c.block_queue_count) return mine;
  mine.queue = reinterpret_cast<const rb_queue *>(c.block_queues)[i % c.block_queue_count];
  return mine;
}

/* Options of a call; all zero is the communicator's default. */
struct collective_options {
  rb_u32 timeout_us = 0;
  rb_u32 algo = 0;                    /* RB_ALGO_... */
  rb_u32 wire = 0;                    /* RB_WIRE_...: type of f32 elements on the wire */
  const gpu_request *after = nullptr; /* starts when this request of the same queue has ended well */
  rb_u32 fence = 0;                   /* 1: starts when all earlier operations of the queue have ended */
  rb_u32 port = 0;                    /* of a streamed collective, at most RB_MAX_PORT: see the streamed forms */
};

/* Where an engine stands at a communicator. Sources and results pass it in order, once, before the operation begins and
 * before it completes; messages as they leave and come, each peer's in order. */
enum engine_place : rb_u32 {
  engine_output = 0,
  engine_input = 1,
  engine_received = 2,
  engine_sent = 3,
};

/* Puts an engine of a registered kind at a communicator: it sees the operations that queues of this protection domain post
 * after it, or all messages from the next byte on. `apart` (messages only): a state for each peer, for gpu_engine_result_of
 * with the peer's rank. Items of `item` bytes of different operations or peers are never mixed. Taps only. Result: detail
 * is the engine's id, for gpu_engine_result and gpu_engine_detach. */
template <class Scope = thread>
RB_DEVICE gpu_result gpu_engine_attach_comm(const rb_comm &c, engine_place place, rb_u32 kind, rb_u64 parameter, bool apart = false,
                                            rb_u32 item = 1, rb_u32 timeout_us = 0) {
  return detail::scoped<Scope>::template run<gpu_result>([&] {
    rb_u32 t = detail::effective_timeout(c.queue, timeout_us);
    detail::entry e = detail::make_entry(RB_OP_ENGINE_ATTACH, c.comm, t);
    rb_u64 imm = RB_PUT(ENGINE_KIND, kind) | RB_PUT(ENGINE_SENDING, place & 1) | RB_PUT(ENGINE_TARGET, RB_ENGINE_ON_COMMUNICATOR) |
                 RB_PUT(ENGINE_APART, apart) | RB_PUT(ENGINE_WIRE, place >> 1) | RB_PUT(ENGINE_ITEM, item);
    e.word[4] = RB_PUT(WQE_IMM, imm);
    e.word[5] = parameter;
    return detail::run(c.queue, e, t);
  });
}

namespace detail {

/* The fields of a collective's descriptor. */
struct collective_call {
  rb_u32 kind;
  const void *src;
  void *dst;
  rb_u64 count;
  rb_u32 dtype;
  rb_u32 op;
  rb_u32 root; /* or the peer of a send or receive */
  rb_u32 tag;
  rb_u64 streams = 0; /* bits of word 2: which operands are kernels' streams */
};

/* Streamed, with these operands. */
RB_DEVICE rb_u64 streams_of(const operand &src, const operand &dst) {
  return RB_PUT(COLL_STREAMED, 1) | RB_PUT(COLL_FROM_STREAM, src.is_stream) | RB_PUT(COLL_TO_STREAM, dst.is_stream);
}

RB_DEVICE entry collective_entry(const rb_comm &c, const collective_call &k, const collective_options &o, rb_u32 timeout_us) {
  entry e = make_entry(RB_OP_COLLECTIVE, c.comm, timeout_us, o.fence ? RB_FLAG_FENCE : 0);
  /* Defaults are for operations that can have them: a barrier has no ring, and only f32 another type on the wire. */
  bool has_algo = k.kind < 16 && (c.defaults >> (16 + k.kind) & 1);
  bool is_message = k.kind == RB_COLL_STREAM_SEND || k.kind == RB_COLL_STREAM_RECV;
  bool has_wire = k.dtype == RB_DTYPE_F32 && !is_message;
  rb_u32 tag = k.streams && !is_message ? o.port : k.tag;
  rb_u32 algo = o.algo ? o.algo : has_algo ? c.defaults & 0xff : RB_ALGO_AUTO;
  rb_u32 wire = o.wire ? o.wire : has_wire ? c.defaults >> 8 & 0xff : RB_WIRE_SAME;
  e.word[1] = reinterpret_cast<rb_u64>(k.src);
  e.word[2] = RB_PUT(COLL_WIRE, wire) | RB_PUT(WQE_LKEY, tag) | k.streams;
  e.word[3] = reinterpret_cast<rb_u64>(k.dst);
  e.word[4] = RB_PUT(COLL_KIND, k.kind) | RB_PUT(COLL_DTYPE, k.dtype) | RB_PUT(COLL_REDOP, k.op) | RB_PUT(COLL_ALGO, algo) |
              RB_PUT(WQE_RKEY, k.root);
  e.word[5] = k.count;
  return e;
}

/* Posts; the distance to the predecessor is known only when the ticket is. */
RB_DEVICE gpu_request start_collective(const rb_comm &c, const collective_call &k, const collective_options &o, bool may_wait) {
  gpu_request r{};
  r.timeout_us = effective_timeout(c.queue, o.timeout_us);
  entry e = collective_entry(c, k, o, r.timeout_us);
  bool chained = o.after && !o.after->done;
  if (o.after && o.after->done && o.after->result.status != RB_STATUS_OK) {
    r.done = 1; /* what it was to follow has failed */
    r.result = o.after->result;
    return r;
  }
  bounded_wait w(r.timeout_us);
  while (!take_ticket(c.queue, &r.ticket)) {
    if (!may_wait || !w.turn()) {
      r.done = 1;
      r.result = queue_full(c.queue);
      return r;
    }
  }
  if (chained) e.word[2] |= RB_PUT(COLL_AFTER, r.ticket - o.after->ticket);
  publish(c.queue, r.ticket, e);
  return r;
}

template <class Scope>
RB_DEVICE gpu_result run_collective(const rb_comm &c, const collective_call &k, const collective_options &o) {
  return scoped<Scope>::template run<gpu_result>([&] {
    gpu_request r = start_collective(c, k, o, true);
    return r.done ? r.result : result_of(wait(c.queue, r.ticket, r.timeout_us));
  });
}

template <class Scope>
RB_DEVICE gpu_request post_collective(const rb_comm &c, const collective_call &k, const collective_options &o) {
  return scoped<Scope>::template run<gpu_request>([&] { return start_collective(c, k, o, false); });
}

} // namespace detail

/* RB_DTYPE_... of an element type that C++ has. */
template <class T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr rb_u32 value = RB_DTYPE_F32; };
template <> struct dtype_of<double> { static constexpr rb_u32 value = RB_DTYPE_F64; };
template <> struct dtype_of<signed char> { static constexpr rb_u32 value = RB_DTYPE_I8; };
template <> struct dtype_of<unsigned char> { static constexpr rb_u32 value = RB_DTYPE_U8; };
template <> struct dtype_of<short> { static constexpr rb_u32 value = RB_DTYPE_I16; };
template <> struct dtype_of<unsigned short> { static constexpr rb_u32 value = RB_DTYPE_U16; };
template <> struct dtype_of<int> { static constexpr rb_u32 value = RB_DTYPE_I32; };
template <> struct dtype_of<unsigned> { static constexpr rb_u32 value = RB_DTYPE_U32; };
template <> struct dtype_of<long long> { static constexpr rb_u32 value = RB_DTYPE_I64; };
template <> struct dtype_of<unsigned long long> { static constexpr rb_u32 value = RB_DTYPE_U64; };
template <> struct dtype_of<long> { static constexpr rb_u32 value = sizeof(long) == 8 ? RB_DTYPE_I64 : RB_DTYPE_I32; };
template <> struct dtype_of<unsigned long> { static constexpr rb_u32 value = sizeof(long) == 8 ? RB_DTYPE_U64 : RB_DTYPE_U32; };

/* --- every operation, blocking and as a request -------------------------------------------------- */

/* Defines gpu_NAME (blocking), gpu_iNAME (request), and both with the suffixes _warp and _block. */
#define RB_COLLECTIVE(name, PARAMETERS, ARGUMENTS, CALL)                                                                  \
  template <class Scope = thread> RB_DEVICE gpu_result gpu_##name PARAMETERS {                                            \
    return detail::run_collective<Scope>(c, detail::collective_call CALL, options);                                       \
  }                                                                                                                       \
  template <class Scope = thread> RB_DEVICE gpu_request gpu_i##name PARAMETERS {                                          \
    return detail::post_collective<Scope>(c, detail::collective_call CALL, options);                                      \
  }                                                                                                                       \
  RB_DEVICE gpu_result gpu_##name##_warp PARAMETERS { return gpu_##name<warp> ARGUMENTS; }                         \
  RB_DEVICE gpu_result gpu_##name##_block PARAMETERS { return gpu_##name<block> ARGUMENTS; }                       \
  RB_DEVICE gpu_request gpu_i##name##_warp PARAMETERS { return gpu_i##name<warp> ARGUMENTS; }                      \
  RB_DEVICE gpu_request gpu_i##name##_block PARAMETERS { return gpu_i##name<block> ARGUMENTS; }
#define RB_LIST(...) (__VA_ARGS__)
#define RB_CALL(...) {__VA_ARGS__}

/* The reduction of every rank's `count` elements, to every rank. `src == dst`: in place. */
RB_COLLECTIVE(all_reduce,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      rb_u32 op = RB_REDOP_SUM, const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, op, options),
              RB_CALL(RB_COLL_ALL_REDUCE, src, dst, count, dtype, op, 0, 0))

/* Block r of the reduction to rank r; `src` has size * count elements. */
RB_COLLECTIVE(reduce_scatter,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      rb_u32 op = RB_REDOP_SUM, const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, op, options),
              RB_CALL(RB_COLL_REDUCE_SCATTER, src, dst, count, dtype, op, 0, 0))

/* Every rank's `count` elements to block r of every `dst`. */
RB_COLLECTIVE(all_gather,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, options),
              RB_CALL(RB_COLL_ALL_GATHER, src, dst, count, dtype, RB_REDOP_SUM, 0, 0))

/* The root's `src` to every rank's `dst`. */
RB_COLLECTIVE(broadcast,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, root, options),
              RB_CALL(RB_COLL_BROADCAST, src, dst, count, dtype, RB_REDOP_SUM, root, 0))

/* The reduction to the root's `dst`. */
RB_COLLECTIVE(reduce,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 op, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, op, root, options),
              RB_CALL(RB_COLL_REDUCE, src, dst, count, dtype, op, root, 0))

/* Block r of the root's `src` to rank r. */
RB_COLLECTIVE(scatter,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, root, options),
              RB_CALL(RB_COLL_SCATTER, src, dst, count, dtype, RB_REDOP_SUM, root, 0))

/* Every rank's `src` to block r of the root's `dst`. */
RB_COLLECTIVE(gather,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, root, options),
              RB_CALL(RB_COLL_GATHER, src, dst, count, dtype, RB_REDOP_SUM, root, 0))

/* Block j of rank i's `src` to block i of rank j's `dst`. */
RB_COLLECTIVE(all_to_all,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, options),
              RB_CALL(RB_COLL_ALL_TO_ALL, src, dst, count, dtype, RB_REDOP_SUM, 0, 0))

/* Returns when every rank has come. */
RB_COLLECTIVE(barrier, RB_LIST(const rb_comm &c, const collective_options &options = collective_options()),
              RB_LIST(c, options), RB_CALL(RB_COLL_BARRIER, nullptr, nullptr, 0, RB_DTYPE_U8, RB_REDOP_SUM, 0, 0))

/* `count` elements to a rank, with a tag. */
RB_COLLECTIVE(comm_send,
              RB_LIST(const rb_comm &c, const void *src, rb_u64 count, rb_u32 dtype, rb_u32 peer, rb_u32 tag = 0,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, count, dtype, peer, tag, options),
              RB_CALL(RB_COLL_SEND, src, nullptr, count, dtype, RB_REDOP_SUM, peer, tag))

/* At most `count` elements from a rank (RB_ANY_RANK), with a tag (RB_ANY_TAG); `result.bytes` says how many bytes. */
RB_COLLECTIVE(comm_recv,
              RB_LIST(const rb_comm &c, void *dst, rb_u64 count, rb_u32 dtype, rb_u32 peer, rb_u32 tag = 0,
                      const collective_options &options = collective_options()),
              RB_LIST(c, dst, count, dtype, peer, tag, options),
              RB_CALL(RB_COLL_RECV, nullptr, dst, count, dtype, RB_REDOP_SUM, peer, tag))

/* dst = src, by the NIC. */
RB_COLLECTIVE(comm_copy,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, options),
              RB_CALL(RB_COLL_COPY, src, dst, count, dtype, RB_REDOP_SUM, 0, 0))

/* dst = dst op src, by the NIC. */
RB_COLLECTIVE(combine,
              RB_LIST(const rb_comm &c, const void *src, void *dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      rb_u32 op = RB_REDOP_SUM, const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, op, options),
              RB_CALL(RB_COLL_COMBINE, src, dst, count, dtype, op, 0, 0))

/* Nothing: ends when what it follows has (`options.after`, `options.fence`). */
RB_COLLECTIVE(comm_nop, RB_LIST(const rb_comm &c, const collective_options &options = collective_options()),
              RB_LIST(c, options), RB_CALL(RB_COLL_NOP, nullptr, nullptr, 0, RB_DTYPE_U8, RB_REDOP_SUM, 0, 0))

/* --- the same with kernels' streams (ringbell_stream.cuh) ----------------------------------------
 *
 * `src` and `dst` are each a stream (rb_stream_handle) or memory, as this rank likes; all ranks call the streamed
 * form. A stream stands for a whole buffer of `count` elements, in order. At the root of a scatter or gather it
 * stands for the blocks of all ranks, one after the other by rank; in all-gather and reduce-scatter the side with
 * a block for each rank must be memory. Results are those of the other form, to the bit. Elements of a collective
 * move in windows of the setting `stream_bytes`.
 *
 * Collectives of one port (`options.port`) are one order, the same on all ranks, and those of different ports are not
 * (SMI's ports): blocks that know nothing of each other open channels in any order, and run them side by side. Port 0
 * is in the order of all operations without streams. A rank that never opens what others wait for is not named. */

/* `count` elements to a rank; the peer calls gpu_stream_recv with the same count, type and tag. */
RB_COLLECTIVE(stream_send,
              RB_LIST(const rb_comm &c, operand src, rb_u64 count, rb_u32 dtype, rb_u32 peer, rb_u32 tag = 0,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, count, dtype, peer, tag, options),
              RB_CALL(RB_COLL_STREAM_SEND, src.at, nullptr, count, dtype, RB_REDOP_SUM, peer, tag,
                      detail::streams_of(src, operand(nullptr))))

/* `count` elements from a rank that calls gpu_stream_send. */
RB_COLLECTIVE(stream_recv,
              RB_LIST(const rb_comm &c, operand dst, rb_u64 count, rb_u32 dtype, rb_u32 peer, rb_u32 tag = 0,
                      const collective_options &options = collective_options()),
              RB_LIST(c, dst, count, dtype, peer, tag, options),
              RB_CALL(RB_COLL_STREAM_RECV, nullptr, dst.at, count, dtype, RB_REDOP_SUM, peer, tag,
                      detail::streams_of(operand(nullptr), dst)))

RB_COLLECTIVE(stream_all_reduce,
              RB_LIST(const rb_comm &c, operand src, operand dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      rb_u32 op = RB_REDOP_SUM, const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, op, options),
              RB_CALL(RB_COLL_ALL_REDUCE, src.at, dst.at, count, dtype, op, 0, 0, detail::streams_of(src, dst)))

/* `src` has a block for each rank: memory. */
RB_COLLECTIVE(stream_reduce_scatter,
              RB_LIST(const rb_comm &c, const void *src, operand dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      rb_u32 op = RB_REDOP_SUM, const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, op, options),
              RB_CALL(RB_COLL_REDUCE_SCATTER, src, dst.at, count, dtype, op, 0, 0, detail::streams_of(operand(src), dst)))

/* `dst` has a block of each rank: memory. */
RB_COLLECTIVE(stream_all_gather,
              RB_LIST(const rb_comm &c, operand src, void *dst, rb_u64 count, rb_u32 dtype = RB_DTYPE_F32,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, options),
              RB_CALL(RB_COLL_ALL_GATHER, src.at, dst, count, dtype, RB_REDOP_SUM, 0, 0, detail::streams_of(src, operand(dst))))

RB_COLLECTIVE(stream_broadcast,
              RB_LIST(const rb_comm &c, operand src, operand dst, rb_u64 count, rb_u32 dtype, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, root, options),
              RB_CALL(RB_COLL_BROADCAST, src.at, dst.at, count, dtype, RB_REDOP_SUM, root, 0, detail::streams_of(src, dst)))

RB_COLLECTIVE(stream_reduce,
              RB_LIST(const rb_comm &c, operand src, operand dst, rb_u64 count, rb_u32 dtype, rb_u32 op, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, op, root, options),
              RB_CALL(RB_COLL_REDUCE, src.at, dst.at, count, dtype, op, root, 0, detail::streams_of(src, dst)))

/* The root pushes the blocks of all ranks, its own among them, in the order of the ranks; each rank pops its block. */
RB_COLLECTIVE(stream_scatter,
              RB_LIST(const rb_comm &c, operand src, operand dst, rb_u64 count, rb_u32 dtype, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, root, options),
              RB_CALL(RB_COLL_SCATTER, src.at, dst.at, count, dtype, RB_REDOP_SUM, root, 0, detail::streams_of(src, dst)))

/* Each rank pushes its block; the root pops all of them, in the order of the ranks. With an algorithm in `options` that is
 * not RB_ALGO_FLAT the root's blocks must be memory. */
RB_COLLECTIVE(stream_gather,
              RB_LIST(const rb_comm &c, operand src, operand dst, rb_u64 count, rb_u32 dtype, rb_u32 root,
                      const collective_options &options = collective_options()),
              RB_LIST(c, src, dst, count, dtype, root, options),
              RB_CALL(RB_COLL_GATHER, src.at, dst.at, count, dtype, RB_REDOP_SUM, root, 0, detail::streams_of(src, dst)))

#undef RB_COLLECTIVE
#undef RB_LIST
#undef RB_CALL

/* Requests of a communicator are requests of its queue. */
template <class Scope = thread> RB_DEVICE bool gpu_test(const rb_comm &c, gpu_request &request) {
  return gpu_test<Scope>(c.queue, request);
}
template <class Scope = thread> RB_DEVICE gpu_result gpu_wait(const rb_comm &c, gpu_request &request) {
  return gpu_wait<Scope>(c.queue, request);
}
RB_DEVICE gpu_result gpu_wait_all(const rb_comm &c, gpu_request *requests, rb_u32 count) {
  return gpu_wait_all(c.queue, requests, count);
}

} // namespace rb

#ifndef RINGBELL_NO_USING
#define RB_USING(name)          \
  using rb::gpu_##name;         \
  using rb::gpu_i##name;        \
  using rb::gpu_##name##_warp;  \
  using rb::gpu_##name##_block; \
  using rb::gpu_i##name##_warp; \
  using rb::gpu_i##name##_block;
RB_USING(all_reduce)
RB_USING(reduce_scatter)
RB_USING(all_gather)
RB_USING(broadcast)
RB_USING(reduce)
RB_USING(scatter)
RB_USING(gather)
RB_USING(all_to_all)
RB_USING(barrier)
RB_USING(comm_send)
RB_USING(comm_recv)
RB_USING(comm_copy)
RB_USING(combine)
RB_USING(comm_nop)
RB_USING(stream_send)
RB_USING(stream_recv)
RB_USING(stream_all_reduce)
RB_USING(stream_reduce_scatter)
RB_USING(stream_all_gather)
RB_USING(stream_broadcast)
RB_USING(stream_reduce)
RB_USING(stream_scatter)
RB_USING(stream_gather)
#undef RB_USING
using rb::gpu_comm_queue;
using rb::gpu_engine_attach_comm;
using rb::gpu_test;
using rb::gpu_wait;
using rb::gpu_wait_all;
#endif

#endif /* RINGBELL_COLLECTIVE_CUH */
