/* Remainders, exact by integers; parts of a number; neighbours. */
#ifndef RB_CUDA_MATH_REMAINDERS_H
#define RB_CUDA_MATH_REMAINDERS_H

#include "pair.h"

namespace rb_math {

/* The significand as an integer, and its exponent; x finite and not 0. */
RB_CUDA_BOTH unsigned long long significand(double x, int *e) {
  unsigned long long b = bits(x), m = b & 0xfffffffffffffull;
  int biased = int(b >> 52 & 0x7ff);
  if (biased) {
    *e = biased - 1075;
    return m | 0x10000000000000ull;
  }
  *e = -1074;
  return m;
}
/* x mod y of 0 <= x finite, y > 0 finite; the quotient modulo 2^31 in `q`. */
RB_MATH double modulo(double x, double y, unsigned *q) {
  *q = 0;
  if (x < y) return x;
  int ex, ey;
  unsigned long long m = significand(x, &ex), d = significand(y, &ey);
  *q = unsigned(m / d);
  m %= d;
  /* Eleven bits a step: m < 2^53. */
  for (int n = ex - ey; n > 0;) {
    int step = n < 11 ? n : 11;
    m <<= step;
    *q = (*q << step) + unsigned(m / d);
    m %= d;
    n -= step;
  }
  *q &= 0x7fffffff;
  return scaled(double(m), ey);
}
RB_CUDA_BOTH bool remainder_end(double x, double y, double *r) {
  *r = is_nan(x) || is_nan(y) || !is_finite(x) || y == 0 ? nan() : x;
  return !is_finite(x) || is_nan(y) || y == 0 || !is_finite(y);
}
RB_MATH double fmod(double x, double y) {
  double r;
  if (remainder_end(x, y, &r)) return r;
  unsigned q;
  return __builtin_copysign(modulo(fabs(x), fabs(y), &q), x);
}
RB_MATH double remquo(double x, double y, int *quotient) {
  double r;
  *quotient = 0;
  if (remainder_end(x, y, &r)) return r;
  unsigned q;
  double b = fabs(y);
  r = modulo(fabs(x), b, &q);
  /* The nearest multiple; of two the even one. r + r is exact unless it overflows, and then b - r is. */
  double other = b - r;
  if (r > other || (r == other && (q & 1))) {
    r = -other;
    ++q;
  }
  bool negative = bits(x) >> 63;
  *quotient = (bits(x) ^ bits(y)) >> 63 ? -int(q & 0x7fffffff) : int(q & 0x7fffffff);
  return r == 0 ? __builtin_copysign(0.0, x) : negative ? -r : r;
}
RB_MATH double frexp(double x, int *e) {
  *e = 0;
  if (!is_finite(x) || x == 0) return x;
  double lift = fabs(x) < 0x1p-1022 ? 0x1p54 : 1;
  unsigned long long b = bits(x * lift);
  *e = int(b >> 52 & 0x7ff) - 1022 - (lift == 1 ? 0 : 54);
  return from_bits((b & 0x800fffffffffffffull) | 0x3fe0000000000000ull);
}
RB_CUDA_BOTH int ilogb(double x) {
  if (x == 0 || is_nan(x)) return -2147483647 - 1;
  if (!is_finite(x)) return 2147483647;
  int e;
  frexp(x, &e);
  return e - 1;
}
RB_CUDA_BOTH double logb(double x) {
  return x == 0 ? -infinity() : is_nan(x) ? x : !is_finite(x) ? infinity() : ilogb(x);
}
RB_MATH double nextafter(double x, double y) {
  if (is_nan(x) || is_nan(y)) return nan();
  if (x == y) return y;
  if (x == 0) return __builtin_copysign(0x1p-1074, y);
  return from_bits(bits(x) + ((x < y) == (x > 0) ? 1 : -1));
}
RB_MATH float nextafterf(float x, float y) {
  if (x != x || y != y) return __builtin_nanf("");
  if (x == y) return y;
  if (x == 0) return __builtin_copysignf(0x1p-149f, y);
  return __builtin_bit_cast(float, __builtin_bit_cast(unsigned, x) + ((x < y) == (x > 0) ? 1 : -1));
}

} // namespace rb_math

#endif /* RB_CUDA_MATH_REMAINDERS_H */
