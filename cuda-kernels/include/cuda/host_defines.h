/* Qualifiers of CUDA's language: attributes of clang in CUDA mode, nothing to a host compiler. */
#ifndef RB_CUDA_HOST_DEFINES_H
#define RB_CUDA_HOST_DEFINES_H

#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define CUDARTAPI
#define __cudart_builtin__
#define __device_builtin__
#define __nv_pure__

#ifdef __CUDA__
/* clang knows `__noinline__` as an attribute; as a macro it would break `__attribute__((__noinline__))` of system headers. */
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __maxnreg__(n) __attribute__((annotate("maxnreg")))
#define __grid_constant__
/* A cluster is one block. */
#define __cluster_dims__(...)
/* nvcc defines it, and clang only with NVIDIA's headers. */
#ifndef __CUDACC__
#define __CUDACC__ 1
#endif
#else
#define __global__
#define __device__
#define __host__
#define __shared__
#define __constant__
#define __launch_bounds__(...)
#define __maxnreg__(n)
#define __grid_constant__
#define __cluster_dims__(...)
#endif

/* Ours, for functions of these headers: without lines of their own, so that errors and breakpoints are at the line that
 * calls them. */
#ifdef __clang__
#define RB_CUDA_NO_LINES __attribute__((nodebug))
#else
#define RB_CUDA_NO_LINES
#endif
#define RB_CUDA_DEVICE static __device__ __forceinline__ RB_CUDA_NO_LINES
#define RB_CUDA_BOTH static __host__ __device__ __forceinline__ RB_CUDA_NO_LINES

#endif /* RB_CUDA_HOST_DEFINES_H */
