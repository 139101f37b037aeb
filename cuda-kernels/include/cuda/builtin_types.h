/* Vector types and qualifiers. */
#ifndef RB_CUDA_BUILTIN_TYPES_H
#define RB_CUDA_BUILTIN_TYPES_H
#include "vector_types.h"
#endif /* RB_CUDA_BUILTIN_TYPES_H */
