/*
 * The binary interface of libgdrapi.so.2, as far as Ringbell calls it: names, types and values as
 * GDRCopy 2.6 documents them, in our own words. `src/bindings.rs` is generated from this file; the
 * test `abi` holds both against each other, and against the installed gdrapi.h where there is one.
 *
 * Since: 2.0 unless a version is given. What is younger may be missing from an installed library.
 */
#ifndef RINGBELL_GDRAPI_ABI_H
#define RINGBELL_GDRAPI_ABI_H

#include <stddef.h>
#include <stdint.h>

/* An open library. */
struct gdr;
typedef struct gdr *gdr_t;

/* A pinned piece of GPU memory. */
typedef struct gdr_mh_s {
  unsigned long h;
} gdr_mh_t;

/* How a piece is mapped (2.4). */
typedef enum gdr_mapping_type {
  GDR_MAPPING_TYPE_NONE = 0,
  GDR_MAPPING_TYPE_WC = 1,
  GDR_MAPPING_TYPE_CACHING = 2,
  GDR_MAPPING_TYPE_DEVICE = 3
} gdr_mapping_type_t;

/* How a piece is to be pinned (2.5). */
typedef enum gdr_pin_flags {
  GDR_PIN_FLAG_DEFAULT = 0,
  GDR_PIN_FLAG_FORCE_PCIE = 1
} gdr_pin_flags_t;

/* How a piece is to be mapped (2.5). */
typedef enum gdr_map_flags {
  GDR_MAP_FLAG_DEFAULT = 0,
  GDR_MAP_FLAG_REQ_WC_MAPPING = 1,
  GDR_MAP_FLAG_REQ_CACHE_MAPPING = 2,
  GDR_MAP_FLAG_REQ_DEVICE_MAPPING = 3
} gdr_map_flags_t;

/* What can be asked of the library (2.5). */
typedef enum gdr_attr {
  GDR_ATTR_USE_PERSISTENT_MAPPING = 1,
  GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE = 2,
  GDR_ATTR_USING_DMA_BUF_MMAP = 3
} gdr_attr_t;

/*
 * A pinned piece: its first address and length are those of whole GPU pages around what was asked.
 * `bits` are bit fields in the original: mapped, and write-combined. `tm_cycles` and `cycles_per_ms` mean
 * nothing any more.
 */
typedef struct gdr_info_v2 {
  uint64_t va;
  uint64_t mapped_size;
  uint32_t page_size;
  uint64_t tm_cycles;
  uint32_t cycles_per_ms;
  uint32_t bits;
  gdr_mapping_type_t mapping_type;
} gdr_info_v2_t;

/* The same before 2.4, which has no mapping types. */
typedef struct gdr_info_v1 {
  uint64_t va;
  uint64_t mapped_size;
  uint32_t page_size;
  uint64_t tm_cycles;
  uint32_t cycles_per_ms;
  uint32_t bits;
} gdr_info_v1_t;

/* NULL when the kernel driver cannot be opened. The other functions return 0 or an errno value. */
gdr_t gdr_open(void);
int gdr_close(gdr_t g);

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
                   gdr_mh_t *handle);
int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle);
int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag);
int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size);
int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size);
int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size);
int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size);
void gdr_runtime_get_version(int *major, int *minor);
int gdr_driver_get_version(gdr_t g, int *major, int *minor);

/* The first way to ask; 2.4 and later have it for programs that were built before. */
int gdr_get_info(gdr_t g, gdr_mh_t handle, gdr_info_v1_t *info);

/* 2.4 */
int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info);

/* 2.5 */
int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle);
int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **ptr_va, size_t size, int flags);
int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v);

#endif
