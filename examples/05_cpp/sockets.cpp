// A server and a client in C++, on nothing but the C API: no kernel, no CUDA words, no Rust.
//
// Build and run: `examples/05_cpp/run.sh`, or by hand
//   cargo build
//   g++ -std=c++17 -Icuda-kernels/include examples/05_cpp/sockets.cpp -Ltarget/debug -lringbell
//       -Wl,-rpath,$PWD/target/debug -pthread -o target/sockets && target/sockets
//
// Prints `sockets: 4194304 bytes, 0 wrong`; exits with 1 when something fails, 3 when data is wrong.
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ringbell.h"

namespace {

constexpr std::size_t BYTES = 4 << 20;
constexpr std::uint16_t PORT = 4791;

// Every call says on failure what happened, where, and what to do.
void check(rb_result result) {
  if (result != 0) throw std::runtime_error(rb_last_error());
}

// A NIC with a context; C++ owns them.
struct Host {
  rb_nic *nic = nullptr;
  rb_context *context = nullptr;

  explicit Host(const char *ip) {
    rb_nic_config config{};
    config.size = sizeof config;
    config.ip = ip;
    check(rb_nic_open(&config, &nic));
    check(rb_context_create(nic, &context));
  }
  Host(const Host &) = delete;
  ~Host() { rb_nic_close(nic); } // closes the context and frees the memory as well

  void *allocate(std::size_t bytes) {
    void *va = nullptr;
    check(rb_mem_alloc(nic, bytes, &va));
    return va;
  }
};

std::vector<std::uint8_t> serve(Host &host, std::uint32_t listener) {
  void *data = host.allocate(BYTES);
  std::uint32_t connection = 0;
  check(rb_socket_accept(host.context, listener, &connection, nullptr, 0));
  check(rb_socket_recv(host.context, connection, data, BYTES, nullptr, 0));
  check(rb_socket_close(host.context, connection, 0));
  std::vector<std::uint8_t> seen(BYTES);
  check(rb_mem_read(host.nic, seen.data(), data, BYTES));
  return seen;
}

int run() {
  Host server("10.77.105.1"), client("10.77.105.2");
  std::uint32_t listener = 0, socket = 0;
  check(rb_socket_open(server.context, &listener, 0));
  check(rb_socket_listen(server.context, listener, PORT, 1, 0));

  std::vector<std::uint8_t> seen;
  std::string failure;
  std::thread serving([&] {
    try {
      seen = serve(server, listener);
    } catch (const std::exception &e) {
      failure = e.what();
    }
  });

  std::vector<std::uint8_t> data(BYTES);
  for (std::size_t i = 0; i < BYTES; ++i) data[i] = std::uint8_t(i * 2654435761u >> 20);
  std::string mine;
  try {
    void *va = client.allocate(BYTES);
    check(rb_mem_write(client.nic, va, data.data(), BYTES));
    check(rb_socket_open(client.context, &socket, 0));
    check(rb_socket_connect(client.context, socket, "10.77.105.1", PORT, 0));
    check(rb_socket_send(client.context, socket, va, BYTES, 0));
    check(rb_socket_close(client.context, socket, 0));
  } catch (const std::exception &e) {
    mine = e.what();
  }
  serving.join(); // its own time-outs end it, in any case
  if (!mine.empty()) throw std::runtime_error(mine);
  if (!failure.empty()) throw std::runtime_error(failure);

  std::size_t wrong = 0;
  for (std::size_t i = 0; i < BYTES; ++i) wrong += seen[i] != data[i];
  std::printf("sockets: %zu bytes, %zu wrong\n", BYTES, wrong);
  return wrong ? 3 : 0;
}

} // namespace

int main() {
  try {
    return run();
  } catch (const std::exception &e) {
    std::fprintf(stderr, "sockets: %s\n", e.what());
    return 1;
  }
}
