/* A number of 16 bits, its pair, and all functions whose names both formats share. Included once for half precision and
 * once for bfloat16, so it has no guard. Before: RB_H and RB_H2 (the types), RB_H_RAW and RB_H2_RAW, RB_H_PTX ("f16"),
 * RB_H_NAME (half), RB_H_TO and RB_H_FROM (conversions of hosts), RB_H_ONE, RB_H_ZERO_N, RB_H_NAN (bits of 1, -0, NaN).
 */

struct __align__(2) RB_H_RAW {
  unsigned short x;
};
struct __align__(4) RB_H2_RAW {
  unsigned short x, y;
};

struct __align__(2) RB_H {
  unsigned short __x;

  RB_H() = default;
  __host__ __device__ constexpr RB_H(const RB_H_RAW &r) : __x(r.x) {}
  __host__ __device__ RB_H(float v) : __x(from_float(v)) {}
  __host__ __device__ RB_H(double v) : __x(from_float(rb_cuda::to_odd(v))) {}
#define RB_H_FROM_INTEGER(type) \
  __host__ __device__ RB_H(type v) : __x(from_float(rb_cuda::to_odd(double(v)))) {}
  RB_H_FROM_INTEGER(short)
  RB_H_FROM_INTEGER(unsigned short)
  RB_H_FROM_INTEGER(int)
  RB_H_FROM_INTEGER(unsigned int)
  RB_H_FROM_INTEGER(long)
  RB_H_FROM_INTEGER(unsigned long)
  RB_H_FROM_INTEGER(long long)
  RB_H_FROM_INTEGER(unsigned long long)
#undef RB_H_FROM_INTEGER
  __host__ __device__ operator float() const { return to_float(__x); }
  __host__ __device__ operator RB_H_RAW() const { return RB_H_RAW{__x}; }

  __host__ __device__ static RB_H of(unsigned short bits) { return RB_H(RB_H_RAW{bits}); }
  __host__ __device__ static unsigned short from_float(float v) {
#ifdef __CUDA_ARCH__
    unsigned short r;
    asm("cvt.rn." RB_H_PTX ".f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
#else
    return RB_H_TO(v);
#endif
  }
  __host__ __device__ static float to_float(unsigned short h) {
#ifdef __CUDA_ARCH__
    float r;
    /* bfloat16 is the upper half of single precision. */
    if (RB_H_ONE == 0x3f80) return RB_H_FROM(h);
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
    return r;
#else
    return RB_H_FROM(h);
#endif
  }
};

struct __align__(4) RB_H2 {
  RB_H x, y;

  RB_H2() = default;
  __host__ __device__ RB_H2(const RB_H &a, const RB_H &b) : x(a), y(b) {}
  __host__ __device__ RB_H2(const RB_H2_RAW &r) : x(RB_H::of(r.x)), y(RB_H::of(r.y)) {}
  __host__ __device__ operator RB_H2_RAW() const { return RB_H2_RAW{x.__x, y.__x}; }
  __host__ __device__ static RB_H2 of(unsigned word) { return __builtin_bit_cast(RB_H2, word); }
  __host__ __device__ unsigned word() const { return __builtin_bit_cast(unsigned, *this); }
};

/* One instruction on a GPU, single precision on hosts: one rounding of an exact sum, difference or product to single, and
 * one to 16 bits, give what one rounding gives (24 >= 2 * 11 + 2 bits; Figueroa 1995). */
#ifdef __CUDA_ARCH__
#define RB_H_ASM3(op, a, b, c)                                                                          \
  unsigned short r;                                                                                     \
  asm(op "." RB_H_PTX " %0, %1, %2, %3;" : "=h"(r) : "h"((a).__x), "h"((b).__x), "h"((c).__x));         \
  return RB_H::of(r)
#define RB_H2_ASM3(op, a, b, c)                                                                            \
  unsigned r;                                                                                              \
  asm(op "." RB_H_PTX "x2 %0, %1, %2, %3;" : "=r"(r) : "r"((a).word()), "r"((b).word()), "r"((c).word())); \
  return RB_H2::of(r)
#endif

RB_CUDA_BOTH RB_H __hfma(const RB_H a, const RB_H b, const RB_H c) {
#ifdef __CUDA_ARCH__
  RB_H_ASM3("fma.rn", a, b, c);
#else
  return RB_H(__builtin_fma(double(float(a)), double(float(b)), double(float(c))));
#endif
}
RB_CUDA_BOTH RB_H2 __hfma2(const RB_H2 a, const RB_H2 b, const RB_H2 c) {
#ifdef __CUDA_ARCH__
  RB_H2_ASM3("fma.rn", a, b, c);
#else
  return RB_H2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
#endif
}
/* Sums and products of bfloat16 are instructions from sm_90 on; as fused ones they exist before. */
RB_CUDA_BOTH RB_H __hadd(const RB_H a, const RB_H b) { return __hfma(a, RB_H::of(RB_H_ONE), b); }
RB_CUDA_BOTH RB_H __hsub(const RB_H a, const RB_H b) { return __hfma(b, RB_H::of(RB_H_ONE | 0x8000), a); }
RB_CUDA_BOTH RB_H __hmul(const RB_H a, const RB_H b) { return __hfma(a, b, RB_H::of(RB_H_ZERO_N)); }
RB_CUDA_BOTH RB_H __hdiv(const RB_H a, const RB_H b) { return RB_H(float(a) / float(b)); }
RB_CUDA_BOTH RB_H2 __hadd2(const RB_H2 a, const RB_H2 b) { return __hfma2(a, RB_H2::of(RB_H_ONE * 0x10001u), b); }
RB_CUDA_BOTH RB_H2 __hsub2(const RB_H2 a, const RB_H2 b) { return __hfma2(b, RB_H2::of((RB_H_ONE | 0x8000u) * 0x10001u), a); }
RB_CUDA_BOTH RB_H2 __hmul2(const RB_H2 a, const RB_H2 b) { return __hfma2(a, b, RB_H2::of(RB_H_ZERO_N * 0x10001u)); }
RB_CUDA_BOTH RB_H2 __h2div(const RB_H2 a, const RB_H2 b) { return RB_H2(__hdiv(a.x, b.x), __hdiv(a.y, b.y)); }
RB_CUDA_BOTH RB_H __hneg(const RB_H a) { return RB_H::of((unsigned short)(a.__x ^ 0x8000)); }
RB_CUDA_BOTH RB_H __habs(const RB_H a) { return RB_H::of((unsigned short)(a.__x & 0x7fff)); }
RB_CUDA_BOTH RB_H2 __hneg2(const RB_H2 a) { return RB_H2::of(a.word() ^ 0x80008000u); }
RB_CUDA_BOTH RB_H2 __habs2(const RB_H2 a) { return RB_H2::of(a.word() & 0x7fff7fffu); }
/* Comparisons: false for a NaN; the names with `u` are true then. */
#define RB_H_COMPARE(name, op)                                                                                        \
  RB_CUDA_BOTH bool __h##name(const RB_H a, const RB_H b) { return float(a) op float(b); }                            \
  RB_CUDA_BOTH bool __h##name##u(const RB_H a, const RB_H b) {                                                        \
    float x = a, y = b;                                                                                               \
    return x != x || y != y || x op y;                                                                                \
  }                                                                                                                   \
  RB_CUDA_BOTH RB_H2 __h##name##2(const RB_H2 a, const RB_H2 b) {                                                     \
    return RB_H2::of((__h##name(a.x, b.x) ? unsigned(RB_H_ONE) : 0u) | (__h##name(a.y, b.y) ? unsigned(RB_H_ONE) << 16 : 0u)); \
  }                                                                                                                   \
  RB_CUDA_BOTH unsigned __h##name##2_mask(const RB_H2 a, const RB_H2 b) {                                             \
    return (__h##name(a.x, b.x) ? 0xffffu : 0u) | (__h##name(a.y, b.y) ? 0xffff0000u : 0u);                           \
  }                                                                                                                   \
  RB_CUDA_BOTH bool __hb##name##2(const RB_H2 a, const RB_H2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); } \
  RB_CUDA_BOTH bool __hb##name##u2(const RB_H2 a, const RB_H2 b) { return __h##name##u(a.x, b.x) && __h##name##u(a.y, b.y); }
RB_H_COMPARE(eq, ==)
RB_H_COMPARE(lt, <)
RB_H_COMPARE(le, <=)
RB_H_COMPARE(gt, >)
RB_H_COMPARE(ge, >=)
#undef RB_H_COMPARE
RB_CUDA_BOTH bool __hneu(const RB_H a, const RB_H b) { return !(float(a) == float(b)); }
RB_CUDA_BOTH bool __hne(const RB_H a, const RB_H b) { return float(a) < float(b) || float(a) > float(b); }
RB_CUDA_BOTH RB_H2 __hne2(const RB_H2 a, const RB_H2 b) {
  return RB_H2::of((__hne(a.x, b.x) ? unsigned(RB_H_ONE) : 0u) | (__hne(a.y, b.y) ? unsigned(RB_H_ONE) << 16 : 0u));
}
RB_CUDA_BOTH bool __hbne2(const RB_H2 a, const RB_H2 b) { return __hne(a.x, b.x) && __hne(a.y, b.y); }
RB_CUDA_BOTH bool __hisnan(const RB_H a) { return (a.__x & 0x7fff) > (RB_H_NAN & 0x7f80 & (RB_H_ONE == 0x3c00 ? 0x7c00 : 0x7f80)); }
RB_CUDA_BOTH int __hisinf(const RB_H a) {
  return (a.__x & 0x7fff) == (RB_H_ONE == 0x3c00 ? 0x7c00 : 0x7f80) ? (a.__x & 0x8000 ? -1 : 1) : 0;
}
RB_CUDA_BOTH RB_H2 __hisnan2(const RB_H2 a) {
  return RB_H2::of((__hisnan(a.x) ? unsigned(RB_H_ONE) : 0u) | (__hisnan(a.y) ? unsigned(RB_H_ONE) << 16 : 0u));
}
/* -0 is below 0. A NaN loses, but with `_nan` it wins. */
RB_CUDA_BOTH RB_H __hmin(const RB_H a, const RB_H b) {
  if (__hisnan(a) || __hisnan(b)) return __hisnan(a) ? (__hisnan(b) ? RB_H::of(RB_H_NAN) : b) : a;
  return float(a) < float(b) || (float(a) == float(b) && a.__x & 0x8000) ? a : b;
}
RB_CUDA_BOTH RB_H __hmax(const RB_H a, const RB_H b) {
  if (__hisnan(a) || __hisnan(b)) return __hisnan(a) ? (__hisnan(b) ? RB_H::of(RB_H_NAN) : b) : a;
  return float(a) > float(b) || (float(a) == float(b) && b.__x & 0x8000) ? a : b;
}
RB_CUDA_BOTH RB_H __hmin_nan(const RB_H a, const RB_H b) { return __hisnan(a) || __hisnan(b) ? RB_H::of(RB_H_NAN) : __hmin(a, b); }
RB_CUDA_BOTH RB_H __hmax_nan(const RB_H a, const RB_H b) { return __hisnan(a) || __hisnan(b) ? RB_H::of(RB_H_NAN) : __hmax(a, b); }
RB_CUDA_BOTH RB_H2 __hmin2(const RB_H2 a, const RB_H2 b) { return RB_H2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }
RB_CUDA_BOTH RB_H2 __hmax2(const RB_H2 a, const RB_H2 b) { return RB_H2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
RB_CUDA_BOTH RB_H2 __hmin2_nan(const RB_H2 a, const RB_H2 b) { return RB_H2(__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)); }
RB_CUDA_BOTH RB_H2 __hmax2_nan(const RB_H2 a, const RB_H2 b) { return RB_H2(__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)); }
/* To [0, 1], a NaN to 0. */
RB_CUDA_BOTH RB_H rb_saturated(const RB_H v) { return float(v) > 0 ? (float(v) < 1 ? v : RB_H::of(RB_H_ONE)) : RB_H::of(0); }
RB_CUDA_BOTH RB_H2 rb_saturated(const RB_H2 v) { return RB_H2(rb_saturated(v.x), rb_saturated(v.y)); }
RB_CUDA_BOTH RB_H __hadd_rn(const RB_H a, const RB_H b) { return __hadd(a, b); }
RB_CUDA_BOTH RB_H __hsub_rn(const RB_H a, const RB_H b) { return __hsub(a, b); }
RB_CUDA_BOTH RB_H __hmul_rn(const RB_H a, const RB_H b) { return __hmul(a, b); }
RB_CUDA_BOTH RB_H __hadd_sat(const RB_H a, const RB_H b) { return rb_saturated(__hadd(a, b)); }
RB_CUDA_BOTH RB_H __hsub_sat(const RB_H a, const RB_H b) { return rb_saturated(__hsub(a, b)); }
RB_CUDA_BOTH RB_H __hmul_sat(const RB_H a, const RB_H b) { return rb_saturated(__hmul(a, b)); }
RB_CUDA_BOTH RB_H __hfma_sat(const RB_H a, const RB_H b, const RB_H c) { return rb_saturated(__hfma(a, b, c)); }
RB_CUDA_BOTH RB_H __hfma_relu(const RB_H a, const RB_H b, const RB_H c) { return __hmax_nan(__hfma(a, b, c), RB_H::of(0)); }
RB_CUDA_BOTH RB_H2 __hadd2_rn(const RB_H2 a, const RB_H2 b) { return __hadd2(a, b); }
RB_CUDA_BOTH RB_H2 __hsub2_rn(const RB_H2 a, const RB_H2 b) { return __hsub2(a, b); }
RB_CUDA_BOTH RB_H2 __hmul2_rn(const RB_H2 a, const RB_H2 b) { return __hmul2(a, b); }
RB_CUDA_BOTH RB_H2 __hadd2_sat(const RB_H2 a, const RB_H2 b) { return rb_saturated(__hadd2(a, b)); }
RB_CUDA_BOTH RB_H2 __hsub2_sat(const RB_H2 a, const RB_H2 b) { return rb_saturated(__hsub2(a, b)); }
RB_CUDA_BOTH RB_H2 __hmul2_sat(const RB_H2 a, const RB_H2 b) { return rb_saturated(__hmul2(a, b)); }
RB_CUDA_BOTH RB_H2 __hfma2_sat(const RB_H2 a, const RB_H2 b, const RB_H2 c) { return rb_saturated(__hfma2(a, b, c)); }
RB_CUDA_BOTH RB_H2 __hfma2_relu(const RB_H2 a, const RB_H2 b, const RB_H2 c) {
  return RB_H2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y));
}
/* (a.x + i a.y) (b.x + i b.y) + c */
RB_CUDA_BOTH RB_H2 __hcmadd(const RB_H2 a, const RB_H2 b, const RB_H2 c) {
  return RB_H2(__hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)));
}

#ifndef RB_H_NO_OPERATORS
#define RB_H_OPERATOR(type, op, one)                                                                 \
  RB_CUDA_BOTH type operator op(const type &a, const type &b) { return one(a, b); }                  \
  RB_CUDA_BOTH type &operator op##=(type &a, const type &b) { return a = one(a, b); }
RB_H_OPERATOR(RB_H, +, __hadd)
RB_H_OPERATOR(RB_H, -, __hsub)
RB_H_OPERATOR(RB_H, *, __hmul)
RB_H_OPERATOR(RB_H, /, __hdiv)
RB_H_OPERATOR(RB_H2, +, __hadd2)
RB_H_OPERATOR(RB_H2, -, __hsub2)
RB_H_OPERATOR(RB_H2, *, __hmul2)
RB_H_OPERATOR(RB_H2, /, __h2div)
#undef RB_H_OPERATOR
RB_CUDA_BOTH RB_H operator+(const RB_H &a) { return a; }
RB_CUDA_BOTH RB_H operator-(const RB_H &a) { return __hneg(a); }
RB_CUDA_BOTH RB_H2 operator+(const RB_H2 &a) { return a; }
RB_CUDA_BOTH RB_H2 operator-(const RB_H2 &a) { return __hneg2(a); }
RB_CUDA_BOTH RB_H &operator++(RB_H &a) { return a = __hadd(a, RB_H::of(RB_H_ONE)); }
RB_CUDA_BOTH RB_H &operator--(RB_H &a) { return a = __hsub(a, RB_H::of(RB_H_ONE)); }
RB_CUDA_BOTH RB_H operator++(RB_H &a, int) { RB_H old = a; ++a; return old; }
RB_CUDA_BOTH RB_H operator--(RB_H &a, int) { RB_H old = a; --a; return old; }
RB_CUDA_BOTH bool operator==(const RB_H &a, const RB_H &b) { return __heq(a, b); }
RB_CUDA_BOTH bool operator!=(const RB_H &a, const RB_H &b) { return __hneu(a, b); }
RB_CUDA_BOTH bool operator<(const RB_H &a, const RB_H &b) { return __hlt(a, b); }
RB_CUDA_BOTH bool operator<=(const RB_H &a, const RB_H &b) { return __hle(a, b); }
RB_CUDA_BOTH bool operator>(const RB_H &a, const RB_H &b) { return __hgt(a, b); }
RB_CUDA_BOTH bool operator>=(const RB_H &a, const RB_H &b) { return __hge(a, b); }
RB_CUDA_BOTH bool operator==(const RB_H2 &a, const RB_H2 &b) { return __hbeq2(a, b); }
RB_CUDA_BOTH bool operator!=(const RB_H2 &a, const RB_H2 &b) { return __hneu(a.x, b.x) && __hneu(a.y, b.y); }
RB_CUDA_BOTH bool operator<(const RB_H2 &a, const RB_H2 &b) { return __hblt2(a, b); }
RB_CUDA_BOTH bool operator<=(const RB_H2 &a, const RB_H2 &b) { return __hble2(a, b); }
RB_CUDA_BOTH bool operator>(const RB_H2 &a, const RB_H2 &b) { return __hbgt2(a, b); }
RB_CUDA_BOTH bool operator>=(const RB_H2 &a, const RB_H2 &b) { return __hbge2(a, b); }
#endif

#ifdef __CUDA__
/* By single precision, rounded once more: within one unit of the last place. */
#define RB_H_FUNCTION(name, ...)                                                            \
  RB_CUDA_DEVICE RB_H h##name(const RB_H a) {                                               \
    float v = a;                                                                            \
    return RB_H(float(__VA_ARGS__));                                                        \
  }                                                                                         \
  RB_CUDA_DEVICE RB_H2 h2##name(const RB_H2 a) { return RB_H2(h##name(a.x), h##name(a.y)); }
RB_H_FUNCTION(sqrt, sqrtf(v))
RB_H_FUNCTION(rsqrt, rsqrtf(v))
RB_H_FUNCTION(rcp, 1.0f / v)
RB_H_FUNCTION(exp, expf(v))
RB_H_FUNCTION(exp2, exp2f(v))
RB_H_FUNCTION(exp10, exp10f(v))
RB_H_FUNCTION(log, logf(v))
RB_H_FUNCTION(log2, log2f(v))
RB_H_FUNCTION(log10, log10f(v))
RB_H_FUNCTION(sin, sinf(v))
RB_H_FUNCTION(cos, cosf(v))
RB_H_FUNCTION(tanh, tanhf(v))
RB_H_FUNCTION(tanh_approx, tanhf(v))
RB_H_FUNCTION(ceil, ceilf(v))
RB_H_FUNCTION(floor, floorf(v))
RB_H_FUNCTION(trunc, truncf(v))
RB_H_FUNCTION(rint, rintf(v))
#undef RB_H_FUNCTION

#define RB_H_SHUFFLE(name, at_type)                                                                          \
  RB_CUDA_DEVICE RB_H2 name(unsigned mask, const RB_H2 v, at_type at, int width = 32) {                      \
    return RB_H2::of(name(mask, v.word(), at, width));                                                       \
  }                                                                                                          \
  RB_CUDA_DEVICE RB_H name(unsigned mask, const RB_H v, at_type at, int width = 32) {                        \
    return RB_H::of((unsigned short)name(mask, unsigned(v.__x), at, width));                                 \
  }
RB_H_SHUFFLE(__shfl_sync, int)
RB_H_SHUFFLE(__shfl_up_sync, unsigned)
RB_H_SHUFFLE(__shfl_down_sync, unsigned)
RB_H_SHUFFLE(__shfl_xor_sync, int)
#undef RB_H_SHUFFLE

/* The pair's two sums are atomic each. */
RB_CUDA_DEVICE RB_H atomicAdd(RB_H *p, const RB_H v) {
  unsigned short old;
  asm volatile("atom.relaxed.gpu.add.noftz." RB_H_PTX " %0, [%1], %2;" : "=h"(old) : "l"(p), "h"(v.__x) : "memory");
  return RB_H::of(old);
}
RB_CUDA_DEVICE RB_H2 atomicAdd(RB_H2 *p, const RB_H2 v) {
  unsigned old;
  asm volatile("atom.relaxed.gpu.add.noftz." RB_H_PTX "x2 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v.word()) : "memory");
  return RB_H2::of(old);
}
#endif

#undef RB_H_ASM3
#undef RB_H2_ASM3

/* Names that differ in `half` and `bfloat16` alone. */
#define RB_H_PASTE(a, b, c) a##b##c
#define RB_H_PASTED(a, b, c) RB_H_PASTE(a, b, c)
#define RB_H_NAMED(before, behind) RB_H_PASTED(before, RB_H_NAME, behind)
#define RB_H_NAMED2(before, between, behind) RB_H_PASTED(before, RB_H_NAME, RB_H_PASTED(between, RB_H_NAME, behind))

RB_CUDA_BOTH RB_H RB_H_NAMED(__float2, )(float v) { return RB_H(v); }
RB_CUDA_BOTH RB_H RB_H_NAMED(__float2, _rn)(float v) { return RB_H(v); }
RB_CUDA_BOTH RB_H RB_H_NAMED(__double2, )(double v) { return RB_H(v); }
RB_CUDA_BOTH float RB_H_NAMED(__, 2float)(RB_H v) { return v; }
/* Rounded to the nearest, then corrected by one place. */
RB_CUDA_BOTH RB_H RB_H_NAMED(rb_step_, )(RB_H v, bool up) {
  unsigned short b = v.__x;
  if (!(b & 0x7fff)) return RB_H::of(up ? 1 : 0x8001);
  return RB_H::of((unsigned short)(up == !(b & 0x8000) ? b + 1 : b - 1));
}
RB_CUDA_BOTH RB_H RB_H_NAMED(__float2, _rd)(float v) {
  RB_H r(v);
  return float(r) > v ? RB_H_NAMED(rb_step_, )(r, false) : r;
}
RB_CUDA_BOTH RB_H RB_H_NAMED(__float2, _ru)(float v) {
  RB_H r(v);
  return float(r) < v ? RB_H_NAMED(rb_step_, )(r, true) : r;
}
RB_CUDA_BOTH RB_H RB_H_NAMED(__float2, _rz)(float v) { return v < 0 ? RB_H_NAMED(__float2, _ru)(v) : RB_H_NAMED(__float2, _rd)(v); }
RB_CUDA_BOTH unsigned short RB_H_NAMED(__, _as_ushort)(RB_H v) { return v.__x; }
RB_CUDA_BOTH short RB_H_NAMED(__, _as_short)(RB_H v) { return (short)v.__x; }
RB_CUDA_BOTH RB_H RB_H_NAMED(__ushort_as_, )(unsigned short v) { return RB_H::of(v); }
RB_CUDA_BOTH RB_H RB_H_NAMED(__short_as_, )(short v) { return RB_H::of((unsigned short)v); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__floats2, 2_rn)(float a, float b) { return RB_H2(RB_H(a), RB_H(b)); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__float22, 2_rn)(float2 v) { return RB_H2(RB_H(v.x), RB_H(v.y)); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__float2, 2_rn)(float v) { return RB_H2(RB_H(v), RB_H(v)); }
RB_CUDA_BOTH float2 RB_H_NAMED(__, 22float2)(RB_H2 v) { return float2{v.x, v.y}; }
RB_CUDA_BOTH float __low2float(RB_H2 v) { return v.x; }
RB_CUDA_BOTH float __high2float(RB_H2 v) { return v.y; }
RB_CUDA_BOTH RB_H RB_H_NAMED(__low2, )(RB_H2 v) { return v.x; }
RB_CUDA_BOTH RB_H RB_H_NAMED(__high2, )(RB_H2 v) { return v.y; }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__low2, 2)(RB_H2 v) { return RB_H2(v.x, v.x); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__high2, 2)(RB_H2 v) { return RB_H2(v.y, v.y); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__lows2, 2)(RB_H2 a, RB_H2 b) { return RB_H2(a.x, b.x); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__highs2, 2)(RB_H2 a, RB_H2 b) { return RB_H2(a.y, b.y); }
RB_CUDA_BOTH RB_H2 __lowhigh2highlow(RB_H2 v) { return RB_H2(v.y, v.x); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(__halves2, 2)(RB_H a, RB_H b) { return RB_H2(a, b); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED2(__, 2, 2)(RB_H v) { return RB_H2(v, v); }
RB_CUDA_BOTH RB_H2 RB_H_NAMED(make_, 2)(RB_H a, RB_H b) { return RB_H2(a, b); }

#ifdef __CUDA__
/* To integers by single precision, which has each value; from integers with one rounding. */
#define RB_H_INTEGER(type, name, convert)                                                                        \
  RB_CUDA_DEVICE type RB_H_NAMED(__, 2##name##_rn)(RB_H v) { return (type)__float2##convert##_rn(v); }           \
  RB_CUDA_DEVICE type RB_H_NAMED(__, 2##name##_rz)(RB_H v) { return (type)__float2##convert##_rz(v); }           \
  RB_CUDA_DEVICE type RB_H_NAMED(__, 2##name##_rd)(RB_H v) { return (type)__float2##convert##_rd(v); }           \
  RB_CUDA_DEVICE type RB_H_NAMED(__, 2##name##_ru)(RB_H v) { return (type)__float2##convert##_ru(v); }           \
  RB_CUDA_DEVICE RB_H RB_H_NAMED(__##name##2, _rn)(type v) { return RB_H(v); }
RB_H_INTEGER(int, int, int)
RB_H_INTEGER(unsigned int, uint, uint)
RB_H_INTEGER(short, short, int)
RB_H_INTEGER(unsigned short, ushort, uint)
RB_H_INTEGER(long long, ll, ll)
RB_H_INTEGER(unsigned long long, ull, ull)
#undef RB_H_INTEGER
#endif

#undef RB_H_PASTE
#undef RB_H_PASTED
#undef RB_H_NAMED
#undef RB_H_NAMED2
