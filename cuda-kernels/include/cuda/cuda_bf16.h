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
#define RB_H_NAME bfloat16
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
#undef RB_H_NAME
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

#endif /* RB_CUDA_BF16_H */
