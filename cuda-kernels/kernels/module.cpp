// Every kernel of the SDK as one module of the emulated GPU. nvcc compiles the files one by one.
#include "ringbell.cuh"

#include "collective.cu"
#include "echo.cu"
#include "floor.cu"
#include "hll.cu"
#include "nc.cu"
#include "one_sided.cu"
#include "perf.cu"
#include "reduce.cu"
#include "slots.cu"
#include "sockets.cu"
