/* Loads and stores with cache hints. An emulated GPU has no caches; what matters is which of them may be repeated or
 * hoisted by the compiler: `__ldcg` and `__ldcv` look at memory each time.
 */
#ifndef RB_CUDA_LOADS_H
#define RB_CUDA_LOADS_H

#include "../vector_types.h"

namespace rb_cuda {
template <unsigned bytes> struct Fresh;
#define RB_CUDA_FRESH(bytes, type, suffix, reg)                                                                \
  template <> struct Fresh<bytes> {                                                                            \
    type v;                                                                                                    \
    __device__ __forceinline__ void load(const void *p) {                                                      \
      asm volatile("ld.relaxed.sys." suffix " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                    \
    }                                                                                                          \
    __device__ __forceinline__ void store(void *p) const {                                                     \
      asm volatile("st.relaxed.sys." suffix " [%0], %1;" ::"l"(p), reg(v) : "memory");                         \
    }                                                                                                          \
  };
RB_CUDA_FRESH(2, unsigned short, "u16", "h")
RB_CUDA_FRESH(4, unsigned, "u32", "r")
RB_CUDA_FRESH(8, unsigned long long, "u64", "l")
#undef RB_CUDA_FRESH
template <> struct Fresh<1> {
  unsigned char v;
  __device__ __forceinline__ void load(const void *p) {
    unsigned short wide;
    asm volatile("ld.relaxed.sys.u8 %0, [%1];" : "=h"(wide) : "l"(p) : "memory");
    v = (unsigned char)wide;
  }
  __device__ __forceinline__ void store(void *p) const {
    asm volatile("st.relaxed.sys.u8 [%0], %1;" ::"l"(p), "h"((unsigned short)v) : "memory");
  }
};
template <> struct Fresh<16> {
  unsigned long long a, b;
  __device__ __forceinline__ void load(const void *p) {
    asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
  }
  __device__ __forceinline__ void store(void *p) const {
    asm volatile("st.relaxed.sys.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");
  }
};
template <class T> __device__ __forceinline__ T fresh_load(const T *p) {
  Fresh<sizeof(T)> f;
  f.load(p);
  return __builtin_bit_cast(T, f);
}
template <class T> __device__ __forceinline__ void fresh_store(T *p, T v) {
  __builtin_bit_cast(Fresh<sizeof(T)>, v).store(p);
}
} // namespace rb_cuda

template <class T> RB_CUDA_DEVICE T __ldg(const T *p) { return *p; }
template <class T> RB_CUDA_DEVICE T __ldca(const T *p) { return *p; }
template <class T> RB_CUDA_DEVICE T __ldcs(const T *p) { return *p; }
template <class T> RB_CUDA_DEVICE T __ldlu(const T *p) { return *p; }
template <class T> RB_CUDA_DEVICE T __ldcg(const T *p) { return rb_cuda::fresh_load(p); }
template <class T> RB_CUDA_DEVICE T __ldcv(const T *p) { return rb_cuda::fresh_load(p); }
template <class T> RB_CUDA_DEVICE void __stwb(T *p, T v) { *p = v; }
template <class T> RB_CUDA_DEVICE void __stcs(T *p, T v) { *p = v; }
template <class T> RB_CUDA_DEVICE void __stcg(T *p, T v) { rb_cuda::fresh_store(p, v); }
template <class T> RB_CUDA_DEVICE void __stwt(T *p, T v) { rb_cuda::fresh_store(p, v); }

#endif /* RB_CUDA_LOADS_H */
