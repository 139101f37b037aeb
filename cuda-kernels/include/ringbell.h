/* ringbell.h - the C API of Ringbell: open a NIC, allocate registered GPU memory, launch kernels, and
 * open, send and receive on sockets without writing a kernel. C99 and C++. Communicators and their
 * collectives are in ringbell_comm.h, which this includes.
 *
 * Link with -lringbell. A function that can fail returns an `rb_result`: 0 is success, 1..255 is
 * a completion status of the NIC (RB_STATUS_..., ringbell_abi.h), negative is misuse or an error
 * of the host. rb_last_error() tells, for the calling thread, what happened, where, and what to do.
 *
 * A handle is a number in the form of a pointer. The library looks it up and never gives it twice: a
 * closed or foreign one is refused (RB_ERR_INVALID_ARGUMENT). Any thread may use it. Every other pointer must be null or valid for what the function says it reads or writes.
 *
 * No call waits without a deadline. Time-outs are in microseconds; 0 is the NIC's default.
 */
#ifndef RINGBELL_H
#define RINGBELL_H

#include <stddef.h>
#include <stdint.h>

#include "ringbell_abi.h"
#include "ringbell_comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Misuse and host errors; rb_result itself is in ringbell_comm.h. */
#define RB_ERR_INVALID_ARGUMENT (-1) /* a null pointer, a closed handle, an unparsable address, an unknown name */
#define RB_ERR_HOST (-2)             /* memory, file or socket error of the host */
#define RB_ERR_KERNEL (-3)           /* a kernel could not be launched, or failed */
#define RB_ERR_PANIC (-4)            /* a defect of the library; close the handle */
#define RB_ERR_IN_PROGRESS (-5)      /* it has not ended yet: test or wait again */
#define RB_ERR_JOB (-6)              /* ranks did not find each other or went on without this one, or no launcher's environment */

/* What happened in the last call of this thread that failed. Never null; valid until the next call
 * of this thread that fails. */
const char *rb_last_error(void);
/* One sentence for a result: what it means and what to do. Never null, static. */
const char *rb_result_text(rb_result result);
/* Version of the library: "0.1.0". Never null, static. */
const char *rb_version(void);

/* ---- NIC ---------------------------------------------------------------------------------------- */

/* Zero-initialise, set `size = sizeof(rb_nic_config)`, then what you need; 0 or NULL is a default. */
typedef struct rb_nic_config {
    size_t size;                 /* sizeof(rb_nic_config): lets the structure grow */
    const char *ip;              /* own address and network; default "10.77.0.1/24" */
    const char *transport;       /* "auto" (default), "local", "tcp", "rdma" */
    const char *port;            /* "none" (default: local only), "udp:BIND[,PEER...]", "tap:NAME", "roce[:ADDR[:PORT]]" (RDMA in
                                  * UDP of the host), "mesh:NETWORK" (see `wires`); ",mtu=BYTES" at the end sets the IP MTU */
    const char *local_directory; /* where NICs of this user meet; default $XDG_RUNTIME_DIR/ringbell or /tmp/ringbell-UID */
    uint64_t gpu_memory_bytes;   /* of the emulated GPU, unused beside a real one; default 256 MiB */
    uint32_t default_timeout_us; /* of operations that pass 0; default 10,000,000 */
    uint32_t queue_depth;        /* slots per queue, a power of two from 2 to 65,536; default 256 */
    uint32_t linger_ms;          /* how long rb_nic_close delivers what was sent; default 5,000; RB_LINGER_NONE: not at all */
    uint32_t reserved;           /* 0 */
    const char *gpu;             /* "auto" (default: RINGBELL_GPU, else GPU 0, else the emulated one), "cuda", "cuda:N", "emulated" */
    const char *progress;        /* "waiter" (default): callers and kernels that wait step the NIC, else a thread that sleeps while
                                  * there is nothing to do; "dedicated": a thread that polls */
    uint32_t events;             /* kept for rb_nic_event; default 1,024 */
    uint32_t reserved2;          /* 0 */
    const char *engine_thread;   /* engines that only look at messages from 256 KiB on over `local`: "off" (default): on the thread
                                  * of the copy; "auto": on one beside it while that is faster; "always": beside it */
    uint32_t max_queues;         /* most queues at a time, 1 to 512: one for each communicator, context and rb_queue_create; default 64.
                                  * NIC memory grows with it, for a communicator at each */
    uint32_t node;               /* of port "mesh:NETWORK": rank of the NIC's node in the network; default 0, or the rank in the job */
    const char *wires;           /* what the node's ports are wired to, "0=udp:BIND,PEER;1=tap:NAME"; default: of the job, else none */
    const char *tables;          /* file of the tables by which all forward (`ringbell routes NETWORK --json FILE`); default: computed */
    uint32_t wire_grace_ms;      /* how long no wire may lead to a node before what is connected to it ends; default 1,000 */
    uint32_t wire_poll;          /* packets that an output takes from one queue before it looks at the next, 1 to 4,096; default 8 */
} rb_nic_config;
#define RB_LINGER_NONE 0xffffffffu

/* Opens a software NIC beside a GPU: a real one where the CUDA driver finds one, else the emulated one. `config->gpu`, or the
 * variable RINGBELL_GPU, chooses. `config` may be NULL. */
rb_result rb_nic_open(const rb_nic_config *config, rb_nic **nic);
/* Closes the NIC's contexts, streams, requests and communicators, ends its sessions, waits for DMA in flight
 * and frees all memory that was allocated through it. NULL does nothing. Kernels that wait on a queue of it end with
 * RB_STATUS_SHUTTING_DOWN, and what they can reach is kept until then; those of a real GPU must have ended before.
 * What was sent on sockets that were closed or shut down is delivered first, for `linger_ms` at most; other sockets are reset.
 * RB_STATUS_TIMED_OUT: something that was reported as sent has not arrived; rb_last_error() names the peers. It is closed. */
rb_result rb_nic_close(rb_nic *nic);

/* The oldest event of the NIC that was not read yet (RB_EVENT_..., ringbell_abi.h); *got is 0 when there is none. Never waits.
 * When more than `config->events` are unread the newest are lost, and an event says how many. */
rb_result rb_nic_event(rb_nic *nic, rb_event *event, int32_t *got);

/* Over port "mesh:NETWORK": has all NICs of the network forward by the tables of a file (`ringbell routes NETWORK --json FILE`) while
 * they run. One NIC calls it; all nodes change or none does, and packets under way go on by the tables by which they were sent. The
 * other nodes have `timeout_us` to hold the new tables; 0: 10 s. RB_ERR_HOST: the file cannot be read, the proof of the tables does not
 * hold, a node refuses or has not answered in time, or another node replaces them now; rb_last_error() says which and why. */
rb_result rb_nic_replace_routes(rb_nic *nic, const char *file, uint32_t timeout_us);

/* ---- GPU memory --------------------------------------------------------------------------------- */

/* Allocates GPU memory and registers it for send and receive. Kernels dereference *va; the host must not. */
rb_result rb_mem_alloc(rb_nic *nic, size_t bytes, void **va);
/* The same, zeroed, for one-sided operations of peers too: `*rkey` is what a peer's kernel needs besides the address
 * (gpu_remote_of of ringbell_one_sided.cuh). rb_mem_free frees it. */
rb_result rb_mem_alloc_remote(rb_nic *nic, size_t bytes, void **va, uint32_t *rkey);
/* Unregisters (waits for DMA in flight) and frees. `va` must be one that rb_mem_alloc gave. */
rb_result rb_mem_free(rb_nic *nic, void *va);
/* Host to GPU, and back. The GPU's range must lie inside one allocation. */
rb_result rb_mem_write(rb_nic *nic, void *dst_va, const void *src, size_t bytes);
rb_result rb_mem_read(rb_nic *nic, void *dst, const void *src_va, size_t bytes);

/* GPU memory between processes beside the same GPU, by CUDA's IPC handles. rb_mem_share names a part of an allocation of
 * cuMemAlloc or cudaMalloc (rb_mem_alloc is one), interior addresses included. The processes may send the bytes by any
 * means. The driver shares the whole allocation: share only with processes that you trust with it. */
typedef struct rb_shared_mem {
    unsigned char bytes[128];
} rb_shared_mem;

/* RB_ERR_INVALID_ARGUMENT on the emulated GPU, and for memory that the driver does not share (managed, pinned, of pools, of
 * other processes). */
rb_result rb_mem_share(rb_nic *nic, const void *va, size_t bytes, rb_shared_mem *shared);
/* Opens it in another process, and registers it for send and receive. The owner must not free the memory before
 * everybody has closed it. RB_ERR_HOST when it was freed already, its process has ended, it is of another GPU, or
 * it is this process's own. */
rb_result rb_mem_open(rb_nic *nic, const rb_shared_mem *shared, void **va);
/* Unregisters (waits for DMA in flight) and closes, once for each rb_mem_open. Also done by rb_nic_close. */
rb_result rb_mem_close(rb_nic *nic, void *va);

/* Registers GPU memory that other code has allocated: cudaMalloc, cuMemAlloc, a tensor of PyTorch, an array of CuPy; a part is
 * enough. It must stay allocated until rb_mem_unregister or rb_nic_close. RB_ERR_INVALID_ARGUMENT: the driver knows no such GPU
 * memory, or the GPU is emulated. Host memory, pinned or not, goes to rb_host_register. */
rb_result rb_mem_register(rb_nic *nic, void *va, size_t bytes);
/* Waits for DMA in flight, and ends one registration; the memory stays the owner's. `va` as it was given. */
rb_result rb_mem_unregister(rb_nic *nic, void *va);

/* ---- Host and NIC memory ------------------------------------------------------------------------ */

/* Wherever a call or a kernel takes the address of GPU memory for send or receive, it takes these too,
 * interior addresses included. Nothing is pinned (`ulimit -l` does not matter); pages are populated. */

/* Allocates host memory that the program, kernels and the NIC use. Local peers map it: one copy. */
rb_result rb_host_alloc(rb_nic *nic, size_t bytes, void **ptr);
rb_result rb_host_free(rb_nic *nic, void *ptr);
/* Registers memory that the program has (malloc, mmap): it must stay mapped until rb_host_unregister or
 * rb_nic_close. To a local peer it is sent through NIC memory: two copies. Each byte is registered once. */
rb_result rb_host_register(rb_nic *nic, void *ptr, size_t bytes);
/* Ends a registration. Operations that wait on it end with RB_STATUS_REGION_FREED; afterwards the NIC
 * does not touch the memory. `ptr` must be one that was registered, not an interior address. */
rb_result rb_host_unregister(rb_nic *nic, void *ptr);
/* Allocates memory on the NIC. Neither kernels nor the host can dereference *va: rb_mem_write and
 * rb_mem_read copy. */
rb_result rb_nic_mem_alloc(rb_nic *nic, size_t bytes, void **va);
rb_result rb_nic_mem_free(rb_nic *nic, void *va);

#define RB_MEMORY_UNKNOWN 0u /* nothing registered covers the address */
#define RB_MEMORY_GPU 1u
#define RB_MEMORY_HOST 2u
#define RB_MEMORY_NIC 3u

typedef struct rb_pointer_info {
    uint32_t kind;       /* RB_MEMORY_... */
    uint32_t lkey;       /* key of the registration */
    uint64_t base;       /* its first address */
    uint64_t bytes;      /* its length */
    uint32_t operations; /* of the NIC that use it now */
    uint32_t reserved;   /* 0 */
} rb_pointer_info;

/* Which memory an address lies in. An unknown address is no error: its kind is RB_MEMORY_UNKNOWN. */
rb_result rb_pointer_query(rb_nic *nic, const void *ptr, rb_pointer_info *info);

/* ---- Kernels ------------------------------------------------------------------------------------ */

/* Creates a queue and fills in the handle to pass to a kernel by value. It lives until rb_nic_close. */
rb_result rb_queue_create(rb_nic *nic, rb_queue *queue);

/* Loads kernels from a file that `ringbell cc` built: PTX, or a fat binary that has PTX; for a real GPU also a cubin. A path
 * without an extension gets .ptx or .fatbin, whichever file there is. */
rb_result rb_module_load(rb_nic *nic, const char *path);
/* The same of a file's bytes, which are copied. */
rb_result rb_module_load_data(rb_nic *nic, const void *image, size_t bytes);

/* One kernel argument: its value and its sizeof. */
typedef struct rb_arg {
    const void *value;
    size_t bytes;
} rb_arg;

typedef struct rb_run rb_run;

/* Launches a kernel by name: one of Ringbell's own, or of a loaded module. grid and block are {x, y, z}.
 * Arguments are copied and must have the types of the kernel's parameters; memory that they point to lives until the kernel
 * has ended. (A program that contains its kernels uses rb::launch of ringbell.hpp.) */
rb_result rb_launch(rb_nic *nic, const char *kernel, const uint32_t grid[3], const uint32_t block[3], const rb_arg *args,
                    uint32_t arg_count, rb_run **run);
/* The same, with so many bytes of dynamic shared memory for each block (`extern __shared__`). Without it a block has none on a
 * real GPU, and on an emulated one what the kernel's own leaves of 48 KiB. */
rb_result rb_launch_shared(rb_nic *nic, const char *kernel, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                           const rb_arg *args, uint32_t arg_count, rb_run **run);
/* Waits for a kernel. RB_STATUS_TIMED_OUT: it still runs, wait again. Any other result ends the handle.
 * 0 waits for 60 s. */
rb_result rb_run_wait(rb_run *run, uint64_t timeout_us);

/* ---- Streams ------------------------------------------------------------------------------------ */

/* Kernels and collectives (ringbell_comm.h) one after the other, without the host waiting. */
rb_result rb_stream_create(rb_nic *nic, rb_stream **stream);
/* As rb_launch, behind what the stream holds. */
rb_result rb_stream_launch(rb_stream *stream, const char *kernel, const uint32_t grid[3], const uint32_t block[3],
                           const rb_arg *args, uint32_t arg_count);
/* Waits until everything queued so far has ended; 0 waits for 60 s. RB_ERR_IN_PROGRESS: it has not, wait again. Any
 * other result is the first failure since the last time, which the stream then forgets. When a kernel fails,
 * what is queued behind it is not run. */
rb_result rb_stream_synchronize(rb_stream *stream, uint64_t timeout_us);
/* What is queued still runs; what is being captured is dropped. NULL does nothing. */
rb_result rb_stream_destroy(rb_stream *stream);

/* ---- Graphs ------------------------------------------------------------------------------------- */

/* Kernels and operations of communicators, captured once and replayed many times with one call (CUDA graphs; the same on the
 * emulated GPU). They are replayed with the arguments that they were given; memory that they use must live as long as the graph. */
typedef struct rb_graph rb_graph;

/* From now on what is put on the stream is captured, not run. RB_ERR_INVALID_ARGUMENT: it captures already. What the host does when
 * the stream gets there cannot be captured, and is refused: two or more operations of a group (capture them one by one), and
 * those that are to have a request. */
rb_result rb_stream_begin_capture(rb_stream *stream);
/* Gives what was captured. The stream runs what it is given again, also after an error. */
rb_result rb_stream_end_capture(rb_stream *stream, rb_graph **graph);
rb_result rb_stream_is_capturing(rb_stream *stream, int32_t *capturing);
/* Replays it once behind what the stream holds, and behind earlier launches of the same graph. rb_stream_synchronize tells the first
 * failure of an operation among all replays. */
rb_result rb_graph_launch(rb_graph *graph, rb_stream *stream);
/* Replays under way go on. NULL does nothing. */
rb_result rb_graph_destroy(rb_graph *graph);

/* ---- Sockets without a kernel of your own (FpgaNIC, appendix A.1) ---------------------------------- */

typedef struct rb_context rb_context;

/* A queue and a stream. Calls on one context run as kernels on the GPU, one after the other; each
 * returns when its kernel has. Use one context for each thread that is to wait on its own. */
rb_result rb_context_create(rb_nic *nic, rb_context **context);
rb_result rb_context_destroy(rb_context *context);

/* Socket numbers belong to the NIC: any context of the NIC, and any kernel, may use them. */
rb_result rb_socket_open(rb_context *context, uint32_t *sock, uint32_t timeout_us);
rb_result rb_socket_listen(rb_context *context, uint32_t sock, uint16_t port, uint32_t backlog, uint32_t timeout_us);
/* `peer` may be NULL; else it gets ip << 16 | port of the other side. */
rb_result rb_socket_accept(rb_context *context, uint32_t sock, uint32_t *conn, uint64_t *peer, uint32_t timeout_us);
/* `ip` is "A.B.C.D", or the IPv6 address of another NIC's port roce, which the NIC reaches by a port roce of IPv6. */
rb_result rb_socket_connect(rb_context *context, uint32_t sock, const char *ip, uint16_t port, uint32_t timeout_us);
/* Sends all of it, in pieces of 4 GiB - 64 KiB with a time-out each. `va` lies in GPU, host or NIC memory that was
 * allocated or registered here. */
rb_result rb_socket_send(rb_context *context, uint32_t sock, const void *va, uint64_t bytes, uint32_t timeout_us);
/* Receives all of it, in such pieces. `received` may be NULL; else it gets the bytes moved, also on failure
 * (RB_STATUS_END_OF_STREAM: the peer stopped early). */
rb_result rb_socket_recv(rb_context *context, uint32_t sock, void *va, uint64_t bytes, uint64_t *received, uint32_t timeout_us);
/* Receives what has arrived: 1 to `bytes`. */
rb_result rb_socket_recv_some(rb_context *context, uint32_t sock, void *va, uint64_t bytes, uint64_t *received,
                              uint32_t timeout_us);
/* The same without waiting. The transfer runs behind what `stream` holds; with NULL behind the context's own calls. `request`
 * gets a handle for rb_request_test and rb_request_wait, whose rb_done.bytes are those moved; free it by rb_request_free. With a
 * stream `request` may be NULL: then rb_stream_synchronize tells the first failure. The memory must stay until the end. */
rb_result rb_socket_send_async(rb_context *context, uint32_t sock, const void *va, uint64_t bytes, uint32_t timeout_us,
                               rb_stream *stream, rb_request **request);
rb_result rb_socket_recv_async(rb_context *context, uint32_t sock, void *va, uint64_t bytes, uint32_t timeout_us,
                               rb_stream *stream, rb_request **request);
/* What carries a socket, now: "local", "tcp", "rdma", or "none" before it is connected. The text lives for ever. */
rb_result rb_socket_transport(rb_context *context, uint32_t sock, const char **transport);
/* Half-close: no more sends, receives go on. */
rb_result rb_socket_shutdown(rb_context *context, uint32_t sock, uint32_t timeout_us);
rb_result rb_socket_close(rb_context *context, uint32_t sock, uint32_t timeout_us);

/* ---- Engines: what the NIC computes on bytes as they pass ------------------------------------------ */

#define RB_ENGINE_RECEIVED 0u /* what a socket, a queue or a communicator's messages bring */
#define RB_ENGINE_SENT 1u     /* what they carry away */
#define RB_ENGINE_INPUT 2u    /* at a communicator: the source of each operation */
#define RB_ENGINE_OUTPUT 3u   /* at a communicator: the result of each operation */

#define RB_ENGINE_PER_STREAM 1u /* a state for each socket of a queue, or each peer of a communicator's messages */

/* Takes `count` bytes of an engine's output; `to` is what `transform` got. */
typedef void (*rb_engine_emit)(void *to, const void *bytes, size_t count);

/* An engine of the program's own: functions that see the bytes of a stream, or change them. The NIC calls them from its own
 * threads and from threads that wait, for one state one at a time. They must not call functions of this library, and should
 * be fast: the stream waits for them. */
typedef struct rb_engine_callbacks {
    size_t size; /* sizeof(rb_engine_callbacks): lets the structure grow */
    void *user;  /* for `create` */
    /* A new state; NULL: there is none, and the engine fails. With RB_ENGINE_PER_STREAM once for each stream. */
    void *(*create)(void *user);
    /* The next bytes, in order, each once, in pieces of any length. 0; any other number: the engine has failed.
     * For an engine that changes nothing; NULL with `transform`. */
    int32_t (*process)(void *state, const void *bytes, size_t count);
    /* Stores at most `room` bytes of the result so far; returns its whole length. `room` may be 0, and `result` then NULL. */
    size_t (*result)(const void *state, void *result, size_t room);
    /* May be NULL. */
    void (*destroy)(void *state);
    double rate; /* bytes a second that it promises; a slower one is reported. 0: no promise */
    /* In place of `process`, for an engine that changes the stream of a socket: calls `emit` with what leaves, before it returns
     * and any number of times. `count` 0: the stream has ended, and what was held back leaves. When it fails the stream ends. */
    int32_t (*transform)(void *state, const void *bytes, size_t count, rb_engine_emit emit, void *to);
    double growth; /* most bytes that it emits for each of input, at most 1024; 0: one */
    size_t extra;  /* and this many more in one call, at most 16 MiB; also those at the end */
} rb_engine_callbacks;

/* Zero-initialise, set `size = sizeof(rb_engine_config)`, and `spec` or `own`; 0 is a default. */
typedef struct rb_engine_config {
    size_t size;         /* sizeof(rb_engine_config): lets the structure grow */
    const char *spec;    /* "hll:p=14,width=4", "checksum", "cast:f32-bf16", "filter:record=16,at=8,type=u32,op=gt,value=9";
                          * several with | between them */
    uint32_t place;      /* RB_ENGINE_RECEIVED, ... */
    uint32_t item_bytes; /* items of different streams are never mixed in a state that they share; 0: it does not matter */
    uint32_t flags;      /* RB_ENGINE_PER_STREAM or 0 */
    uint32_t reserved;   /* 0 */
    const rb_engine_callbacks *own; /* an engine of the program's own instead of `spec`; copied */
} rb_engine_config;

/* Puts an engine on the path of a connected socket, from the next byte on. It may also change the bytes (cast, filter):
 * then a receive of n bytes waits for n bytes behind it. RB_ERR_INVALID_ARGUMENT: no such socket, another engine is
 * there already, or the text names no engine; the other functions report the same. */
rb_result rb_engine_attach_socket(rb_nic *nic, uint32_t sock, const rb_engine_config *config, uint32_t *engine);
/* At everything that the operations of a queue of rb_queue_create receive, or send, on any socket. It sees, and
 * changes nothing. */
rb_result rb_engine_attach_queue(rb_nic *nic, const rb_queue *queue, const rb_engine_config *config, uint32_t *engine);
/* The same at the queue of a context: the sockets' operations that are called on it. */
rb_result rb_engine_attach_context(rb_context *context, const rb_engine_config *config, uint32_t *engine);
/* At this rank of a communicator; other ranks need not do the same. */
rb_result rb_engine_attach_comm(rb_communicator *comm, const rb_engine_config *config, uint32_t *engine);

/* The result so far, in the engine's own format; the engine goes on. Its first `room` bytes go to `result`, its whole length to
 * `bytes`, and bytes of an item that the end of a stream has cut off to `cut` (0: none); both may be NULL. RB_ERR_INVALID_ARGUMENT when
 * it is longer than `room`, and when the engine has failed: then it has no result, and a stream that it changes has ended
 * (RB_STATUS_ENGINE_FAILED here, RB_STATUS_CONNECTION_RESET at the peer). */
rb_result rb_engine_result(rb_nic *nic, uint32_t engine, void *result, size_t room, size_t *bytes, uint64_t *cut);
/* With RB_ENGINE_PER_STREAM: that of a socket, or of a peer of the communicator. */
rb_result rb_engine_result_of_socket(rb_nic *nic, uint32_t engine, uint32_t sock, void *result, size_t room, size_t *bytes,
                                     uint64_t *cut);
rb_result rb_engine_result_of_rank(rb_nic *nic, uint32_t engine, uint32_t rank, void *result, size_t room, size_t *bytes,
                                   uint64_t *cut);
/* Ends an engine, from the next byte on, and gives its last result, or what there is room for. Engines go with their NIC. */
rb_result rb_engine_detach(rb_nic *nic, uint32_t engine, void *result, size_t room, size_t *bytes, uint64_t *cut);

#define RB_RETURN_STREAM 0u /* what leaves the engine, as it comes */
#define RB_RETURN_RESULT 1u /* the engine's result, when the stream has ended */

/* The NIC itself receives the stream of a socket, through the engine on its path, and sends back what `what` says, then
 * half-closes. No other call may receive on the socket; it is closed as any other (op_return of FpgaNIC, section 3.5). */
rb_result rb_engine_return(rb_nic *nic, uint32_t sock, uint32_t what);

/* How the result of "hll" begins; with "result=summary" it is all. */
typedef struct rb_hll_summary {
    double estimate;       /* different items */
    double relative_error; /* standard error of that */
    uint64_t items;        /* all items */
    uint64_t image_bytes;  /* bytes of the sketch behind this */
} rb_hll_summary;

/* How the result of "checksum" begins. */
typedef struct rb_checksum_result {
    uint64_t crc32c;
    uint64_t bytes; /* that it has seen */
} rb_checksum_result;

#ifdef __cplusplus
}
#endif
#endif /* RINGBELL_H */
