/* What NCCL does with a network plug-in, in its order, between two processes: connections that do not block, registration, groups of receives,
 * many requests, ends in the middle.
 *
 * driver PLUGIN VERSION SCENARIO [SEED]. It prints one line and ends with 0, or says what is wrong. */
#include "net.h"

/* One group of the random traffic: what both sides derive from its number. */
enum { LONGEST = 4 << 20 };
typedef struct { int n; size_t size[GROUP_MAX], room[GROUP_MAX]; int tag[GROUP_MAX], order[GROUP_MAX]; uint64_t seed[GROUP_MAX]; } Shape;
static Shape shape(uint64_t seed, int number) {
    uint64_t s = seed * 1000003u + (uint64_t)number;
    Shape g = { .n = next(&s) % 3 ? 1 : 1 + (int)(next(&s) % GROUP_MAX) };
    for (int i = 0; i < g.n; i++) {
        uint64_t kind = next(&s) % 8;
        size_t most = kind < 2 ? 64 : kind < 5 ? 9000 : kind < 7 ? 300000 : LONGEST;
        if (g.n > 2 && most > 300000) most = 300000;
        g.size[i] = next(&s) % 9 == 0 ? 0 : next(&s) % (most + 1);
        g.room[i] = g.size[i] + (next(&s) % 2 ? next(&s) % 5000 : 0);
        /* Two of the same tag now and then: then the order decides. */
        g.tag[i] = (int)(next(&s) % 5) - 1 + (next(&s) % 6 ? 10 * i : 0);
        g.seed[i] = next(&s);
        g.order[i] = i;
    }
    for (int i = g.n - 1; i > 0; i--) { int j = (int)(next(&s) % (uint64_t)(i + 1)), t = g.order[i]; g.order[i] = g.order[j]; g.order[j] = t; }
    return g;
}
/* Which receive a send gets: the first of its tag that has none. */
static int receive_of(const Shape *g, int sent, const int *taken) {
    for (int i = 0; i < g->n; i++) if (g->tag[i] == g->tag[g->order[sent]] && !taken[i]) return i;
    die("no receive");
}

/* One end of one direction, driven a step at a time. */
typedef struct { void *request[REQUESTS * GROUP_MAX]; unsigned char *memory[REQUESTS * GROUP_MAX]; void *mh[REQUESTS * GROUP_MAX]; } Slots;
typedef struct { void *comm; uint64_t seed; int groups, group, index, taken[GROUP_MAX], began, ended; Slots s; size_t size[REQUESTS * GROUP_MAX]; } Sending;
typedef struct { void *comm; uint64_t seed; int groups, posted, ended; Slots s[GROUP_MAX]; } Receiving;
enum { RING = REQUESTS * GROUP_MAX };

static int step_send(Sending *d) {
    int did = 0;
    if (d->group < d->groups && d->began - d->ended < RING) {
        Shape g = shape(d->seed, d->group);
        int r = receive_of(&g, d->index, d->taken), slot = d->began % RING;
        size_t size = g.size[r];
        if (!d->s.memory[slot]) {
            d->s.memory[slot] = malloc(size ? size : 1);
            fill(d->s.memory[slot], size, g.seed[r]);
            must(net->regMr(d->comm, d->s.memory[slot], size ? size : 1, HOST, &d->s.mh[slot]));
        }
        must(net->isend(d->comm, d->s.memory[slot], size, g.tag[r], d->s.mh[slot], NULL, &d->s.request[slot]));
        if (d->s.request[slot]) {
            d->size[slot] = size;
            d->taken[r] = 1;
            d->began++;
            did = 1;
            if (++d->index == g.n) { d->index = 0; d->group++; memset(d->taken, 0, sizeof d->taken); }
        }
    }
    if (d->ended < d->began) {
        int slot = d->ended % RING, done = 0, size = -1;
        must(net->test(d->s.request[slot], &done, &size));
        if (done) {
            check((size_t)size == d->size[slot]);
            must(net->deregMr(d->comm, d->s.mh[slot]));
            free(d->s.memory[slot]);
            d->s.memory[slot] = NULL;
            d->ended++;
            did = 1;
        }
    }
    return did;
}

static int step_recv(Receiving *d, int most) {
    int did = 0;
    if (d->posted < d->groups && d->posted - d->ended < most) {
        Shape g = shape(d->seed, d->posted);
        int slot = d->posted % REQUESTS;
        void *at[GROUP_MAX], *mh[GROUP_MAX], *request = (void *)1;
        for (int i = 0; i < g.n; i++) {
            if (!d->s[i].memory[slot]) {
                d->s[i].memory[slot] = malloc(g.room[i] + 16);
                memset(d->s[i].memory[slot] + g.room[i], 0x5a, 16);
                must(net->regMr(d->comm, d->s[i].memory[slot], g.room[i] ? g.room[i] : 1, HOST, &d->s[i].mh[slot]));
            }
            at[i] = d->s[i].memory[slot];
            mh[i] = d->s[i].mh[slot];
        }
        must(net->irecv(d->comm, g.n, at, g.room, g.tag, mh, NULL, &request));
        check(request != (void *)1);
        if (request) { d->s[0].request[slot] = request; d->posted++; did = 1; }
    }
    if (d->ended < d->posted) {
        Shape g = shape(d->seed, d->ended);
        int slot = d->ended % REQUESTS, done = 0, sizes[GROUP_MAX];
        must(net->test(d->s[0].request[slot], &done, sizes));
        if (done) {
            for (int i = 0; i < g.n; i++) {
                void *at = d->s[i].memory[slot], *flush = (void *)1;
                check((size_t)sizes[i] == g.size[i]);
                compare(at, g.size[i], g.seed[i]);
                for (int k = 0; k < 16; k++) check(d->s[i].memory[slot][g.room[i] + k] == 0x5a);
                must(net->iflush(d->comm, 1, &at, &sizes[i], &d->s[i].mh[slot], &flush));
                if (flush) must(wait_for(flush, NULL, 5));
                must(net->deregMr(d->comm, d->s[i].mh[slot]));
                free(d->s[i].memory[slot]);
                d->s[i].memory[slot] = NULL;
            }
            if (net->irecvConsumed) must(net->irecvConsumed(d->comm, g.n, d->s[0].request[slot]));
            d->ended++;
            did = 1;
        }
    }
    return did;
}

/* Both directions at once over one pair, on one thread. */
static void traffic(Pair p, int side, uint64_t seed, int groups) {
    Sending *out = calloc(1, sizeof *out);
    Receiving *in = calloc(1, sizeof *in);
    out->comm = p.send; out->seed = seed * 2 + (uint64_t)side; out->groups = groups;
    in->comm = p.recv; in->seed = seed * 2 + (uint64_t)!side; in->groups = groups;
    uint64_t s = seed + (uint64_t)side;
    double last = now();
    while (out->ended < out->began || out->group < groups || in->ended < groups) {
        /* Sometimes few receives are posted, so that sends must wait. */
        int did = step_recv(in, next(&s) % 4 ? REQUESTS : 2);
        if (next(&s) % 3) did |= step_send(out);
        if (did) last = now();
        else if (now() - last > 20) die("nothing moves: sent %d of group %d, received %d of %d: %s", out->ended, out->group, in->ended, groups, warned);
    }
    free(out);
    free(in);
}

static void random_traffic(int side, uint64_t seed) {
    Pair first = pair_up(0), second = pair_up(0);
    traffic(first, side, seed, 150);
    traffic(second, side, seed + 1, 60);
    meet();
    part(first);
    part(second);
}

typedef struct { Pair pair; int side; uint64_t seed; } Job;
static void *job(void *at) {
    Job *j = at;
    traffic(j->pair, j->side, j->seed, 80);
    return NULL;
}
/* A pair for each of two threads, and registrations of the same memory by a third. */
static void threads(int side, uint64_t seed) {
    pthread_t t[2];
    Job jobs[2] = { { pair_up(0), side, seed }, { pair_up(0), side, seed + 7 } };
    Pair third = pair_up(0);
    for (int i = 0; i < 2; i++) check(!pthread_create(&t[i], NULL, job, &jobs[i]));
    size_t bytes = 1 << 20;
    char *memory = malloc(bytes);
    for (int i = 0; i < 200; i++) {
        void *a, *b, *c;
        must(net->regMr(third.send, memory, bytes, HOST, &a));
        must(net->regMr(third.recv, memory + 1000, bytes / 2, HOST, &b));
        must(net->deregMr(third.send, a));
        must(net->regMr(third.recv, memory, bytes, HOST, &c));
        must(net->deregMr(third.recv, b));
        must(net->deregMr(third.recv, c));
    }
    for (int i = 0; i < 2; i++) check(!pthread_join(t[i], NULL));
    meet();
    free(memory);
    for (int i = 0; i < 2; i++) part(jobs[i].pair);
    part(third);
}

/* A message over registrations that share and split their memory. */
static void overlaps(int side, uint64_t seed) {
    Pair p = pair_up(0);
    size_t bytes = 3 << 20;
    unsigned char *memory = malloc(bytes);
    void *middle, *all, *request = NULL;
    must(net->regMr(p.send, memory + 1000001, 900001, HOST, &middle));
    must(net->regMr(p.recv, memory, bytes, HOST, &all));
    must(net->deregMr(p.send, middle));
    for (int i = 0; i < 3; i++) {
        if (side) {
            fill(memory, bytes, seed + (uint64_t)i);
            while (!request) must(net->isend(p.send, memory, bytes, 5, all, NULL, &request));
            must(wait_for(request, NULL, 10));
        } else {
            void *at = memory;
            int tag = 5, size = 0;
            while (!request) must(net->irecv(p.recv, 1, &at, &bytes, &tag, &all, NULL, &request));
            must(wait_for(request, &size, 10));
            check((size_t)size == bytes);
            compare(memory, bytes, seed + (uint64_t)i);
        }
        request = NULL;
    }
    meet();
    must(net->deregMr(p.recv, all));
    free(memory);
    part(p);
}

/* Ends are closed with requests under way, and the memory is unmapped at once. */
static void close_in_flight(int side, uint64_t seed) {
    for (int round = 0; round < 6; round++) {
        Pair p = pair_up(0);
        size_t bytes = 2 << 20;
        unsigned char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(memory != MAP_FAILED);
        void *mh, *at = memory, *request = NULL;
        int tag = 3, done = 0;
        if (side == round % 2) {
            must(net->regMr(p.recv, memory, bytes, HOST, &mh));
            for (int i = 0; i < 1 + (int)(seed % 20); i++) {
                request = NULL;
                int r = net->irecv(p.recv, 1, &at, &bytes, &tag, &mh, NULL, &request);
                /* The sender closes once the first has met its send, or after two seconds. */
                if (r != OK) { check(r == REMOTE); break; }
            }
            if (round >= 4 && request) for (int i = 0; i < 100; i++) if (net->test(request, &done, NULL) != OK) break;
            must(net->deregMr(p.recv, mh));
        } else {
            must(net->regMr(p.send, memory, bytes, HOST, &mh));
            double start = now();
            while (!request && now() - start < 2) {
                int r = net->isend(p.send, memory, bytes, tag, mh, NULL, &request);
                if (r != OK) break;
            }
            if (round >= 2 && request) { int r = net->test(request, &done, NULL); check(r == OK || r == REMOTE || r == SYSTEM); }
            must(net->deregMr(p.send, mh));
        }
        part(p);
        check(!munmap(memory, bytes));
        if (request) check(net->test(request, &done, NULL) == ARGUMENT);
        meet();
    }
    warned[0] = 0;
    random_traffic(side, seed);
}

/* A receive that is too short: an error on both sides, which names sizes and process. */
static void too_large(int side, uint64_t seed) {
    (void)seed;
    Pair p = pair_up(0);
    static unsigned char memory[100000];
    void *mh, *request = NULL, *at = memory;
    int tag = 9;
    size_t room = 5000;
    if (side) {
        must(net->regMr(p.send, memory, sizeof memory, HOST, &mh));
        while (!request) must(net->isend(p.send, memory, 5001, tag, mh, NULL, &request));
        meet();
    } else {
        must(net->regMr(p.recv, memory, sizeof memory, HOST, &mh));
        must(net->irecv(p.recv, 1, &at, &room, &tag, &mh, NULL, &request));
        check(wait_for(request, NULL, 10) == USAGE);
        if (!strstr(warned, "5001 B with tag 9") || !strstr(warned, "process ")) die("the log says %s", warned);
        check(net->irecv(p.recv, 1, &at, &room, &tag, &mh, NULL, &request) == USAGE && !request);
        meet();
    }
    must(net->deregMr(p.send, mh));
    part(p);
    meet();
}

/* The other process is killed in the middle. */
static void killed(int side, uint64_t seed) {
    Pair p = pair_up(0);
    size_t bytes = 1 << 20;
    unsigned char *memory = malloc(bytes);
    void *mh, *request = NULL, *at = memory;
    int tag = 1, r = OK, pid = getpid();
    must(net->regMr(p.send, memory, bytes, HOST, &mh));
    if (side) {
        tell(&pid, sizeof pid);
        char c;
        hear(&c, 1);
        if (seed % 2) while (!request) must(net->isend(p.send, memory, bytes, tag, mh, NULL, &request));
        raise(SIGKILL);
    }
    hear(&pid, sizeof pid);
    for (int i = 0; i < 4; i++) must(net->irecv(p.recv, 1, &at, &bytes, &tag, &mh, NULL, &request));
    tell("k", 1);
    double start = now(), limit = getenv("DRIVER_KILL_LIMIT") ? atof(getenv("DRIVER_KILL_LIMIT")) : 10;
    while (r == OK && now() - start < limit) { int done; r = net->test(request, &done, NULL); usleep(100); }
    if (r != REMOTE) die("no error for a killed peer in %g s: %d, %s", limit, r, warned);
    char name[64];
    snprintf(name, sizeof name, "process %d of ", pid);
    if (!strstr(warned, name)) die("the log does not name %s: %s", name, warned);
    /* The sending end learns it, too. */
    for (request = NULL, r = OK, start = now(); r == OK && now() - start < limit;) {
        int done;
        if (!request) r = net->isend(p.send, memory, bytes, tag, mh, NULL, &request);
        else r = net->test(request, &done, NULL);
    }
    if (r != REMOTE) die("no error at the sending end: %d", r);
    must(net->deregMr(p.send, mh));
    part(p);
}

/* The other process is stopped, as a host without power: it says nothing, and nothing is under way to it. */
static void stopped(int side, uint64_t seed) {
    (void)seed;
    Pair p = pair_up(0);
    int pid = getpid(), tag = 1, r = OK, done;
    size_t size = 16;
    char memory[16], c;
    void *at = memory, *request = NULL, *mh = NULL;
    if (side) {
        tell(&pid, sizeof pid);
        hear(&c, 1);
        part(p);
        return;
    }
    hear(&pid, sizeof pid);
    must(net->irecv(p.recv, 1, &at, &size, &tag, &mh, NULL, &request));
    for (double start = now(); now() - start < 0.5;) must(net->test(request, &done, NULL));
    check(!kill(pid, SIGSTOP));
    double start = now();
    while (r == OK && now() - start < 20) { r = net->test(request, &done, NULL); usleep(200); }
    double took = now() - start;
    check(!kill(pid, SIGCONT));
    if (r != REMOTE || took < 1) die("a stopped peer gave %d after %g s: %s", r, took, warned);
    tell("k", 1);
    part(p);
}

/* Handles of every wrong kind: errors, and what is sound goes on. */
static void wrong_handles(int side, uint64_t seed) {
    Pair p = pair_up(0);
    char handle[128], bad[128];
    void *listening, *q = NULL, *mh, *request;
    static unsigned char memory[4096];
    int n, tag = 0, tags[9] = { 0 };
    size_t size = sizeof memory, sizes[9] = { 0 };
    void *at = memory, *all[9] = { 0 };
    check(net->getProperties(99, memory) == ARGUMENT && net->getProperties(-1, memory) == ARGUMENT);
    check(net->devices(NULL) == ARGUMENT && net->init(NULL, 0, NULL, logger, NULL) == ARGUMENT);
    check(net->listen(ctx, 99, handle, &listening) == ARGUMENT && net->listen(NULL, 0, handle, &listening) == ARGUMENT);
    check(net->listen(ctx, 0, NULL, &listening) == ARGUMENT);
    must(net->listen(ctx, 0, handle, &listening));
    memset(bad, 0x77, sizeof bad);
    check(net->connect(ctx, 0, bad, &q, NULL) == ARGUMENT && !q);
    check(net->connect(listening, 0, handle, &q, NULL) == ARGUMENT && !q);
    memcpy(bad, handle, sizeof bad);
    memset(bad + 120, 1, 8); /* A number that no connection has. */
    check(net->connect(ctx, 0, bad, &q, NULL) == ARGUMENT && !q);
    check(net->accept(p.send, &q, NULL) == ARGUMENT && net->accept((void *)8, &q, NULL) == ARGUMENT && !q);
    check(net->regMr(listening, memory, size, HOST, &mh) == ARGUMENT && net->regMr(p.send, NULL, 10, HOST, &mh) == ARGUMENT);
    check(net->regMr(p.send, memory, size, CUDA, &mh) == USAGE && net->regMr(p.send, (void *)4096, 1 << 20, HOST, &mh) != OK);
    must(net->regMr(p.send, memory, size, HOST, &mh));
    check(net->isend(p.recv, memory, 1, 0, mh, NULL, &request) == ARGUMENT && net->isend(p.send, NULL, 9, 0, mh, NULL, &request) == ARGUMENT);
    check(net->irecv(p.send, 1, &at, &size, &tag, &mh, NULL, &request) == ARGUMENT);
    check(net->irecv(p.recv, 0, &at, &size, &tag, &mh, NULL, &request) == ARGUMENT);
    check(net->irecv(p.recv, 9, all, sizes, tags, all, NULL, &request) == ARGUMENT);
    check(net->irecv(p.recv, 1, &at, &size, &tag, (void *[]){ (void *)0x5500000 }, NULL, &request) == ARGUMENT);
    size++;
    check(net->irecv(p.recv, 1, &at, &size, &tag, &mh, NULL, &request) == ARGUMENT && !request);
    size--;
    check(net->test(NULL, &n, NULL) == ARGUMENT && net->test(p.send, &n, NULL) == ARGUMENT && net->test(mh, &n, NULL) == ARGUMENT);
    check(net->closeSend(p.recv) == ARGUMENT && net->closeRecv(p.send) == ARGUMENT && net->closeListen(p.send) == ARGUMENT);
    check(net->deregMr(p.send, p.recv) == ARGUMENT && net->finalize(p.send) == ARGUMENT && net->setNetAttr(NULL, NULL) == ARGUMENT);
    must(net->deregMr(p.send, mh));
    check(net->deregMr(p.send, mh) == ARGUMENT);
    /* A handle with a wrong secret: the listener refuses it, and takes a right one behind it. */
    memcpy(bad, handle, sizeof bad);
    bad[40] ^= 1;
    void *wrong = NULL, *right = NULL, *accepted = NULL;
    int refused = 0;
    for (double start = now(); !((wrong || refused) && right && accepted) && now() - start < 10;) {
        if (!wrong && !refused) {
            /* Refused before the connection, or after its first record. */
            int r = net->connect(ctx, 0, bad, &wrong, NULL);
            if (r == REMOTE) refused = 1;
            else must(r);
        } else if (!right) must(net->connect(ctx, 0, handle, &right, NULL));
        if (!accepted) must(net->accept(listening, &accepted, NULL));
    }
    check((wrong || refused) && right && accepted);
    traffic((Pair){ right, accepted }, 0, 0, 0);
    for (double start = now(); wrong && now() - start < 10;) {
        int r = net->isend(wrong, memory, 1, 0, NULL, NULL, &request);
        check(!request);
        if (r == REMOTE) break;
        must(r);
    }
    /* One listener serves more than one connection. */
    void *second = NULL, *more = NULL;
    while (!second || !more) {
        if (!second) must(net->connect(ctx, 0, handle, &second, NULL));
        if (!more) must(net->accept(listening, &more, NULL));
    }
    if (wrong) must(net->closeSend(wrong));
    must(net->closeSend(right)); must(net->closeRecv(accepted));
    must(net->closeSend(second)); must(net->closeRecv(more));
    must(net->closeListen(listening));
    check(net->closeListen(listening) == ARGUMENT);
    /* Nothing listens there any more. */
    q = NULL;
    int r = OK;
    for (double start = now(); r == OK && !q && now() - start < 10;) r = net->connect(ctx, 0, handle, &q, NULL);
    check(r == REMOTE && !q);
    traffic(p, side, seed, 20);
    meet();
    part(p);
    check(net->closeSend(p.send) == ARGUMENT);
}

/* One process with both ends, as NCCL has it for two GPUs of one process. */
static void loopback(int side, uint64_t seed) {
    char handle[128];
    void *listening, *in = NULL, *out = NULL, *mh, *got = NULL, *sent = NULL;
    (void)side;
    must(net->listen(ctx, 0, handle, &listening));
    check(net->accept(listening, &in, NULL) == OK && !in);
    while (!in || !out) {
        if (!out) must(net->connect(ctx, 0, handle, &out, NULL));
        if (!in) must(net->accept(listening, &in, NULL));
    }
    must(net->closeListen(listening));
    size_t bytes = 100000;
    unsigned char *memory = malloc(2 * bytes);
    fill(memory, bytes, seed);
    memset(memory + bytes, 0, bytes);
    must(net->regMr(out, memory, 2 * bytes, HOST, &mh));
    void *at = memory + bytes;
    int tag = 42, size = 0;
    must(net->isend(out, memory, bytes, tag, mh, NULL, &sent));
    check(!sent); /* No receive is posted. */
    must(net->irecv(in, 1, &at, &bytes, &tag, &mh, NULL, &got));
    check(got);
    while (!sent) must(net->isend(out, memory, bytes, tag, mh, NULL, &sent));
    must(wait_for(got, &size, 10));
    check((size_t)size == bytes);
    must(wait_for(sent, &size, 10));
    check((size_t)size == bytes);
    compare(memory + bytes, bytes, seed);
    must(net->deregMr(out, mh));
    must(net->closeSend(out));
    must(net->closeRecv(in));
    free(memory);
}

typedef struct { const char *name; void (*run)(int, uint64_t); int processes, second_dies; } Scenario;
static const Scenario scenarios[] = {
    { "loopback", loopback, 1, 0 }, { "random", random_traffic, 2, 0 }, { "threads", threads, 2, 0 }, { "overlaps", overlaps, 2, 0 },
    { "close", close_in_flight, 2, 0 }, { "large", too_large, 2, 0 }, { "killed", killed, 2, 1 }, { "wrong", wrong_handles, 2, 0 },
    { "stopped", stopped, 2, 0 },
};

int main(int argc, char **argv) {
    if (argc < 4) die("driver PLUGIN VERSION SCENARIO [SEED]");
    plugin = argv[1];
    version = argv[2];
    uint64_t seed = argc > 4 ? strtoull(argv[4], NULL, 10) : 1;
    const Scenario *s = NULL;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) if (!strcmp(scenarios[i].name, argv[3])) s = &scenarios[i];
    if (!s) die("no scenario %s", argv[3]);
    int side = 0, status = 0;
    pid_t child = 0;
    process_number = (int)getpid();
    if (s->processes == 2) side = split(&child);
    alarm(120);
    start();
    s->run(side, seed);
    finish();
    if (s->processes == 2 && !side) {
        check(waitpid(child, &status, 0) == child);
        int as_expected = s->second_dies ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && !WEXITSTATUS(status);
        if (!as_expected) die("the second process ended with %#x", status);
        if (!s->second_dies && warned[0] && (s->run == random_traffic || s->run == threads)) die("warned: %s", warned);
    }
    if (!side) printf("%s v%s: as it should\n", s->name, version);
    return 0;
}
