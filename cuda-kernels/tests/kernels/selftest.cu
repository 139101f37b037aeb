// Kernels of tests, built as a user's module would be: as PTX for the emulated GPU, by nvcc for a real one.
#include "ringbell_collective.cuh"

// Every blocking call once, one result each.
extern "C" __global__ void t_api(rb_queue q, unsigned char *buf, gpu_result *out) {
  int i = 0;
  out[i++] = gpu_nop(q);
  gpu_result s = gpu_socket(q);
  out[i++] = s;
  out[i++] = gpu_listen(q, s.session, 4791, 7);
  out[i++] = gpu_accept(q, s.session);
  out[i++] = gpu_connect(q, s.session, 0x0a000002, 80, 123456);
  out[i++] = gpu_connect(q, s.session, 0xdead, 80);
  out[i++] = gpu_send(q, s.session, buf, 100, 0, 0x80000001u);
  out[i++] = gpu_send(q, s.session, buf + 1, 39);
  out[i++] = gpu_recv(q, s.session, buf + 200, 100);
  out[i++] = gpu_recv_some(q, s.session, buf + 300, 1000);
  out[i++] = gpu_recv_some(q, s.session, buf + 400, 1000, 2000);
  out[i++] = gpu_copy(q, buf + 2000, buf, 1000, 64);
  out[i++] = gpu_shutdown(q, s.session);
  out[i++] = gpu_close(q, s.session);
  out[i++] = gpu_close(q, s.session);
  out[i++] = gpu_abort(q, 77);
  out[i] = gpu_result{gpu_read_status_register(q, RB_REG_MAGIC), 0, 0, 0};
  out[i].status = out[i].status == RB_MAGIC ? RB_STATUS_OK : RB_STATUS_UNSUPPORTED;
}

// Inline payloads of every length and alignment come back unchanged.
extern "C" __global__ void t_inline(rb_queue q, unsigned char *buf, rb_u64 *wrong) {
  for (rb_u32 len = 1; len <= RB_INLINE_MAX + 2; ++len)
    for (rb_u32 shift = 0; shift < 9; ++shift) {
      for (rb_u32 i = 0; i < len; ++i) buf[shift + i] = (unsigned char)(len * 7 + i * 13 + 128);
      gpu_result s = gpu_send(q, 9, buf + shift, len);
      gpu_result r = gpu_recv(q, 9, buf + 256, len);
      *wrong += !s.ok() || !r.ok() || s.bytes != len;
      for (rb_u32 i = 0; i < len; ++i) *wrong += buf[256 + i] != buf[shift + i];
    }
}

// Requests of a queue that one thread has, waited for in any order, past the end of the ring and of the tickets;
// then too many at once. `out`: failures, statuses of the last two.
extern "C" __global__ void t_own_out_of_order(rb_queue q, rb_u32 rounds, rb_u32 *out) {
  rb_queue own = gpu_own_queue(q);
  rb_u32 failed = own.own != 1, depth = 1u << q.depth_log2;
  gpu_request r[8];
  for (rb_u32 i = 0; i < rounds; ++i) {
    rb_u32 n = 1 + i % depth;
    for (rb_u32 k = 0; k < n; ++k) r[k] = gpu_isend(own, 9, out + 8, 8);
    for (rb_u32 k = 0; k < n; ++k) failed += !gpu_wait(own, r[(k * 3 + i) % n]).ok();
    for (rb_u32 k = 0; k < n; ++k) failed += !gpu_wait(own, r[k]).ok(); // those that the order above has left
  }
  for (rb_u32 k = 0; k < depth; ++k) r[k] = gpu_isend(own, 9, out + 8, 8);
  gpu_request more = gpu_isend(own, 9, out + 8, 8);
  out[1] = gpu_wait(own, more).status;
  // While operations are under way no thread becomes the queue's only user.
  out[3] = gpu_own_queue(q).own;
  for (rb_u32 k = 0; k < depth; ++k) failed += !gpu_wait(own, r[k]).ok();
  out[2] = gpu_nop(q).status;
  out[0] = failed;
}

// Requests: any order, all, test.
extern "C" __global__ void t_requests(rb_queue q, unsigned char *buf, rb_u32 *out) {
  gpu_request r[4];
  for (rb_u32 i = 0; i < 4; ++i) r[i] = gpu_irecv(q, 20 + i, buf + 64 * i, 64);
  out[0] = gpu_test(q, r[0]) + gpu_test(q, r[3]);
  gpu_request s[4];
  for (rb_u32 i = 0; i < 4; ++i) {
    rb_u32 to = i == 0 ? 2 : i == 1 ? 0 : i == 2 ? 3 : 1;
    s[i] = gpu_isend(q, 20 + to, buf + 1024 + 64 * to, 64);
    out[1 + i] = gpu_wait_any(q, r, 4); // only the one that was fed can be done
  }
  out[5] = gpu_wait_any(q, r, 4);
  gpu_result all = gpu_wait_all(q, s, 4);
  out[6] = all.status;
  out[7] = rb_u32(all.bytes);
  rb_u32 wrong = 0;
  for (rb_u32 i = 0; i < 256; ++i) wrong += buf[i] != buf[1024 + i];
  out[8] = wrong;
  gpu_request big = gpu_isend(q, 20, buf, 0x100000000ull);
  out[9] = gpu_wait(q, big).status;
}

// More requests than the queue is deep: QUEUE_FULL at once; a blocking call: after its time-out.
extern "C" __global__ void t_full(rb_queue q, unsigned char *buf, rb_u32 *out) {
  gpu_request r[9];
  for (rb_u32 i = 0; i < 9; ++i) r[i] = gpu_irecv(q, 30, buf + i, 1, 60000000);
  out[0] = r[7].done;
  out[1] = r[8].done;
  out[2] = r[8].result.status;
  out[3] = gpu_nop(q, 2000).status;
  // The receives keep their slots until they end.
  out[4] = *reinterpret_cast<rb_u32 *>(q.tail);
}

// One call; for silence and rubbish.
extern "C" __global__ void t_one(rb_queue q, rb_u32 timeout_us, gpu_result *out) { *out = gpu_nop(q, timeout_us); }

// Warp and block scope: every lane gets the same result, and sees the received bytes.
extern "C" __global__ void t_scopes(rb_queue q, unsigned char *buf, rb_u64 len, unsigned *wrong) {
  unsigned me = rb::detail::thread_index(), n = blockDim.x * blockDim.y * blockDim.z;
  for (rb_u64 i = me; i < len; i += n) buf[i] = (unsigned char)(i * 7 + 3);
  gpu_result s = gpu_send_block(q, 40, buf, len);
  gpu_result r = gpu_recv<rb::block>(q, 40, buf + len, len);
  unsigned bad = !s.ok() || !r.ok() || r.bytes != len;
  for (rb_u64 i = me; i < len; i += n) bad += buf[len + i] != (unsigned char)(i * 7 + 3);
  // Each warp echoes through a session of its own.
  unsigned w = me / 32;
  unsigned char *mine = buf + 2 * len + 128 * w;
  mine[me % 32] = (unsigned char)me;
  gpu_request request = gpu_isend_warp(q, 50 + w, mine, n - w * 32 < 32 ? n - w * 32 : 32);
  gpu_result ws = gpu_wait<rb::warp>(q, request);
  gpu_result wr = gpu_recv_warp(q, 50 + w, mine + 64, ws.bytes);
  bad += !ws.ok() || !wr.ok() || mine[64 + me % 32] != (unsigned char)me;
  if (bad) atomicAdd(wrong, bad);
}

// Several blocks and lanes share one queue.
extern "C" __global__ void t_shared_queue(rb_queue q, rb_u32 rounds, unsigned long long *ok) {
  unsigned long long mine = 0;
  for (rb_u32 i = 0; i < rounds; ++i) mine += gpu_nop(q).ok();
  atomicAdd(ok, mine);
}

// --- the emulator itself ---------------------------------------------------------------------------

extern "C" __global__ void t_indices(unsigned *out) {
  unsigned lanes = blockDim.x * blockDim.y * blockDim.z;
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  out[block * lanes + rb::detail::thread_index()] =
      threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z;
}

// Barriers, shared memory, shuffles and votes; the sum over the block by two independent ways.
extern "C" __global__ void t_collectives(unsigned *out) {
  __shared__ unsigned cell[1024];
  __shared__ unsigned warps[32];
  unsigned me = threadIdx.x, n = blockDim.x, bad = 0;
  cell[me] = me * me;
  __syncthreads();
  unsigned other = cell[n - 1 - me];
  bad += other != (n - 1 - me) * (n - 1 - me);
  unsigned mask = rb::detail::warp_mask(), in_warp = me % 32, live = __popc(mask);
  unsigned sum = me;
  for (int d = 16; d; d /= 2) {
    unsigned up = __shfl_down_sync(mask, sum, d);
    if (in_warp + d < live) sum += up;
  }
  if (in_warp == 0) warps[me / 32] = sum;
  bad += __shfl_sync(mask, me, 0) != (me & ~31u);
  // What comes from a lane that is not there is undefined.
  unsigned across = __shfl_xor_sync(mask, me, 1);
  bad += (in_warp ^ 1) < live && across != (me ^ 1);
  bad += __shfl_up_sync(mask, me, 1) != (in_warp ? me - 1 : me);
  bad += __ballot_sync(mask, in_warp % 3 == 0) != (0x49249249u & mask);
  bad += __any_sync(mask, in_warp == live - 1) != 1;
  bad += __all_sync(mask, in_warp < live - 1) != 0;
  // Two halves of a warp, each with a mask of its own and at its own pace.
  unsigned half = mask & (in_warp < 16 ? 0xffffu : 0xffff0000u);
  for (unsigned i = 0; i < (in_warp < 16 ? 3u : 5u); ++i) bad += __shfl_sync(half, me, in_warp < 16 ? 0 : 16) != (me & ~15u);
  __syncwarp(mask);
  bad += __syncthreads_count(me % 5 == 0) != int((n + 4) / 5);
  bad += __syncthreads_or(me == n - 1) != 1;
  bad += __syncthreads_and(me != 0) != 0;
  if (me == 0) {
    unsigned total = 0;
    for (unsigned w = 0; w < (n + 31) / 32; ++w) total += warps[w];
    bad += total != n * (n - 1) / 2;
  }
  if (me == 1) return; // lanes that have returned do not hold up the others
  __syncthreads();
  if (bad) atomicAdd(out, bad);
}

// A spin lock between the lanes of a block.
extern "C" __global__ void t_lock(unsigned *lock, unsigned *count) {
  while (atomicCAS(lock, 0u, 1u) != 0) {}
  __threadfence();
  *count += 1;
  __threadfence();
  atomicExch(lock, 0u);
}

extern "C" __global__ void t_divergent() {
  if (threadIdx.x % 32 == 0)
    __syncthreads();
  else
    __syncwarp(0xffffffffu);
}

extern "C" __global__ void t_trap() {
  if (threadIdx.x == blockDim.x - 1) __trap();
  __syncthreads();
}

// Runs until the host stores 1.
extern "C" __global__ void t_forever(rb_u32 *flag) {
  while (rb::detail::load_acquire(flag) == 0) __nanosleep(1000);
}

// Blocks that wait for each other: all must run at once.
extern "C" __global__ void t_meet(unsigned *arrived) {
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1u);
    while (atomicAdd(arrived, 0u) < gridDim.x) __nanosleep(100);
  }
  __syncthreads();
}

struct big_argument {
  rb_u64 word[40];
};
extern "C" __global__ void t_arguments(char c, big_argument b, float f, double d, rb_u64 *out) {
  out[0] = rb_u64(c);
  out[1] = b.word[39];
  out[2] = rb_u64(f * 2);
  out[3] = rb_u64(d * 4);
}

// Chains: the second follows the first, the third the second, the fourth everything.
extern "C" __global__ void t_chain(rb_comm c, gpu_result *out) {
  float x[4] = {};
  gpu_request a = gpu_iall_reduce(c, x, x, 4);
  rb::collective_options o;
  o.after = &a;
  gpu_request b = gpu_ibroadcast(c, x, x, 4, rb::dtype_of<float>::value, 1, o);
  o.after = &b;
  gpu_request d = gpu_icomm_send(c, x, 4, RB_DTYPE_F32, 3, 7, o);
  out[0] = gpu_wait(c, a);
  out[1] = gpu_wait(c, b);
  out[2] = gpu_wait(c, d);
  rb::collective_options fence;
  fence.fence = 1;
  out[3] = gpu_comm_nop(c, fence);
}

extern "C" __global__ void t_collective_scopes(rb_comm c, gpu_result *out) {
  float x[4] = {};
  if (threadIdx.x == 0) out[0] = gpu_result{};
  gpu_result r = gpu_barrier_block(c);
  gpu_result s = gpu_all_reduce_warp(c, x, x, 4);
  __syncthreads();
  if (!r.ok() || !s.ok() || c.rank != 2 || c.size != 5) atomicAdd(reinterpret_cast<unsigned long long *>(&out[0].bytes), 1ull);
}

// Streams: block 0 pushes `count` elements made from their numbers, block 1 pops what comes back and looks at
// it. `out[0]` and `out[1]` are how they ended; `wrong` counts elements that are not the ones expected.
template <class T> RB_DEVICE T element(rb_u64 i) { return T(i * 2654435761u + 7); }
template <class Scope, class T>
RB_DEVICE void stream_ends(rb_queue q, rb_stream_handle to, rb_stream_handle from, rb_u64 count, rb_u32 timeout_us, gpu_result *out, unsigned *wrong) {
  gpu_result r{};
  if (blockIdx.x == 0) {
    gpu_pusher p(to);
    // One by one, and many at once.
    r = gpu_stream_push<Scope>(q, p, element<T>(0), timeout_us);
    if (r.ok()) r = gpu_stream_push_each<Scope>(q, p, count - 1, [](rb_u64 i) { return element<T>(i + 1); }, timeout_us);
  } else {
    gpu_popper p(from);
    T first{};
    r = gpu_stream_pop<Scope>(q, p, &first, timeout_us);
    if (r.ok() && first != element<T>(0)) atomicAdd(wrong, 1u);
    auto look = [&](rb_u64 i, T v) {
      if (v != element<T>(i + 1)) atomicAdd(wrong, 1u);
    };
    if (r.ok()) r = gpu_stream_pop_each<Scope, T>(q, p, count - 1, look, timeout_us);
  }
  if (threadIdx.x == 0) out[blockIdx.x] = r;
}
extern "C" __global__ void t_stream(rb_queue q, rb_stream_handle to, rb_stream_handle from, rb_u64 count, rb_u32 bytes, rb_u32 timeout_us,
                                    gpu_result *out, unsigned *wrong) {
  if (blockDim.x == 1) {
    if (bytes == 1) return stream_ends<rb::thread, unsigned char>(q, to, from, count, timeout_us, out, wrong);
    return stream_ends<rb::thread, double>(q, to, from, count, timeout_us, out, wrong);
  }
  if (blockDim.x <= 32) return stream_ends<rb::warp, unsigned>(q, to, from, count, timeout_us, out, wrong);
  if (bytes == 8) return stream_ends<rb::block, double>(q, to, from, count, timeout_us, out, wrong);
  stream_ends<rb::block, unsigned>(q, to, from, count, timeout_us, out, wrong);
}

// What the streamed operations post.
extern "C" __global__ void t_streamed(rb_comm c, rb_stream_handle s, void *memory, gpu_result *out) {
  int i = 0;
  out[i++] = gpu_stream_send(c, s, 5, RB_DTYPE_F64, 3, 9);
  out[i++] = gpu_stream_recv(c, memory, 5, RB_DTYPE_F64, 3, 9);
  out[i++] = gpu_stream_all_reduce(c, s, memory, 6);
  out[i++] = gpu_stream_reduce(c, memory, s, 7, RB_DTYPE_I32, RB_REDOP_MAX, 1);
  out[i++] = gpu_stream_all_gather(c, s, memory, 8);
  out[i++] = gpu_stream_reduce_scatter(c, memory, s, 9);
  gpu_request r = gpu_istream_broadcast(c, s, memory, 10, RB_DTYPE_U8, 2);
  out[i++] = gpu_wait(c, r);
  out[i++] = gpu_stream_gather(c, s, memory, 11, RB_DTYPE_F32, 0);
  out[i++] = gpu_stream_gather(c, memory, s, 12, RB_DTYPE_I64, 1);
  rb::collective_options channel;
  channel.port = 200;
  out[i++] = gpu_stream_scatter(c, s, memory, 13, RB_DTYPE_U32, 4, channel);
}

// Takes a ticket and ends without an entry, as a kernel does that is killed in between.
extern "C" __global__ void t_half_written(rb_queue q, rb_u32 *out) {
  rb_u32 ticket;
  *out = rb::detail::take_ticket(q, &ticket);
}
