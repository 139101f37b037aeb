/* Numbers of twice double precision: an unevaluated sum of two doubles (Dekker 1971), here exact to about 100 bits.
 *
 * The mathematics computes in pairs where one double would not keep CUDA's error, and rounds once at the end.
 * The files of this folder compile for hosts as well, so that they can be compared with other libraries.
 */
#ifndef RB_CUDA_MATH_PAIR_H
#define RB_CUDA_MATH_PAIR_H

#include "../../host_defines.h"

/* Called, not expanded: the code of one function is long. */
#define RB_MATH static inline __host__ __device__ __attribute__((noinline)) RB_CUDA_NO_LINES
#define RB_MATH_TABLE static __device__ const

namespace rb_math {

struct Pair {
  double h, l;
};

#include "tables.h"

RB_CUDA_BOTH double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
RB_CUDA_BOTH double fabs(double x) { return __builtin_fabs(x); }
RB_CUDA_BOTH unsigned long long bits(double x) { return __builtin_bit_cast(unsigned long long, x); }
RB_CUDA_BOTH double from_bits(unsigned long long b) { return __builtin_bit_cast(double, b); }
RB_CUDA_BOTH bool is_nan(double x) { return x != x; }
RB_CUDA_BOTH bool is_finite(double x) { return fabs(x) < __builtin_huge_val(); }
RB_CUDA_BOTH double infinity() { return __builtin_huge_val(); }
RB_CUDA_BOTH double nan() { return __builtin_nan(""); }
/* 2^n for -1022 <= n <= 1023. */
RB_CUDA_BOTH double power_of_2(int n) { return from_bits((unsigned long long)(1023 + n) << 52); }
RB_CUDA_BOTH double sqrt_of(double x) {
#ifdef __CUDA_ARCH__
  return __nvvm_sqrt_rn_d(x);
#else
  return __builtin_sqrt(x);
#endif
}
/* x 2^n, rounded once. */
RB_MATH double scaled(double x, int n) {
  if (n > 1023) {
    x *= power_of_2(1023);
    n -= 1023;
    if (n > 1023) {
      x *= power_of_2(1023);
      n = n - 1023 > 1023 ? 1023 : n - 1023;
    }
  } else if (n < -1022) {
    /* Steps of 2^-969 leave 53 bits, so only the last one rounds. */
    x *= power_of_2(-969);
    n += 969;
    if (n < -1022) {
      x *= power_of_2(-969);
      n = n + 969 < -1022 ? -1022 : n + 969;
    }
  }
  return x * power_of_2(n);
}
/* Where |x| is 0 or at least 2^-1022. */
RB_CUDA_BOTH int exponent(double x) { return int(bits(x) >> 52 & 0x7ff) - 1023; }

/* Rounded as they stand: clang contracts and, with -ffast-math, reorders others. */
RB_CUDA_BOTH double plus(double a, double b) {
#ifdef __CUDA_ARCH__
  return __nvvm_add_rn_d(a, b);
#else
  return a + b;
#endif
}
RB_CUDA_BOTH double times(double a, double b) {
#ifdef __CUDA_ARCH__
  return __nvvm_mul_rn_d(a, b);
#else
  return a * b;
#endif
}
/* |a| >= |b|. */
RB_CUDA_BOTH Pair ordered_sum(double a, double b) {
  double s = plus(a, b);
  return {s, plus(b, -plus(s, -a))};
}
RB_CUDA_BOTH Pair sum(double a, double b) {
  double s = plus(a, b), t = plus(s, -a);
  return {s, plus(plus(a, -plus(s, -t)), plus(b, -t))};
}
RB_CUDA_BOTH Pair product(double a, double b) {
  double p = times(a, b);
  return {p, fma(a, b, -p)};
}
RB_CUDA_BOTH Pair add(Pair a, Pair b) {
  Pair s = sum(a.h, b.h), t = sum(a.l, b.l);
  s = ordered_sum(s.h, s.l + t.h);
  return ordered_sum(s.h, s.l + t.l);
}
RB_CUDA_BOTH Pair add(Pair a, double b) {
  Pair s = sum(a.h, b);
  return ordered_sum(s.h, s.l + a.l);
}
RB_CUDA_BOTH Pair negated(Pair a) { return {-a.h, -a.l}; }
RB_CUDA_BOTH Pair mul(Pair a, Pair b) {
  Pair p = product(a.h, b.h);
  return ordered_sum(p.h, p.l + (a.h * b.l + a.l * b.h));
}
RB_CUDA_BOTH Pair mul(Pair a, double b) {
  Pair p = product(a.h, b);
  return ordered_sum(p.h, fma(a.l, b, p.l));
}
RB_CUDA_BOTH Pair doubled(Pair a, double power) { return {a.h * power, a.l * power}; }
RB_CUDA_BOTH Pair div(Pair a, Pair b) {
  double q = a.h / b.h;
  /* The remainder a - q b, which is small. */
  Pair p = product(q, b.h);
  double r = plus(plus(a.h, -p.h), -p.l) + (a.l - q * b.l);
  return ordered_sum(q, r / b.h);
}
RB_CUDA_BOTH Pair square_root(Pair a) {
  if (a.h == 0) return {a.h, 0};
  double s = sqrt_of(a.h);
  double r = fma(-s, s, a.h) + a.l;
  return ordered_sum(s, r / (2 * s));
}
RB_CUDA_BOTH double value(Pair a) { return a.h + a.l; }

/* c[0] + c[1] x + ... + c[n - 1] x^(n - 1) */
template <int n> RB_CUDA_BOTH double polynomial(const double *c, double x) {
  double r = c[n - 1];
#pragma unroll
  for (int i = n - 2; i >= 0; --i) r = fma(r, x, c[i]);
  return r;
}
/* Of the interval of `at`, counted in intervals from the table's start. */
template <int n> RB_CUDA_BOTH double piece(const double *table, int count, double at, int skipped = 0) {
  int i = int(at);
  i = i < 0 ? 0 : i >= count ? count - 1 : i;
  return polynomial<n>(table + i * (n + skipped) + skipped, 2 * (at - i) - 1);
}
/* Of a table whose rows begin with a zero of the function. */
template <int n> RB_CUDA_BOTH double piece_by_zero(const double *table, int count, double at, double x) {
  int i = int(at);
  i = i < 0 ? 0 : i >= count ? count - 1 : i;
  double zero = table[i * (n + 2)], rest = table[i * (n + 2) + 1];
  double q = polynomial<n>(table + i * (n + 2) + 2, 2 * (at - i) - 1);
  return is_nan(zero) ? q : q * ((x - zero) - rest);
}

} // namespace rb_math

#endif /* RB_CUDA_MATH_PAIR_H */
