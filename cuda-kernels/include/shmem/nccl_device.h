/* NCCL's device API: GIN (a kernel puts and signals through the NIC) and what it has of LSA, on Ringbell's one-sided operations.
 *
 *   ncclGin gin{devComm, 0};
 *   gin.put(ncclTeamWorld(devComm), peer, to, 0, from, 0, bytes, ncclGin_SignalInc{0});
 *   gin.waitSignal(ncclCoopCta(), 0, before + 1);
 *
 * Every rank is an LSA team of its own: no rank reaches another's memory by loads and stores. What has no equal is refused when it is
 * compiled, by its name. docs/gin.md has each call and what differs.
 *
 * Source: the NCCL documentation, "Device-Initiated Communication", 2.28 and later.
 */
#ifndef RINGBELL_NCCL_DEVICE_H
#define RINGBELL_NCCL_DEVICE_H

#include "nccl.h"

#include "gin/coop.h"
#include "gin/comm.h"
#include "gin/gin.h"
#include "gin/barriers.h"

#endif /* RINGBELL_NCCL_DEVICE_H */
