/* Integer functions: bits, products, sums of differences, minima, and the SIMD functions on bytes and half words. */
#ifndef RB_CUDA_INTEGERS_H
#define RB_CUDA_INTEGERS_H

#include "../host_defines.h"

RB_CUDA_DEVICE int __popc(unsigned v) { return __builtin_popcount(v); }
RB_CUDA_DEVICE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
RB_CUDA_DEVICE int __ffs(int v) { return __builtin_ffs(v); }
RB_CUDA_DEVICE int __ffsll(long long v) { return __builtin_ffsll(v); }
RB_CUDA_DEVICE int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
RB_CUDA_DEVICE int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
RB_CUDA_DEVICE unsigned __brev(unsigned v) { return __builtin_bitreverse32(v); }
RB_CUDA_DEVICE unsigned long long __brevll(unsigned long long v) { return __builtin_bitreverse64(v); }
RB_CUDA_DEVICE unsigned __byte_perm(unsigned a, unsigned b, unsigned s) { return __nvvm_prmt(a, b, s & 0x7777u); }

RB_CUDA_DEVICE unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
  unsigned r;
  asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(n));
  return r;
}
RB_CUDA_DEVICE unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned n) {
  unsigned r;
  asm("shf.l.clamp.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(n));
  return r;
}
RB_CUDA_DEVICE unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
  unsigned r;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(n));
  return r;
}
RB_CUDA_DEVICE unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned n) {
  unsigned r;
  asm("shf.r.clamp.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(lo), "r"(hi), "r"(n));
  return r;
}

RB_CUDA_DEVICE int __hadd(int a, int b) { return int(((long long)a + b) >> 1); }
RB_CUDA_DEVICE int __rhadd(int a, int b) { return int(((long long)a + b + 1) >> 1); }
RB_CUDA_DEVICE unsigned __uhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b) >> 1); }
RB_CUDA_DEVICE unsigned __urhadd(unsigned a, unsigned b) { return unsigned(((unsigned long long)a + b + 1) >> 1); }
RB_CUDA_DEVICE int __mul24(int a, int b) { return int(unsigned(int(unsigned(a) << 8) >> 8) * unsigned(int(unsigned(b) << 8) >> 8)); }
RB_CUDA_DEVICE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
RB_CUDA_DEVICE int __mulhi(int a, int b) { return int(((long long)a * b) >> 32); }
RB_CUDA_DEVICE unsigned __umulhi(unsigned a, unsigned b) { return unsigned(((unsigned long long)a * b) >> 32); }
RB_CUDA_DEVICE long long __mul64hi(long long a, long long b) { return __nvvm_mulhi_ll(a, b); }
RB_CUDA_DEVICE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return __nvvm_mulhi_ull(a, b); }
RB_CUDA_DEVICE unsigned __sad(int a, int b, unsigned c) { return c + (a > b ? unsigned(a) - unsigned(b) : unsigned(b) - unsigned(a)); }
RB_CUDA_DEVICE unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }

/* Dot products of four bytes, and of two half words with two of the bytes (`lo`, `hi`). */
#define RB_CUDA_DOT(type, byte, half)                                                                       \
  RB_CUDA_DEVICE type __dp4a(type a, type b, type c) {                                                      \
    unsigned sum = unsigned(c);                                                                             \
    for (int i = 0; i < 32; i += 8) sum += unsigned(int((byte)(a >> i)) * int((byte)(b >> i)));             \
    return type(sum);                                                                                       \
  }                                                                                                         \
  RB_CUDA_DEVICE type __dp2a_lo(type a, type b, type c) {                                                   \
    return type(unsigned(c) + unsigned(int((half)a) * int((byte)b)) +                                       \
                unsigned(int((half)(a >> 16)) * int((byte)(b >> 8))));                                      \
  }                                                                                                         \
  RB_CUDA_DEVICE type __dp2a_hi(type a, type b, type c) { return __dp2a_lo(a, type(b >> 16), c); }
RB_CUDA_DOT(int, signed char, short)
RB_CUDA_DOT(unsigned, unsigned char, unsigned short)
#undef RB_CUDA_DOT

/* `min` and `max` of CUDA: of the usual arithmetic type of both operands. */
#define RB_CUDA_MINMAX(a_type, b_type, type)                                                                     \
  RB_CUDA_BOTH type min(const a_type a, const b_type b) { return (type)a < (type)b ? (type)a : (type)b; }        \
  RB_CUDA_BOTH type max(const a_type a, const b_type b) { return (type)a > (type)b ? (type)a : (type)b; }
RB_CUDA_MINMAX(int, int, int)
RB_CUDA_MINMAX(unsigned, unsigned, unsigned)
RB_CUDA_MINMAX(int, unsigned, unsigned)
RB_CUDA_MINMAX(unsigned, int, unsigned)
RB_CUDA_MINMAX(long, long, long)
RB_CUDA_MINMAX(unsigned long, unsigned long, unsigned long)
RB_CUDA_MINMAX(long, unsigned long, unsigned long)
RB_CUDA_MINMAX(unsigned long, long, unsigned long)
RB_CUDA_MINMAX(long long, long long, long long)
RB_CUDA_MINMAX(unsigned long long, unsigned long long, unsigned long long)
RB_CUDA_MINMAX(long long, unsigned long long, unsigned long long)
RB_CUDA_MINMAX(unsigned long long, long long, unsigned long long)
#undef RB_CUDA_MINMAX
/* A NaN loses, as with fmin and fmax. */
#define RB_CUDA_MINMAX(a_type, b_type, type, suffix)                                                             \
  RB_CUDA_BOTH type min(const a_type a, const b_type b) { return __builtin_fmin##suffix((type)a, (type)b); }     \
  RB_CUDA_BOTH type max(const a_type a, const b_type b) { return __builtin_fmax##suffix((type)a, (type)b); }
RB_CUDA_MINMAX(float, float, float, f)
RB_CUDA_MINMAX(double, double, double, )
RB_CUDA_MINMAX(float, double, double, )
RB_CUDA_MINMAX(double, float, double, )
#undef RB_CUDA_MINMAX
RB_CUDA_BOTH unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
RB_CUDA_BOTH unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
RB_CUDA_BOTH long long llmin(long long a, long long b) { return a < b ? a : b; }
RB_CUDA_BOTH long long llmax(long long a, long long b) { return a > b ? a : b; }
RB_CUDA_BOTH unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
RB_CUDA_BOTH unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

/* Of each part of a word. */
namespace rb_cuda {
template <class P, class F> __device__ __forceinline__ unsigned each_part(unsigned a, unsigned b, F f) {
  unsigned r = 0;
  const unsigned mask = sizeof(P) == 1 ? 0xffu : 0xffffu;
  for (unsigned i = 0; i < 32; i += 8 * sizeof(P)) r |= (unsigned(f(int(P(a >> i)), int(P(b >> i)))) & mask) << i;
  return r;
}
template <class P> __device__ __forceinline__ int clamped(int v) {
  const int low = P(-1) < P(0) ? -(1 << (8 * sizeof(P) - 1)) : 0;
  const int high = P(-1) < P(0) ? (1 << (8 * sizeof(P) - 1)) - 1 : (1 << (8 * sizeof(P))) - 1;
  return v < low ? low : v > high ? high : v;
}
} // namespace rb_cuda
#define RB_CUDA_SIMD(name, part, expression)                                                            \
  RB_CUDA_DEVICE unsigned name(unsigned x, unsigned y) {                                                \
    return rb_cuda::each_part<part>(x, y, [](int a, int b) { return (expression); });                   \
  }
#define RB_CUDA_SIMD_SIGNED(n, part)                                                    \
  RB_CUDA_SIMD(__vaddss##n, part, rb_cuda::clamped<part>(a + b))                        \
  RB_CUDA_SIMD(__vsubss##n, part, rb_cuda::clamped<part>(a - b))                        \
  RB_CUDA_SIMD(__vmins##n, part, a < b ? a : b)                                         \
  RB_CUDA_SIMD(__vmaxs##n, part, a > b ? a : b)                                         \
  RB_CUDA_SIMD(__vabsdiffs##n, part, a > b ? a - b : b - a)                             \
  RB_CUDA_SIMD(__vcmpgts##n, part, a > b ? -1 : 0)                                      \
  RB_CUDA_SIMD(__vcmpges##n, part, a >= b ? -1 : 0)                                     \
  RB_CUDA_SIMD(__vcmplts##n, part, a < b ? -1 : 0)                                      \
  RB_CUDA_SIMD(__vcmples##n, part, a <= b ? -1 : 0)                                     \
  RB_CUDA_DEVICE unsigned __vabs##n(unsigned x) {                                       \
    return rb_cuda::each_part<part>(x, 0, [](int a, int) { return a < 0 ? -a : a; });   \
  }                                                                                     \
  RB_CUDA_DEVICE unsigned __vneg##n(unsigned x) {                                       \
    return rb_cuda::each_part<part>(x, 0, [](int a, int) { return -a; });               \
  }
#define RB_CUDA_SIMD_UNSIGNED(n, part)                                                  \
  RB_CUDA_SIMD(__vadd##n, part, a + b)                                                  \
  RB_CUDA_SIMD(__vsub##n, part, a - b)                                                  \
  RB_CUDA_SIMD(__vaddus##n, part, rb_cuda::clamped<part>(a + b))                        \
  RB_CUDA_SIMD(__vsubus##n, part, rb_cuda::clamped<part>(a - b))                        \
  RB_CUDA_SIMD(__vavgu##n, part, (a + b + 1) >> 1)                                      \
  RB_CUDA_SIMD(__vhaddu##n, part, (a + b) >> 1)                                         \
  RB_CUDA_SIMD(__vminu##n, part, a < b ? a : b)                                         \
  RB_CUDA_SIMD(__vmaxu##n, part, a > b ? a : b)                                         \
  RB_CUDA_SIMD(__vabsdiffu##n, part, a > b ? a - b : b - a)                             \
  RB_CUDA_SIMD(__vcmpeq##n, part, a == b ? -1 : 0)                                      \
  RB_CUDA_SIMD(__vcmpne##n, part, a != b ? -1 : 0)                                      \
  RB_CUDA_SIMD(__vcmpgtu##n, part, a > b ? -1 : 0)                                      \
  RB_CUDA_SIMD(__vcmpgeu##n, part, a >= b ? -1 : 0)                                     \
  RB_CUDA_SIMD(__vcmpltu##n, part, a < b ? -1 : 0)                                      \
  RB_CUDA_SIMD(__vcmpleu##n, part, a <= b ? -1 : 0)                                     \
  RB_CUDA_SIMD(__vseteq##n, part, a == b ? 1 : 0)                                       \
  RB_CUDA_SIMD(__vsetne##n, part, a != b ? 1 : 0)                                       \
  RB_CUDA_DEVICE unsigned __vsadu##n(unsigned x, unsigned y) {                          \
    unsigned s = 0;                                                                     \
    for (unsigned i = 0; i < 32; i += 8 * sizeof(part)) {                               \
      int a = (part)(x >> i), b = (part)(y >> i);                                           \
      s += unsigned(a > b ? a - b : b - a);                                             \
    }                                                                                   \
    return s;                                                                           \
  }
RB_CUDA_SIMD_UNSIGNED(2, unsigned short)
RB_CUDA_SIMD_UNSIGNED(4, unsigned char)
RB_CUDA_SIMD_SIGNED(2, short)
RB_CUDA_SIMD_SIGNED(4, signed char)
#undef RB_CUDA_SIMD_UNSIGNED
#undef RB_CUDA_SIMD_SIGNED
#undef RB_CUDA_SIMD

#endif /* RB_CUDA_INTEGERS_H */
