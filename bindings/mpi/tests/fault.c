/* A rank is killed inside a loop of all-reduces, or of messages to the others with a second argument, on two communicators in turn; each other writes the error that it gets to the file rank-N of the folder in the first argument.
 * "requests" receives by MPI_Irecv and MPI_Wait, on one communicator whose errors are returned, while those of MPI_COMM_WORLD end the program.
 * Without an argument, errors end the program, as MPI has it. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static float from[1 << 18], to[1 << 18];

static void tell(const char *folder, int rank, const char *text) {
    char path[4096], part[4096];
    snprintf(path, sizeof path, "%s/rank-%d", folder, rank);
    snprintf(part, sizeof part, "%s/part-%d", folder, rank);
    FILE *file = fopen(part, "w");
    /* The file is there only as a whole. */
    if (!file || fputs(text, file) < 0 || fclose(file) || rename(part, path)) _exit(2);
}

/* Until the other survivor has its error too: a rank that ends before is one more that has ended. At most 20 s. */
static void wait_for(const char *folder, int rank) {
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-%d", folder, rank);
    for (int i = 0; i < 2000 && access(path, F_OK); i++) usleep(10000);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc > 1) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    /* With the error handler. */
    MPI_Comm comm[] = {MPI_COMM_WORLD, MPI_COMM_WORLD};
    int requests = argc > 2 && !strcmp(argv[2], "requests");
    if (argc > 2) MPI_Comm_dup(MPI_COMM_WORLD, &comm[1]);
    if (requests) {
        comm[0] = comm[1];
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    }
    for (int i = 0; i < 1000; i++) {
        if (rank == 1 && i == 30) raise(SIGKILL);
        int code = MPI_SUCCESS;
        if (argc < 3) code = MPI_Allreduce(from, to, 1 << 18, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else if (rank != 1 && requests) {
            MPI_Request request;
            MPI_Irecv(to, 1 << 18, MPI_FLOAT, 1, 0, comm[0], &request);
            code = MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else if (rank != 1) code = MPI_Recv(to, 1 << 18, MPI_FLOAT, i % 2 ? 1 : MPI_ANY_SOURCE, 0, comm[i / 2 % 2], MPI_STATUS_IGNORE);
        else for (int r = 0; r < 3; r += 2) MPI_Send(from, i % 2 ? 1 << 18 : 100, MPI_FLOAT, r, 0, comm[i / 2 % 2]);
        if (code != MPI_SUCCESS) {
            char text[MPI_MAX_ERROR_STRING];
            int length;
            MPI_Error_string(code, text, &length);
            if (argc > 1) {
                tell(argv[1], rank, text);
                wait_for(argv[1], 2 - rank);
            }
            _exit(0);
        }
    }
    if (argc > 1) tell(argv[1], rank, "no error");
    return 1;
}
