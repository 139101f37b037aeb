/* The C API of communicators as a C99 program sees it: ranks as threads with a NIC each, every error path, and
 * ranks as processes of which one dies. Run by tests/programs.rs.
 * usage: comm DIRECTORY ; exits with the number of failed checks.
 * It starts itself as `comm DIRECTORY rank RANK RANKS VICTIM ID`. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nic.h"

#define RANKS 3
/* Elements of the longest test: odd, and too many for one eager message. */
#define LONG 70001

/* ---- Ranks as threads ---------------------------------------------------------------------------- */

struct rank {
    rb_nic *nic;
    rb_communicator *comm;
    uint32_t me, ranks;
    void (*body)(struct rank *);
};

static void *start(void *argument) {
    struct rank *r = argument;
    r->body(r);
    return NULL;
}

/* Runs `body` as each of `n` ranks, a thread each. */
static void each(struct rank *all, uint32_t n, void (*body)(struct rank *)) {
    pthread_t threads[RANKS];
    uint32_t i;
    for (i = 0; i < n; ++i) {
        all[i].body = body;
        CHECK(pthread_create(&threads[i], NULL, start, &all[i]) == 0);
    }
    for (i = 0; i < n; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Element i of a rank's data: each rank's and each place's own. Sums wrap around, as the NIC's do. */
static uint32_t value(uint32_t rank, uint64_t i) { return (rank + 1) * 1000003u + (uint32_t)i * 7919u; }

static uint32_t sum(uint32_t ranks, uint64_t i) {
    uint32_t s = 0, r;
    for (r = 0; r < ranks; ++r) s += value(r, i);
    return s;
}

static void *device(struct rank *r, uint64_t words) {
    void *va = NULL;
    CHECK(rb_mem_alloc(r->nic, words * 4, &va) == 0);
    return va;
}

/* Fills `va` with the rank's data from element `first` on. */
static void put(struct rank *r, void *va, uint64_t words) {
    uint32_t *data = malloc(words * 4 + 4);
    uint64_t i;
    for (i = 0; i < words; ++i) data[i] = value(r->me, i);
    CHECK(rb_mem_write(r->nic, va, data, words * 4) == 0);
    free(data);
}

static uint32_t get(struct rank *r, const void *va, uint64_t i) {
    uint32_t word = 0;
    CHECK(rb_mem_read(r->nic, &word, (const uint32_t *)va + i, 4) == 0);
    return word;
}

/* Whether `words` elements from `va` on are what `want` says of each. */
static int equals(struct rank *r, const void *va, uint64_t words, uint32_t (*want)(struct rank *, uint64_t)) {
    uint32_t *seen = malloc(words * 4 + 4);
    uint64_t i;
    int same = 1;
    CHECK(rb_mem_read(r->nic, seen, va, words * 4) == 0);
    for (i = 0; i < words; ++i)
        if (seen[i] != want(r, i)) {
            if (same) fprintf(stderr, "rank %u, element %u: %u\n", r->me, (unsigned)i, seen[i]);
            same = 0;
        }
    free(seen);
    return same;
}

static uint64_t block; /* elements a block of the test that runs */
static uint32_t the_root;

static uint32_t want_sum(struct rank *r, uint64_t i) { return sum(r->ranks, i); }
static uint32_t want_root(struct rank *r, uint64_t i) { return (void)r, value(the_root, i); }
static uint32_t want_own_sum(struct rank *r, uint64_t i) { return sum(r->ranks, r->me * block + i); }
static uint32_t want_gathered(struct rank *r, uint64_t i) { return (void)r, value((uint32_t)(i / block), i % block); }
static uint32_t want_scattered(struct rank *r, uint64_t i) { return value(the_root, r->me * block + i); }
static uint32_t want_exchanged(struct rank *r, uint64_t i) { return value((uint32_t)(i / block), r->me * block + i % block); }

/* Every collective, blocking and as a request, against a serial model. */
static void every_collective(struct rank *r) {
    rb_communicator *c = r->comm;
    uint64_t n = block, all = n * r->ranks;
    void *src = device(r, all + 8), *dst = device(r, all + 8);
    uint32_t *s = (uint32_t *)src + 5, *d = (uint32_t *)dst + 3; /* interior addresses */
    rb_request *q[9];
    uint32_t root = the_root;
    int i;
    put(r, s, all);
    CHECK(rb_all_reduce(s, d, n, RB_DTYPE_U32, RB_REDOP_SUM, c, NULL) == 0 && equals(r, d, n, want_sum));
    CHECK(rb_broadcast(s, d, n, RB_DTYPE_U32, root, c, NULL) == 0 && equals(r, d, n, want_root));
    CHECK(rb_reduce(s, d, n, RB_DTYPE_U32, RB_REDOP_SUM, root, c, NULL) == 0);
    CHECK(r->me != root || equals(r, d, n, want_sum));
    CHECK(rb_all_gather(s, d, n, RB_DTYPE_U32, c, NULL) == 0 && equals(r, d, all, want_gathered));
    CHECK(rb_reduce_scatter(s, d, n, RB_DTYPE_U32, RB_REDOP_SUM, c, NULL) == 0 && equals(r, d, n, want_own_sum));
    /* Who is not the root may pass anything for what it does not need. */
    CHECK(rb_scatter(r->me == root ? s : (void *)16, d, n, RB_DTYPE_U32, root, c, NULL) == 0);
    CHECK(equals(r, d, n, want_scattered));
    CHECK(rb_gather(s, r->me == root ? d : NULL, n, RB_DTYPE_U32, root, c, NULL) == 0);
    CHECK(r->me != root || equals(r, d, all, want_gathered));
    CHECK(rb_all_to_all(s, d, n, RB_DTYPE_U32, c, NULL) == 0 && equals(r, d, all, want_exchanged));
    CHECK(rb_barrier(c, NULL) == 0);

    /* The same, one after the other into one buffer, only the last of which can be seen. */
    CHECK(rb_iall_reduce(s, d, n, RB_DTYPE_U32, RB_REDOP_SUM, c, &q[0]) == 0 && rb_request_wait(q[0], 0, NULL) == 0);
    CHECK(equals(r, d, n, want_sum));
    CHECK(rb_ibroadcast(s, d, n, RB_DTYPE_U32, root, c, &q[1]) == 0 && rb_request_wait(q[1], 0, NULL) == 0);
    CHECK(equals(r, d, n, want_root));
    CHECK(rb_ireduce(s, d, n, RB_DTYPE_U32, RB_REDOP_SUM, root, c, &q[2]) == 0 && rb_request_wait(q[2], 0, NULL) == 0);
    CHECK(r->me != root || equals(r, d, n, want_sum));
    CHECK(rb_iall_gather(s, d, n, RB_DTYPE_U32, c, &q[3]) == 0 && rb_request_wait(q[3], 0, NULL) == 0);
    CHECK(equals(r, d, all, want_gathered));
    CHECK(rb_ireduce_scatter(s, d, n, RB_DTYPE_U32, RB_REDOP_SUM, c, &q[4]) == 0 && rb_request_wait(q[4], 0, NULL) == 0);
    CHECK(equals(r, d, n, want_own_sum));
    CHECK(rb_iscatter(s, d, n, RB_DTYPE_U32, root, c, &q[5]) == 0 && rb_request_wait(q[5], 0, NULL) == 0);
    CHECK(equals(r, d, n, want_scattered));
    CHECK(rb_igather(s, d, n, RB_DTYPE_U32, root, c, &q[6]) == 0 && rb_request_wait(q[6], 0, NULL) == 0);
    CHECK(r->me != root || equals(r, d, all, want_gathered));
    CHECK(rb_iall_to_all(s, d, n, RB_DTYPE_U32, c, &q[7]) == 0 && rb_request_wait(q[7], 0, NULL) == 0);
    CHECK(equals(r, d, all, want_exchanged));
    CHECK(rb_ibarrier(c, &q[8]) == 0 && rb_request_wait(q[8], 0, NULL) == 0);
    for (i = 0; i < 9; ++i) CHECK(rb_request_free(q[i]) == 0);
    FAILS(rb_request_wait(q[0], 0, NULL), RB_ERR_INVALID_ARGUMENT, "closed before");
    CHECK(rb_mem_free(r->nic, src) == 0 && rb_mem_free(r->nic, dst) == 0);
}

/* One call takes memory of every kind, another kind on each rank. */
static void every_memory(struct rank *r) {
    uint64_t n = 1001, i;
    uint32_t *own = malloc(n * 4), *shared = NULL;
    void *on_nic = NULL;
    CHECK(rb_host_register(r->nic, own, n * 4) == 0);
    CHECK(rb_host_alloc(r->nic, n * 4, (void **)&shared) == 0 && rb_nic_mem_alloc(r->nic, n * 4, &on_nic) == 0);
    for (i = 0; i < n; ++i) own[i] = value(r->me, i);
    CHECK(rb_all_reduce(own, on_nic, n, RB_DTYPE_U32, RB_REDOP_SUM, r->comm, NULL) == 0);
    CHECK(equals(r, on_nic, n, want_sum));
    CHECK(rb_broadcast(r->me == 1 ? (void *)own : NULL, r->me == 0 ? on_nic : shared, n, RB_DTYPE_U32, 1, r->comm, NULL) == 0);
    if (r->me == 0) CHECK(get(r, on_nic, n - 1) == value(1, n - 1));
    else CHECK(shared[n - 1] == value(1, n - 1));
    CHECK(rb_host_unregister(r->nic, own) == 0);
    FAILS(rb_all_reduce(own, on_nic, n, RB_DTYPE_U32, RB_REDOP_SUM, r->comm, NULL), RB_STATUS_NOT_REGISTERED, "NOT_REGISTERED");
    CHECK(rb_host_free(r->nic, shared) == 0 && rb_nic_mem_free(r->nic, on_nic) == 0);
    free(own);
}

/* Tags and ANY, tests, waits that are too short, what is too long, what is taken back. Ranks 0 and 1. */
static void messages(struct rank *r) {
    rb_communicator *c = r->comm;
    void *a = device(r, LONG), *b = device(r, LONG);
    uint32_t other = 1 - r->me;
    rb_request *q[3] = {NULL, NULL, NULL};
    rb_done done = {0, 0};
    int32_t ended = 7;
    put(r, a, LONG);

    /* A receive that nobody sends to: it goes on, can be taken back, and the buffer is free then. */
    CHECK(rb_irecv(b, 4, RB_DTYPE_U32, RB_ANY_RANK, 999, c, &q[0]) == 0);
    CHECK(rb_request_test(q[0], &ended, &done) == 0 && ended == 0);
    FAILS(rb_request_wait(q[0], 1000, NULL), RB_ERR_IN_PROGRESS, "no completion");
    CHECK(rb_request_cancel(q[0]) == 0);
    FAILS(rb_request_wait(q[0], 0, NULL), RB_STATUS_CANCELLED, "CANCELLED");
    FAILS(rb_request_cancel(q[0]), RB_STATUS_BAD_STATE, "cannot be cancelled");
    CHECK(rb_request_free(q[0]) == 0);

    /* Both send first: only a group makes that safe for long messages. */
    CHECK(rb_group_start() == 0);
    CHECK(rb_send(a, LONG, RB_DTYPE_U32, other, 5, c, NULL) == 0);
    CHECK(rb_recv(b, LONG, RB_DTYPE_U32, other, 5, c, NULL) == 0);
    CHECK(rb_group_end() == 0);
    CHECK(get(r, b, 0) == value(other, 0) && get(r, b, LONG - 1) == value(other, LONG - 1));

    if (r->me == 0) {
        CHECK(rb_send(a, 3, RB_DTYPE_U32, 1, 70, c, NULL) == 0);
        CHECK(rb_send((uint32_t *)a + 3, 2, RB_DTYPE_U32, 1, 71, c, NULL) == 0);
        /* Its receive is posted by now: a message that comes earlier is buffered, and has then been sent well. */
        CHECK(rb_recv(b, 1, RB_DTYPE_U32, 1, 73, c, NULL) == 0);
        CHECK(rb_isend(a, 9, RB_DTYPE_U32, 1, 72, c, &q[0]) == 0);
        FAILS(rb_request_wait(q[0], 0, NULL), RB_STATUS_MESSAGE_TOO_LARGE, "36 bytes");
    } else {
        CHECK(rb_irecv(b, 8, RB_DTYPE_U32, 0, 71, c, &q[0]) == 0);
        CHECK(rb_request_wait(q[0], 0, &done) == 0 && done.bytes == 8 && get(r, b, 1) == value(0, 4));
        CHECK(rb_request_free(q[0]) == 0);
        CHECK(rb_irecv(b, 8, RB_DTYPE_U32, RB_ANY_RANK, RB_ANY_TAG, c, &q[0]) == 0);
        while (rb_request_test(q[0], &ended, &done) == 0 && !ended) usleep(100);
        CHECK(ended == 1 && done.bytes == 12 && get(r, b, 2) == value(0, 2));
        CHECK(rb_request_free(q[0]) == 0);
        CHECK(rb_irecv(b, 8, RB_DTYPE_U32, 0, RB_ANY_TAG, c, &q[0]) == 0);
        CHECK(rb_send(a, 1, RB_DTYPE_U32, 0, 73, c, NULL) == 0);
        FAILS(rb_request_wait(q[0], 0, NULL), RB_STATUS_MESSAGE_TOO_LARGE, "36 bytes");
    }
    CHECK(rb_request_free(q[0]) == 0);
    CHECK(rb_mem_free(r->nic, a) == 0 && rb_mem_free(r->nic, b) == 0);
}

static rb_operation operation(uint32_t kind, const void *src, void *dst, uint64_t count) {
    rb_operation o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.kind = kind;
    o.dtype = RB_DTYPE_U32;
    o.op = RB_REDOP_SUM;
    o.src = src;
    o.dst = dst;
    o.count = count;
    return o;
}

/* b += a; then the sum of b over the ranks; then a copy of it: one chain in the NIC, nobody waits between. */
static void chains(struct rank *r) {
    void *a = device(r, 1000), *b = device(r, 1000);
    rb_operation o;
    rb_request *q[4];
    rb_done done;
    int i;
    put(r, a, 1000);
    put(r, b, 1000);
    o = operation(RB_COLL_COMBINE, a, b, 1000);
    CHECK(rb_operation_post(&o, r->comm, &q[0]) == 0);
    o = operation(RB_COLL_ALL_REDUCE, b, b, 1000);
    o.algo = RB_ALGO_RING;
    o.after = q;
    o.after_count = 1;
    CHECK(rb_operation_post(&o, r->comm, &q[1]) == 0);
    o = operation(RB_COLL_COPY, b, a, 1000);
    o.after = q;
    o.after_count = 2;
    CHECK(rb_operation_post(&o, r->comm, &q[2]) == 0);
    o = operation(RB_COLL_NOP, NULL, NULL, 0);
    o.op = 0;
    o.flags = RB_OP_FENCE;
    CHECK(rb_operation_post(&o, r->comm, &q[3]) == 0);
    CHECK(rb_request_wait(q[3], 0, NULL) == 0 && rb_request_wait(q[2], 0, &done) == 0 && done.bytes == 4000);
    CHECK(get(r, a, 999) == 2 * sum(r->ranks, 999));
    for (i = 0; i < 4; ++i) CHECK(rb_request_free(q[i]) == 0);

    /* What moves nothing has no type: zero does, and another on each rank does as well. */
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.kind = RB_COLL_BARRIER;
    CHECK(rb_operation_run(&o, r->comm, NULL) == 0);
    o.dtype = r->me == 0 ? RB_DTYPE_F32 : RB_DTYPE_U8;
    CHECK(rb_operation_run(&o, r->comm, NULL) == 0);
    o.dtype = 0;
    o.kind = RB_COLL_NOP;
    CHECK(rb_operation_run(&o, r->comm, NULL) == 0);
    o.timeout_us = UINT64_C(1) << 32;
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "4294967296 microseconds");

    o = operation(RB_COLL_ALL_REDUCE, a, a, 1000);
    CHECK(rb_operation_run(&o, r->comm, &done) == 0 && done.bytes == 4000);
    o.op = 0;
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "RB_REDOP_");
    o.op = RB_REDOP_SUM;
    o.dtype = 77;
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "`dtype` is 77");
    o.dtype = RB_DTYPE_U32;
    o.flags = 0x60;
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "RB_OP_FENCE");
    o.flags = 0;
    o.after = (rb_request *const *)&a;
    o.after_count = 1;
    FAILS(rb_operation_post(&o, r->comm, q), RB_ERR_INVALID_ARGUMENT, "no open request");
    CHECK(q[0] == NULL);
    o.after_count = 0;
    o.size = 8;
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "sizeof(rb_operation)");
    FAILS(rb_operation_run(NULL, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    CHECK(rb_mem_free(r->nic, a) == 0 && rb_mem_free(r->nic, b) == 0);
}

/* Collectives between others on a stream, groups on a stream, and how failures come out of it. */
static void streams(struct rank *r) {
    const uint32_t one[3] = {1, 1, 1};
    rb_stream *s = NULL;
    rb_request *q = NULL;
    rb_done done;
    rb_operation o;
    uint32_t other = 1 - r->me;
    void *a = device(r, LONG), *b = device(r, LONG);
    put(r, a, LONG);
    CHECK(rb_stream_create(r->nic, &s) == 0 && rb_stream_synchronize(s, 0) == 0);
    /* a = 2 a; sum; sum: in order, while this thread only queues. */
    o = operation(RB_COLL_COMBINE, a, a, 1000);
    CHECK(rb_operation_enqueue(&o, r->comm, s, NULL) == 0);
    CHECK(rb_all_reduce(a, a, 1000, RB_DTYPE_U32, RB_REDOP_SUM, r->comm, s) == 0);
    o = operation(RB_COLL_ALL_REDUCE, a, a, 1000);
    CHECK(rb_operation_enqueue(&o, r->comm, s, &q) == 0);
    CHECK(rb_request_wait(q, 0, &done) == 0 && done.bytes == 4000);
    FAILS(rb_request_cancel(q), RB_ERR_INVALID_ARGUMENT, "stream");
    CHECK(rb_request_free(q) == 0 && rb_stream_synchronize(s, 0) == 0);
    CHECK(get(r, a, 7) == 4 * sum(2, 7));

    /* Long messages both ways, on one stream: as a group they cannot block each other. */
    CHECK(rb_group_start() == 0 && rb_group_start() == 0);
    CHECK(rb_send(a, LONG, RB_DTYPE_U32, other, 1, r->comm, s) == 0);
    CHECK(rb_group_end() == 0); /* the inner one */
    CHECK(rb_recv(b, LONG, RB_DTYPE_U32, other, 1, r->comm, s) == 0);
    CHECK(rb_group_end() == 0 && rb_stream_synchronize(s, 0) == 0);
    CHECK(get(r, b, 7) == 4 * sum(2, 7) && get(r, b, LONG - 1) == value(other, LONG - 1));

    /* A group with a call that is refused starts nothing; nor does the other rank's. */
    CHECK(rb_group_start() == 0);
    CHECK(rb_send(a, LONG, RB_DTYPE_U32, other, 1, r->comm, NULL) == 0);
    FAILS(rb_recv((void *)64, 9, RB_DTYPE_U32, other, 1, r->comm, s), RB_STATUS_NOT_REGISTERED, "NOT_REGISTERED");
    FAILS(rb_group_end(), RB_ERR_INVALID_ARGUMENT, "rb_recv: NOT_REGISTERED");
    FAILS(rb_group_end(), RB_ERR_INVALID_ARGUMENT, "rb_group_start first");

    /* What fails on the stream is told when it is synchronised, once. */
    CHECK(rb_send(a, 1, RB_DTYPE_U32, 55, 0, r->comm, s) == 0);
    FAILS(rb_stream_synchronize(s, 0), RB_STATUS_INVALID_ARGUMENT, "INVALID_ARGUMENT");
    CHECK(rb_stream_synchronize(s, 0) == 0);
    if (r->me == 0) { /* waits for a message that comes only when it says so */
        CHECK(rb_recv(b, 1, RB_DTYPE_U32, other, 8, r->comm, s) == 0);
        FAILS(rb_stream_synchronize(s, 1000), RB_ERR_IN_PROGRESS, "event");
        CHECK(rb_send(a, 1, RB_DTYPE_U32, other, 9, r->comm, NULL) == 0);
    } else {
        CHECK(rb_recv(b, 1, RB_DTYPE_U32, other, 9, r->comm, NULL) == 0);
        CHECK(rb_send(a, 1, RB_DTYPE_U32, other, 8, r->comm, NULL) == 0);
    }
    CHECK(rb_stream_synchronize(s, 0) == 0);
    FAILS(rb_stream_launch(s, "no_such_kernel", one, one, NULL, 0), RB_ERR_KERNEL, "no_such_kernel");
    CHECK(rb_stream_destroy(s) == 0);
    FAILS(rb_stream_destroy(s), RB_ERR_INVALID_ARGUMENT, "closed before");
    FAILS(rb_barrier(r->comm, s), RB_ERR_INVALID_ARGUMENT, "closed before");
    CHECK(rb_mem_free(r->nic, a) == 0 && rb_mem_free(r->nic, b) == 0);
}

/* A kernel that runs an all-reduce itself gets the communicator by value. */
static void kernels(struct rank *r) {
    const uint32_t one[3] = {1, 1, 1};
    const uint32_t kind = RB_COLL_ALL_REDUCE, dtype = RB_DTYPE_U32, op = RB_REDOP_MAX, zero = 0, algo = RB_ALGO_AUTO,
                   wire = RB_WIRE_SAME, timeout_us = 60000000;
    const uint64_t count = 99;
    void *a = device(r, 100), *out = device(r, 6);
    rb_stream *s = NULL;
    rb_comm handle;
    rb_arg args[13];
    put(r, a, 100);
    CHECK(rb_comm_kernel_handle(r->comm, &handle) == 0 && handle.rank == r->me && handle.size == r->ranks);
    CHECK(handle.defaults == (RB_ALGO_AUTO | RB_WIRE_SAME << 8) && handle.queue.depth_log2 > 0);
    args[0].value = &handle, args[0].bytes = sizeof handle;
    args[1].value = &kind, args[1].bytes = 4;
    args[2].value = &a, args[2].bytes = 8;
    args[3].value = &a, args[3].bytes = 8;
    args[4].value = &count, args[4].bytes = 8;
    args[5].value = &dtype, args[5].bytes = 4;
    args[6].value = &op, args[6].bytes = 4;
    args[7].value = &zero, args[7].bytes = 4;
    args[8].value = &zero, args[8].bytes = 4;
    args[9].value = &algo, args[9].bytes = 4;
    args[10].value = &wire, args[10].bytes = 4;
    args[11].value = &timeout_us, args[11].bytes = 4;
    args[12].value = &out, args[12].bytes = 8;
    CHECK(rb_stream_create(r->nic, &s) == 0);
    CHECK(rb_stream_launch(s, "rb_collective", one, one, args, 13) == 0 && rb_stream_synchronize(s, 0) == 0);
    CHECK(get(r, out, 0) == 0 && get(r, a, 98) == value(r->ranks - 1, 98) && get(r, a, 99) == value(r->me, 99));
    CHECK(rb_stream_destroy(s) == 0 && rb_mem_free(r->nic, a) == 0 && rb_mem_free(r->nic, out) == 0);
}

static void splits(struct rank *r) {
    rb_communicator *part = NULL;
    uint32_t n = 0, me = 9, was = 9;
    void *x = device(r, 1);
    put(r, x, 1);
    /* Ranks 0 and 2 in the opposite order; rank 1 in none. */
    CHECK(rb_comm_split(r->comm, r->me == 1 ? RB_SPLIT_NOCOLOR : 4, -(int32_t)r->me, &part) == 0);
    CHECK((part == NULL) == (r->me == 1));
    if (part) {
        CHECK(rb_comm_count(part, &n) == 0 && n == 2);
        CHECK(rb_comm_user_rank(part, &me) == 0 && me == (r->me == 0));
        CHECK(rb_comm_job_rank(part, 0, &was) == 0 && was == 2);
        FAILS(rb_comm_job_rank(part, 2, &was), RB_ERR_INVALID_ARGUMENT, "no rank 2");
        CHECK(rb_all_reduce(x, x, 1, RB_DTYPE_U32, RB_REDOP_SUM, part, NULL) == 0);
        CHECK(get(r, x, 0) == value(0, 0) + value(2, 0));
        CHECK(rb_comm_finalize(part, 0) == 0 && rb_comm_destroy(part) == 0);
        FAILS(rb_comm_count(part, &n), RB_ERR_INVALID_ARGUMENT, "closed before");
    }
    /* Destroying a communicator waits for what is under way, also when its request was given back. */
    put(r, x, 1);
    CHECK(rb_comm_split(r->comm, 1, (int32_t)r->me, &part) == 0 && part);
    if (r->me == 0) {
        rb_request *q = NULL;
        CHECK(rb_iall_reduce(x, x, 1, RB_DTYPE_U32, RB_REDOP_SUM, part, &q) == 0 && rb_request_free(q) == 0);
    } else {
        usleep(50000);
        CHECK(rb_all_reduce(x, x, 1, RB_DTYPE_U32, RB_REDOP_SUM, part, NULL) == 0);
    }
    CHECK(rb_comm_destroy(part) == 0 && get(r, x, 0) == sum(r->ranks, 0));
    CHECK(rb_mem_free(r->nic, x) == 0);
}

/* Memory for one-sided operations of kernels: the same window on every rank, zeroed, freed once. */
static void symmetric(struct rank *r) {
    void *x = NULL, *remote = NULL;
    uint32_t window = 0, next = 0, rkey = 0, word = 1;
    CHECK(rb_comm_alloc_symmetric(r->comm, 4096, &x, &window) == 0 && x && window);
    CHECK(rb_mem_read(r->nic, &word, (char *)x + 4092, 4) == 0 && word == 0);
    CHECK(rb_comm_free_symmetric(r->comm, x) == 0);
    FAILS(rb_comm_free_symmetric(r->comm, x), RB_ERR_INVALID_ARGUMENT, "freed before");
    FAILS(rb_mem_free(r->nic, x), RB_ERR_INVALID_ARGUMENT, "not the start");
    FAILS(rb_comm_alloc_symmetric(r->comm, 0, &x, &window), RB_ERR_INVALID_ARGUMENT, "0 bytes");
    FAILS(rb_comm_alloc_symmetric(r->comm, 8, NULL, &window), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_alloc_symmetric(r->comm, 8 + r->me, &x, &window), RB_ERR_INVALID_ARGUMENT, "symmetric memory: rank");
    CHECK(rb_comm_alloc_symmetric(r->comm, 8, &x, &next) == 0 && next > window);
    CHECK(rb_mem_alloc_remote(r->nic, 100, &remote, &rkey) == 0 && remote && rkey);
    CHECK(rb_mem_free(r->nic, remote) == 0);
    /* The other window ends with the communicator. */
}

static const char *const OWN = "ringbell program 1\ncollective all-reduce\nranks 2\nblock 2\norder ring\n"
                               "rank 0\n0: input[0] -> net 1\n1: net 1 + input[1] -> output[1], net 1\n2: net 1 -> output[0]\n"
                               "rank 1\n0: input[1] -> net 0\n1: net 0 + input[0] -> output[0], net 0\n2: net 0 -> output[1]\n";

static void own_program(struct rank *r) {
    void *x = device(r, 77);
    rb_operation o = operation(RB_COLL_ALL_REDUCE, x, x, 77);
    put(r, x, 77);
    o.algo = RB_ALGO_USER;
    FAILS(rb_comm_load_program(r->comm, "nonsense"), RB_ERR_INVALID_ARGUMENT, "ringbell program 1");
    FAILS(rb_comm_load_program(r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    CHECK(rb_comm_load_program(r->comm, OWN) == 0);
    CHECK(rb_operation_run(&o, r->comm, NULL) == 0 && get(r, x, 76) == sum(2, 76));
    CHECK(rb_mem_free(r->nic, x) == 0);
}

/* Ranks that ask for different things: both are told who differs, and the communicator says that it is lost. */
static void disagree(struct rank *r) {
    uint32_t op = r->me ? RB_REDOP_MAX : RB_REDOP_SUM, who = 0;
    rb_result error = 0;
    rb_communicator *again = NULL;
    void *x = device(r, 7);
    CHECK(rb_comm_get_async_error(r->comm, &error) == 0 && error == 0);
    CHECK(rb_comm_failed_rank(r->comm, &who) == 0 && who == UINT32_MAX);
    FAILS(rb_all_reduce(x, x, 7, RB_DTYPE_U32, op, r->comm, NULL), RB_STATUS_MISMATCH, "rank 1 called something else");
    CHECK(rb_comm_get_async_error(r->comm, &error) == 0 && error == RB_STATUS_MISMATCH);
    CHECK(rb_comm_failed_rank(r->comm, &who) == 0 && who == 1);
    CHECK(strstr(rb_result_text(error), "the ranks called different operations") != NULL);
    /* Nobody has died, so the next one is as large. */
    CHECK(rb_comm_shrink(r->comm, 0, &again) == 0);
    CHECK(rb_comm_destroy(r->comm) == 0);
    r->comm = again;
    CHECK(rb_barrier(r->comm, NULL) == 0);
    CHECK(rb_mem_free(r->nic, x) == 0);
}

/* One that aborts frees the other, which waits for it. */
static void aborts(struct rank *r) {
    rb_result error = 0;
    if (r->me == 1) {
        CHECK(rb_comm_abort(r->comm) == 0);
        FAILS(rb_barrier(r->comm, NULL), RB_STATUS_COMM_ABORTED, "rank 1 aborted");
    } else {
        FAILS(rb_barrier(r->comm, NULL), RB_STATUS_COMM_ABORTED, "rank 1 aborted");
        CHECK(rb_comm_get_async_error(r->comm, &error) == 0 && error == RB_STATUS_COMM_ABORTED);
    }
}

/* Everything that can be wrong with the arguments of a communicator of one rank. */
static void arguments(rb_nic *nic) {
    rb_unique_id id, bad;
    rb_comm_config config;
    rb_communicator *c = NULL;
    rb_nic *none = NULL;
    void *x = NULL;
    uint32_t n = 0;
    rb_job job;
    memset(&config, 0, sizeof config);
    memset(&bad, 'x', sizeof bad);
    FAILS(rb_get_unique_id(NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_get_unique_id_at("localhost", &id), RB_ERR_INVALID_ARGUMENT, "A.B.C.D:PORT");
    FAILS(rb_get_unique_id_at("192.0.2.1:1", &id), RB_ERR_JOB, "192.0.2.1:1");
    CHECK(rb_get_unique_id(&id) == 0 && strncmp(id.text, "rb1-", 4) == 0);
    FAILS(rb_comm_init_rank(&c, nic, 1, &bad, 0, NULL), RB_ERR_INVALID_ARGUMENT, "no text");
    bad.text[10] = 0;
    FAILS(rb_comm_init_rank(&c, nic, 1, &bad, 0, NULL), RB_ERR_INVALID_ARGUMENT, "rb1-");
    FAILS(rb_comm_init_rank(&c, nic, 1, NULL, 0, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_init_rank(NULL, nic, 1, &id, 0, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_init_rank(&c, NULL, 1, &id, 0, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_init_rank(&c, nic, 1, &id, 1, NULL), RB_ERR_JOB, "does not exist");
    FAILS(rb_comm_init_rank(&c, nic, 1, &id, 0, &config), RB_ERR_INVALID_ARGUMENT, "sizeof(rb_comm_config)");
    config.size = sizeof config;
    config.algo = 99;
    FAILS(rb_comm_init_rank(&c, nic, 1, &id, 0, &config), RB_ERR_INVALID_ARGUMENT, "config->algo is 99");
    config.algo = RB_ALGO_RING;
    config.port = 70000;
    FAILS(rb_comm_init_rank(&c, nic, 1, &id, 0, &config), RB_ERR_INVALID_ARGUMENT, "70000");
    config.port = 18700;
    FAILS(rb_comm_init_all(&c, NULL, 1, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_init_all(NULL, &nic, 1, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_init_all(&c, &nic, 0, NULL), RB_ERR_INVALID_ARGUMENT, "count");
    FAILS(rb_nic_open_rank(NULL, NULL, 0, &none), RB_ERR_INVALID_ARGUMENT, "null");
    /* Nobody has started this process. */
    FAILS(rb_job_from_env(&job), RB_ERR_JOB, "no rank of a job");
    FAILS(rb_nic_open_env(NULL, &none), RB_ERR_JOB, "ringbell run");
    FAILS(rb_comm_init_env(&c, nic, NULL), RB_ERR_JOB, "no rank of a job");
    CHECK(c == NULL && none == NULL);

    CHECK(rb_comm_init_rank(&c, nic, 1, &id, 0, &config) == 0 && c != NULL);
    CHECK(rb_comm_count(c, &n) == 0 && n == 1);
    FAILS(rb_comm_count(c, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_count(NULL, &n), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_comm_count((rb_communicator *)nic, &n), RB_ERR_INVALID_ARGUMENT, "no open communicator");
    CHECK(rb_mem_alloc(nic, 64, &x) == 0);
    CHECK(rb_all_reduce(x, x, 16, RB_DTYPE_F32, RB_REDOP_SUM, c, NULL) == 0);
    FAILS(rb_all_reduce(x, x, 17, RB_DTYPE_F32, RB_REDOP_SUM, c, NULL), RB_ERR_INVALID_ARGUMENT, "68 bytes of source");
    FAILS(rb_all_reduce(NULL, x, 16, RB_DTYPE_F32, RB_REDOP_SUM, c, NULL), RB_ERR_INVALID_ARGUMENT, "`src` is a null pointer");
    FAILS(rb_all_reduce(x, &n, 1, RB_DTYPE_F32, RB_REDOP_SUM, c, NULL), RB_STATUS_NOT_REGISTERED, "NOT_REGISTERED");
    FAILS(rb_all_reduce(x, x, 16, 0, RB_REDOP_SUM, c, NULL), RB_ERR_INVALID_ARGUMENT, "RB_DTYPE_");
    FAILS(rb_all_reduce(x, x, 16, RB_DTYPE_F32, 9, c, NULL), RB_ERR_INVALID_ARGUMENT, "`op` is 9");
    FAILS(rb_broadcast(x, x, 16, RB_DTYPE_F32, 1, c, NULL), RB_STATUS_INVALID_ARGUMENT, "INVALID_ARGUMENT");
    FAILS(rb_iall_reduce(x, x, 1, RB_DTYPE_F32, RB_REDOP_SUM, c, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_request_wait(NULL, 0, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    CHECK(rb_all_reduce(NULL, NULL, 0, RB_DTYPE_F32, RB_REDOP_SUM, c, NULL) == 0);
    CHECK(rb_comm_destroy(c) == 0 && rb_comm_destroy(NULL) == 0 && rb_request_free(NULL) == 0 && rb_stream_destroy(NULL) == 0);
    FAILS(rb_barrier(c, NULL), RB_ERR_INVALID_ARGUMENT, "closed before");
    CHECK(rb_mem_free(nic, x) == 0);
}

static void threads(const char *directory) {
    struct rank all[RANKS];
    rb_nic *nics[RANKS];
    rb_communicator *comms[RANKS];
    rb_unique_id id;
    const uint64_t counts[] = {0, 1, 2, 1023};
    uint32_t i, n;
    for (i = 0; i < RANKS; ++i) nics[i] = open_nic(directory, 1, i);
    arguments(nics[0]);
    for (n = 1; n <= RANKS; ++n) {
        CHECK(rb_comm_init_all(comms, nics, n, NULL) == 0);
        for (i = 0; i < n; ++i) {
            all[i].nic = nics[i];
            all[i].comm = comms[i];
            all[i].me = i;
            all[i].ranks = n;
        }
        for (i = 0; i < sizeof counts / sizeof *counts; ++i) {
            block = counts[i];
            the_root = i % n;
            each(all, n, every_collective);
        }
        if (n == 2) {
            each(all, n, messages);
            each(all, n, streams);
            each(all, n, own_program);
            each(all, n, symmetric);
            each(all, n, disagree);
            each(all, n, aborts);
        } else if (n == 3) {
            each(all, n, every_memory);
            each(all, n, chains);
            each(all, n, kernels);
            each(all, n, splits);
        }
        for (i = 0; i < n; ++i) CHECK(rb_comm_destroy(all[i].comm) == 0);
    }
    /* One thread that is all ranks, as NCCL programs do it; then their operations in a group too. */
    CHECK(rb_get_unique_id(&id) == 0 && rb_group_start() == 0);
    for (i = 0; i < RANKS; ++i) CHECK(rb_comm_init_rank(&comms[i], nics[i], RANKS, &id, i, NULL) == 0 && comms[i] == NULL);
    CHECK(rb_group_end() == 0 && rb_group_start() == 0);
    for (i = 0; i < RANKS; ++i) {
        all[i].comm = comms[i];
        CHECK(rb_barrier(comms[i], NULL) == 0);
    }
    CHECK(rb_group_end() == 0);
    each(all, RANKS, every_collective);
    /* Closing a NIC ends what uses it. */
    for (i = 0; i < RANKS; ++i) CHECK(rb_nic_close(nics[i]) == 0);
    FAILS(rb_barrier(comms[0], NULL), RB_ERR_INVALID_ARGUMENT, "closed before");
}

/* A job of one rank takes in a second, and halves of it become one; one thread is both ranks. */
static void growth(void) {
    rb_unique_id id, now;
    rb_nic_config config;
    rb_nic *nics[2];
    rb_communicator *one = NULL, *two[2] = {NULL, NULL}, *half[2], *again[2], *none = NULL;
    struct rank all[2];
    uint32_t i, rank = 9;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.gpu_memory_bytes = 1u << 20;
    config.gpu = "emulated";
    CHECK(rb_get_unique_id(&id) == 0 && rb_nic_open_rank(&config, &id, 0, &nics[0]) == 0);
    CHECK(rb_comm_init_rank(&one, nics[0], 1, &id, 0, NULL) == 0);
    FAILS(rb_comm_grow(one, 1, 0, &two[0]), RB_ERR_INVALID_ARGUMENT, "cannot grow to 1");
    FAILS(rb_comm_grow(one, 2, 1000, &two[0]), RB_ERR_JOB, "0 of 1 new rank(s)");
    FAILS(rb_comm_join(&two[1], nics[0], NULL), RB_ERR_INVALID_ARGUMENT, "rb_nic_open_new_rank");
    CHECK(rb_comm_get_unique_id(one, &now) == 0 && strcmp(now.text, id.text) == 0);
    CHECK(rb_nic_open_new_rank(&config, &now, 0, &nics[1]) == 0);
    CHECK(rb_group_start() == 0 && rb_comm_grow(one, 2, 0, &two[0]) == 0);
    CHECK(rb_comm_join(&two[1], nics[1], NULL) == 0 && rb_group_end() == 0);
    FAILS(rb_comm_join(&half[1], nics[1], NULL), RB_ERR_INVALID_ARGUMENT, "already");
    CHECK(rb_comm_job_rank(two[1], 1, &rank) == 0 && rank == 1);
    CHECK(rb_group_start() == 0);
    for (i = 0; i < 2; ++i) CHECK(rb_comm_split(two[i], i, 0, &half[i]) == 0);
    CHECK(rb_group_end() == 0 && rb_group_start() == 0);
    for (i = 0; i < 2; ++i) {
        uint32_t other = 1 - i;
        CHECK(rb_comm_merge(half[i], &other, 1, &again[i]) == 0);
    }
    CHECK(rb_group_end() == 0);
    FAILS(rb_comm_merge(half[0], NULL, 1, &none), RB_ERR_INVALID_ARGUMENT, "`others`");
    block = 1023;
    the_root = 1;
    for (i = 0; i < 2; ++i) {
        all[i].nic = nics[i];
        all[i].comm = again[i];
        all[i].me = i;
        all[i].ranks = 2;
    }
    each(all, 2, every_collective);
    for (i = 0; i < 2; ++i) all[i].comm = two[i];
    each(all, 2, every_collective);
    CHECK(rb_barrier(one, NULL) == 0);
    for (i = 0; i < 2; ++i) CHECK(rb_nic_close(nics[i]) == 0);
}

/* ---- Ranks as processes, of which one dies ---------------------------------------------------------- */

#define ROUNDS 40
#define DIES_IN 13

/* Adds numbers; when a rank has died, goes on with the others. */
static int process(uint32_t me, uint32_t ranks, uint32_t victim, const rb_unique_id *id) {
    rb_nic_config config;
    struct rank r;
    rb_communicator *left = NULL;
    uint32_t number = 1u << (8 * me), all = 0, n = 0, who = 0, i, round, failures = 0;
    void *x;
    memset(&config, 0, sizeof config);
    memset(&r, 0, sizeof r);
    config.size = sizeof config;
    config.gpu_memory_bytes = 16u << 20;
    CHECK(rb_nic_open_rank(&config, id, me, &r.nic) == 0);
    CHECK(rb_comm_init_rank(&r.comm, r.nic, ranks, id, me, NULL) == 0);
    for (i = 0; i < ranks; ++i) all += 1u << (8 * i);
    x = device(&r, 1);
    for (round = 0; round < ROUNDS; ++round) {
        rb_result result;
        if (me == victim && round == DIES_IN) raise(SIGKILL);
        CHECK(rb_mem_write(r.nic, x, &number, 4) == 0);
        result = rb_all_reduce(x, x, 1, RB_DTYPE_U32, RB_REDOP_SUM, r.comm, NULL);
        if (result == 0) {
            CHECK(get(&r, x, 0) == all);
            continue;
        }
        CHECK(result == RB_STATUS_PEER_FAILED || result == RB_STATUS_COMM_ABORTED);
        CHECK(rb_comm_failed_rank(r.comm, &who) == 0 && (result != RB_STATUS_PEER_FAILED || who == victim));
        CHECK(++failures == 1 && rb_comm_shrink(r.comm, 0, &left) == 0);
        if (failed) return failed;
        CHECK(rb_comm_destroy(r.comm) == 0);
        r.comm = left;
        all -= 1u << (8 * victim);
        CHECK(rb_comm_count(left, &n) == 0 && n == ranks - 1);
        /* One may have ended its round just before: go on from where the last one is. */
        CHECK(rb_mem_write(r.nic, x, &round, 4) == 0);
        CHECK(rb_all_reduce(x, x, 1, RB_DTYPE_U32, RB_REDOP_MIN, r.comm, NULL) == 0);
        round = get(&r, x, 0) - 1;
    }
    CHECK(failures == 1);
    CHECK(rb_comm_finalize(r.comm, 0) == 0 && rb_comm_destroy(r.comm) == 0 && rb_nic_close(r.nic) == 0);
    return failed;
}

/* The id of a job that rank 0 made and serves: it comes through a file, `@PATH`. */
static void fetch_id(uint32_t me, const char *argument, rb_unique_id *id) {
    char part[300];
    FILE *f = NULL;
    int i;
    memset(id, 0, sizeof *id);
    if (argument[0] != '@') {
        strncpy(id->text, argument, sizeof id->text - 1);
        return;
    }
    if (me == 0) {
        snprintf(part, sizeof part, "%s.part", argument + 1);
        CHECK(rb_get_unique_id(id) == 0 && (f = fopen(part, "w")) != NULL);
        CHECK(fwrite(id->text, sizeof id->text, 1, f) == 1 && fclose(f) == 0 && rename(part, argument + 1) == 0);
        return;
    }
    for (i = 0; i < 6000 && (f = fopen(argument + 1, "r")) == NULL; ++i) usleep(10000);
    CHECK(f != NULL && fread(id->text, sizeof id->text, 1, f) == 1 && fclose(f) == 0);
}

/* A rank of three dies; the process that serves the bootstrap is this one, or rank 0. */
static void processes(char **argv, uint32_t victim, int rank_0_serves) {
    rb_unique_id id;
    pid_t pids[RANKS];
    uint32_t i;
    CHECK(rb_get_unique_id(&id) == 0);
    if (rank_0_serves) snprintf(id.text, sizeof id.text, "@%s-id-%u", argv[1], victim);
    for (i = 0; i < RANKS; ++i) {
        char rank[12], ranks[12], dead[12];
        snprintf(rank, sizeof rank, "%u", i);
        snprintf(ranks, sizeof ranks, "%u", RANKS);
        snprintf(dead, sizeof dead, "%u", victim);
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            execl("/proc/self/exe", argv[0], argv[1], "rank", rank, ranks, dead, id.text, (char *)NULL);
            _exit(127);
        }
    }
    for (i = 0; i < RANKS; ++i) {
        int status = 0;
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        if (i == victim) CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

/* What a NIC's setting max_queues allows at a time: communicators, and their queues for blocks of kernels. */
static void queues(const char *directory) {
    rb_nic_config config;
    rb_comm_config with_blocks = RB_COMM_CONFIG_INITIALIZER;
    rb_nic *nic = NULL;
    rb_communicator *few[3], *many[70];
    rb_comm handle;
    uint32_t i;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.ip = "10.6.20.1";
    config.transport = "local";
    config.local_directory = directory;
    config.gpu_memory_bytes = 16u << 20;
    config.max_queues = 2;
    CHECK(rb_nic_open(&config, &nic) == 0);
    for (i = 0; i < 2; ++i) CHECK(rb_comm_init_all(&few[i], &nic, 1, NULL) == 0);
    FAILS(rb_comm_init_all(&few[2], &nic, 1, NULL), RB_ERR_HOST, "all 2 queues are in use; raise the setting `max_queues`");
    CHECK(rb_comm_destroy(few[0]) == 0 && rb_comm_init_all(&few[2], &nic, 1, NULL) == 0);
    CHECK(rb_comm_destroy(few[1]) == 0 && rb_comm_destroy(few[2]) == 0 && rb_nic_close(nic) == 0);

    config.max_queues = 80;
    CHECK(rb_nic_open(&config, &nic) == 0);
    for (i = 0; i < 70; ++i) CHECK(rb_comm_init_all(&many[i], &nic, 1, NULL) == 0 && rb_barrier(many[i], NULL) == 0);
    with_blocks.block_queues = 8;
    CHECK(rb_comm_init_all(&few[0], &nic, 1, &with_blocks) == 0 && rb_comm_kernel_handle(few[0], &handle) == 0);
    CHECK(handle.block_queue_count == 8 && handle.block_queues != 0);
    with_blocks.block_queues = 2; /* 79 of 80 are in use */
    FAILS(rb_comm_init_all(&few[1], &nic, 1, &with_blocks), RB_ERR_HOST, "max_queues");
    CHECK(rb_comm_destroy(few[0]) == 0);
    for (i = 0; i < 70; ++i) CHECK(rb_comm_destroy(many[i]) == 0);
    CHECK(rb_nic_close(nic) == 0);
}

int main(int argc, char **argv) {
    if (argc == 7) {
        rb_unique_id id;
        fetch_id((uint32_t)atoi(argv[3]), argv[6], &id);
        return process((uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]), &id);
    }
    if (argc != 2) return 100;
    CHECK(sizeof(rb_unique_id) == 128 && sizeof(rb_job) == 32 && sizeof(rb_comm_config) == 208 && sizeof(rb_done) == 16);
    CHECK(sizeof(rb_operation) == 88 && offsetof(rb_operation, src) == 40 && offsetof(rb_operation, after) == 72);
    CHECK(sizeof(rb_comm) == 112 && offsetof(rb_comm, block_queues) == 96 && offsetof(rb_comm, comm) == 80);
    threads(argv[1]);
    queues(argv[1]);
    growth();
    processes(argv, 1, 0);
    /* The one that serves dies: another takes over. */
    processes(argv, 0, 1);
    if (!failed) puts("all checks passed");
    return failed;
}
