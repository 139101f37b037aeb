/* NCCL's network interface (ncclNet) between two processes, as the drivers use it. */
#include "plugin.h"

#include <errno.h>
#include <sys/socket.h>

enum { GROUP_MAX = 8 };
typedef struct { int ndevs, devs[8]; } VDevice;
typedef struct {
    char *name, *pciPath; uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port; float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    VDevice vProps; size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize; int16_t railId, planeId;
} Props12;
typedef struct {
    char *name, *pciPath; uint64_t guid;
    int ptrSupport, regIsGlobal, forceFlush, speed, port; float latency;
    int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
    struct { int ndevs, devs[4]; } vProps; size_t maxP2pBytes, maxCollBytes;
    int maxMultiRequestSize;
} Props11;
typedef struct {
    const char *name;
    int (*init)(void **, uint64_t, void *, Logger, void *);
    int (*devices)(int *);
    int (*getProperties)(int, void *);
    int (*listen)(void *, int, void *, void **);
    int (*connect)(void *, int, void *, void **, void **);
    int (*accept)(void *, void **, void **);
    int (*regMr)(void *, void *, size_t, int, void **);
    int (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **);
    int (*deregMr)(void *, void *);
    int (*isend)(void *, void *, size_t, int, void *, void *, void **);
    int (*irecv)(void *, int, void **, size_t *, int *, void **, void **, void **);
    int (*iflush)(void *, int, void **, int *, void **, void **);
    int (*test)(void *, int *, int *);
    int (*closeSend)(void *);
    int (*closeRecv)(void *);
    int (*closeListen)(void *);
    int (*getDeviceMr)(void *, void *, void **);
    int (*irecvConsumed)(void *, int, void *);
    int (*makeVDevice)(int *, void *);
    int (*finalize)(void *);
    int (*setNetAttr)(void *, void *);
} Net;

/* Version 10 has no contexts, and its devices are never closed. */
typedef struct {
    const char *name;
    int (*init)(Logger, void *);
    int (*devices)(int *);
    int (*getProperties)(int, void *);
    int (*listen)(int, void *, void **);
    int (*connect)(int, void *, void *, void **, void **);
    int (*accept)(void *, void **, void **);
    int (*regMr)(void *, void *, size_t, int, void **);
    int (*regMrDmaBuf)(void *, void *, size_t, int, uint64_t, int, void **);
    int (*deregMr)(void *, void *);
    int (*isend)(void *, void *, size_t, int, void *, void *, void **);
    int (*irecv)(void *, int, void **, size_t *, int *, void **, void **, void **);
    int (*iflush)(void *, int, void **, int *, void **, void **);
    int (*test)(void *, int *, int *);
    int (*closeSend)(void *);
    int (*closeRecv)(void *);
    int (*closeListen)(void *);
    int (*getDeviceMr)(void *, void *, void **);
    int (*irecvConsumed)(void *, int, void *);
    int (*makeVDevice)(int *, void *);
} Net10;

static const Net10 *net10;
static inline int init10(void **c, uint64_t id, void *config, Logger log, void *profiler) { (void)id; (void)config; *c = NULL; return net10->init(log, profiler); }
static inline int listen10(void *c, int dev, void *handle, void **comm) { (void)c; return net10->listen(dev, handle, comm); }
static inline int connect10(void *c, int dev, void *handle, void **comm, void **device) { int config[1] = { -1 }; (void)c; return net10->connect(dev, config, handle, comm, device); }
static inline int finalize10(void *c) { (void)c; return 0; }
static inline int attr10(void *c, void *attr) { (void)c; (void)attr; return 0; }
static inline const Net *as_newer(const Net10 *n) {
    static Net all;
    net10 = n;
    all = (Net){ n->name, init10, n->devices, n->getProperties, listen10, connect10, n->accept, n->regMr, n->regMrDmaBuf, n->deregMr, n->isend, n->irecv,
        n->iflush, n->test, n->closeSend, n->closeRecv, n->closeListen, n->getDeviceMr, n->irecvConsumed, n->makeVDevice, finalize10, attr10 };
    return &all;
}

static const Net *net;
static int other = -1; /* A socket to the other process. */

static inline void start(void) {
    int count = 0;
    struct { int trafficClass; } config = { -1 };
    net = table("ncclNetPlugin");
    if (!strcmp(version, "10")) net = as_newer((const Net10 *)(const void *)net);
    must(net->init(&ctx, 77, &config, logger, NULL));
    must(net->devices(&count));
    check(count >= 1);
    for (int d = 0; d < count; d++) {
        union { Props12 v12; Props11 v11; unsigned char bytes[512]; } p;
        memset(&p, 0xa5, sizeof p);
        must(net->getProperties(d, &p));
        check(p.v12.name && strncmp(p.v12.name, "ringbell", 8) == 0 && !p.v12.pciPath);
        check(p.v12.ptrSupport == HOST && p.v12.maxRecvs == GROUP_MAX && p.v12.speed > 0 && p.v12.maxComms > 0);
        check(p.v12.netDeviceType == 0 && p.v12.vProps.ndevs == 1 && p.v12.vProps.devs[0] == d);
        size_t size = strcmp(version, "12") ? sizeof(Props11) : sizeof(Props12);
        if (!strcmp(version, "10")) { size -= 8; check(p.v11.maxP2pBytes == 1 << 30); }
        else if (size == sizeof(Props11)) check(p.v11.maxP2pBytes == 1 << 30 && p.v11.maxMultiRequestSize == 1);
        else check(p.v12.maxP2pBytes == 1 << 30 && p.v12.maxMultiRequestSize == 1 && p.v12.railId == -1 && p.v12.planeId == -1);
        for (size_t i = size; i < sizeof p; i++) check(p.bytes[i] == 0xa5);
    }
}

static inline void finish(void) { must(net->finalize(ctx)); }

static inline void tell(const void *what, size_t size) { check(write(other, what, size) == (ssize_t)size); }
static inline void hear(void *what, size_t size) {
    for (size_t got = 0; got < size;) {
        ssize_t n = read(other, (char *)what + got, size - got);
        if (n <= 0) die("the other process has ended");
        got += (size_t)n;
    }
}
/* Both are here. */
static inline void meet(void) { char c = 'm'; tell(&c, 1); hear(&c, 1); }

/* A connection to and one from the other process: setup, then connect and accept in turn, as NCCL's proxy. */
typedef struct { void *send, *recv; } Pair;
static inline Pair pair_up(int dev) {
    char handle[128];
    void *listening = NULL;
    Pair p = { NULL, NULL };
    must(net->listen(ctx, dev, handle, &listening));
    check(listening);
    tell(handle, sizeof handle);
    hear(handle, sizeof handle);
    double start = now();
    while (!p.send || !p.recv) {
        int attr[16] = { 0 };
        must(net->setNetAttr(ctx, attr));
        if (!p.send) must(net->connect(ctx, dev, handle, &p.send, NULL));
        if (!p.recv) must(net->accept(listening, &p.recv, NULL));
        if (now() - start > 20) die("no connection in 20 s: %s", warned);
    }
    must(net->closeListen(listening));
    return p;
}
static inline void part(Pair p) { must(net->closeSend(p.send)); must(net->closeRecv(p.recv)); }

static inline void fill(unsigned char *at, size_t size, uint64_t seed) {
    size_t i = 0;
    for (; i + 8 <= size; i += 8) { uint64_t x = seed + i * 0x9e3779b97f4a7c15u; memcpy(at + i, &x, 8); }
    for (; i < size; i++) at[i] = (unsigned char)(seed + i);
}
static inline void compare(const unsigned char *at, size_t size, uint64_t seed) {
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        uint64_t x = seed + i * 0x9e3779b97f4a7c15u;
        if (memcmp(at + i, &x, 8)) die("wrong bytes at %zu of %zu", i, size);
    }
    for (; i < size; i++) if (at[i] != (unsigned char)(seed + i)) die("wrong byte at %zu of %zu", i, size);
}

static inline int wait_for(void *request, int *sizes, double limit) {
    double start = now();
    for (;;) {
        int done = 7, r = net->test(request, &done, sizes);
        if (r != OK) return r;
        if (done) return OK;
        if (now() - start > limit) die("a request had not ended in %g s: %s", limit, warned);
    }
}

/* Starts the second process, with a socket between both: 1 there. */
static inline int split(pid_t *child) {
    int ends[2];
    check(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    *child = fork();
    check(*child >= 0);
    int side = *child == 0;
    process_number = (int)getpid();
    close(ends[!side]);
    other = ends[side];
    return side;
}
