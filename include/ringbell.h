/* ringbell.h - the C API of Ringbell: open a NIC, register GPU memory, open queues and sockets.
 *
 * Link with -lringbell. Every function that can fail returns an `rb_result`: 0 is success, 1..255 is
 * a completion status of the NIC (RB_STATUS_..., see ringbell_abi.h), negative is misuse or an error
 * of the host. rb_last_error() tells, for the calling thread, what happened, where, and what to do.
 *
 * Ownership: every rb_..._open/create has its rb_..._close/destroy. Handles may be used from any
 * thread. No call waits without a deadline: a time-out of 0 means the NIC's default (5 s).
 */
#ifndef RINGBELL_H
#define RINGBELL_H

#include <stddef.h>
#include <stdint.h>

#include "ringbell_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t rb_result;

/* Misuse and host errors. */
#define RB_ERR_INVALID_ARGUMENT (-1) /* a null pointer, an unparsable address, an unknown name */
#define RB_ERR_HOST (-2)             /* memory, file or socket error of the host */
#define RB_ERR_KERNEL (-3)           /* a kernel could not be launched, or failed */
#define RB_ERR_PANIC (-4)            /* a defect of the library; the handle must be closed */

/* What happened in the last call of this thread that failed: never null, valid until the next. */
const char *rb_last_error(void);
/* One sentence for a result: what it means and what to do. Never null, static. */
const char *rb_result_text(rb_result result);
/* "0.1.0" */
const char *rb_version(void);

/* ---- NIC ---------------------------------------------------------------------------------- */

typedef struct rb_nic rb_nic;

/* Zero-initialise, set `size = sizeof(rb_nic_config)`, then what you need; 0 or NULL is a default. */
typedef struct rb_nic_config {
    uint32_t size;              /* sizeof(rb_nic_config): lets the struct grow */
    const char *ip;             /* own address, "10.77.0.1" */
    const char *transport;      /* "auto" (default), "local", "tcp" */
    const char *port;           /* "none" (default: local only), "udp:BIND[,PEER...]", "tap:NAME" */
    uint64_t gpu_memory_bytes;  /* emulated GPU memory; default 256 MiB */
    uint32_t default_timeout_us;/* default 5,000,000 */
    uint32_t queue_depth;       /* slots per queue, a power of two; default 256 */
} rb_nic_config;

/* Opens a software NIC with an emulated GPU. config may be NULL. */
rb_result rb_nic_open(const rb_nic_config *config, rb_nic **nic);
/* Ends sessions, waits for DMA in flight, frees all memory allocated through the NIC. NULL is fine. */
void rb_nic_close(rb_nic *nic);

/* ---- GPU memory --------------------------------------------------------------------------- */

/* Allocates GPU memory and registers it for send and receive. Kernels dereference *va. */
rb_result rb_mem_alloc(rb_nic *nic, size_t bytes, void **va);
/* Unregisters (waits for DMA in flight) and frees. */
rb_result rb_mem_free(rb_nic *nic, void *va);
/* Host to GPU and back. */
rb_result rb_mem_write(rb_nic *nic, void *dst_va, const void *src, size_t bytes);
rb_result rb_mem_read(rb_nic *nic, void *dst, const void *src_va, size_t bytes);

/* ---- Queues: what a kernel needs to call gpu_send and gpu_recv --------------------------------- */

/* Creates a queue and fills in the handle to pass to a kernel by value. It lives until rb_nic_close. */
rb_result rb_queue_create(rb_nic *nic, rb_queue *queue);

/* ---- Stream-ordered sockets (FpgaNIC appendix A.1): no kernel to write, no launch geometry -------- */

typedef struct rb_context rb_context;

rb_result rb_context_create(rb_nic *nic, rb_context **context);
void rb_context_destroy(rb_context *context);
/* These run as kernels on the GPU, in order; each returns when its kernel has. */
rb_result rb_socket(rb_context *context, uint32_t *sock, uint32_t timeout_us);
rb_result rb_listen(rb_context *context, uint32_t sock, uint16_t port, uint32_t timeout_us);
rb_result rb_accept(rb_context *context, uint32_t sock, uint32_t *conn, uint32_t timeout_us);
rb_result rb_connect(rb_context *context, uint32_t sock, const char *ip, uint16_t port, uint32_t timeout_us);
/* Buffers are GPU addresses inside memory from rb_mem_alloc. */
rb_result rb_send(rb_context *context, uint32_t sock, const void *va, uint32_t bytes, uint32_t timeout_us);
rb_result rb_recv(rb_context *context, uint32_t sock, void *va, uint32_t bytes, uint32_t timeout_us);
rb_result rb_close_socket(rb_context *context, uint32_t sock, uint32_t timeout_us);

#ifdef __cplusplus
}
#endif
#endif /* RINGBELL_H */
