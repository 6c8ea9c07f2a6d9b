// A libcuda.so.1 without a GPU, so that what imports gorgonia.org/cu can be linked, vetted and tested on a
// machine without NVIDIA's driver. cu ends the process when cuInit fails, so that succeeds; there are 0 devices,
// and every other call answers CUDA_ERROR_NO_DEVICE. Link against it (it has the driver's soname, so that a
// program linked here finds the driver where there is one); put it on LD_LIBRARY_PATH only where there is none.
// Its functions are weak: bindings/torch/shim/test/emulated/driver.c has others for a GPU that is emulated.
//   gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so libcuda.c
enum { kSuccess = 0, kNoDevice = 100, kVersion = 13000 };

__attribute__((weak)) int cuInit(unsigned flags) {
  (void)flags;
  return kSuccess;
}

__attribute__((weak)) int cuDriverGetVersion(int *version) {
  *version = kVersion;
  return kSuccess;
}

__attribute__((weak)) int cuDeviceGetCount(int *count) {
  *count = 0;
  return kSuccess;
}

// What cu v0.9.6 refers to, compiled with the headers of CUDA 12 or 13.
#define N(name) \
  __attribute__((weak)) int name(void) { return kNoDevice; }
// clang-format off
N(cuAllocAndCopy) N(cuArray3DCreate_v2) N(cuArray3DGetDescriptor_v2) N(cuArrayCreate_v2) N(cuArrayDestroy)
N(cuArrayGetDescriptor_v2) N(cuCtxCreate_v2) N(cuCtxCreate_v4) N(cuCtxDestroy_v2) N(cuCtxDisablePeerAccess)
N(cuCtxEnablePeerAccess) N(cuCtxGetApiVersion) N(cuCtxGetCacheConfig) N(cuCtxGetCurrent) N(cuCtxGetDevice)
N(cuCtxGetFlags) N(cuCtxGetLimit) N(cuCtxGetSharedMemConfig) N(cuCtxGetStreamPriorityRange)
N(cuCtxPopCurrent_v2) N(cuCtxPushCurrent_v2) N(cuCtxResetPersistingL2Cache) N(cuCtxSetCacheConfig)
N(cuCtxSetCurrent) N(cuCtxSetLimit) N(cuCtxSetSharedMemConfig) N(cuCtxSynchronize) N(cuDeviceCanAccessPeer)
N(cuDeviceGet) N(cuDeviceGetAttribute) N(cuDeviceGetAttributes) N(cuDeviceGetName) N(cuDeviceGetP2PAttribute)
N(cuDeviceGetUuid) N(cuDeviceGetUuid_v2) N(cuDevicePrimaryCtxGetState) N(cuDevicePrimaryCtxRelease_v2)
N(cuDevicePrimaryCtxReset_v2) N(cuDevicePrimaryCtxRetain) N(cuDevicePrimaryCtxSetFlags_v2)
N(cuDeviceTotalMem_v2) N(cuEventCreate) N(cuEventDestroy_v2) N(cuEventElapsedTime) N(cuEventElapsedTime_v2)
N(cuEventQuery) N(cuEventRecord) N(cuEventSynchronize) N(cuFuncGetAttribute) N(cuFuncSetCacheConfig)
N(cuFuncSetSharedMemConfig) N(cuGraphAddChildGraphNode) N(cuGraphAddDependencies) N(cuGraphAddDependencies_v2)
N(cuGraphAddEmptyNode) N(cuGraphAddHostNode) N(cuGraphAddKernelNode_v2) N(cuGraphAddMemcpyNode)
N(cuGraphAddMemsetNode) N(cuGraphClone) N(cuGraphCreate) N(cuGraphDestroy) N(cuGraphDestroyNode)
N(cuGraphExecDestroy) N(cuGraphGetEdges) N(cuGraphGetEdges_v2) N(cuLaunchAndSync) N(cuLaunchKernel)
N(cuLinkAddData_v2) N(cuLinkAddFile_v2) N(cuLinkComplete) N(cuLinkCreate_v2) N(cuLinkDestroy) N(cuMemAdvise)
N(cuMemAdvise_v2) N(cuMemAllocManaged) N(cuMemAllocPitch_v2) N(cuMemAlloc_v2) N(cuMemFreeHost) N(cuMemFree_v2)
N(cuMemGetAddressRange_v2) N(cuMemGetInfo_v2) N(cuMemPrefetchAsync) N(cuMemPrefetchAsync_v2) N(cuMemcpy)
N(cuMemcpy2DAsync_v2) N(cuMemcpy2DUnaligned_v2) N(cuMemcpy2D_v2) N(cuMemcpy3DAsync_v2) N(cuMemcpy3DPeer)
N(cuMemcpy3DPeerAsync) N(cuMemcpy3D_v2) N(cuMemcpyAsync) N(cuMemcpyAtoA_v2) N(cuMemcpyAtoD_v2)
N(cuMemcpyAtoHAsync_v2) N(cuMemcpyAtoH_v2) N(cuMemcpyDtoA_v2) N(cuMemcpyDtoDAsync_v2) N(cuMemcpyDtoD_v2)
N(cuMemcpyDtoHAsync_v2) N(cuMemcpyDtoH_v2) N(cuMemcpyHtoAAsync_v2) N(cuMemcpyHtoA_v2) N(cuMemcpyHtoDAsync_v2)
N(cuMemcpyHtoD_v2) N(cuMemcpyPeer) N(cuMemcpyPeerAsync) N(cuMemsetD16Async) N(cuMemsetD16_v2)
N(cuMemsetD2D16Async) N(cuMemsetD2D16_v2) N(cuMemsetD2D32Async) N(cuMemsetD2D32_v2) N(cuMemsetD2D8Async)
N(cuMemsetD2D8_v2) N(cuMemsetD32Async) N(cuMemsetD32_v2) N(cuMemsetD8Async) N(cuMemsetD8_v2)
N(cuModuleGetFunction) N(cuModuleGetGlobal_v2) N(cuModuleGetSurfRef) N(cuModuleGetTexRef) N(cuModuleLoad)
N(cuModuleLoadData) N(cuModuleLoadDataEx) N(cuModuleLoadFatBinary) N(cuModuleUnload)
N(cuOccupancyMaxActiveBlocksPerMultiprocessor) N(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
N(cuPointerGetAttribute) N(cuPointerSetAttribute) N(cuStreamAttachMemAsync) N(cuStreamCreate)
N(cuStreamCreateWithPriority) N(cuStreamDestroy_v2) N(cuStreamGetFlags) N(cuStreamGetPriority)
N(cuStreamQuery) N(cuStreamSynchronize) N(cuStreamWaitEvent) N(cuStreamWaitValue32_v2)
N(cuStreamWriteValue32_v2) N(cuSurfRefGetArray) N(cuSurfRefSetArray) N(cuTexRefGetAddressMode)
N(cuTexRefGetAddress_v2) N(cuTexRefGetArray) N(cuTexRefGetBorderColor) N(cuTexRefGetFilterMode)
N(cuTexRefGetFlags) N(cuTexRefGetFormat) N(cuTexRefGetMaxAnisotropy) N(cuTexRefSetAddress2D_v3)
N(cuTexRefSetAddressMode) N(cuTexRefSetAddress_v2) N(cuTexRefSetArray) N(cuTexRefSetBorderColor)
N(cuTexRefSetFilterMode) N(cuTexRefSetFlags) N(cuTexRefSetFormat) N(cuTexRefSetMaxAnisotropy)
N(cuTexRefSetMipmapFilterMode) N(cuTexRefSetMipmapLevelBias) N(cuTexRefSetMipmapLevelClamp)
