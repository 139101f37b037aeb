/* Ranks that wait inside the library below, where no call of theirs moves anything of Ringbell, while others need answers of their NICs: most ranks have a
 * communicator of their own for one broadcast, and who is done waits in the next MPI_Comm_split. It prints the sum of what rank 0 received. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size, rounds = argc > 1 ? atoi(argv[1]) : 100;
    long sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < rounds; i++) {
        int ranks;
        MPI_Comm comm;
        MPI_Comm_split(MPI_COMM_WORLD, rank == size - 1, rank, &comm);
        MPI_Comm_size(comm, &ranks);
        long value = rank == ranks - 1 ? 7 * i : 0;
        MPI_Bcast(&value, 1, MPI_LONG, ranks - 1, comm);
        sum += value;
        MPI_Comm_free(&comm);
    }
    if (rank == 0) printf("%ld\n", sum);
    MPI_Finalize();
}
