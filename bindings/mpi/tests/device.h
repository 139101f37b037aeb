/* Memory of a GPU for the tests, by the driver's interface: no header of CUDA and no library is needed to build them. Without the
 * environment's RINGBELL_TEST_DRIVER (a libcuda) the tests use memory of the host, and print the same. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    int (*alloc)(uint64_t *, size_t), (*freed)(uint64_t);
    int (*to)(uint64_t, const void *, size_t, void *), (*from)(void *, uint64_t, size_t, void *);
    int (*synchronize)(void *);
    void *stream;
} cuda;

static void sure(int result, const char *call) {
    if (result == 0) return;
    fprintf(stderr, "%s: CUresult %d\n", call, result);
    exit(3);
}

static void *symbol(void *library, const char *name) {
    void *at = dlsym(library, name);
    if (!at) {
        fprintf(stderr, "libcuda has no %s\n", name);
        exit(3);
    }
    return at;
}

/* Whether there is a GPU to use. Call it once. */
static int device_open(void) {
    const char *file = getenv("RINGBELL_TEST_DRIVER");
    if (!file) return 0;
    void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL), *context;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    int (*init)(unsigned) = (int (*)(unsigned))symbol(library, "cuInit");
    int (*get)(int *, int) = (int (*)(int *, int))symbol(library, "cuDeviceGet");
    int (*retain)(void **, int) = (int (*)(void **, int))symbol(library, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))symbol(library, "cuCtxSetCurrent");
    int (*stream)(void **, unsigned) = (int (*)(void **, unsigned))symbol(library, "cuStreamCreate");
    cuda.alloc = (int (*)(uint64_t *, size_t))symbol(library, "cuMemAlloc_v2");
    cuda.freed = (int (*)(uint64_t))symbol(library, "cuMemFree_v2");
    cuda.to = (int (*)(uint64_t, const void *, size_t, void *))symbol(library, "cuMemcpyHtoDAsync_v2");
    cuda.from = (int (*)(void *, uint64_t, size_t, void *))symbol(library, "cuMemcpyDtoHAsync_v2");
    cuda.synchronize = (int (*)(void *))symbol(library, "cuStreamSynchronize");
    int device;
    sure(init(0), "cuInit");
    sure(get(&device, 0), "cuDeviceGet");
    sure(retain(&context, device), "cuDevicePrimaryCtxRetain");
    sure(current(context), "cuCtxSetCurrent");
    sure(stream(&cuda.stream, 1), "cuStreamCreate");
    return 1;
}

/* A copy of so many bytes on the GPU. */
static char *device_copy(const void *host, size_t bytes) {
    uint64_t at;
    sure(cuda.alloc(&at, bytes), "cuMemAlloc");
    sure(cuda.to(at, host, bytes, cuda.stream), "cuMemcpyHtoDAsync");
    sure(cuda.synchronize(cuda.stream), "cuStreamSynchronize");
    return (char *)(uintptr_t)at;
}

/* Copies it back, and frees it. */
static void device_return(void *host, char *device, size_t bytes) {
    sure(cuda.from(host, (uint64_t)(uintptr_t)device, bytes, cuda.stream), "cuMemcpyDtoHAsync");
    sure(cuda.synchronize(cuda.stream), "cuStreamSynchronize");
    sure(cuda.freed((uint64_t)(uintptr_t)device), "cuMemFree");
}
