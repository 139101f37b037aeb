/* Reductions by the GPU itself, on memory that its lanes reach: no NIC takes part.
 *
 *   rb_u32 status = gpu_local_reduce(dst, srcs, 3, count, RB_DTYPE_BF16, RB_REDOP_SUM, rb::lanes::of_grid());
 *
 * The counterpart of `gpu_combine` (ringbell_collective.cuh), which asks the NIC for the same: both give
 * the same bits, those of `onc_engines::reduce`, whose rules these are:
 *
 *  - Operands are combined left to right: ((s0 op s1) op s2) ...
 *  - Integers wrap, and they alone have operations on bits. f16 and bf16 are computed in f32 and rounded to nearest even after every operation.
 *  - A result that is not a number has the canonical bits (positive, quiet, no payload). The reduction of a
 *    single operand is a copy and keeps all bits.
 *  - Min and max propagate NaN and hold -0 to be below +0 (IEEE 754-2019 §9.6, `minimum`).
 *
 * Additions and products are never contracted or approximated; a program compiled with `-ftz=true` (part
 * of nvcc's `-use_fast_math`) loses subnormal f32, and with them the equality.
 */
#ifndef RINGBELL_REDUCE_CUH
#define RINGBELL_REDUCE_CUH

#include "ringbell_move.cuh"

namespace rb {
namespace detail {

RB_DEVICE float float_of(rb_u32 b) { return __uint_as_float(b); }
RB_DEVICE rb_u32 bits_of(float v) { return __float_as_uint(v); }
RB_DEVICE double double_of(rb_u64 b) { return __longlong_as_double((long long)b); }
RB_DEVICE rb_u64 bits_of(double v) { return rb_u64(__double_as_longlong(v)); }
/* Intrinsics are never fused with a neighbour. */
RB_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
RB_DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
RB_DEVICE double add(double a, double b) { return __dadd_rn(a, b); }
RB_DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }
RB_DEVICE float float_of_f16(rb_u32 h) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((unsigned short)h));
  return v;
}
RB_DEVICE rb_u32 f16_of_float(float v) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
  return h;
}
/* NaN if one is, and -0 below +0 (PTX ISA §9.7.3.11). */
RB_DEVICE float smaller(float a, float b) {
  float v;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}
RB_DEVICE float larger(float a, float b) {
  float v;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
  return v;
}

RB_DEVICE float float_of_bf16(rb_u32 h) { return float_of(h << 16); }
/* To nearest even; a NaN stays one. */
RB_DEVICE rb_u32 bf16_of_float(float v) {
  rb_u32 bits = bits_of(v);
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

/* Signed integers in the order of doubles, -0 below +0, and back: all bits but the sign are inverted
 * in negative ones. */
RB_DEVICE long long flip(long long v) { return v ^ (long long)(rb_u64(v >> 63) >> 1); }

template <rb_u32 OP, class T> RB_DEVICE T pick(T a, T b) { return (OP == RB_REDOP_MIN ? b < a : b > a) ? b : a; }

template <rb_u32 OP> RB_DEVICE float float_op(float a, float b) {
  if (OP == RB_REDOP_SUM) return add(a, b);
  if (OP == RB_REDOP_PROD) return multiply(a, b);
  return OP == RB_REDOP_MIN ? smaller(a, b) : larger(a, b);
}
template <rb_u32 OP> RB_DEVICE double double_op(double a, double b) {
  if (OP == RB_REDOP_SUM) return add(a, b);
  if (OP == RB_REDOP_PROD) return multiply(a, b);
  /* A NaN gets the pattern that wins. */
  constexpr rb_u64 WINS = OP == RB_REDOP_MIN ? ~0ull : ~0ull >> 1;
  auto order = [](double v) {
    rb_u64 bits = bits_of(v);
    return flip((long long)((bits & (~0ull >> 1)) > 0x7ff0000000000000ull ? WINS : bits));
  };
  return double_of(rb_u64(flip(pick<OP>(order(a), order(b)))));
}

/* T: the type that is compared; sums and products are the same for both signs. */
template <rb_u32 OP, class T> RB_DEVICE T integer_op(T a, T b) {
  if (OP == RB_REDOP_SUM) return T(rb_u64(a) + rb_u64(b));
  if (OP == RB_REDOP_PROD) return T(rb_u64(a) * rb_u64(b));
  if (OP == RB_REDOP_AND) return a & b;
  if (OP == RB_REDOP_OR) return a | b;
  if (OP == RB_REDOP_XOR) return a ^ b;
  return pick<OP>(a, b);
}

constexpr RB_DEVICE rb_u32 element_bytes(rb_u32 dtype) {
  return dtype == RB_DTYPE_I8 || dtype == RB_DTYPE_U8                               ? 1
         : dtype == RB_DTYPE_F16 || dtype == RB_DTYPE_BF16                          ? 2
         : dtype == RB_DTYPE_I16 || dtype == RB_DTYPE_U16                           ? 2
         : dtype == RB_DTYPE_F32 || dtype == RB_DTYPE_I32 || dtype == RB_DTYPE_U32 ? 4
                                                                                    : 8;
}
constexpr RB_DEVICE bool is_float(rb_u32 dtype) {
  return dtype == RB_DTYPE_F16 || dtype == RB_DTYPE_BF16 || dtype == RB_DTYPE_F32 || dtype == RB_DTYPE_F64;
}
constexpr RB_DEVICE bool is_bitwise(rb_u32 op) { return op == RB_REDOP_AND || op == RB_REDOP_OR || op == RB_REDOP_XOR; }

/* One element of at most 4 bytes, in the low bits. */
template <rb_u32 DTYPE, rb_u32 OP> RB_DEVICE rb_u32 apply32(rb_u32 a, rb_u32 b) {
  if (DTYPE == RB_DTYPE_F16) return f16_of_float(float_op<OP>(float_of_f16(a), float_of_f16(b)));
  if (DTYPE == RB_DTYPE_BF16) return bf16_of_float(float_op<OP>(float_of_bf16(a), float_of_bf16(b)));
  if (DTYPE == RB_DTYPE_F32) return bits_of(float_op<OP>(float_of(a), float_of(b)));
  if (DTYPE == RB_DTYPE_I8) return (unsigned char)integer_op<OP>((signed char)a, (signed char)b);
  if (DTYPE == RB_DTYPE_U8) return (unsigned char)integer_op<OP>((unsigned char)a, (unsigned char)b);
  if (DTYPE == RB_DTYPE_I16) return (unsigned short)integer_op<OP>((short)a, (short)b);
  if (DTYPE == RB_DTYPE_U16) return (unsigned short)integer_op<OP>((unsigned short)a, (unsigned short)b);
  if (DTYPE == RB_DTYPE_I32) return rb_u32(integer_op<OP>(int(a), int(b)));
  return integer_op<OP>(a, b);
}
template <rb_u32 DTYPE, rb_u32 OP> RB_DEVICE rb_u64 apply64(rb_u64 a, rb_u64 b) {
  if (DTYPE == RB_DTYPE_F64) return bits_of(double_op<OP>(double_of(a), double_of(b)));
  if (DTYPE == RB_DTYPE_I64) return rb_u64(integer_op<OP>((long long)a, (long long)b));
  return integer_op<OP>(a, b);
}
/* The canonical bits for what is not a number. */
template <rb_u32 DTYPE> RB_DEVICE rb_u64 canonical(rb_u64 v) {
  if (DTYPE == RB_DTYPE_F16) return (v & 0x7fff) > 0x7c00 ? 0x7e00 : v;
  if (DTYPE == RB_DTYPE_BF16) return (v & 0x7fff) > 0x7f80 ? 0x7fc0 : v;
  if (DTYPE == RB_DTYPE_F32) return (v & 0x7fffffff) > 0x7f800000 ? 0x7fc00000 : v;
  if (DTYPE == RB_DTYPE_F64) return (v & (~0ull >> 1)) > 0x7ff0000000000000ull ? 0x7ff8000000000000ull : v;
  return v;
}

/* The elements of a vector, two operands into one. */
template <rb_u32 DTYPE, rb_u32 OP> RB_DEVICE void apply16(words16 &a, const words16 &b) {
  constexpr int BITS = int(element_bytes(DTYPE)) * 8;
  if constexpr (BITS == 64) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      rb_u64 r = apply64<DTYPE, OP>(a.w[i] | rb_u64(a.w[i + 1]) << 32, b.w[i] | rb_u64(b.w[i + 1]) << 32);
      a.w[i] = rb_u32(r);
      a.w[i + 1] = rb_u32(r >> 32);
    }
  } else {
    constexpr rb_u32 MASK = 0xffffffffu >> (32 - BITS);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rb_u32 r = 0;
#pragma unroll
      for (int at = 0; at < 32; at += BITS) r |= apply32<DTYPE, OP>(a.w[i] >> at & MASK, b.w[i] >> at & MASK) << at;
      a.w[i] = r;
    }
  }
}
template <rb_u32 DTYPE> RB_DEVICE void canonical16(words16 &a) {
  constexpr int BITS = int(element_bytes(DTYPE)) * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (DTYPE == RB_DTYPE_F64) {
      if (i % 2) continue;
      rb_u64 v = canonical<DTYPE>(a.w[i] | rb_u64(a.w[i + 1]) << 32);
      a.w[i] = rb_u32(v);
      a.w[i + 1] = rb_u32(v >> 32);
    } else if constexpr (DTYPE == RB_DTYPE_F32) {
      a.w[i] = rb_u32(canonical<DTYPE>(a.w[i]));
    } else if constexpr (BITS == 16 && is_float(DTYPE)) {
      a.w[i] = rb_u32(canonical<DTYPE>(a.w[i] & 0xffff)) | rb_u32(canonical<DTYPE>(a.w[i] >> 16)) << 16;
    }
  }
}

template <rb_u32 DTYPE, rb_u32 OP>
RB_DEVICE void reduce_element(unsigned char *dst, const unsigned char *const *srcs, rb_u32 sources, rb_u64 at) {
  constexpr rb_u32 BYTES = element_bytes(DTYPE);
  rb_u64 v = load_element<BYTES>(srcs[0] + at);
  for (rb_u32 s = 1; s < sources; ++s) {
    rb_u64 o = load_element<BYTES>(srcs[s] + at);
    if constexpr (BYTES == 8)
      v = apply64<DTYPE, OP>(v, o);
    else
      v = apply32<DTYPE, OP>(rb_u32(v), rb_u32(o));
  }
  store_element<BYTES>(dst + at, canonical<DTYPE>(v));
}

/* The vectors from byte `base` on, where the destination is aligned, and all sources when ALIGNED. */
template <rb_u32 DTYPE, rb_u32 OP, bool ALIGNED>
RB_DEVICE void reduce_vectors(unsigned char *dst, const unsigned char *const *srcs, rb_u32 sources, rb_u64 base, rb_u64 vectors,
                              lanes who) {
  auto load = [](const unsigned char *p) { return ALIGNED ? load16(p) : load16_anywhere(p); };
  constexpr int AT_ONCE = ALIGNED ? 2 : 1;
  rb_u64 step = who.count * 16;
  for (rb_u64 i = who.index; i < vectors; i += AT_ONCE * who.count) {
    rb_u64 at = base + i * 16;
    /* The second is guarded instead of having a loop of its own for the rest: this code exists fifty times. */
    bool both = AT_ONCE == 2 && i + who.count < vectors;
    words16 v = load(srcs[0] + at), w{};
    if (both) w = load(srcs[0] + at + step);
    for (rb_u32 s = 1; s < sources; ++s) {
      const unsigned char *from = srcs[s] + at;
      words16 o = load(from), p{};
      if (both) p = load(from + step);
      apply16<DTYPE, OP>(v, o);
      if (AT_ONCE == 2) apply16<DTYPE, OP>(w, p);
    }
    canonical16<DTYPE>(v);
    store16(dst + at, v);
    if (!both) continue;
    canonical16<DTYPE>(w);
    store16(dst + at + step, w);
  }
}

/* Out of line: fifty of them in one kernel would cost it the registers of the largest, and the
 * compiler its patience. */
template <rb_u32 DTYPE, rb_u32 OP>
RB_DEVICE_NOINLINE void reduce(unsigned char *dst, const unsigned char *const *srcs, rb_u32 sources, rb_u64 count, lanes who) {
  constexpr rb_u64 BYTES = element_bytes(DTYPE);
  rb_u64 len = count * BYTES, head = (0 - address(dst)) & 15;
  /* A destination that is no multiple of its elements' size never meets a vector: element by element. Small code has no vectors. */
#ifndef RB_SMALL_CODE
  if (head % BYTES || head > len)
#endif
    head = len;
  rb_u64 vectors = (len - head) / 16;
  bool aligned = true;
  for (rb_u32 s = 0; s < sources; ++s) aligned &= (address(srcs[s] + head) & 15) == 0;
  /* Head and tail. */
  rb_u64 singles = (len - vectors * 16) / BYTES;
  for (rb_u64 i = who.index; i < singles; i += who.count)
    reduce_element<DTYPE, OP>(dst, srcs, sources, i * BYTES + (i * BYTES < head ? 0 : vectors * 16));
  if (aligned)
    reduce_vectors<DTYPE, OP, true>(dst, srcs, sources, head, vectors, who);
  else
    reduce_vectors<DTYPE, OP, false>(dst, srcs, sources, head, vectors, who);
}

template <rb_u32 OP>
RB_DEVICE void reduce_bits(unsigned char *dst, const unsigned char *const *srcs, rb_u32 sources, rb_u64 bytes, lanes who) {
  if (bytes % 4 == 0 && address(dst) % 4 == 0)
    reduce<RB_DTYPE_U32, OP>(dst, srcs, sources, bytes / 4, who);
  else
    reduce<RB_DTYPE_U8, OP>(dst, srcs, sources, bytes, who);
}

template <rb_u32 DTYPE>
RB_DEVICE bool reduce_op(unsigned char *dst, const unsigned char *const *srcs, rb_u32 sources, rb_u64 count, rb_u32 op, lanes who) {
  /* Sums and products wrap to the same bits with a sign and without. */
  constexpr rb_u32 PLAIN = DTYPE == RB_DTYPE_I8    ? RB_DTYPE_U8
                           : DTYPE == RB_DTYPE_I16 ? RB_DTYPE_U16
                           : DTYPE == RB_DTYPE_I32 ? RB_DTYPE_U32
                           : DTYPE == RB_DTYPE_I64 ? RB_DTYPE_U64
                                                   : DTYPE;
  /* Bits by words, whatever integers they belong to: a destination that is no multiple of 4 goes by bytes. */
  if constexpr (!is_float(DTYPE)) {
    rb_u64 bytes = count * element_bytes(DTYPE);
    switch (op) {
    case RB_REDOP_AND: reduce_bits<RB_REDOP_AND>(dst, srcs, sources, bytes, who); return true;
    case RB_REDOP_OR: reduce_bits<RB_REDOP_OR>(dst, srcs, sources, bytes, who); return true;
    case RB_REDOP_XOR: reduce_bits<RB_REDOP_XOR>(dst, srcs, sources, bytes, who); return true;
    }
  }
  switch (op) {
  case RB_REDOP_SUM: reduce<PLAIN, RB_REDOP_SUM>(dst, srcs, sources, count, who); return true;
  case RB_REDOP_PROD: reduce<PLAIN, RB_REDOP_PROD>(dst, srcs, sources, count, who); return true;
  case RB_REDOP_MIN: reduce<DTYPE, RB_REDOP_MIN>(dst, srcs, sources, count, who); return true;
  case RB_REDOP_MAX: reduce<DTYPE, RB_REDOP_MAX>(dst, srcs, sources, count, who); return true;
  default: return false;
  }
}

} // namespace detail

/* dst[i] = srcs[0][i] op srcs[1][i] op ..., for `count` elements that the lanes share, in one pass: all of
 * `who` call with the same arguments, and each does its part. No barrier is made before or after.
 *
 * `srcs` is an array of `sources` pointers (at least one) in memory that every lane reads: shared or global.
 * Any alignment; 16-byte accesses where all operands lie alike. `dst` may be one of the sources; otherwise
 * ranges do not overlap. Gives RB_STATUS_OK, or RB_STATUS_INVALID_ARGUMENT for a type, an operation or a number
 * of sources that there is not: then nothing was written. */
RB_DEVICE rb_u32 gpu_local_reduce(void *dst, const void *const *srcs, rb_u32 sources, rb_u64 count, rb_u32 dtype, rb_u32 op,
                                  lanes who) {
  unsigned char *to = static_cast<unsigned char *>(dst);
  const unsigned char *const *from = reinterpret_cast<const unsigned char *const *>(srcs);
  if (!sources || op < RB_REDOP_SUM || op > RB_REDOP_XOR) return RB_STATUS_INVALID_ARGUMENT;
  if (sources == 1) {
    if (dtype < RB_DTYPE_F16 || dtype > RB_DTYPE_U16) return RB_STATUS_INVALID_ARGUMENT;
    if (detail::is_bitwise(op) && detail::is_float(dtype)) return RB_STATUS_INVALID_ARGUMENT;
    if (from[0] != to) detail::copy(to, from[0], count * detail::element_bytes(dtype), who);
    return RB_STATUS_OK;
  }
  bool known = false;
  switch (dtype) {
  case RB_DTYPE_F16: known = detail::reduce_op<RB_DTYPE_F16>(to, from, sources, count, op, who); break;
  case RB_DTYPE_BF16: known = detail::reduce_op<RB_DTYPE_BF16>(to, from, sources, count, op, who); break;
  case RB_DTYPE_F32: known = detail::reduce_op<RB_DTYPE_F32>(to, from, sources, count, op, who); break;
  case RB_DTYPE_F64: known = detail::reduce_op<RB_DTYPE_F64>(to, from, sources, count, op, who); break;
  case RB_DTYPE_I8: known = detail::reduce_op<RB_DTYPE_I8>(to, from, sources, count, op, who); break;
  case RB_DTYPE_I16: known = detail::reduce_op<RB_DTYPE_I16>(to, from, sources, count, op, who); break;
  case RB_DTYPE_U16: known = detail::reduce_op<RB_DTYPE_U16>(to, from, sources, count, op, who); break;
  case RB_DTYPE_I32: known = detail::reduce_op<RB_DTYPE_I32>(to, from, sources, count, op, who); break;
  case RB_DTYPE_I64: known = detail::reduce_op<RB_DTYPE_I64>(to, from, sources, count, op, who); break;
  case RB_DTYPE_U8: known = detail::reduce_op<RB_DTYPE_U8>(to, from, sources, count, op, who); break;
  case RB_DTYPE_U32: known = detail::reduce_op<RB_DTYPE_U32>(to, from, sources, count, op, who); break;
  case RB_DTYPE_U64: known = detail::reduce_op<RB_DTYPE_U64>(to, from, sources, count, op, who); break;
  }
  return known ? RB_STATUS_OK : RB_STATUS_INVALID_ARGUMENT;
}

/* Two operands of a type and an operation that are known when the kernel is compiled: no dispatch. */
template <rb_u32 DTYPE, rb_u32 OP> RB_DEVICE void gpu_local_combine(void *dst, const void *const *two, rb_u64 count, lanes who) {
  detail::reduce<DTYPE, OP>(static_cast<unsigned char *>(dst), reinterpret_cast<const unsigned char *const *>(two), 2, count, who);
}

} // namespace rb

#ifndef RINGBELL_NO_USING
using rb::gpu_local_combine;
using rb::gpu_local_reduce;
#endif

#endif /* RINGBELL_REDUCE_CUH */
