/* Its functions are in cuda_runtime.h. */
#ifndef RB_CUDA_DEVICE_TYPES_H
#define RB_CUDA_DEVICE_TYPES_H
#include "cuda_runtime.h"
#endif /* RB_CUDA_DEVICE_TYPES_H */
