/* ringbell.hpp - kernels and the program that launches them, in one file: `ringbell cc my.cu`.
 *
 *   extern "C" __global__ void hello(rb_queue q, gpu_result *out) { *out = gpu_nop(q); }
 *   int main() {
 *     rb_nic *nic; rb_queue q; void *out;
 *     if (rb_nic_open(nullptr, &nic) || rb_queue_create(nic, &q) || rb_mem_alloc(nic, sizeof(gpu_result), &out)) ...
 *     rb::running run = rb::launch(hello, 1, 32, q, static_cast<gpu_result *>(out));
 *     if (run.wait() != 0) std::fprintf(stderr, "%s\n", run.error());
 *   }
 *
 * On the emulated GPU (g++) the blocks run on threads of the program, each block's lanes as fibres. Under
 * nvcc the same call is `kernel<<<grid, block>>>(...)`, on the device that is current. rb_nic_open takes the real GPU
 * where there is one, and rb_mem_alloc's memory is then that GPU's; RINGBELL_GPU=cuda:N names another, which the
 * program must make current itself. Kernels that g++ has compiled run on the emulated GPU alone: start such a program
 * with RINGBELL_GPU=emulated on a machine with a GPU.
 */
#ifndef RINGBELL_HPP
#define RINGBELL_HPP

#include "ringbell.cuh"
#include "ringbell.h"

#ifdef __CUDACC__

#include <string>

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

template <class... P, class... A> running launch(void (*kernel)(P...), dim3 grid, dim3 block, A &&...args) {
  kernel<<<grid, block>>>(P(static_cast<A &&>(args))...);
  return running(cudaGetLastError());
}

} // namespace rb

#else

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

/* Stack of a lane of a block that has more than one. */
#ifndef RB_LANE_STACK_BYTES
#define RB_LANE_STACK_BYTES (64u << 10)
#endif
/* Most blocks of one launch that run at the same time. */
#ifndef RB_LAUNCH_THREADS
#define RB_LAUNCH_THREADS 256u
#endif

namespace rb {
namespace emu {

/* What the threads of a launch share. */
struct launch_state {
  virtual ~launch_state() = default;
  virtual int run_block(const dim &index, char *text, size_t len) = 0;

  dim grid{}, shape{};
  uint64_t blocks = 0;
  uint64_t number = 0; /* of rb_launch_begin */
  std::atomic<uint64_t> next{0};
  std::mutex mutex;
  std::condition_variable changed;
  unsigned threads = 0; /* that still run; guarded by `mutex`, as is `error` */
  std::string error;

  /* Relaxed: the number alone matters; starting and ending a thread order the rest. */
  void work() {
    for (uint64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < blocks;) {
      char text[256] = "";
      dim index{unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / (uint64_t(grid.x) * grid.y))};
      if (run_block(index, text, sizeof text) != FINISHED) {
        std::lock_guard<std::mutex> hold(mutex);
        if (error.empty()) error = text;
      }
    }
    std::unique_lock<std::mutex> hold(mutex);
    if (threads == 1) {
      /* Before anyone is told, and without the lock: a closed NIC may be freed now. */
      hold.unlock();
      rb_launch_end(number);
      hold.lock();
    }
    if (--threads == 0) changed.notify_all();
  }
};

template <class... P> struct launch_of final : launch_state {
  void (*kernel)(P...);
  std::tuple<std::decay_t<P>...> args;

  template <class... A> launch_of(void (*k)(P...), A &&...a) : kernel(k), args(std::forward<A>(a)...) {}

  static void body(void **self) {
    launch_of *l = static_cast<launch_of *>(self[0]);
    std::apply(l->kernel, l->args); /* by value: a kernel that changes a parameter changes its own copy */
  }
  int run_block(const dim &index, char *text, size_t len) override {
    void *self[1] = {this};
    return emu::run_block(&body, self, &grid, &shape, &index, RB_LANE_STACK_BYTES, text, len);
  }
};

} // namespace emu

/* A kernel that was launched. Its destructor waits for the kernel to end, which its time-outs see to. */
class running {
 public:
  explicit running(std::shared_ptr<emu::launch_state> state) : state_(std::move(state)) {}
  running(running &&) = default;
  running &operator=(running &&) = delete;
  ~running() {
    if (!state_) return;
    std::unique_lock<std::mutex> hold(state_->mutex);
    state_->changed.wait(hold, [this] { return state_->threads == 0; });
  }

  /* 0: it ran to its end. RB_STATUS_TIMED_OUT: it still runs, wait again. RB_ERR_KERNEL: see error(). */
  rb_result wait(unsigned milliseconds = 60000) {
    std::unique_lock<std::mutex> hold(state_->mutex);
    if (!state_->changed.wait_for(hold, std::chrono::milliseconds(milliseconds), [this] { return state_->threads == 0; }))
      return RB_STATUS_TIMED_OUT;
    return state_->error.empty() ? 0 : RB_ERR_KERNEL;
  }

  /* Why the kernel failed, and in which block; "" before that. Valid while this object lives, after wait(). */
  const char *error() const { return state_->error.c_str(); }

 private:
  std::shared_ptr<emu::launch_state> state_;
};

/* Launches `kernel` and returns at once. Blocks run at the same time, up to RB_LAUNCH_THREADS of them. */
template <class... P, class... A> running launch(void (*kernel)(P...), dim3 grid, dim3 block, A &&...args) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
  auto state = std::make_shared<emu::launch_of<P...>>(kernel, std::forward<A>(args)...);
  state->grid = emu::dim{grid.x, grid.y, grid.z};
  state->shape = emu::dim{block.x, block.y, block.z};
  state->blocks = uint64_t(grid.x) * grid.y * grid.z;
  if (!state->blocks) state->error = "a grid has at least one block";
  unsigned threads = unsigned(std::min<uint64_t>(state->blocks, RB_LAUNCH_THREADS));
  if (!threads) return running(std::move(state));
  state->number = rb_launch_begin();
  /* No thread is the last one before all have started. */
  std::unique_lock<std::mutex> hold(state->mutex);
  for (unsigned i = 0; i < threads; ++i) {
    try {
      /* Detached: `running` waits for the count, and the state lives as long as its last user. */
      std::thread([state] { state->work(); }).detach();
      ++state->threads;
    } catch (const std::system_error &e) {
      /* Those that run take over the blocks; with none, the launch has failed. */
      if (!state->threads) {
        state->error = std::string("cannot start a thread: ") + e.what();
        rb_launch_end(state->number);
      }
      break;
    }
  }
  hold.unlock();
  return running(std::move(state));
}

} // namespace rb

#endif

#endif /* RINGBELL_HPP */
