// A stencil whose ranks exchange the rows at their borders by puts: one launch for all steps, and no receive is posted anywhere.
//
// A rank's part of the window begins with 64 bytes of signals: word 0 counts rows from the rank above, word 1 those from
// below. Two grids of `rows` + 2 rows follow; the first and the last row belong to the neighbours. A step reads one
// grid and writes the other. A neighbour puts into the grid that this rank reads only after it has this rank's rows of the
// step, which leave when the step is computed: so no row is overwritten too early, without any barrier.
#include "ringbell_collective.cuh"
#include "ringbell_one_sided.cuh"

constexpr rb_u64 SIGNALS = 64;

extern "C" __global__ void halo(rb_comm c, rb_u32 window, unsigned char *part, rb_u32 rows, rb_u32 cols, rb_u32 steps,
                                rb_u32 timeout_us, gpu_result *out) {
  rb_u64 row = rb_u64(cols) * sizeof(float), grid = (rb_u64(rows) + 2) * row;
  const rb_u64 *signals = reinterpret_cast<const rb_u64 *>(part);
  bool above = c.rank > 0, below = c.rank + 1 < c.size;
  gpu_result r{};
  for (rb_u32 step = 0; step < steps && r.ok(); ++step) {
    rb_u64 into = SIGNALS + (step & 1 ? 0 : grid);
    const float *from = reinterpret_cast<const float *>(part + SIGNALS + (step & 1 ? grid : 0));
    float *to = reinterpret_cast<float *>(part + into);
    for (rb_u64 i = threadIdx.x; i < rb_u64(rows) * cols; i += blockDim.x) {
      rb_u64 at = cols + i, x = i % cols;
      to[at] = x == 0 || x + 1 == cols ? from[at] : 0.25f * ((from[at - cols] + from[at + cols]) + (from[at - 1] + from[at + 1]));
    }
    // Both rows leave at once. The calls begin with a barrier, so all lanes' values are put.
    gpu_request up{}, down{};
    up.done = down.done = 1;
    if (above)
      up = gpu_iput_signal_block(c.queue, gpu_window(c, window, c.rank - 1, into + grid - row), to + cols, row, 1, 1, false, timeout_us);
    if (below)
      down = gpu_iput_signal_block(c.queue, gpu_window(c, window, c.rank + 1, into), to + rb_u64(rows) * cols, row, 0, 1, false, timeout_us);
    if (above) r = gpu_wait_signal_block(c.queue, signals, step + 1, timeout_us);
    if (below && r.ok()) r = gpu_wait_signal_block(c.queue, signals + 1, step + 1, timeout_us);
    gpu_result u = gpu_wait_block(c.queue, up), d = gpu_wait_block(c.queue, down);
    if (r.ok()) r = u.ok() ? d : u;
  }
  if (threadIdx.x == 0) *out = r;
}
