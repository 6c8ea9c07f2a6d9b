// A libcuda.so.1 with one GPU, the emulated one: what cuda/ asks of the driver. Everything else is as in cuda/stub/libcuda.c.
#include <stddef.h>
#include <string.h>

enum { kSuccess = 0, kInvalidDevice = 101, kContextIsDestroyed = 709, kVersion = 13000, kMajor = 75, kMinor = 76 };

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
