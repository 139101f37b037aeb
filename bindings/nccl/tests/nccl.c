/* NCCL itself, from PyPI, with the plug-in and without a GPU.
 *
 * ncclCommInitRank asks CUDA for a device before it looks for a network, so this program calls the next functions of NCCL by itself: the one that
 * loads the plug-in and chooses a network, and those of its bootstrap, which with NCCL_OOB_NET_ENABLE=1 gathers over the chosen network. They are
 * local to the library, but its symbol table has them; the few fields of a communicator that they read are at the places of version 2.32.3.
 * Of ncclCollNet NCCL calls no more than init and devices without a GPU. The program goes on with the table and the context that NCCL has stored, and
 * with NCCL's bootstrap for the handles: a communicator, and an all-reduce.
 *
 * nccl LIBRARY RANKS. Each rank is a process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define die(...) do { fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); _exit(1); } while (0)
#define must(call) do { int r_ = (call); if (r_) die("rank %d: %s: %d", rank, #call, r_); } while (0)

/* struct ncclComm of 2.32.3, and of what it points to. */
enum { VERSION = 23203, SHARED = 0x88, NET = 0x68e0, COLL_NET = 0x6908, COLL_CONTEXT = 0x6910, BOOTSTRAP = 0x6918, RANK = 0x1206e8, RANKS = 0x1206ec, ABORT = 0x121580, COMM_BYTES = 4 << 20 };

static const char *path;
static char *base;

/* A function of the library that is not exported. */
static void *internal(const char *name) {
    static const char *file;
    static struct stat size;
    if (!file) {
        int fd = open(path, O_RDONLY);
        if (fd < 0 || fstat(fd, &size)) die("cannot read %s", path);
        file = mmap(NULL, (size_t)size.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (file == MAP_FAILED) die("cannot map %s", path);
    }
    const Elf64_Ehdr *head = (const void *)file;
    const Elf64_Shdr *sections = (const void *)(file + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbols = (const void *)(file + sections[i].sh_offset);
        const char *names = file + sections[sections[i].sh_link].sh_offset;
        for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++)
            if (!strcmp(names + symbols[k].st_name, name)) return base + symbols[k].st_value;
    }
    die("%s has no symbol %s", path, name);
}

typedef struct { char bytes[128]; } Id;

static unsigned char byte(int rank, size_t i) { return (unsigned char)(rank * 31 + (int)(i * 7) + (int)(i >> 9)); }

/* ncclCollNet_v12_t. */
typedef struct {
    const char *name;
    void *init, *devices, *getProperties;
    int (*listen)(void *, int, void *, void **);
    int (*connect)(void **, int, int, void *, void **);
    int (*reduceSupport)(int, int, int *);
    int (*regMr)(void *, void *, size_t, int, void **);
    void *regMrDmaBuf;
    int (*deregMr)(void *, void *);
    int (*iallreduce)(void *, void *, void *, size_t, int, int, void *, void *, void **);
    void *iallgather, *ireducescatter, *iflush;
    int (*test)(void *, int *, int *);
    int (*closeColl)(void *);
    int (*closeListen)(void *);
} CollNet;

/* An all-reduce by the collective functions that NCCL has chosen. */
static const char *reduce(char *comm, int (*gather)(void *, void *, int), int rank, int ranks) {
    enum { INT32 = 2, SUM = 0, HOST = 1, COUNT = 100000 };
    const CollNet *coll = *(const CollNet **)(comm + COLL_NET);
    void *context = *(void **)(comm + COLL_CONTEXT), *listening, *group, *mh, *request, **handles = calloc((size_t)ranks, sizeof *handles);
    if (!coll || !context) die("rank %d: NCCL has chosen no collective functions", rank);
    char *all = calloc((size_t)ranks, 128);
    int supported = 0, done = 0;
    must(coll->reduceSupport(INT32, SUM, &supported));
    if (!supported) die("rank %d: no sums of integers", rank);
    must(coll->listen(context, 0, all + 128 * rank, &listening));
    must(gather(*(void **)(comm + BOOTSTRAP), all, 128));
    for (int r = 0; r < ranks; r++) handles[r] = all + 128 * r;
    must(coll->connect(handles, ranks, rank, listening, &group));
    must(coll->closeListen(listening));
    int32_t *data = calloc(COUNT, sizeof *data);
    for (int i = 0; i < COUNT; i++) data[i] = i * (rank + 1);
    must(coll->regMr(group, data, COUNT * sizeof *data, HOST, &mh));
    must(coll->iallreduce(group, data, data, COUNT, INT32, SUM, mh, mh, &request));
    if (!request) die("rank %d: no request", rank);
    while (!done) must(coll->test(request, &done, NULL));
    for (int i = 0; i < COUNT; i++)
        if (data[i] != i * (ranks * (ranks + 1) / 2)) die("rank %d: sum %d is %d", rank, i, data[i]);
    must(coll->deregMr(group, mh));
    must(coll->closeColl(group));
    free(data);
    free(all);
    free(handles);
    return coll->name;
}

static void run(int rank, int ranks, int round, int in, int out) {
    int version;
    Dl_info info;
    void *library = dlopen(path, RTLD_NOW);
    if (!library) die("%s", dlerror());
    int (*get_version)(int *) = (int (*)(int *))dlsym(library, "ncclGetVersion");
    int (*unique)(Id *) = (int (*)(Id *))dlsym(library, "ncclGetUniqueId");
    if (!get_version || !unique || !dladdr((void *)get_version, &info)) die("no NCCL in %s", path);
    base = info.dli_fbase;
    must(get_version(&version));
    if (version != VERSION) die("NCCL is %d, and this program knows %d", version, VERSION);
    int (*choose)(void *) = (int (*)(void *))internal("_Z11ncclNetInitP8ncclComm");
    int (*finalize)(void *) = (int (*)(void *))internal("_Z15ncclNetFinalizeP8ncclComm");
    int (*start)(int, void *, void *, void *) = (int (*)(int, void *, void *, void *))internal("_Z13bootstrapInitiPvP8ncclCommS1_");
    int (*gather)(void *, void *, int) = (int (*)(void *, void *, int))internal("_Z18bootstrapAllGatherPvS_i");
    int (*end)(void *) = (int (*)(void *))internal("_Z14bootstrapClosePv");
    /* All ranks initialise; rank 0's number counts. Its root thread introduces the ranks. */
    Id id;
    must(unique(&id));
    for (int i = 1; rank == 0 && i < ranks; i++) if (write(out, &id, sizeof id) != sizeof id) die("cannot tell the number");
    if (rank && read(in, &id, sizeof id) != sizeof id) die("cannot learn the number");
    char *comm = calloc(1, COMM_BYTES);
    uint32_t *abort_flag = calloc(1, 64);
    *(int *)(comm + RANK) = rank;
    *(int *)(comm + RANKS) = ranks;
    *(void **)(comm + SHARED) = calloc(1, 1 << 20);
    *(void **)(comm + ABORT) = abort_flag;
    must(choose(comm));
    const char *name = **(const char ***)(comm + NET);
    must(start(1, &id, comm, NULL));
    void *bootstrap = *(void **)(comm + BOOTSTRAP);
    static const int sizes[] = { 4, 24, 25, 1000, 65536, 1 << 20, 3000001, 1 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t size = (size_t)sizes[s];
        unsigned char *all = malloc(size * (size_t)ranks);
        for (size_t i = 0; i < size; i++) all[(size_t)rank * size + i] = byte(rank, i);
        must(gather(bootstrap, all, sizes[s]));
        for (int r = 0; r < ranks; r++)
            for (size_t i = 0; i < size; i++)
                if (all[(size_t)r * size + i] != byte(r, i)) die("rank %d: byte %zu of rank %d is wrong", rank, i, r);
        free(all);
    }
    const char *collective = reduce(comm, gather, rank, ranks);
    must(end(bootstrap));
    must(finalize(comm));
    if (rank == 0) printf("round %d: %d ranks gathered over %s, and reduced by %s\n", round, ranks, name, collective);
    fflush(stdout);
}

int main(int argc, char **argv) {
    int ranks = argc > 2 ? atoi(argv[2]) : 0, ends[2][2], failed = 0;
    if (ranks < 2) die("nccl LIBRARY RANKS");
    path = argv[1];
    /* A pipe for each round: the second one loads the plug-in again. */
    if (pipe(ends[0]) || pipe(ends[1])) die("no pipe");
    for (int rank = 0; rank < ranks; rank++) {
        pid_t child = fork();
        if (child < 0) die("cannot fork");
        if (child) continue;
        alarm(60);
        for (int round = 0; round < 2; round++) run(rank, ranks, round, ends[round][0], ends[round][1]);
        _exit(0);
    }
    for (int status; wait(&status) > 0;) failed |= !WIFEXITED(status) || WEXITSTATUS(status);
    return failed;
}
