// Streams, events, pinned memory, host functions, callbacks, a graph.
#include <cuda_runtime.h>

#include <atomic>

#include "check.h"

__global__ void fill(int *out, int n, int value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = value;
}
__global__ void increment(int *out, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i]++;
}
// Waits until the host has stored to pinned memory.
__global__ void wait_for(volatile int *flag) {
  while (*flag == 0) {
  }
}

static std::atomic<int> called;
static void host_function(void *data) { called += *static_cast<int *>(data); }
static void callback(cudaStream_t, cudaError_t status, void *data) {
  called += status == cudaSuccess ? *static_cast<int *>(data) : 1000;
}

int main() {
  const int n = 50000;
  int *device, *pinned, *flag;
  cudaStream_t a, b;
  cudaEvent_t start, end, filled;
  OK(cudaMalloc(&device, n * sizeof(int)));
  OK(cudaMallocHost(&pinned, n * sizeof(int)));
  OK(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped));
  OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
  OK(cudaStreamCreate(&b));
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  OK(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));

  // `b` goes on when `a` has filled, which waits for the host.
  *flag = 0;
  OK(cudaEventRecord(start, a));
  int *mapped;
  OK(cudaHostGetDevicePointer(&mapped, flag, 0));
  wait_for<<<1, 1, 0, a>>>(mapped);
  fill<<<8, 128, 0, a>>>(device, n, 40);
  OK(cudaEventRecord(filled, a));
  OK(cudaStreamWaitEvent(b, filled, 0));
  increment<<<8, 128, 0, b>>>(device, n);
  OK(cudaMemcpyAsync(pinned, device, n * sizeof(int), cudaMemcpyDeviceToHost, b));
  int one = 1, ten = 10;
  OK(cudaLaunchHostFunc(b, host_function, &one));
  OK(cudaStreamAddCallback(b, callback, &ten, 0));
  OK(cudaEventRecord(end, b));
  CHECK(cudaStreamQuery(b) == cudaErrorNotReady && cudaEventQuery(end) == cudaErrorNotReady);
  CHECK(called == 0 && cudaGetLastError() == cudaSuccess);
  *static_cast<volatile int *>(flag) = 1;
  OK(cudaEventSynchronize(end));
  for (int i = 0; i < n; i++) CHECK(pinned[i] == 41);
  CHECK(called == 11);
  float ms = -1;
  OK(cudaEventElapsedTime(&ms, start, end));
  CHECK(ms >= 0);

  // A graph of two kernels, three times.
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
  increment<<<8, 128, 0, a>>>(device, n);
  increment<<<8, 128, 0, a>>>(device, n);
  OK(cudaStreamEndCapture(a, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(exec, a));
  OK(cudaStreamSynchronize(a));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaMemcpy(pinned, device, n * sizeof(int), cudaMemcpyDefault));
  for (int i = 0; i < n; i++) CHECK(pinned[i] == 47);

  // Memory in a stream's order, a stream of the thread's own, rows.
  int *later;
  OK(cudaMallocAsync(&later, 1000 * sizeof(int), a));
  OK(cudaMemsetAsync(later, 1, 1000 * sizeof(int), a));
  OK(cudaMemcpyAsync(pinned, later, 1000 * sizeof(int), cudaMemcpyDeviceToHost, a));
  OK(cudaFreeAsync(later, a));
  OK(cudaStreamSynchronize(a));
  CHECK(pinned[999] == 0x01010101);
  fill<<<1, 32, 0, cudaStreamPerThread>>>(device, 32, 5);
  OK(cudaStreamSynchronize(cudaStreamPerThread));
  char *rows, host[3][100];
  size_t pitch = 0;
  OK(cudaMallocPitch(&rows, &pitch, 100, 3));
  CHECK(pitch >= 100 && pitch % 256 == 0);
  OK(cudaMemset2D(rows, pitch, 7, 100, 3));
  OK(cudaMemset2D(rows + pitch, pitch, 8, 50, 1));
  OK(cudaMemcpy2D(host, 100, rows, pitch, 100, 3, cudaMemcpyDeviceToHost));
  CHECK(host[0][99] == 7 && host[1][49] == 8 && host[1][50] == 7 && host[2][0] == 7);
  OK(cudaStreamDestroy(a));
  OK(cudaStreamDestroy(b));
  CHECK(cudaStreamQuery(a) == cudaErrorInvalidResourceHandle);
  std::printf("ok\n");
}
