// HyperLogLog on the GPU, to be compared with the on-path engine (FpgaNIC §4.5, Figure 9, Table 6).
//
// The grid is what the comparison varies: blocks, one for each SM that the count may use, and lanes a
// block; the paper's A100 needs 8 blocks of 512 for 100 Gb/s. Hashes are the engine's, so that both
// sides end with the same registers (stream/hll/hash.rs; numbers as in `HashKind::ALL`). Registers are
// words, because the GPU's atomics are; a lane looks before it asks for one, so few are asked for.
#include "common.cuh"
#include "ringbell_move.cuh"

namespace rbk_hll {

constexpr rb_u32 MIX = 0, MURMUR3 = 1, DATASKETCHES = 2, DATASKETCHES_BYTES = 3;
// Slots of the ring that rb_hll_receive fills.
constexpr rb_u32 MAX_SLOTS = 32;

// Mirrored by `HllControl` in src/hll.rs; zero before the launch.
struct control {
  rb_u32 ready; // chunks that have arrived
  rb_u32 stop;  // the receiver failed: leave
  rb_u32 reserved[2];
  rb_u32 finished[MAX_SLOTS]; // how often a block has counted what lay in the slot
};

RB_DEVICE rb_u32 fmix32(rb_u32 h) {
  h = (h ^ (h >> 16)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return h ^ (h >> 16);
}

RB_DEVICE rb_u64 fmix64(rb_u64 h) {
  h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdull;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return h ^ (h >> 33);
}

RB_DEVICE rb_u64 rotate(rb_u64 v, int by) { return v << by | v >> (64 - by); }

struct sources {
  rb_u32 slot; // its low bits choose the register
  rb_u64 rank; // its leading zeros make the rank
};

// MurmurHash3_x64_128 of 16 bytes, or of at most 8.
RB_DEVICE void murmur3(rb_u64 lo, rb_u64 hi, rb_u64 seed, rb_u64 len, rb_u64 *first, rb_u64 *second) {
  constexpr rb_u64 C1 = 0x87c37b91114253d5ull, C2 = 0x4cf5ad432745937full;
  rb_u64 h1 = seed, h2 = seed;
  h1 ^= rotate(lo * C1, 31) * C2;
  if (len == 16) {
    h1 = (rotate(h1, 27) + h2) * 5 + 0x52dce729;
    h2 ^= rotate(hi * C2, 33) * C1;
    h2 = (rotate(h2, 31) + h1) * 5 + 0x38495ab5;
  }
  h1 ^= len;
  h2 ^= len;
  h1 += h2;
  h2 += h1;
  h1 = fmix64(h1);
  h2 = fmix64(h2);
  *first = h1 + h2;
  *second = h2 + *first;
}

// `lo` and `hi`: the item's bytes, little endian, zeros above.
template <rb_u32 HASH, rb_u32 WIDTH> RB_DEVICE sources hash(rb_u64 lo, rb_u64 hi) {
  constexpr bool is_signed = HASH == DATASKETCHES;
  if (is_signed && WIDTH == 1) lo = rb_u64((signed char)lo);
  if (is_signed && WIDTH == 2) lo = rb_u64(short(lo));
  if (is_signed && WIDTH == 4) lo = rb_u64(int(lo));
  if (HASH == MIX) {
    if (WIDTH <= 4) return sources{fmix32(rb_u32(lo) + 0x7f4a7c15u), rb_u64(fmix32(rb_u32(lo) + 0x9e3779b9u)) << 32};
    rb_u64 h = fmix64(lo + 0x9e3779b97f4a7c15ull);
    if (WIDTH == 16) h = fmix64(h + hi);
    return sources{rb_u32(h), h};
  }
  rb_u64 first, second;
  murmur3(lo, hi, HASH == MURMUR3 ? 0 : 9001, is_signed && WIDTH < 8 ? 8 : WIDTH, &first, &second);
  return sources{rb_u32(first), HASH == MURMUR3 ? first : second};
}

template <rb_u32 HASH, rb_u32 WIDTH> RB_DEVICE void count_item(rb_u64 lo, rb_u64 hi, rb_u32 precision, rb_u32 *registers) {
  constexpr int RANK_BITS = HASH >= DATASKETCHES ? 62 : HASH == MIX && WIDTH <= 4 ? 32 : 43;
  sources s = hash<HASH, WIDTH>(lo, hi);
  int zeros = __clzll((long long)s.rank);
  rb_u32 rank = rb_u32(zeros < RANK_BITS ? zeros : RANK_BITS) + 1;
  rb_u32 *reg = registers + (s.slot & ((1u << precision) - 1));
  if (rb::detail::load_relaxed(reg) < rank) atomicMax(reg, rank);
}

// Every lane of the grid counts its share of `items` whole items: single ones up to a multiple of 16, then
// 16 bytes a load, then single ones again.
// Out of line, so that twenty of them do not share one kernel's registers.
template <rb_u32 HASH, rb_u32 WIDTH>
RB_DEVICE_NOINLINE void count(const unsigned char *at, rb_u64 items, rb_u32 precision, rb_u32 *registers) {
  const rb::lanes who = rb::lanes::of_grid();
  rb_u64 head = ((0 - rb::detail::address(at)) & 15) / WIDTH;
  if (head > items) head = items;
  constexpr rb_u64 EACH = 16 / WIDTH;
  rb_u64 vectors = (items - head) / EACH, singles = items - vectors * EACH;
  const unsigned char *body = at + head * WIDTH;
  for (rb_u64 i = who.index; i < vectors; i += who.count) {
    rb::detail::words16 v = rb::detail::load16(body + i * 16);
    if constexpr (WIDTH >= 8) {
      rb_u64 lo = v.w[0] | rb_u64(v.w[1]) << 32, hi = v.w[2] | rb_u64(v.w[3]) << 32;
      count_item<HASH, WIDTH>(lo, WIDTH == 16 ? hi : 0, precision, registers);
      if (WIDTH == 8) count_item<HASH, WIDTH>(hi, 0, precision, registers);
    } else {
      // One word at a time, by moving them down: an index that varies would put them on the stack.
#pragma unroll 1
      for (int w = 0; w < 4; ++w) {
        rb_u32 word = v.w[0];
        v.w[0] = v.w[1], v.w[1] = v.w[2], v.w[2] = v.w[3];
#pragma unroll
        for (rb_u32 b = 0; b < 4; b += WIDTH < 4 ? WIDTH : 4)
          count_item<HASH, WIDTH>(word >> b * 8 & 0xffffffffu >> (32 - 8 * (WIDTH < 4 ? WIDTH : 4)), 0, precision, registers);
      }
    }
  }
  for (rb_u64 i = who.index; i < singles; i += who.count) {
    const unsigned char *item = at + (i < head ? i : i + vectors * EACH) * WIDTH;
    if constexpr (WIDTH == 16) {
      // Only an address that is no multiple of 16 brings a whole item here.
      count_item<HASH, WIDTH>(rb::detail::load_element<8>(item), rb::detail::load_element<8>(item + 8), precision, registers);
    } else {
      count_item<HASH, WIDTH>(rb::detail::load_element<WIDTH>(item), 0, precision, registers);
    }
  }
}

template <rb_u32 HASH>
RB_DEVICE bool count_width(const unsigned char *at, rb_u64 bytes, rb_u32 width, rb_u32 precision, rb_u32 *registers) {
  switch (width) {
  case 1: count<HASH, 1>(at, bytes, precision, registers); return true;
  case 2: count<HASH, 2>(at, bytes / 2, precision, registers); return true;
  case 4: count<HASH, 4>(at, bytes / 4, precision, registers); return true;
  case 8: count<HASH, 8>(at, bytes / 8, precision, registers); return true;
  case 16: count<HASH, 16>(at, bytes / 16, precision, registers); return true;
  default: return false;
  }
}

// The whole items of `bytes` bytes. The host checks hash, width and precision (src/hll.rs); others end the kernel.
RB_DEVICE void count_bytes(const unsigned char *at, rb_u64 bytes, rb_u32 hash, rb_u32 width, rb_u32 precision, rb_u32 *registers) {
  bool known = false;
  switch (hash) {
  case MIX: known = count_width<MIX>(at, bytes, width, precision, registers); break;
  case MURMUR3: known = count_width<MURMUR3>(at, bytes, width, precision, registers); break;
  case DATASKETCHES: known = count_width<DATASKETCHES>(at, bytes, width, precision, registers); break;
  case DATASKETCHES_BYTES: known = count_width<DATASKETCHES_BYTES>(at, bytes, width, precision, registers); break;
  }
  if (!known) __trap();
}

} // namespace rbk_hll

// Counts a buffer, aligned to the items' width, into 2^precision registers, which the host has zeroed
// or which an earlier launch left. Any grid.
extern "C" __global__ void __launch_bounds__(512, 1) rb_hll_count(const unsigned char *items, rb_u64 bytes, rb_u32 hash, rb_u32 width,
                                                                rb_u32 precision, rb_u32 *registers) {
  rbk_hll::count_bytes(items, bytes, hash, width, precision, registers);
}

// Receives `total` bytes and counts them, a chunk while the next arrive: the paper's "write" baseline.
// Lane 0 of block 0 receives into a ring of `slots` (at most 32) of `slot_bytes`, a multiple of the items'
// width; all lanes of all blocks count. A slot is received into again once every block has counted it.
// Blocks wait for each other: all must be resident at once, at most one for each SM.
extern "C" __global__ void __launch_bounds__(512, 1)
    rb_hll_receive(rb_queue q, rb_u32 session, unsigned char *ring, rb_u64 slot_bytes, rb_u32 slots, rb_u64 total, rb_u32 hash,
                   rb_u32 width, rb_u32 precision, rb_u32 *registers, rbk_hll::control *control, rb_u32 timeout_us,
                   rbk::perf_result *out) {
  __shared__ rb_u32 arrived;
  bool leader = rb::detail::thread_index() == 0, receiver = leader && blockIdx.x == 0;
  __shared__ rb_u32 tickets[rbk::window::MAX];
  rbk::window w(q, slots < rbk_hll::MAX_SLOTS ? slots : rbk_hll::MAX_SLOTS, tickets);
  slots = w.size;
  rb_u64 chunks = (total + slot_bytes - 1) / slot_bytes, posted = 0, k = 0;
  gpu_result r{};
  rb_u64 begin = rb::detail::clock_ns();
  auto size_of = [&](rb_u64 chunk) { return total - chunk * slot_bytes < slot_bytes ? total - chunk * slot_bytes : slot_bytes; };
  // Pairs with the fence before the blocks' additions: their reads of the slot are over.
  auto counted_by_all = [&](rb_u64 chunk) {
    return rb::detail::load_acquire(&control->finished[chunk % slots]) >= rb_u32(chunk / slots + 1) * gridDim.x;
  };
  auto is_free = [&](rb_u64 chunk) { return chunk < slots || counted_by_all(chunk - slots); };
  auto wait_for_blocks = [&](rb_u64 chunk) {
    rb::detail::bounded_wait wait(rb_u64(timeout_us) * 2);
    while (!counted_by_all(chunk))
      if (!wait.turn()) return false;
    return true;
  };
  for (; k < chunks; ++k) {
    if (receiver) {
      // Nothing is in flight when another block still counts the slot of chunk k.
      if (!w.count && !is_free(k) && !wait_for_blocks(k - slots)) r = rb::detail::failed(RB_STATUS_TIMED_OUT);
      while (r.ok() && posted < chunks && !w.full() && is_free(posted)) {
        unsigned char *slot = ring + posted % slots * slot_bytes;
        if (!w.push(q, rb::detail::recv_entry(session, slot, rb_u32(size_of(posted)), timeout_us, 0, 0), timeout_us))
          r = rb::detail::failed(RB_STATUS_QUEUE_FULL);
        ++posted;
      }
      if (r.ok()) r = w.pop(q, timeout_us);
      // Both pair with the leaders' acquire below: a reader of `ready` sees the received bytes.
      if (r.ok())
        rb::detail::store_release(&control->ready, rb_u32(k + 1));
      else
        rb::detail::store_release(&control->stop, 1);
    }
    if (leader) {
      rb::detail::bounded_wait wait(rb_u64(timeout_us) * 4);
      arrived = 1;
      while (rb::detail::load_acquire(&control->ready) <= k) {
        if (!rb::detail::load_acquire(&control->stop) && wait.turn()) continue;
        arrived = 0;
        break;
      }
    }
    __syncthreads();
    if (!arrived) break;
    rbk_hll::count_bytes(ring + k % slots * slot_bytes, size_of(k), hash, width, precision, registers);
    __syncthreads();
    if (leader) {
      __threadfence();
      atomicAdd(&control->finished[k % slots], 1u);
    }
  }
  if (!receiver) return;
  // Also after a failure: the ring is the NIC's until every receive has retired.
  while (w.count) w.pop(q, timeout_us);
  if (r.ok() && chunks && !wait_for_blocks(chunks - 1)) r = rb::detail::failed(RB_STATUS_TIMED_OUT);
  rb_u64 end = rb::detail::clock_ns();
  *out = rbk::perf_result{r.status, 0, r.detail, k, r.ok() ? total : 0, 0, end - begin};
}
