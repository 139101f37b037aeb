/* Its functions are in cuda_runtime.h. */
#ifndef RB_CUDA_SM_60_ATOMIC_FUNCTIONS_H
#define RB_CUDA_SM_60_ATOMIC_FUNCTIONS_H
#include "cuda_runtime.h"
#endif /* RB_CUDA_SM_60_ATOMIC_FUNCTIONS_H */
