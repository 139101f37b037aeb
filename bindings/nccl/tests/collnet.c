/* What NCCL does with the collective functions of a network plug-in (ncclCollNet), in its order, between 2 to 5 processes: a communicator of all,
 * registration, many requests at once, windows of gathers and scatters, ends in the middle. Results are compared with those that the driver computes
 * by itself.
 *
 * collnet PLUGIN VERSION SCENARIO RANKS [SEED]. It prints one line and ends with 0, or says what is wrong. */
#include "plugin.h"

#include <stdatomic.h>

enum { RANKS = 5, TYPES = 12, OPS = 4 };
enum { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16 };
enum { SUM, PROD, MAX, MIN, AVG };
typedef struct { void *mhandle, *address; size_t size; } Piece;
typedef struct {
    const char *name;
    int (*init)(void **, uint64_t, Logger);
    int (*devices)(int *);
    int (*getProperties)(int, void *);
    int (*listen)(void *, int, void *, void **);
    int (*connect)(void **, int, int, void *, void **);
    int (*reduceSupport)(int, int, int *);
    int (*regMr)(void *, void *, size_t, int, void **);
    int (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **);
    int (*deregMr)(void *, void *);
    int (*iallreduce)(void *, void *, void *, size_t, int, int, void *, void *, void **);
    int (*iallgather)(void *, void *, int, Piece *, size_t, size_t, size_t, void *, void **);
    int (*ireducescatter)(void *, int, Piece *, void *, size_t, size_t, size_t, int, int, void *, void **);
    int (*iflush)(void *, void *, int, void *, void **);
    int (*test)(void *, int *, int *);
    int (*closeColl)(void *);
    int (*closeListen)(void *);
    int (*makeVDevice)(int *, void *);
    int (*finalize)(void *);
} CollNet;

/* Version 10 has no contexts, and its devices are never closed. */
typedef struct {
    const char *name;
    int (*init)(Logger);
    int (*devices)(int *);
    int (*getProperties)(int, void *);
    int (*listen)(int, void *, void **);
    int (*connect)(void **, int, int, void *, void **);
    int (*reduceSupport)(int, int, int *);
    int (*regMr)(void *, void *, size_t, int, void **);
    int (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **);
    int (*deregMr)(void *, void *);
    int (*iallreduce)(void *, void *, void *, size_t, int, int, void *, void *, void **);
    int (*iallgather)(void *, void *, int, Piece *, size_t, size_t, size_t, void *, void **);
    int (*ireducescatter)(void *, int, Piece *, void *, size_t, size_t, size_t, int, int, void *, void **);
    int (*iflush)(void *, void *, int, void *, void **);
    int (*test)(void *, int *, int *);
    int (*closeColl)(void *);
    int (*closeListen)(void *);
    int (*makeVDevice)(int *, void *);
} CollNet10;

static const CollNet10 *coll10;
static int init10(void **c, uint64_t id, Logger log) { (void)id; *c = NULL; return coll10->init(log); }
static int listen10(void *c, int dev, void *handle, void **comm) { (void)c; return coll10->listen(dev, handle, comm); }
static int finalize10(void *c) { (void)c; return OK; }
static const CollNet *as_newer(const CollNet10 *n) {
    static CollNet all;
    coll10 = n;
    all = (CollNet){ n->name, init10, n->devices, n->getProperties, listen10, n->connect, n->reduceSupport, n->regMr, n->regMrDmaBuf, n->deregMr,
        n->iallreduce, n->iallgather, n->ireducescatter, n->iflush, n->test, n->closeColl, n->closeListen, n->makeVDevice, finalize10 };
    return &all;
}

static const CollNet *coll;
static int rank, ranks;

/* What the processes share: handles, and where they meet. */
static struct Shared { char handle[2][RANKS][128]; atomic_int came, round, pid[RANKS]; } *shared;

static void start(void) {
    int count = 0;
    coll = table("ncclCollNetPlugin");
    if (!strcmp(version, "10")) coll = as_newer((const CollNet10 *)(const void *)coll);
    must(coll->init(&ctx, 77, logger));
    must(coll->devices(&count));
    check(count >= 1 && !strcmp(coll->name, "Ringbell"));
    /* Without a device merged of others, and without memory of a GPU. */
    check(!coll->makeVDevice && !coll->regMrDmaBuf);
    struct { char *name, *path; uint64_t guid; int memory, global, flush, speed, port; char rest[512]; } p;
    must(coll->getProperties(0, &p));
    check(!strncmp(p.name, "ringbell", 8) && p.memory == HOST && p.global == 1);
}

/* All processes are here. */
static void meet(void) {
    int round = atomic_load(&shared->round);
    if (atomic_fetch_add(&shared->came, 1) == ranks - 1) {
        atomic_store(&shared->came, 0);
        atomic_fetch_add(&shared->round, 1);
        return;
    }
    for (double begin = now(); atomic_load(&shared->round) == round; usleep(50)) if (now() - begin > 60) die("others have not come: %s", warned);
}

static void *listen_at(int place) {
    void *listening = NULL;
    must(coll->listen(ctx, 0, shared->handle[place][rank], &listening));
    check(listening);
    return listening;
}
static int connect_with(int place, void *listening, void **comm) {
    void *handles[RANKS];
    for (int r = 0; r < ranks; r++) handles[r] = shared->handle[place][r];
    *comm = (void *)1;
    int ended = coll->connect(handles, ranks, rank, listening, comm);
    check(*comm != (void *)1);
    return ended;
}
/* A communicator of all: setup, exchange, then connect, as NCCL. */
static void *join(void) {
    void *listening = listen_at(0), *comm;
    meet();
    must(connect_with(0, listening, &comm));
    check(comm);
    must(coll->closeListen(listening));
    meet();
    return comm;
}

static size_t size_of(int type) { return (size_t[]){ 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 }[type]; }

/* A whole number as a binary16: exact up to 2048. */
static uint16_t half(int value) {
    uint16_t sign = value < 0 ? 0x8000 : 0;
    unsigned v = value < 0 ? (unsigned)-value : (unsigned)value, e = 0;
    if (!v) return sign;
    while (v >> (e + 1)) e++;
    return (uint16_t)(sign | (e + 15) << 10 | (((v << 10) >> e) & 0x3ff));
}
static void store(void *at, int type, uint64_t bits, int whole) {
    float f = (float)whole;
    double d = whole;
    uint32_t word;
    uint16_t h;
    switch (type) {
    case I8: case U8: *(uint8_t *)at = (uint8_t)bits; break;
    case I32: case U32: *(uint32_t *)at = (uint32_t)bits; break;
    case I64: case U64: *(uint64_t *)at = bits; break;
    case F16: h = half(whole); memcpy(at, &h, 2); break;
    case F32: memcpy(at, &f, 4); break;
    case F64: memcpy(at, &d, 8); break;
    default: memcpy(&word, &f, 4); h = (uint16_t)(word >> 16); memcpy(at, &h, 2);
    }
}
/* A rank's element: any bits of an integer; a small whole number of a floating type, so that every order gives the same result. */
static uint64_t bits_of(uint64_t seed, int r, size_t i) { return mix(seed + (uint64_t)r * 0x51ed27u + i * 0x9e3779b97f4a7c15u); }
static int whole_of(uint64_t bits, int op) { return op == PROD ? (int[]){ 1, 2, -1, -2 }[bits % 4] : (int)(bits % 17) - 8; }

static void element(void *at, int type, int op, uint64_t seed, int r, size_t i) {
    uint64_t b = bits_of(seed, r, i);
    store(at, type, b, whole_of(b, op));
}
/* What all ranks' elements make. */
static void reduced(void *at, int type, int op, uint64_t seed, size_t i) {
    uint64_t all = bits_of(seed, 0, i);
    int whole = whole_of(all, op), width = 64 - 8 * (int)size_of(type), is_signed = type == I8 || type == I32 || type == I64;
    for (int r = 1; r < ranks; r++) {
        uint64_t b = bits_of(seed, r, i);
        int w = whole_of(b, op);
        /* The value as the type has it, in 64 bits. */
        uint64_t x = all << (width & 63) >> (width & 63), y = b << (width & 63) >> (width & 63);
        int less = is_signed ? (int64_t)(b << (width & 63)) < (int64_t)(all << (width & 63)) : y < x;
        switch (op) {
        case SUM: all += b; whole += w; break;
        case PROD: all *= b; whole *= w; break;
        case MAX: if (!less) all = b; if (w > whole) whole = w; break;
        default: if (less) all = b; if (w < whole) whole = w;
        }
    }
    store(at, type, all, whole);
}

/* One call of the random traffic: what all ranks derive from its number. */
enum { REDUCE, GATHER, SCATTER };
typedef struct { int kind, type, op, in_place; size_t count, block, offset, bytes; uint64_t seed; } Shape;
static Shape shape(uint64_t seed, int number, size_t longest) {
    uint64_t s = seed * 1000003u + (uint64_t)number;
    Shape c = { .kind = (int)(next(&s) % 3), .type = (int)(next(&s) % 10), .op = (int)(next(&s) % 4), .in_place = next(&s) % 3 == 0, .seed = next(&s) };
    size_t most = next(&s) % 4 == 0 ? longest : next(&s) % 2 ? 3000 : 40;
    c.count = next(&s) % 12 == 0 ? 0 : 1 + next(&s) % most;
    size_t size = size_of(c.type), all = c.count * (size_t)ranks;
    c.block = c.count * size;
    if (c.kind == REDUCE) { c.bytes = c.block; return c; }
    if (next(&s) % 3 == 0) { c.bytes = all * size; return c; }
    size_t first = all ? next(&s) % all : 0;
    c.offset = first * size;
    c.bytes = (all ? next(&s) % (all - first + 1) : 0) * size;
    /* Most windows are shorter than a block, or a little longer. */
    if (next(&s) % 2 && c.bytes > c.block) c.bytes = c.block;
    return c;
}
/* The bytes of a block in the window: their place in the block, and in the window. */
static size_t part(const Shape *c, int r, size_t *in_block, size_t *in_window) {
    size_t start = (size_t)r * c->block, end = start + c->block, from = start > c->offset ? start : c->offset;
    size_t to = end < c->offset + c->bytes ? end : c->offset + c->bytes;
    *in_block = from - start;
    *in_window = from - c->offset;
    return to > from ? to - from : 0;
}

typedef struct { void *request; unsigned char *from, *to; void *from_mh, *to_mh; size_t from_bytes, to_bytes; } Slot;

/* Memory of a side, with guards behind it. */
static unsigned char *side(void *comm, size_t bytes, void **mh) {
    unsigned char *at = malloc(bytes + 16);
    memset(at, 0x5a, bytes + 16);
    must(coll->regMr(comm, at, bytes ? bytes : 1, HOST, mh));
    return at;
}

static void prepare(void *comm, const Shape *c, Slot *s) {
    size_t size = size_of(c->type), in_block = 0, in_window = 0, own = part(c, rank, &in_block, &in_window);
    *s = (Slot){ .from_bytes = c->kind == GATHER ? own : c->bytes, .to_bytes = c->kind == SCATTER ? own : c->bytes };
    s->from = side(comm, s->from_bytes, &s->from_mh);
    s->to = side(comm, s->to_bytes, &s->to_mh);
    if (c->in_place) {
        /* The longer of the two has the other inside. */
        unsigned char *whole = c->kind == SCATTER ? s->from : s->to;
        size_t at = own && c->kind != REDUCE ? in_window : 0;
        must(coll->deregMr(comm, c->kind == SCATTER ? s->to_mh : s->from_mh));
        free(c->kind == SCATTER ? s->to : s->from);
        if (c->kind == SCATTER) { s->to = whole + at; s->to_mh = s->from_mh; }
        else { s->from = whole + at; s->from_mh = s->to_mh; }
    }
    size_t first = c->kind == GATHER ? in_block : c->kind == SCATTER ? c->offset : 0;
    for (size_t i = 0; i < s->from_bytes / size; i++) element(s->from + i * size, c->type, c->op, c->seed, rank, first / size + i);
}

static int post(void *comm, const Shape *c, Slot *s) {
    Piece piece = { c->kind == GATHER ? s->to_mh : s->from_mh, c->kind == GATHER ? s->to : s->from, c->bytes };
    s->request = (void *)1;
    int r;
    if (c->kind == REDUCE) r = coll->iallreduce(comm, s->from, s->to, c->count, c->type, c->op, s->from_mh, s->to_mh, &s->request);
    else if (c->kind == GATHER) r = coll->iallgather(comm, s->from, 1, &piece, c->block, c->offset, c->bytes, s->from_mh, &s->request);
    else r = coll->ireducescatter(comm, 1, &piece, s->to, c->block, c->offset, c->bytes, c->type, c->op, s->to_mh, &s->request);
    check(s->request != (void *)1);
    return r;
}

static void verify(void *comm, const Shape *c, Slot *s) {
    size_t size = size_of(c->type), in_block = 0, in_window = 0;
    unsigned char expected[8];
    if (c->kind != GATHER) {
        part(c, rank, &in_block, &in_window);
        size_t first = c->kind == SCATTER ? (size_t)rank * c->block + in_block : 0;
        for (size_t i = 0; i < s->to_bytes / size; i++) {
            reduced(expected, c->type, c->op, c->seed, first / size + i);
            if (memcmp(s->to + i * size, expected, size)) die("kind %d, type %d, operation %d: element %zu of %zu is wrong", c->kind, c->type, c->op, i, s->to_bytes / size);
        }
    }
    for (int r = 0; c->kind == GATHER && r < ranks; r++) {
        size_t bytes = part(c, r, &in_block, &in_window);
        for (size_t i = 0; i < bytes / size; i++) {
            element(expected, c->type, c->op, c->seed, r, in_block / size + i);
            if (memcmp(s->to + in_window + i * size, expected, size)) die("gather: element %zu of rank %d is wrong", i, r);
        }
    }
    void *flush = (void *)1;
    must(coll->iflush(comm, s->to, (int)s->to_bytes, s->to_mh, &flush));
    check(!flush);
    unsigned char *whole = c->kind == SCATTER ? s->from : s->to;
    size_t bytes = c->kind == SCATTER ? s->from_bytes : s->to_bytes;
    for (int k = 0; k < 16; k++) check(whole[bytes + (size_t)k] == 0x5a);
    for (int k = 0; k < 16 && !c->in_place; k++) check(s->to[s->to_bytes + (size_t)k] == 0x5a && s->from[s->from_bytes + (size_t)k] == 0x5a);
}
static void release(void *comm, const Shape *c, Slot *s) {
    must(coll->deregMr(comm, c->kind == SCATTER ? s->from_mh : s->to_mh));
    free(c->kind == SCATTER ? s->from : s->to);
    if (c->in_place) return;
    must(coll->deregMr(comm, c->kind == SCATTER ? s->to_mh : s->from_mh));
    free(c->kind == SCATTER ? s->to : s->from);
}

static int wait_for(void *request, int *size, double limit) {
    double begin = now();
    for (;;) {
        int done = 7, r = coll->test(request, &done, size);
        if (r != OK) return r;
        if (done) return OK;
        if (now() - begin > limit) die("a request had not ended in %g s: %s", limit, warned);
    }
}

/* Calls of all kinds, as many at once as the plug-in takes; ranks differ in how many, and in the order in which they look at them. */
static void traffic(void *comm, uint64_t seed, int calls, size_t longest) {
    static const int most[RANKS] = { 32, 7, 3, 40, 12 };
    enum { SLOTS = 64 };
    Slot all[SLOTS];
    Shape shapes[SLOTS];
    int live[SLOTS], n = 0, posted = 0, prepared = 0;
    uint64_t order = seed + (uint64_t)rank;
    while (posted < calls || n) {
        while (posted < calls && n < most[rank]) {
            int slot = posted % SLOTS, is_free = 1;
            for (int i = 0; i < n; i++) is_free &= live[i] != slot;
            if (!is_free) break;
            if (prepared == posted) {
                shapes[slot] = shape(seed, posted, longest);
                prepare(comm, &shapes[slot], &all[slot]);
                prepared++;
            }
            must(post(comm, &shapes[slot], &all[slot]));
            if (!all[slot].request) { check(n == REQUESTS); break; }
            live[n++] = slot;
            posted++;
        }
        int i = (int)(next(&order) % (uint64_t)n), slot = live[i], done = 0, size = -1;
        must(coll->test(all[slot].request, &done, &size));
        if (!done) continue;
        check((size_t)size == (shapes[slot].kind == SCATTER ? all[slot].to_bytes : shapes[slot].bytes));
        check(coll->test(all[slot].request, &done, &size) == ARGUMENT);
        verify(comm, &shapes[slot], &all[slot]);
        release(comm, &shapes[slot], &all[slot]);
        live[i] = live[--n];
    }
    pthread_mutex_lock(&logging);
    warned[0] = 0;
    pthread_mutex_unlock(&logging);
}

/* Fewer where they take longer. */
static int calls(void) { return getenv("DRIVER_CALLS") ? atoi(getenv("DRIVER_CALLS")) : 300; }

static void random_traffic(uint64_t seed) {
    void *comm = join();
    traffic(comm, seed, calls(), 60000);
    must(coll->closeColl(comm));
    /* Nothing waits for the others: a rank may end while they are still closing. */
}

/* Exactly what reduceSupport says, each by an all-reduce and a reduce-scatter. */
static void support(uint64_t seed) {
    void *comm = join(), *request;
    for (int type = -1; type < TYPES + 1; type++) for (int op = -1; op < OPS + 2; op++) {
        int is = 7, expected = type >= I8 && type <= BF16 && op >= SUM && op <= MIN;
        must(coll->reduceSupport(type, op, &is));
        check(is == expected);
        if (!is) {
            uint64_t memory[RANKS] = { 0 };
            void *mh;
            must(coll->regMr(comm, memory, sizeof memory, HOST, &mh));
            Piece piece = { mh, memory, sizeof memory };
            check(coll->iallreduce(comm, memory, memory, 1, type, op, mh, mh, &request) == ARGUMENT && !request);
            check(coll->ireducescatter(comm, 1, &piece, memory, 8, 0, (size_t)ranks * 8, type, op, mh, &request) == ARGUMENT && !request);
            must(coll->deregMr(comm, mh));
            continue;
        }
        for (int kind = REDUCE; kind <= SCATTER; kind += SCATTER) for (int in_place = 0; in_place < 2; in_place++) {
            Shape c = { kind, type, op, in_place, 77, 77 * size_of(type), 0, 77 * size_of(type) * (size_t)(kind == SCATTER ? ranks : 1), seed };
            Slot s;
            prepare(comm, &c, &s);
            must(post(comm, &c, &s));
            must(wait_for(s.request, NULL, 20));
            verify(comm, &c, &s);
            release(comm, &c, &s);
        }
    }
    must(coll->closeColl(comm));
}

/* Two threads, each with a communicator of its own; the second is made while the first works. */
static void *in_thread(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    int place = (int)(seed & 1);
    void *listening = listen_at(place), *comm;
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    /* Handles of both are complete before one connects. */
    static int listens;
    pthread_mutex_lock(&one);
    if (++listens == 2) meet();
    pthread_mutex_unlock(&one);
    for (;;) { pthread_mutex_lock(&one); int both = listens == 2; pthread_mutex_unlock(&one); if (both) break; usleep(100); }
    if (place) usleep(20000);
    must(connect_with(place, listening, &comm));
    must(coll->closeListen(listening));
    traffic(comm, seed, calls() / 2, 20000);
    must(coll->closeColl(comm));
    return NULL;
}
static void threads(uint64_t seed) {
    pthread_t both[2];
    for (uintptr_t i = 0; i < 2; i++) check(!pthread_create(&both[i], NULL, in_thread, (void *)(uintptr_t)(seed * 2 + i)));
    for (int i = 0; i < 2; i++) check(!pthread_join(both[i], NULL));
}

/* Registrations that overlap, and calls whose memory crosses from one to the next. */
static void overlaps(uint64_t seed) {
    void *comm = join(), *mh[4], *request;
    size_t count = 30000, bytes = count * 4;
    unsigned char *at = malloc(3 * bytes);
    for (int round = 0; round < 6; round++) {
        /* Three, of which the second covers the end of the first and the start of the third; the fourth covers all. */
        must(coll->regMr(comm, at, bytes, HOST, &mh[0]));
        must(coll->regMr(comm, at + 2 * bytes, bytes, HOST, &mh[1]));
        must(coll->regMr(comm, at + bytes / 2, 2 * bytes, HOST, &mh[2]));
        must(coll->regMr(comm, at, 3 * bytes, HOST, &mh[3]));
        /* Ranks differ in where they lie. */
        size_t from = (size_t)((round + rank) % 5) * bytes / 4, to = from + bytes;
        for (size_t i = 0; i < count; i++) element(at + from + 4 * i, I32, SUM, seed, rank, i);
        must(coll->iallreduce(comm, at + from, at + to, count, I32, SUM, mh[3], mh[3], &request));
        /* The registrations last until the end of the request. */
        for (int i = 0; i < 4; i++) must(coll->deregMr(comm, mh[i]));
        must(wait_for(request, NULL, 20));
        unsigned char expected[4];
        for (size_t i = 0; i < count; i++) {
            reduced(expected, I32, SUM, seed, i);
            if (memcmp(at + to + 4 * i, expected, 4)) die("round %d: element %zu is wrong", round, i);
        }
    }
    must(coll->closeColl(comm));
    free(at);
}

/* Rank 0 closes with requests that the others have not all posted: they fail there, and no memory is written any more. Then again from the start. */
static void close_in_flight(uint64_t seed) {
    for (int round = 0; round < 3; round++) {
        void *comm = join(), *mh, *request[4];
        size_t bytes = 1 << 20;
        char *memory = mmap(NULL, 4 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(memory != MAP_FAILED);
        must(coll->regMr(comm, memory, 4 * bytes, HOST, &mh));
        int posts = rank == ranks - 1 ? 1 : 4;
        for (int i = 0; i < posts; i++) {
            must(coll->iallreduce(comm, memory + (size_t)i * bytes, memory + (size_t)i * bytes, bytes / 4, F32, SUM, mh, mh, &request[i]));
            check(request[i]);
        }
        int ended = OK, done = 0;
        if (rank == 0) {
            if (round == 1) must(wait_for(request[0], NULL, 20));
        } else {
            /* Rank 0 may close late: the next calls of the last rank then meet those that it has posted, which are four, and all of them end. */
            for (double begin = now(); ended == OK && !done && now() - begin < 20; ) ended = coll->test(request[posts - 1], &done, NULL);
            check(ended == REMOTE || (ended == OK && done));
            int again = OK;
            for (int calls = 1; again == OK && calls < 5; calls++) {
                void *more;
                again = coll->iallreduce(comm, memory, memory, bytes / 4, F32, SUM, mh, mh, &more);
                done = 0;
                for (double begin = now(); again == OK && !done && now() - begin < 20; ) again = coll->test(more, &done, NULL);
            }
            check(again == REMOTE);
            check(rank == ranks - 1 || strstr(warned, "rank 0"));
        }
        must(coll->closeColl(comm));
        munmap(memory, 4 * bytes);
        check(coll->closeColl(comm) == ARGUMENT && coll->test(request[0], &done, NULL) == ARGUMENT);
        warned[0] = 0;
        meet();
    }
    void *comm = join();
    traffic(comm, seed, 20, 1000);
    must(coll->closeColl(comm));
}

/* The last rank is killed in the middle, or stopped, as if its host had lost power. Each other one gets an error, and its log names the rank and the
 * process. */
static void lose(uint64_t seed, int by) {
    double limit = getenv("DRIVER_KILL_LIMIT") ? atof(getenv("DRIVER_KILL_LIMIT")) : 5;
    void *comm = join();
    traffic(comm, seed, 20, 1000);
    meet();
    double begin = now();
    int victim = ranks - 1, ended = OK;
    Shape c = { REDUCE, F32, SUM, 0, 1 << 20, 4 << 20, 0, 4 << 20, seed };
    Slot s;
    prepare(comm, &c, &s);
    for (int i = 0; ended == OK; i++) {
        ended = post(comm, &c, &s);
        if (rank == victim && i == 3) kill(getpid(), by);
        for (int done = 0; ended == OK && !done; ) {
            ended = coll->test(s.request, &done, NULL);
            if (now() - begin > limit) die("no error in %g s", limit);
        }
    }
    char name[64], process[64];
    snprintf(name, sizeof name, "rank %d", victim);
    snprintf(process, sizeof process, "process %d of ", atomic_load(&shared->pid[victim]));
    if (ended != REMOTE || !strstr(warned, name) || !strstr(warned, process)) die("ended with %d: %s", ended, warned);
    /* Later calls fail alike, and the log has the reason once. */
    warned[0] = 0;
    check(post(comm, &c, &s) == REMOTE && !s.request && !warned[0]);
    must(coll->closeColl(comm));
}

static void killed(uint64_t seed) { lose(seed, SIGKILL); }
static void stopped(uint64_t seed) { lose(seed, SIGSTOP); }

/* A rank that does not come: the others learn which one. */
static void missing(uint64_t seed) {
    (void)seed;
    void *listening = listen_at(0), *comm;
    meet();
    if (rank != ranks - 1) {
        double begin = now();
        check(connect_with(0, listening, &comm) == REMOTE && !comm);
        check(now() - begin < 8);
        char process[64];
        snprintf(process, sizeof process, "rank %d is process %d of ", ranks - 1, atomic_load(&shared->pid[ranks - 1]));
        check(strstr(warned, process));
        if (rank) must(coll->closeListen(listening));
        /* NCCL leaves it open; the end of the context closes it. */
    }
    meet();
}

/* Ranks that call different things. */
static void mismatch(uint64_t seed) {
    void *comm = join();
    Shape c = { REDUCE, F32, SUM, 0, 100, 400, 0, 400, seed };
    Slot s;
    prepare(comm, &c, &s);
    if (rank == 1) c.count = 99;
    must(post(comm, &c, &s));
    int ended = wait_for(s.request, NULL, 20);
    if (ended != USAGE || !strstr(warned, "rank ")) die("ended with %d: %s", ended, warned);
    must(coll->closeColl(comm));
}

/* Wrong handles and arguments are errors, and the communicator works on. */
static void wrong_handles(uint64_t seed) {
    void *comm = join(), *mh, *request, *got = NULL, *listening;
    int done = 0, is;
    uint64_t memory[64] = { 0 };
    char handle[128] = { 0 }, *handles[RANKS];
    check(coll->listen(NULL, 0, handle, &listening) == ARGUMENT && coll->listen(comm, 0, handle, &listening) == ARGUMENT);
    check(coll->listen(ctx, 99, handle, &listening) == ARGUMENT && coll->getProperties(99, memory) == ARGUMENT);
    check(coll->regMr(comm, memory, sizeof memory, CUDA, &mh) == USAGE && strstr(warned, "host memory"));
    check(coll->regMr(NULL, memory, 8, HOST, &mh) == ARGUMENT && coll->regMr(comm, NULL, 8, HOST, &mh) == ARGUMENT);
    must(coll->regMr(comm, memory, sizeof memory, HOST, &mh));
    Piece piece = { mh, memory, 8 };
    size_t all = (size_t)ranks * 8;
    check(coll->iallreduce(NULL, memory, memory, 1, F32, SUM, mh, mh, &request) == ARGUMENT && !request);
    check(coll->iallreduce(mh, memory, memory, 1, F32, SUM, mh, mh, &request) == ARGUMENT);
    check(coll->iallreduce(comm, memory, memory, 1, F32, SUM, mh, mh, NULL) == ARGUMENT);
    check(coll->iallreduce(comm, memory, memory, 1, F32, SUM, NULL, mh, &request) == ARGUMENT);
    check(coll->iallreduce(comm, memory, memory, 1, F32, SUM, mh, comm, &request) == ARGUMENT);
    check(coll->iallreduce(comm, memory + 60, memory, 9, F32, SUM, mh, mh, &request) == ARGUMENT && strstr(warned, "not within"));
    check(coll->iallreduce(comm, memory, memory, SIZE_MAX, F64, SUM, mh, mh, &request) == ARGUMENT && !request);
    check(coll->iallreduce(comm, memory, memory, ((size_t)1 << 30) + 1, I8, SUM, mh, mh, &request) == ARGUMENT);
    check(coll->iallgather(comm, memory, 2, &piece, 8, 0, 8, mh, &request) == ARGUMENT && strstr(warned, "2 pieces"));
    check(coll->iallgather(comm, memory, 1, NULL, 8, 0, 8, mh, &request) == ARGUMENT);
    check(coll->iallgather(comm, memory, 1, &piece, 8, 0, 16, mh, &request) == ARGUMENT);
    check(coll->iallgather(comm, memory, 1, &piece, 8, all - 4, 8, mh, &request) == ARGUMENT && coll->iallgather(comm, memory, 1, &piece, 8, SIZE_MAX - 3, 8, mh, &request) == ARGUMENT);
    check(coll->iallgather(comm, memory, 1, &piece, SIZE_MAX, 0, 8, mh, &request) == ARGUMENT);
    check(coll->ireducescatter(comm, 1, &piece, memory, 8, 2, 8, F32, SUM, mh, &request) == ARGUMENT && !request);
    check(coll->test(NULL, &done, NULL) == ARGUMENT && coll->test(comm, &done, NULL) == ARGUMENT && coll->test(mh, &done, NULL) == ARGUMENT);
    check(coll->iflush(NULL, memory, 8, mh, &request) == ARGUMENT && coll->reduceSupport(F32, SUM, NULL) == ARGUMENT);
    check(coll->closeListen(comm) == ARGUMENT && coll->closeColl(mh) == ARGUMENT && coll->deregMr(comm, comm) == ARGUMENT);
    must(coll->deregMr(comm, mh));
    check(coll->deregMr(comm, mh) == ARGUMENT && coll->finalize(comm) == (strcmp(version, "10") ? ARGUMENT : OK));
    /* Connections that cannot be. */
    must(coll->listen(ctx, 0, handle, &listening));
    for (int r = 0; r < ranks; r++) handles[r] = handle;
    check(coll->connect((void **)handles, ranks, 0, listening, &got) == USAGE && strstr(warned, "one device"));
    check(coll->connect((void **)handles, ranks, ranks, listening, &got) == ARGUMENT && coll->connect((void **)handles, 0, 0, listening, &got) == ARGUMENT);
    check(coll->connect((void **)handles, 5000, 0, listening, &got) == ARGUMENT && coll->connect((void **)handles, ranks, -1, listening, &got) == ARGUMENT);
    check(coll->connect(NULL, ranks, 0, listening, &got) == ARGUMENT && coll->connect((void **)handles, ranks, 0, comm, &got) == ARGUMENT && !got);
    char other[128];
    memcpy(other, handle, sizeof other);
    other[40] ^= 1;
    handles[0] = other;
    check(coll->connect((void **)handles, ranks, 0, listening, &got) == ARGUMENT && strstr(warned, "not of this listening"));
    other[0] = 'x';
    check(coll->connect((void **)handles, ranks, 1, listening, &got) == ARGUMENT && strstr(warned, "none of this version"));
    /* A communicator of one rank. */
    handles[0] = handle;
    must(coll->connect((void **)handles, 1, 0, listening, &got));
    check(coll->connect((void **)handles, 1, 0, listening, &request) == ARGUMENT);
    must(coll->closeListen(listening));
    check(coll->closeListen(listening) == ARGUMENT);
    must(coll->regMr(got, memory, sizeof memory, HOST, &mh));
    memory[5] = 42;
    must(coll->iallreduce(got, memory + 5, memory + 9, 1, U64, SUM, mh, mh, &request));
    must(wait_for(request, &is, 10));
    check(is == 8 && memory[9] == 42);
    must(coll->deregMr(got, mh));
    must(coll->closeColl(got));
    meet();
    traffic(comm, seed, 20, 1000);
    must(coll->closeColl(comm));
}

/* More communicators than a NIC has queues, one after the other. */
static void many(uint64_t seed) {
    int count = getenv("DRIVER_MANY") ? atoi(getenv("DRIVER_MANY")) : 530;
    for (int i = 0; i < count; i++) {
        void *comm = join();
        if (i % 50 == 0) traffic(comm, seed + (uint64_t)i, 3, 100);
        must(coll->closeColl(comm));
    }
}

/* Not a test: a large all-reduce by the plug-in, and the copy of as many bytes by one thread, in turn. */
static void bench(uint64_t seed) {
    enum { ROUNDS = 12 };
    (void)seed;
    void *comm = join(), *mh, *request;
    size_t bytes = 16 << 20;
    char *memory = malloc(2 * bytes);
    memset(memory, 0, 2 * bytes);
    must(coll->regMr(comm, memory, 2 * bytes, HOST, &mh));
    double best = 1e9, copy = 1e9;
    for (int i = 0; i < ROUNDS; i++) {
        meet();
        double begin = now();
        memcpy(memory, memory + bytes, bytes);
        double took = now() - begin;
        if (took < copy) copy = took;
        meet();
        begin = now();
        must(coll->iallreduce(comm, memory, memory + bytes, bytes / 4, F32, SUM, mh, mh, &request));
        must(wait_for(request, NULL, 60));
        took = now() - begin;
        if (took < best) best = took;
    }
    if (!rank) printf("all-reduce of 16 MiB, %d ranks: %.2f GB/s of each rank's bytes; a copy by one thread %.2f GB/s; ratio %.3f\n", ranks,
        (double)bytes / best * 1e-9, (double)bytes / copy * 1e-9, copy / best);
    must(coll->deregMr(comm, mh));
    must(coll->closeColl(comm));
}

typedef struct { const char *name; void (*run)(uint64_t); int last_dies; const char *timeout; } Scenario;
static const Scenario scenarios[] = {
    { "random", random_traffic, 0, NULL }, { "support", support, 0, NULL }, { "threads", threads, 0, NULL }, { "overlaps", overlaps, 0, NULL },
    { "close", close_in_flight, 0, NULL }, { "killed", killed, 1, NULL }, { "stopped", stopped, 1, NULL }, { "missing", missing, 0, "2" }, { "mismatch", mismatch, 0, NULL },
    { "wrong", wrong_handles, 0, NULL }, { "many", many, 0, NULL }, { "bench", bench, 0, NULL },
};

int main(int argc, char **argv) {
    if (argc < 5) die("collnet PLUGIN VERSION SCENARIO RANKS [SEED]");
    plugin = argv[1];
    version = argv[2];
    ranks = atoi(argv[4]);
    uint64_t seed = argc > 5 ? strtoull(argv[5], NULL, 10) : 1;
    const Scenario *s = NULL;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) if (!strcmp(scenarios[i].name, argv[3])) s = &scenarios[i];
    if (!s || ranks < 2 || ranks > RANKS) die("no scenario %s of %d ranks", argv[3], ranks);
    if (s->timeout) setenv("RINGBELL_NCCL_TIMEOUT", s->timeout, 1);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(shared != MAP_FAILED);
    pid_t child[RANKS];
    for (rank = 0; rank < ranks; rank++) {
        child[rank] = fork();
        check(child[rank] >= 0);
        if (child[rank]) continue;
        alarm(120);
        process_name = "rank";
        process_number = rank;
        atomic_store(&shared->pid[rank], (int)getpid());
        meet();
        start();
        s->run(seed);
        must(coll->finalize(ctx));
        exit(0);
    }
    int failed = 0;
    for (int r = 0, status; r < ranks; r++) {
        /* The others have ended. */
        if (s->run == stopped && r == ranks - 1) kill(child[r], SIGKILL);
        check(waitpid(child[r], &status, 0) == child[r]);
        int dies = s->last_dies && r == ranks - 1;
        if (dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && !WEXITSTATUS(status)) continue;
        fprintf(stderr, "rank %d ended with %#x\n", r, (unsigned)status);
        failed = 1;
    }
    if (!failed) printf("%s of %d ranks, v%s: as it should\n", s->name, ranks, version);
    return failed;
}
