// NCCL's device API: an all-to-all by blocks with signals and barriers, then values, signals of windows, gets and shadows, each
// against the numbers that it should give.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <string>
#include <vector>

#include <nccl.h>
#include <nccl_device.h>

constexpr int COUNT = 300, BLOCKS = 3, THREADS = 64, COUNTED = 600;

#define NCCL(call) do { ncclResult_t r = (call); if (r != ncclSuccess) { printf("%s: %s\n", #call, ncclGetErrorString(r)); exit(1); } } while (0)
#define CUDA(call) do { cudaError_t e = (call); if (e != cudaSuccess) { printf("%s: %s\n", #call, cudaGetErrorString(e)); exit(1); } } while (0)

// Block b sends the b-th part of what each rank gets.
__global__ void all_to_all(ncclWindow_t from, ncclWindow_t to, ncclDevComm dev) {
  ncclGin gin{dev, 0};
  ncclGinSignal_t signal = blockIdx.x;
  uint64_t before = gin.readSignal(signal);
  ncclGinBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), gin, ncclTeamTagWorld(), blockIdx.x};
  barrier.sync(ncclCoopCta(), cuda::memory_order_acquire, ncclGinFenceLevel::None);
  size_t part = COUNT / BLOCKS * sizeof(int), at = blockIdx.x * part;
  for (int peer = threadIdx.x; peer < dev.nRanks; peer += blockDim.x)
    gin.put(ncclTeamWorld(dev), peer, to, dev.rank * COUNT * sizeof(int) + at, from, peer * COUNT * sizeof(int) + at, part,
            ncclGin_WeakSignalInc{signal});
  gin.waitSignal(ncclCoopCta(), signal, before + dev.nRanks);
  gin.flush(ncclCoopCta());
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

__global__ void others(ncclWindow_t w, ncclDevComm dev, int *bad) {
  ncclGin gin{dev, 1};
  ncclTeam world = ncclTeamWorld(dev);
  int next = (dev.rank + 1) % dev.nRanks, before = (dev.rank + dev.nRanks - 1) % dev.nRanks, wrong = 0;
  uint64_t *words = (uint64_t *)ncclGetLocalPointer(w, 0);
  ncclBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), ncclTeamTagWorld(), gin, 0};
  if (threadIdx.x == 0) {
    // Numbered signals, with a shadow; block 0 to 2 have used the first three.
    gin.putValue(world, next, w, 8, uint64_t(1000 + dev.rank), ncclGin_SignalAdd{3, 5});
    gin.increaseSignalShadow(3, 5);
    gin.waitSignalMeetShadow(ncclCoopThread(), 3);
    wrong += words[1] != 1000u + before;
    // A signal of a window.
    gin.putValue(world, next, ncclSymPtr<uint32_t>(w, 20), uint32_t(77 + dev.rank), ncclGin_VASignalInc{w, 64});
    gin.waitSignal(ncclCoopThread(), w, 64, 1);
    wrong += *(uint32_t *)ncclGetLocalPointer(w, 20) != 77u + before || gin.readSignal(w, 64) != 1;
    gin.resetSignal(w, 64);
    wrong += gin.readSignal(w, 64) != 0;
    gin.signal(world, next, ncclGin_StrongSignalInc{3});
    uint64_t was = 0, delta = 0;
    gin.waitSignalFollowShadow(ncclCoopThread(), 3, uint64_t(1), &was, &delta);
    wrong += was != 5 || delta != 1 || gin.readSignal(3, 2) != 2;
    // What a rank has, got by the one before.
    gin.get(world, next, w, 8, w, 128, 8);
    ncclGinRequest_t request;
    gin.flushAsync(world, next, &request);
    gin.wait(request);
    wrong += words[16] != 1000u + dev.rank;
    // Puts under two counters, more than the queue has slots; one kernel's are the next one's to wait for.
    for (int i = 0; i < COUNTED; ++i)
      gin.put(world, next, w, 160, w, 168, 8, ncclGin_None{}, ncclGin_WeakCounterInc{ncclGinCounter_t(i % 3 == 0)});
    gin.waitCounter(ncclCoopThread(), 1, COUNTED / 3);
    wrong += gin.readCounter(1) != COUNTED / 3 || gin.readCounter(0) > COUNTED - COUNTED / 3;
    gin.resetCounter(1);
    wrong += gin.readCounter(1) != 0;
    // Nothing but a counter.
    gin.put(world, next, w, 0, w, 0, 0, ncclGin_None{}, ncclGin_WeakCounterInc{1});
    gin.waitCounter(ncclCoopThread(), 1, 1);
    // Teams: each rank is an LSA team.
    wrong += ncclTeamLsa(dev).nRanks != 1 || dev.lsaSize != 1 || ncclGetLsaPointer(w, 8, 0) != words + 1 || ncclGetPeerPointer(w, 0, dev.rank) != words;
    wrong += ncclTeamRankToWorld(dev, ncclTeamRail(dev), next) != next;
    wrong += dev.nRanks > 1 && ncclGetPeerPointer(w, 0, next) != nullptr;
  }
  ncclLsaBarrierSession<ncclCoopCta> lsa{ncclCoopCta(), dev, ncclTeamLsa(dev), dev.lsaBarrier, 0};
  lsa.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  for (int i = 0; i < 3; ++i) barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  if (threadIdx.x == 0) *bad = wrong;
}

// Waits for what another kernel has put.
__global__ void count(ncclDevComm dev, int *bad) {
  ncclGin gin{dev, 0};
  gin.waitCounter(ncclCoopCta(), 0, COUNTED - COUNTED / 3);
  if (threadIdx.x == 0) *bad = gin.readCounter(0) != COUNTED - COUNTED / 3;
}

int main() {
  // As `ringbell run` says.
  const char *own = getenv("RINGBELL_RANK"), *all = getenv("RINGBELL_SIZE"), *path = getenv("GIN_ID");
  if (!own || !all || !path) return 2;
  int rank = atoi(own), ranks = atoi(all), wrong = 0;
  // The id goes by a file, as a program without MPI does it.
  ncclUniqueId id;
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&id));
    FILE *f = fopen((std::string(path) + ".new").c_str(), "wb");
    if (!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f)) return 2;
    if (rename((std::string(path) + ".new").c_str(), path)) return 2;
  } else {
    FILE *f = nullptr;
    for (int i = 0; i < 60000 && !(f = fopen(path, "rb")); ++i) {
      struct timespec nap = {0, 1000000};
      nanosleep(&nap, nullptr);
    }
    if (!f || fread(&id, sizeof id, 1, f) != 1) return 2;
    fclose(f);
  }
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, ranks, id, rank));
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  NCCL(ncclCommQueryProperties(comm, &properties));
  wrong += !properties.deviceApiSupport || properties.ginType == NCCL_GIN_TYPE_NONE || properties.nRanks != ranks;
  // Memory lies elsewhere on each rank: windows tell where.
  void *room, *from, *to, *some;
  for (int i = 0; i < rank; ++i) NCCL(ncclMemAlloc(&room, 12345));
  size_t bytes = size_t(ranks) * COUNT * sizeof(int);
  NCCL(ncclMemAlloc(&from, bytes));
  NCCL(ncclMemAlloc(&to, bytes));
  NCCL(ncclMemAlloc(&some, 256));
  ncclWindow_t sends, receives, words;
  NCCL(ncclCommWindowRegister(comm, from, bytes, &sends, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(ncclCommWindowRegister(comm, to, bytes, &receives, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(ncclCommWindowRegister(comm, some, 256, &words, NCCL_WIN_COLL_SYMMETRIC));
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.worldGinBarrierCount = BLOCKS, requirements.barrierCount = 1, requirements.ginSignalCount = BLOCKS + 1;
  requirements.ginCounterCount = 2;
  requirements.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
  ncclDevComm dev;
  NCCL(ncclDevCommCreate(comm, &requirements, &dev));
  std::vector<int> out(size_t(ranks) * COUNT), in(out.size());
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = rank * 100000 + int(i) + round;
    CUDA(cudaMemcpy(from, out.data(), bytes, cudaMemcpyHostToDevice));
    all_to_all<<<BLOCKS, THREADS>>>(sends, receives, dev);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(in.data(), to, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < in.size(); ++i) wrong += in[i] != int(i) / COUNT * 100000 + rank * COUNT + int(i) % COUNT + round;
  }
  int *bad, told = -1;
  CUDA(cudaMalloc((void **)&bad, sizeof told));
  CUDA(cudaMemset(some, 0, 256));
  CUDA(cudaDeviceSynchronize());
  NCCL(ncclCommFinalize(comm)); // all have reset theirs
  others<<<1, THREADS>>>(words, dev, bad);
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaMemcpy(&told, bad, sizeof told, cudaMemcpyDeviceToHost));
  wrong += told;
  count<<<1, THREADS>>>(dev, bad);
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaMemcpy(&told, bad, sizeof told, cudaMemcpyDeviceToHost));
  printf("rank %d of %d: %d, %d: %s\n", rank, ranks, wrong, told, wrong || told ? "WRONG" : "all as they should be");
  NCCL(ncclDevCommDestroy(comm, &dev));
  NCCL(ncclCommWindowDeregister(comm, sends));
  NCCL(ncclMemFree(from));
  NCCL(ncclCommFinalize(comm));
  NCCL(ncclCommDestroy(comm));
  return wrong || told;
}
