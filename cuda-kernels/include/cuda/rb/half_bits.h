/* Conversions of half precision and bfloat16 on hosts, by bits. On a GPU they are instructions. */
#ifndef RB_CUDA_HALF_BITS_H
#define RB_CUDA_HALF_BITS_H

#include "../vector_types.h"

namespace rb_cuda {
RB_CUDA_BOTH unsigned bits_of(float v) { return __builtin_bit_cast(unsigned, v); }
RB_CUDA_BOTH float of_bits(unsigned v) { return __builtin_bit_cast(float, v); }
/* The float next to a double towards 0, its last bit set when it is not exact: rounded once more, it is rounded as the
 * double would be (Boldo and Melquiond 2005). */
RB_CUDA_BOTH float to_odd(double v) {
  float f = float(v);
  if (double(f) == v || v != v || f - f != 0) return f;
  unsigned b = bits_of(f);
  if ((double(f) > v) == (v > 0)) --b;
  return of_bits(b | 1);
}
/* To the nearest, of two the even one. */
RB_CUDA_BOTH unsigned short host_to_f16(float v) {
  unsigned b = bits_of(v), sign = b >> 16 & 0x8000, a = b & 0x7fffffff;
  if (a > 0x7f800000) return 0x7fff;
  if (a >= 0x477ff000) return (unsigned short)(sign | 0x7c00);
  if (a < 0x38800000) {
    /* Subnormal: the addition rounds at the last bit of halves. */
    float r = of_bits(a) + 0.5f;
    return (unsigned short)(sign | (bits_of(r) - 0x3f000000));
  }
  unsigned odd = a >> 13 & 1;
  return (unsigned short)(sign | (a - 0x38000000 + 0xfff + odd) >> 13);
}
RB_CUDA_BOTH float host_from_f16(unsigned short h) {
  unsigned sign = unsigned(h & 0x8000) << 16, a = h & 0x7fff;
  if (a >= 0x7c00) return of_bits(sign | 0x7f800000 | (a & 0x3ff) << 13);
  if (a >= 0x400) return of_bits(sign | ((a << 13) + 0x38000000));
  float r = float(a) * 0x1p-24f;
  return of_bits(bits_of(r) | sign);
}
RB_CUDA_BOTH unsigned short host_to_bf16(float v) {
  unsigned b = bits_of(v);
  if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (unsigned short)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
RB_CUDA_BOTH float host_from_bf16(unsigned short h) { return of_bits(unsigned(h) << 16); }
} // namespace rb_cuda

#endif /* RB_CUDA_HALF_BITS_H */
