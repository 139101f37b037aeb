/* Times and rates of the network plug-in between two processes of this host, beside TCP over loopback with as many buffers, in turn. Each message has its
 * number at both ends, which the receiver checks, and a content that is compared at the end of each turn.
 *
 * measure PLUGIN VERSION TURNS. It prints medians. */
#include "net.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>

enum { MOST = 4 << 20, SLOTS = 8, MAX_TURNS = 99 };
static unsigned char *memory, *got; /* SLOTS messages each. */
static int stream, side;
static Pair p;
static void *out, *in;

static unsigned char *slot(unsigned char *of, int i) { return of + (size_t)(i % SLOTS) * MOST; }

static void stamp(unsigned char *at, size_t size, uint64_t number) {
    memcpy(at, &number, 8);
    memcpy(at + size - 8, &number, 8);
}
static void check_stamp(const unsigned char *at, size_t size, uint64_t number) {
    check(!memcmp(at, &number, 8) && !memcmp(at + size - 8, &number, 8));
}
/* The rest of what each used slot holds. */
static void check_slots(size_t size, int count) {
    for (int i = 0; i < count; i++) {
        uint64_t number;
        memcpy(&number, slot(got, i), 8);
        fill(slot(memory, i), size, (uint64_t)i);
        stamp(slot(memory, i), size, number);
        check(!memcmp(slot(memory, i), slot(got, i), size));
    }
}

static void send_all(const unsigned char *at, size_t size) {
    while (size) {
        ssize_t n = send(stream, at, size, 0);
        check(n > 0);
        at += n, size -= (size_t)n;
    }
}
static void recv_all(unsigned char *at, size_t size) {
    while (size) {
        ssize_t n = recv(stream, at, size, 0);
        check(n > 0);
        at += n, size -= (size_t)n;
    }
}

static void *post_recv(int i, size_t size) {
    void *at = slot(got, i), *request = NULL;
    int tag = 0;
    while (!request) must(net->irecv(p.recv, 1, &at, &size, &tag, &in, NULL, &request));
    return request;
}
static void *post_send(int i, size_t size) {
    void *request = NULL;
    while (!request) must(net->isend(p.send, slot(memory, i), size, 0, out, NULL, &request));
    return request;
}
static void end(void *request, size_t size) {
    int done = 0, length = 0;
    while (!done) must(net->test(request, &done, &length));
    check((size_t)length == size);
}

/* Messages of one direction, so many under way. Seconds. */
static double one_way(int tcp, size_t size, int under_way, int count) {
    void *ring[SLOTS] = { NULL };
    for (int i = 0; i < SLOTS; i++) fill(slot(memory, i), size, (uint64_t)i);
    meet();
    double begin = now();
    for (int i = 0; i < count + under_way; i++) {
        int at = i % under_way;
        if (tcp) {
            if (i >= count) break;
            if (!side) {
                stamp(slot(memory, at), size, (uint64_t)i);
                send_all(slot(memory, at), size);
            } else {
                recv_all(slot(got, at), size);
                check_stamp(slot(got, at), size, (uint64_t)i);
            }
            continue;
        }
        if (ring[at]) {
            end(ring[at], size);
            if (side) check_stamp(slot(got, at), size, (uint64_t)(i - under_way));
            ring[at] = NULL;
        }
        if (i >= count) continue;
        if (side) {
            ring[at] = post_recv(at, size);
        } else {
            stamp(slot(memory, at), size, (uint64_t)i);
            ring[at] = post_send(at, size);
        }
    }
    meet();
    double took = now() - begin;
    if (side) check_slots(size, under_way);
    return took;
}

/* There and back. Seconds. */
static double ping_pong(int tcp, size_t size, int count) {
    fill(slot(memory, 0), size, 0);
    meet();
    double begin = now();
    for (int i = 0; i < count; i++) {
        for (int half = 0; half < 2; half++) {
            uint64_t number = (uint64_t)(2 * i + half);
            if (half == side) {
                stamp(slot(memory, 0), size, number);
                if (tcp) send_all(slot(memory, 0), size);
                else end(post_send(0, size), size);
            } else {
                if (tcp) recv_all(slot(got, 0), size);
                else end(post_recv(0, size), size);
                check_stamp(slot(got, 0), size, number);
            }
        }
    }
    meet();
    double took = now() - begin;
    check_slots(size, 1);
    return took;
}

static void connect_streams(void) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    int one = 1;
    stream = socket(AF_INET, SOCK_STREAM, 0);
    check(stream >= 0);
    if (!side) {
        check(!bind(stream, (struct sockaddr *)&at, length) && !listen(stream, 1));
        check(!getsockname(stream, (struct sockaddr *)&at, &length));
        tell(&at, sizeof at);
        int listening = stream;
        stream = accept(listening, NULL, NULL);
        check(stream >= 0);
        close(listening);
    } else {
        hear(&at, sizeof at);
        check(!connect(stream, (struct sockaddr *)&at, sizeof at));
    }
    check(!setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians of the plug-in's seconds and of TCP's. */
static void row(size_t size, int under_way, int turns) {
    double times[2][MAX_TURNS];
    int count = (int)((under_way ? 256u << 20 : 16u << 20) / size);
    if (count > 4000) count = 4000;
    if (count < 48) count = 48;
    for (int turn = 0; turn <= turns; turn++)
        for (int tcp = 0; tcp < 2; tcp++) {
            double took = under_way ? one_way(tcp, size, under_way, count) : ping_pong(tcp, size, count);
            if (turn) times[tcp][turn - 1] = took; /* The first one warms up. */
        }
    if (side) return;
    for (int tcp = 0; tcp < 2; tcp++) qsort(times[tcp], (size_t)turns, sizeof(double), by_size);
    double ours = times[0][turns / 2], theirs = times[1][turns / 2];
    if (under_way) {
        double bytes = (double)size * count * 1e-9;
        printf("%9zu %9d %12.2f %12.2f %8.2fx\n", size, under_way, bytes / ours, bytes / theirs, theirs / ours);
    } else {
        printf("%9zu %9s %12.2f %12.2f %8.2fx\n", size, "", ours / count / 2 * 1e6, theirs / count / 2 * 1e6, theirs / ours);
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    int turns = argc == 4 ? atoi(argv[3]) : 0, status;
    if (turns < 1 || turns > MAX_TURNS) die("measure PLUGIN VERSION TURNS");
    plugin = argv[1];
    version = argv[2];
    pid_t child;
    side = split(&child);
    alarm(500);
    start();
    p = pair_up(0);
    connect_streams();
    memory = malloc((size_t)SLOTS * MOST);
    got = malloc((size_t)SLOTS * MOST);
    memset(memory, 1, (size_t)SLOTS * MOST);
    memset(got, 1, (size_t)SLOTS * MOST);
    must(net->regMr(p.send, memory, (size_t)SLOTS * MOST, HOST, &out));
    must(net->regMr(p.recv, got, (size_t)SLOTS * MOST, HOST, &in));
    if (!side) printf("%9s %9s %12s %12s %9s\n", "bytes", "under way", "Ringbell", "TCP", "faster");
    if (!side) printf("one way, us\n");
    static const size_t short_sizes[] = { 8, 1024, 16 << 10, 64 << 10 };
    for (int s = 0; s < 4; s++) row(short_sizes[s], 0, turns);
    if (!side) printf("GB/s\n");
    for (size_t size = 64 << 10; size <= MOST; size *= 4)
        for (int under_way = 1; under_way <= SLOTS; under_way *= 2) row(size, under_way, turns);
    must(net->deregMr(p.send, out));
    must(net->deregMr(p.recv, in));
    part(p);
    finish();
    if (side) return 0;
    check(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    return 0;
}
