// CUDA functions in common use, a kernel for each; tests/cuda_functions.rs has the results that they must give.
#include <cstdio>
#include <cassert>

#include <cuda_runtime.h>

typedef unsigned long long u64;
typedef long long i64;

// Of 32-bit inputs a, b, c; each kernel's thread has its own. The result's bits are the low ones of a word.
#define WORD(name, ...)                                                       \
  extern "C" __global__ void w_##name(const uint3 *in, u64 *out) {            \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                            \
    unsigned a = in[i].x, b = in[i].y, c = in[i].z;                           \
    (void)a, (void)b, (void)c;                                                \
    out[i] = u64(__VA_ARGS__);                                                \
  }
#define F(v) __uint_as_float(v)
#define BITS(v) __float_as_uint(v)
WORD(popc, __popc(a))
WORD(clz, __clz(a))
WORD(ffs, __ffs(a))
WORD(brev, __brev(a))
WORD(byte_perm, __byte_perm(a, b, c))
WORD(funnelshift_l, __funnelshift_l(a, b, c))
WORD(funnelshift_lc, __funnelshift_lc(a, b, c))
WORD(funnelshift_r, __funnelshift_r(a, b, c))
WORD(funnelshift_rc, __funnelshift_rc(a, b, c))
WORD(mulhi, unsigned(__mulhi(int(a), int(b))))
WORD(umulhi, __umulhi(a, b))
WORD(mul24, unsigned(__mul24(int(a), int(b))))
WORD(umul24, __umul24(a, b))
WORD(hadd, unsigned(__hadd(int(a), int(b))))
WORD(rhadd, unsigned(__rhadd(int(a), int(b))))
WORD(uhadd, __uhadd(a, b))
WORD(urhadd, __urhadd(a, b))
WORD(sad, __sad(int(a), int(b), c))
WORD(usad, __usad(a, b, c))
WORD(dp4a, unsigned(__dp4a(int(a), int(b), int(c))))
WORD(dp4a_u, __dp4a(a, b, c))
WORD(dp2a_lo, unsigned(__dp2a_lo(int(a), int(b), int(c))))
WORD(dp2a_hi_u, __dp2a_hi(a, b, c))
WORD(vadd4, __vadd4(a, b))
WORD(vsub2, __vsub2(a, b))
WORD(vaddss2, __vaddss2(a, b))
WORD(vsubus4, __vsubus4(a, b))
WORD(vabsdiffu4, __vabsdiffu4(a, b))
WORD(vsadu4, __vsadu4(a, b))
WORD(vmaxs4, __vmaxs4(a, b))
WORD(vminu2, __vminu2(a, b))
WORD(vavgu4, __vavgu4(a, b))
WORD(vcmpeq4, __vcmpeq4(a, b))
WORD(vcmpgts2, __vcmpgts2(a, b))
WORD(min, unsigned(min(int(a), int(b))))
WORD(max, max(a, b))
WORD(abs, unsigned(abs(int(a))))
WORD(fns, __fns(a, b & 31, int(c % 9) - 4))
// Of single precision.
WORD(float2int_rn, unsigned(__float2int_rn(F(a))))
WORD(float2int_rz, unsigned(__float2int_rz(F(a))))
WORD(float2uint_ru, __float2uint_ru(F(a)))
WORD(float2ll_rd, __float2ll_rd(F(a)))
WORD(int2float_rz, BITS(__int2float_rz(int(a))))
WORD(uint2float_ru, BITS(__uint2float_ru(a)))
WORD(fadd_rd, BITS(__fadd_rd(F(a), F(b))))
WORD(fmul_ru, BITS(__fmul_ru(F(a), F(b))))
WORD(fmaf_rz, BITS(__fmaf_rz(F(a), F(b), F(c))))
WORD(fdiv_rn, BITS(__fdiv_rn(F(a), F(b))))
WORD(frcp_rn, BITS(__frcp_rn(F(a))))
WORD(fsqrt_rn, BITS(__fsqrt_rn(F(a))))
WORD(frsqrt_rn, BITS(__frsqrt_rn(F(a))))
WORD(fminf, BITS(fminf(F(a), F(b))))
WORD(fmaxf, BITS(max(F(a), F(b))))
WORD(copysignf, BITS(copysignf(F(a), F(b))))
WORD(saturatef, BITS(__saturatef(F(a))))
WORD(isnan, isnan(F(a)) | isinf(F(a)) << 1 | isfinite(F(a)) << 2 | signbit(F(a)) << 3)
WORD(double2float_rz, BITS(__double2float_rz(double(F(a)) * 1.1)))
WORD(hiloint2double, u64(__double_as_longlong(__hiloint2double(int(a), int(b)))))
WORD(vectors, make_uint4(a, b, c, 7).w + unsigned(make_float3(1, 2, 3).z) + make_int2(int(a), 1).x + make_uchar4(1, 2, 3, 4).z +
                  unsigned(make_double2(1, 2).y) + make_ushort3(1, 2, 3).y + make_longlong2(4, 5).x)

// Of 64-bit inputs.
#define LONG(name, ...)                                                       \
  extern "C" __global__ void l_##name(const ulonglong2 *in, u64 *out) {       \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                            \
    u64 a = in[i].x, b = in[i].y;                                             \
    (void)a, (void)b;                                                         \
    out[i] = u64(__VA_ARGS__);                                                \
  }
#define D(v) __longlong_as_double(i64(v))
#define DBITS(v) __double_as_longlong(v)
LONG(popcll, __popcll(a))
LONG(clzll, __clzll(a))
LONG(ffsll, __ffsll(a))
LONG(brevll, __brevll(a))
LONG(mul64hi, __mul64hi(i64(a), i64(b)))
LONG(umul64hi, __umul64hi(a, b))
LONG(min, min(i64(a), i64(b)))
LONG(double2ll_rn, __double2ll_rn(D(a)))
LONG(double2int_ru, unsigned(__double2int_ru(D(a))))
LONG(ll2double_rd, DBITS(__ll2double_rd(i64(a))))
LONG(ull2float_rn, BITS(__ull2float_rn(a)))
LONG(dadd_ru, DBITS(__dadd_ru(D(a), D(b))))
LONG(dmul_rz, DBITS(__dmul_rz(D(a), D(b))))
LONG(ddiv_rn, DBITS(__ddiv_rn(D(a), D(b))))
LONG(dsqrt_rn, DBITS(__dsqrt_rn(D(a))))
LONG(double2hiint, unsigned(__double2hiint(D(a))) + u64(unsigned(__double2loint(D(a)))) * 3)

// Of the threads of a block: 80 of them, so that the last warp is short. v is the thread's own value.
#define TEAM(name, ...)                                                       \
  extern "C" __global__ void t_##name(const u64 *in, u64 *out) {              \
    int i = threadIdx.x;                                                      \
    unsigned lane = i % 32, mask = i < 64 ? 0xffffffffu : 0xffffu;            \
    u64 v = in[i];                                                            \
    (void)lane, (void)mask;                                                   \
    out[i] = u64(__VA_ARGS__);                                                \
  }
__device__ int last_all;
TEAM(shfl, __shfl_sync(mask, v, lane ^ 5))
TEAM(shfl_up, __shfl_up_sync(mask, unsigned(v), 3))
TEAM(shfl_down, __float_as_uint(__shfl_down_sync(mask, __uint_as_float(unsigned(v)), 2, 8)))
TEAM(shfl_xor, DBITS(__shfl_xor_sync(mask, D(v), 9, 16)))
TEAM(ballot, __ballot_sync(mask, int(v & 1)))
TEAM(any, __any_sync(mask, v % 31 == 0))
TEAM(all, __all_sync(mask, v % 31 != 0))
TEAM(activemask, v & 1 ? __activemask() : 7)
TEAM(match_any, __match_any_sync(mask, unsigned(v % 5)))
TEAM(match_any_ll, __match_any_sync(mask, v % 3))
TEAM(match_all, __match_all_sync(mask, i / 32 == 1 ? 7 : int(v), &last_all))
TEAM(reduce_add, __reduce_add_sync(mask, unsigned(v)))
TEAM(reduce_min, unsigned(__reduce_min_sync(mask, int(v))))
TEAM(reduce_max, __reduce_max_sync(mask, unsigned(v)))
TEAM(reduce_and, __reduce_and_sync(mask, unsigned(v) | 0xff))
TEAM(reduce_or, __reduce_or_sync(mask, unsigned(v) & 0x11111))
TEAM(reduce_xor, __reduce_xor_sync(mask, unsigned(v)))
TEAM(syncthreads_count, __syncthreads_count(int(v & 1)))
TEAM(syncthreads_and, __syncthreads_and(v != 0))
TEAM(syncthreads_or, __syncthreads_or(v == 12345))
TEAM(syncwarp, (__syncwarp(mask), __threadfence_block(), __threadfence(), __threadfence_system(), __nanosleep(1), v))
TEAM(built_in, threadIdx.x + 100 * blockDim.x + 100000 * gridDim.x + blockIdx.x + warpSize + dim3(threadIdx).y + dim3(2).z)
TEAM(clock, clock64() > 0 && clock() != 0 && __globaltimer() > 1000000)
TEAM(spaces, __isGlobal(in) + 2 * __isShared(in) + 4 * __isLocal(&v) +
                 8 * (__cvta_global_to_generic(__cvta_generic_to_global(in)) == (void *)in))
TEAM(loads, __ldg(in + i) + __ldca(in + i) + __ldcg(in + i) + __ldcs(in + i) + __ldcv(in + i) + __ldlu(in + i))
TEAM(vector_loads, __ldg((const ulonglong2 *)in + i / 2).y + __ldcg((const uint4 *)in + i / 2).x + __ldcv((const char *)in + i) +
                       __ldcg((const short *)in + i))

extern "C" __global__ void t_stores(const u64 *in, u64 *out) {
  int i = threadIdx.x;
  unsigned *p = (unsigned *)(out + i);
  __stcg(p, unsigned(in[i]));
  __stwt((unsigned short *)p + 2, (unsigned short)(in[i] >> 32));
  __stcs((unsigned char *)p + 6, (unsigned char)(in[i] >> 48));
  __stwb((unsigned char *)p + 7, (unsigned char)(in[i] >> 56));
}

// An atomic function on one word by all threads: the sum of what was returned, and what it leaves.
#define ATOMIC(name, type, ...)                                               \
  extern "C" __global__ void a_##name(const u64 *in, u64 *out) {              \
    __shared__ type s;                                                        \
    int i = threadIdx.x;                                                      \
    type v = (type)in[i], *g = (type *)&out[i % 2], old;                      \
    if (i == 0) s = (type)in[80];                                             \
    __syncthreads();                                                          \
    type *p = &s;                                                             \
    old = (__VA_ARGS__);                                                      \
    p = g;                                                                    \
    (void)(__VA_ARGS__);                                                      \
    __syncthreads();                                                          \
    out[2 + i] = (u64)old;                                                    \
    if (i == 0) out[100] = (u64)s;                                            \
  }
ATOMIC(add, unsigned, atomicAdd(p, v))
ATOMIC(add_int, int, atomicAdd_block(p, v))
ATOMIC(add_u64, u64, atomicAdd_system(p, v))
ATOMIC(add_float, float, atomicAdd(p, float(int(v) & 0xff)))
ATOMIC(add_double, double, atomicAdd(p, double(i64(v) & 0xffff)))
ATOMIC(sub, int, atomicSub(p, v))
ATOMIC(exch, u64, atomicExch(p, v))
ATOMIC(min, int, atomicMin(p, v))
ATOMIC(max, u64, atomicMax(p, v))
ATOMIC(and, unsigned, atomicAnd(p, v | 0xf0f0f0f0u))
ATOMIC(or, u64, atomicOr_system(p, v & 0xf0f0))
ATOMIC(xor, unsigned, atomicXor_block(p, v))
ATOMIC(inc, unsigned, atomicInc(p, 50u))
ATOMIC(dec, unsigned, atomicDec(p, 50u))
ATOMIC(cas, u64, atomicCAS(p, *(volatile u64 *)p, v))
ATOMIC(cas_16, unsigned short, atomicCAS(p, *(volatile unsigned short *)p, v))

// Functions of single precision with an evaluation of their own. tests/kernels/cuda_math.cu has all.
#define SINGLE(name)                                                          \
  extern "C" __global__ void f_##name(const float *in, float *out) {          \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                            \
    out[i] = name(in[i]);                                                     \
  }
SINGLE(expf) SINGLE(exp2f) SINGLE(exp10f) SINGLE(expm1f) SINGLE(logf) SINGLE(log2f) SINGLE(log10f) SINGLE(log1pf)
SINGLE(sinhf) SINGLE(coshf) SINGLE(tanhf) SINGLE(asinhf) SINGLE(acoshf) SINGLE(atanhf) SINGLE(sqrtf) SINGLE(rsqrtf)
SINGLE(floorf) SINGLE(ceilf) SINGLE(truncf) SINGLE(roundf) SINGLE(rintf) SINGLE(fabsf)
SINGLE(__expf) SINGLE(__exp10f) SINGLE(__logf) SINGLE(__log2f) SINGLE(__log10f) SINGLE(__sinf) SINGLE(__cosf) SINGLE(__tanf)

extern "C" __global__ void print_and_assert(int n) {
  if (threadIdx.x < 2) printf("thread %d of %s: %.2f\n", threadIdx.x, "two", 0.5 + threadIdx.x);
  assert(threadIdx.x != n);
}
