// Managed memory: host and device by one address.
#include <cuda_runtime.h>

#include "check.h"

struct Node {
  Node *next;
  int value;
};

__global__ void sum(const Node *first, int *out) {
  int total = 0;
  for (const Node *n = first; n; n = n->next) total += n->value;
  *out = total;
}

int main() {
  const int n = 100;
  Node *nodes;
  int *out;
  OK(cudaMallocManaged(&nodes, n * sizeof(Node)));
  OK(cudaMallocManaged(&out, sizeof(int)));
  for (int i = 0; i < n; i++) nodes[i] = Node{i + 1 < n ? &nodes[i + 1] : nullptr, i};
  OK(cudaMemPrefetchAsync(nodes, n * sizeof(Node), 0));
  OK(cudaMemAdvise(nodes, n * sizeof(Node), cudaMemAdviseSetReadMostly, 0));
  sum<<<1, 1>>>(nodes, out);
  OK(cudaDeviceSynchronize());
  CHECK(*out == n * (n - 1) / 2);

  int plain = 0, *device, *pinned;
  OK(cudaMalloc(&device, 4));
  OK(cudaMallocHost(&pinned, 4));
  cudaPointerAttributes p;
  OK(cudaPointerGetAttributes(&p, out));
  CHECK(p.type == cudaMemoryTypeManaged && p.hostPointer == out && p.devicePointer == out);
  OK(cudaPointerGetAttributes(&p, device));
  CHECK(p.type == cudaMemoryTypeDevice && p.devicePointer == device && p.device == 0);
  OK(cudaPointerGetAttributes(&p, pinned));
  CHECK(p.type == cudaMemoryTypeHost && p.hostPointer == pinned);
  OK(cudaPointerGetAttributes(&p, &plain));
  CHECK(p.type == cudaMemoryTypeUnregistered);
  size_t before = 0, after = 0, total = 0;
  OK(cudaMemGetInfo(&before, &total));
  OK(cudaFree(nodes));
  OK(cudaMemGetInfo(&after, &total));
  CHECK(after - before == n * sizeof(Node) && after <= total);
  OK(cudaFree(nullptr));
  CHECK(cudaFree(nodes) == cudaErrorInvalidValue);
  std::printf("ok\n");
}
