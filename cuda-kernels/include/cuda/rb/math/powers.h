/* Exponentials, logarithms and powers, hyperbolic functions and their inverses, roots and norms, in double precision. */
#ifndef RB_CUDA_MATH_POWERS_H
#define RB_CUDA_MATH_POWERS_H

#include "pair.h"

namespace rb_math {

/* e^(x) = 2^k (1 + e): e, with |x| <= 1000. Relative error of e about 2^-60. */
RB_MATH Pair exp_minus_1_reduced(Pair x, int *k) {
  double n = __builtin_rint(x.h * RB_MATH_INV_LN2);
  *k = int(n);
  /* n ln 2 in parts: the first product is exact when subtracted, as both are multiples of its last bit. */
  double r = fma(-n, RB_MATH_LN2, x.h);
  Pair low = product(-n, RB_MATH_LN2_LOW);
  Pair y = add(sum(r, x.l), low);
  /* r^2/2 is carried in a pair; the rest of the series is at most r^3/6. */
  Pair square = mul(y, y);
  double q = fma(y.h, polynomial<10>(exp_q + 1, y.h), 0.0) * square.h;
  return add(add(doubled(square, 0.5), y), q);
}
/* e^x as a pair, times 2^-k. */
RB_CUDA_BOTH Pair exp_reduced(Pair x, int *k) { return add(exp_minus_1_reduced(x, k), 1.0); }
/* Of a pair, with all ends. */
RB_MATH double exp_of(Pair x) {
  if (is_nan(x.h)) return x.h;
  if (x.h > 710) return infinity();
  if (x.h < -746) return 0;
  int k;
  Pair e = exp_reduced(x, &k);
  /* A subnormal result is rounded once: scaling rounds the sum again only when it is not exact. */
  if (k < -1022 || (k == -1022 && e.h < 1)) {
    /* 2^1022 (2^k e) + 1 has its last bit where subnormals have theirs. */
    double scale = power_of_2(k + 1022);
    Pair s = sum(1, e.h * scale);
    return plus(plus(s.h, s.l + e.l * scale), -1) * power_of_2(-1022);
  }
  double v = value(e);
  return k > 1022 ? v * power_of_2(k - 1) * 2 : v * power_of_2(k);
}
RB_CUDA_BOTH double exp(double x) { return exp_of(Pair{x, 0}); }
RB_MATH double exp2(double x) {
  if (is_nan(x)) return x;
  if (x > 1100) return infinity();
  if (x < -1100) return 0;
  return exp_of(mul(Pair{RB_MATH_LN2, RB_MATH_LN2_LOW}, x));
}
RB_MATH double exp10(double x) {
  if (is_nan(x)) return x;
  if (x > 330) return infinity();
  if (x < -330) return 0;
  return exp_of(mul(Pair{RB_MATH_LN10, RB_MATH_LN10_LOW}, x));
}
/* e^x - 1 for |x| <= 700. */
RB_MATH Pair exp_minus_1(Pair x) {
  int k;
  Pair e = exp_minus_1_reduced(x, &k);
  if (k == 0) return e;
  double scale = k > 1023 ? power_of_2(1023) : power_of_2(k);
  return add(doubled(e, scale), scale - 1);
}
RB_MATH double expm1(double x) {
  if (is_nan(x) || fabs(x) < 0x1p-54) return x;
  if (x > 700) return exp(x);
  if (x < -50) return -1;
  return value(exp_minus_1(Pair{x, 0}));
}

/* ln(x) of a pair that is positive, finite and at least 2^-1000; relative error about 2^-64. */
RB_MATH Pair log_of(Pair x) {
  int e = exponent(x.h);
  /* m from sqrt(1/2) to sqrt(2) */
  double m = from_bits((bits(x.h) & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > RB_MATH_SQRT_2) {
    m *= 0.5;
    ++e;
  }
  double low = x.l * power_of_2(-(e / 2)) * power_of_2(-(e - e / 2));
  Pair s = div(ordered_sum(m - 1, low), add(sum(m, 1), low));
  Pair z = mul(s, s);
  double tail = z.h * z.h * polynomial<10>(atanh_q, z.h);
  Pair third = {0x1.5555555555555p-2, 0x1.5555555555555p-56};
  Pair series = add(mul(z, third), tail);
  Pair r = doubled(add(s, mul(s, series)), 2);
  return add(add(product(double(e), RB_MATH_LN2), e * RB_MATH_LN2_LOW), r);
}
/* Whether ln(x) is an end; the result then. */
RB_CUDA_BOTH bool log_end(double x, double *r) {
  *r = is_nan(x) ? x : x < 0 ? nan() : x == 0 ? -infinity() : x;
  return !(x > 0) || x == infinity();
}
/* Subnormal numbers are made normal. */
RB_CUDA_BOTH Pair log_any(double x) {
  if (x >= 0x1p-1000) return log_of(Pair{x, 0});
  Pair r = log_of(Pair{x * 0x1p100, 0});
  return add(r, mul(Pair{RB_MATH_LN2, RB_MATH_LN2_LOW}, -100.0));
}
RB_MATH double log(double x) {
  double r;
  return log_end(x, &r) ? r : value(log_any(x));
}
RB_MATH double log2(double x) {
  double r;
  if (log_end(x, &r)) return r;
  int e = exponent(x);
  if (x >= 0x1p-1022 && !(bits(x) & 0xfffffffffffffull)) return e;
  return value(mul(log_any(x), Pair{RB_MATH_INV_LN2, RB_MATH_INV_LN2_LOW}));
}
RB_MATH double log10(double x) {
  double r;
  return log_end(x, &r) ? r : value(mul(log_any(x), Pair{RB_MATH_INV_LN10, RB_MATH_INV_LN10_LOW}));
}
/* ln(1 + t), t >= -1 + 2^-60. */
RB_MATH Pair log_1_plus(Pair t) {
  /* ln((1 + s) / (1 - s)) with s = t / (2 + t): no cancellation near 0. */
  if (fabs(t.h) < 0.25) {
    Pair s = div(t, add(t, 2.0));
    Pair z = mul(s, s);
    double tail = z.h * z.h * polynomial<10>(atanh_q, z.h);
    Pair series = add(mul(z, Pair{0x1.5555555555555p-2, 0x1.5555555555555p-56}), tail);
    return doubled(add(s, mul(s, series)), 2);
  }
  return log_of(add(t, 1.0));
}
RB_MATH double log1p(double x) {
  if (is_nan(x) || x == infinity() || fabs(x) < 0x1p-60) return x;
  if (x <= -1) return x == -1 ? -infinity() : nan();
  return value(log_1_plus(Pair{x, 0}));
}

RB_CUDA_BOTH bool is_odd(double y) {
  return fabs(y) < 0x1p53 && y == __builtin_trunc(y) && ((long long)y & 1);
}
RB_MATH double pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (is_nan(x) || is_nan(y)) return nan();
  double a = fabs(x);
  bool negative = bits(x) >> 63 && is_odd(y);
  double r;
  if (fabs(y) == infinity()) {
    r = a == 1 ? 1 : (a > 1) == (y > 0) ? infinity() : 0;
  } else if (a == 0 || a == infinity()) {
    r = (a == 0) == (y > 0) ? 0 : infinity();
  } else if (x < 0 && y != __builtin_trunc(y)) {
    return nan();
  } else {
    Pair l = log_any(a);
    /* Far beyond the range the product itself could overflow. */
    double rough = l.h * y;
    r = rough > 800 ? infinity() : rough < -800 ? 0 : exp_of(mul(l, y));
  }
  return negative ? -r : r;
}

RB_MATH double sinh(double x) {
  double a = fabs(x);
  if (!(a < 711) || a < 0x1p-30) return a < 711 || is_nan(x) ? x : x * infinity();
  double r;
  if (a > 40) {
    int k;
    Pair e = exp_reduced(Pair{a, 0}, &k);
    r = value(e) * power_of_2(k - 2) * 2;
  } else {
    Pair t = exp_minus_1(Pair{a, 0});
    r = 0.5 * value(add(t, div(t, add(t, 1.0))));
  }
  return x < 0 ? -r : r;
}
RB_MATH double cosh(double x) {
  double a = fabs(x);
  if (!(a < 711)) return is_nan(x) ? x : infinity();
  int k;
  Pair e = exp_reduced(Pair{a, 0}, &k);
  if (a > 40) return value(e) * power_of_2(k - 2) * 2;
  e = doubled(e, power_of_2(k));
  return 0.5 * value(add(e, div(Pair{1, 0}, e)));
}
RB_MATH double tanh(double x) {
  double a = fabs(x);
  if (is_nan(x) || a < 0x1p-30) return x;
  if (a > 20) return x < 0 ? -1 : 1;
  Pair t = exp_minus_1(Pair{2 * a, 0});
  double r = value(div(t, add(t, 2.0)));
  return x < 0 ? -r : r;
}
RB_MATH double asinh(double x) {
  double a = fabs(x);
  if (!is_finite(x) || a < 0x1p-30) return x;
  Pair r;
  if (a > 0x1p30) {
    r = add(log_of(Pair{a, 0}), Pair{RB_MATH_LN2, RB_MATH_LN2_LOW});
  } else {
    /* a + sqrt(a^2 + 1) - 1 = a + a^2 / (1 + sqrt(a^2 + 1)) */
    Pair square = product(a, a);
    Pair root = add(square_root(add(square, 1.0)), 1.0);
    r = log_1_plus(add(div(square, root), a));
  }
  return x < 0 ? -value(r) : value(r);
}
RB_MATH double acosh(double x) {
  if (is_nan(x) || x == infinity()) return x;
  if (x < 1) return nan();
  if (x > 0x1p30) return value(add(log_of(Pair{x, 0}), Pair{RB_MATH_LN2, RB_MATH_LN2_LOW}));
  double t = x - 1;
  Pair root = square_root(mul(sum(x, 1), t));
  return value(log_1_plus(add(root, t)));
}
RB_MATH double atanh(double x) {
  double a = fabs(x);
  if (is_nan(x) || a < 0x1p-30) return x;
  if (a >= 1) return a == 1 ? x * infinity() : nan();
  /* ln(1 + 2 a / (1 - a)) / 2 */
  Pair r = doubled(log_1_plus(div(Pair{2 * a, 0}, sum(1, -a))), 0.5);
  return x < 0 ? -value(r) : value(r);
}

/* The cube root of m 2^(3 e), as a pair times 2^e. */
RB_MATH Pair cube_root(double x, int *e) {
  double m = x;
  int lift = 0;
  if (m < 0x1p-1000) {
    m *= 0x1p120;
    lift = 40;
  }
  int n = exponent(m);
  int third = (n + 3000) / 3 - 1000;
  *e = third - lift;
  m = m * power_of_2(-third) * power_of_2(-third) * power_of_2(-third);
  /* 1 <= m < 8; three steps from a chord. */
  double y = 0.75 + m * (0.32 - 0.0205 * m);
#pragma unroll
  for (int i = 0; i < 4; ++i) y = y - (y * y * y - m) / (3 * y * y);
  Pair square = product(y, y);
  Pair cube = mul(square, y);
  double rest = plus(plus(m, -cube.h), -cube.l);
  return ordered_sum(y, rest / (3 * square.h));
}
RB_MATH double cbrt(double x) {
  if (!is_finite(x) || x == 0) return x;
  int e;
  double r = value(cube_root(fabs(x), &e)) * power_of_2(e);
  return x < 0 ? -r : r;
}
RB_MATH double rcbrt(double x) {
  if (is_nan(x)) return x;
  if (x == 0 || !is_finite(x)) return 1 / x;
  int e;
  Pair y = cube_root(fabs(x), &e);
  double r = value(div(Pair{1, 0}, y)) * power_of_2(-e);
  return x < 0 ? -r : r;
}

/* sqrt(v[0]^2 + ...) as a pair, times 2^e; infinity and NaN in `h`. */
RB_CUDA_BOTH Pair norm_of(const double *v, int n, int *e) {
  double largest = 0;
  bool nan_seen = false, infinite = false;
  for (int i = 0; i < n; ++i) {
    double a = fabs(v[i]);
    nan_seen |= is_nan(a);
    infinite |= a == infinity();
    if (a > largest) largest = a;
  }
  *e = 0;
  if (infinite) return {infinity(), 0};
  if (nan_seen) return {nan(), 0};
  if (largest == 0) return {0, 0};
  int k = exponent(largest);
  if (k < -1021) k = -1021;
  if (k > 1021) k = 1021;
  *e = k;
  /* Subnormal largest: lift once more, so that squares stay normal. */
  double lift = largest < 0x1p-1000 ? 0x1p60 : 1;
  if (lift != 1) *e -= 60;
  Pair s = {0, 0};
  for (int i = 0; i < n; ++i) {
    double a = v[i] * power_of_2(-k) * lift;
    s = add(s, product(a, a));
  }
  return square_root(s);
}
RB_CUDA_BOTH double norm_value(const double *v, int n) {
  int e;
  Pair r = norm_of(v, n, &e);
  return r.h == 0 || !is_finite(r.h) ? r.h : scaled(value(r), e);
}
RB_CUDA_BOTH double norm_inverse(const double *v, int n) {
  int e;
  Pair r = norm_of(v, n, &e);
  return r.h == 0 || !is_finite(r.h) ? 1 / r.h : scaled(value(div(Pair{1, 0}, r)), -e);
}
RB_CUDA_BOTH double rsqrt(double x) {
  if (!(x > 0) || x == infinity()) return 1 / sqrt_of(x);
  double lift = x < 0x1p-1000 ? 0x1p108 : 1;
  Pair r = div(Pair{1, 0}, square_root(Pair{x * lift, 0}));
  return value(r) * (lift == 1 ? 1 : 0x1p54);
}

} // namespace rb_math

#endif /* RB_CUDA_MATH_POWERS_H */
