/* Messages of the library below that are under way while ranks wait in collectives, and communicators that come and go. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define LONG (4 << 20)

int main(int argc, char **argv) {
    int rank, size, ok = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char *bytes = calloc(LONG, 1);
    for (int round = 0; round < 5; round++) {
        MPI_Request request = MPI_REQUEST_NULL;
        /* Rank 0 waits in the all-reduce; rank 1 comes to it only when the message has arrived. */
        if (rank == 0) MPI_Isend(bytes, LONG, MPI_BYTE, 1, round, MPI_COMM_WORLD, &request);
        if (rank == 1) MPI_Recv(bytes, LONG, MPI_BYTE, MPI_ANY_SOURCE, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        int one = 1, all = 0;
        MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        ok &= all == size;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    for (int round = 0; round < 80; round++) {
        MPI_Comm part;
        MPI_Comm_split(MPI_COMM_WORLD, (rank + round) % 2, rank, &part);
        int members, all = 0, one = 1;
        MPI_Comm_size(part, &members);
        MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, part);
        ok &= all == members;
        MPI_Comm_free(&part);
    }
    /* Many at once. */
    MPI_Comm many[40];
    for (int i = 0; i < 40; i++) MPI_Comm_dup(MPI_COMM_WORLD, &many[i]);
    for (int i = 0; i < 40; i++) {
        int own = rank + i, all = 0;
        MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MAX, many[i]);
        ok &= all == size - 1 + i;
    }
    for (int i = 0; i < 40; i++) MPI_Comm_free(&many[i]);
    /* A send buffer that cannot be written, and memory that is freed and comes back. */
    static const double fixed[20000] = {1, 2, 3};
    double *sum = malloc(sizeof fixed);
    MPI_Allreduce(fixed, sum, 20000, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    ok &= sum[2] == 3.0 * size && sum[19999] == 0;
    free(sum);
    for (int i = 1; i < 40; i++) {
        int n = i * 37000;
        int *x = malloc((size_t)n * sizeof(int));
        for (int k = 0; k < n; k++) x[k] = k + rank;
        MPI_Allreduce(MPI_IN_PLACE, x + i, n - i, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        ok &= x[n - 1] == n - 1 + size - 1 && x[i] == i + size - 1 && x[0] == rank;
        free(x);
    }
    if (rank == 0) printf("%s\n", ok ? "right" : "wrong");
    free(bytes);
    MPI_Finalize();
    return !ok;
}
