/* The C API's side of overhead.py: microseconds of an all-reduce in place, or of this thread's CPU in it. */
#include <ringbell.h>
#include <time.h>

double overhead_all_reduce(rb_communicator *comm, float *x, uint64_t count, int calls, int cpu) {
    clockid_t clock = cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    struct timespec start, end;
    clock_gettime(clock, &start);
    for (int i = 0; i < calls; i++)
        if (rb_all_reduce(x, x, count, RB_DTYPE_F32, RB_REDOP_SUM, comm, NULL) != 0) return -1;
    clock_gettime(clock, &end);
    return ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / 1e3 / calls;
}
