// A 4-point stencil whose ranks exchange halos by streaming messages (SMI §5.4.2, Fig. 14, Listing 3): one launch
// of one block for all steps. A rank has `rows` times `columns` values of the domain, at least two of each. Each
// step opens a channel to and from each neighbour. Four warps push the values at the borders, four pop those of
// the neighbours and compute the borders with them, and the others compute what needs no neighbour meanwhile.
// West and east are columns, strided in memory, and a message each.
#include "ringbell_collective.cuh"

// Sides. The side of a rank is also the port by which its neighbour there receives: s ^ 1 is opposite of s.
enum side : rb_u32 { NORTH, SOUTH, WEST, EAST, SIDES };

// Most values along a side.
constexpr rb_u32 LONGEST = 256;

struct domain {
  // Of a rank, in values; of all, in ranks.
  rb_u32 rows, columns, height, width;

  // The place of value `i` of a border.
  RB_DEVICE rb_u32 border(rb_u32 side, rb_u32 i) const {
    switch (side) {
    case NORTH: return i;
    case SOUTH: return (rows - 1) * columns + i;
    case WEST: return i * columns;
    default: return i * columns + columns - 1;
    }
  }
  RB_DEVICE rb_u32 length(rb_u32 side) const { return side < WEST ? columns : rows; }
  RB_DEVICE bool has_neighbour(rb_u32 rank, rb_u32 side) const {
    switch (side) {
    case NORTH: return rank >= width;
    case SOUTH: return rank / width + 1 < height;
    case WEST: return rank % width > 0;
    default: return rank % width + 1 < width;
    }
  }
  RB_DEVICE rb_u32 neighbour(rb_u32 rank, rb_u32 side) const {
    switch (side) {
    case NORTH: return rank - width;
    case SOUTH: return rank + width;
    case WEST: return rank - 1;
    default: return rank + 1;
    }
  }
};

RB_DEVICE float mean(float north, float south, float west, float east) { return 0.25f * ((north + south) + (west + east)); }

// `channels`: those to the four neighbours, then those from them. `grids`: two grids, used in turn. A value beyond the
// whole domain is 0. `ends[s]` is how the messages to side s ended, `ends[SIDES + s]` how those from it did.
extern "C" __global__ void stencil(rb_comm comm, const rb_stream_handle *channels, float *grids, rb_u32 rows, rb_u32 columns,
                                   rb_u32 height, rb_u32 width, rb_u32 steps, gpu_result *ends) {
  __shared__ float halo[SIDES][LONGEST];
  __shared__ rb_u32 failed;
  const domain d{rows, columns, height, width};
  const rb_u32 warp = threadIdx.x / 32, side = warp % SIDES, length = d.length(side), cells = rows * columns;
  const bool exchanges = warp < 2 * SIDES, pushes = warp < SIDES, has_peer = d.has_neighbour(comm.rank, side);
  const rb_u32 peer = d.neighbour(comm.rank, side);
  for (rb_u32 i = threadIdx.x; i < SIDES * LONGEST; i += blockDim.x) halo[i / LONGEST][i % LONGEST] = 0;
  if (threadIdx.x == 0) failed = 0;
  __syncthreads();
  gpu_pusher out(channels[side]);
  gpu_popper in(channels[SIDES + side]);
  gpu_result r{};
  for (rb_u32 step = 0; step < steps && !failed; ++step) {
    const float *from = grids + (step & 1) * cells;
    float *to = grids + (1 - (step & 1)) * cells;
    if (exchanges && has_peer) {
      gpu_request message;
      if (pushes) {
        message = gpu_istream_send<rb::warp>(comm, channels[side], length, RB_DTYPE_F32, peer, side ^ 1);
        r = gpu_stream_push_each<rb::warp>(comm.queue, out, length, [&](rb_u64 i) { return from[d.border(side, rb_u32(i))]; });
      } else {
        message = gpu_istream_recv<rb::warp>(comm, channels[SIDES + side], length, RB_DTYPE_F32, peer, side);
        r = gpu_stream_pop_each<rb::warp, float>(comm.queue, in, length, [&](rb_u64 n, float value) {
          const rb_u32 i = rb_u32(n), at = d.border(side, i);
          halo[side][i] = value;
          if (i == 0 || i + 1 == length) return; // a corner, which needs two neighbours
          to[at] = mean(side == NORTH ? value : from[at - columns], side == SOUTH ? value : from[at + columns],
                        side == WEST ? value : from[at - 1], side == EAST ? value : from[at + 1]);
        });
      }
      const gpu_result end = gpu_wait<rb::warp>(comm, message);
      if (r.ok()) r = end;
      if (!r.ok()) atomicExch(&failed, 1u);
    } else if (!exchanges) {
      const rb_u32 others = 2 * SIDES * 32;
      for (rb_u32 at = columns + 1 + threadIdx.x - others; at + columns + 1 < cells; at += blockDim.x - others)
        if (at % columns != 0 && at % columns + 1 != columns) to[at] = mean(from[at - columns], from[at + columns], from[at - 1], from[at + 1]);
    }
    __syncthreads();
    // The corners, and borders of the whole domain.
    for (rb_u32 s = 0; s < SIDES; ++s) {
      const bool corners_only = d.has_neighbour(comm.rank, s);
      for (rb_u32 i = threadIdx.x; i < d.length(s); i += blockDim.x) {
        if (corners_only && i != 0 && i + 1 != d.length(s)) continue;
        if (s >= WEST && (i == 0 || i + 1 == rows)) continue; // those of north and south
        const rb_u32 at = d.border(s, i), row = at / columns, column = at % columns;
        to[at] = mean(row == 0 ? halo[NORTH][column] : from[at - columns], row + 1 == rows ? halo[SOUTH][column] : from[at + columns],
                      column == 0 ? halo[WEST][row] : from[at - 1], column + 1 == columns ? halo[EAST][row] : from[at + 1]);
      }
    }
    __syncthreads();
  }
  if (exchanges && threadIdx.x % 32 == 0) ends[warp] = r;
}
