/* Its functions are in cuda_runtime.h. */
#ifndef RB_CUDA_SM_30_INTRINSICS_H
#define RB_CUDA_SM_30_INTRINSICS_H
#include "cuda_runtime.h"
#endif /* RB_CUDA_SM_30_INTRINSICS_H */
