/* Graphs, for C99 and for C++: this file is compiled as both. usage: graphs DIRECTORY. Run by tests/programs.rs. */
#include "ranks.h"

#define COUNT 4999
#define REPLAYS 20

static uint32_t value(uint32_t rank, uint32_t replay, uint32_t i) { return (rank + 1) * 1000003u + replay * 31u + i * 7919u; }

static void fill(struct rank *r, void *va, uint32_t replay) {
    uint32_t data[COUNT], i;
    for (i = 0; i < COUNT; ++i) data[i] = value(r->me, replay, i);
    CHECK(rb_mem_write(r->nic, va, data, sizeof data) == 0);
}

static void *ranks(void *argument) {
    struct rank *r = (struct rank *)argument;
    rb_stream *s = NULL, *other = NULL;
    rb_graph *step = NULL, *nothing = NULL;
    rb_request *request = NULL;
    rb_operation o;
    void *mine = NULL, *sum = NULL, *theirs = NULL;
    uint32_t replay, i, first[COUNT], second[COUNT], peer = 1 - r->me;
    int32_t capturing = 7;
    CHECK(rb_mem_alloc(r->nic, sizeof first, &mine) == 0);
    CHECK(rb_mem_alloc(r->nic, sizeof first, &sum) == 0);
    CHECK(rb_mem_alloc(r->nic, sizeof first, &theirs) == 0);
    CHECK(rb_stream_create(r->nic, &s) == 0 && rb_stream_create(r->nic, &other) == 0);

    FAILS(rb_stream_end_capture(s, &step), RB_ERR_INVALID_ARGUMENT, "none was begun");
    CHECK(rb_stream_is_capturing(s, &capturing) == 0 && capturing == 0);
    CHECK(rb_stream_begin_capture(s) == 0);
    CHECK(rb_stream_is_capturing(s, &capturing) == 0 && capturing == 1);
    FAILS(rb_stream_begin_capture(s), RB_ERR_INVALID_ARGUMENT, "captures already");

    /* A sum, and a message around the ring: sends before receives on one rank, behind them on the other. */
    CHECK(rb_all_reduce(mine, sum, COUNT, RB_DTYPE_U32, RB_REDOP_SUM, r->comm, s) == 0);
    if (r->me == 0) CHECK(rb_send(mine, COUNT, RB_DTYPE_U32, peer, 5, r->comm, s) == 0);
    CHECK(rb_recv(theirs, COUNT, RB_DTYPE_U32, peer, 5, r->comm, s) == 0);
    if (r->me == 1) CHECK(rb_send(mine, COUNT, RB_DTYPE_U32, peer, 5, r->comm, s) == 0);

    /* What no graph can hold leaves the capture as it is. */
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.kind = RB_COLL_BARRIER;
    o.dtype = RB_DTYPE_U8;
    FAILS(rb_operation_enqueue(&o, r->comm, s, &request), RB_ERR_INVALID_ARGUMENT, "captures");
    CHECK(rb_group_start() == 0);
    CHECK(rb_barrier(r->comm, s) == 0 && rb_barrier(r->comm, s) == 0);
    FAILS(rb_group_end(), RB_ERR_INVALID_ARGUMENT, "one by one");
    FAILS(rb_stream_synchronize(s, 0), RB_ERR_INVALID_ARGUMENT, "captures");
    CHECK(rb_stream_end_capture(s, &step) == 0 && step);

    for (replay = 0; replay < REPLAYS; ++replay) {
        rb_stream *on = replay % 3 == 2 ? other : s;
        fill(r, mine, replay);
        CHECK(rb_graph_launch(step, on) == 0);
        CHECK(rb_stream_synchronize(on, 0) == 0);
        CHECK(rb_mem_read(r->nic, first, sum, sizeof first) == 0);
        CHECK(rb_mem_read(r->nic, second, theirs, sizeof second) == 0);
        for (i = 0; i < COUNT; ++i) {
            if (first[i] != value(0, replay, i) + value(1, replay, i) || second[i] != value(peer, replay, i)) break;
        }
        CHECK(i == COUNT);
    }
    /* Several under way, and the handle gone before they have ended. */
    for (replay = 0; replay < 3; ++replay) CHECK(rb_graph_launch(step, s) == 0);
    CHECK(rb_graph_destroy(step) == 0);
    FAILS(rb_graph_launch(step, s), RB_ERR_INVALID_ARGUMENT, "closed before");
    CHECK(rb_stream_synchronize(s, 0) == 0);
    CHECK(rb_graph_destroy(NULL) == 0);

    /* A failure among several replays is told once, though the last of them has ended well. */
    CHECK(rb_barrier(r->comm, NULL) == 0);
    if (r->me == 0) {
        CHECK(rb_stream_begin_capture(s) == 0);
        CHECK(rb_recv(theirs, 2, RB_DTYPE_U32, 1, 9, r->comm, s) == 0);
        CHECK(rb_stream_end_capture(s, &step) == 0);
        for (replay = 0; replay < 3; ++replay) CHECK(rb_graph_launch(step, s) == 0);
        CHECK(rb_stream_synchronize(s, 0) == RB_STATUS_MESSAGE_TOO_LARGE);
        CHECK(rb_stream_synchronize(s, 0) == 0);
        CHECK(rb_mem_read(r->nic, first, theirs, 8) == 0);
        CHECK(first[0] == value(1, REPLAYS - 1, 0) && first[1] == value(1, REPLAYS - 1, 1));
        CHECK(rb_graph_destroy(step) == 0);
    } else {
        CHECK(rb_send(mine, 1, RB_DTYPE_U32, 0, 9, r->comm, NULL) == 0);
        /* Long before its receive or not: the sender may be told as well. */
        rb_result sent = rb_send(mine, 3, RB_DTYPE_U32, 0, 9, r->comm, NULL);
        CHECK(sent == 0 || sent == RB_STATUS_MESSAGE_TOO_LARGE);
        CHECK(rb_send(mine, 2, RB_DTYPE_U32, 0, 9, r->comm, NULL) == 0);
    }

    /* An empty one, and one that goes with its stream. */
    CHECK(rb_stream_begin_capture(other) == 0);
    CHECK(rb_stream_end_capture(other, &nothing) == 0);
    CHECK(rb_graph_launch(nothing, other) == 0 && rb_stream_synchronize(other, 0) == 0);
    CHECK(rb_stream_begin_capture(other) == 0);
    CHECK(rb_barrier(r->comm, other) == 0);
    FAILS(rb_graph_launch(nothing, other), RB_ERR_INVALID_ARGUMENT, "no other graph");
    CHECK(rb_stream_destroy(other) == 0);
    FAILS(rb_graph_launch(nothing, other), RB_ERR_INVALID_ARGUMENT, "closed before");
    FAILS(rb_graph_destroy((rb_graph *)s), RB_ERR_INVALID_ARGUMENT, "rb_graph");
    CHECK(rb_barrier(r->comm, NULL) == 0);
    /* `nothing` goes with its NIC. */
    return NULL;
}

int main(int argc, char **argv) {
    rb_nic *nics[RANKS];
    uint32_t i;
    if (argc != 2) return 99;
    for (i = 0; i < RANKS; ++i) nics[i] = open_nic(argv[1], 3, i);
    as_ranks(nics, NULL, ranks);
    for (i = 0; i < RANKS; ++i) CHECK(rb_nic_close(nics[i]) == 0);
    if (!failed) puts("all checks passed");
    return failed;
}
