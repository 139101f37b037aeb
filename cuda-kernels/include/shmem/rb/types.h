/* Constants of NVSHMEM, and its tables of types. */
#ifndef RINGBELL_SHMEM_TYPES_H
#define RINGBELL_SHMEM_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define NVSHMEM_MAJOR_VERSION 1
#define NVSHMEM_MINOR_VERSION 3
#define NVSHMEM_VENDOR_MAJOR_VERSION 3
#define NVSHMEM_VENDOR_MINOR_VERSION 4
#define NVSHMEM_VENDOR_PATCH_VERSION 0
#define NVSHMEM_VENDOR_STRING "Ringbell"
#define NVSHMEM_MAX_NAME_LEN 256

/* Comparisons of waits. */
enum nvshmemi_cmp_type {
  NVSHMEM_CMP_EQ = 0,
  NVSHMEM_CMP_NE = 1,
  NVSHMEM_CMP_GT = 2,
  NVSHMEM_CMP_LE = 3,
  NVSHMEM_CMP_LT = 4,
  NVSHMEM_CMP_GE = 5,
};

/* What a signal does to its word. */
enum {
  NVSHMEM_SIGNAL_SET = 9,
  NVSHMEM_SIGNAL_ADD = 10,
};

enum nvshmem_thread_level {
  NVSHMEM_THREAD_SINGLE = 0,
  NVSHMEM_THREAD_FUNNELED = 1,
  NVSHMEM_THREAD_SERIALIZED = 2,
  NVSHMEM_THREAD_MULTIPLE = 3,
};

/* Teams are numbers of this PE's. Those of the library, but the world, have this PE alone: each PE has a GPU of its own. */
typedef int32_t nvshmem_team_t;
typedef nvshmem_team_t nvshmemx_team_t;
enum {
  NVSHMEM_TEAM_INVALID = -1,
  NVSHMEM_TEAM_WORLD = 0,
  NVSHMEM_TEAM_SHARED = 1,
  NVSHMEMX_TEAM_NODE = 2,
  NVSHMEMX_TEAM_SAME_MYPE_NODE = 3,
};

/* What a program asks of a team. Contexts are one. */
typedef struct {
  int version;
  int num_contexts;
  char padding[56];
} nvshmem_team_config_t;
#define NVSHMEM_TEAM_CONFIG_INITIALIZER {1, -1, {0}}
#define NVSHMEM_TEAM_CONFIG_MASK_NUM_CONTEXTS 1

/* --- tables: X(name, type) ------------------------------------------------------------------------------- */

/* Of puts and gets. */
#define RB_SHMEM_TYPES(X)                                                                             \
  X(bfloat16, __nv_bfloat16) X(half, __half) X(float, float) X(double, double)                        \
  X(char, char) X(schar, signed char) X(short, short) X(int, int) X(long, long) X(longlong, long long) \
  X(uchar, unsigned char) X(ushort, unsigned short) X(uint, unsigned int) X(ulong, unsigned long)     \
  X(ulonglong, unsigned long long)                                                                    \
  X(int8, int8_t) X(int16, int16_t) X(int32, int32_t) X(int64, int64_t)                               \
  X(uint8, uint8_t) X(uint16, uint16_t) X(uint32, uint32_t) X(uint64, uint64_t)                       \
  X(size, size_t) X(ptrdiff, ptrdiff_t)

/* X(bits) */
#define RB_SHMEM_SIZES(X) X(8) X(16) X(32) X(64) X(128)

/* Of waits. */
#define RB_SHMEM_WAIT_TYPES(X)                                                                        \
  X(short, short) X(int, int) X(long, long) X(longlong, long long)                                    \
  X(ushort, unsigned short) X(uint, unsigned int) X(ulong, unsigned long)                             \
  X(ulonglong, unsigned long long) X(int32, int32_t) X(int64, int64_t) X(uint32, uint32_t)            \
  X(uint64, uint64_t) X(size, size_t) X(ptrdiff, ptrdiff_t)

/* Of atomics. */
#define RB_SHMEM_ATOMIC_TYPES(X)                                                                      \
  X(int, int) X(long, long) X(longlong, long long) X(uint, unsigned int) X(ulong, unsigned long)      \
  X(ulonglong, unsigned long long) X(int32, int32_t) X(int64, int64_t) X(uint32, uint32_t)            \
  X(uint64, uint64_t) X(size, size_t) X(ptrdiff, ptrdiff_t)

/* Of `and`, `or`, `xor`. */
#define RB_SHMEM_BITWISE_TYPES(X)                                                                     \
  X(uint, unsigned int) X(ulong, unsigned long) X(ulonglong, unsigned long long)                      \
  X(int32, int32_t) X(int64, int64_t) X(uint32, uint32_t) X(uint64, uint64_t)

/* Of reductions: X(name, type, RB_DTYPE_...). */
#define RB_SHMEM_REDUCE_TYPES(X)                                                                      \
  X(bfloat16, __nv_bfloat16, RB_DTYPE_BF16) X(half, __half, RB_DTYPE_F16)                             \
  X(float, float, RB_DTYPE_F32) X(double, double, RB_DTYPE_F64)                                       \
  X(char, char, (char(-1) < 0 ? RB_DTYPE_I8 : RB_DTYPE_U8)) X(schar, signed char, RB_DTYPE_I8)        \
  X(short, short, RB_DTYPE_I16) X(ushort, unsigned short, RB_DTYPE_U16)                               \
  X(int16, int16_t, RB_DTYPE_I16) X(uint16, uint16_t, RB_DTYPE_U16)                                   \
  X(int, int, RB_DTYPE_I32) X(long, long, RB_DTYPE_I64) X(longlong, long long, RB_DTYPE_I64)          \
  X(uchar, unsigned char, RB_DTYPE_U8) X(uint, unsigned int, RB_DTYPE_U32)                            \
  X(ulong, unsigned long, RB_DTYPE_U64) X(ulonglong, unsigned long long, RB_DTYPE_U64)                \
  X(int8, int8_t, RB_DTYPE_I8) X(int32, int32_t, RB_DTYPE_I32) X(int64, int64_t, RB_DTYPE_I64)        \
  X(uint8, uint8_t, RB_DTYPE_U8) X(uint32, uint32_t, RB_DTYPE_U32) X(uint64, uint64_t, RB_DTYPE_U64)  \
  X(size, size_t, RB_DTYPE_U64)

/* Of reductions by `and`, `or`, `xor`: as above. */
#define RB_SHMEM_REDUCE_BITS_TYPES(X)                                                                 \
  X(uchar, unsigned char, RB_DTYPE_U8) X(ushort, unsigned short, RB_DTYPE_U16)                        \
  X(uint, unsigned int, RB_DTYPE_U32) X(ulong, unsigned long, RB_DTYPE_U64)                           \
  X(ulonglong, unsigned long long, RB_DTYPE_U64) X(size, size_t, RB_DTYPE_U64)                        \
  X(int8, int8_t, RB_DTYPE_I8) X(int16, int16_t, RB_DTYPE_I16) X(int32, int32_t, RB_DTYPE_I32)        \
  X(int64, int64_t, RB_DTYPE_I64) X(uint8, uint8_t, RB_DTYPE_U8) X(uint16, uint16_t, RB_DTYPE_U16)    \
  X(uint32, uint32_t, RB_DTYPE_U32) X(uint64, uint64_t, RB_DTYPE_U64)

static_assert(sizeof(long) == 8 && sizeof(size_t) == 8, "the tables are for machines with a `long` of 64 bits");

#endif /* RINGBELL_SHMEM_TYPES_H */
