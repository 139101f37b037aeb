/* CUDA's language for clang without NVIDIA's headers (-nocudainc -nocudalib): what nvcc brings before the first line.
 *
 * Sources: the CUDA C++ Programming Guide for the language, the CUDA Math API for functions and their errors.
 * clang's own functions and PTX are behind them. The C API of the host, where it is installed, is in cuda_runtime_api.h.
 */
#ifndef RB_CUDA_RUNTIME_H
#define RB_CUDA_RUNTIME_H

#include "host_defines.h"
#include "vector_types.h"
#include "vector_functions.h"
#if __has_include("cuda_runtime_api.h")
#include "cuda_runtime_api.h"
#endif
#ifndef CUDA_VERSION
#define CUDA_VERSION CUDART_VERSION
#endif

#ifdef __CUDA__
#include "rb/library.h"
#include "rb/threads.h"
#include "rb/clusters.h"
#include "rb/atomics.h"
#include "rb/loads.h"
#include "rb/integers.h"
#include "rb/rounded.h"
#include "rb/math.h"
#if !__has_include("cuda_runtime_api.h")
/* clang looks it up at each `<<<>>>`; only the host's side calls it. */
extern "C" int cudaConfigureCall(dim3 grid, dim3 block, size_t shared = 0, void *stream = nullptr);
#endif
#endif

#endif /* RB_CUDA_RUNTIME_H */
