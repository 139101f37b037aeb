/* Clusters of blocks (PTX ISA, "%clusterid" and its like, "barrier.cluster"), and the order of dependent kernels. A cluster
 * is one block on the emulated GPU. */
#ifndef RB_CUDA_CLUSTERS_H
#define RB_CUDA_CLUSTERS_H

RB_CUDA_DEVICE void __cluster_barrier_arrive() { asm volatile("barrier.cluster.arrive.aligned;" ::: "memory"); }
RB_CUDA_DEVICE void __cluster_barrier_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }
RB_CUDA_DEVICE void __cluster_barrier_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

#define RB_CUDA_CLUSTER(name, special)                             \
  RB_CUDA_DEVICE dim3 name() {                                     \
    unsigned x, y, z;                                              \
    asm("mov.u32 %0, %%" special ".x;" : "=r"(x));                 \
    asm("mov.u32 %0, %%" special ".y;" : "=r"(y));                 \
    asm("mov.u32 %0, %%" special ".z;" : "=r"(z));                 \
    return dim3(x, y, z);                                          \
  }
RB_CUDA_CLUSTER(__clusterDim, "cluster_nctaid")
RB_CUDA_CLUSTER(__clusterRelativeBlockIdx, "cluster_ctaid")
RB_CUDA_CLUSTER(__clusterIdx, "clusterid")
RB_CUDA_CLUSTER(__clusterGridDimInClusters, "nclusterid")
#undef RB_CUDA_CLUSTER
RB_CUDA_DEVICE unsigned __clusterRelativeBlockRank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
RB_CUDA_DEVICE unsigned __clusterSizeInBlocks() {
  unsigned blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}

/* Programmatic dependent launch (PTX ISA, "griddepcontrol"). */
RB_CUDA_DEVICE void cudaGridDependencySynchronize() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
RB_CUDA_DEVICE void cudaTriggerProgrammaticLaunchCompletion() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

#endif /* RB_CUDA_CLUSTERS_H */
