/* Conversions and arithmetic with a named rounding (`_rn`, `_rz`, `_ru`, `_rd`), casts of bits, and fast approximations.
 * Each is one instruction of PTX, which is not contracted with another.
 */
#ifndef RB_CUDA_ROUNDED_H
#define RB_CUDA_ROUNDED_H

#include "../host_defines.h"

RB_CUDA_BOTH float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
RB_CUDA_BOTH unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
RB_CUDA_BOTH float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
RB_CUDA_BOTH int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
RB_CUDA_BOTH double __longlong_as_double(long long v) { return __builtin_bit_cast(double, v); }
RB_CUDA_BOTH long long __double_as_longlong(double v) { return __builtin_bit_cast(long long, v); }
RB_CUDA_BOTH int __double2hiint(double v) { return int(__double_as_longlong(v) >> 32); }
RB_CUDA_BOTH int __double2loint(double v) { return int(__double_as_longlong(v)); }
RB_CUDA_BOTH double __hiloint2double(int hi, int lo) {
  return __longlong_as_double((long long)((unsigned long long)unsigned(hi) << 32 | unsigned(lo)));
}

#define RB_CUDA_ONE(name, op, to, to_reg, from, from_reg)               \
  RB_CUDA_DEVICE to name(from a) {                                      \
    to r;                                                               \
    asm(op " %0, %1;" : "=" to_reg(r) : from_reg(a));                   \
    return r;                                                           \
  }
/* To integers: `i` in the name of the rounding. */
#define RB_CUDA_TO_INTEGER(name, to, to_reg, to_suffix, from, from_reg, from_suffix)                              \
  RB_CUDA_ONE(name##_rn, "cvt.rni." to_suffix "." from_suffix, to, to_reg, from, from_reg)                        \
  RB_CUDA_ONE(name##_rz, "cvt.rzi." to_suffix "." from_suffix, to, to_reg, from, from_reg)                        \
  RB_CUDA_ONE(name##_ru, "cvt.rpi." to_suffix "." from_suffix, to, to_reg, from, from_reg)                        \
  RB_CUDA_ONE(name##_rd, "cvt.rmi." to_suffix "." from_suffix, to, to_reg, from, from_reg)
#define RB_CUDA_TO_FLOAT(name, to, to_reg, to_suffix, from, from_reg, from_suffix)                                \
  RB_CUDA_ONE(name##_rn, "cvt.rn." to_suffix "." from_suffix, to, to_reg, from, from_reg)                         \
  RB_CUDA_ONE(name##_rz, "cvt.rz." to_suffix "." from_suffix, to, to_reg, from, from_reg)                         \
  RB_CUDA_ONE(name##_ru, "cvt.rp." to_suffix "." from_suffix, to, to_reg, from, from_reg)                         \
  RB_CUDA_ONE(name##_rd, "cvt.rm." to_suffix "." from_suffix, to, to_reg, from, from_reg)
RB_CUDA_TO_INTEGER(__float2int, int, "r", "s32", float, "f", "f32")
RB_CUDA_TO_INTEGER(__float2uint, unsigned, "r", "u32", float, "f", "f32")
RB_CUDA_TO_INTEGER(__float2ll, long long, "l", "s64", float, "f", "f32")
RB_CUDA_TO_INTEGER(__float2ull, unsigned long long, "l", "u64", float, "f", "f32")
RB_CUDA_TO_INTEGER(__double2int, int, "r", "s32", double, "d", "f64")
RB_CUDA_TO_INTEGER(__double2uint, unsigned, "r", "u32", double, "d", "f64")
RB_CUDA_TO_INTEGER(__double2ll, long long, "l", "s64", double, "d", "f64")
RB_CUDA_TO_INTEGER(__double2ull, unsigned long long, "l", "u64", double, "d", "f64")
RB_CUDA_TO_FLOAT(__int2float, float, "f", "f32", int, "r", "s32")
RB_CUDA_TO_FLOAT(__uint2float, float, "f", "f32", unsigned, "r", "u32")
RB_CUDA_TO_FLOAT(__ll2float, float, "f", "f32", long long, "l", "s64")
RB_CUDA_TO_FLOAT(__ull2float, float, "f", "f32", unsigned long long, "l", "u64")
RB_CUDA_TO_FLOAT(__ll2double, double, "d", "f64", long long, "l", "s64")
RB_CUDA_TO_FLOAT(__ull2double, double, "d", "f64", unsigned long long, "l", "u64")
RB_CUDA_TO_FLOAT(__double2float, float, "f", "f32", double, "d", "f64")
RB_CUDA_ONE(__int2double_rn, "cvt.rn.f64.s32", double, "d", int, "r")
RB_CUDA_ONE(__uint2double_rn, "cvt.rn.f64.u32", double, "d", unsigned, "r")
#undef RB_CUDA_TO_FLOAT
#undef RB_CUDA_TO_INTEGER

#define RB_CUDA_TWO(name, op, type, reg)                                \
  RB_CUDA_DEVICE type name(type a, type b) {                            \
    type r;                                                             \
    asm(op " %0, %1, %2;" : "=" reg(r) : reg(a), reg(b));               \
    return r;                                                           \
  }
#define RB_CUDA_THREE(name, op, type, reg)                              \
  RB_CUDA_DEVICE type name(type a, type b, type c) {                    \
    type r;                                                             \
    asm(op " %0, %1, %2, %3;" : "=" reg(r) : reg(a), reg(b), reg(c));   \
    return r;                                                           \
  }
/* `f` and `d`: single and double precision. */
#define RB_CUDA_ARITHMETIC(f, fma, suffix, type, reg, ptx, cuda)                           \
  RB_CUDA_TWO(__##f##add_##cuda, "add." ptx "." suffix, type, reg)                         \
  RB_CUDA_TWO(__##f##sub_##cuda, "sub." ptx "." suffix, type, reg)                         \
  RB_CUDA_TWO(__##f##mul_##cuda, "mul." ptx "." suffix, type, reg)                         \
  RB_CUDA_TWO(__##f##div_##cuda, "div." ptx "." suffix, type, reg)                         \
  RB_CUDA_THREE(__##fma##_##cuda, "fma." ptx "." suffix, type, reg)                        \
  RB_CUDA_ONE(__##f##rcp_##cuda, "rcp." ptx "." suffix, type, reg, type, reg)              \
  RB_CUDA_ONE(__##f##sqrt_##cuda, "sqrt." ptx "." suffix, type, reg, type, reg)
#define RB_CUDA_ROUNDINGS(f, fma, suffix, type, reg)             \
  RB_CUDA_ARITHMETIC(f, fma, suffix, type, reg, "rn", rn)        \
  RB_CUDA_ARITHMETIC(f, fma, suffix, type, reg, "rz", rz)        \
  RB_CUDA_ARITHMETIC(f, fma, suffix, type, reg, "rp", ru)        \
  RB_CUDA_ARITHMETIC(f, fma, suffix, type, reg, "rm", rd)
RB_CUDA_ROUNDINGS(f, fmaf, "f32", float, "f")
RB_CUDA_ROUNDINGS(d, fma, "f64", double, "d")
#undef RB_CUDA_ROUNDINGS
#undef RB_CUDA_ARITHMETIC
RB_CUDA_DEVICE float __frsqrt_rn(float x) { return __double2float_rn(1.0 / __dsqrt_rn(double(x))); }

/* Approximations with the errors that the CUDA C++ Programming Guide states ("Intrinsic Functions"). */
RB_CUDA_ONE(rb_cuda_ex2, "ex2.approx.f32", float, "f", float, "f")
RB_CUDA_ONE(__log2f, "lg2.approx.f32", float, "f", float, "f")
RB_CUDA_ONE(__sinf, "sin.approx.f32", float, "f", float, "f")
RB_CUDA_ONE(__cosf, "cos.approx.f32", float, "f", float, "f")
RB_CUDA_TWO(__fdividef, "div.approx.f32", float, "f")
RB_CUDA_DEVICE float __expf(float x) { return rb_cuda_ex2(x * 1.4426950408889634f); }
RB_CUDA_DEVICE float __exp10f(float x) { return rb_cuda_ex2(x * 3.3219280948873623f); }
RB_CUDA_DEVICE float __logf(float x) { return __log2f(x) * 0.6931471805599453f; }
RB_CUDA_DEVICE float __log10f(float x) { return __log2f(x) * 0.3010299956639812f; }
RB_CUDA_DEVICE float __powf(float x, float y) { return rb_cuda_ex2(y * __log2f(x)); }
RB_CUDA_DEVICE float __tanf(float x) { return __fdividef(__sinf(x), __cosf(x)); }
RB_CUDA_DEVICE float __tanhf(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
RB_CUDA_DEVICE void __sincosf(float x, float *s, float *c) {
  *s = __sinf(x);
  *c = __cosf(x);
}
RB_CUDA_ONE(__saturatef, "cvt.sat.f32.f32", float, "f", float, "f")
RB_CUDA_DEVICE float fdividef(float a, float b) { return a / b; }
#undef RB_CUDA_THREE
#undef RB_CUDA_TWO
#undef RB_CUDA_ONE

#endif /* RB_CUDA_ROUNDED_H */
