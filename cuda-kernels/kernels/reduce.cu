// Reductions by the GPU's own lanes (`rb_reduce` of the C API), to be compared with a combination by the NIC.
#include "common.cuh"
#include "ringbell_reduce.cuh"

namespace {

// As many operands as one launch takes. Mirrored by `MAX_SOURCES` in src/reduce.rs.
constexpr rb_u32 MAX_SOURCES = 8;
struct sources {
  const void *at[MAX_SOURCES];
};

template <rb_u32 DTYPE>
RB_DEVICE void local_reduce(void *dst, const sources &srcs, rb_u32 count_of_sources, rb_u64 count, rb_u32 op, rb_u32 iterations,
                            rbk::perf_result *out) {
  __shared__ const void *from[MAX_SOURCES];
  bool leader = rb::detail::thread_index() == 0;
  // By constant index: one that varies would put the argument on the stack.
  if (leader)
#pragma unroll
    for (rb_u32 i = 0; i < MAX_SOURCES; ++i) from[i] = srcs.at[i];
  __syncthreads();
  if (count_of_sources > MAX_SOURCES) count_of_sources = 0; // refused below
  rb_u64 begin = rb::detail::clock_ns();
  rb_u32 status = RB_STATUS_OK;
  for (rb_u32 i = 0; i < iterations && status == RB_STATUS_OK; ++i)
    status = gpu_local_reduce(dst, from, count_of_sources, count, DTYPE, op, rb::lanes::of_grid());
  __syncthreads();
  rb_u64 end = rb::detail::clock_ns();
  if (!leader || blockIdx.x) return;
  bool ok = status == RB_STATUS_OK;
  rb_u64 bytes = rb_u64(iterations) * count * rb::detail::element_bytes(DTYPE);
  *out = rbk::perf_result{status, 0, ok ? 0 : rb_u64(op), ok ? iterations : 0, ok ? bytes : 0, 0, end - begin};
}

} // namespace

// dst = srcs[0] op srcs[1] op ... over `count` elements, `iterations` times; any grid. A kernel for each type, so that
// the first of them does not wait until the code of all is compiled. `out` gets the status and the time of block 0;
// `detail` of a refusal is the operation. At most 512 lanes a block, so that each may have 128 registers: with fewer the
// vectors in flight spill.
#define LOCAL_REDUCE(TYPE, DTYPE)                                                                                              \
  extern "C" __global__ void __launch_bounds__(512, 1)                                                                         \
      rb_local_reduce_##TYPE(void *dst, sources srcs, rb_u32 count_of_sources, rb_u64 count, rb_u32 op, rb_u32 iterations,     \
                             rbk::perf_result *out) {                                                                          \
    local_reduce<DTYPE>(dst, srcs, count_of_sources, count, op, iterations, out);                                              \
  }
LOCAL_REDUCE(f16, RB_DTYPE_F16)
LOCAL_REDUCE(bf16, RB_DTYPE_BF16)
LOCAL_REDUCE(f32, RB_DTYPE_F32)
LOCAL_REDUCE(f64, RB_DTYPE_F64)
LOCAL_REDUCE(i8, RB_DTYPE_I8)
LOCAL_REDUCE(i16, RB_DTYPE_I16)
LOCAL_REDUCE(u16, RB_DTYPE_U16)
LOCAL_REDUCE(i32, RB_DTYPE_I32)
LOCAL_REDUCE(i64, RB_DTYPE_I64)
LOCAL_REDUCE(u8, RB_DTYPE_U8)
LOCAL_REDUCE(u32, RB_DTYPE_U32)
LOCAL_REDUCE(u64, RB_DTYPE_U64)
