/* Errors of requests go to the error handler of their communicator: one returns them, one has a handler of its own, and that of MPI_COMM_WORLD, which would
 * end the program, is never asked. Rank 0 sends more than rank 1 has room for, and rank 1 checks what each call gives (MPI 4.1, sections 3.7.5 and 9.3). */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { ROOM = 10, MOST = 100000 };

static int from[MOST], to[3][ROOM], calls, strange, wrong;
static MPI_Comm handled;

static const char *name_of(int code) {
    int class;
    if (code == MPI_SUCCESS) return "success";
    MPI_Error_class(code, &class);
    return class == MPI_ERR_TRUNCATE ? "truncated" : class == MPI_ERR_IN_STATUS ? "in status" : "another error";
}

static void on_error(MPI_Comm *comm, int *code, ...) {
    int class, same;
    MPI_Error_class(*code, &class);
    MPI_Comm_compare(*comm, handled, &same);
    calls++;
    strange += class != MPI_ERR_TRUNCATE || same != MPI_IDENT;
}

static void check(const char *call, int code, const char *expected, int asked) {
    if (strcmp(name_of(code), expected) || calls != asked || strange) {
        printf("%s: %s, not %s; the handler was asked %d times, not %d, and %d times strangely\n", call, name_of(code), expected, calls, asked, strange);
        wrong++;
    }
    calls = strange = 0;
}

/* Calls that end one request. */
static void one(MPI_Comm comm, int rank, int count) {
    static const char *const names[] = {"wait", "test", "waitany", "testany", "persistent", "matched"};
    for (int way = 0; way < 6; way++) {
        if (rank == 0) MPI_Send(from, count, MPI_INT, 1, way, comm);
        if (rank != 1) continue;
        MPI_Request request;
        MPI_Status status;
        MPI_Message message;
        int code, flag = 0, index;
        if (way == 4) {
            MPI_Recv_init(to[0], ROOM, MPI_INT, 0, way, comm, &request);
            MPI_Start(&request);
        } else if (way == 5) {
            MPI_Mprobe(0, way, comm, &message, MPI_STATUS_IGNORE);
            MPI_Imrecv(to[0], ROOM, MPI_INT, &message, &request);
        } else {
            MPI_Irecv(to[0], ROOM, MPI_INT, 0, way, comm, &request);
        }
        switch (way) {
        case 1: do code = MPI_Test(&request, &flag, &status); while (code == MPI_SUCCESS && !flag); break;
        case 2: code = MPI_Waitany(1, &request, &index, &status); break;
        case 3: do code = MPI_Testany(1, &request, &index, &flag, MPI_STATUS_IGNORE); while (code == MPI_SUCCESS && !flag); break;
        default: code = MPI_Wait(&request, &status);
        }
        check(names[way], code, "truncated", comm == handled);
        if (way == 4) MPI_Request_free(&request);
    }
}

/* Calls that end several requests, of which the second gets too much. */
static void many(const MPI_Comm comm[3], int rank, int count) {
    static const char *const names[] = {"waitall", "testall", "waitsome", "testsome"};
    for (int way = 0; way < 4; way++) {
        MPI_Request requests[3];
        MPI_Status statuses[3];
        int errors[3], indices[3], code = MPI_SUCCESS, flag = 0, ended = 0;
        for (int i = 0; i < 3; i++) {
            if (rank == 0) MPI_Send(from, i == 1 ? count : ROOM, MPI_INT, 1, i, comm[i]);
            if (rank == 1) MPI_Irecv(to[i], ROOM, MPI_INT, 0, i, comm[i], &requests[i]);
        }
        if (rank != 1) continue;
        switch (way) {
        case 0: code = MPI_Waitall(3, requests, statuses); break;
        case 1: do code = MPI_Testall(3, requests, &flag, statuses); while (code == MPI_SUCCESS && !flag); break;
        }
        for (int i = 0; i < 3 && way < 2; i++) errors[i] = code == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR;
        for (int done = 0; way > 1 && done < 3; done += ended) {
            int some = way == 2 ? MPI_Waitsome(3, requests, &ended, indices, statuses) : MPI_Testsome(3, requests, &ended, indices, statuses);
            for (int i = 0; i < ended; i++) errors[indices[i]] = some == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR;
            if (some != MPI_SUCCESS) code = some;
        }
        check(names[way], code, "in status", comm[1] == handled);
        for (int i = 0; i < 3; i++) {
            const char *expected = i == 1 ? "truncated" : "success";
            if (!strcmp(name_of(errors[i]), expected)) continue;
            printf("%s: request %d has %s, not %s\n", names[way], i, name_of(errors[i]), expected);
            wrong++;
        }
    }
}

/* Errors on two communicators at once: each is told of its own. */
static void both(MPI_Comm returning, int rank, int count) {
    MPI_Comm comm[] = {returning, handled, handled};
    MPI_Request requests[3];
    MPI_Status statuses[3];
    for (int i = 0; i < 3; i++) {
        if (rank == 0) MPI_Send(from, count, MPI_INT, 1, i, comm[i]);
        if (rank == 1) MPI_Irecv(to[i], ROOM, MPI_INT, 0, i, comm[i], &requests[i]);
    }
    if (rank != 1) return;
    check("both", MPI_Waitall(3, requests, statuses), "in status", 1);
    for (int i = 0; i < 3; i++) {
        calls = 0;
        check("each of both", statuses[i].MPI_ERROR, "truncated", 0);
    }
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm returning, freed;
    MPI_Errhandler handler;
    MPI_Comm_dup(MPI_COMM_WORLD, &returning);
    MPI_Comm_dup(MPI_COMM_WORLD, &handled);
    MPI_Comm_set_errhandler(returning, MPI_ERRORS_RETURN);
    MPI_Comm_create_errhandler(on_error, &handler);
    MPI_Comm_set_errhandler(handled, handler);
    /* A short message, and one that stays with its sender until there is a receive. */
    for (int count = 2 * ROOM; count <= MOST; count += MOST - 2 * ROOM) {
        one(returning, rank, count);
        one(handled, rank, count);
        many((MPI_Comm[]){returning, returning, returning}, rank, count);
        many((MPI_Comm[]){MPI_COMM_WORLD, handled, returning}, rank, count);
        many((MPI_Comm[]){handled, returning, handled}, rank, count);
        both(returning, rank, count);
    }
    /* Of a communicator that was freed meanwhile. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(returning, &freed);
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 1) MPI_Irecv(to[0], ROOM, MPI_INT, 0, 0, freed, &request);
    else if (rank == 0) MPI_Isend(from, 2 * ROOM, MPI_INT, 1, 0, freed, &request);
    MPI_Comm_free(&freed);
    int code = MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (rank == 1) check("freed", code, "truncated", 0);
    if (rank == 1 && !wrong) puts("all errors as they should be");
    MPI_Errhandler_free(&handler);
    MPI_Comm_free(&returning);
    MPI_Comm_free(&handled);
    MPI_Finalize();
    return wrong != 0;
}
