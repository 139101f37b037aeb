/* Random messages between ranks of random communicators: modes, types, lengths, wildcards, probes, persistent and cancelled requests, messages that are too
 * long, memory of a GPU (device.h), beside collectives of the library below. Prints a hash of what each rank received: it is the same with and without Ringbell. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

/* Of MPI_STATUSES_IGNORE in the header of MPICH. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"

#define MOST 24

static uint64_t state, hash = 1469598103934665603u;
static int rank, size, gpu;
static MPI_Comm comm; /* of the round */

/* The same numbers on all ranks. */
static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static uint64_t mixed(uint64_t h, const void *at, size_t bytes) {
    const unsigned char *b = at;
    for (size_t i = 0; i < bytes; i++) h = (h ^ b[i]) * 1099511628211u;
    return h;
}

static void mix(const void *at, size_t bytes) { hash = mixed(hash, at, bytes); }

static void fill(int *at, int count, int seed) {
    for (int i = 0; i < count; i++) at[i] = i * 7 + seed;
}

/* A received message: source, tag, length and content. In any order when from any rank. */
static void received(MPI_Status *status, const int *at, int ordered) {
    int count, cancelled;
    MPI_Get_count(status, MPI_INT, &count);
    MPI_Test_cancelled(status, &cancelled);
    int head[] = {status->MPI_SOURCE, status->MPI_TAG, count, cancelled};
    uint64_t h = mixed(mixed(1469598103934665603u, head, sizeof head), at, count > 0 ? (size_t)count * sizeof(int) : 0);
    if (ordered) mix(&h, sizeof h);
    else hash += h;
}

typedef struct {
    int from, to, tag, count, mode;
} Message;

static MPI_Datatype pairs; /* two ints with a gap of one */

static void isend(const int *at, const Message *m, MPI_Request *request) {
    switch (m->mode) {
    case 0: MPI_Issend(at, m->count, MPI_INT, m->to, m->tag, comm, request); break;
    case 1: MPI_Ibsend(at, m->count, MPI_INT, m->to, m->tag, comm, request); break;
    case 2: MPI_Isend(at, m->count * 4, MPI_BYTE, m->to, m->tag, comm, request); break;
    default: MPI_Isend(at, m->count, MPI_INT, m->to, m->tag, comm, request);
    }
}

/* Waits for all, in one of seven ways. */
static void wait_for(int way, int count, MPI_Request *requests, MPI_Status *statuses) {
    int flag = 0, index, ended, indices[4 * MOST];
    MPI_Status some[4 * MOST];
    switch (way) {
    case 0: MPI_Waitall(count, requests, statuses); break;
    case 1:
        for (int i = count - 1; i >= 0; i--) MPI_Wait(&requests[i], &statuses[i]);
        break;
    case 2:
        for (;;) {
            MPI_Status status;
            MPI_Waitany(count, requests, &index, &status);
            if (index == MPI_UNDEFINED) break;
            statuses[index] = status;
        }
        break;
    case 3:
        for (;;) {
            MPI_Waitsome(count, requests, &ended, indices, some);
            if (ended == MPI_UNDEFINED) break;
            for (int i = 0; i < ended; i++) statuses[indices[i]] = some[i];
        }
        break;
    case 4:
        for (;;) {
            MPI_Status status;
            MPI_Testany(count, requests, &index, &flag, &status);
            if (flag && index == MPI_UNDEFINED) break;
            if (flag) statuses[index] = status;
        }
        break;
    case 5:
        for (;;) {
            MPI_Testsome(count, requests, &ended, indices, some);
            if (ended == MPI_UNDEFINED) break;
            for (int i = 0; i < ended; i++) statuses[indices[i]] = some[i];
        }
        break;
    default:
        while (!flag) MPI_Testall(count, requests, &flag, statuses);
    }
}

/* Nonblocking messages between random ranks. */
static void many(uint32_t longest) {
    Message m[MOST];
    int messages = 1 + (int)draw(MOST), any_source = (int)draw(3) == 0, any_tag = (int)draw(2), way = (int)draw(7), late = (int)draw(2);
    uint32_t most = draw(3) ? 60 : longest;
    for (int i = 0; i < messages; i++)
        m[i] = (Message){(int)draw((uint32_t)size), (int)draw((uint32_t)size), (int)draw(3), (int)draw(most), (int)draw(6)};
    MPI_Request requests[2 * MOST];
    MPI_Status statuses[2 * MOST];
    int *at[2 * MOST], got[2 * MOST], n = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (late == pass) {
            for (int i = 0; i < messages; i++) {
                if (m[i].to != rank) continue;
                at[n] = malloc(longest * sizeof(int) + 4);
                got[n] = 1;
                /* Wildcards of the tag only where every receive has one: else they could take each other's. */
                MPI_Irecv(at[n], (int)longest, MPI_INT, any_source ? MPI_ANY_SOURCE : m[i].from, any_tag ? MPI_ANY_TAG : m[i].tag, comm, &requests[n]);
                n++;
            }
        } else {
            for (int i = 0; i < messages; i++) {
                if (m[i].from != rank) continue;
                at[n] = malloc(longest * sizeof(int) + 4);
                got[n] = 0;
                fill(at[n], m[i].count, i);
                isend(at[n], &m[i], &requests[n]);
                n++;
            }
        }
    }
    wait_for(way, n, requests, statuses);
    for (int i = 0; i < n; i++) {
        if (got[i]) received(&statuses[i], at[i], !any_source);
        free(at[i]);
    }
}

/* Everyone sends to everyone, and receives what a probe finds. */
static void probed(uint32_t longest) {
    int way = (int)draw(4), count = (int)draw(draw(2) ? longest : 50), *out = malloc(longest * sizeof(int) + 4), *in = malloc(longest * sizeof(int) + 4);
    MPI_Request *requests = malloc((size_t)size * sizeof *requests);
    fill(out, count, rank);
    for (int r = 0; r < size; r++) MPI_Isend(out, count, MPI_INT, r, rank, comm, &requests[r]);
    for (int r = 0; r < size; r++) {
        MPI_Status status;
        MPI_Message message;
        int flag = 0, n;
        if (way == 0) MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
        if (way == 1)
            while (!flag) MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &flag, &status);
        if (way == 2) MPI_Mprobe(r, r, comm, &message, &status);
        if (way == 3)
            while (!flag) MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &flag, &message, &status);
        MPI_Get_count(&status, MPI_INT, &n);
        if (way < 2) MPI_Recv(in, n, MPI_INT, status.MPI_SOURCE, status.MPI_TAG, comm, &status);
        if (way == 2) MPI_Mrecv(in, n, MPI_INT, &message, &status);
        if (way == 3) {
            MPI_Request request;
            MPI_Imrecv(in, n, MPI_INT, &message, &request);
            MPI_Wait(&request, &status);
        }
        received(&status, in, 0);
    }
    MPI_Waitall(size, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(out);
    free(in);
}

/* Blocking calls around the ring. */
static void ring(uint32_t longest) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count = (int)draw(longest), way = (int)draw(5);
    int *a = malloc(longest * sizeof(int) + 4), *b = malloc(longest * sizeof(int) + 4), back = 0;
    if (size == 1 && way == 3) way = 0;
    MPI_Status status;
    fill(a, count, rank);
    size_t bytes = longest * sizeof(int);
    int *host[] = {a, b};
    if (gpu) a = (int *)device_copy(a, bytes);
    if (gpu && rank != 1) b = (int *)device_copy(b, bytes);
    switch (way) {
    case 0: MPI_Sendrecv(a, count, MPI_INT, right, 7, b, (int)longest, MPI_INT, left, 7, comm, &status); break;
    case 1:
        MPI_Sendrecv_replace(a, count, MPI_INT, right, 8, left, MPI_ANY_TAG, comm, &status);
        back = 1;
        break;
    case 2: /* an open ring */
        left = rank == 0 ? MPI_PROC_NULL : left;
        MPI_Sendrecv(a, count, MPI_INT, rank == size - 1 ? MPI_PROC_NULL : right, 7, b, (int)longest, MPI_INT, left, 7, comm, &status);
        break;
    case 3:
        if (rank % 2) MPI_Ssend(a, count, MPI_INT, right, 9, comm);
        MPI_Recv(b, (int)longest, MPI_INT, left, 9, comm, &status);
        if (rank % 2 == 0) MPI_Send(a, count, MPI_INT, right, 9, comm);
        break;
    default:
        MPI_Bsend(a, count, MPI_INT, right, 10, comm);
        MPI_Recv(b, (int)longest, MPI_INT, MPI_ANY_SOURCE, 10, comm, &status);
    }
    if (a != host[0]) device_return(host[0], (char *)a, bytes);
    if (b != host[1]) device_return(host[1], (char *)b, bytes);
    a = host[0], b = host[1];
    received(&status, back ? a : b, 1);
    free(a);
    free(b);
}

/* Persistent requests, started several times. */
static void persistent(uint32_t longest) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count = (int)draw(longest), mode = (int)draw(2), way = (int)draw(2);
    int *a = malloc(longest * sizeof(int) + 4), *b = malloc(longest * sizeof(int) + 4);
    MPI_Request r[2];
    MPI_Status s[2];
    if (mode) MPI_Ssend_init(a, count, MPI_INT, right, 3, comm, &r[0]);
    else MPI_Send_init(a, count, MPI_INT, right, 3, comm, &r[0]);
    MPI_Recv_init(b, (int)longest, MPI_INT, left, 3, comm, &r[1]);
    for (int i = 0; i < 3; i++) {
        fill(a, count, rank + i);
        MPI_Startall(2, r);
        wait_for(way, 2, r, s);
        received(&s[1], b, 1);
    }
    int flag = r[0] != MPI_REQUEST_NULL && r[1] != MPI_REQUEST_NULL;
    mix(&flag, sizeof flag);
    MPI_Request_free(&r[0]);
    MPI_Request_free(&r[1]);
    free(a);
    free(b);
}

/* Elements of a derived type on one side, or both; a message that ends within an element. */
static void derived(uint32_t longest) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, n = 1 + (int)draw(longest / 3 - 1), way = (int)draw(4);
    int *a = calloc(longest + 3, sizeof(int)), *b = calloc(longest + 3, sizeof(int)), count, elements;
    MPI_Request request;
    MPI_Status status;
    fill(a, 3 * n, rank);
    size_t bytes = (longest + 3) * sizeof(int);
    int *host[] = {a, b};
    if (gpu && n % 3) a = (int *)device_copy(a, bytes);
    if (gpu) b = (int *)device_copy(b, bytes);
    MPI_Irecv(b, way == 0 ? 2 * n : n, way == 0 ? MPI_INT : pairs, left, 4, comm, &request);
    switch (way) {
    case 0: case 1: MPI_Send(a, n, pairs, right, 4, comm); break;
    case 2: MPI_Send(a, 2 * n - 1, MPI_INT, right, 4, comm); break;
    default: MPI_Send(a, 2 * n, MPI_INT, right, 4, comm);
    }
    MPI_Wait(&request, &status);
    if (a != host[0]) device_return(host[0], (char *)a, bytes);
    if (b != host[1]) device_return(host[1], (char *)b, bytes);
    a = host[0], b = host[1];
    MPI_Get_count(&status, pairs, &count);
    MPI_Get_elements(&status, pairs, &elements);
    mix(&count, sizeof count);
    mix(&elements, sizeof elements);
    mix(b, 3 * (size_t)n * sizeof(int));
    free(a);
    free(b);
}

/* A message that is longer than its receive, and a receive that is cancelled. */
static void wrong(uint32_t longest) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count = 2 + (int)draw(longest - 2), class = 0, cancelled = 0, code;
    int *a = malloc(longest * sizeof(int)), *b = malloc(longest * sizeof(int));
    MPI_Request requests[2];
    MPI_Status status;
    fill(a, count, rank);
    MPI_Irecv(b, (int)longest, MPI_INT, left, 99, comm, &requests[0]);
    MPI_Cancel(&requests[0]);
    MPI_Wait(&requests[0], &status);
    MPI_Test_cancelled(&status, &cancelled);
    mix(&cancelled, sizeof cancelled);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Isend(a, count, MPI_INT, right, 5, comm, &requests[1]);
    code = MPI_Recv(b, count / 2, MPI_INT, left, 5, comm, &status);
    MPI_Error_class(code, &class);
    class = class == MPI_ERR_TRUNCATE;
    mix(&class, sizeof class);
    MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
    free(a);
    free(b);
}

/* Messages that move only while their ranks are inside the library below. */
static void beside(uint32_t longest) {
    int right = (rank + 1) % size, left = (rank + size - 1) % size, count = (int)longest, *a = malloc(longest * sizeof(int)), *b = malloc(longest * sizeof(int));
    int *counts = calloc((size_t)size, sizeof(int)), *places = calloc((size_t)size, sizeof(int)), *x = calloc((size_t)size, sizeof(int)), *y = calloc((size_t)size, sizeof(int));
    MPI_Request requests[2];
    MPI_Status status;
    for (int r = 0; r < size; r++) counts[r] = 1, places[r] = r, x[r] = rank * size + r;
    fill(a, count, rank);
    MPI_Irecv(b, count, MPI_INT, left, 6, comm, &requests[0]);
    if (rank % 2) MPI_Ssend(a, count, MPI_INT, right, 6, comm);
    else MPI_Isend(a, count, MPI_INT, right, 6, comm, &requests[1]);
    MPI_Alltoallv(x, counts, places, MPI_INT, y, counts, places, MPI_INT, comm);
    mix(y, (size_t)size * sizeof(int));
    MPI_Wait(&requests[0], &status);
    if (rank % 2 == 0) MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
    received(&status, b, 1);
    free(a), free(b), free(counts), free(places), free(x), free(y);
}

/* Many messages to one rank, which comes late. */
static void flood(void) {
    enum { N = 300 };
    int x[40], *sums = calloc((size_t)size, sizeof(int));
    MPI_Status status;
    if (rank == 0) {
        MPI_Barrier(comm);
        for (int i = 0; i < N * (size - 1); i++) {
            MPI_Recv(x, 40, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &status);
            /* Those of one rank come in order. */
            if (x[0] != sums[status.MPI_SOURCE]++) printf("rank %d overtook itself\n", status.MPI_SOURCE);
            received(&status, x, 0);
        }
    } else {
        for (int i = 0; i < N; i++) {
            fill(x, 40, i);
            MPI_Send(x, i % 40 + 1, MPI_INT, 0, i % 5, comm);
        }
        MPI_Barrier(comm);
    }
    free(sums);
}

/* Other numbers on each rank. */
static uint32_t draw_own(uint32_t below) {
    static uint64_t own;
    if (!own) MPI_Comm_rank(MPI_COMM_WORLD, &rank), own = (uint64_t)rank + 77;
    own = own * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(own >> 33) % below;
}

/* Messages on several communicators at once, of the same ranks and tags, begun in an order of each rank's own, beside requests of the library below. The
 * communicators are freed before or after the messages have ended. */
static void crossed(uint32_t longest) {
    enum { COMMS = 4, EACH = 6 };
    MPI_Comm c[COMMS];
    MPI_Request requests[4 * MOST];
    MPI_Status statuses[4 * MOST], status;
    int *at[4 * MOST], kind[4 * MOST], n = 0, next[COMMS][2] = {{0}}, any_source[COMMS], any_tag[COMMS], ranks[COMMS], early = (int)draw(2), periods = 1;
    Message m[COMMS][EACH];
    MPI_Comm_dup(comm, &c[0]);
    MPI_Comm_split(comm, 0, -rank, &c[1]);
    MPI_Comm_split(comm, rank % 2, rank, &c[2]);
    MPI_Cart_create(c[1], 1, &size, &periods, 0, &c[3]);
    for (int i = 0; i < COMMS; i++) {
        int members;
        MPI_Comm_rank(c[i], &ranks[i]);
        MPI_Comm_size(c[i], &members);
        any_source[i] = draw(4) == 0;
        any_tag[i] = (int)draw(2);
        uint32_t most = draw(3) ? 60 : longest;
        for (int k = 0; k < EACH; k++) {
            int from = (int)draw(1 << 20) % members, to = (int)draw(1 << 20) % members;
            m[i][k] = (Message){from, to, (int)draw(2), (int)draw(most), (int)draw(6)};
        }
    }
    /* A message of one communicator is not seen on another. */
    int right = (ranks[1] + 1) % size, left = (ranks[1] + size - 1) % size, seen, x = rank, y;
    MPI_Isend(&x, 1, MPI_INT, right, 50, c[1], &requests[0]);
    MPI_Probe(left, 50, c[1], &status);
    for (int i = 0; i < COMMS; i++) {
        MPI_Iprobe(MPI_ANY_SOURCE, 50, c[i], &seen, &status);
        mix(&seen, sizeof seen);
    }
    /* Not of any source: other ranks may be ahead. */
    MPI_Recv(&y, 1, MPI_INT, left, MPI_ANY_TAG, c[1], &status);
    mix(&y, sizeof y);
    MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    int below = (int)draw_own(8), sum = 0, one = rank + 1;
    for (int left = 2 * COMMS * EACH; left;) {
        int i = (int)draw_own(COMMS), way = (int)draw_own(2), k = next[i][way];
        if (left == below || (below == 0 && left == 1)) {
            MPI_Iallreduce(&one, &sum, 1, MPI_INT, MPI_SUM, comm, &requests[n]);
            at[n] = NULL;
            kind[n++] = -1;
            below = -1;
        }
        if (k == EACH) continue;
        next[i][way]++, left--;
        const Message *p = &m[i][k];
        if ((way ? p->to : p->from) != ranks[i]) continue;
        at[n] = malloc(longest * sizeof(int) + 4);
        kind[n] = way ? i : COMMS;
        if (way) {
            MPI_Irecv(at[n], (int)longest, MPI_INT, any_source[i] ? MPI_ANY_SOURCE : p->from, any_tag[i] ? MPI_ANY_TAG : p->tag, c[i], &requests[n]);
        } else {
            fill(at[n], p->count, i * 100 + k);
            MPI_Comm of = comm;
            comm = c[i];
            isend(at[n], p, &requests[n]);
            comm = of;
        }
        n++;
    }
    for (int i = 0; i < COMMS; i++) {
        MPI_Irecv(&y, 1, MPI_INT, MPI_ANY_SOURCE, 51, c[i], &requests[n]);
        MPI_Cancel(&requests[n]);
        at[n] = NULL;
        kind[n++] = -1;
    }
    if (early)
        for (int i = 0; i < COMMS; i++) MPI_Comm_free(&c[i]);
    wait_for((int)draw_own(7), n, requests, statuses);
    /* In an order that is the same with every library. */
    for (int i = 0; i < COMMS; i++)
        for (int k = 0; k < n; k++)
            if (kind[k] == i) received(&statuses[k], at[k], !any_source[i]);
    for (int k = 0; k < n; k++) free(at[k]);
    mix(&sum, sizeof sum);
    if (!early)
        for (int i = 0; i < COMMS; i++) MPI_Comm_free(&c[i]);
}

/* A communicator of the round, the same kind on all ranks; MPI_COMM_NULL on ranks that it lacks. */
static void choose(void) {
    int all, me, periods[] = {1, 0};
    MPI_Group group, part;
    MPI_Comm half, between;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &all);
    comm = MPI_COMM_WORLD;
    /* All but the last rank, the first one last. */
    int dims[] = {all, 1}, but[] = {0, all - 2, 1};
    switch (draw(14)) {
    case 0: MPI_Comm_dup(MPI_COMM_WORLD, &comm); break;
    case 1: MPI_Comm_split(MPI_COMM_WORLD, 3, -me, &comm); break;
    case 2: MPI_Comm_split(MPI_COMM_WORLD, me % 2, -me, &comm); break;
    case 3: MPI_Comm_split(MPI_COMM_WORLD, me == 0 ? MPI_UNDEFINED : 1, 0, &comm); break;
    case 4: MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, -me, MPI_INFO_NULL, &comm); break;
    case 5: MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 1, &comm); break;
    case 6: case 7:
        MPI_Comm_group(MPI_COMM_WORLD, &group);
        MPI_Group_range_incl(group, 1, &but, &part);
        if (draw(2)) MPI_Comm_create(MPI_COMM_WORLD, part, &comm);
        else if (me < all - 1) MPI_Comm_create_group(MPI_COMM_WORLD, part, 5, &comm);
        else comm = MPI_COMM_NULL;
        MPI_Group_free(&group);
        MPI_Group_free(&part);
        break;
    case 8:
        MPI_Comm_split(MPI_COMM_WORLD, me == 0, me, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, me == 0, 9, &between);
        MPI_Intercomm_merge(between, me == 0, &comm);
        MPI_Comm_free(&half);
        MPI_Comm_free(&between);
        break;
    case 9: comm = MPI_COMM_SELF; break;
    default: break;
    }
    if (comm == MPI_COMM_NULL) return;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    uint64_t seed = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 1000003;
    int rounds = argc > 2 ? atoi(argv[2]) : 100;
    uint32_t longest = argc > 3 ? (uint32_t)atoi(argv[3]) : 3000;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    gpu = device_open();
    int room = (int)(4 * MOST * (longest * sizeof(int) + MPI_BSEND_OVERHEAD));
    void *attached = malloc((size_t)room);
    MPI_Buffer_attach(attached, room);
    MPI_Datatype two;
    MPI_Type_contiguous(2, MPI_INT, &two);
    MPI_Type_create_resized(two, 0, 3 * sizeof(int), &pairs);
    MPI_Type_free(&two);
    MPI_Type_commit(&pairs);
    for (int round = 0; round < rounds; round++) {
        state = seed + (uint64_t)round;
        draw(2);
        uint32_t kind = draw(12);
        choose();
        if (comm == MPI_COMM_NULL) kind = 99;
        if (kind < 3) many(longest);
        else if (kind == 3) probed(longest);
        else if (kind == 4) ring(longest);
        else if (kind == 5) persistent(longest);
        else if (kind == 6) derived(longest);
        else if (kind == 7) wrong(longest);
        else if (kind == 8) beside(longest);
        else if (kind < 11) crossed(longest);
        else if (kind == 11 && round % 4 == 0) flood();
        if (comm != MPI_COMM_NULL && comm != MPI_COMM_WORLD && comm != MPI_COMM_SELF) MPI_Comm_free(&comm);
        /* Probes and wildcards of one round must not see the next. */
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Type_free(&pairs);
    MPI_Buffer_detach(&attached, &room);
    free(attached);
    uint64_t *hashes = calloc((size_t)size, sizeof(uint64_t));
    MPI_Gather(&hash, 1, MPI_UINT64_T, hashes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    for (int r = 0; r < size && rank == 0; r++) printf("%d %016llx\n", r, (unsigned long long)hashes[r]);
    free(hashes);
    MPI_Finalize();
    return 0;
}
