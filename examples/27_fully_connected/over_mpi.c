/* What the example calls of MPI, without the types of one MPI library: each has handles of its own. */
#include <mpi.h>
#include <string.h>

int over_mpi_start(int *rank, int *ranks) {
    int failed = MPI_Init(NULL, NULL);
    if (!failed) failed = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    return failed ? failed : MPI_Comm_size(MPI_COMM_WORLD, ranks);
}

int over_mpi_barrier(void) { return MPI_Barrier(MPI_COMM_WORLD); }

/* The sum of every rank's elements, to rank 0. */
int over_mpi_reduce(const float *from, float *to, int count) {
    return MPI_Reduce(from, to, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

int over_mpi_end(void) { return MPI_Finalize(); }
