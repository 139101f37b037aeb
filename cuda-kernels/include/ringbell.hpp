/* ringbell.hpp - kernels and the program that launches them, in one file: `ringbell cc my.cu`.
 *
 *   __global__ void hello(rb_queue q, gpu_result *out) { *out = gpu_nop(q); }
 *   int main() {
 *     rb_nic *nic; rb_queue q; void *out;
 *     if (rb_nic_open(nullptr, &nic) || rb_queue_create(nic, &q) || rb_mem_alloc(nic, sizeof(gpu_result), &out)) ...
 *     rb::running run = rb::launch(nic, hello, 1, 32, q, static_cast<gpu_result *>(out));
 *     if (run.wait() != 0) std::fprintf(stderr, "%s\n", run.error());
 *   }
 *
 * A kernel runs on the GPU of its NIC and reaches that GPU's memory. clang puts the kernels' PTX into the program;
 * `rb::launch` loads it into the GPU once, so the program runs beside an emulated GPU and beside a real one. Under nvcc
 * the same call is `kernel<<<grid, block>>>(...)`, on the device that is current: the program makes the NIC's device
 * current itself.
 */
#ifndef RINGBELL_HPP
#define RINGBELL_HPP

#include "ringbell.cuh"
#include "ringbell.h"

#include <string>

#ifdef __NVCC__

namespace rb {

/* A kernel that was launched. */
class running {
 public:
  explicit running(cudaError_t launched) : end_(launched) {}
  /* Waits for everything on the default stream; CUDA has no deadline here, the kernel's own time-outs end it. */
  rb_result wait(unsigned = 0) {
    if (end_ == cudaSuccess) end_ = cudaDeviceSynchronize();
    return end_ == cudaSuccess ? 0 : RB_ERR_KERNEL;
  }
  const char *error() const { return end_ == cudaSuccess ? "" : cudaGetErrorString(end_); }

 private:
  cudaError_t end_;
};

template <class... P, class... A> running launch(rb_nic *, void (*kernel)(P...), dim3 grid, dim3 block, A &&...args) {
  kernel<<<grid, block>>>(P(static_cast<A &&>(args))...);
  return running(cudaGetLastError());
}

} // namespace rb

#else

#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <type_traits>
#include <utility>

namespace rb {
namespace detail {

/* Where a kernel's PTX is, and the name that it has there. */
struct kernel_entry {
  const void *image;
  const char *name;
};

/* What the compiler has registered before `main`, and what was loaded since. */
struct program {
  std::mutex mutex;
  std::map<const void *, kernel_entry> kernels;         /* by their addresses in the program */
  std::set<std::pair<rb_nic *, const void *>> loaded;   /* a handle of a NIC has one number for ever */

  static program &self() {
    static program one;
    return one;
  }

  /* The name of a kernel, once its image is in the GPU of the NIC. */
  rb_result find(rb_nic *nic, const void *kernel, const char **name) {
    std::lock_guard<std::mutex> hold(mutex);
    auto known = kernels.find(kernel);
    if (known == kernels.end()) return RB_ERR_INVALID_ARGUMENT;
    const void *image = known->second.image;
    *name = known->second.name;
    if (loaded.count({nic, image})) return 0;
    /* A fat binary: bytes of its header, and of what follows (16 and 64 bits, at 6 and 8). */
    const unsigned char *at = static_cast<const unsigned char *>(image);
    size_t bytes = *reinterpret_cast<const uint16_t *>(at + 6) + size_t(*reinterpret_cast<const uint64_t *>(at + 8));
    rb_result end = rb_module_load_data(nic, image, bytes);
    if (end == 0) loaded.insert({nic, image});
    return end;
  }
};

/* How the compiler refers to a fat binary. */
struct fatbin_wrapper {
  int magic, version;
  const void *image;
  void *unused;
};

} // namespace detail

/* A kernel that was launched. Its destructor waits for the kernel to end, which its time-outs see to. */
class running {
 public:
  running(rb_run *run, rb_result end) : run_(run), end_(end) {
    if (end_) error_ = rb_last_error();
  }
  running(running &&other) : run_(std::exchange(other.run_, nullptr)), end_(other.end_), error_(std::move(other.error_)) {}
  running &operator=(running &&) = delete;
  ~running() {
    while (wait() == RB_STATUS_TIMED_OUT) {
    }
  }

  /* 0: it ran to its end. RB_STATUS_TIMED_OUT: it still runs, wait again. RB_ERR_KERNEL: see error(). */
  rb_result wait(unsigned milliseconds = 60000) {
    if (!run_) return end_;
    /* 0 would be the call's own default. */
    rb_result end = rb_run_wait(run_, milliseconds ? milliseconds * uint64_t(1000) : 1);
    if (end == RB_STATUS_TIMED_OUT) return end;
    run_ = nullptr;
    end_ = end;
    if (end_) error_ = rb_last_error();
    return end_;
  }

  /* Why the kernel was not launched, or failed, and in which block; "" before that. Valid while this object lives. */
  const char *error() const { return error_.c_str(); }

 private:
  rb_run *run_;
  rb_result end_;
  std::string error_;
};

/* Launches `kernel` on the GPU of a NIC, on a stream of its own, and returns at once. */
template <class... P, class... A> running launch(rb_nic *nic, void (*kernel)(P...), dim3 grid, dim3 block, A &&...args) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
  std::tuple<std::decay_t<P>...> values(std::forward<A>(args)...);
  const char *name = nullptr;
  rb_run *run = nullptr;
  rb_result end = detail::program::self().find(nic, reinterpret_cast<const void *>(kernel), &name);
  if (end == 0) {
    const uint32_t blocks[3] = {grid.x, grid.y, grid.z}, threads[3] = {block.x, block.y, block.z};
    end = std::apply(
        [&](auto &...value) {
          const rb_arg list[sizeof...(value) + 1] = {{&value, sizeof value}..., {nullptr, 0}};
          return rb_launch(nic, name, blocks, threads, list, uint32_t(sizeof...(value)), &run);
        },
        values);
  }
  return running(run, end);
}

} // namespace rb

/* Called by code that clang adds to a program with kernels. Each program has its own, beside any runtime of CUDA's. */
#define RB_HOST_HOOK extern "C" __attribute__((used, visibility("hidden"))) inline
RB_HOST_HOOK void **__cudaRegisterFatBinary(void *wrapper) {
  return static_cast<void **>(const_cast<void *>(static_cast<rb::detail::fatbin_wrapper *>(wrapper)->image));
}
RB_HOST_HOOK void __cudaRegisterFatBinaryEnd(void **) {}
RB_HOST_HOOK void __cudaUnregisterFatBinary(void **) {}
RB_HOST_HOOK void __cudaRegisterFunction(void **image, const char *kernel, char *, const char *name, int, void *, void *, void *, void *,
                                         int *) {
  rb::detail::program::self().kernels[kernel] = {image, name};
}
RB_HOST_HOOK void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
/* A kernel's body on the host, which `<<<>>>` would call and rb::launch does not. */
RB_HOST_HOOK cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *) { return cudaErrorInvalidDeviceFunction; }
RB_HOST_HOOK cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t) { return cudaErrorInvalidDeviceFunction; }
#undef RB_HOST_HOOK

#endif

#endif /* RINGBELL_HPP */
