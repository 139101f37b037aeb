/* NICs that forward for each other, by the settings of rb_nic_config, for C99. usage: mesh TABLES UNPROVED: tables of bus:3, and the
 * same with a wrong proof. Run by tests/programs.rs. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define SECONDS 10000000u

/* `n` UDP ports of the loopback that are free now. */
static void free_ports(unsigned *ports, int n) {
    int fds[8], i;
    for (i = 0; i < n; i++) {
        struct sockaddr_in at;
        socklen_t len = sizeof at;
        memset(&at, 0, sizeof at);
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fds[i] = socket(AF_INET, SOCK_DGRAM, 0);
        CHECK(bind(fds[i], (struct sockaddr *)&at, sizeof at) == 0);
        CHECK(getsockname(fds[i], (struct sockaddr *)&at, &len) == 0);
        ports[i] = ntohs(at.sin_port);
    }
    for (i = 0; i < n; i++) close(fds[i]);
}

struct receiver {
    rb_context *context;
    uint32_t listener;
    unsigned char into[100000];
    int rounds; /* That were sent, once the sender has ended its side. */
};

static unsigned char byte(size_t i, int round) {
    return (unsigned char)(i * 7 + i / 251 + (size_t)round * 13);
}

static void *receive(void *argument) {
    struct receiver *r = argument;
    uint32_t conn = 0;
    uint64_t got = 0;
    size_t i, wrong = 0;
    rb_result result;
    int round;
    CHECK(rb_socket_accept(r->context, r->listener, &conn, NULL, SECONDS) == 0);
    for (round = 0; (result = rb_socket_recv(r->context, conn, r->into, sizeof r->into, &got, SECONDS)) == 0; round++) {
        for (i = 0; i < sizeof r->into; i++) wrong += r->into[i] != byte(i, round);
    }
    CHECK(result == RB_STATUS_END_OF_STREAM && got == 0 && wrong == 0 && round == r->rounds);
    CHECK(rb_socket_close(r->context, conn, 0) == 0);
    return NULL;
}

struct replacing {
    rb_nic *nic;
    const char *tables;
    rb_result result;
    int done;
};

static void *replace(void *argument) {
    struct replacing *r = argument;
    r->result = rb_nic_replace_routes(r->nic, r->tables, 6 * SECONDS);
    if (r->result != 0) fprintf(stderr, "%s\n", rb_last_error());
    __atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Elements of a collective: 80 KB, so that it goes by several packets and over the trees of the mesh. */
#define WORDS 20001

struct rank {
    rb_nic *nic;
    rb_communicator *comm;
    uint32_t me;
    struct replacing *replacing;
    int rounds; /* That were right, those after the replacement among them. */
};

static uint32_t value(uint32_t rank, size_t i, int round) { return (rank + 1) * 1000003u + (uint32_t)i * 7919u + (uint32_t)round; }

static size_t wrong_sums(const uint32_t *got, int round) {
    size_t i, wrong = 0;
    for (i = 0; i < WORDS; i++) wrong += got[i] != value(0, i, round) + value(1, i, round) + value(2, i, round);
    return wrong;
}

/* Reduces until the tables are replaced, and twice more: the last element counts the ranks that know it. */
static void *reduce(void *argument) {
    struct rank *r = argument;
    uint32_t *words = malloc((WORDS + 1) * 4), known = 0;
    void *src = NULL, *dst = NULL;
    int round, more = 2;
    size_t i;
    CHECK(rb_mem_alloc(r->nic, (WORDS + 1) * 4, &src) == 0 && rb_mem_alloc(r->nic, (WORDS + 1) * 4, &dst) == 0);
    for (round = 0; more > 0; round++) {
        uint32_t root = (uint32_t)round % 3;
        for (i = 0; i < WORDS; i++) words[i] = value(r->me, i, round);
        words[WORDS] = (uint32_t)__atomic_load_n(&r->replacing->done, __ATOMIC_ACQUIRE);
        CHECK(rb_mem_write(r->nic, src, words, (WORDS + 1) * 4) == 0);
        if (rb_all_reduce(src, dst, WORDS + 1, RB_DTYPE_U32, RB_REDOP_SUM, r->comm, NULL) != 0) break;
        CHECK(rb_mem_read(r->nic, words, dst, (WORDS + 1) * 4) == 0);
        if (wrong_sums(words, round) != 0) break;
        known = words[WORDS];
        if (rb_reduce(src, dst, WORDS, RB_DTYPE_U32, RB_REDOP_SUM, root, r->comm, NULL) != 0) break;
        CHECK(rb_mem_read(r->nic, words, dst, WORDS * 4) == 0);
        if (r->me == root && wrong_sums(words, round) != 0) break;
        more -= known == 3;
        r->rounds++;
    }
    CHECK(more == 0);
    CHECK(rb_mem_free(r->nic, src) == 0 && rb_mem_free(r->nic, dst) == 0);
    free(words);
    return NULL;
}

/* Collectives of all nodes go on while one of them replaces the tables. */
static void collectives_go_on(rb_nic **nics, const char *tables) {
    struct replacing replacing;
    struct rank ranks[3];
    rb_communicator *comms[3] = {NULL, NULL, NULL};
    pthread_t threads[3], other;
    uint32_t i;
    memset(&replacing, 0, sizeof replacing);
    memset(ranks, 0, sizeof ranks);
    replacing.nic = nics[2];
    replacing.tables = tables;
    CHECK(rb_comm_init_all(comms, nics, 3, NULL) == 0);
    for (i = 0; i < 3; i++) {
        ranks[i].nic = nics[i];
        ranks[i].comm = comms[i];
        ranks[i].me = i;
        ranks[i].replacing = &replacing;
        CHECK(pthread_create(&threads[i], NULL, reduce, &ranks[i]) == 0);
    }
    CHECK(pthread_create(&other, NULL, replace, &replacing) == 0);
    CHECK(pthread_join(other, NULL) == 0 && replacing.result == 0);
    for (i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    for (i = 0; i < 3; i++) CHECK(ranks[i].rounds == ranks[0].rounds && rb_comm_destroy(comms[i]) == 0);
}

int main(int argc, char **argv) {
    static unsigned char sent[100000];
    static struct receiver r;
    unsigned ports[6];
    char wires[3][128], spare[128], ip[3][24];
    rb_nic *nics[3] = {NULL, NULL, NULL}, *none = NULL;
    rb_context *context = NULL;
    rb_nic_config config;
    struct replacing replacing;
    pthread_t thread, other;
    uint32_t conn = 0;
    size_t i;
    int round;
    if (argc != 3) return 100;
    /* n0:1 -- n1:0 and n1:1 -- n2:0, as `ringbell routes bus:3` prints them. */
    free_ports(ports, 6);
    snprintf(wires[0], sizeof wires[0], "1=udp:127.0.0.1:%u,127.0.0.1:%u", ports[0], ports[1]);
    snprintf(wires[1], sizeof wires[1], "0=udp:127.0.0.1:%u,127.0.0.1:%u;1=udp:127.0.0.1:%u,127.0.0.1:%u", ports[1], ports[0], ports[2],
             ports[3]);
    snprintf(wires[2], sizeof wires[2], "0=udp:127.0.0.1:%u,127.0.0.1:%u", ports[3], ports[2]);
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.port = "mesh:bus:3";
    config.transport = "rdma";
    config.gpu_memory_bytes = 16u << 20;
    config.wire_grace_ms = 200;
    config.wire_poll = 2;
    for (i = 0; i < 3; i++) {
        snprintf(ip[i], sizeof ip[i], "10.6.81.%u/24", (unsigned)i + 1);
        config.ip = ip[i];
        config.node = (uint32_t)i;
        config.wires = wires[i];
        CHECK(rb_nic_open(&config, &nics[i]) == 0);
    }
    CHECK(rb_host_register(nics[0], sent, sizeof sent) == 0 && rb_host_register(nics[2], r.into, sizeof r.into) == 0);
    CHECK(rb_context_create(nics[2], &r.context) == 0 && rb_context_create(nics[0], &context) == 0);
    CHECK(rb_socket_open(r.context, &r.listener, 0) == 0 && rb_socket_listen(r.context, r.listener, 7000, 1, 0) == 0);
    CHECK(pthread_create(&thread, NULL, receive, &r) == 0);
    CHECK(rb_socket_open(context, &conn, 0) == 0 && rb_socket_connect(context, conn, "10.6.81.3", 7000, SECONDS) == 0);
    /* Node 1 replaces the tables meanwhile. */
    memset(&replacing, 0, sizeof replacing);
    replacing.nic = nics[1];
    replacing.tables = argv[1];
    for (round = 0; round < 4 || !__atomic_load_n(&replacing.done, __ATOMIC_ACQUIRE); round++) {
        for (i = 0; i < sizeof sent; i++) sent[i] = byte(i, round);
        if (round == 3) CHECK(pthread_create(&other, NULL, replace, &replacing) == 0);
        CHECK(rb_socket_send(context, conn, sent, sizeof sent, SECONDS) == 0);
    }
    r.rounds = round;
    CHECK(rb_socket_shutdown(context, conn, SECONDS) == 0);
    CHECK(pthread_join(other, NULL) == 0 && replacing.result == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    FAILS(rb_nic_replace_routes(nics[0], argv[2], 0), RB_ERR_HOST, "not replaced, at any node: the proof does not hold: n0:1#0 depends on");
    FAILS(rb_nic_replace_routes(nics[0], "/nowhere/tables.json", 0), RB_ERR_HOST, "/nowhere/tables.json");
    FAILS(rb_nic_replace_routes(nics[0], NULL, 0), RB_ERR_INVALID_ARGUMENT, "`file`");
    CHECK(rb_socket_close(context, conn, 0) == 0);
    collectives_go_on(nics, argv[1]);
    /* What cannot be read, a node that the network lacks, and tables that are not there. */
    config.ip = "10.6.81.9/24";
    config.wires = "1=";
    FAILS(rb_nic_open(&config, &none), RB_ERR_INVALID_ARGUMENT, "config->wires");
    snprintf(spare, sizeof spare, "1=udp:127.0.0.1:%u,127.0.0.1:%u", ports[4], ports[5]);
    config.wires = spare;
    config.node = 3;
    FAILS(rb_nic_open(&config, &none), RB_ERR_HOST, "bus:3");
    config.node = 0;
    config.tables = "/nowhere/tables.json";
    FAILS(rb_nic_open(&config, &none), RB_ERR_HOST, "/nowhere/tables.json");
    config.tables = NULL;
    config.wire_poll = 5000;
    FAILS(rb_nic_open(&config, &none), RB_ERR_INVALID_ARGUMENT, "config->wire_poll: 5000 packets");
    config.reserved2 = 1;
    FAILS(rb_nic_open(&config, &none), RB_ERR_INVALID_ARGUMENT, "zero the structure");
    /* The node on the way ends: what has no way names the wire, both on the session and for a new one. */
    CHECK(rb_socket_open(r.context, &r.listener, 0) == 0 && rb_socket_listen(r.context, r.listener, 7001, 1, 0) == 0);
    CHECK(rb_socket_open(context, &conn, 0) == 0 && rb_socket_connect(context, conn, "10.6.81.3", 7001, SECONDS) == 0);
    CHECK(rb_nic_close(nics[1]) == 0);
    FAILS(rb_socket_recv(context, conn, sent, 1, NULL, SECONDS), RB_STATUS_HOST_UNREACHABLE, "no way to n2: missing n0:1 -- n1:0");
    CHECK(rb_socket_open(context, &conn, 0) == 0);
    FAILS(rb_socket_connect(context, conn, "10.6.81.3", 7001, SECONDS), RB_STATUS_HOST_UNREACHABLE, "no way to n2: missing n0:1 -- n1:0");
    /* One that forwards for nobody. */
    CHECK(rb_nic_open(NULL, &none) == 0);
    FAILS(rb_nic_replace_routes(none, argv[1], 0), RB_ERR_INVALID_ARGUMENT, "no port `mesh`");
    CHECK(rb_nic_close(none) == 0);
    CHECK(rb_context_destroy(context) == 0 && rb_context_destroy(r.context) == 0);
    for (i = 0; i < 3; i += 2) CHECK(rb_nic_close(nics[i]) == 0);
    if (!failed) puts("all checks passed");
    return failed != 0;
}
