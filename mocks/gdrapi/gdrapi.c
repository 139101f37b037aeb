/*
 * A mock libgdrapi.so.2 for tests. "GPU memory" is memory of this process that can be mapped a second time (shared
 * mappings). The second mapping has another address, so that a use of the GPU's address in its place is noticed.
 *
 * Compiled with -DMOCK_OLD it is a version 2.0. The variable RINGBELL_MOCK_GDR names calls that fail:
 * "open", "pin", "map", "copy".
 */
#define _GNU_SOURCE
#include "gdrapi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 65536ul

struct gdr {
  int pieces;
};

struct piece {
  uint64_t va;
  size_t size;
  char *mapped;
};

/* Handles, pins and mappings that are not given back. */
static int live;

int mock_gdr_live(void) { return __atomic_load_n(&live, __ATOMIC_SEQ_CST); }

static void count(int n) { __atomic_add_fetch(&live, n, __ATOMIC_SEQ_CST); }

static int fails(const char *call) {
  const char *faults = getenv("RINGBELL_MOCK_GDR");
  return faults != NULL && strstr(faults, call) != NULL;
}

gdr_t gdr_open(void) {
  if (fails("open"))
    return NULL;
  count(1);
  return calloc(1, sizeof(struct gdr));
}

int gdr_close(gdr_t g) {
  count(-1);
  free(g);
  return 0;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
                   gdr_mh_t *handle) {
  (void)p2p_token;
  (void)va_space;
  if (fails("pin") || size == 0)
    return EINVAL;
  struct piece *p = calloc(1, sizeof *p);
  p->va = addr & ~(PAGE - 1);
  p->size = (addr + size + PAGE - 1 - p->va) & ~(PAGE - 1);
  handle->h = (unsigned long)p;
  g->pieces++;
  count(1);
  return 0;
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle) {
  struct piece *p = (struct piece *)handle.h;
  if (p->mapped)
    return EBUSY;
  g->pieces--;
  count(-1);
  free(p);
  return 0;
}

int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag) {
  (void)g;
  (void)handle;
  *flag = 0;
  return 0;
}

int gdr_get_info(gdr_t g, gdr_mh_t handle, gdr_info_v1_t *info) {
  struct piece *p = (struct piece *)handle.h;
  (void)g;
  memset(info, 0, sizeof *info);
  info->va = p->va;
  info->mapped_size = p->size;
  info->page_size = PAGE;
  info->bits = p->mapped ? 3 : 0;
  return 0;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size) {
  struct piece *p = (struct piece *)handle.h;
  (void)g;
  if (fails("map") || size > p->size || p->mapped)
    return EAGAIN;
  char *at = mmap(NULL, p->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return ENOMEM;
  for (size_t i = 0; i < p->size; i += PAGE) {
    /* An old size of 0 maps the pages a second time. */
    if (mremap((char *)p->va + i, 0, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + i) == MAP_FAILED) {
      int why = errno;
      munmap(at, p->size);
      return why;
    }
  }
  p->mapped = at;
  count(1);
  *va = at;
  return 0;
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size) {
  struct piece *p = (struct piece *)handle.h;
  (void)g;
  if (va != p->mapped || size > p->size)
    return EINVAL;
  munmap(p->mapped, p->size);
  p->mapped = NULL;
  count(-1);
  return 0;
}

static int inside(const struct piece *p, const char *at, size_t size) {
  return p->mapped && at >= p->mapped && at + size <= p->mapped + p->size;
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size) {
  if (fails("copy") || !inside((struct piece *)handle.h, map_d_ptr, size))
    return EINVAL;
  memcpy(map_d_ptr, h_ptr, size);
  return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size) {
  if (fails("copy") || !inside((struct piece *)handle.h, map_d_ptr, size))
    return EINVAL;
  memcpy(h_ptr, map_d_ptr, size);
  return 0;
}

int gdr_driver_get_version(gdr_t g, int *major, int *minor) {
  (void)g;
  *major = 2;
  *minor = 4;
  return 0;
}

#ifdef MOCK_OLD
void gdr_runtime_get_version(int *major, int *minor) {
  *major = 2;
  *minor = 0;
}
#else
void gdr_runtime_get_version(int *major, int *minor) {
  *major = 2;
  *minor = 6;
}

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info) {
  gdr_info_v1_t v1;
  gdr_get_info(g, handle, &v1);
  memset(info, 0, sizeof *info);
  memcpy(info, &v1, offsetof(gdr_info_v1_t, bits) + sizeof v1.bits);
  info->mapping_type = v1.bits & 1 ? GDR_MAPPING_TYPE_WC : GDR_MAPPING_TYPE_NONE;
  return 0;
}

int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle) {
  if (flags != GDR_PIN_FLAG_DEFAULT)
    return EINVAL;
  return gdr_pin_buffer(g, addr, size, 0, 0, handle);
}

int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **ptr_va, size_t size, int flags) {
  if (flags != GDR_MAP_FLAG_DEFAULT && flags != GDR_MAP_FLAG_REQ_WC_MAPPING)
    return EINVAL;
  return gdr_map(g, handle, ptr_va, size);
}

int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v) {
  (void)g;
  *v = attr == GDR_ATTR_USE_PERSISTENT_MAPPING;
  return 0;
}
#endif
