/* Sine, cosine, tangent and their inverses, in double precision. */
#ifndef RB_CUDA_MATH_ANGLES_H
#define RB_CUDA_MATH_ANGLES_H

#include "powers.h"

namespace rb_math {

RB_CUDA_BOTH unsigned long long high_product(unsigned long long a, unsigned long long b) {
#ifdef __CUDA_ARCH__
  return __nvvm_mulhi_ull(a, b);
#else
  return (unsigned long long)((unsigned __int128)a * b >> 64);
#endif
}
/* x - q pi/2 for |x| >= 2^30, by the bits of 2/pi that matter (Payne and Hanek 1983). Returns q modulo 4. */
RB_MATH int reduce_large(double x, Pair *r) {
  int e = exponent(x) - 52;
  unsigned long long m = (bits(x) & 0xfffffffffffffull) | 0x10000000000000ull;
  /* x = m 2^e. Bits of 2/pi from 2^(2 - e) on; earlier ones give multiples of 8. The first two words are zeros. */
  int word = (e + 64) >> 6, shift = (e + 64) & 63;
  unsigned long long w[4];
  for (int i = 0; i < 4; ++i) {
    unsigned long long a = two_over_pi[word + i], b = two_over_pi[word + i + 1];
    w[i] = shift ? a << shift | b >> (64 - shift) : a;
  }
  /* w is 2/pi 2^e modulo 2^64, with 64 bits before the point: the product's low 64 bits before it are right. */
  unsigned long long p0 = m * w[0], p1 = m * w[1], p2 = m * w[2];
  unsigned long long c2 = high_product(m, w[3]);
  p2 += c2;
  unsigned long long h2 = high_product(m, w[2]) + (p2 < c2);
  p1 += h2;
  unsigned long long h1 = high_product(m, w[1]) + (p1 < h2);
  p0 += h1;
  /* The nearest multiple: the fraction becomes a signed number. */
  int q = int(p0 & 3);
  bool negative = p1 >> 63;
  if (negative) {
    ++q;
    p1 = ~p1;
    p2 = ~p2 + 1;
    p1 += p2 == 0;
  }
  int zeros = p1 ? __builtin_clzll(p1) : 64;
  if (zeros) {
    p1 = zeros < 64 ? p1 << zeros | p2 >> (64 - zeros) : p2;
    p2 = zeros < 64 ? p2 << zeros : 0;
  }
  double h = double(p1 & ~0x7ffull) * 0x1p-64;
  double l = double((p1 & 0x7ffull) << 53 | p2 >> 11) * 0x1p-117;
  Pair f = mul(ordered_sum(h, l), Pair{RB_MATH_HALF_PI, RB_MATH_HALF_PI_LOW});
  double scale = power_of_2(-zeros);
  *r = doubled(f, negative ? -scale : scale);
  return q & 3;
}
/* x = q pi/2 + r with |r| <= pi/4; returns q modulo 4. */
RB_CUDA_BOTH int reduce(double x, Pair *r) {
  double a = fabs(x);
  int q;
  if (a < RB_MATH_HALF_PI / 2) {
    *r = Pair{x, 0};
    return 0;
  }
  if (a < 0x1p30) {
    double n = __builtin_rint(a * RB_MATH_TWO_OVER_PI);
    /* Exact, as both are multiples of the last bit of pi/2's first part. */
    double first = fma(-n, RB_MATH_HALF_PI, a);
    Pair second = product(-n, RB_MATH_HALF_PI_LOW);
    *r = add(sum(first, 0), second);
    *r = add(*r, -n * RB_MATH_HALF_PI_REST);
    q = int((long long)n & 3);
  } else {
    q = reduce_large(a, r);
  }
  if (x < 0) {
    *r = negated(*r);
    q = -q & 3;
  }
  return q;
}
/* Of |r| <= pi/4, as pairs with an error of about 2^-60. */
RB_CUDA_BOTH Pair sine_pair(Pair r) {
  Pair z = mul(r, r);
  /* The first term of the series in a pair. */
  double tail = z.h * z.h * polynomial<7>(sin_q + 1, z.h);
  Pair series = add(mul(z, Pair{-0x1.5555555555555p-3, -0x1.5555555555555p-57}), tail);
  return add(r, mul(r, series));
}
RB_CUDA_BOTH Pair cosine_pair(Pair r) {
  Pair z = mul(r, r);
  double tail = z.h * z.h * polynomial<8>(cos_q, z.h);
  return add(add(doubled(z, -0.5), tail), 1.0);
}
RB_CUDA_BOTH double sine(Pair r) {
  double z = r.h * r.h;
  double s = z * polynomial<8>(sin_q, z);
  return r.h + fma(r.h, s, r.l * (1 - 0.5 * z));
}
RB_CUDA_BOTH double cosine(Pair r) {
  double z = times(r.h, r.h), half = 0.5 * z, w = plus(1, -half);
  /* What squaring has rounded off counts, too. */
  double rest = plus(plus(1, -w), -half) - 0.5 * fma(r.h, r.h, -z);
  return w + (rest + (z * z * polynomial<8>(cos_q, z) - r.h * r.l));
}
/* By the quadrant: the sine of q pi/2 + r. */
RB_CUDA_BOTH double sine_at(int q, Pair r) {
  double v = q & 1 ? cosine(r) : sine(r);
  return q & 2 ? -v : v;
}
RB_MATH double sin(double x) {
  if (!is_finite(x)) return nan();
  Pair r;
  int q = reduce(x, &r);
  return x == 0 ? x : sine_at(q, r);
}
RB_MATH double cos(double x) {
  if (!is_finite(x)) return nan();
  Pair r;
  int q = reduce(x, &r);
  return sine_at(q + 1, r);
}
RB_MATH void sincos(double x, double *s, double *c) {
  *s = sin(x);
  *c = cos(x);
}
RB_MATH double tan(double x) {
  if (!is_finite(x)) return nan();
  if (fabs(x) < 0x1p-30) return x;
  Pair r;
  int q = reduce(x, &r);
  Pair s = sine_pair(r), c = cosine_pair(r);
  return value(q & 1 ? negated(div(c, s)) : div(s, c));
}
/* x = q / 2 + r, times pi. */
RB_CUDA_BOTH int reduce_pi(double x, Pair *r) {
  double n = __builtin_rint(2 * x);
  *r = mul(Pair{RB_MATH_PI, RB_MATH_PI_LOW}, fma(-0.5, n, x));
  return fabs(n) < 0x1p62 ? int((long long)n & 3) : 0;
}
RB_MATH double sinpi(double x) {
  if (!is_finite(x)) return nan();
  if (x == __builtin_trunc(x)) return x == 0 ? x : __builtin_copysign(0.0, x);
  Pair r;
  int q = reduce_pi(x, &r);
  /* A product with a subnormal number has no exact rest. */
  if (fabs(x) < 0x1p-950) return x * 0x1p100 * RB_MATH_PI * 0x1p-100;
  return sine_at(q, r);
}
RB_MATH double cospi(double x) {
  if (!is_finite(x)) return nan();
  Pair r;
  int q = reduce_pi(x, &r);
  return (q & 1) && r.h == 0 ? 0.0 : sine_at(q + 1, r);
}

/* atan(y / x) of 0 <= y <= x, x > 0: by the nearest eighth of the tangent. */
RB_CUDA_BOTH Pair arc(Pair y, Pair x) {
  Pair t = div(y, x);
  int k = int(t.h * 8 + 0.5);
  double c = k * 0.125;
  /* (t - c) / (1 + t c) */
  Pair u = k == 0 ? t : div(add(t, -c), add(mul(t, c), 1.0));
  double z = u.h * u.h;
  double series = u.h * (z * polynomial<7>(atan_q, z));
  return add(Pair{atan_of[2 * k], atan_of[2 * k + 1]}, add(u, series));
}
/* Of pairs that are not both 0, y >= 0: the angle from 0 to pi. */
RB_MATH Pair angle(Pair y, Pair x) {
  bool left = x.h < 0;
  if (left) x = negated(x);
  bool steep = y.h > x.h;
  Pair r = steep ? arc(x, y) : arc(y, x);
  if (steep) r = add(Pair{RB_MATH_HALF_PI, RB_MATH_HALF_PI_LOW}, negated(r));
  return left ? add(Pair{RB_MATH_PI, RB_MATH_PI_LOW}, negated(r)) : r;
}
RB_MATH double atan(double x) {
  double a = fabs(x);
  if (is_nan(x) || a < 0x1p-30) return x;
  double r = a > 0x1p60 ? RB_MATH_HALF_PI : value(angle(Pair{a, 0}, Pair{1, 0}));
  return x < 0 ? -r : r;
}
RB_MATH double atan2(double y, double x) {
  if (is_nan(x) || is_nan(y)) return nan();
  double a = fabs(y), b = fabs(x);
  bool left = bits(x) >> 63;
  double r;
  if (a == infinity() || b == infinity()) {
    r = a != infinity() ? (left ? RB_MATH_PI : 0) : b != infinity() ? RB_MATH_HALF_PI : left ? 1.5 * RB_MATH_HALF_PI : RB_MATH_HALF_PI / 2;
  } else if (a == 0) {
    r = left ? RB_MATH_PI : 0;
  } else if (b == 0) {
    r = RB_MATH_HALF_PI;
  } else {
    /* Both in the middle of the range, so that quotients and rests neither overflow nor vanish. */
    int m = exponent(a > b ? a : b);
    int down = m > 400 ? -600 : m < -400 ? 600 : 0;
    double u = a * power_of_2(down), v = b * power_of_2(down);
    double ratio = u / v;
    if (ratio < 0x1p-500 || v == 0) {
      r = left ? RB_MATH_PI : v == 0 ? RB_MATH_HALF_PI : a / b;
      if (v == 0) r = RB_MATH_HALF_PI;
    } else if (ratio > 0x1p500) {
      r = RB_MATH_HALF_PI;
    } else {
      r = value(angle(Pair{u, 0}, Pair{left ? -v : v, 0}));
    }
  }
  return bits(y) >> 63 ? -r : r;
}
RB_MATH double asin(double x) {
  double a = fabs(x);
  if (a > 1) return nan();
  if (is_nan(x) || a < 0x1p-30) return x;
  Pair c = square_root(mul(sum(1, -a), sum(1, a)));
  double r = value(angle(Pair{a, 0}, c));
  return x < 0 ? -r : r;
}
RB_MATH double acos(double x) {
  if (is_nan(x)) return x;
  if (fabs(x) > 1) return nan();
  Pair s = square_root(mul(sum(1, -fabs(x)), sum(1, fabs(x))));
  return value(angle(s, Pair{x, 0}));
}

} // namespace rb_math

#endif /* RB_CUDA_MATH_ANGLES_H */
