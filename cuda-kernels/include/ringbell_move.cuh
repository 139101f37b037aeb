/* Copies by lanes: 16 bytes at a time, from and to any address.
 *
 * Common part of the data mover (ringbell_slots.cuh) and the reduction (ringbell_reduce.cuh). A GPU loads and
 * stores at most 16 bytes an instruction, at an address that is a multiple of the size. So destinations get a
 * head of single elements up to such an address, 16 bytes at a time from there, and a tail. Sources of another
 * alignment are read in the widest pieces that their address allows. No byte outside of the ranges is touched.
 */
#ifndef RINGBELL_MOVE_CUH
#define RINGBELL_MOVE_CUH

#include "ringbell.cuh"

namespace rb {

/* The lanes that share a piece of work, and which of them the caller is. */
struct lanes {
  rb_u64 index;
  rb_u64 count;
  /* All lanes of the caller's block. */
  static RB_DEVICE lanes of_block() { return lanes{detail::thread_index(), rb_u64(blockDim.x) * blockDim.y * blockDim.z}; }
  /* All lanes of the grid. */
  static RB_DEVICE lanes of_grid() {
    lanes b = of_block();
    rb_u64 block = blockIdx.x + rb_u64(gridDim.x) * (blockIdx.y + rb_u64(gridDim.y) * blockIdx.z);
    return lanes{block * b.count + b.index, b.count * gridDim.x * gridDim.y * gridDim.z};
  }
};

namespace detail {

/* The lanes of a scope. */
template <class Scope> struct lanes_in;
template <> struct lanes_in<thread> {
  static RB_DEVICE lanes all() { return lanes{0, 1}; }
};
template <> struct lanes_in<warp> {
  static RB_DEVICE lanes all() { return lanes{thread_index() & 31, rb_u64(__popc(warp_mask()))}; }
};
template <> struct lanes_in<block> {
  static RB_DEVICE lanes all() { return lanes::of_block(); }
};

/* 16 bytes in registers. */
struct words16 {
  rb_u32 w[4];
};

/* Vectors that a lane has under way at a time: a lane's loads must cover the memory's latency. */
constexpr int IN_FLIGHT = 4;

RB_DEVICE rb_u64 address(const void *p) { return reinterpret_cast<rb_u64>(p); }

/* An aligned load or store. */
template <class T> RB_DEVICE T load_aligned(const unsigned char *p) { return *reinterpret_cast<const T *>(p); }
template <class T> RB_DEVICE void store_aligned(unsigned char *p, T v) { *reinterpret_cast<T *>(p) = v; }

/* 16 bytes from an address that is a multiple of 16. */
RB_DEVICE words16 load16(const unsigned char *p) {
  uint4 v = load_aligned<uint4>(p);
  return words16{{v.x, v.y, v.z, v.w}};
}
RB_DEVICE void store16(unsigned char *p, const words16 &v) { store_aligned(p, uint4{v.w[0], v.w[1], v.w[2], v.w[3]}); }

/* 16 bytes from any address. All lanes that share the work take the same branch: they are whole
 * vectors apart. */
RB_DEVICE words16 load16_anywhere(const unsigned char *p) {
  rb_u64 at = address(p);
  if ((at & 15) == 0) return load16(p);
  words16 v;
  if ((at & 3) == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v.w[i] = load_aligned<rb_u32>(p + i * 4);
  } else if ((at & 1) == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v.w[i] = rb_u32(load_aligned<unsigned short>(p + i * 4)) | rb_u32(load_aligned<unsigned short>(p + i * 4 + 2)) << 16;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v.w[i] = rb_u32(p[i * 4]) | rb_u32(p[i * 4 + 1]) << 8 | rb_u32(p[i * 4 + 2]) << 16 | rb_u32(p[i * 4 + 3]) << 24;
  }
  return v;
}

/* One element at any address. */
template <rb_u32 BYTES> RB_DEVICE rb_u64 load_element(const unsigned char *p) {
  rb_u64 v = 0;
#pragma unroll
  for (rb_u32 i = 0; i < BYTES; ++i) v |= rb_u64(p[i]) << (i * 8);
  return v;
}
template <rb_u32 BYTES> RB_DEVICE void store_element(unsigned char *p, rb_u64 v) {
#pragma unroll
  for (rb_u32 i = 0; i < BYTES; ++i) p[i] = (unsigned char)(v >> (i * 8));
}

/* The vectors of a copy whose destination is aligned. */
template <bool ALIGNED> RB_DEVICE void copy_vectors(unsigned char *to, const unsigned char *from, rb_u64 vectors, lanes who) {
  auto load = [](const unsigned char *p) { return ALIGNED ? load16(p) : load16_anywhere(p); };
  constexpr rb_u64 AT_ONCE = ALIGNED ? IN_FLIGHT : 1;
  rb_u64 i = who.index;
  for (; i + (AT_ONCE - 1) * who.count < vectors; i += AT_ONCE * who.count) {
    words16 v[AT_ONCE];
#pragma unroll
    for (rb_u64 k = 0; k < AT_ONCE; ++k) v[k] = load(from + (i + k * who.count) * 16);
#pragma unroll
    for (rb_u64 k = 0; k < AT_ONCE; ++k) store16(to + (i + k * who.count) * 16, v[k]);
  }
  if constexpr (ALIGNED)
    for (; i < vectors; i += who.count) store16(to + i * 16, load(from + i * 16));
}

/* Copies between any two addresses that do not overlap. No barrier: the caller knows when it needs one. */
RB_DEVICE void copy(unsigned char *to, const unsigned char *from, rb_u64 len, lanes who) {
  rb_u64 head = (0 - address(to)) & 15;
  if (head > len) head = len;
  rb_u64 vectors = (len - head) / 16, tail = head + vectors * 16;
  for (rb_u64 i = who.index; i < head; i += who.count) to[i] = from[i];
  if ((address(from + head) & 15) == 0)
    copy_vectors<true>(to + head, from + head, vectors, who);
  else
    copy_vectors<false>(to + head, from + head, vectors, who);
  for (rb_u64 i = tail + who.index; i < len; i += who.count) to[i] = from[i];
}

} // namespace detail
} // namespace rb

#endif /* RINGBELL_MOVE_CUH */
