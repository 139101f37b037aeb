/* A rank is killed inside a loop of all-reduces; the others print the error that they get. With an argument, errors end the program, as MPI has it. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static float from[1 << 18], to[1 << 18];

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 2) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 1000; i++) {
        if (rank == 1 && i == 30) raise(SIGKILL);
        int code = MPI_Allreduce(from, to, 1 << 18, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (code != MPI_SUCCESS) {
            char text[MPI_MAX_ERROR_STRING];
            int length;
            MPI_Error_string(code, text, &length);
            printf("rank %d: %s\n", rank, text);
            fflush(stdout);
            _exit(0);
        }
    }
    printf("rank %d: no error\n", rank);
    return 1;
}
