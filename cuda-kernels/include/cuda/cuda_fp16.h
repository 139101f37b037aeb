/* Half precision: __half, __half2 and their functions.
 *
 * Sums, products and fused ones are rounded once; functions go by single precision. Source: CUDA Math API, "Half Precision Intrinsics".
 */
#ifndef RB_CUDA_FP16_H
#define RB_CUDA_FP16_H

#include "cuda_runtime.h"
#include "rb/half_bits.h"

#define RB_H __half
#define RB_H2 __half2
#define RB_H_RAW __half_raw
#define RB_H2_RAW __half2_raw
#define RB_H_PTX "f16"
#define RB_H_TO rb_cuda::host_to_f16
#define RB_H_FROM rb_cuda::host_from_f16
#define RB_H_ONE 0x3c00u
#define RB_H_ZERO_N 0x8000u
#define RB_H_NAN 0x7fff
#if defined(__CUDA_NO_HALF_OPERATORS__)
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

typedef __half half;
typedef __half2 half2;
typedef __half nv_half;
typedef __half2 nv_half2;

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7c00u)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7bffu)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000u)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000u)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3c00u)

RB_CUDA_BOTH __half __float2half(float v) { return __half(v); }
RB_CUDA_BOTH __half __float2half_rn(float v) { return __half(v); }
RB_CUDA_BOTH __half __double2half(double v) { return __half(v); }
RB_CUDA_BOTH float __half2float(__half v) { return v; }
/* Rounded to the nearest, then corrected by one place. */
RB_CUDA_BOTH __half rb_step_half(__half v, bool up) {
  unsigned short b = v.__x;
  if (!(b & 0x7fff)) return __half::of(up ? 1 : 0x8001);
  return __half::of((unsigned short)(up == !(b & 0x8000) ? b + 1 : b - 1));
}
RB_CUDA_BOTH __half __float2half_rd(float v) {
  __half r(v);
  return float(r) > v ? rb_step_half(r, false) : r;
}
RB_CUDA_BOTH __half __float2half_ru(float v) {
  __half r(v);
  return float(r) < v ? rb_step_half(r, true) : r;
}
RB_CUDA_BOTH __half __float2half_rz(float v) { return v < 0 ? __float2half_ru(v) : __float2half_rd(v); }
RB_CUDA_BOTH unsigned short __half_as_ushort(__half v) { return v.__x; }
RB_CUDA_BOTH short __half_as_short(__half v) { return (short)v.__x; }
RB_CUDA_BOTH __half __ushort_as_half(unsigned short v) { return __half::of(v); }
RB_CUDA_BOTH __half __short_as_half(short v) { return __half::of((unsigned short)v); }
RB_CUDA_BOTH __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
RB_CUDA_BOTH __half2 __float22half2_rn(float2 v) { return __half2(__half(v.x), __half(v.y)); }
RB_CUDA_BOTH __half2 __float2half2_rn(float v) { return __half2(__half(v), __half(v)); }
RB_CUDA_BOTH float2 __half22float2(__half2 v) { return float2{v.x, v.y}; }
RB_CUDA_BOTH float __low2float(__half2 v) { return v.x; }
RB_CUDA_BOTH float __high2float(__half2 v) { return v.y; }
RB_CUDA_BOTH __half __low2half(__half2 v) { return v.x; }
RB_CUDA_BOTH __half __high2half(__half2 v) { return v.y; }
RB_CUDA_BOTH __half2 __low2half2(__half2 v) { return __half2(v.x, v.x); }
RB_CUDA_BOTH __half2 __high2half2(__half2 v) { return __half2(v.y, v.y); }
RB_CUDA_BOTH __half2 __lows2half2(__half2 a, __half2 b) { return __half2(a.x, b.x); }
RB_CUDA_BOTH __half2 __highs2half2(__half2 a, __half2 b) { return __half2(a.y, b.y); }
RB_CUDA_BOTH __half2 __lowhigh2highlow(__half2 v) { return __half2(v.y, v.x); }
RB_CUDA_BOTH __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
RB_CUDA_BOTH __half2 __half2half2(__half v) { return __half2(v, v); }
RB_CUDA_BOTH __half2 make_half2(__half a, __half b) { return __half2(a, b); }

#ifdef __CUDA__
/* To integers by single precision, which has each value; from integers with one rounding. */
#define RB_H_INTEGER(type, name, convert)                                                              \
  RB_CUDA_DEVICE type __half2##name##_rn(__half v) { return (type)__float2##convert##_rn(v); }         \
  RB_CUDA_DEVICE type __half2##name##_rz(__half v) { return (type)__float2##convert##_rz(v); }         \
  RB_CUDA_DEVICE type __half2##name##_rd(__half v) { return (type)__float2##convert##_rd(v); }         \
  RB_CUDA_DEVICE type __half2##name##_ru(__half v) { return (type)__float2##convert##_ru(v); }         \
  RB_CUDA_DEVICE __half __##name##2half_rn(type v) { return __half(v); }
RB_H_INTEGER(int, int, int)
RB_H_INTEGER(unsigned int, uint, uint)
RB_H_INTEGER(short, short, int)
RB_H_INTEGER(unsigned short, ushort, uint)
RB_H_INTEGER(long long, ll, ll)
RB_H_INTEGER(unsigned long long, ull, ull)
#undef RB_H_INTEGER
#endif

#endif /* RB_CUDA_FP16_H */
