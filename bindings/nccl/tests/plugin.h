/* What the drivers of the plug-in have in common: how they load it, its log, and how they fail. The declarations are our own, after NCCL's
 * documentation. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, SYSTEM = 2, INTERNAL = 3, ARGUMENT = 4, USAGE = 5, REMOTE = 6 };
enum { HOST = 1, CUDA = 2, REQUESTS = 32 };
typedef void (*Logger)(int, unsigned long, const char *, int, const char *, ...);

static void *ctx;
static const char *plugin, *version;
static const char *process_name = "driver"; /* With its number. */
static int process_number;

/* What the plug-in has warned of. */
static char warned[8192];
static pthread_mutex_t logging = PTHREAD_MUTEX_INITIALIZER;

#define die(...) do { fprintf(stderr, "%s %d, line %d: ", process_name, process_number, __LINE__); fprintf(stderr, __VA_ARGS__); \
    fputc('\n', stderr); fflush(stderr); _exit(1); } while (0)
#define must(call) do { int r_ = (call); if (r_ != OK) die("%s: %d; %s", #call, r_, warned); } while (0)
#define check(that) do { if (!(that)) die("not so: %s; %s", #that, warned); } while (0)

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    char text[2048];
    va_list args;
    (void)flags; (void)file; (void)line;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&logging);
    if (level == 2) strncat(warned, text, sizeof warned - strlen(warned) - 1);
    if (getenv("DRIVER_LOG")) fprintf(stderr, "[%s %d] %d %s\n", process_name, process_number, level, text);
    pthread_mutex_unlock(&logging);
}

/* A table of the plug-in, of the version that is tested. */
static inline void *table(const char *of) {
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) die("%s", dlerror());
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s_v%s", of, version);
    void *found = dlsym(library, symbol);
    if (!found) die("%s", dlerror());
    return found;
}

/* Pseudo-random numbers: the same in all processes. */
static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
static inline uint64_t next(uint64_t *state) { return mix(*state += 0x9e3779b97f4a7c15u); }
