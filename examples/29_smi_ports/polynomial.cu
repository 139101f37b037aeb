// A polynomial at places that the root makes, by four streaming collectives side by side (SMI §2.2, §3.2): one launch of one
// block. Each warp has a channel of its own and opens it when it comes to it, so that no two ranks open them in the same
// order; the ports keep them apart. No element has an array, except the results at the root.
#include "ringbell_collective.cuh"

// Most coefficients.
constexpr rb_u32 COEFFICIENTS = 8;
// Warps, by what they stream. `WORK` has no channel of its own: it pops places and coefficients, and pushes values and sums.
enum role : rb_u32 { PLACES, POLYNOMIAL, VALUES, SUMS, WORK, ROLES };
// Channels: the root's end and the rank's of each port.
enum end : rb_u32 { ROOTS, OWN, ENDS };

// The place with this number. xorshift: any numbers will do.
static __device__ long long place(rb_u64 i) {
  rb_u64 x = i + 1;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return static_cast<long long>(x);
}

// `channels[ENDS * port + end]` for the four ports. The root gets each rank's `count` values, in the order of the ranks, and
// the sum over the ranks of their sums. `ends[role]` is how the role's elements went, `ends[ROLES + role]` how its collective
// ended.
extern "C" __global__ void polynomial(rb_comm comm, const rb_stream_handle *channels, const long long *coefficients, rb_u32 terms,
                                      rb_u64 count, rb_u32 root, long long *values, long long *sum, gpu_result *ends) {
  const rb_u32 role = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool is_root = comm.rank == root;
  const auto channel = [&](rb_u32 port, rb_u32 end) { return channels[ENDS * port + end]; };
  const auto roots = [&](rb_u32 port) { return is_root ? rb::operand(channel(port, ROOTS)) : rb::operand(nullptr); };
  rb::collective_options options;
  options.port = role;
  gpu_result r{}, ended{};
  if (role == PLACES) {
    gpu_request scatter = gpu_istream_scatter<rb::warp>(comm, roots(PLACES), channel(PLACES, OWN), count, RB_DTYPE_I64, root, options);
    gpu_pusher out(channel(PLACES, ROOTS));
    if (is_root) r = gpu_stream_push_each<rb::warp>(comm.queue, out, count * comm.size, [](rb_u64 i) { return place(i); });
    ended = gpu_wait<rb::warp>(comm, scatter);
  } else if (role == POLYNOMIAL) {
    gpu_request broadcast = gpu_istream_broadcast<rb::warp>(comm, roots(POLYNOMIAL), channel(POLYNOMIAL, OWN), terms, RB_DTYPE_I64, root, options);
    gpu_pusher out(channel(POLYNOMIAL, ROOTS));
    if (is_root) r = gpu_stream_push_each<rb::warp>(comm.queue, out, terms, [&](rb_u64 i) { return coefficients[i]; });
    ended = gpu_wait<rb::warp>(comm, broadcast);
  } else if (role == VALUES) {
    gpu_request gather = gpu_istream_gather<rb::warp>(comm, channel(VALUES, OWN), roots(VALUES), count, RB_DTYPE_I64, root, options);
    gpu_popper in(channel(VALUES, ROOTS));
    if (is_root) r = gpu_stream_pop_each<rb::warp, long long>(comm.queue, in, count * comm.size, [&](rb_u64 i, long long v) { values[i] = v; });
    ended = gpu_wait<rb::warp>(comm, gather);
  } else if (role == SUMS) {
    gpu_request reduce = gpu_istream_reduce<rb::warp>(comm, channel(SUMS, OWN), roots(SUMS), 1, RB_DTYPE_I64, RB_REDOP_SUM, root, options);
    gpu_popper in(channel(SUMS, ROOTS));
    long long all = 0;
    if (is_root) r = gpu_stream_pop<rb::warp>(comm.queue, in, &all);
    // Each lane has popped it.
    if (is_root && lane == 0) *sum = all;
    ended = gpu_wait<rb::warp>(comm, reduce);
  } else if (role == WORK) {
    __shared__ long long term[COEFFICIENTS];
    gpu_popper terms_in(channel(POLYNOMIAL, OWN)), places_in(channel(PLACES, OWN));
    gpu_pusher values_out(channel(VALUES, OWN)), sums_out(channel(SUMS, OWN));
    r = gpu_stream_pop_each<rb::warp, long long>(comm.queue, terms_in, terms, [&](rb_u64 i, long long t) { term[i] = t; });
    __syncwarp();
    rb_u64 all = 0;
    for (rb_u64 i = 0; i < count && r.ok(); ++i) {
      long long x = 0;
      r = gpu_stream_pop<rb::warp>(comm.queue, places_in, &x);
      rb_u64 y = 0;
      for (rb_u32 t = terms; t-- > 0;) y = y * static_cast<rb_u64>(x) + static_cast<rb_u64>(term[t]);
      all += y;
      if (r.ok()) r = gpu_stream_push<rb::warp>(comm.queue, values_out, static_cast<long long>(y));
    }
    if (r.ok()) r = gpu_stream_push<rb::warp>(comm.queue, sums_out, static_cast<long long>(all));
  }
  if (lane == 0 && role < ROLES) ends[role] = r, ends[ROLES + role] = ended;
}
