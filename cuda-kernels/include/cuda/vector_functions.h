/* Constructors of the vector types: make_int4 and its kin. */
#ifndef RB_CUDA_VECTOR_FUNCTIONS_H
#define RB_CUDA_VECTOR_FUNCTIONS_H

#include "vector_types.h"

#define RB_CUDA_MAKE(name, type)                                                                                 \
  RB_CUDA_BOTH name##1 make_##name##1(type x) { name##1 v = {x}; return v; }                                     \
  RB_CUDA_BOTH name##2 make_##name##2(type x, type y) { name##2 v = {x, y}; return v; }                          \
  RB_CUDA_BOTH name##3 make_##name##3(type x, type y, type z) { name##3 v = {x, y, z}; return v; }               \
  RB_CUDA_BOTH name##4 make_##name##4(type x, type y, type z, type w) { name##4 v = {x, y, z, w}; return v; }
RB_CUDA_MAKE(char, signed char)
RB_CUDA_MAKE(uchar, unsigned char)
RB_CUDA_MAKE(short, short)
RB_CUDA_MAKE(ushort, unsigned short)
RB_CUDA_MAKE(int, int)
RB_CUDA_MAKE(uint, unsigned int)
RB_CUDA_MAKE(long, long)
RB_CUDA_MAKE(ulong, unsigned long)
RB_CUDA_MAKE(longlong, long long)
RB_CUDA_MAKE(ulonglong, unsigned long long)
RB_CUDA_MAKE(float, float)
RB_CUDA_MAKE(double, double)
#undef RB_CUDA_MAKE

#endif /* RB_CUDA_VECTOR_FUNCTIONS_H */
