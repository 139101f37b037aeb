/* The CUDA Math API in single and double precision, without libdevice. Errors are at most those that its documentation
 * states; most functions are correct to 0.5 to 3 units in the last place (docs/emulated-gpu.md).
 */
#ifndef RB_CUDA_MATH_H
#define RB_CUDA_MATH_H

/* clang's: declarations, which it also names in `std`. */
#include <__clang_cuda_math_forward_declares.h>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "math/remainders.h"
#include "math/single.h"

#define RB_CUDA_1(name) RB_CUDA_DEVICE double name(double x) { return rb_math::name(x); }
/* Of both precisions, the single one by the double one. */
#define RB_CUDA_1F(name)                                                  \
  RB_CUDA_1(name)                                                         \
  RB_CUDA_DEVICE float name##f(float x) { return float(rb_math::name(x)); }
/* Of both precisions, each with its own. */
#define RB_CUDA_1S(name)                                                  \
  RB_CUDA_1(name)                                                         \
  RB_CUDA_DEVICE float name##f(float x) { return rb_math::single::name##f(x); }
RB_CUDA_1S(exp)
RB_CUDA_1S(exp2)
RB_CUDA_1S(exp10)
RB_CUDA_1S(expm1)
RB_CUDA_1S(log)
RB_CUDA_1S(log2)
RB_CUDA_1S(log10)
RB_CUDA_1S(log1p)
RB_CUDA_1S(sin)
RB_CUDA_1S(cos)
RB_CUDA_1S(tan)
RB_CUDA_1S(sinh)
RB_CUDA_1S(cosh)
RB_CUDA_1S(tanh)
RB_CUDA_1S(asinh)
RB_CUDA_1S(acosh)
RB_CUDA_1S(atanh)
RB_CUDA_1F(sinpi)
RB_CUDA_1F(cospi)
RB_CUDA_1F(asin)
RB_CUDA_1F(acos)
RB_CUDA_1F(atan)
RB_CUDA_1F(cbrt)
RB_CUDA_1F(rcbrt)
RB_CUDA_1F(rsqrt)
RB_CUDA_1F(erf)
RB_CUDA_1F(erfc)
RB_CUDA_1F(erfcx)
RB_CUDA_1F(erfinv)
RB_CUDA_1F(erfcinv)
RB_CUDA_1F(normcdf)
RB_CUDA_1F(normcdfinv)
RB_CUDA_1F(tgamma)
RB_CUDA_1F(lgamma)
RB_CUDA_1F(j0)
RB_CUDA_1F(j1)
RB_CUDA_1F(y0)
RB_CUDA_1F(y1)
RB_CUDA_1F(cyl_bessel_i0)
RB_CUDA_1F(cyl_bessel_i1)
RB_CUDA_1F(logb)
#undef RB_CUDA_1S
#undef RB_CUDA_1F
#undef RB_CUDA_1
RB_CUDA_DEVICE double pow(double x, double y) { return rb_math::pow(x, y); }
RB_CUDA_DEVICE float powf(float x, float y) { return rb_math::single::powf(x, y); }
/* clang's `pow` with whole exponents calls them. */
RB_CUDA_DEVICE float powif(float x, int y) { return rb_math::single::powf(x, float(y)); }
RB_CUDA_DEVICE double powi(double x, int y) { return rb_math::pow(x, y); }
RB_CUDA_DEVICE double atan2(double y, double x) { return rb_math::atan2(y, x); }
RB_CUDA_DEVICE float atan2f(float y, float x) { return float(rb_math::atan2(y, x)); }
RB_CUDA_DEVICE void sincos(double x, double *s, double *c) { rb_math::sincos(x, s, c); }
RB_CUDA_DEVICE void sincosf(float x, float *s, float *c) { rb_math::single::sincosf(x, s, c); }
RB_CUDA_DEVICE void sincospi(double x, double *s, double *c) { *s = rb_math::sinpi(x), *c = rb_math::cospi(x); }
RB_CUDA_DEVICE void sincospif(float x, float *s, float *c) { *s = sinpif(x), *c = cospif(x); }
RB_CUDA_DEVICE double jn(int n, double x) { return rb_math::jn(n, x); }
RB_CUDA_DEVICE float jnf(int n, float x) { return float(rb_math::jn(n, x)); }
RB_CUDA_DEVICE double yn(int n, double x) { return rb_math::yn(n, x); }
RB_CUDA_DEVICE float ynf(int n, float x) { return float(rb_math::yn(n, x)); }

/* Norms. */
#define RB_CUDA_NORM(name, inverse, parameters, ...)                                                           \
  RB_CUDA_DEVICE double name parameters(double) {                                                              \
    double v[] = {__VA_ARGS__};                                                                                \
    return rb_math::norm_value(v, sizeof v / sizeof *v);                                                       \
  }                                                                                                            \
  RB_CUDA_DEVICE float name##f parameters(float) {                                                             \
    double v[] = {__VA_ARGS__};                                                                                \
    return float(rb_math::norm_value(v, sizeof v / sizeof *v));                                                \
  }                                                                                                            \
  RB_CUDA_DEVICE double inverse parameters(double) {                                                           \
    double v[] = {__VA_ARGS__};                                                                                \
    return rb_math::norm_inverse(v, sizeof v / sizeof *v);                                                     \
  }                                                                                                            \
  RB_CUDA_DEVICE float inverse##f parameters(float) {                                                          \
    double v[] = {__VA_ARGS__};                                                                                \
    return float(rb_math::norm_inverse(v, sizeof v / sizeof *v));                                              \
  }
#define RB_CUDA_P2(t) (t a, t b)
#define RB_CUDA_P3(t) (t a, t b, t c)
#define RB_CUDA_P4(t) (t a, t b, t c, t d)
RB_CUDA_NORM(hypot, rhypot, RB_CUDA_P2, a, b)
RB_CUDA_NORM(norm3d, rnorm3d, RB_CUDA_P3, a, b, c)
RB_CUDA_NORM(norm4d, rnorm4d, RB_CUDA_P4, a, b, c, d)
#undef RB_CUDA_NORM
#undef RB_CUDA_P2
#undef RB_CUDA_P3
#undef RB_CUDA_P4
namespace rb_math {
/* Of any number of elements: scaled by the largest. */
template <class T> RB_CUDA_BOTH Pair norm_of_array(int n, const T *p, int *e) {
  double largest = 0;
  bool nan_seen = false;
  for (int i = 0; i < n; ++i) {
    double a = fabs(double(p[i]));
    nan_seen |= is_nan(a);
    largest = a > largest ? a : largest;
  }
  *e = 0;
  if (largest == 0 || largest == infinity() || nan_seen) return {largest == infinity() || !nan_seen ? largest : nan(), 0};
  frexp(largest, e);
  Pair s = {0, 0};
  for (int i = 0; i < n; ++i) {
    double a = scaled(double(p[i]), -*e);
    s = add(s, product(a, a));
  }
  return square_root(s);
}
template <class T> RB_CUDA_BOTH double norm_of_array(int n, const T *p, bool inverse) {
  int e;
  Pair r = norm_of_array(n, p, &e);
  if (!inverse) return r.h == 0 || !is_finite(r.h) ? r.h : scaled(value(r), e);
  return r.h == 0 || !is_finite(r.h) ? 1 / r.h : scaled(value(div(Pair{1, 0}, r)), -e);
}
} // namespace rb_math
RB_CUDA_DEVICE double norm(int n, const double *p) { return rb_math::norm_of_array(n, p, false); }
RB_CUDA_DEVICE float normf(int n, const float *p) { return float(rb_math::norm_of_array(n, p, false)); }
RB_CUDA_DEVICE double rnorm(int n, const double *p) { return rb_math::norm_of_array(n, p, true); }
RB_CUDA_DEVICE float rnormf(int n, const float *p) { return float(rb_math::norm_of_array(n, p, true)); }

/* Instructions of their own. */
#define RB_CUDA_BUILTIN(name)                                                          \
  RB_CUDA_DEVICE double name(double x) { return __builtin_##name(x); }                 \
  RB_CUDA_DEVICE float name##f(float x) { return __builtin_##name##f(x); }
RB_CUDA_BUILTIN(fabs)
RB_CUDA_BUILTIN(floor)
RB_CUDA_BUILTIN(ceil)
RB_CUDA_BUILTIN(trunc)
RB_CUDA_BUILTIN(round)
RB_CUDA_BUILTIN(rint)
RB_CUDA_BUILTIN(nearbyint)
RB_CUDA_BUILTIN(sqrt)
#undef RB_CUDA_BUILTIN
#define RB_CUDA_BUILTIN(name)                                                                        \
  RB_CUDA_DEVICE double name(double x, double y) { return __builtin_##name(x, y); }                  \
  RB_CUDA_DEVICE float name##f(float x, float y) { return __builtin_##name##f(x, y); }
RB_CUDA_BUILTIN(fmin)
RB_CUDA_BUILTIN(fmax)
RB_CUDA_BUILTIN(copysign)
#undef RB_CUDA_BUILTIN
RB_CUDA_DEVICE double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
RB_CUDA_DEVICE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
RB_CUDA_DEVICE double fdim(double x, double y) { return x <= y ? 0 : x - y; }
RB_CUDA_DEVICE float fdimf(float x, float y) { return x <= y ? 0 : x - y; }
RB_CUDA_DEVICE double fdivide(double x, double y) { return x / y; }
RB_CUDA_DEVICE double nan(const char *) { return rb_math::nan(); }
RB_CUDA_DEVICE float nanf(const char *) { return __builtin_nanf(""); }
RB_CUDA_DEVICE double saturate(double x) { return __builtin_fmin(__builtin_fmax(x, 0.0), 1.0); }

RB_CUDA_DEVICE double fmod(double x, double y) { return rb_math::fmod(x, y); }
RB_CUDA_DEVICE float fmodf(float x, float y) { return float(rb_math::fmod(x, y)); }
RB_CUDA_DEVICE double remquo(double x, double y, int *q) { return rb_math::remquo(x, y, q); }
RB_CUDA_DEVICE float remquof(float x, float y, int *q) { return float(rb_math::remquo(x, y, q)); }
RB_CUDA_DEVICE double remainder(double x, double y) { int q; return rb_math::remquo(x, y, &q); }
RB_CUDA_DEVICE float remainderf(float x, float y) { int q; return float(rb_math::remquo(x, y, &q)); }
RB_CUDA_DEVICE double frexp(double x, int *e) { return rb_math::frexp(x, e); }
RB_CUDA_DEVICE float frexpf(float x, int *e) { return float(rb_math::frexp(x, e)); }
RB_CUDA_DEVICE double ldexp(double x, int n) { return rb_math::scaled(x, n); }
RB_CUDA_DEVICE float ldexpf(float x, int n) { return float(rb_math::scaled(x, n)); }
RB_CUDA_DEVICE double scalbn(double x, int n) { return rb_math::scaled(x, n); }
RB_CUDA_DEVICE float scalbnf(float x, int n) { return float(rb_math::scaled(x, n)); }
RB_CUDA_DEVICE double scalbln(double x, long n) { return rb_math::scaled(x, n > 9999 ? 9999 : n < -9999 ? -9999 : int(n)); }
RB_CUDA_DEVICE float scalblnf(float x, long n) { return float(scalbln(double(x), n)); }
RB_CUDA_DEVICE double modf(double x, double *whole) {
  *whole = __builtin_trunc(x);
  return __builtin_copysign(rb_math::is_finite(x) ? x - *whole : x != x ? x : 0.0, x);
}
RB_CUDA_DEVICE float modff(float x, float *whole) {
  double w, r = modf(double(x), &w);
  *whole = float(w);
  return float(r);
}
RB_CUDA_DEVICE int ilogb(double x) { return rb_math::ilogb(x); }
RB_CUDA_DEVICE int ilogbf(float x) { return rb_math::ilogb(x); }
RB_CUDA_DEVICE double nextafter(double x, double y) { return rb_math::nextafter(x, y); }
RB_CUDA_DEVICE float nextafterf(float x, float y) { return rb_math::nextafterf(x, y); }
RB_CUDA_DEVICE long lrint(double x) { return __double2ll_rn(x); }
RB_CUDA_DEVICE long lrintf(float x) { return __float2ll_rn(x); }
RB_CUDA_DEVICE long long llrint(double x) { return __double2ll_rn(x); }
RB_CUDA_DEVICE long long llrintf(float x) { return __float2ll_rn(x); }
RB_CUDA_DEVICE long lround(double x) { return __double2ll_rz(round(x)); }
RB_CUDA_DEVICE long lroundf(float x) { return __float2ll_rz(roundf(x)); }
RB_CUDA_DEVICE long long llround(double x) { return __double2ll_rz(round(x)); }
RB_CUDA_DEVICE long long llroundf(float x) { return __float2ll_rz(roundf(x)); }
RB_CUDA_DEVICE int abs(int v) { return v < 0 ? int(0u - unsigned(v)) : v; }
RB_CUDA_DEVICE long labs(long v) { return v < 0 ? long(0ul - (unsigned long)v) : v; }
RB_CUDA_DEVICE long long llabs(long long v) { return v < 0 ? (long long)(0ull - (unsigned long long)v) : v; }
RB_CUDA_DEVICE int __signbitf(float x) { return int(__float_as_uint(x) >> 31); }
RB_CUDA_DEVICE int __signbitd(double x) { return int(rb_math::bits(x) >> 63); }
RB_CUDA_DEVICE int __signbit(double x) { return __signbitd(x); }
RB_CUDA_DEVICE int __finitef(float x) { return x - x == 0; }
RB_CUDA_DEVICE int __finite(double x) { return x - x == 0; }
RB_CUDA_DEVICE int __isfinited(double x) { return x - x == 0; }
RB_CUDA_DEVICE int __isnanf(float x) { return x != x; }
RB_CUDA_DEVICE int __isnan(double x) { return x != x; }
RB_CUDA_DEVICE int __isinff(float x) { return __builtin_fabsf(x) == __builtin_huge_valf(); }
RB_CUDA_DEVICE int __isinf(double x) { return __builtin_fabs(x) == __builtin_huge_val(); }

/* clang's: the overloads for `float` and for integers, also those in `std`. */
#include <__clang_cuda_cmath.h>
/* CUDA's further overloads for `float`. */
#define RB_CUDA_OVERLOAD(name) RB_CUDA_DEVICE float name(float x) { return name##f(x); }
RB_CUDA_OVERLOAD(rsqrt)
RB_CUDA_OVERLOAD(rcbrt)
RB_CUDA_OVERLOAD(sinpi)
RB_CUDA_OVERLOAD(cospi)
RB_CUDA_OVERLOAD(erfinv)
RB_CUDA_OVERLOAD(erfcinv)
RB_CUDA_OVERLOAD(erfcx)
RB_CUDA_OVERLOAD(normcdf)
RB_CUDA_OVERLOAD(normcdfinv)
RB_CUDA_OVERLOAD(exp10)
RB_CUDA_OVERLOAD(j0)
RB_CUDA_OVERLOAD(j1)
RB_CUDA_OVERLOAD(y0)
RB_CUDA_OVERLOAD(y1)
RB_CUDA_OVERLOAD(cyl_bessel_i0)
RB_CUDA_OVERLOAD(cyl_bessel_i1)
#undef RB_CUDA_OVERLOAD
RB_CUDA_DEVICE void sincos(float x, float *s, float *c) { sincosf(x, s, c); }
RB_CUDA_DEVICE void sincospi(float x, float *s, float *c) { sincospif(x, s, c); }
RB_CUDA_DEVICE float jn(int n, float x) { return jnf(n, x); }
RB_CUDA_DEVICE float yn(int n, float x) { return ynf(n, x); }
RB_CUDA_DEVICE float rhypot(float x, float y) { return rhypotf(x, y); }

#endif /* RB_CUDA_MATH_H */
