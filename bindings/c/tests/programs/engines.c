/* Engines at sockets, queues and communicators, for C99 and for C++: this file is compiled as both. usage: engines DIRECTORY.
 * Run by tests/programs.rs. */
#include "ranks.h"

#define COUNT 30011
/* Different items among them. */
#define DIFFERENT 9973

static rb_nic *nics[RANKS];
static uint32_t data[COUNT];

static rb_engine_config engine(const char *spec, uint32_t place) {
    rb_engine_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.spec = spec;
    config.place = place;
    return config;
}

static void counted(const rb_hll_summary *s, uint64_t items, double different) {
    CHECK(s->items == items);
    CHECK(s->estimate > different * (1 - 4 * s->relative_error) && s->estimate < different * (1 + 4 * s->relative_error));
}

/* CRC-32C, bit by bit (RFC 3720, 12.1). */
static uint64_t crc32c(const void *bytes, size_t count) {
    const unsigned char *p = (const unsigned char *)bytes;
    uint32_t crc = 0xffffffffu;
    size_t i;
    int bit;
    for (i = 0; i < count; ++i) {
        crc ^= p[i];
        for (bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return crc ^ 0xffffffffu;
}

/* The sending end of one connection: the kernel's queue of its context is watched. */
static void *sender(void *unused) {
    rb_context *context = NULL;
    rb_engine_config config = engine("checksum", RB_ENGINE_SENT);
    rb_checksum_result sum;
    uint32_t sock = 0, id = 0;
    size_t bytes = 0;
    void *va = NULL;
    (void)unused;
    CHECK(rb_context_create(nics[1], &context) == 0);
    CHECK(rb_socket_open(context, &sock, 0) == 0);
    CHECK(rb_socket_connect(context, sock, "10.6.4.1", 7001, 0) == 0);
    CHECK(rb_mem_alloc(nics[1], sizeof data, &va) == 0);
    CHECK(rb_mem_write(nics[1], va, data, sizeof data) == 0);
    config.flags = RB_ENGINE_PER_STREAM;
    CHECK(rb_engine_attach_context(context, &config, &id) == 0);
    CHECK(rb_socket_send(context, sock, va, sizeof data, 0) == 0);
    FAILS(rb_engine_result(nics[1], id, &sum, sizeof sum, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "each");
    CHECK(rb_engine_result_of_socket(nics[1], id, sock, &sum, sizeof sum, &bytes, NULL) == 0);
    CHECK(bytes == sizeof sum && sum.bytes == sizeof data && sum.crc32c == crc32c(data, sizeof data));
    FAILS(rb_engine_result_of_socket(nics[1], id, sock + 1, &sum, sizeof sum, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "");
    CHECK(rb_engine_detach(nics[1], id, NULL, 0, NULL, NULL) == 0);
    CHECK(rb_socket_close(context, sock, 0) == 0);
    return NULL;
}

static void sockets(void) {
    rb_context *context = NULL;
    rb_engine_config config = engine("hll:p=12", RB_ENGINE_RECEIVED);
    struct {
        rb_hll_summary summary;
        unsigned char image[8192];
    } result;
    pthread_t thread;
    uint32_t listener = 0, conn = 0, id = 0, again = 0;
    uint64_t cut = 7;
    size_t bytes = 0;
    void *va = NULL;
    CHECK(rb_context_create(nics[0], &context) == 0);
    CHECK(rb_mem_alloc(nics[0], sizeof data, &va) == 0);
    CHECK(rb_socket_open(context, &listener, 0) == 0);
    CHECK(rb_socket_listen(context, listener, 7001, 1, 0) == 0);
    CHECK(pthread_create(&thread, NULL, sender, NULL) == 0);
    FAILS(rb_engine_attach_socket(nics[0], listener, &config, &id), RB_ERR_INVALID_ARGUMENT, "stream");
    CHECK(rb_socket_accept(context, listener, &conn, NULL, 0) == 0);
    CHECK(rb_engine_attach_socket(nics[0], conn, &config, &id) == 0);
    FAILS(rb_engine_attach_socket(nics[0], conn, &config, &again), RB_ERR_INVALID_ARGUMENT, "");
    CHECK(rb_socket_recv(context, conn, va, sizeof data, NULL, 0) == 0);
    CHECK(rb_engine_result(nics[0], id, &result, sizeof result, &bytes, &cut) == 0);
    CHECK(cut == 0 && bytes == sizeof result.summary + result.summary.image_bytes);
    counted(&result.summary, COUNT, DIFFERENT);
    /* The beginning is there also where the rest has no room. */
    memset(&result, 0, sizeof result);
    FAILS(rb_engine_result(nics[0], id, &result, sizeof result.summary, &bytes, NULL), RB_ERR_INVALID_ARGUMENT, "room for 32");
    counted(&result.summary, COUNT, DIFFERENT);
    CHECK(rb_engine_detach(nics[0], id, &result, sizeof result, &bytes, NULL) == 0);
    FAILS(rb_engine_result(nics[0], id, &result, sizeof result, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "engine");
    FAILS(rb_engine_detach(nics[0], id, NULL, 0, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "engine");
    CHECK(rb_socket_close(context, conn, 0) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(rb_socket_close(context, listener, 0) == 0);
}

/* What is wrong is named. */
static void mistakes(void) {
    rb_engine_config config = engine("hll:p=99", RB_ENGINE_RECEIVED);
    rb_queue queue;
    uint32_t id = 0;
    CHECK(rb_queue_create(nics[0], &queue) == 0);
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "99");
    config = engine("no-such", RB_ENGINE_RECEIVED);
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "checksum");
    config = engine(NULL, RB_ENGINE_RECEIVED);
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "config->spec");
    config = engine("cast:f32-bf16", RB_ENGINE_RECEIVED);
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "");
    config = engine("checksum", RB_ENGINE_INPUT);
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "communicator");
    config = engine("checksum", 4);
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "config->place");
    config = engine("checksum", RB_ENGINE_SENT);
    config.flags = 2;
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "config->flags");
    config.flags = RB_ENGINE_PER_STREAM;
    FAILS(rb_engine_attach_socket(nics[0], 0, &config, &id), RB_ERR_INVALID_ARGUMENT, "one stream");
    config.size = 1;
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, &id), RB_ERR_INVALID_ARGUMENT, "config->size");
    FAILS(rb_engine_attach_queue(nics[0], &queue, NULL, &id), RB_ERR_INVALID_ARGUMENT, "`config`");
    config = engine("checksum", RB_ENGINE_SENT);
    FAILS(rb_engine_attach_queue(nics[0], NULL, &config, &id), RB_ERR_INVALID_ARGUMENT, "`queue`");
    FAILS(rb_engine_attach_queue(nics[0], &queue, &config, NULL), RB_ERR_INVALID_ARGUMENT, "`engine`");
    CHECK(rb_engine_attach_queue(nics[0], &queue, &config, &id) == 0);
    FAILS(rb_engine_result(nics[0], id, NULL, 16, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "`result`");
    CHECK(rb_engine_detach(nics[0], id, NULL, 0, NULL, NULL) == 0);
}

/* Each rank has half of the items; the result of the gathering has all, and what one sends the other receives. */
static void *ranks(void *argument) {
    struct rank *r = (struct rank *)argument;
    rb_engine_config output = engine("hll:p=12,result=summary", RB_ENGINE_OUTPUT);
    rb_engine_config input = engine("checksum", RB_ENGINE_INPUT);
    rb_engine_config messages = engine("checksum", r->me ? RB_ENGINE_SENT : RB_ENGINE_RECEIVED);
    rb_hll_summary summary;
    rb_checksum_result sum;
    uint32_t half = COUNT / RANKS, at = r->me * half, hll = 0, source = 0, passed = 0;
    void *mine = NULL, *all = NULL;
    CHECK(rb_mem_alloc(r->nic, half * 4, &mine) == 0 && rb_mem_alloc(r->nic, half * 4 * RANKS, &all) == 0);
    CHECK(rb_mem_write(r->nic, mine, data + at, half * 4) == 0);
    CHECK(rb_engine_attach_comm(r->comm, &output, &hll) == 0);
    CHECK(rb_engine_attach_comm(r->comm, &input, &source) == 0);
    output.flags = RB_ENGINE_PER_STREAM;
    FAILS(rb_engine_attach_comm(r->comm, &output, &passed), RB_ERR_INVALID_ARGUMENT, "");
    CHECK(rb_all_gather(mine, all, half, RB_DTYPE_U32, r->comm, NULL) == 0);
    CHECK(rb_engine_detach(r->nic, hll, &summary, sizeof summary, NULL, NULL) == 0);
    counted(&summary, half * RANKS, DIFFERENT);
    CHECK(rb_engine_detach(r->nic, source, &sum, sizeof sum, NULL, NULL) == 0);
    CHECK(sum.bytes == half * 4 && sum.crc32c == crc32c(data + at, half * 4));

    messages.flags = RB_ENGINE_PER_STREAM;
    CHECK(rb_engine_attach_comm(r->comm, &messages, &passed) == 0);
    CHECK(rb_barrier(r->comm, NULL) == 0);
    if (r->me == 1) CHECK(rb_send(mine, half, RB_DTYPE_U32, 0, 3, r->comm, NULL) == 0);
    if (r->me == 0) CHECK(rb_recv(mine, half, RB_DTYPE_U32, 1, 3, r->comm, NULL) == 0);
    CHECK(rb_engine_result_of_rank(r->nic, passed, 1 - r->me, &sum, sizeof sum, NULL, NULL) == 0);
    CHECK(sum.bytes >= half * 4);
    FAILS(rb_engine_result_of_rank(r->nic, passed, 5, &sum, sizeof sum, NULL, NULL), RB_ERR_INVALID_ARGUMENT, "5");
    CHECK(rb_barrier(r->comm, NULL) == 0);
    return NULL;
}

int main(int argc, char **argv) {
    rb_comm_config config = RB_COMM_CONFIG_INITIALIZER;
    uint32_t i;
    if (argc != 2) return 99;
    for (i = 0; i < COUNT; ++i) data[i] = i % DIFFERENT * 2654435761u;
    for (i = 0; i < RANKS; ++i) nics[i] = open_nic(argv[1], 4, i);
    sockets();
    mistakes();
    as_ranks(nics, &config, ranks);
    for (i = 0; i < RANKS; ++i) CHECK(rb_nic_close(nics[i]) == 0);
    if (!failed) puts("all checks passed");
    return failed;
}
