/* Its functions are in cuda_runtime.h. */
#ifndef RB_CUDA_DEVICE_LAUNCH_PARAMETERS_H
#define RB_CUDA_DEVICE_LAUNCH_PARAMETERS_H
#include "cuda_runtime.h"
#endif /* RB_CUDA_DEVICE_LAUNCH_PARAMETERS_H */
