/* The C API as a C99 program sees it: layout, error paths, two NICs that talk. Run by tests/programs.rs.
 * usage: capi DIRECTORY MODULE ; MODULE is twice.ptx; exits with the number of failed checks. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define BYTES (300 * 1024)

static rb_nic *open_nic(const char *ip, const char *directory) {
    rb_nic_config config;
    rb_nic *nic = NULL;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.ip = ip;
    config.transport = "local";
    config.local_directory = directory;
    config.gpu_memory_bytes = 16u << 20;
    config.default_timeout_us = 5000000;
    CHECK(rb_nic_open(&config, &nic) == 0);
    return nic;
}

static void opening(const char *directory) {
    rb_nic_config config;
    rb_nic *nic = (rb_nic *)1;
    memset(&config, 0, sizeof config);
    FAILS(rb_nic_open(NULL, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "size");
    CHECK(nic == NULL);
    config.size = sizeof config;
    config.local_directory = directory;
    config.ip = "300.1.2.3";
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "300.1.2.3");
    config.size = 56; /* of programs that were built before `linger_ms`; no other size is taken */
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "300.1.2.3");
    config.size = 60;
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "size");
    config.size = sizeof config;
    config.reserved = 1;
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "reserved");
    config.reserved = 0;
    config.ip = "10.6.0.9";
    config.transport = "pigeon";
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "pigeon");
    config.transport = "tcp";
    FAILS(rb_nic_open(&config, &nic), RB_ERR_HOST, "port");
    config.transport = NULL;
    config.queue_depth = 3;
    CHECK(rb_nic_open(&config, &nic) == 0);
    {
        rb_queue queue;
        FAILS(rb_queue_create(nic, &queue), RB_ERR_HOST, "power of two");
    }
    CHECK(rb_nic_close(nic) == 0);
    FAILS(rb_nic_close(nic), RB_ERR_INVALID_ARGUMENT, "closed before");
    CHECK(rb_nic_close(NULL) == 0);
}

static void memory(rb_nic *nic) {
    void *va = NULL, *none = NULL;
    char out[16], in[16] = "fifteen letters";
    FAILS(rb_mem_alloc(NULL, 1, &va), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_mem_alloc(nic, 1, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_mem_alloc(nic, 0, &va), RB_ERR_INVALID_ARGUMENT, "0 bytes");
    FAILS(rb_mem_alloc(nic, (size_t)1 << 40, &none), RB_ERR_HOST, "emulated GPU");
    CHECK(none == NULL);
    CHECK(rb_mem_alloc(nic, 100000, &va) == 0 && va != NULL);
    CHECK(rb_mem_write(nic, (char *)va + 65530, in, sizeof in) == 0);
    CHECK(rb_mem_read(nic, out, (char *)va + 65530, sizeof out) == 0);
    CHECK(memcmp(in, out, sizeof in) == 0);
    CHECK(rb_mem_read(nic, NULL, va, 0) == 0);
    FAILS(rb_mem_write(nic, va, NULL, 1), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_mem_write(nic, (void *)64, in, 1), RB_ERR_INVALID_ARGUMENT, "0x40");
    FAILS(rb_mem_read(nic, out, (char *)va + (1 << 20), 16), RB_ERR_INVALID_ARGUMENT, "allocation");
    CHECK(memcmp(in, out, sizeof in) == 0); /* a refused read changes nothing */
    FAILS(rb_mem_free(nic, (char *)va + 64), RB_ERR_INVALID_ARGUMENT, "start of an allocation");
    FAILS(rb_mem_free(nic, NULL), RB_ERR_INVALID_ARGUMENT, "start of an allocation");
    CHECK(rb_mem_free(nic, va) == 0);
    FAILS(rb_mem_free(nic, va), RB_ERR_INVALID_ARGUMENT, "freed before");
    FAILS(rb_mem_write(nic, va, in, 1), RB_ERR_INVALID_ARGUMENT, "allocation");
}

/* Every kind of memory: what an address is, and the errors of those who get it wrong. */
static void other_memory(rb_nic *nic) {
    void *host = NULL, *on_nic = NULL, *none = NULL;
    char *own = malloc(100000), out[16] = "", in[16] = "fourteen bytes";
    rb_pointer_info info;
    CHECK(sizeof info == 32);
    CHECK(rb_host_alloc(nic, 5000, &host) == 0 && host != NULL);
    memset(host, 7, 5000); /* the program's to use */
    CHECK(rb_pointer_query(nic, (char *)host + 4999, &info) == 0);
    CHECK(info.kind == RB_MEMORY_HOST && info.base == (uintptr_t)host && info.bytes == 5000 && info.operations == 0);
    CHECK(rb_pointer_query(nic, (char *)host + 5000, &info) == 0 && info.kind == RB_MEMORY_UNKNOWN);
    FAILS(rb_host_alloc(nic, 0, &none), RB_ERR_INVALID_ARGUMENT, "0 bytes");
    FAILS(rb_host_free(nic, (char *)host + 1), RB_ERR_INVALID_ARGUMENT, "interior");

    CHECK(rb_host_register(nic, own + 1000, 50000) == 0);
    FAILS(rb_host_register(nic, own + 1000, 50000), RB_ERR_HOST, "registered already");
    FAILS(rb_host_register(nic, own, 1001), RB_ERR_HOST, "overlap");
    FAILS(rb_host_register(nic, NULL, 1), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_host_register(nic, (void *)64, 100), RB_ERR_HOST, "not mapped");
    CHECK(rb_pointer_query(nic, own + 2000, &info) == 0 && info.kind == RB_MEMORY_HOST && info.bytes == 50000);
    FAILS(rb_host_unregister(nic, own), RB_ERR_INVALID_ARGUMENT, "registration");
    CHECK(rb_host_unregister(nic, own + 1000) == 0);
    FAILS(rb_host_unregister(nic, own + 1000), RB_ERR_INVALID_ARGUMENT, "ended before");
    CHECK(rb_pointer_query(nic, own + 2000, &info) == 0 && info.kind == RB_MEMORY_UNKNOWN);

    FAILS(rb_nic_mem_alloc(nic, (size_t)1 << 42, &none), RB_ERR_HOST, "NIC memory");
    CHECK(none == NULL);
    CHECK(rb_nic_mem_alloc(nic, 1000, &on_nic) == 0);
    CHECK(rb_pointer_query(nic, (char *)on_nic + 999, &info) == 0 && info.kind == RB_MEMORY_NIC);
    CHECK(rb_mem_write(nic, (char *)on_nic + 500, in, sizeof in) == 0);
    CHECK(rb_mem_read(nic, out, (char *)on_nic + 500, sizeof out) == 0 && memcmp(in, out, sizeof in) == 0);
    FAILS(rb_mem_write(nic, (char *)on_nic + 990, in, sizeof in), RB_ERR_INVALID_ARGUMENT, "leave the buffer");
    CHECK(rb_nic_mem_free(nic, on_nic) == 0);
    FAILS(rb_nic_mem_free(nic, on_nic), RB_ERR_INVALID_ARGUMENT, "ended before");
    CHECK(rb_host_free(nic, host) == 0);
    FAILS(rb_host_free(nic, host), RB_ERR_INVALID_ARGUMENT, "ended before");
    free(own);
}

struct server {
    rb_nic *nic;
    rb_context *context;
    uint32_t listener;
};

/* Accepts one connection and sends back what it gets, until the client stops. */
static void *serve(void *argument) {
    struct server *s = argument;
    uint32_t conn = 0;
    uint64_t got = 0, peer = 0;
    void *va = NULL;
    rb_result r;
    CHECK(rb_mem_alloc(s->nic, BYTES, &va) == 0);
    CHECK(rb_socket_accept(s->context, s->listener, &conn, &peer, 0) == 0);
    CHECK(peer >> 16 == 0x0a060002);
    while ((r = rb_socket_recv_some(s->context, conn, va, BYTES, &got, 0)) == 0)
        CHECK(got > 0 && rb_socket_send(s->context, conn, va, got, 0) == 0);
    CHECK(r == RB_STATUS_END_OF_STREAM);
    CHECK(rb_socket_close(s->context, conn, 0) == 0);
    CHECK(rb_mem_free(s->nic, va) == 0);
    return NULL;
}

static void sockets(rb_nic *nic, rb_nic *peer) {
    struct server s;
    pthread_t thread;
    rb_context *context = NULL;
    uint32_t sock = 0, refused = 0, again = 0;
    uint64_t got = 77;
    void *there = NULL, *back = NULL;
    unsigned char *data = malloc(BYTES), *seen = malloc(BYTES);
    size_t i;
    for (i = 0; i < BYTES; ++i) data[i] = (unsigned char)(i * 2654435761u >> 13);

    s.nic = peer;
    FAILS(rb_context_create(nic, NULL), RB_ERR_INVALID_ARGUMENT, "null");
    CHECK(rb_context_create(peer, &s.context) == 0);
    CHECK(rb_socket_open(s.context, &s.listener, 0) == 0);
    CHECK(rb_socket_listen(s.context, s.listener, 7, 4, 0) == 0);
    CHECK(rb_socket_open(s.context, &again, 0) == 0);
    FAILS(rb_socket_listen(s.context, again, 7, 4, 0), RB_STATUS_ADDRESS_IN_USE, "ADDRESS_IN_USE");
    FAILS(rb_socket_listen(s.context, s.listener, 8, 70000, 0), RB_ERR_INVALID_ARGUMENT, "65,535");
    FAILS(rb_socket_accept(s.context, s.listener, &again, NULL, 10000), RB_STATUS_TIMED_OUT, "TIMED_OUT");
    CHECK(pthread_create(&thread, NULL, serve, &s) == 0);

    CHECK(rb_context_create(nic, &context) == 0);
    CHECK(rb_socket_open(context, &refused, 0) == 0);
    FAILS(rb_socket_connect(context, refused, "10.6.0.1", 9, 0), RB_STATUS_CONNECTION_REFUSED, "CONNECTION_REFUSED");
    FAILS(rb_socket_connect(context, refused, "nowhere", 9, 0), RB_ERR_INVALID_ARGUMENT, "nowhere");
    CHECK(rb_socket_open(context, &sock, 0) == 0);
    FAILS(rb_socket_send(context, sock, NULL, 4096, 0), RB_STATUS_BAD_STATE, "BAD_STATE");
    CHECK(rb_socket_connect(context, sock, "10.6.0.1", 7, 0) == 0);
    CHECK(rb_mem_alloc(nic, BYTES, &there) == 0 && rb_mem_alloc(nic, BYTES, &back) == 0);
    CHECK(rb_mem_write(nic, there, data, BYTES) == 0);

    /* Memory that is not registered: the host's own, and GPU memory that was freed. */
    FAILS(rb_socket_send(context, sock, data, BYTES, 0), RB_STATUS_NOT_REGISTERED, "NOT_REGISTERED");
    FAILS(rb_socket_send(context, sock, data, 8, 0), RB_STATUS_NOT_REGISTERED, "NOT_REGISTERED");
    FAILS(rb_socket_recv(context, sock, seen, BYTES, &got, 0), RB_STATUS_NOT_REGISTERED, "NOT_REGISTERED");
    CHECK(got == 0);
    FAILS(rb_socket_send(context, sock, there, BYTES + 1, 0), RB_STATUS_OUT_OF_BOUNDS, "OUT_OF_BOUNDS");
    FAILS(rb_socket_send(context, 0xffffff, there, BYTES, 0), RB_STATUS_BAD_SESSION, "BAD_SESSION");

    CHECK(rb_socket_send(context, sock, there, BYTES, 0) == 0);
    CHECK(rb_socket_recv(context, sock, back, BYTES, &got, 0) == 0 && got == BYTES);
    CHECK(rb_mem_read(nic, seen, back, BYTES) == 0);
    CHECK(memcmp(data, seen, BYTES) == 0);

    /* The same bytes from memory of every other kind, long and short: the program's own, shared, the NIC's. */
    {
        const uint64_t lengths[2] = {BYTES - 7, 33};
        void *sources[3] = {data, NULL, NULL}, *echo = NULL;
        int k, n;
        CHECK(rb_host_register(nic, data, BYTES) == 0);
        CHECK(rb_host_alloc(nic, BYTES, &sources[1]) == 0 && rb_nic_mem_alloc(nic, BYTES, &sources[2]) == 0);
        CHECK(rb_host_alloc(nic, BYTES, &echo) == 0);
        memcpy(sources[1], data, BYTES);
        CHECK(rb_mem_write(nic, sources[2], data, BYTES) == 0);
        for (k = 0; k < 3; ++k)
            for (n = 0; n < 2; ++n) {
                memset(echo, 0, BYTES);
                CHECK(rb_socket_send(context, sock, (char *)sources[k] + 5, lengths[n], 0) == 0);
                CHECK(rb_socket_recv(context, sock, (char *)echo + 3, lengths[n], &got, 0) == 0 && got == lengths[n]);
                CHECK(memcmp((char *)echo + 3, data + 5, lengths[n]) == 0);
            }
        CHECK(rb_host_unregister(nic, data) == 0 && rb_nic_mem_free(nic, sources[2]) == 0);
        CHECK(rb_host_free(nic, sources[1]) == 0 && rb_host_free(nic, echo) == 0);
        FAILS(rb_socket_send(context, sock, data, 33, 0), RB_STATUS_NOT_REGISTERED, "NOT_REGISTERED");
    }
    {
        const char *carrier = NULL;
        CHECK(rb_socket_transport(context, sock, &carrier) == 0 && strcmp(carrier, "local") == 0);
        FAILS(rb_socket_transport(context, 0xfffffu, &carrier), RB_ERR_INVALID_ARGUMENT, "no socket has the number");
        FAILS(rb_socket_transport(context, sock, NULL), RB_ERR_INVALID_ARGUMENT, "null pointer");
    }
    CHECK(rb_socket_shutdown(context, sock, 0) == 0);
    FAILS(rb_socket_recv(context, sock, back, BYTES, &got, 0), RB_STATUS_END_OF_STREAM, "END_OF_STREAM");
    CHECK(rb_socket_close(context, sock, 0) == 0);
    FAILS(rb_socket_close(context, sock, 0), RB_STATUS_BAD_SESSION, "BAD_SESSION");

    CHECK(pthread_join(thread, NULL) == 0);
    FAILS(rb_socket_open((rb_context *)nic, &sock, 0), RB_ERR_INVALID_ARGUMENT, "context");
    CHECK(rb_context_destroy(context) == 0);
    FAILS(rb_context_destroy(context), RB_ERR_INVALID_ARGUMENT, "closed before");
    FAILS(rb_socket_open(context, &sock, 0), RB_ERR_INVALID_ARGUMENT, "closed before");
    CHECK(rb_mem_free(nic, there) == 0 && rb_mem_free(nic, back) == 0);
    free(data);
    free(seen);
}

/* The bytes of the module, and a kernel that asks for shared memory. */
static void shared_memory(rb_nic *nic, const char *module, void *out) {
    static char image[1 << 16];
    const uint32_t one[3] = {1, 1, 1};
    rb_run *run = NULL;
    rb_arg arg;
    uint64_t bytes = 0;
    size_t length;
    FILE *file = fopen(module, "rb");
    CHECK(file != NULL);
    if (!file) return;
    length = fread(image, 1, sizeof image, file);
    fclose(file);
    CHECK(rb_module_load_data(nic, image, length) == 0);
    FAILS(rb_module_load_data(nic, "\177ELF", 4), RB_ERR_HOST, "ringbell cc");
    FAILS(rb_module_load_data(nic, NULL, 4), RB_ERR_INVALID_ARGUMENT, "image");
    arg.value = &out, arg.bytes = sizeof out;
    CHECK(rb_launch_shared(nic, "tell_shared", one, one, 12000, &arg, 1, &run) == 0 && rb_run_wait(run, 0) == 0);
    CHECK(rb_mem_read(nic, &bytes, out, sizeof bytes) == 0 && bytes == 12000);
    FAILS(rb_launch_shared(nic, "tell_shared", one, one, 1 << 20, &arg, 1, &run), RB_ERR_KERNEL, "1048576 bytes of dynamic shared memory");
}

static void kernels(rb_nic *nic, const char *module) {
    const uint32_t one[3] = {1, 1, 1}, none[3] = {0, 1, 1};
    rb_queue queue;
    rb_run *run = NULL;
    void *out = NULL;
    uint32_t count = 3, timeout_us = 0, status = 99;
    uint64_t number = 21;
    rb_arg args[4];
    CHECK(rb_queue_create(nic, &queue) == 0 && queue.sq != 0);
    CHECK(rb_mem_alloc(nic, 64, &out) == 0);
    args[0].value = &queue, args[0].bytes = sizeof queue;
    args[1].value = &count, args[1].bytes = sizeof count;
    args[2].value = &timeout_us, args[2].bytes = sizeof timeout_us;
    args[3].value = &out, args[3].bytes = sizeof out;
    CHECK(rb_launch(nic, "rb_nop", one, one, args, 4, &run) == 0);
    CHECK(rb_run_wait(run, 0) == 0);
    CHECK(rb_mem_read(nic, &status, out, sizeof status) == 0 && status == RB_STATUS_OK);
    FAILS(rb_run_wait(run, 0), RB_ERR_INVALID_ARGUMENT, "closed before");
    FAILS(rb_launch(nic, "no_such_kernel", one, one, args, 4, &run), RB_ERR_KERNEL, "no_such_kernel");
    FAILS(rb_launch(nic, "rb_nop", one, one, args, 3, &run), RB_ERR_KERNEL, "4 arguments");
    FAILS(rb_launch(nic, "rb_nop", none, one, args, 4, &run), RB_ERR_KERNEL, "at least one block");
    FAILS(rb_launch(nic, "rb_nop", one, NULL, args, 4, &run), RB_ERR_INVALID_ARGUMENT, "null");
    FAILS(rb_launch(nic, "rb_nop", one, one, NULL, 4, &run), RB_ERR_INVALID_ARGUMENT, "null");
    args[1].value = NULL;
    FAILS(rb_launch(nic, "rb_nop", one, one, args, 4, &run), RB_ERR_INVALID_ARGUMENT, "args[1]");
    CHECK(run == NULL);
    FAILS(rb_module_load(nic, "/no/such/module"), RB_ERR_HOST, "/no/such/module.ptx: No such file");
    CHECK(rb_module_load(nic, module) == 0);
    CHECK(rb_mem_write(nic, out, &number, sizeof number) == 0);
    args[0].value = &out, args[0].bytes = sizeof out;
    CHECK(rb_launch(nic, "twice", one, one, args, 1, &run) == 0 && rb_run_wait(run, 0) == 0);
    CHECK(rb_mem_read(nic, &number, out, sizeof number) == 0 && number == 42);
    shared_memory(nic, module, out);
}

int main(int argc, char **argv) {
    rb_nic *a, *b;
    rb_context *left_open = NULL;
    if (argc != 3) return 100;
    /* The structures of the contract, as Rust lays them out. */
    CHECK(sizeof(rb_queue) == 80 && offsetof(rb_queue, depth_log2) == 48 && offsetof(rb_queue, own) == 64);
    CHECK(sizeof(rb_nic_config) == 128 && offsetof(rb_nic_config, wires) == 104 && offsetof(rb_nic_config, max_queues) == 96 && offsetof(rb_nic_config, engine_thread) == 88 && offsetof(rb_nic_config, gpu) == 64 && offsetof(rb_nic_config, linger_ms) == 56 && offsetof(rb_nic_config, gpu_memory_bytes) == 40 &&
          offsetof(rb_nic_config, queue_depth) == 52);
    CHECK(sizeof(rb_arg) == 16 && sizeof(rb_result) == 4);
    CHECK(strcmp(rb_version(), "") > 0);
    CHECK(strstr(rb_result_text(RB_STATUS_NOT_REGISTERED), "register") != NULL);
    CHECK(strstr(rb_result_text(-77), "no result") != NULL);

    opening(argv[1]);
    a = open_nic("10.6.0.1", argv[1]);
    b = open_nic("10.6.0.2", argv[1]);
    memory(a);
    other_memory(a);
    sockets(b, a);
    kernels(a, argv[2]);
    CHECK(rb_context_create(a, &left_open) == 0);
    CHECK(rb_nic_close(a) == 0 && rb_nic_close(b) == 0);
    FAILS(rb_context_destroy(left_open), RB_ERR_INVALID_ARGUMENT, "closed before");
    if (!failed) puts("all checks passed");
    return failed;
}
