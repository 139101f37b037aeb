/* Vector types, with the sizes and alignments of the CUDA C++ Programming Guide ("Built-in Vector Types"), and dim3. */
#ifndef RB_CUDA_VECTOR_TYPES_H
#define RB_CUDA_VECTOR_TYPES_H

#include "host_defines.h"

/* `a2` and `a4`: alignments of two and of four elements. */
#define RB_CUDA_VECTORS(name, type, a2, a4)                     \
  struct name##1 { type x; };                                   \
  struct __align__(a2) name##2 { type x, y; };                  \
  struct name##3 { type x, y, z; };                             \
  struct __align__(a4) name##4 { type x, y, z, w; };            \
  typedef struct name##1 name##1;                               \
  typedef struct name##2 name##2;                               \
  typedef struct name##3 name##3;                               \
  typedef struct name##4 name##4;
RB_CUDA_VECTORS(char, signed char, 2, 4)
RB_CUDA_VECTORS(uchar, unsigned char, 2, 4)
RB_CUDA_VECTORS(short, short, 4, 8)
RB_CUDA_VECTORS(ushort, unsigned short, 4, 8)
RB_CUDA_VECTORS(int, int, 8, 16)
RB_CUDA_VECTORS(uint, unsigned int, 8, 16)
RB_CUDA_VECTORS(long, long, 16, 16)
RB_CUDA_VECTORS(ulong, unsigned long, 16, 16)
RB_CUDA_VECTORS(longlong, long long, 16, 16)
RB_CUDA_VECTORS(ulonglong, unsigned long long, 16, 16)
RB_CUDA_VECTORS(float, float, 8, 16)
RB_CUDA_VECTORS(double, double, 16, 16)
#undef RB_CUDA_VECTORS

/* CUDA 13's names for the alignments of four elements of 8 bytes. */
#define RB_CUDA_ALIGNED(name, type)                                  \
  struct __align__(16) name##4_16a { type x, y, z, w; };             \
  struct __align__(32) name##4_32a { type x, y, z, w; };             \
  typedef struct name##4_16a name##4_16a;                            \
  typedef struct name##4_32a name##4_32a;
RB_CUDA_ALIGNED(long, long)
RB_CUDA_ALIGNED(ulong, unsigned long)
RB_CUDA_ALIGNED(longlong, long long)
RB_CUDA_ALIGNED(ulonglong, unsigned long long)
RB_CUDA_ALIGNED(double, double)
#undef RB_CUDA_ALIGNED

struct dim3 {
  unsigned int x, y, z;
#ifdef __cplusplus
  __host__ __device__ constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz) {}
  __host__ __device__ constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  __host__ __device__ constexpr operator uint3() const { return uint3{x, y, z}; }
#endif
};
typedef struct dim3 dim3;

#endif /* RB_CUDA_VECTOR_TYPES_H */
