/* Calls of more bytes than 32 bits can count, for C99. Both ends lie over the same 2 MiB at every address, so they need
 * addresses and time, and no memory. usage: long DIRECTORY. Run by tests/programs.rs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nic.h"
#include "ringbell_comm.h"

#define PAGE ((size_t)2 << 20)
/* What no descriptor holds, and no whole number of pages. */
#define MORE (((uint64_t)1 << 32) + 12345)
#define MINUTES 600000000u

/* MORE bytes of addresses at which the same PAGE bytes lie again and again; NULL where the system has no room for them. */
static unsigned char *again_and_again(void) {
    size_t room = (size_t)(MORE / PAGE + 1) * PAGE, at;
    int fd = memfd_create("long", 0);
    unsigned char *base;
    if (fd < 0 || ftruncate(fd, (off_t)PAGE)) return NULL;
    base = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    for (at = 0; at < room; at += PAGE)
        if (mmap(base + at, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) return NULL;
    close(fd);
    return base;
}

struct receiver {
    rb_context *context;
    uint32_t listener;
    unsigned char *into;
};

static void *receive(void *argument) {
    struct receiver *r = argument;
    uint32_t conn = 0;
    uint64_t got = 0;
    CHECK(rb_socket_accept(r->context, r->listener, &conn, NULL, MINUTES) == 0);
    CHECK(rb_socket_recv(r->context, conn, r->into, MORE, &got, MINUTES) == 0);
    CHECK(got == MORE);
    /* Nothing is behind it. */
    FAILS(rb_socket_recv(r->context, conn, r->into, 1, &got, MINUTES), RB_STATUS_END_OF_STREAM, "END_OF_STREAM");
    CHECK(rb_socket_close(r->context, conn, 0) == 0);
    return NULL;
}

/* A message between ranks has one descriptor: its length is refused, whatever its memory. */
static void messages(rb_nic *nics[2], unsigned char *memory) {
    rb_communicator *comms[2] = {NULL, NULL};
    rb_request *request = NULL;
    rb_stream *stream = NULL;
    void *little = NULL;
    CHECK(rb_comm_init_all(comms, nics, 2, NULL) == 0);
    CHECK(rb_stream_create(nics[0], &stream) == 0 && rb_mem_alloc(nics[0], 64, &little) == 0);
    FAILS(rb_send(memory, MORE, RB_DTYPE_U8, 1, 0, comms[0], NULL), RB_STATUS_INVALID_ARGUMENT, "at most 4294967295 bytes");
    FAILS(rb_recv(memory, MORE, RB_DTYPE_U8, 1, 0, comms[0], NULL), RB_STATUS_INVALID_ARGUMENT, "at most 4294967295 bytes");
    FAILS(rb_isend(little, MORE, RB_DTYPE_U32, 1, 0, comms[0], &request), RB_STATUS_INVALID_ARGUMENT, "4294967295");
    FAILS(rb_send(little, MORE, RB_DTYPE_U8, 1, 0, comms[0], stream), RB_STATUS_INVALID_ARGUMENT, "4294967295");
    /* The stream has not failed: nothing was put on it. */
    CHECK(request == NULL && rb_stream_synchronize(stream, 0) == 0);
    CHECK(rb_mem_free(nics[0], little) == 0 && rb_stream_destroy(stream) == 0);
    CHECK(rb_comm_destroy(comms[0]) == 0 && rb_comm_destroy(comms[1]) == 0);
}

int main(int argc, char **argv) {
    unsigned char *from = again_and_again(), *to = again_and_again();
    rb_nic *nics[2];
    rb_context *sender = NULL;
    struct receiver r = {NULL, 0, NULL};
    pthread_t thread;
    uint32_t sock = 0;
    size_t i;
    if (argc != 2) return 99;
    if (!from || !to) {
        puts("SKIPPED: 8 GiB of addresses cannot be mapped\nall checks passed");
        return 0;
    }
    for (i = 0; i < PAGE; ++i) from[i] = (unsigned char)(i * 2654435761u >> 13);
    nics[0] = open_nic(argv[1], 9, 0);
    nics[1] = open_nic(argv[1], 9, 1);
    CHECK(rb_host_register(nics[0], from, MORE) == 0);
    CHECK(rb_host_register(nics[1], to, MORE) == 0);
    CHECK(rb_context_create(nics[0], &sender) == 0 && rb_context_create(nics[1], &r.context) == 0);
    CHECK(rb_socket_open(r.context, &r.listener, 0) == 0 && rb_socket_listen(r.context, r.listener, 7, 4, 0) == 0);
    r.into = to;
    CHECK(pthread_create(&thread, NULL, receive, &r) == 0);
    CHECK(rb_socket_open(sender, &sock, 0) == 0);
    CHECK(rb_socket_connect(sender, sock, "10.6.9.2", 7, 0) == 0);
    CHECK(rb_socket_send(sender, sock, from, MORE, MINUTES) == 0);
    CHECK(rb_socket_close(sender, sock, 0) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(memcmp(from, to, PAGE) == 0);
    messages(nics, from);
    CHECK(rb_context_destroy(sender) == 0 && rb_context_destroy(r.context) == 0);
    CHECK(rb_nic_close(nics[0]) == 0 && rb_nic_close(nics[1]) == 0);
    if (!failed) puts("all checks passed");
    return failed;
}
