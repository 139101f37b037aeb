/* bfloat16: __nv_bfloat16, __nv_bfloat162 and their functions.
 *
 * Sums, products and fused ones are rounded once; functions go by single precision. Source: CUDA Math API, "Bfloat16 Precision Intrinsics".
 */
#ifndef RB_CUDA_BF16_H
#define RB_CUDA_BF16_H

#include "cuda_runtime.h"
#include "rb/half_bits.h"

#define RB_H __nv_bfloat16
#define RB_H2 __nv_bfloat162
#define RB_H_RAW __nv_bfloat16_raw
#define RB_H2_RAW __nv_bfloat162_raw
#define RB_H_PTX "bf16"
#define RB_H_TO rb_cuda::host_to_bf16
#define RB_H_FROM rb_cuda::host_from_bf16
#define RB_H_ONE 0x3f80u
#define RB_H_ZERO_N 0x8000u
#define RB_H_NAN 0x7fff
#if defined(__CUDA_NO_BFLOAT16_OPERATORS__)
#define RB_H_NO_OPERATORS
#endif
#include "rb/half_type.h"
#undef RB_H
#undef RB_H2
#undef RB_H_RAW
#undef RB_H2_RAW
#undef RB_H_PTX
#undef RB_H_TO
#undef RB_H_FROM
#undef RB_H_ONE
#undef RB_H_ZERO_N
#undef RB_H_NAN
#undef RB_H_NO_OPERATORS

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7f80u)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7fffu)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000u)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000u)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3f80u)

RB_CUDA_BOTH __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
RB_CUDA_BOTH __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
RB_CUDA_BOTH __nv_bfloat16 __double2bfloat16(double v) { return __nv_bfloat16(v); }
RB_CUDA_BOTH float __bfloat162float(__nv_bfloat16 v) { return v; }
/* Rounded to the nearest, then corrected by one place. */
RB_CUDA_BOTH __nv_bfloat16 rb_step_bfloat16(__nv_bfloat16 v, bool up) {
  unsigned short b = v.__x;
  if (!(b & 0x7fff)) return __nv_bfloat16::of(up ? 1 : 0x8001);
  return __nv_bfloat16::of((unsigned short)(up == !(b & 0x8000) ? b + 1 : b - 1));
}
RB_CUDA_BOTH __nv_bfloat16 __float2bfloat16_rd(float v) {
  __nv_bfloat16 r(v);
  return float(r) > v ? rb_step_bfloat16(r, false) : r;
}
RB_CUDA_BOTH __nv_bfloat16 __float2bfloat16_ru(float v) {
  __nv_bfloat16 r(v);
  return float(r) < v ? rb_step_bfloat16(r, true) : r;
}
RB_CUDA_BOTH __nv_bfloat16 __float2bfloat16_rz(float v) { return v < 0 ? __float2bfloat16_ru(v) : __float2bfloat16_rd(v); }
RB_CUDA_BOTH unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.__x; }
RB_CUDA_BOTH short __bfloat16_as_short(__nv_bfloat16 v) { return (short)v.__x; }
RB_CUDA_BOTH __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16::of(v); }
RB_CUDA_BOTH __nv_bfloat16 __short_as_bfloat16(short v) { return __nv_bfloat16::of((unsigned short)v); }
RB_CUDA_BOTH __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b)); }
RB_CUDA_BOTH __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __nv_bfloat162(__nv_bfloat16(v.x), __nv_bfloat16(v.y)); }
RB_CUDA_BOTH __nv_bfloat162 __float2bfloat162_rn(float v) { return __nv_bfloat162(__nv_bfloat16(v), __nv_bfloat16(v)); }
RB_CUDA_BOTH float2 __bfloat1622float2(__nv_bfloat162 v) { return float2{v.x, v.y}; }
RB_CUDA_BOTH float __low2float(__nv_bfloat162 v) { return v.x; }
RB_CUDA_BOTH float __high2float(__nv_bfloat162 v) { return v.y; }
RB_CUDA_BOTH __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
RB_CUDA_BOTH __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
RB_CUDA_BOTH __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return __nv_bfloat162(v.x, v.x); }
RB_CUDA_BOTH __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return __nv_bfloat162(v.y, v.y); }
RB_CUDA_BOTH __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(a.x, b.x); }
RB_CUDA_BOTH __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return __nv_bfloat162(a.y, b.y); }
RB_CUDA_BOTH __nv_bfloat162 __lowhigh2highlow(__nv_bfloat162 v) { return __nv_bfloat162(v.y, v.x); }
RB_CUDA_BOTH __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }
RB_CUDA_BOTH __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return __nv_bfloat162(v, v); }
RB_CUDA_BOTH __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) { return __nv_bfloat162(a, b); }

#ifdef __CUDA__
/* To integers by single precision, which has each value; from integers with one rounding. */
#define RB_H_INTEGER(type, name, convert)                                                              \
  RB_CUDA_DEVICE type __bfloat162##name##_rn(__nv_bfloat16 v) { return (type)__float2##convert##_rn(v); }         \
  RB_CUDA_DEVICE type __bfloat162##name##_rz(__nv_bfloat16 v) { return (type)__float2##convert##_rz(v); }         \
  RB_CUDA_DEVICE type __bfloat162##name##_rd(__nv_bfloat16 v) { return (type)__float2##convert##_rd(v); }         \
  RB_CUDA_DEVICE type __bfloat162##name##_ru(__nv_bfloat16 v) { return (type)__float2##convert##_ru(v); }         \
  RB_CUDA_DEVICE __nv_bfloat16 __##name##2bfloat16_rn(type v) { return __nv_bfloat16(v); }
RB_H_INTEGER(int, int, int)
RB_H_INTEGER(unsigned int, uint, uint)
RB_H_INTEGER(short, short, int)
RB_H_INTEGER(unsigned short, ushort, uint)
RB_H_INTEGER(long long, ll, ll)
RB_H_INTEGER(unsigned long long, ull, ull)
#undef RB_H_INTEGER
#endif

#endif /* RB_CUDA_BF16_H */
