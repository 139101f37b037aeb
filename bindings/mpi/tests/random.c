/* Random collectives: random communicators, counts, types, operations, roots, memory (also of a GPU: device.h), in place or not, derived types on some
 * ranks.
 * Prints a hash of everything that each rank received: it is the same with and without Ringbell. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

static uint64_t state, hash = 1469598103934665603u;

/* The same numbers on all ranks. */
static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void mix(const void *at, size_t bytes) {
    const unsigned char *b = at;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ b[i]) * 1099511628211u;
}

typedef struct {
    MPI_Datatype type;
    int size;
    int reduced; /* 0: only moved, 1: all operations, 2: sums */
    char kind;   /* i: integer, f: float, d: double */
} Type;

static void fill(void *at, const Type *t, size_t count, int rank) {
    for (size_t i = 0; i < count; i++) {
        /* Small values, whose sums and products are exact. */
        int v = (int)((i * 7 + (size_t)rank * 3) % 3) + 1;
        if (t->kind == 'f') {
            for (int k = 0; k < t->size / 4; k++) ((float *)at)[i * (size_t)(t->size / 4) + (size_t)k] = (float)v;
        } else if (t->kind == 'd') {
            for (int k = 0; k < t->size / 8; k++) ((double *)at)[i * (size_t)(t->size / 8) + (size_t)k] = v;
        } else {
            unsigned char *b = (unsigned char *)at + i * (size_t)t->size;
            memset(b, 0, (size_t)t->size);
            b[0] = (unsigned char)v;
        }
    }
}

static void user_op(void *in, void *io, int *len, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *len; i++) ((int *)io)[i] = ((int *)io)[i] * 2 + ((int *)in)[i];
}

static void *buffer(size_t bytes, int exported) {
    void *at = NULL;
    if (exported) MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, &at);
    else at = malloc(bytes);
    memset(at, 0x55, bytes);
    return at;
}

static void release(void *at, int exported) {
    if (exported) MPI_Free_mem(at);
    else free(at);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    uint64_t seed = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) * 1000003;
    int rounds = argc > 2 ? atoi(argv[2]) : 100;
    uint32_t longest = argc > 3 ? (uint32_t)atoi(argv[3]) : 3000;
    int world_rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    const Type types[] = {
        {MPI_INT, 4, 1, 'i'},           {MPI_FLOAT, 4, 1, 'f'},       {MPI_DOUBLE, 8, 1, 'd'},         {MPI_LONG, 8, 1, 'i'},
        {MPI_UNSIGNED, 4, 1, 'i'},      {MPI_UNSIGNED_LONG, 8, 1, 'i'}, {MPI_SIGNED_CHAR, 1, 1, 'i'},  {MPI_UNSIGNED_CHAR, 1, 1, 'i'},
        {MPI_UINT64_T, 8, 1, 'i'},      {MPI_INT32_T, 4, 1, 'i'},     {MPI_SHORT, 2, 1, 'i'},          {MPI_BYTE, 1, 0, 'i'},
        {MPI_CHAR, 1, 0, 'i'},          {MPI_C_BOOL, 1, 0, 'i'},      {MPI_C_FLOAT_COMPLEX, 8, 2, 'f'}, {MPI_C_DOUBLE_COMPLEX, 16, 2, 'd'},
        {MPI_UNSIGNED_SHORT, 2, 1, 'i'}, {MPI_LONG_LONG, 8, 1, 'i'},   {MPI_2INT, 8, 0, 'i'},        {MPI_AINT, 8, 1, 'i'},
    };
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
    MPI_Op own_op;
    MPI_Op_create(user_op, 0, &own_op);
    int gpu = device_open();
    for (int round = 0; round < rounds; round++) {
        MPI_Comm comm = MPI_COMM_WORLD;
        state = seed + (uint64_t)round;
        uint32_t which = draw(4);
        if (which == 1) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        if (which == 2) MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &comm);
        int rank, size;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        for (int call = 0; call < 6; call++) {
            /* Groups of different sizes draw different numbers of times. */
            state = (seed + (uint64_t)round) * 131 + (uint64_t)call;
            draw(2);
            const Type *t = &types[draw(sizeof types / sizeof *types)];
            size_t count = draw(8) == 0 ? 0 : 1 + draw(draw(3) == 0 ? longest : 40);
            size_t one = count * (size_t)t->size, all = one * (size_t)size;
            int root = (int)draw((uint32_t)size), in_place = (int)draw(2), sent = (int)draw(2), got = (int)draw(2);
            uint32_t kind = draw(11);
            MPI_Op op = t->reduced == 1 ? ops[draw(t->kind == 'i' ? 7 : 4)] : MPI_SUM;
            if (!t->reduced) kind = draw(7);
            char *from = buffer(all + 64, sent), *to = buffer(all + 64, got);
            fill(from, t, count * (size_t)size, rank);
            fill(to, t, count * (size_t)size, rank);
            int n = (int)count;
            /* Every second rank gives the same bytes as elements of a derived type. */
            MPI_Datatype sent_type = t->type;
            int sent_count = n;
            if (draw(3) == 0 && rank % 2 && count % 2 == 0 && count > 0) {
                MPI_Type_contiguous(2, t->type, &sent_type);
                MPI_Type_commit(&sent_type);
                sent_count = n / 2;
            }
            /* Calls that are handed on need memory of the host: the library below knows no other. Other ranks decide otherwise. */
            int taken = size > 1 && count > 0 && kind != 6 && kind != 10;
            if (kind > 6) taken = taken && (kind != 7 || t->type != MPI_INT);
            int on_gpu = gpu && taken ? (round + call + world_rank) % 4 : 0;
            char *src = on_gpu & 1 ? device_copy(from, all + 64) : from, *dst = on_gpu & 2 ? device_copy(to, all + 64) : to;
            size_t undefined = all;
            switch (kind) {
            case 0: MPI_Barrier(comm); break;
            case 1: MPI_Bcast(dst, sent_count, sent_type, root, comm); break;
            case 2: {
                if (in_place) MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, dst, n, t->type, comm);
                else MPI_Allgather(src, sent_count, sent_type, dst, n, t->type, comm);
                break;
            }
            case 3: {
                if (in_place && rank == root) MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, dst, n, t->type, root, comm);
                else MPI_Gather(src, sent_count, sent_type, rank == root ? dst : NULL, n, t->type, root, comm);
                break;
            }
            case 4: {
                if (in_place && rank == root) MPI_Scatter(src, n, t->type, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, comm);
                else MPI_Scatter(rank == root ? src : NULL, n, t->type, dst, sent_count, sent_type, root, comm);
                break;
            }
            case 5: {
                if (in_place) MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, dst, n, t->type, comm);
                else MPI_Alltoall(src, sent_count, sent_type, dst, n, t->type, comm);
                break;
            }
            case 6: {
                int *counts = calloc((size_t)size, sizeof(int)), *places = calloc((size_t)size, sizeof(int));
                int at = 0;
                for (int r = 0; r < size; r++) {
                    counts[r] = n ? (int)draw((uint32_t)n) : 0;
                    places[r] = at;
                    at += counts[r] + (at + counts[r] < n ? 1 : 0);
                }
                if (in_place) MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, dst, counts, places, t->type, comm);
                else MPI_Allgatherv(src, counts[rank], t->type, dst, counts, places, t->type, comm);
                free(counts);
                free(places);
                break;
            }
            case 7: {
                if (draw(8) == 0 && t->type == MPI_INT) op = own_op;
                MPI_Allreduce(in_place ? MPI_IN_PLACE : src, dst, n, t->type, op, comm);
                break;
            }
            case 8: {
                /* MPICH 4.0 alone ends with a fault for other roots. */
                if (in_place && rank == root && root == 0) MPI_Reduce(MPI_IN_PLACE, dst, n, t->type, op, root, comm);
                else MPI_Reduce(src, rank == root ? dst : NULL, n, t->type, op, root, comm);
                break;
            }
            case 9: MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : src, dst, n, t->type, op, comm); break;
            case 10: {
                int *counts = calloc((size_t)size, sizeof(int));
                int alike = (int)draw(2);
                for (int r = 0; r < size; r++) counts[r] = alike ? n : (int)draw((uint32_t)n + 1);
                int own = counts[rank];
                MPI_Reduce_scatter(in_place ? MPI_IN_PLACE : src, dst, counts, t->type, op, comm);
                /* In place, what lies behind the result is undefined. */
                if (in_place) undefined = (size_t)own * (size_t)t->size;
                free(counts);
                break;
            }
            }
            if (on_gpu & 1) device_return(from, src, all + 64);
            if (on_gpu & 2) device_return(to, dst, all + 64);
            if (undefined < all) memset(to + undefined, 0, all - undefined);
            if (kind == 9 && in_place) memset(to + one, 0, all - one);
            mix(from, all);
            mix(to, all);
            for (int i = 0; i < 64; i++)
                if ((unsigned char)to[all + (size_t)i] != 0x55 || (unsigned char)from[all + (size_t)i] != 0x55) {
                    printf("rank %d: call %u wrote behind a buffer\n", world_rank, kind);
                    MPI_Abort(MPI_COMM_WORLD, 1);
                }
            if (sent_type != t->type) MPI_Type_free(&sent_type);
            release(from, sent);
            release(to, got);
        }
        if (comm != MPI_COMM_WORLD) MPI_Comm_free(&comm);
    }
    MPI_Op_free(&own_op);
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    uint64_t *hashes = calloc((size_t)size, sizeof(uint64_t));
    MPI_Gather(&hash, 1, MPI_UINT64_T, hashes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    for (int r = 0; r < size && world_rank == 0; r++) printf("%d %016llx\n", r, (unsigned long long)hashes[r]);
    free(hashes);
    MPI_Finalize();
    return 0;
}
