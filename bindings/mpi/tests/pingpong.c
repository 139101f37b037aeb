/* Messages between two ranks: time of one way, and rate with several under way, by bytes. Each message has its number at both ends, which the receiver
 * checks; contents are compared at the end. Prints lines of bytes, microseconds and GB/s. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of MPI_STATUSES_IGNORE in the header of MPICH. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"

#define MOST (4 << 20)
#define SLOTS 8
#define BATCHES 7

static int rank;
static unsigned char *out, *in;

static void stamp(unsigned char *at, size_t bytes, uint64_t number) {
    memcpy(at, &number, 8);
    memcpy(at + bytes - 8, &number, 8);
}

static void check(const unsigned char *at, size_t bytes, uint64_t number) {
    if (memcmp(at, &number, 8) || memcmp(at + bytes - 8, &number, 8)) {
        fprintf(stderr, "rank %d: a message of %zu bytes is wrong\n", rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times) {
    /* The first batch touches the memory. */
    qsort(times + 1, BATCHES - 1, sizeof *times, by_size);
    return times[1 + (BATCHES - 1) / 2];
}

static double there_and_back(size_t bytes, int times) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int i = 0; i < 2 * times; i++) {
        if (i % 2 == rank) {
            stamp(out, bytes, (uint64_t)i);
            MPI_Send(out, (int)bytes, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD);
        } else {
            MPI_Recv(in, (int)bytes, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(in, bytes, (uint64_t)i);
        }
    }
    return (MPI_Wtime() - begin) / times / 2;
}

static double one_way(size_t bytes, int times) {
    MPI_Request requests[SLOTS];
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int i = 0; i < times; i++) {
        for (int k = 0; k < SLOTS; k++) {
            size_t at = (size_t)k * MOST;
            if (rank) {
                MPI_Irecv(in + at, (int)bytes, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &requests[k]);
            } else {
                stamp(out + at, bytes, (uint64_t)(i * SLOTS + k));
                MPI_Isend(out + at, (int)bytes, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[k]);
            }
        }
        MPI_Waitall(SLOTS, requests, MPI_STATUSES_IGNORE);
        for (int k = 0; rank && k < SLOTS; k++) check(in + (size_t)k * MOST, bytes, (uint64_t)(i * SLOTS + k));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return (MPI_Wtime() - begin) / times / SLOTS;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    out = malloc((size_t)SLOTS * MOST);
    in = calloc(SLOTS, MOST);
    static const size_t sizes[] = {8, 1024, 16 << 10, 64 << 10, 256 << 10, 1 << 20, MOST};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t bytes = sizes[s];
        for (size_t i = 0; i < (size_t)SLOTS * MOST; i++) out[i] = (unsigned char)(i % 251);
        double ways[BATCHES], rates[BATCHES];
        int times = bytes < 65536 ? 300 : bytes < 1 << 20 ? 60 : 12;
        for (int b = 0; b < BATCHES; b++) ways[b] = there_and_back(bytes, times);
        for (int b = 0; b < BATCHES; b++) rates[b] = one_way(bytes, times / 4);
        for (int k = 0; rank && k < SLOTS; k++) {
            size_t at = (size_t)k * MOST;
            if (bytes > 16 && memcmp(out + at + 8, in + at + 8, bytes - 16)) MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (rank == 0) printf("%zu %.3f %.4f\n", bytes, median(ways) * 1e6, (double)bytes / median(rates) * 1e-9);
    }
    free(out);
    free(in);
    MPI_Finalize();
    return 0;
}
