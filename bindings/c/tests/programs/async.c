/* Sockets that do not wait, events, peers' addresses, engines of the program's own and results that the NIC returns, for C99 and
 * for C++: this file is compiled as both. usage: async DIRECTORY. Run by tests/programs.rs. */
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "ranks.h"

#define BYTES 300007u

static rb_nic *nics[RANKS];
static unsigned char pattern(uint64_t i) { return (unsigned char)(i * 2654435761u >> 11); }

/* An engine that adds bytes; `user` counts its states. */
struct sum {
    uint64_t sum, bytes;
    int32_t limit;
    int *alive;
};

static void *sum_create(void *user) {
    struct sum *s = (struct sum *)calloc(1, sizeof *s);
    if (s) {
        s->alive = (int *)user;
        __atomic_add_fetch(s->alive, 1, __ATOMIC_RELAXED);
    }
    return s;
}
static void *none_create(void *user) {
    (void)user;
    return NULL;
}
static int32_t sum_process(void *state, const void *bytes, size_t count) {
    struct sum *s = (struct sum *)state;
    const unsigned char *p = (const unsigned char *)bytes;
    size_t i;
    for (i = 0; i < count; ++i) s->sum += p[i];
    s->bytes += count;
    return 0;
}
static int32_t failing_process(void *state, const void *bytes, size_t count) {
    (void)state, (void)bytes, (void)count;
    return 5;
}
/* Emits each even byte twice, and at the end the number of odd ones, which it holds back. */
static int32_t twice_transform(void *state, const void *bytes, size_t count, rb_engine_emit emit, void *to) {
    struct sum *s = (struct sum *)state;
    const unsigned char *p = (const unsigned char *)bytes;
    size_t i;
    if (count == 0) emit(to, &s->sum, sizeof s->sum);
    for (i = 0; i < count; ++i) {
        if (p[i] & 1) {
            ++s->sum;
        } else {
            emit(to, p + i, 1);
            emit(to, p + i, 1);
        }
    }
    s->bytes += count;
    return 0;
}
/* Emits more than it has promised. */
static int32_t greedy_transform(void *state, const void *bytes, size_t count, rb_engine_emit emit, void *to) {
    (void)state;
    emit(to, bytes, count);
    emit(to, bytes, count);
    return 0;
}
static size_t sum_result(const void *state, void *result, size_t room) {
    const struct sum *s = (const struct sum *)state;
    uint64_t words[2];
    words[0] = s->sum;
    words[1] = s->bytes;
    if (room) memcpy(result, words, room < sizeof words ? room : sizeof words);
    return sizeof words;
}
static void sum_destroy(void *state) {
    __atomic_sub_fetch(((struct sum *)state)->alive, 1, __ATOMIC_RELAXED);
    free(state);
}

static rb_engine_callbacks callbacks(int *alive) {
    rb_engine_callbacks own;
    memset(&own, 0, sizeof own);
    own.size = sizeof own;
    own.user = alive;
    own.create = sum_create;
    own.process = sum_process;
    own.result = sum_result;
    own.destroy = sum_destroy;
    return own;
}

static rb_engine_config config_of(const rb_engine_callbacks *own) {
    rb_engine_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.own = own;
    config.place = RB_ENGINE_RECEIVED;
    return config;
}

static rb_context *context_of(rb_nic *nic) {
    rb_context *context = NULL;
    CHECK(rb_context_create(nic, &context) == 0);
    return context;
}

/* Two connected sockets, one on each NIC. */
static void connected(rb_context **contexts, uint16_t port, uint32_t *socks) {
    uint32_t listener = 0;
    CHECK(rb_socket_open(contexts[0], &listener, 0) == 0);
    CHECK(rb_socket_listen(contexts[0], listener, port, 1, 0) == 0);
    CHECK(rb_socket_open(contexts[1], &socks[1], 0) == 0);
    CHECK(rb_socket_connect(contexts[1], socks[1], "10.6.7.1", port, 0) == 0);
    CHECK(rb_socket_accept(contexts[0], listener, &socks[0], NULL, 0) == 0);
    CHECK(rb_socket_close(contexts[0], listener, 0) == 0);
}

static void transfers(void) {
    rb_context *contexts[2];
    rb_request *sent = NULL, *received = NULL;
    rb_stream *stream = NULL;
    rb_done done;
    unsigned char *bytes = (unsigned char *)malloc(BYTES);
    void *from = NULL, *to = NULL;
    uint32_t socks[2], i;
    int32_t ended = 7;
    for (i = 0; i < 2; ++i) contexts[i] = context_of(nics[i]);
    connected(contexts, 7100, socks);
    CHECK(rb_mem_alloc(nics[1], BYTES, &from) == 0 && rb_mem_alloc(nics[0], BYTES, &to) == 0);
    for (i = 0; i < BYTES; ++i) bytes[i] = pattern(i);
    CHECK(rb_mem_write(nics[1], from, bytes, BYTES) == 0);

    /* A receive goes on until its sender comes. */
    CHECK(rb_socket_recv_async(contexts[0], socks[0], to, BYTES, 0, NULL, &received) == 0);
    CHECK(rb_request_test(received, &ended, NULL) == 0 && ended == 0);
    FAILS(rb_request_wait(received, 20000, NULL), RB_ERR_IN_PROGRESS, "");
    FAILS(rb_request_cancel(received), RB_ERR_INVALID_ARGUMENT, "kernel");
    CHECK(rb_socket_send_async(contexts[1], socks[1], from, BYTES, 0, NULL, &sent) == 0);
    CHECK(rb_request_wait(sent, 0, &done) == 0 && done.bytes == BYTES);
    CHECK(rb_request_wait(received, 0, &done) == 0 && done.bytes == BYTES);
    CHECK(rb_request_test(received, &ended, &done) == 0 && ended == 1 && done.bytes == BYTES);
    CHECK(rb_request_free(sent) == 0 && rb_request_free(received) == 0);
    memset(bytes, 0, BYTES);
    CHECK(rb_mem_read(nics[0], bytes, to, BYTES) == 0);
    for (i = 0; i < BYTES; ++i) CHECK(bytes[i] == pattern(i));

    /* Behind a stream, without a request: what fails is the stream's failure. */
    CHECK(rb_stream_create(nics[1], &stream) == 0);
    for (i = 0; i < 3; ++i) CHECK(rb_socket_send_async(contexts[1], socks[1], from, 1000, 0, stream, NULL) == 0);
    CHECK(rb_socket_recv(contexts[0], socks[0], to, 3000, NULL, 0) == 0);
    CHECK(rb_stream_synchronize(stream, 0) == 0);
    CHECK(rb_socket_recv_async(contexts[1], socks[1], from, 10, 20000, stream, NULL) == 0);
    CHECK(rb_stream_synchronize(stream, 0) == RB_STATUS_TIMED_OUT);
    CHECK(rb_stream_synchronize(stream, 0) == 0);
    /* A request that is freed under way leaves its kernel alone. */
    CHECK(rb_socket_recv_async(contexts[1], socks[1], from, 10, 20000, NULL, &received) == 0);
    CHECK(rb_request_free(received) == 0);
    FAILS(rb_socket_send_async(contexts[1], socks[1], from, 10, 0, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "`request`");
    FAILS(rb_socket_send_async(contexts[1], socks[1], bytes, 8, 0, stream, NULL), RB_STATUS_NOT_REGISTERED, "");
    CHECK(rb_stream_begin_capture(stream) == 0);
    FAILS(rb_socket_send_async(contexts[1], socks[1], from, 10, 0, stream, NULL), RB_ERR_INVALID_ARGUMENT, "capture");
    CHECK(rb_stream_destroy(stream) == 0);
    for (i = 0; i < 2; ++i) CHECK(rb_socket_close(contexts[i], socks[i], 0) == 0);
    free(bytes);
}

/* The end of a peer that was not expected is an event. */
static void events(void) {
    rb_context *contexts[2];
    rb_event event;
    uint32_t socks[2], i;
    int32_t got = 7;
    int closed = 0;
    for (i = 0; i < 2; ++i) contexts[i] = context_of(nics[i]);
    connected(contexts, 7101, socks);
    do {
        CHECK(rb_nic_event(nics[0], &event, &got) == 0);
    } while (got);
    CHECK(rb_socket_close(contexts[1], socks[1], 0) == 0);
    for (i = 0; i < 1000 && !closed; ++i) {
        CHECK(rb_nic_event(nics[0], &event, &got) == 0);
        closed = got && event.kind == RB_EVENT_PEER_CLOSED && event.session == socks[0];
        if (!got) usleep(2000);
    }
    CHECK(closed);
    FAILS(rb_nic_event(nics[0], NULL, &got), RB_ERR_INVALID_ARGUMENT, "`event`");
    CHECK(rb_socket_close(contexts[0], socks[0], 0) == 0);
}

/* An engine that changes the stream, at the receiver and at the sender. */
static void own_transform(uint32_t place, uint16_t port) {
    rb_context *contexts[2];
    int alive = 0;
    rb_engine_callbacks own = callbacks(&alive);
    rb_engine_config config = config_of(&own);
    unsigned char *bytes = (unsigned char *)malloc(BYTES), *got = (unsigned char *)malloc(2 * BYTES);
    void *from = NULL, *to = NULL;
    uint32_t socks[2], id = 0, i, end = place == RB_ENGINE_SENT;
    uint64_t odd = 0, length = 0, at = 0;
    rb_request *sent = NULL;
    own.process = NULL;
    own.transform = twice_transform;
    own.growth = 2;
    own.extra = sizeof(uint64_t);
    config.place = place;
    for (i = 0; i < 2; ++i) contexts[i] = context_of(nics[i]);
    connected(contexts, port, socks);
    CHECK(rb_mem_alloc(nics[1], BYTES, &from) == 0 && rb_mem_alloc(nics[0], 2 * BYTES, &to) == 0);
    for (i = 0; i < BYTES; ++i) odd += (bytes[i] = pattern(i)) & 1;
    CHECK(rb_mem_write(nics[1], from, bytes, BYTES) == 0);
    CHECK(rb_engine_attach_socket(nics[end], socks[end], &config, &id) == 0 && alive == 1);
    FAILS(rb_engine_attach_context(contexts[end], &config, &i), RB_ERR_INVALID_ARGUMENT, "");
    CHECK(rb_socket_send_async(contexts[1], socks[1], from, BYTES, 0, NULL, &sent) == 0);
    CHECK(rb_socket_recv(contexts[0], socks[0], to, 2 * (BYTES - odd), NULL, 0) == 0);
    CHECK(rb_request_wait(sent, 0, NULL) == 0 && rb_request_free(sent) == 0);
    CHECK(rb_mem_read(nics[0], got, to, 2 * (BYTES - odd)) == 0);
    for (i = 0; i < BYTES; ++i) {
        if (bytes[i] & 1) continue;
        CHECK(got[at] == bytes[i] && got[at + 1] == bytes[i]);
        at += 2;
    }
    /* What it held back leaves with the end of the stream. */
    CHECK(rb_socket_shutdown(contexts[1], socks[1], 0) == 0);
    CHECK(rb_socket_recv(contexts[0], socks[0], to, 100, &length, 0) == RB_STATUS_END_OF_STREAM && length == sizeof odd);
    CHECK(rb_mem_read(nics[0], got, to, sizeof odd) == 0 && memcmp(got, &odd, sizeof odd) == 0);
    CHECK(rb_engine_detach(nics[end], id, got, BYTES, NULL, NULL) == 0 && alive == 0);
    for (i = 0; i < 2; ++i) CHECK(rb_socket_close(contexts[i], socks[i], 0) == 0);

    /* One that breaks its promise ends the stream. */
    connected(contexts, (uint16_t)(port + 1), socks);
    own.transform = greedy_transform;
    own.growth = own.extra = 0;
    CHECK(rb_engine_attach_socket(nics[end], socks[end], &config, &id) == 0);
    (void)rb_socket_send(contexts[1], socks[1], from, 1000, 0);
    CHECK(rb_socket_recv(contexts[0], socks[0], to, 1000, NULL, 0) ==
          (rb_result)(end ? RB_STATUS_CONNECTION_RESET : RB_STATUS_ENGINE_FAILED));
    for (i = 0; i < 2; ++i) (void)rb_socket_close(contexts[i], socks[i], 0);
    CHECK(rb_engine_detach(nics[end], id, NULL, 0, NULL, NULL) == RB_ERR_INVALID_ARGUMENT && alive == 0);

    own.process = sum_process;
    FAILS(rb_engine_attach_socket(nics[end], socks[end], &config, &id), RB_ERR_INVALID_ARGUMENT, "either process");
    own.process = NULL;
    own.growth = 1e9;
    FAILS(rb_engine_attach_socket(nics[end], socks[end], &config, &id), RB_ERR_INVALID_ARGUMENT, "growth");
    own = callbacks(&alive);
    own.size = offsetof(rb_engine_callbacks, transform);
    config.place = RB_ENGINE_RECEIVED;
    connected(contexts, (uint16_t)(port + 2), socks);
    CHECK(rb_engine_attach_socket(nics[0], socks[0], &config, &id) == 0 && alive == 1);
    CHECK(rb_engine_detach(nics[0], id, got, BYTES, NULL, NULL) == 0 && alive == 0);
    for (i = 0; i < 2; ++i) CHECK(rb_socket_close(contexts[i], socks[i], 0) == 0);
    free(bytes);
    free(got);
}

static void own_engines(void) {
    rb_context *contexts[2];
    int alive = 0;
    rb_engine_callbacks own = callbacks(&alive);
    rb_engine_config config = config_of(&own);
    uint64_t result[2], want = 0;
    unsigned char *bytes = (unsigned char *)malloc(BYTES);
    void *from = NULL, *to = NULL, *back = NULL;
    uint32_t socks[2], id = 0, again = 0, i;
    size_t length = 0;
    for (i = 0; i < 2; ++i) contexts[i] = context_of(nics[i]);
    connected(contexts, 7102, socks);
    CHECK(rb_mem_alloc(nics[1], BYTES, &from) == 0 && rb_mem_alloc(nics[0], BYTES, &to) == 0);
    for (i = 0; i < BYTES; ++i) want += bytes[i] = pattern(i);
    CHECK(rb_mem_write(nics[1], from, bytes, BYTES) == 0);
    CHECK(rb_engine_attach_socket(nics[0], socks[0], &config, &id) == 0 && alive == 1);
    {
        rb_request *sent = NULL;
        CHECK(rb_socket_send_async(contexts[1], socks[1], from, BYTES, 0, NULL, &sent) == 0);
        CHECK(rb_socket_recv(contexts[0], socks[0], to, BYTES, NULL, 0) == 0);
        CHECK(rb_request_wait(sent, 0, NULL) == 0 && rb_request_free(sent) == 0);
    }
    CHECK(rb_engine_result(nics[0], id, result, sizeof result, &length, NULL) == 0);
    CHECK(length == sizeof result && result[0] == want && result[1] == BYTES);
    CHECK(rb_engine_detach(nics[0], id, result, sizeof result, &length, NULL) == 0 && alive == 0);

    /* One that fails is taken off the path; the stream goes on. */
    own.process = failing_process;
    CHECK(rb_engine_attach_socket(nics[0], socks[0], &config, &id) == 0);
    CHECK(rb_socket_send(contexts[1], socks[1], from, 1000, 0) == 0);
    CHECK(rb_socket_recv(contexts[0], socks[0], to, 1000, NULL, 0) == 0);
    FAILS(rb_engine_result(nics[0], id, result, sizeof result, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "fail");
    CHECK(rb_engine_detach(nics[0], id, NULL, 0, NULL, NULL) == RB_ERR_INVALID_ARGUMENT && alive == 0);

    own.create = none_create;
    FAILS(rb_engine_attach_socket(nics[0], socks[0], &config, &again), RB_ERR_INVALID_ARGUMENT, "create");
    own.create = NULL;
    FAILS(rb_engine_attach_socket(nics[0], socks[0], &config, &again), RB_ERR_INVALID_ARGUMENT, "null");
    own = callbacks(&alive);
    own.size = 8;
    FAILS(rb_engine_attach_socket(nics[0], socks[0], &config, &again), RB_ERR_INVALID_ARGUMENT, "config->own->size");
    own = callbacks(&alive);
    own.rate = -1;
    FAILS(rb_engine_attach_socket(nics[0], socks[0], &config, &again), RB_ERR_INVALID_ARGUMENT, "rate");
    own.rate = 0;
    config.spec = "checksum";
    FAILS(rb_engine_attach_socket(nics[0], socks[0], &config, &again), RB_ERR_INVALID_ARGUMENT, "both");

    /* The NIC sends the result back: nothing on its side receives. */
    config.spec = NULL;
    CHECK(rb_engine_attach_socket(nics[0], socks[0], &config, &id) == 0);
    FAILS(rb_engine_return(nics[0], socks[0], 9), RB_ERR_INVALID_ARGUMENT, "`what`");
    CHECK(rb_engine_return(nics[0], socks[0], RB_RETURN_RESULT) == 0);
    CHECK(rb_mem_alloc(nics[1], sizeof result, &back) == 0);
    CHECK(rb_socket_send(contexts[1], socks[1], from, BYTES, 0) == 0);
    CHECK(rb_socket_shutdown(contexts[1], socks[1], 0) == 0);
    CHECK(rb_socket_recv(contexts[1], socks[1], back, sizeof result, NULL, 0) == 0);
    CHECK(rb_mem_read(nics[1], result, back, sizeof result) == 0);
    CHECK(result[0] == want && result[1] == BYTES);
    FAILS(rb_engine_return(nics[0], 12345, RB_RETURN_STREAM), RB_ERR_INVALID_ARGUMENT, "");
    for (i = 0; i < 2; ++i) CHECK(rb_socket_close(contexts[i], socks[i], 0) == 0);
    free(bytes);
}

static void *peers(void *argument) {
    struct rank *r = (struct rank *)argument;
    rb_comm_peer_info info;
    char want[24];
    CHECK(rb_barrier(r->comm, NULL) == 0);
    CHECK(rb_comm_peer(r->comm, 1 - r->me, &info) == 0);
    snprintf(want, sizeof want, "10.6.7.%u:", 2 - r->me);
    CHECK(strncmp(info.address, want, strlen(want)) == 0 && strcmp(info.transport, "local") == 0 && info.why[0] != 0);
    CHECK(rb_comm_peer(r->comm, r->me, &info) == 0 && strcmp(info.transport, "none") == 0);
    FAILS(rb_comm_peer(r->comm, 2, &info), RB_ERR_INVALID_ARGUMENT, "rank 2 of 2");
    CHECK(rb_barrier(r->comm, NULL) == 0);
    return NULL;
}

/* Programs of older headers have shorter structures. */
static void configs(const char *directory) {
    rb_nic_config config;
    rb_nic *nic = NULL;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.ip = "10.6.7.9";
    config.local_directory = directory;
    config.gpu = "emulated";
    config.progress = "dedicated";
    config.events = 4;
    CHECK(rb_nic_open(&config, &nic) == 0 && rb_nic_close(nic) == 0);
    config.progress = "whenever";
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "waiter or dedicated");
    config.progress = NULL;
    config.engine_thread = "always";
    CHECK(rb_nic_open(&config, &nic) == 0 && rb_nic_close(nic) == 0);
    config.engine_thread = "elsewhere";
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "auto, off or always");
    config.size = offsetof(rb_nic_config, engine_thread); /* beyond the size: not looked at */
    CHECK(rb_nic_open(&config, &nic) == 0 && rb_nic_close(nic) == 0);
    config.size = offsetof(rb_nic_config, max_queues);
    config.engine_thread = NULL;
    config.max_queues = 513; /* the same */
    CHECK(rb_nic_open(&config, &nic) == 0 && rb_nic_close(nic) == 0);
    config.size = sizeof config;
    FAILS(rb_nic_open(&config, &nic), RB_ERR_HOST, "max_queues");
    config.max_queues = 2;
    CHECK(rb_nic_open(&config, &nic) == 0);
    for (int i = 0; i < 100; i++) { /* a context that is destroyed gives its queue back */
        rb_context *one = NULL, *two = NULL, *three = NULL;
        CHECK(rb_context_create(nic, &one) == 0 && rb_context_create(nic, &two) == 0);
        if (i == 99) FAILS(rb_context_create(nic, &three), RB_ERR_HOST, "max_queues");
        CHECK(rb_context_destroy(one) == 0 && rb_context_destroy(two) == 0);
    }
    CHECK(rb_nic_close(nic) == 0);
    config.max_queues = 0;
    config.gpu = "voodoo";
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "config->gpu");
    config.gpu = NULL;
    config.port = "udp:127.0.0.1:0,mtu=1400";
    CHECK(rb_nic_open(&config, &nic) == 0 && rb_nic_close(nic) == 0);
    config.port = NULL;
    config.size = offsetof(rb_nic_config, gpu);
    config.gpu = "voodoo"; /* beyond the size: not looked at */
    CHECK(rb_nic_open(&config, &nic) == 0 && rb_nic_close(nic) == 0);
    config.size = sizeof config + 8;
    FAILS(rb_nic_open(&config, &nic), RB_ERR_INVALID_ARGUMENT, "config->size");
}

int main(int argc, char **argv) {
    rb_comm_config config = RB_COMM_CONFIG_INITIALIZER;
    char memory[8];
    uint32_t i;
    if (argc != 2) return 99;
    for (i = 0; i < RANKS; ++i) nics[i] = open_nic(argv[1], 7, i);
    transfers();
    events();
    own_engines();
    own_transform(RB_ENGINE_RECEIVED, 7104);
    own_transform(RB_ENGINE_SENT, 7108);
    configs(argv[1]);
    FAILS(rb_mem_register(nics[0], memory, sizeof memory), RB_ERR_INVALID_ARGUMENT, "rb_host_register");
    FAILS(rb_mem_register(nics[0], NULL, 8), RB_ERR_INVALID_ARGUMENT, "8 bytes");
    FAILS(rb_mem_unregister(nics[0], memory), RB_ERR_INVALID_ARGUMENT, "rb_mem_register");
    as_ranks(nics, &config, peers);
    for (i = 0; i < RANKS; ++i) CHECK(rb_nic_close(nics[i]) == 0);
    if (!failed) puts("all checks passed");
    return failed;
}
