/* Its functions are in cuda_runtime.h. */
#ifndef RB_CUDA_MATH_FUNCTIONS_H
#define RB_CUDA_MATH_FUNCTIONS_H
#include "cuda_runtime.h"
#endif /* RB_CUDA_MATH_FUNCTIONS_H */
