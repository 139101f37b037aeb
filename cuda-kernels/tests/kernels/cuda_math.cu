// The mathematics of CUDA, a kernel for each function; tests/cuda_functions.rs has the results that they must give.
// Both precisions of a function are in one kernel: the single one is compared with the double one.
#include <cuda_runtime.h>

#define BOTH(name)                                                                                             \
  extern "C" __global__ void m_##name(int n, const double *x, double *y, const float *xf, float *yf) {         \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                                             \
    if (i < n) y[i] = name(x[i]), yf[i] = name##f(xf[i]);                                                      \
  }
#define TWO(name)                                                                                              \
  extern "C" __global__ void m_##name(int n, const double *x, double *y, const float *xf, float *yf) {         \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                                             \
    if (i < n) y[i] = name(x[2 * i], x[2 * i + 1]), yf[i] = name##f(xf[2 * i], xf[2 * i + 1]);                 \
  }
BOTH(exp) BOTH(exp2) BOTH(exp10) BOTH(expm1) BOTH(log) BOTH(log2) BOTH(log10) BOTH(log1p)
BOTH(sin) BOTH(cos) BOTH(tan) BOTH(sinpi) BOTH(cospi) BOTH(asin) BOTH(acos) BOTH(atan)
BOTH(sinh) BOTH(cosh) BOTH(tanh) BOTH(asinh) BOTH(acosh) BOTH(atanh)
BOTH(sqrt) BOTH(rsqrt) BOTH(cbrt) BOTH(rcbrt)
BOTH(erf) BOTH(erfc) BOTH(erfcx) BOTH(erfinv) BOTH(erfcinv) BOTH(normcdf) BOTH(normcdfinv)
BOTH(tgamma) BOTH(lgamma) BOTH(j0) BOTH(j1) BOTH(y0) BOTH(y1) BOTH(cyl_bessel_i0) BOTH(cyl_bessel_i1)
BOTH(floor) BOTH(ceil) BOTH(trunc) BOTH(round) BOTH(rint) BOTH(nearbyint) BOTH(fabs) BOTH(logb)
TWO(pow) TWO(atan2) TWO(hypot) TWO(rhypot) TWO(fmod) TWO(remainder) TWO(fdim) TWO(fmin) TWO(fmax) TWO(copysign) TWO(nextafter)

// Those of another form: their results as one number.
extern "C" __global__ void m_other(int n, const double *x, double *y) {
  int i = threadIdx.x;
  double s, c, w;
  float fs, fc;
  int e, q;
  if (i >= n) return;
  double v = x[i], *r = y + 32 * i;
  float f = float(v);
  sincos(v, &s, &c);
  r[0] = s == sin(v) && c == cos(v);
  sincosf(f, &fs, &fc);
  r[1] = fs == sinf(f) && fc == cosf(f);
  sincospi(v, &s, &c);
  r[2] = s == sinpi(v) && c == cospi(v);
  r[3] = frexp(v, &e);
  r[4] = e;
  r[5] = ldexp(r[3], e) == v && scalbn(r[3], e) == v && scalbln(r[3], e) == v;
  r[6] = modf(v, &w);
  r[7] = w;
  r[8] = ilogb(v);
  r[9] = ilogbf(f);
  r[10] = remquo(v, 3.0, &q);
  r[11] = q;
  r[12] = double(llrint(v));
  r[13] = double(llround(v));
  r[14] = lrintf(f) == lrint(double(f)) && lroundf(f) == lround(double(f));
  r[15] = norm3d(v, 2 * v, -3.0);
  r[16] = rnorm3d(v, 2 * v, -3.0);
  r[17] = norm4d(v, 2 * v, -3.0, 1.0);
  r[18] = normf(2, &fs) == hypotf(fs, fc) || &fc != &fs + 1;
  double three[3] = {v, 2 * v, -3};
  r[19] = norm(3, three) == r[15] && rnorm(3, three) == r[16];
  r[20] = jn(3, v);
  r[21] = v > 0 ? yn(3, v) : 0;
  r[22] = isnan(v) + 2 * isinf(v) + 4 * isfinite(v) + 8 * signbit(v);
  r[23] = std::sqrt(fabs(v)) == sqrt(fabs(v)) && std::sin(f) == sinf(f) && std::max(f, 1.0f) == fmaxf(f, 1.0f);
  r[24] = sin(f) == sinf(f) && exp(f) == expf(f) && abs(f) == fabsf(f) && pow(f, 2) == powf(f, 2.0f) && rsqrt(fabs(f)) == rsqrtf(fabsf(f));
  r[25] = fma(v, v, 1.0) == __fma_rn(v, v, 1.0) && fmaf(f, f, 1.0f) == __fmaf_rn(f, f, 1.0f);
  r[26] = fdividef(f, 3.0f) == f / 3.0f && isnan(nan("")) && isnan(nanf(""));
}

// Approximations, and the product rounded down, up and to zero.
extern "C" __global__ void m_fast(int n, const float *x, float *y) {
  int i = threadIdx.x;
  if (i >= n) return;
  float v = x[i], *r = y + 16 * i, s, c;
  __sincosf(v, &s, &c);
  r[0] = __expf(v);
  r[1] = __exp10f(v);
  r[2] = __logf(fabsf(v));
  r[3] = __log2f(fabsf(v));
  r[4] = __log10f(fabsf(v));
  r[5] = __powf(fabsf(v), 1.5f);
  r[6] = s;
  r[7] = c;
  r[8] = __tanf(v);
  r[9] = __fdividef(v, 3.0f);
  r[10] = __saturatef(v);
  r[11] = __frsqrt_rn(fabsf(v));
  r[12] = __fmul_rd(v, v);
  r[13] = __fmul_ru(v, v);
  r[14] = __fmul_rz(v, -v);
  r[15] = __fmaf_rz(v, v, 1.0f);
}
