// Copies of boxes, memory pools, graphs built node by node and captured over two streams, properties, functions of the
// driver by their names.
#include <cuda_runtime.h>

#include <cstring>
#include <vector>

#include "check.h"

__global__ void multiply(int *values, int n, int by) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) values[i] *= by;
}

static void count(void *at) { ++*static_cast<int *>(at); }

static void boxes() {
  // 3 layers of 4 rows of 10 bytes, of which a part goes to the device and back to another place.
  std::vector<unsigned char> from(120), to(120, 0xee);
  for (int i = 0; i < 120; i++) from[i] = static_cast<unsigned char>(i);
  cudaExtent extent = make_cudaExtent(6, 3, 2);
  cudaPitchedPtr device;
  OK(cudaMalloc3D(&device, extent));
  CHECK(device.pitch >= 6 && device.ysize == 3);
  OK(cudaMemset3D(device, 0x11, extent));
  cudaMemcpy3DParms in = {}, out = {};
  in.srcPtr = make_cudaPitchedPtr(from.data(), 10, 10, 4);
  in.srcPos = make_cudaPos(2, 1, 1);
  in.dstPtr = device;
  in.extent = make_cudaExtent(6, 3, 1);
  in.kind = cudaMemcpyHostToDevice;
  OK(cudaMemcpy3D(&in));
  out.srcPtr = device;
  out.dstPtr = make_cudaPitchedPtr(to.data(), 10, 10, 4);
  out.dstPos = make_cudaPos(1, 0, 0);
  out.extent = extent;
  out.kind = cudaMemcpyDeviceToHost;
  OK(cudaMemcpy3DAsync(&out, 0));
  OK(cudaDeviceSynchronize());
  for (int z = 0; z < 3; z++)
    for (int y = 0; y < 4; y++)
      for (int x = 0; x < 10; x++) {
        bool inside = z < 2 && y < 3 && x >= 1 && x < 7;
        int want = !inside ? 0xee : z == 1 ? 0x11 : 40 + (y + 1) * 10 + x + 1;
        CHECK(to[(z * 4 + y) * 10 + x] == want);
      }
  in.srcArray = reinterpret_cast<cudaArray_t>(&in);
  CHECK(cudaMemcpy3D(&in) == cudaErrorInvalidValue);
  OK(cudaFree(device.ptr));
}

static void pools(cudaStream_t s) {
  cudaMemPool_t own, made;
  OK(cudaDeviceGetDefaultMemPool(&own, 0));
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  OK(cudaMemPoolCreate(&made, &properties));
  int *a, *b;
  unsigned long long used = 0;
  OK(cudaMallocAsync(&a, 4000, s));
  OK(cudaMallocFromPoolAsync(&b, 5000, made, s));
  OK(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(used == 4000);
  OK(cudaMemPoolGetAttribute(made, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(used == 5000);
  OK(cudaFreeAsync(a, s));
  OK(cudaFreeAsync(b, s));
  OK(cudaStreamSynchronize(s));
  OK(cudaMemPoolGetAttribute(made, cudaMemPoolAttrUsedMemCurrent, &used));
  CHECK(used == 0);
  OK(cudaMemPoolDestroy(made));
}

static void graphs(cudaStream_t s) {
  const int n = 1000;
  int *device, calls = 0, by = 3, size = n;
  std::vector<int> host(n, 7), got(n);
  OK(cudaMalloc(&device, n * sizeof(int)));
  cudaGraph_t graph;
  cudaGraphNode_t in, kernel, out, host_node;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, device, host.data(), n * sizeof(int), cudaMemcpyHostToDevice));
  void *args[] = {&device, &size, &by};
  cudaKernelNodeParams params = {};
  params.func = reinterpret_cast<void *>(multiply);
  params.gridDim = dim3(4), params.blockDim = dim3(256), params.kernelParams = args;
  OK(cudaGraphAddKernelNode(&kernel, graph, &in, 1, &params));
  OK(cudaGraphAddMemcpyNode1D(&out, graph, &kernel, 1, got.data(), device, n * sizeof(int), cudaMemcpyDeviceToHost));
  cudaHostNodeParams function = {count, &calls};
  OK(cudaGraphAddHostNode(&host_node, graph, &out, 1, &function));
  size_t nodes = 0;
  OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 4);
  cudaGraphExec_t exec;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, s));
  OK(cudaStreamSynchronize(s));
  CHECK(got[n - 1] == 21 && calls == 1);
  by = 5;
  OK(cudaGraphExecKernelNodeSetParams(exec, kernel, &params));
  OK(cudaGraphLaunch(exec, s));
  OK(cudaStreamSynchronize(s));
  CHECK(got[0] == 35 && calls == 2);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));

  // Captured, with a fork to another stream and back.
  cudaStream_t t;
  cudaEvent_t forked, joined;
  OK(cudaStreamCreate(&t));
  OK(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
  OK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  OK(cudaMemcpyAsync(device, host.data(), n * sizeof(int), cudaMemcpyHostToDevice, s));
  OK(cudaEventRecord(forked, s));
  OK(cudaStreamWaitEvent(t, forked, 0));
  multiply<<<2, 256, 0, t>>>(device, 500, 2);
  multiply<<<2, 256, 0, s>>>(device + 500, 500, 4);
  OK(cudaEventRecord(joined, t));
  OK(cudaStreamWaitEvent(s, joined, 0));
  OK(cudaMemcpyAsync(got.data(), device, n * sizeof(int), cudaMemcpyDeviceToHost, s));
  OK(cudaLaunchHostFunc(s, count, &calls));
  OK(cudaStreamEndCapture(s, &graph));
  CHECK(calls == 2);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) OK(cudaGraphLaunch(exec, s));
  OK(cudaStreamSynchronize(s));
  CHECK(got[0] == 14 && got[n - 1] == 28 && calls == 5);
  // Work outside of the capture spoils it.
  OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  CHECK(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
  CHECK(cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated);
  CHECK(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
}

int main() {
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  CHECK(std::strlen(properties.name) > 0 && properties.warpSize == 32 && properties.major >= 5);
  CHECK(properties.maxThreadsPerMultiProcessor == 2048 && properties.reservedSharedMemPerBlock == 1024);
  CHECK(properties.sharedMemPerBlockOptin == 227 << 10 && properties.maxBlocksPerMultiProcessor == 32);
  CHECK(properties.memoryPoolsSupported == 1 && properties.cooperativeLaunch == 1);
  int processors = 0;
  OK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  CHECK(properties.multiProcessorCount == processors);
  void *function = nullptr;
  cudaDriverEntryPointQueryResult found;
  OK(cudaGetDriverEntryPointByVersion("cuLinkCreate", &function, 12000, cudaEnableDefault, &found));
  CHECK(function && found == cudaDriverEntryPointSuccess);
  OK(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &found));
  CHECK(!function && found == cudaDriverEntryPointSymbolNotFound);

  cudaStream_t s;
  OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  boxes();
  pools(s);
  graphs(s);
  std::printf("ok\n");
}
