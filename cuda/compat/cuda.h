// gorgonia.org/cu v0.9.6 calls five driver functions by the names and arguments of CUDA 12; CUDA 13's header
// binds these names to newer forms. This folder comes before the toolkit's on the include path (../env.sh).
// Its functions take the arguments that cu passes, with either header.
#pragma once
#include_next <cuda.h>

#if CUDA_VERSION >= 13000

static inline CUresult mgrpo_cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) {
  return cuCtxCreate(context, NULL, flags, device);
}
#undef cuCtxCreate
#define cuCtxCreate mgrpo_cuCtxCreate

// A location was a device number, CU_DEVICE_CPU for the host. Now it is a kind and a number.
static inline CUmemLocation mgrpo_location(CUdevice device) {
  CUmemLocation location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  if (device != CU_DEVICE_CPU) {
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
  }
  return location;
}

static inline CUresult mgrpo_cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return cuMemAdvise(address, bytes, advice, mgrpo_location(device));
}
#undef cuMemAdvise
#define cuMemAdvise mgrpo_cuMemAdvise

static inline CUresult mgrpo_cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return cuMemPrefetchAsync(address, bytes, mgrpo_location(device), 0, stream);
}
#undef cuMemPrefetchAsync
#define cuMemPrefetchAsync mgrpo_cuMemPrefetchAsync

// Edges of a graph now have data. NULL means no data.
static inline CUresult mgrpo_cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t n) {
  return cuGraphAddDependencies(graph, from, to, NULL, n);
}
#undef cuGraphAddDependencies
#define cuGraphAddDependencies mgrpo_cuGraphAddDependencies

static inline CUresult mgrpo_cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n) {
  return cuGraphGetEdges(graph, from, to, NULL, n);
}
#undef cuGraphGetEdges
#define cuGraphGetEdges mgrpo_cuGraphGetEdges

#endif
