// Kernels and the program that launches them, in one file: two kernels play ping-pong through two NICs.
//
// Build and run: `examples/05_cpp/run.sh`, or by hand
//   cargo build
//   target/debug/ringbell cc examples/05_cpp/ping.cu -o target/ping && target/ping
// Where nvcc is, target/ping.fatbin is built as well.
//
// Prints `ping: 1000 round trips of 4096 bytes, 0 wrong`; exits with 1 when something fails, 3 when data is wrong.
#include <cstdio>

#include "ringbell.hpp"

namespace {

// Not constexpr variables: device code may not take the address of a host's.
enum : rb_u32 { PORT = 4791, SERVER = 0x0a4d6a01 /* 10.77.106.1 */, ROUNDS = 1000, WORDS = 1024 };

// One side's report, in GPU memory.
struct report {
  gpu_result end;
  rb_u32 rounds, wrong;
};

} // namespace

// Sends back what it gets, each word plus one.
__global__ void pong(rb_queue q, rb_u32 listener, rb_u32 *data, report *out) {
  rb_u32 rounds = 0;
  gpu_result r = gpu_accept_block(q, listener);
  const rb_u32 conn = r.session;
  const bool accepted = r.ok();
  while (r.ok()) {
    r = gpu_recv_block(q, conn, data, WORDS * sizeof(rb_u32));
    if (!r.ok()) break;
    for (rb_u32 i = threadIdx.x; i < WORDS; i += blockDim.x) data[i] += 1;
    r = gpu_send_block(q, conn, data, WORDS * sizeof(rb_u32));
    ++rounds;
  }
  // The client closes when it is done: the end of the stream is a good end.
  if (r.status == RB_STATUS_END_OF_STREAM && r.bytes == 0) r.status = RB_STATUS_OK;
  if (accepted) gpu_close_block(q, conn);
  if (threadIdx.x == 0) *out = report{r, rounds, 0};
}

// Sends a message of its own in every round and checks the answer.
__global__ void ping(rb_queue q, rb_u32 *data, report *out) {
  rb_u32 wrong = 0, rounds = 0;
  gpu_result r = gpu_socket_block(q);
  const rb_u32 sock = r.session;
  if (r.ok()) r = gpu_connect_block(q, sock, SERVER, PORT);
  for (; rounds < ROUNDS && r.ok(); ++rounds) {
    for (rb_u32 i = threadIdx.x; i < WORDS; i += blockDim.x) data[i] = rounds * 7919 + i;
    r = gpu_send_block(q, sock, data, WORDS * sizeof(rb_u32));
    if (r.ok()) r = gpu_recv_block(q, sock, data, WORDS * sizeof(rb_u32));
    rb_u32 mine = 0;
    for (rb_u32 i = threadIdx.x; i < WORDS; i += blockDim.x) mine += data[i] != rounds * 7919 + i + 1;
    wrong += __syncthreads_count(mine != 0);
  }
  gpu_close_block(q, sock);
  if (threadIdx.x == 0) *out = report{r, rounds, wrong};
}

namespace {

int fail(const char *what, const char *why) {
  std::fprintf(stderr, "ping: %s: %s\n", what, why);
  return 1;
}

// A NIC with what a kernel needs.
struct host {
  rb_nic *nic = nullptr;
  rb_queue queue{};
  void *data = nullptr, *out = nullptr;

  bool open(const char *ip) {
    rb_nic_config config{};
    config.size = sizeof config;
    config.ip = ip;
    return rb_nic_open(&config, &nic) == 0 && rb_queue_create(nic, &queue) == 0 &&
           rb_mem_alloc(nic, WORDS * sizeof(rb_u32), &data) == 0 && rb_mem_alloc(nic, sizeof(report), &out) == 0;
  }
  ~host() { rb_nic_close(nic); }
};

} // namespace

int main() {
  host server, client;
  if (!server.open("10.77.106.1") || !client.open("10.77.106.2")) return fail("cannot open a NIC", rb_last_error());

  // The listener is there before the client connects; its number goes to the kernel.
  rb_context *context = nullptr;
  rb_u32 listener = 0;
  if (rb_context_create(server.nic, &context) || rb_socket_open(context, &listener, 0) ||
      rb_socket_listen(context, listener, PORT, 1, 0))
    return fail("cannot listen", rb_last_error());

  rb::running serving = rb::launch(server.nic, pong, 1, 64, server.queue, listener, (rb_u32 *)server.data, (report *)server.out);
  rb::running playing = rb::launch(client.nic, ping, 1, 64, client.queue, (rb_u32 *)client.data, (report *)client.out);
  if (playing.wait()) return fail("kernel ping", playing.error());
  if (serving.wait()) return fail("kernel pong", serving.error());

  report served, played;
  if (rb_mem_read(server.nic, &served, server.out, sizeof served) || rb_mem_read(client.nic, &played, client.out, sizeof played))
    return fail("cannot read the reports", rb_last_error());
  if (!played.end.ok()) return fail("client", rb_result_text((rb_result)played.end.status));
  if (!served.end.ok()) return fail("server", rb_result_text((rb_result)served.end.status));
  std::printf("ping: %u round trips of %u bytes, %u wrong\n", played.rounds, WORDS * 4, played.wrong);
  return played.wrong || played.rounds != ROUNDS || served.rounds != ROUNDS ? 3 : 0;
}
