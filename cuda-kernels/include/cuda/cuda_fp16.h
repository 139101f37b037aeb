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
#define RB_H_NAME half
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
#undef RB_H_NAME
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

#endif /* RB_CUDA_FP16_H */
