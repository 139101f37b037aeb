/* Error functions, the normal distribution, gamma and Bessel functions, in double precision. */
#ifndef RB_CUDA_MATH_SPECIAL_H
#define RB_CUDA_MATH_SPECIAL_H

#include "angles.h"

namespace rb_math {

/* e^(x^2) erfc(x), x >= 0. */
RB_CUDA_BOTH double scaled_erfc(double x) {
  Pair s = sum(4, x);
  double t = 4 / s.h;
  double v = t * piece<12>(erfcx_p, 16, t * 16);
  /* Of the x that belongs to the rounded t; with erfcx' = 2 x erfcx - 2/sqrt(pi) it becomes that of x. */
  double off = (fma(-t, s.h, 4) - t * s.l) / -t;
  return v + off * (2 * x * v - 2 * RB_MATH_INV_SQRT_PI);
}
/* erfc of x >= 0 as a pair's two parts. */
RB_CUDA_BOTH double erfc_of(Pair x) {
  if (x.h > 28) return 0;
  Pair square = mul(x, x);
  int k;
  Pair e = exp_reduced(negated(square), &k);
  double v = scaled_erfc(x.h);
  /* erfcx' = 2 x erfcx - 2/sqrt(pi), for the low part. */
  v += x.l * (2 * x.h * v - 2 * RB_MATH_INV_SQRT_PI);
  return scaled(value(mul(e, v)), k);
}
RB_MATH double erf(double x) {
  double a = fabs(x);
  if (is_nan(x)) return x;
  if (a < 1) {
    double z = x * x;
    if (a < 0x1p-500) return x * 0x1p100 * (2 * RB_MATH_INV_SQRT_PI) * 0x1p-100;
    return fma(x, polynomial<14>(erf_q, 2 * z - 1), x);
  }
  double r = a > 6 ? 1 : 1 - erfc_of(Pair{a, 0});
  return x < 0 ? -r : r;
}
RB_MATH double erfc(double x) {
  if (is_nan(x)) return x;
  if (x < 0.5) return x < -6 ? 2 : x < -1 ? 2 - erfc_of(Pair{-x, 0}) : 1 - erf(x);
  return erfc_of(Pair{x, 0});
}
RB_MATH double erfcx(double x) {
  if (is_nan(x)) return x;
  if (x >= 0) return x > 1e5 ? RB_MATH_INV_SQRT_PI / x * (1 - 0.5 / x / x) : scaled_erfc(x);
  if (x < -27) return infinity();
  return value(add(doubled(Pair{exp_of(product(x, x)), 0}, 2), -scaled_erfc(-x)));
}
RB_MATH double normcdf(double x) {
  if (is_nan(x)) return x;
  if (x > 40) return 1;
  if (x < -40) return 0;
  Pair a = mul(Pair{RB_MATH_SQRT_HALF, RB_MATH_SQRT_HALF_LOW}, -x);
  if (a.h > 0) {
    /* The half is taken before the last rounding. */
    Pair square = mul(a, a);
    int k;
    Pair e = exp_reduced(negated(square), &k);
    double v = scaled_erfc(a.h);
    v += a.l * (2 * a.h * v - 2 * RB_MATH_INV_SQRT_PI);
    return scaled(value(mul(e, v)), k - 1);
  }
  return 1 - 0.5 * erfc_of(negated(a));
}
/* The x >= 0 with erfc(x) = z, 0 < z <= 1: from Winitzki's approximation. */
RB_CUDA_BOTH double inverse_erfc(double z) {
  double l = log(z) + log1p(1 - z);
  double b = 4.330746750799873 + 0.5 * l;
  double x = sqrt_of(sqrt_of(b * b - l / 0.147) - b);
  /* ln erfc is nearly a parabola: steps of Newton's method on it. */
  for (int i = 0; i < 3; ++i) {
    double v = scaled_erfc(x);
    x += (log(v) - x * x - log(z)) * v / (2 * RB_MATH_INV_SQRT_PI);
  }
  double e = exp_of(product(x, x));
  if (e < infinity()) x += (scaled_erfc(x) - z * e) / (2 * RB_MATH_INV_SQRT_PI);
  return x;
}
RB_MATH double erfinv(double y) {
  double a = fabs(y);
  if (!(a <= 1)) return nan();
  if (a == 1) return y * infinity();
  if (a < 0x1p-30) return a < 0x1p-900 ? y * 0x1p100 * (0.5 / RB_MATH_INV_SQRT_PI) * 0x1p-100 : y * (0.5 / RB_MATH_INV_SQRT_PI);
  double x;
  if (a < 0.5) {
    /* Near 0 erfc has lost y's bits. */
    double l = log1p(-a * a), b = 4.330746750799873 + 0.5 * l;
    x = sqrt_of(sqrt_of(b * b - l / 0.147) - b);
    for (int i = 0; i < 3; ++i) {
      double f = (erf(x) - a) * exp(x * x) / (2 * RB_MATH_INV_SQRT_PI);
      x -= f / (1 + x * f);
    }
  } else {
    x = inverse_erfc(1 - a);
  }
  return y < 0 ? -x : x;
}
RB_MATH double erfcinv(double z) {
  if (!(z >= 0 && z <= 2)) return nan();
  if (z == 0 || z == 2) return z == 0 ? infinity() : -infinity();
  if (z > 0.5 && z < 1.5) return erfinv(1 - z);
  return z < 1 ? inverse_erfc(z) : -inverse_erfc(2 - z);
}
RB_MATH double normcdfinv(double p) {
  if (!(p >= 0 && p <= 1)) return nan();
  return -RB_MATH_SQRT_2 * erfcinv(2 * p);
}

/* Gamma of 1 <= x <= 12. */
RB_CUDA_BOTH Pair gamma_middle(double x) {
  Pair r = {1, 0};
  while (x >= 2) {
    x -= 1;
    r = mul(r, x);
  }
  return mul(r, piece<15>(gamma_p, 4, (x - 1) * 4));
}
/* ln Gamma of x > 10, by Stirling's series. */
RB_CUDA_BOTH Pair log_gamma_large(double x) {
  double w = 10 / x;
  double rest = polynomial<10>(stirling_q, w * w) / x;
  Pair r = mul(add(log_of(Pair{x, 0}), -1.0), x);
  r = add(r, negated(doubled(log_of(Pair{x, 0}), 0.5)));
  return add(add(r, Pair{RB_MATH_HALF_LN_2PI, RB_MATH_HALF_LN_2PI_LOW}), rest);
}
/* Of x > 0. */
RB_CUDA_BOTH double gamma_positive(double x) {
  if (x > 172) return infinity();
  if (x < 1) return value(div(gamma_middle(x + 1), Pair{x, 0}));
  return x < 12 ? value(gamma_middle(x)) : exp_of(log_gamma_large(x));
}
RB_MATH double tgamma(double x) {
  if (is_nan(x) || x == infinity()) return x;
  if (x == 0) return 1 / x;
  if (x < 0 && x == __builtin_trunc(x)) return nan();
  if (fabs(x) < 0x1p-60) return 1 / x;
  if (x > 0.5) return gamma_positive(x);
  if (x > -0.5) {
    /* Gamma(1 + x) / x, and 1 + x is not exact. */
    Pair s = sum(1, x);
    double g = s.h < 1 ? value(div(gamma_middle(s.h + 1), Pair{s.h, 0})) : value(gamma_middle(s.h));
    /* Gamma' = Gamma psi; psi(s) about -Euler near 1. */
    double psi = -RB_MATH_EULER + 1.6449340668482264 * (s.h - 1);
    return g * (1 + s.l * psi) / x;
  }
  if (x < -184) return is_odd(__builtin_floor(x)) ? -0.0 : 0.0;
  /* pi / (sin(pi x) Gamma(1 - x)), in two factors where Gamma overflows. */
  Pair s = sum(1, -x);
  double sine = sinpi(x);
  if (s.h < 12) return value(div(Pair{RB_MATH_PI, RB_MATH_PI_LOW}, mul(gamma_middle(s.h), sine)));
  Pair l = log_gamma_large(s.h);
  l = add(l, s.l * log(s.h));
  double half = exp_of(doubled(l, -0.5));
  return RB_MATH_PI / sine * half * half;
}
/* Of x > 0. Near its zeros 1 and 2 these are factors. */
RB_CUDA_BOTH Pair log_gamma_positive(double x) {
  double y = x < 0.5 ? x + 1 : x;
  Pair r;
  if (y < 2.5) r = product((y - 1) * (y - 2), piece<18>(lgamma_p, 8, (y - 0.5) * 4));
  else r = y < 12 ? log_of(gamma_middle(y)) : log_gamma_large(y);
  return x < 0.5 ? add(r, negated(log_any(x))) : r;
}
RB_MATH double lgamma(double x) {
  if (is_nan(x)) return x;
  if (!is_finite(x)) return infinity();
  if (x > 0) return x > 1e306 ? infinity() : value(log_gamma_positive(x));
  if (x == __builtin_trunc(x)) return infinity();
  double a = -x;
  if (a < 0x1p-60) return -log(a);
  /* ln(pi / (a |sin(pi x)|)) - ln Gamma(a), all in pairs. */
  Pair r;
  int q = reduce_pi(a, &r);
  Pair s = q & 1 ? cosine_pair(r) : sine_pair(r);
  if (s.h < 0) s = negated(s);
  Pair v = log_of(div(Pair{RB_MATH_PI, RB_MATH_PI_LOW}, mul(s, a)));
  return value(add(v, negated(log_gamma_positive(a))));
}

/* sqrt(2 / (pi x)) (P cos c - Q sin c), c = x - (2 n + 1) pi / 4; for Y with another quarter turn. */
RB_CUDA_BOTH double bessel_far(int n, bool second, double x) {
  if (x == infinity()) return 0;
  double w = 64 / (x * x), u = 2 * w - 1;
  double p = n ? polynomial<18>(p1_q, u) : polynomial<18>(p0_q, u);
  double q = (n ? polynomial<18>(q1_q, u) : polynomial<18>(q0_q, u)) * 8 / x;
  double s, c;
  sincos(x, &s, &c);
  /* Of c, without the root of one half: (cos + sin, sin - cos) for n = 0, (sin - cos, -sin - cos) for 1. */
  double cosine = n ? s - c : c + s, sine = n ? -s - c : s - c;
  double r = second ? p * sine + q * cosine : p * cosine - q * sine;
  return r * RB_MATH_INV_SQRT_PI / sqrt_of(x);
}
RB_MATH double j0(double x) {
  x = fabs(x);
  return is_nan(x) ? x : x < 8 ? piece_by_zero<14>(j0_p, 8, x, x) : bessel_far(0, false, x);
}
RB_MATH double j1(double x) {
  double a = fabs(x);
  if (is_nan(x)) return x;
  double r = a < 8 ? piece_by_zero<14>(j1_p, 8, a, a) : bessel_far(1, false, a);
  return bits(x) >> 63 ? -r : r;
}
RB_CUDA_BOTH bool bessel_end(double x, double *r) {
  *r = is_nan(x) || x < 0 ? nan() : x == 0 ? -infinity() : 0;
  return !(x > 0) || x == infinity();
}
RB_MATH double y0(double x) {
  double r;
  if (bessel_end(x, &r)) return r;
  if (x >= 8) return bessel_far(0, true, x);
  if (x >= 0.5) return piece_by_zero<21>(y0_p, 15, (x - 0.5) * 2, x);
  return fma(RB_MATH_TWO_OVER_PI * log(x), j0(x), polynomial<7>(y0_q, x * x));
}
RB_MATH double y1(double x) {
  double r;
  if (bessel_end(x, &r)) return r;
  if (x >= 8) return bessel_far(1, true, x);
  if (x >= 0.5) return piece_by_zero<21>(y1_p, 15, (x - 0.5) * 2, x);
  return RB_MATH_TWO_OVER_PI * (log(x) * j1(x) - 1 / x) + x * polynomial<7>(y1_q, x * x);
}
/* Upwards where that is stable, else downwards from an order that is large enough (Miller's algorithm). */
RB_MATH double jn(int n, double x) {
  if (is_nan(x) || n < 0) return nan();
  if (n == 0) return j0(x);
  if (n == 1) return j1(x);
  double a = fabs(x);
  if (a == 0 || a == infinity()) return 0;
  double r;
  if (a > n) {
    double before = j0(a), now = j1(a);
    for (int i = 1; i < n; ++i) {
      double next = 2 * i / a * now - before;
      before = now;
      now = next;
    }
    r = now;
  } else {
    int m = (n + 20 + int(sqrt_of(60.0 * n))) & ~1;
    double after = 0, now = 1e-300, total = 0, wanted = 0;
    for (int i = m; i > 0; --i) {
      double before = 2 * i / a * now - after;
      after = now;
      now = before;
      if (i - 1 == n) wanted = now;
      if (fabs(now) > 1e250) {
        now *= 1e-250;
        after *= 1e-250;
        total *= 1e-250;
        wanted *= 1e-250;
      }
      if ((i - 1) % 2 == 0) total += i == 1 ? now : 2 * now;
    }
    r = wanted / total;
  }
  return x < 0 && n & 1 ? -r : r;
}
RB_MATH double yn(int n, double x) {
  double r;
  if (n < 0) return nan();
  if (n == 0) return y0(x);
  if (n == 1 || bessel_end(x, &r)) return y1(x);
  double before = y0(x), now = y1(x);
  for (int i = 1; i < n && now > -infinity(); ++i) {
    double next = 2 * i / x * now - before;
    before = now;
    now = next;
  }
  return now;
}
RB_MATH double cyl_bessel_i0(double x) {
  x = fabs(x);
  if (is_nan(x)) return x;
  if (x < 8) return piece<18>(i0_p, 4, x / 2);
  if (x > 720) return infinity();
  double e = exp(x / 2);
  return e * (piece<13>(i0_far, 4, (8 / x - 1e-6) / (1 - 1e-6) * 4) / sqrt_of(x)) * e;
}
RB_MATH double cyl_bessel_i1(double x) {
  double a = fabs(x);
  if (is_nan(x)) return x;
  if (a < 8) return x * piece<18>(i1_p, 4, a / 2);
  if (a > 720) return x * infinity();
  double e = exp(a / 2);
  double r = e * (piece<13>(i1_far, 4, (8 / a - 1e-6) / (1 - 1e-6) * 4) / sqrt_of(a)) * e;
  return x < 0 ? -r : r;
}

} // namespace rb_math

#endif /* RB_CUDA_MATH_SPECIAL_H */
