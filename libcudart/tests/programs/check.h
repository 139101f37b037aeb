// Ends a program with the line of what does not hold.
#pragma once
#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) {                                                          \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)

// A call of the runtime that succeeds.
#define OK(call)                                                                 \
  do {                                                                           \
    cudaError_t error_ = (call);                                                 \
    if (error_ != cudaSuccess) {                                                 \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call,         \
                   cudaGetErrorString(error_));                                  \
      std::exit(1);                                                              \
    }                                                                            \
  } while (0)
