// K-means over the ranks by streaming collectives (SMI §3.2): one launch of one block for all rounds. The sums of the
// clusters' points stream to the root by a reduce. The root divides each sum when it is popped, and the mean streams to all
// ranks by a broadcast, while other sums are still on their way.
#include "ringbell_collective.cuh"

// Most clusters, and most coordinates of all clusters.
constexpr rb_u32 CLUSTERS = 32, COORDINATES = 128;
// Warps: of the sums, of the means, and of what comes from the root.
enum role : rb_u32 { SUMS, MEANS, COMES, ROLES };

// `points`: `count` times `dimensions` whole numbers. `centers`: `clusters` times `dimensions`, at the beginning and at the
// end. The four channels: sums to the NIC; at the root sums from it, and means to it; means from it. `ends[role]` is how the
// role's stream ended, `ends[ROLES]` and `ends[ROLES + 1]` how reduce and broadcast did.
extern "C" __global__ void k_means(rb_comm comm, const rb_stream_handle *channels, const int *points, rb_u32 count, rb_u32 dimensions,
                                   long long *centers, rb_u32 clusters, rb_u32 rounds, rb_u32 root, gpu_result *ends) {
  __shared__ unsigned long long sums[COORDINATES + CLUSTERS];
  __shared__ long long center[COORDINATES];
  __shared__ rb_u32 failed;
  const rb_u32 role = threadIdx.x / 32, lane = threadIdx.x % 32, coordinates = clusters * dimensions;
  const bool is_root = comm.rank == root;
  gpu_pusher sums_out(channels[0]), means_out(channels[2]);
  gpu_popper sums_in(channels[1]), means_in(channels[3]);
  for (rb_u32 i = threadIdx.x; i < coordinates; i += blockDim.x) center[i] = centers[i];
  if (threadIdx.x == 0) failed = 0;
  gpu_result r{}, reduced{}, spread{};
  for (rb_u32 round = 0; round < rounds; ++round) {
    for (rb_u32 i = threadIdx.x; i < clusters + coordinates; i += blockDim.x) sums[i] = 0;
    __syncthreads();
    if (failed) break;
    for (rb_u32 n = threadIdx.x; n < count; n += blockDim.x) {
      const int *point = points + n * dimensions;
      rb_u32 nearest = 0;
      long long shortest = -1;
      for (rb_u32 c = 0; c < clusters; ++c) {
        long long distance = 0;
        for (rb_u32 d = 0; d < dimensions; ++d) {
          const long long by = point[d] - center[c * dimensions + d];
          distance += by * by;
        }
        if (shortest < 0 || distance < shortest) shortest = distance, nearest = c;
      }
      atomicAdd(&sums[nearest], 1ull);
      for (rb_u32 d = 0; d < dimensions; ++d)
        atomicAdd(&sums[clusters + nearest * dimensions + d], static_cast<unsigned long long>(static_cast<long long>(point[d])));
    }
    __syncthreads();
    if (role == SUMS) {
      // Counts come first, so that the root has each cluster's before its sums.
      gpu_request sum = gpu_istream_reduce<rb::warp>(comm, channels[0], is_root ? rb::operand(channels[1]) : rb::operand(nullptr), clusters + coordinates, RB_DTYPE_I64, RB_REDOP_SUM, root);
      gpu_request all = gpu_istream_broadcast<rb::warp>(comm, is_root ? rb::operand(channels[2]) : rb::operand(nullptr), channels[3], coordinates, RB_DTYPE_I64, root);
      r = gpu_stream_push_each<rb::warp>(comm.queue, sums_out, clusters + coordinates, [&](rb_u64 i) { return static_cast<long long>(sums[i]); });
      reduced = gpu_wait<rb::warp>(comm, sum);
      spread = gpu_wait<rb::warp>(comm, all);
      if (!reduced.ok() || !spread.ok()) atomicExch(&failed, 1u);
    } else if (role == MEANS && is_root) {
      __shared__ long long counts[CLUSTERS];
      r = gpu_stream_pop_each<rb::warp, long long>(comm.queue, sums_in, clusters, [&](rb_u64 c, long long points) { counts[c] = points; });
      __syncwarp();
      for (rb_u32 i = 0; i < coordinates && r.ok(); ++i) {
        long long sum = 0;
        r = gpu_stream_pop<rb::warp>(comm.queue, sums_in, &sum);
        const long long points = counts[i / dimensions];
        // A cluster without points stays where it is; `center` changes only below.
        const long long mean = points ? sum / points : center[i];
        if (r.ok()) r = gpu_stream_push<rb::warp>(comm.queue, means_out, mean);
      }
    } else if (role == COMES) {
      r = gpu_stream_pop_each<rb::warp, long long>(comm.queue, means_in, coordinates, [&](rb_u64 i, long long mean) { centers[i] = mean; });
    }
    if (role < ROLES && !r.ok()) atomicExch(&failed, 1u);
    __syncthreads();
    for (rb_u32 i = threadIdx.x; i < coordinates; i += blockDim.x) center[i] = centers[i];
  }
  if (lane == 0 && role < ROLES) ends[role] = r;
  if (threadIdx.x == 0) ends[ROLES] = reduced, ends[ROLES + 1] = spread;
}
