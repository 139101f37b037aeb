// All-reduce among processes in C++, on nothing but the C API, as an NCCL program would: one process makes a
// unique id, the others get it, each makes its communicator, and the NICs do the sums.
//
// Build and run: `examples/12_cpp_all_reduce/run.sh`, or by hand
//   cargo build
//   g++ -std=c++17 -Icuda-kernels/include examples/12_cpp_all_reduce/all_reduce.cpp -Ltarget/debug -lringbell
//       -Wl,-rpath,$PWD/target/debug -o target/all_reduce && target/all_reduce
// Under a launcher (ringbell run, torchrun, mpirun, srun) the same program takes its rank from there:
//   target/debug/ringbell run -R 3 target/all_reduce
//
// Prints what each rank computed, in turn; exits with 1 when something fails, 3 when data is wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "ringbell.h"

namespace {

constexpr std::uint32_t RANKS = 3;
constexpr std::uint64_t COUNT = 100'003;
constexpr int STEPS = 10;

// Every call says on failure what happened, where, and what to do.
void check(rb_result result) {
  if (result != 0) throw std::runtime_error(rb_last_error());
}

// A handle that C++ owns.
template <class T, rb_result (*END)(T *)> class owned {
 public:
  owned() = default;
  owned(const owned &) = delete;
  ~owned() { END(handle_); }
  T **out() { return &handle_; }
  operator T *() const { return handle_; }

 private:
  T *handle_ = nullptr;
};

float value(std::uint32_t rank, std::uint64_t i) { return float(rank + 1) + float(i % 1000) / 1000; }

// `open` opens the NIC and makes the communicator; what follows is the same however the ranks were found.
template <class OPEN> int rank(OPEN &&open) {
  owned<rb_nic, rb_nic_close> nic;
  owned<rb_communicator, rb_comm_destroy> comm;
  owned<rb_stream, rb_stream_destroy> stream;
  open(nic.out(), comm.out());
  std::uint32_t me = 0, ranks = 0;
  check(rb_comm_user_rank(comm, &me));
  check(rb_comm_count(comm, &ranks));
  check(rb_stream_create(nic, stream.out()));

  void *gradients = nullptr, *sums = nullptr;
  check(rb_mem_alloc(nic, COUNT * sizeof(float), &gradients));
  check(rb_mem_alloc(nic, COUNT * sizeof(float), &sums));
  std::vector<float> data(COUNT);
  for (std::uint64_t i = 0; i < COUNT; ++i) data[i] = value(me, i);
  check(rb_mem_write(nic, gradients, data.data(), COUNT * sizeof(float)));

  // As in NCCL: queue, go on, and synchronise once.
  for (int step = 0; step < STEPS; ++step)
    check(rb_all_reduce(gradients, sums, COUNT, RB_DTYPE_F32, RB_REDOP_SUM, comm, stream));
  check(rb_stream_synchronize(stream, 0));

  check(rb_mem_read(nic, data.data(), sums, COUNT * sizeof(float)));
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < COUNT; ++i) {
    double want = 0;
    for (std::uint32_t r = 0; r < ranks; ++r) want += value(r, i);
    wrong += std::fabs(data[i] - want) > 1e-5 * want;
  }
  // In turn, so that the lines do not mix.
  for (std::uint32_t turn = 0; turn < ranks; ++turn) {
    if (turn == me) {
      std::printf("rank %u of %u: %d all-reduces of %llu floats, %llu wrong\n", me, ranks, STEPS, (unsigned long long)COUNT,
                  (unsigned long long)wrong);
      std::fflush(stdout);
    }
    check(rb_barrier(comm, nullptr));
  }
  check(rb_comm_finalize(comm, 0));
  return wrong ? 3 : 0;
}

// A process for each rank; the id travels as text, here on the command line of the same program.
int launch(const char *program) {
  rb_unique_id id;
  check(rb_get_unique_id(&id));
  std::vector<pid_t> children;
  for (std::uint32_t r = 0; r < RANKS; ++r) {
    std::string number = std::to_string(r);
    pid_t child = fork();
    if (child < 0) throw std::runtime_error("cannot fork");
    if (child == 0) {
      execl("/proc/self/exe", program, number.c_str(), id.text, static_cast<char *>(nullptr));
      _exit(127);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (pid_t child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) return 1;
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  return worst;
}

int run(int argc, char **argv) {
  rb_nic_config config{};
  config.size = sizeof config;
  config.gpu_memory_bytes = 16 << 20;
  rb_job job;
  if (argc == 3) {
    std::uint32_t me = std::uint32_t(std::strtoul(argv[1], nullptr, 10));
    rb_unique_id id{};
    std::snprintf(id.text, sizeof id.text, "%s", argv[2]);
    return rank([&](rb_nic **nic, rb_communicator **comm) {
      check(rb_nic_open_rank(&config, &id, me, nic));
      check(rb_comm_init_rank(comm, *nic, RANKS, &id, me, nullptr));
    });
  }
  if (rb_job_from_env(&job) == 0) {
    return rank([&](rb_nic **nic, rb_communicator **comm) {
      check(rb_nic_open_env(&config, nic));
      check(rb_comm_init_env(comm, *nic, nullptr));
    });
  }
  return launch(argv[0]);
}

} // namespace

int main(int argc, char **argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception &e) {
    std::fprintf(stderr, "all_reduce: %s\n", e.what());
    return 1;
  }
}
