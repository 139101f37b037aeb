// CUB's algorithms of the whole device and Thrust, as the wheel cuda-cccl ships them.
#include <cub/device/device_histogram.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/sort.h>
#include <thrust/transform_reduce.h>

#include <algorithm>
#include <vector>

#include "check.h"

struct Square {
  __host__ __device__ long long operator()(int v) const { return static_cast<long long>(v) * v; }
};
struct IsOdd {
  __host__ __device__ bool operator()(int v) const { return v % 2 != 0; }
};

// Runs an algorithm twice: for the bytes that it needs, and with them.
template <class F> void with_room(F algorithm) {
  void *room = nullptr;
  size_t bytes = 0;
  OK(algorithm(room, bytes));
  OK(cudaMalloc(&room, bytes));
  OK(algorithm(room, bytes));
  OK(cudaFree(room));
}

int main() {
  const int n = 20011;
  std::vector<int> host(n);
  unsigned seed = 1;
  for (int &v : host) {
    seed = seed * 1664525u + 1013904223u;
    v = static_cast<int>(seed >> 16);
  }
  thrust::device_vector<int> in(host.begin(), host.end()), out(n), count(1);
  const int *from = thrust::raw_pointer_cast(in.data());
  int *to = thrust::raw_pointer_cast(out.data()), *one = thrust::raw_pointer_cast(count.data());

  with_room([&](void *room, size_t &bytes) { return cub::DeviceReduce::Max(room, bytes, from, one, n); });
  CHECK(count[0] == *std::max_element(host.begin(), host.end()));

  with_room([&](void *room, size_t &bytes) { return cub::DeviceScan::ExclusiveSum(room, bytes, from, to, n); });
  thrust::host_vector<int> got = out;
  int sum = 0;
  for (int i = 0; i < n; i++) {
    CHECK(got[i] == sum);
    sum += host[i];
  }

  std::vector<int> sorted = host;
  std::sort(sorted.begin(), sorted.end());
  with_room([&](void *room, size_t &bytes) { return cub::DeviceRadixSort::SortKeys(room, bytes, from, to, n); });
  got = out;
  CHECK(std::equal(sorted.begin(), sorted.end(), got.begin()));

  with_room([&](void *room, size_t &bytes) { return cub::DeviceSelect::If(room, bytes, from, to, one, n, IsOdd()); });
  got = out;
  int odd = 0;
  for (int v : host) {
    if (v % 2 != 0) CHECK(got[odd++] == v);
  }
  CHECK(count[0] == odd);

  with_room([&](void *room, size_t &bytes) {
    return cub::DeviceHistogram::HistogramEven(room, bytes, from, to, 17, 0, 65536, n);
  });
  got = out;
  std::vector<int> bins(16);
  for (int v : host) bins[v / 4096]++;
  CHECK(std::equal(bins.begin(), bins.end(), got.begin()));

  thrust::sort(in.begin(), in.end());
  CHECK(std::equal(sorted.begin(), sorted.end(), thrust::host_vector<int>(in).begin()));
  long long squares = 0;
  for (int v : host) squares += static_cast<long long>(v) * v;
  CHECK(thrust::transform_reduce(in.begin(), in.end(), Square(), 0ll, cuda::std::plus<long long>()) == squares);
  OK(cudaDeviceSynchronize());
  std::printf("ok\n");
}
