/* All-reduce f32 sum with any MPI: the peer that `ringbell perf all-reduce` is measured against.
 *
 * allreduce MIN_BYTES MAX_BYTES FACTOR ROUNDS
 *
 * For every size, out of place and in place: checks every element of a call with data that differs
 * from rank to rank, warms up, then times ROUNDS batches of back-to-back calls on the same buffers, as
 * nccl-tests does (the slowest rank's time counts), and prints on rank 0 one line for each: a row of
 * the schema that `ringbell perf --json` keeps.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Small integers, so that every order of summation gives the same bits. */
static float value(size_t i, int rank) { return (float)((i * 7 + (size_t)rank * 13) % 64); }

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: allreduce MIN_BYTES MAX_BYTES FACTOR ROUNDS\n");
        return 2;
    }
    size_t min = strtoull(argv[1], 0, 10), max = strtoull(argv[2], 0, 10), factor = strtoull(argv[3], 0, 10);
    int rounds = atoi(argv[4]), rank, ranks;
    if (factor < 2 || min < sizeof(float) || rounds < 1) {
        fprintf(stderr, "allreduce: FACTOR is at least 2, MIN_BYTES at least 4, ROUNDS at least 1\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    float *src = malloc(max), *dst = malloc(max);
    if (!src || !dst) {
        fprintf(stderr, "allreduce: no memory for two buffers of %zu bytes\n", max);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return 1;
    }
    memset(src, 0, max);
    memset(dst, 0, max);
    for (size_t bytes = min; bytes <= max; bytes *= factor) {
        size_t n = bytes / sizeof(float);
        /* A batch is long against the clock and the barrier before it, and short against a time slice. */
        int calls = bytes <= (64 << 10) ? 100 : bytes <= (1 << 20) ? 10 : bytes <= (16 << 20) ? 2 : 1;
        double *took = malloc(sizeof(double) * (size_t)rounds);
        for (int in_place = 0; in_place < 2; in_place++) {
            float *to = in_place ? src : dst;
            const void *from = in_place ? MPI_IN_PLACE : src;
            for (size_t i = 0; i < n; i++) src[i] = value(i, rank);
            MPI_Allreduce(from, to, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            long wrong = 0, all_wrong = 0;
            for (size_t i = 0; i < n; i++) {
                float want = 0;
                for (int r = 0; r < ranks; r++) want += value(i, r);
                wrong += to[i] != want;
            }
            MPI_Allreduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
            /* From here on the numbers may grow without bound in place: zeros stay zeros. */
            memset(src, 0, bytes);
            for (int i = 0; i < 2 * calls; i++)
                MPI_Allreduce(from, to, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            for (int i = 0; i < rounds; i++) {
                MPI_Barrier(MPI_COMM_WORLD);
                double start = MPI_Wtime();
                for (int c = 0; c < calls; c++)
                    MPI_Allreduce(from, to, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
                took[i] = (MPI_Wtime() - start) * 1e6 / calls;
            }
            MPI_Allreduce(MPI_IN_PLACE, took, rounds, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            qsort(took, (size_t)rounds, sizeof(double), by_value);
            if (rank == 0) {
                double us = took[rounds / 2], sum = 0, gbs = (double)bytes / us / 1e3;
                for (int i = 0; i < rounds; i++) sum += took[i];
                printf("{\"series\":\"%s\",\"size_bytes\":%zu,\"count\":%d,\"time_us\":%.3f,\"p50_us\":%.3f,"
                       "\"p99_us\":%.3f,\"algbw_gbs\":%.6f,\"busbw_gbs\":%.6f,\"wrong\":%ld}\n",
                       in_place ? "in place" : "out of place", bytes, rounds * calls, sum / rounds, us,
                       took[rounds - 1 - rounds / 100], gbs, gbs * 2 * (ranks - 1) / ranks, all_wrong);
                fflush(stdout);
            }
        }
        free(took);
    }
    MPI_Finalize();
    return 0;
}
