// A libcuda.so.1 with one GPU, the emulated one: what cuda/ asks of the driver. Everything else is as in cuda/stub/libcuda.c.
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
  kSuccess = 0,
  kInvalidDevice = 101,
  kFileNotFound = 301,
  kNotFound = 500,
  kLaunchFailed = 719,
  kContextIsDestroyed = 709,
  kVersion = 13000,
  kMajor = 75,
  kMinor = 76
};

int cuInit(unsigned flags) { return (void)flags, kSuccess; }
int cuDriverGetVersion(int *version) { return *version = kVersion, kSuccess; }
int cuDeviceGetCount(int *count) { return *count = 1, kSuccess; }
int cuDeviceGet(int *device, int index) { return *device = index, index == 0 ? kSuccess : kInvalidDevice; }
int cuDeviceGetName(char *name, int size, int device) { return (void)device, strncpy(name, "emulated GPU", (size_t)size), kSuccess; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { return (void)device, *bytes = (size_t)4 << 30, kSuccess; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == kMajor ? 9 : 0;
  return kSuccess;
}

// The primary context ends when every owner has released it, and with it its events. An event is the number of its context.
static _Atomic int owners;
static _Atomic size_t contexts = 1;
int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  owners++;
  *context = (void *)8;
  return kSuccess;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  if (--owners == 0) contexts++;
  return kSuccess;
}
static int of_this_context(void *event) { return (size_t)event == contexts ? kSuccess : kContextIsDestroyed; }

int cuCtxPushCurrent_v2(void *context) { return (void)context, kSuccess; }
int cuCtxPopCurrent_v2(void **context) { return *context = (void *)8, kSuccess; }
int cuMemGetInfo_v2(size_t *available, size_t *total) { return *available = *total = (size_t)4 << 30, kSuccess; }
int cuEventCreate(void **event, unsigned flags) { return (void)flags, *event = (void *)contexts, kSuccess; }
int cuEventDestroy_v2(void *event) { return of_this_context(event); }
int cuEventRecord(void *event, void *stream) { return (void)stream, of_this_context(event); }
int cuEventSynchronize(void *event) { return of_this_context(event); }
int cuEventElapsedTime(float *ms, void *from, void *to) { return (void)from, (void)to, *ms = 1e-3f, kSuccess; }
int cuEventElapsedTime_v2(float *ms, void *from, void *to) { return cuEventElapsedTime(ms, from, to); }

// The emulator cannot run the code of a module. A function of it is the C++ of the same kernel in libmgrpo_kernels_emulated
// (kernels/test/emulator/modules.cu).
int cuModuleLoad(void **module, const char *file) {
  *module = (void *)8;
  return access(file, R_OK) == 0 ? kSuccess : kFileNotFound;
}
int cuModuleUnload(void *module) { return (void)module, kSuccess; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module;
  char emulated[256];
  snprintf(emulated, sizeof emulated, "emulated_%s", name);
  *function = dlsym(RTLD_DEFAULT, emulated);
  return *function ? kSuccess : kNotFound;
}
int cuLaunchKernel(void *function, unsigned blocks, unsigned blocks_y, unsigned blocks_z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void *stream, void **parameters, void **more) {
  if (blocks_y * blocks_z * threads_y * threads_z != 1 || shared != 0 || more) return kLaunchFailed;
  int (*launch)(unsigned, unsigned, void *, void **);
  memcpy(&launch, &function, sizeof launch);
  return launch(blocks, threads, stream, parameters) == 0 ? kSuccess : kLaunchFailed;
}
