/* Atomic functions, of the GPU's scope, of the block (`_block`) and of the system (`_system`); relaxed, as CUDA's are. */
#ifndef RB_CUDA_ATOMICS_H
#define RB_CUDA_ATOMICS_H

#include "../host_defines.h"

#define RB_CUDA_ATOMIC_IN(name, scope, op, type, suffix, reg)                                                          \
  RB_CUDA_DEVICE type name(type *p, type v) {                                                                          \
    type old;                                                                                                          \
    asm volatile("atom.relaxed." scope "." op "." suffix " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory"); \
    return old;                                                                                                        \
  }
#define RB_CUDA_ATOMIC(name, op, type, suffix, reg)                   \
  RB_CUDA_ATOMIC_IN(name, "gpu", op, type, suffix, reg)               \
  RB_CUDA_ATOMIC_IN(name##_block, "cta", op, type, suffix, reg)       \
  RB_CUDA_ATOMIC_IN(name##_system, "sys", op, type, suffix, reg)
#define RB_CUDA_ATOMIC_32(name, op, u, s)            \
  RB_CUDA_ATOMIC(name, op, unsigned, u, "r")         \
  RB_CUDA_ATOMIC(name, op, int, s, "r")
RB_CUDA_ATOMIC_32(atomicAdd, "add", "u32", "s32")
RB_CUDA_ATOMIC(atomicAdd, "add", unsigned long long, "u64", "l")
RB_CUDA_ATOMIC(atomicAdd, "add", float, "f32", "f")
RB_CUDA_ATOMIC(atomicAdd, "add", double, "f64", "d")
RB_CUDA_ATOMIC_32(atomicExch, "exch", "b32", "b32")
RB_CUDA_ATOMIC(atomicExch, "exch", unsigned long long, "b64", "l")
RB_CUDA_ATOMIC(atomicExch, "exch", float, "b32", "f")
RB_CUDA_ATOMIC_32(atomicMin, "min", "u32", "s32")
RB_CUDA_ATOMIC(atomicMin, "min", unsigned long long, "u64", "l")
RB_CUDA_ATOMIC(atomicMin, "min", long long, "s64", "l")
RB_CUDA_ATOMIC_32(atomicMax, "max", "u32", "s32")
RB_CUDA_ATOMIC(atomicMax, "max", unsigned long long, "u64", "l")
RB_CUDA_ATOMIC(atomicMax, "max", long long, "s64", "l")
RB_CUDA_ATOMIC_32(atomicAnd, "and", "b32", "b32")
RB_CUDA_ATOMIC(atomicAnd, "and", unsigned long long, "b64", "l")
RB_CUDA_ATOMIC_32(atomicOr, "or", "b32", "b32")
RB_CUDA_ATOMIC(atomicOr, "or", unsigned long long, "b64", "l")
RB_CUDA_ATOMIC_32(atomicXor, "xor", "b32", "b32")
RB_CUDA_ATOMIC(atomicXor, "xor", unsigned long long, "b64", "l")
RB_CUDA_ATOMIC(atomicInc, "inc", unsigned, "u32", "r")
RB_CUDA_ATOMIC(atomicDec, "dec", unsigned, "u32", "r")
/* `uint64_t` of Linux is `unsigned long`: accepted beyond CUDA, whose functions take `unsigned long long` alone. */
RB_CUDA_ATOMIC(atomicAdd, "add", unsigned long, "u64", "l")
RB_CUDA_ATOMIC(atomicExch, "exch", unsigned long, "b64", "l")
RB_CUDA_ATOMIC(atomicMin, "min", unsigned long, "u64", "l")
RB_CUDA_ATOMIC(atomicMax, "max", unsigned long, "u64", "l")
RB_CUDA_ATOMIC(atomicAnd, "and", unsigned long, "b64", "l")
RB_CUDA_ATOMIC(atomicOr, "or", unsigned long, "b64", "l")
RB_CUDA_ATOMIC(atomicXor, "xor", unsigned long, "b64", "l")
#undef RB_CUDA_ATOMIC_32
#undef RB_CUDA_ATOMIC
#undef RB_CUDA_ATOMIC_IN

#define RB_CUDA_SUB(name, add)                                                             \
  RB_CUDA_DEVICE unsigned name(unsigned *p, unsigned v) { return add(p, 0u - v); }         \
  RB_CUDA_DEVICE int name(int *p, int v) { return int(add((unsigned *)p, 0u - unsigned(v))); }
RB_CUDA_SUB(atomicSub, atomicAdd)
RB_CUDA_SUB(atomicSub_block, atomicAdd_block)
RB_CUDA_SUB(atomicSub_system, atomicAdd_system)
#undef RB_CUDA_SUB

#define RB_CUDA_CAS_IN(name, scope, type, suffix, reg)                                                \
  RB_CUDA_DEVICE type name(type *p, type expected, type desired) {                                    \
    type old;                                                                                         \
    asm volatile("atom.relaxed." scope ".cas." suffix " %0, [%1], %2, %3;"                            \
                 : "=" reg(old) : "l"(p), reg(expected), reg(desired) : "memory");                    \
    return old;                                                                                       \
  }
#define RB_CUDA_CAS(type, suffix, reg)                            \
  RB_CUDA_CAS_IN(atomicCAS, "gpu", type, suffix, reg)             \
  RB_CUDA_CAS_IN(atomicCAS_block, "cta", type, suffix, reg)       \
  RB_CUDA_CAS_IN(atomicCAS_system, "sys", type, suffix, reg)
RB_CUDA_CAS(unsigned, "b32", "r")
RB_CUDA_CAS(int, "b32", "r")
RB_CUDA_CAS(unsigned long long, "b64", "l")
RB_CUDA_CAS(unsigned long, "b64", "l")
#undef RB_CUDA_CAS
#undef RB_CUDA_CAS_IN

/* 16 bits by the word around them. */
#define RB_CUDA_CAS_16(name, cas)                                                                             \
  RB_CUDA_DEVICE unsigned short name(unsigned short *p, unsigned short expected, unsigned short desired) {    \
    unsigned *word = (unsigned *)((unsigned long long)p & ~3ull);                                             \
    unsigned shift = unsigned((unsigned long long)p & 2) * 8;                                                 \
    unsigned seen = cas(word, 0u, 0u);                                                                        \
    for (;;) {                                                                                                \
      unsigned short old = (unsigned short)(seen >> shift);                                                   \
      if (old != expected) return old;                                                                        \
      unsigned next = (seen & ~(0xffffu << shift)) | unsigned(desired) << shift;                              \
      unsigned was = cas(word, seen, next);                                                                   \
      if (was == seen) return old;                                                                            \
      seen = was;                                                                                             \
    }                                                                                                         \
  }
RB_CUDA_CAS_16(atomicCAS, atomicCAS)
RB_CUDA_CAS_16(atomicCAS_block, atomicCAS_block)
RB_CUDA_CAS_16(atomicCAS_system, atomicCAS_system)
#undef RB_CUDA_CAS_16

/* Vectors: each element is added atomically, the vector as a whole is not (CUDA C++ Programming Guide, atomicAdd). */
#define RB_CUDA_ADD_VECTOR(name)                                                                                          \
  RB_CUDA_DEVICE float2 name(float2 *p, float2 v) { return float2{name(&p->x, v.x), name(&p->y, v.y)}; }                  \
  RB_CUDA_DEVICE float4 name(float4 *p, float4 v) {                                                                       \
    return float4{name(&p->x, v.x), name(&p->y, v.y), name(&p->z, v.z), name(&p->w, v.w)};                                \
  }
RB_CUDA_ADD_VECTOR(atomicAdd)
RB_CUDA_ADD_VECTOR(atomicAdd_block)
RB_CUDA_ADD_VECTOR(atomicAdd_system)
#undef RB_CUDA_ADD_VECTOR

#endif /* RB_CUDA_ATOMICS_H */
