/* Kernels' streams and a communicator's settings, for C99 and for C++: this file is compiled as both.
 * usage: streams DIRECTORY MODULE ; MODULE is push_pop.cu, built by `ringbell cc`. Run by tests/programs.rs. */
#include <stdlib.h>

#include "ranks.h"

/* Many times what the rings hold, and odd. */
#define COUNT 20011
#define RING 8192

static const char *module;

static uint32_t value(uint32_t rank, uint64_t i) { return (rank + 1) * 1000003u + (uint32_t)i * 7919u; }

static rb_operation operation(uint32_t kind, uint32_t flags, const void *src, void *dst) {
    rb_operation o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.kind = kind;
    o.flags = flags;
    o.src = src;
    o.dst = dst;
    o.count = COUNT;
    o.dtype = RB_DTYPE_U32;
    o.op = RB_REDOP_SUM;
    return o;
}

/* Starts the kernel, posts the operation that `o` is, and waits for both. */
static void pass(struct rank *r, const rb_operation *o, rb_kernel_stream *to, rb_kernel_stream *from, void *popped) {
    /* gpu_result: the status comes first. */
    struct {
        uint32_t status, session;
        uint64_t bytes, detail;
    } ends[2];
    rb_comm comm;
    uint64_t to_word = 0, from_word = 0, count = COUNT;
    void *ends_va = NULL;
    rb_run *run = NULL;
    rb_request *request = NULL;
    /* One block when only one side is a kernel's. */
    uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1};
    rb_arg args[6];
    grid[0] = from ? 2 : 1;
    CHECK(rb_comm_kernel_handle(r->comm, &comm) == 0);
    CHECK(rb_kernel_stream_handle(to, &to_word) == 0);
    CHECK(rb_kernel_stream_handle(from ? from : to, &from_word) == 0);
    CHECK(rb_mem_alloc(r->nic, sizeof ends, &ends_va) == 0);
    memset(ends, 0, sizeof ends);
    CHECK(rb_mem_write(r->nic, ends_va, ends, sizeof ends) == 0);
    args[0].value = &comm, args[0].bytes = sizeof comm;
    args[1].value = &to_word, args[1].bytes = 8;
    args[2].value = &from_word, args[2].bytes = 8;
    args[3].value = &count, args[3].bytes = 8;
    args[4].value = &popped, args[4].bytes = 8;
    args[5].value = &ends_va, args[5].bytes = 8;
    CHECK(rb_launch(r->nic, "push_pop", grid, block, args, 6, &run) == 0);
    CHECK(rb_operation_post(o, r->comm, &request) == 0);
    CHECK(rb_request_wait(request, 0, NULL) == 0);
    CHECK(rb_request_free(request) == 0);
    CHECK(rb_run_wait(run, 0) == 0);
    CHECK(rb_mem_read(r->nic, ends, ends_va, sizeof ends) == 0);
    CHECK(ends[0].status == RB_STATUS_OK && ends[1].status == RB_STATUS_OK);
    CHECK(rb_mem_free(r->nic, ends_va) == 0);
}

static void *ranks(void *argument) {
    struct rank *r = (struct rank *)argument;
    rb_kernel_stream *to = NULL, *from = NULL;
    rb_stream *queue = NULL;
    rb_operation o;
    uint64_t bytes = 0, i;
    uint32_t *got = (uint32_t *)malloc(COUNT * 4);
    void *memory = NULL;
    CHECK(rb_mem_alloc(r->nic, COUNT * 4, &memory) == 0);
    CHECK(rb_kernel_stream_create(r->nic, RING - 100, &to) == 0);
    CHECK(rb_kernel_stream_create(r->nic, RING, &from) == 0);
    CHECK(rb_kernel_stream_capacity(to, &bytes) == 0 && bytes == RING);

    /* Both operands are streams. */
    o = operation(RB_COLL_ALL_REDUCE, RB_OP_SRC_STREAM | RB_OP_DST_STREAM, to, from);
    pass(r, &o, to, from, memory);
    CHECK(rb_mem_read(r->nic, got, memory, COUNT * 4) == 0);
    for (i = 0; i < COUNT && got[i] == value(0, i) + value(1, i); ++i) continue;
    CHECK(i == COUNT);

    /* From a kernel of rank 0 to memory of rank 1. */
    if (r->me == 0) {
        o = operation(RB_COLL_STREAM_SEND, RB_OP_SRC_STREAM, to, NULL);
        o.root = 1;
        o.tag = 7;
        pass(r, &o, to, NULL, NULL);
    } else {
        o = operation(RB_COLL_STREAM_RECV, 0, NULL, memory);
        o.root = 0;
        o.tag = 7;
        CHECK(rb_operation_run(&o, r->comm, NULL) == 0);
        CHECK(rb_mem_read(r->nic, got, memory, COUNT * 4) == 0);
        for (i = 0; i < COUNT && got[i] == value(0, i); ++i) continue;
        CHECK(i == COUNT);
    }

    /* A stream at the root alone, and memory elsewhere, where it must be said. */
    if (r->me == 0) {
        o = operation(RB_COLL_BROADCAST, RB_OP_SRC_STREAM, to, memory);
        pass(r, &o, to, NULL, NULL);
    } else {
        memset(got, 0, COUNT * 4);
        CHECK(rb_mem_write(r->nic, memory, got, COUNT * 4) == 0);
        o = operation(RB_COLL_BROADCAST, RB_OP_STREAMED, NULL, memory);
        CHECK(rb_operation_run(&o, r->comm, NULL) == 0);
    }
    CHECK(rb_mem_read(r->nic, got, memory, COUNT * 4) == 0);
    for (i = 0; i < COUNT && got[i] == value(0, i); ++i) continue;
    CHECK(i == COUNT);

    /* What cannot be. */
    o = operation(RB_COLL_ALL_GATHER, RB_OP_DST_STREAM, memory, from);
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "a block for each rank");
    o = operation(RB_COLL_ALL_REDUCE, RB_OP_SRC_STREAM, memory, memory);
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "rb_kernel_stream");
    o = operation(RB_COLL_ALL_REDUCE, 16, memory, memory);
    FAILS(rb_operation_run(&o, r->comm, NULL), RB_ERR_INVALID_ARGUMENT, "flags");
    o = operation(RB_COLL_ALL_REDUCE, RB_OP_SRC_STREAM, to, memory);
    CHECK(rb_stream_create(r->nic, &queue) == 0);
    FAILS(rb_operation_enqueue(&o, r->comm, queue, NULL), RB_ERR_INVALID_ARGUMENT, "pushing and popping");
    CHECK(rb_stream_destroy(queue) == 0);

    /* Nobody pushes: the operation ends in time, and the stream is of use again once it was emptied. */
    CHECK(rb_barrier(r->comm, NULL) == 0);
    o = operation(RB_COLL_ALL_REDUCE, RB_OP_SRC_STREAM, to, memory);
    o.timeout_us = 50000;
    i = (uint64_t)rb_operation_run(&o, r->comm, NULL);
    CHECK(i == RB_STATUS_TIMED_OUT || i == RB_STATUS_COMM_ABORTED);
    CHECK(rb_kernel_stream_reset(to) == 0);
    FAILS(rb_kernel_stream_reset((rb_kernel_stream *)queue), RB_ERR_INVALID_ARGUMENT, "rb_kernel_stream");
    CHECK(rb_kernel_stream_destroy(to) == 0);
    CHECK(rb_kernel_stream_destroy(NULL) == 0);
    FAILS(rb_kernel_stream_destroy(to), RB_ERR_INVALID_ARGUMENT, "closed before");
    CHECK(rb_comm_destroy(r->comm) == 0);
    free(got);
    return NULL;
}

/* What a configuration says gets to the NIC, and what it cannot say is refused by name. */
static void settings(rb_nic **nics) {
    rb_comm_config config = RB_COMM_CONFIG_INITIALIZER;
    rb_communicator *comms[RANKS];
    config.all_reduce_ring = 1024;
    FAILS(rb_comm_init_all(comms, nics, RANKS, &config), RB_ERR_INVALID_ARGUMENT, "whole_sources");
    config.whole_sources = RB_CONFIG_ZERO;
    config.direct = 2;
    FAILS(rb_comm_init_all(comms, nics, RANKS, &config), RB_ERR_INVALID_ARGUMENT, "config->direct");
    config.direct = RB_CONFIG_ZERO;
    config.scratch_bytes = 64 << 10;
    FAILS(rb_comm_init_all(comms, nics, RANKS, &config), RB_ERR_INVALID_ARGUMENT, "segment_bytes");
    config.version = RB_COMM_CONFIG_VERSION + 1;
    FAILS(rb_comm_init_all(comms, nics, RANKS, &config), RB_ERR_INVALID_ARGUMENT, "version");
}

int main(int argc, char **argv) {
    rb_nic *nics[RANKS];
    rb_comm_config config = RB_COMM_CONFIG_INITIALIZER;
    uint32_t i;
    if (argc != 3) return 99;
    module = argv[2];
    for (i = 0; i < RANKS; ++i) {
        nics[i] = open_nic(argv[1], 2, i);
        CHECK(rb_module_load(nics[i], module) == 0);
    }
    settings(nics);
    /* Windows of less than the rings, and messages where the host's ranks would have none. */
    config.stream_bytes = 1024;
    config.segment_bytes = 4096;
    config.whole_sources = RB_CONFIG_ZERO;
    config.direct = RB_CONFIG_ZERO;
    as_ranks(nics, &config, ranks);
    for (i = 0; i < RANKS; ++i) CHECK(rb_nic_close(nics[i]) == 0);
    if (!failed) puts("all checks passed");
    return failed;
}
