/* GPU memory between two processes by the C API: a parent that has it and a child that opens it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "ringbell.h"

#define OK(call) CHECK((call) == 0)

#define BYTES 200003u
#define AT 70001u
#define PART 90007u

static unsigned char pattern(size_t i) { return (unsigned char)(i * 2654435761u >> 13); }

static rb_nic *open_nic(const char *ip, const char *directory) {
    rb_nic_config config;
    rb_nic *nic;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.ip = ip;
    config.local_directory = directory;
    OK(rb_nic_open(&config, &nic));
    return nic;
}

static int child(int from_parent, const char *directory) {
    rb_shared_mem shared;
    rb_nic *nic;
    void *va, *again;
    unsigned char *bytes = malloc(PART);
    size_t i;
    if (read(from_parent, &shared, sizeof shared) != (ssize_t)sizeof shared) return 1;
    nic = open_nic("10.77.60.2/24", directory);
    OK(rb_mem_open(nic, &shared, &va));
    OK(rb_mem_open(nic, &shared, &again));
    CHECK(va == again);
    {
        rb_pointer_info info;
        OK(rb_pointer_query(nic, (char *)va + 5, &info));
        CHECK(info.kind == RB_MEMORY_GPU && info.bytes == PART && info.base == (uint64_t)(uintptr_t)va);
    }
    OK(rb_mem_read(nic, bytes, va, PART));
    for (i = 0; i < PART; ++i) CHECK(bytes[i] == pattern(i + AT));
    OK(rb_mem_write(nic, (char *)va + 3, "written by the child", 20));
    OK(rb_mem_close(nic, va));
    OK(rb_mem_close(nic, again));
    CHECK(rb_mem_close(nic, va) == RB_ERR_INVALID_ARGUMENT);
    CHECK(rb_mem_share(nic, bytes, 8, &shared) == RB_ERR_INVALID_ARGUMENT);
    memset(&shared, 7, sizeof shared);
    CHECK(rb_mem_open(nic, &shared, &va) == RB_ERR_INVALID_ARGUMENT && va == NULL);
    OK(rb_nic_close(nic));
    free(bytes);
    return failed != 0;
}

/* Memory that another NIC of the process has allocated stands for that of another allocator. */
static void registered(rb_nic *nic, const char *directory) {
    rb_nic *other = open_nic("10.77.60.3/24", directory);
    rb_pointer_info info;
    char host[64], *part;
    void *va;
    OK(rb_mem_alloc(other, BYTES, &va));
    part = (char *)va + AT;
    OK(rb_mem_register(nic, part, PART));
    OK(rb_pointer_query(nic, part + 9, &info));
    CHECK(info.kind == RB_MEMORY_GPU && info.bytes == PART && info.base == (uint64_t)(uintptr_t)part);
    CHECK(rb_mem_unregister(nic, va) == RB_ERR_INVALID_ARGUMENT);
    OK(rb_mem_unregister(nic, part));
    CHECK(rb_mem_unregister(nic, part) == RB_ERR_INVALID_ARGUMENT);
    OK(rb_pointer_query(nic, part + 9, &info));
    CHECK(info.kind == RB_MEMORY_UNKNOWN);
    CHECK(rb_mem_register(nic, host, sizeof host) == RB_ERR_INVALID_ARGUMENT);
    OK(rb_nic_close(other));
}

int main(int argc, char **argv) {
    int to_child[2], status = -1;
    pid_t pid;
    rb_nic *nic;
    rb_shared_mem shared;
    void *va, *own;
    unsigned char *bytes = malloc(BYTES), got[20];
    size_t i;
    CHECK(argc == 2 && pipe(to_child) == 0);
    /* Before this process has a GPU: CUDA does not survive a fork. */
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) return child(to_child[0], argv[1]);
    nic = open_nic("10.77.60.1/24", argv[1]);
    OK(rb_mem_alloc(nic, BYTES, &va));
    for (i = 0; i < BYTES; ++i) bytes[i] = pattern(i);
    OK(rb_mem_write(nic, va, bytes, BYTES));
    OK(rb_mem_share(nic, (char *)va + AT, PART, &shared));
    CHECK(rb_mem_open(nic, &shared, &own) == RB_ERR_HOST);
    CHECK(strstr(rb_last_error(), "belongs to this process") != NULL);
    CHECK(write(to_child[1], &shared, sizeof shared) == (ssize_t)sizeof shared);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(rb_mem_read(nic, got, (char *)va + AT + 3, sizeof got));
    CHECK(memcmp(got, "written by the child", sizeof got) == 0);
    registered(nic, argv[1]);
    OK(rb_nic_close(nic));
    free(bytes);
    if (!failed) printf("all checks passed\n");
    return failed != 0;
}
