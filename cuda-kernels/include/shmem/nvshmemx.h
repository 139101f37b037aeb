/* NVSHMEM's extensions: the calls of warps, of blocks and on streams. nvshmem.h has them too. */
#ifndef RINGBELL_NVSHMEMX_H
#define RINGBELL_NVSHMEMX_H

#include "nvshmem.h"
#include "rb/on_stream.h"

#endif /* RINGBELL_NVSHMEMX_H */
