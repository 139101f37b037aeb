/* Types of pointers to functions of the driver, for those that programs look up by cuGetProcAddress. */
#ifndef RB_CUDA_TYPEDEFS_H
#define RB_CUDA_TYPEDEFS_H

#include "cuda.h"

#define RB_CUDA_POINTER(name, version) typedef __typeof__(&name) PFN_##name##_v##version; typedef PFN_##name##_v##version PFN_##name;
RB_CUDA_POINTER(cuGetProcAddress, 12000)
RB_CUDA_POINTER(cuGetErrorName, 6000)
RB_CUDA_POINTER(cuGetErrorString, 6000)
RB_CUDA_POINTER(cuCtxGetCurrent, 4000)
RB_CUDA_POINTER(cuCtxSetCurrent, 4000)
RB_CUDA_POINTER(cuModuleLoadData, 2000)
RB_CUDA_POINTER(cuModuleGetFunction, 2000)
RB_CUDA_POINTER(cuLaunchKernel, 4000)
RB_CUDA_POINTER(cuMemGetHandleForAddressRange, 11070)
RB_CUDA_POINTER(cuTensorMapEncodeTiled, 12000)
#undef RB_CUDA_POINTER

#endif /* RB_CUDA_TYPEDEFS_H */
