/* Single precision: evaluated in double precision, whose 29 further bits make pairs needless, and rounded once. */
#ifndef RB_CUDA_MATH_SINGLE_H
#define RB_CUDA_MATH_SINGLE_H

#include "special.h"

namespace rb_math {
namespace single {

/* e^x; beyond single precision's range it is 0 or infinity when it is rounded. */
RB_CUDA_BOTH double exp(double x) {
  if (!(x < 200)) return is_nan(x) ? x : infinity();
  if (x < -200) return 0;
  double n = __builtin_rint(x * RB_MATH_INV_LN2);
  double r = fma(-n, RB_MATH_LN2, x);
  return fma(r * r, polynomial<8>(exp_q, r), 1 + r) * power_of_2(int(n));
}
RB_CUDA_BOTH double log(double x) {
  if (!(x > 0) || x == infinity()) return is_nan(x) ? x : x < 0 ? nan() : x == 0 ? -infinity() : x;
  int e = exponent(x);
  double m = from_bits((bits(x) & 0xfffffffffffffull) | 0x3ff0000000000000ull);
  if (m > RB_MATH_SQRT_2) {
    m *= 0.5;
    ++e;
  }
  double s = (m - 1) / (m + 1), z = s * s;
  double series = fma(z * z, polynomial<6>(atanh_q, z), z * 0x1.5555555555555p-2);
  return fma(double(e), RB_MATH_LN2, 2 * fma(s, series, s));
}
/* x - q pi/2; returns q modulo 4. */
RB_CUDA_BOTH int reduce(double x, double *r) {
  if (fabs(x) < 0x1p28) {
    double n = __builtin_rint(x * RB_MATH_TWO_OVER_PI);
    *r = fma(-n, RB_MATH_HALF_PI_LOW, fma(-n, RB_MATH_HALF_PI, x));
    return int(n) & 3;
  }
  Pair p;
  int q = rb_math::reduce(x, &p);
  *r = p.h;
  return q;
}
RB_CUDA_BOTH double sine(double r) {
  double z = r * r;
  return fma(r, z * polynomial<6>(sin_q, z), r);
}
RB_CUDA_BOTH double cosine(double r) {
  double z = r * r;
  return fma(z * z, polynomial<6>(cos_q, z), fma(-0.5, z, 1.0));
}
RB_CUDA_BOTH double sine_at(int q, double r) {
  double v = q & 1 ? cosine(r) : sine(r);
  return q & 2 ? -v : v;
}
RB_MATH float sinf(float x) {
  double r;
  int q = reduce(x, &r);
  return x == 0 ? x : float(x - x == 0 ? sine_at(q, r) : nan());
}
RB_MATH float cosf(float x) {
  double r;
  int q = reduce(x, &r);
  return float(x - x == 0 ? sine_at(q + 1, r) : nan());
}
RB_MATH void sincosf(float x, float *s, float *c) {
  double r;
  int q = reduce(x, &r);
  *s = x == 0 ? x : float(x - x == 0 ? sine_at(q, r) : nan());
  *c = float(x - x == 0 ? sine_at(q + 1, r) : nan());
}
RB_MATH float tanf(float x) {
  double r;
  int q = reduce(x, &r);
  if (!(x - x == 0) || x == 0) return x == 0 ? x : float(nan());
  double s = sine(r), c = cosine(r);
  return float(q & 1 ? -c / s : s / c);
}
RB_MATH float expf(float x) { return float(exp(x)); }
RB_MATH float exp2f(float x) { return float(exp(x * RB_MATH_LN2)); }
RB_MATH float exp10f(float x) { return float(exp(x * RB_MATH_LN10)); }
/* x < 200: the sum of the series where e^x - 1 would lose too many bits. */
RB_CUDA_BOTH double exp_minus_1(double x) {
  return fabs(x) < 0.01 ? fma(x * x, polynomial<6>(exp_q, x), x) : exp(x) - 1;
}
RB_MATH float expm1f(float x) { return x == 0 ? x : float(exp_minus_1(x)); }
RB_MATH float logf(float x) { return float(log(x)); }
RB_MATH float log2f(float x) { return float(log(x) * RB_MATH_INV_LN2); }
RB_MATH float log10f(float x) { return float(log(x) * RB_MATH_INV_LN10); }
/* ln(1 + t) */
RB_CUDA_BOTH double log_1_plus(double t) {
  if (fabs(t) > 0.01 || is_nan(t)) return log(1 + t);
  double s = t / (2 + t), z = s * s;
  return 2 * fma(s * z, fma(z, 0.2, 0x1.5555555555555p-2), s);
}
RB_MATH float log1pf(float x) { return x == 0 ? x : float(log_1_plus(x)); }
RB_MATH float powf(float x, float y) {
  double a = fabs(x);
  if (y == 0 || x == 1) return 1;
  if (a > 0 && a < infinity() && fabs(y) < infinity()) {
    bool whole = y == __builtin_truncf(y);
    if (x < 0 && !whole) return float(nan());
    double r = exp(y * log(a));
    return float(x < 0 && is_odd(y) ? -r : r);
  }
  return float(pow(x, y));
}
RB_MATH float sinhf(float x) {
  double a = fabs(x);
  if (x == 0) return x;
  double t = exp_minus_1(a);
  double r = t > 1e30 ? 0.5 * t : 0.5 * (t + t / (t + 1));
  return float(x < 0 ? -r : r);
}
RB_MATH float coshf(float x) {
  double e = exp(fabs(x));
  return float(e > 1e30 ? 0.5 * e : 0.5 * (e + 1 / e));
}
RB_MATH float tanhf(float x) {
  double a = fabs(x);
  if (x == 0) return x;
  double t = exp_minus_1(2 * a);
  double r = t > 1e30 ? 1 : t / (t + 2);
  return float(x < 0 ? -r : r);
}
RB_MATH float asinhf(float x) {
  double a = fabs(x);
  if (x == 0) return x;
  double r = log_1_plus(a + a * a / (1 + sqrt_of(a * a + 1)));
  if (a == infinity()) r = a;
  return float(x < 0 ? -r : r);
}
RB_MATH float acoshf(float x) {
  double t = double(x) - 1;
  return float(x < 1 ? nan() : x > 1e30f ? log(x) + RB_MATH_LN2 : log_1_plus(t + sqrt_of(t * (double(x) + 1))));
}
RB_MATH float atanhf(float x) {
  double a = fabs(x);
  if (x == 0) return x;
  if (a >= 1) return a == 1 ? x * __builtin_huge_valf() : float(nan());
  double r = 0.5 * log_1_plus(2 * a / (1 - a));
  return float(x < 0 ? -r : r);
}

} // namespace single
} // namespace rb_math

#endif /* RB_CUDA_MATH_SINGLE_H */
