/* What kernels call of the C library: printf, assert, and the functions on memory that clang expands in place. */
#ifndef RB_CUDA_LIBRARY_H
#define RB_CUDA_LIBRARY_H

#include <stddef.h>

#include "../host_defines.h"

extern "C" {
__device__ int vprintf(const char *, const char *);
/* clang turns it into vprintf. */
__device__ int printf(const char *, ...);
__device__ void __assertfail(const char *what, const char *file, unsigned line, const char *function, size_t char_bytes);
}
/* glibc's assert calls it. */
RB_CUDA_DEVICE void __assert_fail(const char *what, const char *file, unsigned line, const char *function) {
  __assertfail(what, file, line, function, 1);
}
RB_CUDA_DEVICE void *memcpy(void *to, const void *from, size_t n) { return __builtin_memcpy(to, from, n), to; }
RB_CUDA_DEVICE void *memmove(void *to, const void *from, size_t n) { return __builtin_memmove(to, from, n), to; }
RB_CUDA_DEVICE void *memset(void *to, int v, size_t n) { return __builtin_memset(to, v, n), to; }

#endif /* RB_CUDA_LIBRARY_H */
