/* ringbell_comm.h - the C API of communicators: collectives and messages of ranks, run by their NICs.
 * C99 and C++. ringbell.h includes it.
 *
 * The calls have NCCL's names with the prefix rb_ and NCCL's order of arguments (docs/c-api.md has the
 * table). What is different: a communicator lives in a NIC, so that making one takes an rb_nic; every
 * wait has a deadline; and after a rank has died the others go on (rb_comm_shrink).
 *
 *   rb_unique_id id;                                        // rank 0: rb_get_unique_id(&id), and tell the others
 *   rb_nic_open_rank(NULL, &id, rank, &nic);
 *   rb_comm_init_rank(&comm, nic, ranks, &id, rank, NULL);
 *   rb_mem_alloc(nic, bytes, &x);
 *   rb_all_reduce(x, x, count, RB_DTYPE_F32, RB_REDOP_SUM, comm, NULL);
 *
 * Every rank calls the same operations of a communicator in the same order, with the same count, type,
 * reduction and root; ranks that disagree get RB_STATUS_MISMATCH and the rank that differs is named. The
 * order is that of the calls on each rank, so one thread at a time starts operations of a communicator.
 */
#ifndef RINGBELL_COMM_H
#define RINGBELL_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "ringbell_comm_handle.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t rb_result; /* as in ringbell.h */
typedef struct rb_nic rb_nic;
typedef struct rb_stream rb_stream;
typedef struct rb_communicator rb_communicator;
typedef struct rb_request rb_request;

/* ---- How ranks find each other ------------------------------------------------------------------ */

/* Where a job's ranks meet, and the secret that admits to it: text, zero-terminated. A process that has it may
 * join, so keep it like a password. Pass it on as it is: by MPI_Bcast, a file, a variable. */
typedef struct rb_unique_id {
    char text[128];
} rb_unique_id;

/* Makes an id for ranks of this machine, and serves the meeting in the background of this process until
 * every rank has come and gone. Should the process end earlier, a rank takes it over. */
rb_result rb_get_unique_id(rb_unique_id *id);
/* The same for ranks of several machines: `bind` is "A.B.C.D:PORT", an address of this machine that all
 * of them reach; port 0 is a free one. */
rb_result rb_get_unique_id_at(const char *bind, rb_unique_id *id);

/* What the launcher of this process says: `ringbell run`, torchrun, mpirun, mpiexec, srun. */
typedef struct rb_job {
    uint32_t rank;       /* from 0 */
    uint32_t ranks;      /* of the job */
    uint32_t local_rank; /* among those of this machine; UINT32_MAX where the launcher does not say it */
    uint32_t reserved;   /* 0 */
    char launcher[16];   /* "torchrun", "Open MPI", ... */
} rb_job;

/* RB_ERR_JOB: no launcher has started this process, or a variable of its is missing or wrong. */
rb_result rb_job_from_env(rb_job *job);

struct rb_nic_config; /* ringbell.h */

/* Opens the NIC of a rank of the job of `id`: its address, its meeting place and its secrets are the
 * job's, so that two jobs of one machine never meet. What `config` sets goes before; NULL: nothing. */
rb_result rb_nic_open_rank(const struct rb_nic_config *config, const rb_unique_id *id, uint32_t rank, rb_nic **nic);
/* Joins the running job of `id` as a new rank, and opens its NIC. The rank has a number that no rank of the job had
 * before. Waits at most `patience_us` for the job's server (0: 30 s). Next, rb_comm_join. */
rb_result rb_nic_open_new_rank(const struct rb_nic_config *config, const rb_unique_id *id, uint64_t patience_us, rb_nic **nic);
/* The same for the rank that the launcher of this process says. */
rb_result rb_nic_open_env(const struct rb_nic_config *config, rb_nic **nic);

/* ---- Communicators ------------------------------------------------------------------------------ */

/* Begin with RB_COMM_CONFIG_INITIALIZER (or zeros and `size`), then set what you need. 0 is a default, and
 * RB_CONFIG_ZERO the number 0. Every rank gives the same. Settings that contradict each other are refused when
 * the communicator is made, by name; docs/collectives.md says what each does. */
typedef struct rb_comm_config {
    size_t size;              /* sizeof(rb_comm_config): lets the structure grow */
    uint64_t init_timeout_us; /* how long the ranks may take to find each other; default 30 s */
    uint64_t timeout_us;      /* of operations that give none; default 30 s */
    uint32_t algo;            /* RB_ALGO_... of operations that give none; default RB_ALGO_AUTO */
    uint32_t wire;            /* RB_WIRE_... of f32 operations that give none; default RB_WIRE_SAME */
    uint32_t port;            /* of the NIC, at which it serves collectives; default 18620 */
    uint32_t version;         /* RB_COMM_CONFIG_VERSION, or 0 */
    /* Messages. */
    uint64_t eager_max;          /* bytes of a message that travels with its header; longer ones ask first. 64 KiB; over local 8 KiB */
    uint64_t eager_buffers;      /* receive buffers of that size for each peer. 8 */
    uint64_t segment_bytes;      /* bytes of a chunk that move at once. 256 KiB */
    uint64_t segments_in_flight; /* segments of an operation that are under way at once. 4 */
    uint64_t scratch_bytes;      /* NIC memory for partial results. 16 MiB */
    uint64_t stream_bytes;       /* kernels' streams: bytes of a window. 4 KiB */
    uint64_t staging_bytes;      /* bytes staged at once from memory that peers cannot map. 1 MiB */
    /* Ranks of one host. */
    uint64_t direct;             /* 1: they reach each other's memory without messages. RB_CONFIG_ZERO: not */
    uint64_t direct_eager_bytes; /* inputs of so many bytes travel inside the operation's record, or 8 KiB / ranks. 1 KiB */
    /* Where one algorithm gives way to the next (docs/collectives.md). */
    uint64_t flat_ranks;         /* ranks that a root serves one by one. 3 */
    uint64_t whole_sources;      /* bytes received when all-reduce and reduce send whole sources. 16 KiB */
    uint64_t all_reduce_ring;    /* bytes above which all-reduce goes round a ring. 256 KiB */
    uint64_t broadcast_chain;    /* bytes above which broadcast goes down a chain. 64 KiB */
    uint64_t gather_tree;        /* bytes of a block above which gather goes up a tree. 1 MiB */
    uint64_t all_gather_ring;    /* bytes of the result above which all-gather goes round a ring. 64 KiB */
    uint64_t deterministic;      /* 1: reduce in the order of the ranks, for any count, memory, algorithm and path. 0 */
    uint64_t card;               /* 1: cards execute the steps of rings, where all ranks have one. RB_CONFIG_ZERO: not */
    /* Kernels. */
    uint64_t block_queues;       /* queues of the NIC for blocks of kernels, for gpu_comm_queue; at most what max_queues leaves. None */
    /* Since version 6. */
    uint64_t trees;              /* 1: what goes to several ranks over a mesh goes by trees of copies. RB_CONFIG_ZERO: not */
    /* Since version 7. */
    uint64_t host_ranks;         /* consecutive ranks that share a host, for RB_ALGO_HIERARCHICAL and AUTO. As found out when the ranks meet */
    /* Since version 8. */
    uint64_t linked_ranks;       /* up to so many ranks, each has a link to every other from the start. 256 on one host, 64 on several */
} rb_comm_config;

#define RB_COMM_CONFIG_VERSION 8u
#define RB_CONFIG_ZERO 18446744073709551615u /* the number 0 where 0 itself would be the default */
#define RB_COMM_CONFIG_INITIALIZER {sizeof(rb_comm_config), 0, 0, 0, 0, 0, RB_COMM_CONFIG_VERSION, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Makes the communicator of a job: this is rank `rank` of `ranks`. Every rank calls it; it returns when all
 * have come, or with RB_ERR_JOB and the ranks that did not. One thread that is several ranks, with a
 * NIC each, calls it between rb_group_start and rb_group_end. `config` may be NULL. */
rb_result rb_comm_init_rank(rb_communicator **comm, rb_nic *nic, uint32_t ranks, const rb_unique_id *id, uint32_t rank,
                            const rb_comm_config *config);
/* The same for the rank that the launcher of this process says; `nic` is one of rb_nic_open_env. */
rb_result rb_comm_init_env(rb_communicator **comm, rb_nic *nic, const rb_comm_config *config);
/* Makes a communicator of `count` NICs of this process: comms[i] is that of rank i, on nics[i]. */
rb_result rb_comm_init_all(rb_communicator **comms, rb_nic *const *nics, uint32_t count, const rb_comm_config *config);

#define RB_SPLIT_NOCOLOR 4294967295u /* for rb_comm_split: not part of any new communicator */

/* Divides a communicator: ranks of one colour form a new one, ordered by key, then by their rank here. Every
 * rank calls it. RB_SPLIT_NOCOLOR: *newcomm becomes NULL. */
rb_result rb_comm_split(rb_communicator *comm, uint32_t color, int32_t key, rb_communicator **newcomm);
/* Makes a communicator of the ranks that are left after others have died, in their order here. Aborts operations
 * under way, and agrees with the other ranks on those left. Every remaining rank calls it within `patience_us` (0:
 * the time-out of making one); a rank that does not is left out. Any rank may have died, rank 0 included.
 * Afterwards only destroy `comm`. */
rb_result rb_comm_shrink(rb_communicator *comm, uint64_t patience_us, rb_communicator **newcomm);
/* Makes a communicator of `ranks` ranks: those of `comm`, in their order, and new ones, which call rb_comm_join. Every rank
 * calls it with the same number. Waits at most `patience_us` for the new ranks (0: the time-out of making one): RB_ERR_JOB
 * says how many came. All ranks get the new communicator, or all get an error; `comm` and what is under way go on. */
rb_result rb_comm_grow(rb_communicator *comm, uint32_t ranks, uint64_t patience_us, rb_communicator **newcomm);
/* A new rank's half of rb_comm_grow; `nic` is one of rb_nic_open_new_rank, and can be used for one call. Waits at most for the
 * time-out of making one. `config` must be that of the other ranks. */
rb_result rb_comm_join(rb_communicator **comm, rb_nic *nic, const rb_comm_config *config);
/* The id by which processes may join the job of `comm`: the secret, and where the job is served now. Ask for it shortly before:
 * where the process that served it has ended, another rank takes over, at another address. RB_ERR_JOB: none is left to. */
rb_result rb_comm_get_unique_id(rb_communicator *comm, rb_unique_id *id);
/* Makes one communicator of `comm` and another of the same job, whose `count` ranks in the job are `others` (rb_comm_job_rank). The
 * ranks of both call it. The one with the job's lowest rank comes first. Both go on beside the new one. */
rb_result rb_comm_merge(rb_communicator *comm, const uint32_t *others, uint32_t count, rb_communicator **newcomm);
/* Ends everything under way, on every rank, with RB_STATUS_COMM_ABORTED. The handle stays, to be shrunk or
 * destroyed. */
rb_result rb_comm_abort(rb_communicator *comm);
/* Waits until nothing of the communicator is under way here, at most for its time-out, and then until all ranks have
 * come here too, at most `patience_us` (0: the time-out of making one). Over a network call it before rb_comm_destroy:
 * a NIC that is gone sends nothing again that was lost. */
rb_result rb_comm_finalize(rb_communicator *comm, uint64_t patience_us);
/* Waits until nothing of the communicator is under way on this rank, at most for its time-out, and frees it in the NIC
 * when its requests are freed, as ncclCommDestroy does. RB_STATUS_TIMED_OUT: operations were left; they end with
 * RB_STATUS_ABORTED, and the handle is gone all the same. To free it at once call rb_comm_abort first. NULL does nothing. */
rb_result rb_comm_destroy(rb_communicator *comm);

rb_result rb_comm_count(rb_communicator *comm, uint32_t *count);
rb_result rb_comm_user_rank(rb_communicator *comm, uint32_t *rank);
/* A rank of a communicator. The texts end with zero. */
typedef struct rb_comm_peer_info {
    char address[24];  /* of its NIC: "10.0.0.2:18620" */
    char transport[8]; /* what carries its messages: "local", "tcp", "rdma"; "none" for this rank, or before the first message */
    char why[96];      /* why this transport */
} rb_comm_peer_info;

rb_result rb_comm_peer(rb_communicator *comm, uint32_t rank, rb_comm_peer_info *info);
/* Rank in the job of rank `rank`: where it was before splits and shrinks. */
rb_result rb_comm_job_rank(rb_communicator *comm, uint32_t rank, uint32_t *job_rank);
/* 0: it works. RB_STATUS_PEER_FAILED, _MISMATCH, _TIMED_OUT, _COMM_ABORTED: it was ended because of that; shrink
 * it, or destroy it and make another. Never waits. rb_result_text says it in words. */
rb_result rb_comm_get_async_error(rb_communicator *comm, rb_result *async_error);
/* The rank because of which it was ended; UINT32_MAX while it works. */
rb_result rb_comm_failed_rank(rb_communicator *comm, uint32_t *rank);
/* Proves a program of one's own (docs/collectives.md) and loads it into the NIC: operations of its
 * collective and root with RB_ALGO_USER run it. Every rank loads the same. */
rb_result rb_comm_load_program(rb_communicator *comm, const char *program);
/* Allocates zeroed GPU memory on every rank, for one-sided operations by rank and offset: a kernel names it by `*window`, the
 * same number on all ranks (gpu_window of ringbell_one_sided.cuh). Every rank calls it with the same size, in the same order. */
rb_result rb_comm_alloc_symmetric(rb_communicator *comm, size_t bytes, void **va, uint32_t *window);
/* Frees this rank's part; operations of other ranks on it fail from then on. rb_comm_destroy does it as well. */
rb_result rb_comm_free_symmetric(rb_communicator *comm, void *va);
/* What a kernel needs to run collectives itself (ringbell_collective.cuh), to be passed by value. */
rb_result rb_comm_kernel_handle(rb_communicator *comm, rb_comm *handle);

/* ---- Collectives and messages ------------------------------------------------------------------- */

/* Buffers are addresses in GPU, host or NIC memory that was allocated or registered with the communicator's
 * NIC, interior ones included; each rank and each call may use another kind. Counts are in elements of `dtype`
 * (RB_DTYPE_...), for each rank where there is a block for each. `op` is RB_REDOP_.... A buffer that a rank does
 * not need (that of who is not the root) may be anything. R: ranks of the communicator.
 *
 * With a stream the call queues the operation behind what the stream holds and returns; how it ends says
 * rb_stream_synchronize. With NULL it returns when the operation has ended, with its result: 0, or the
 * RB_STATUS_... with which the NIC ended it. The call with an i in its name starts the operation and gives
 * a request. */

/* dst[count] = the reduction of every rank's src[count], on every rank. In place: src == dst. */
rb_result rb_all_reduce(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t op, rb_communicator *comm,
                        rb_stream *stream);
rb_result rb_iall_reduce(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t op, rb_communicator *comm,
                         rb_request **request);
/* dst[count] = the root's src[count], on every rank. In place on the root: src == dst. */
rb_result rb_broadcast(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t root, rb_communicator *comm,
                       rb_stream *stream);
rb_result rb_ibroadcast(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t root, rb_communicator *comm,
                        rb_request **request);
/* The root's dst[count] = the reduction of every rank's src[count]. In place on the root: src == dst. */
rb_result rb_reduce(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t op, uint32_t root,
                    rb_communicator *comm, rb_stream *stream);
rb_result rb_ireduce(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t op, uint32_t root,
                     rb_communicator *comm, rb_request **request);
/* dst[R][count]: block r is rank r's src[count], on every rank. In place: src is the own block of dst. */
rb_result rb_all_gather(const void *src, void *dst, uint64_t count, uint32_t dtype, rb_communicator *comm,
                        rb_stream *stream);
rb_result rb_iall_gather(const void *src, void *dst, uint64_t count, uint32_t dtype, rb_communicator *comm,
                         rb_request **request);
/* dst[count] = the own block of the reduction of every rank's src[R][count]. In place: dst is the own block
 * of src. */
rb_result rb_reduce_scatter(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t op,
                            rb_communicator *comm, rb_stream *stream);
rb_result rb_ireduce_scatter(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t op,
                             rb_communicator *comm, rb_request **request);
/* dst[count] = the own block of the root's src[R][count]. In place on the root: dst is its own block of src. */
rb_result rb_scatter(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t root, rb_communicator *comm,
                     rb_stream *stream);
rb_result rb_iscatter(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t root, rb_communicator *comm,
                      rb_request **request);
/* The root's dst[R][count]: block r is rank r's src[count]. In place on the root: src is its own block of dst. */
rb_result rb_gather(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t root, rb_communicator *comm,
                    rb_stream *stream);
rb_result rb_igather(const void *src, void *dst, uint64_t count, uint32_t dtype, uint32_t root, rb_communicator *comm,
                     rb_request **request);
/* dst[R][count]: block r is block (own rank) of rank r's src[R][count]. There is no form in place. */
rb_result rb_all_to_all(const void *src, void *dst, uint64_t count, uint32_t dtype, rb_communicator *comm,
                        rb_stream *stream);
rb_result rb_iall_to_all(const void *src, void *dst, uint64_t count, uint32_t dtype, rb_communicator *comm,
                         rb_request **request);
/* Ends when every rank has come. */
rb_result rb_barrier(rb_communicator *comm, rb_stream *stream);
rb_result rb_ibarrier(rb_communicator *comm, rb_request **request);
/* src[count] to rank `peer`, with a tag; more than 4 GiB - 1 bytes are RB_STATUS_INVALID_ARGUMENT. Ends when src may
 * be used again; a long message then has met its receive, so that two ranks that send to each other first must do so
 * in a group, or with requests. */
rb_result rb_send(const void *src, uint64_t count, uint32_t dtype, uint32_t peer, uint32_t tag, rb_communicator *comm,
                  rb_stream *stream);
rb_result rb_isend(const void *src, uint64_t count, uint32_t dtype, uint32_t peer, uint32_t tag, rb_communicator *comm,
                   rb_request **request);
/* At most dst[count] from rank `peer` (or RB_ANY_RANK) with a tag (or RB_ANY_TAG), in the order in which that rank
 * sent them. A longer message is RB_STATUS_MESSAGE_TOO_LARGE on both sides, on the receiver's alone when it came
 * before its receive and was short enough to be buffered. rb_done.bytes of rb_irecv or rb_operation_run says how
 * long it was. */
rb_result rb_recv(void *dst, uint64_t count, uint32_t dtype, uint32_t peer, uint32_t tag, rb_communicator *comm,
                  rb_stream *stream);
rb_result rb_irecv(void *dst, uint64_t count, uint32_t dtype, uint32_t peer, uint32_t tag, rb_communicator *comm,
                   rb_request **request);

/* Between the two, on one thread, calls that take a stream (or NULL) and calls that make communicators are only
 * noted; rb_group_end starts them together, so that sends and receives cannot block each other and one
 * thread can be several ranks, and waits for those without a stream. Operations of a group on one stream run
 * side by side. If a call in the group is refused, rb_group_end starts nothing and says so. Groups may
 * be nested: the outermost counts. Pointers to results must stay valid until the end. */
rb_result rb_group_start(void);
rb_result rb_group_end(void);

/* ---- Operations with all their options ---------------------------------------------------------- */

#define RB_OP_FENCE 1u      /* starts when all earlier operations of the communicator have ended */
#define RB_OP_STREAMED 2u   /* in the order of streams: said by every rank when one has a kernel's stream */
#define RB_OP_SRC_STREAM 4u /* `src` is an rb_kernel_stream; STREAMED as well */
#define RB_OP_DST_STREAM 8u /* `dst` is an rb_kernel_stream; STREAMED as well */

/* Zero-initialise, set `size = sizeof(rb_operation)`, `kind` and what the kind needs; 0 is a default. */
typedef struct rb_operation {
    size_t size;                /* sizeof(rb_operation): lets the structure grow */
    uint32_t kind;              /* RB_COLL_...: also COPY (dst = src) and COMBINE (dst = dst op src) on this rank, and NOP */
    uint32_t dtype;             /* RB_DTYPE_...; BARRIER and NOP have none */
    uint32_t op;                /* RB_REDOP_..., where there is a reduction */
    uint32_t root;              /* or the peer of a message, or RB_ANY_RANK */
    uint32_t tag;               /* of a message, or RB_ANY_TAG; the port of a streamed collective, at most RB_MAX_PORT */
    uint32_t algo;              /* RB_ALGO_... */
    uint32_t wire;              /* RB_WIRE_...: type of f32 elements on the wire */
    uint32_t flags;             /* RB_OP_... or 0 */
    const void *src;            /* as above */
    void *dst;
    uint64_t count;             /* as above */
    uint64_t timeout_us;        /* until RB_STATUS_TIMED_OUT; above 2^32 - 1 it is refused */
    rb_request *const *after;   /* starts when these requests of the same communicator have ended well */
    uint32_t after_count;       /* how many; the NIC waits for them, not this thread */
    uint32_t reserved;          /* 0 */
} rb_operation;

typedef struct rb_done {
    uint64_t bytes;  /* moved; of a receive: the length of the message */
    uint64_t detail; /* as the status says (docs/registers.md) */
} rb_done;

/* Runs an operation to its end. `done` may be NULL. */
rb_result rb_operation_run(const rb_operation *operation, rb_communicator *comm, rb_done *done);
/* Starts an operation, and gives its request. It may overlap with earlier ones: one that uses their buffers names them in
 * `after`. */
rb_result rb_operation_post(const rb_operation *operation, rb_communicator *comm, rb_request **request);
/* Queues an operation behind what the stream holds; `after` and RB_OP_FENCE have no meaning there. `request` may be
 * NULL: then rb_stream_synchronize says how it ended. */
rb_result rb_operation_enqueue(const rb_operation *operation, rb_communicator *comm, rb_stream *stream, rb_request **request);

/* ---- Kernels' streams: a kernel pushes or pops where an operation would have a buffer ---------------- */

/* A small ring in host memory between one kernel and the NIC, in one direction. It stands for a whole buffer of an
 * operation: rb_operation with RB_OP_SRC_STREAM or RB_OP_DST_STREAM, posted by rb_operation_post or _run. At the root of a
 * scatter or gather it stands for the blocks of all ranks, one after the other. Other operands that have a block for each
 * rank must be memory; RB_COLL_STREAM_SEND and _RECV are the messages. The
 * operation moves what the kernel pushes, and the kernel pops what it brings (ringbell_stream.cuh;
 * docs/collectives.md). What kernel and operation both wait for ends by their time-outs. */
typedef struct rb_kernel_stream rb_kernel_stream;

/* A ring of `bytes`, rounded up to a power of two; at least rb_comm_config.stream_bytes, better some times that. */
rb_result rb_kernel_stream_create(rb_nic *nic, uint32_t bytes, rb_kernel_stream **stream);
/* Frees it. Operations on it end with RB_STATUS_REGION_FREED; kernels that use it must have ended. NULL does nothing. */
rb_result rb_kernel_stream_destroy(rb_kernel_stream *stream);
/* Empties it, and makes it usable again after an operation on it has failed. Nothing may be using it. */
rb_result rb_kernel_stream_reset(rb_kernel_stream *stream);
/* Bytes that the ring holds. */
rb_result rb_kernel_stream_capacity(rb_kernel_stream *stream, uint64_t *bytes);
/* What a kernel takes as `rb_stream_handle` of ringbell_stream.cuh: these 8 bytes, by value. */
rb_result rb_kernel_stream_handle(rb_kernel_stream *stream, uint64_t *word);

/* ---- Requests: one thread at a time uses one ----------------------------------------------------- */

/* Never waits. *ended is 1 when the operation has ended, well or badly, and then the result is the operation's.
 * `done` may be NULL. Asking again and again gets there: it drives the NIC. */
rb_result rb_request_test(rb_request *request, int32_t *ended, rb_done *done);
/* Waits at most `timeout_us` (0: to its end, which its own time-out brings). RB_ERR_IN_PROGRESS: it has not ended, wait
 * again. Any other result is the operation's. `done` may be NULL. */
rb_result rb_request_wait(rb_request *request, uint64_t timeout_us, rb_done *done);
/* Takes the operation back if no other rank counts on it yet: a message that has met no partner, or what waits for
 * the requests it comes after. rb_request_wait then gives RB_STATUS_CANCELLED, and the buffer is yours.
 * RB_STATUS_BAD_STATE: too late, wait for its end. */
rb_result rb_request_cancel(rb_request *request);
/* Ends the handle. An operation under way goes on, and its result is forgotten. NULL does nothing. */
rb_result rb_request_free(rb_request *request);

#ifdef __cplusplus
}
#endif
#endif /* RINGBELL_COMM_H */
