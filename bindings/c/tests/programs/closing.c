/* A NIC is closed while kernels of a module wait: they end, by a status, and what they touch is there until then.
 * usage: closing DIRECTORY MODULE ; MODULE is waiting.ptx. Run by tests/programs.rs. */
#include <string.h>
#include <unistd.h>

#include "nic.h"

#define BLOCKS 4

/* Registered with the NIC, so that kernels write to it. The program has it before and after. */
static struct {
    unsigned waiting, ended;
    uint32_t statuses[2][BLOCKS][2];
} seen;

/* At most 20 s. */
static int reaches(const unsigned *count, unsigned wanted) {
    int i;
    for (i = 0; i < 20000; i++) {
        if (__atomic_load_n(count, __ATOMIC_ACQUIRE) == wanted) return 1;
        usleep(1000);
    }
    return 0;
}

static void close_under_kernels(const char *directory, const char *module, uint32_t number) {
    static const uint32_t grid[3] = {BLOCKS, 1, 1}, block[3] = {1, 1, 1};
    rb_nic *nic = open_nic(directory, 9, number);
    rb_stream *stream = NULL;
    rb_run *run = NULL;
    rb_queue queue;
    void *memory = NULL;
    uint32_t ports[2] = {7000, 8000};
    uint32_t *to[2] = {seen.statuses[0][0], seen.statuses[1][0]};
    unsigned *counts[2] = {&seen.waiting, &seen.ended};
    rb_arg args[6];
    int i, b;
    memset(&seen, 0, sizeof seen);
    CHECK(rb_host_register(nic, &seen, sizeof seen) == 0);
    CHECK(rb_module_load(nic, module) == 0 && rb_queue_create(nic, &queue) == 0);
    CHECK(rb_mem_alloc(nic, 4096, &memory) == 0 && rb_stream_create(nic, &stream) == 0);
    for (i = 0; i < 2; i++) {
        args[0].value = &queue, args[0].bytes = sizeof queue;
        args[1].value = &ports[i], args[1].bytes = 4;
        args[2].value = &memory, args[2].bytes = 8;
        args[3].value = &counts[0], args[3].bytes = 8;
        args[4].value = &counts[1], args[4].bytes = 8;
        args[5].value = &to[i], args[5].bytes = 8;
        CHECK((i ? rb_stream_launch(stream, "wait_for_peer", grid, block, args, 6)
                 : rb_launch(nic, "wait_for_peer", grid, block, args, 6, &run)) == 0);
    }
    CHECK(reaches(&seen.waiting, 2 * BLOCKS));
    CHECK(rb_nic_close(nic) == 0);
    FAILS(rb_nic_close(nic), RB_ERR_INVALID_ARGUMENT, "no open NIC");
    /* Long before the kernels' own time-out. */
    CHECK(rb_run_wait(run, 20000000) == 0);
    CHECK(reaches(&seen.ended, 2 * BLOCKS));
    for (i = 0; i < 2; i++)
        for (b = 0; b < BLOCKS; b++) CHECK(seen.statuses[i][b][0] == RB_STATUS_SHUTTING_DOWN && seen.statuses[i][b][1] == RB_STATUS_SHUTTING_DOWN);
}

int main(int argc, char **argv) {
    uint32_t i;
    if (argc != 3) return 100;
    for (i = 0; i < 10; i++) close_under_kernels(argv[1], argv[2], i);
    if (!failed) puts("all checks passed");
    return failed;
}
