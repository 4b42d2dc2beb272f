/* SPDX-License-Identifier: Apache-2.0
 * The fake CUDA driver: properties of the machine, functions by name, devices and contexts. */
#include "tests/emulate/fake_cuda_parts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cudaTypedefs.h>

#include "tests/emulate/fake_cuda.h"

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static const char *find_word(const char *word, int device) {
  const char *at = getenv("FAKE_CUDA");
  size_t length = strlen(word);
  for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
    if (strncmp(at, word, length) != 0) continue;
    char after = at[length];
    if (after == 0 || after == ',' || after == '=') return at + length;
    if (after == ':' && strtol(at + length + 1, NULL, 10) == device) return at + length;
  }
  return NULL;
}

bool fake_is(const char *word, int device) { return find_word(word, device) != NULL; }

long fake_number(const char *word, long otherwise) {
  const char *after = find_word(word, -1);
  return after && *after == '=' ? strtol(after + 1, NULL, 10) : otherwise;
}

static int device_count(void) { return (int)fake_number("devices", 4); }
int fake_host_device(int device) { return device + (int)fake_number("first", 0); }

/* ---- objects ----------------------------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static object *objects;
static int retained[FAKE_DEVICES_MAX];

void fake_lock(void) { pthread_mutex_lock(&mutex); }
void fake_unlock(void) { pthread_mutex_unlock(&mutex); }

object *fake_add(object_kind kind, void *address, size_t bytes) {
  object *made = calloc(1, sizeof *made);
  if (!made) abort();
  *made = (object){.kind = kind,
                   .device = fake_device(),
                   .address = address ? address : made,
                   .bytes = bytes,
                   .file = -1,
                   .next = objects};
  made->seen = made->address;
  return objects = made;
}

object *fake_find(object_kind kind, const void *address) {
  object *at = objects;
  while (at && (at->kind != kind || at->address != address)) at = at->next;
  return at;
}

void fake_each_import(void (*visit)(void *context, void *memory, size_t bytes), void *context) {
  for (const object *at = objects; at; at = at->next)
    if (at->kind == MAPPED && at->imported) visit(context, at->address, at->bytes);
}

bool fake_remove(object_kind kind, const void *address) {
  object **link = &objects;
  while (*link && ((*link)->kind != kind || (*link)->address != address)) link = &(*link)->next;
  object *found = *link;
  if (!found) return false;
  *link = found->next;
  if (found->file >= 0) close(found->file);
  free(found);
  return true;
}

object *fake_covering(const void *address, size_t bytes) {
  for (object *at = objects; at; at = at->next) {
    bool seen = at->kind <= OPENED || (at->kind == MAPPED && at->access);
    const char *first = at->seen;
    if (seen && (const char *)address >= first && (const char *)address + bytes <= first + at->bytes) return at;
  }
  return NULL;
}

void fake_note(const char *what) {
  const char *path = getenv("FAKE_CUDA_NOTES");
  FILE *notes = path ? fopen(path, "a") : NULL;
  if (!notes) return;
  fprintf(notes, "%s\n", what);
  fclose(notes);
}

EXPORTED fake_cuda_live_function fake_cuda_live;
int fake_cuda_live(char *text, size_t bytes) {
  static const char *const names[OBJECT_KINDS] = {"allocations", "pinned", "registered", "opened", "physical",
                                                  "reserved",    "mapped", "streams",    "modules"};
  int counts[OBJECT_KINDS] = {0}, contexts = 0, sum;
  fake_lock();
  for (const object *at = objects; at; at = at->next) counts[at->kind]++;
  for (int i = 0; i < FAKE_DEVICES_MAX; i++) contexts += retained[i];
  fake_unlock();
  int length = snprintf(text, bytes, "%d contexts", contexts);
  sum = contexts;
  for (int i = 0; i < OBJECT_KINDS; i++) {
    if (counts[i] && (size_t)length < bytes)
      length += snprintf(text + length, bytes - (size_t)length, ", %d %s", counts[i], names[i]);
    sum += counts[i];
  }
  return sum;
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

enum { STACK_MAX = 16 };

/* A context is the address of its device's entry. The last entry is the context that is not primary. */
static char contexts[FAKE_DEVICES_MAX + 1];
static _Thread_local CUcontext stack[STACK_MAX];
static _Thread_local int depth;
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static atomic_ullong setup_calls;

static CUcontext context_of(int device) { return (CUcontext)(void *)&contexts[device]; }
static CUcontext current(void) { return depth ? stack[depth - 1] : NULL; }

int fake_device(void) {
  if (!current()) return -1;
  ptrdiff_t device = (char *)(void *)current() - contexts;
  return device == FAKE_DEVICES_MAX ? 0 : (int)device;
}

EXPORTED fake_cuda_set_device_function fake_cuda_set_device;
void fake_cuda_set_device(int ordinal) {
  depth = 0;
  if (ordinal >= 0)
    stack[depth++] = fake_is("other-context", ordinal) ? context_of(FAKE_DEVICES_MAX) : context_of(ordinal);
}

EXPORTED fake_cuda_current_function fake_cuda_current;
int fake_cuda_current(void) { return fake_device(); }

EXPORTED fake_cuda_setup_calls_function fake_cuda_setup_calls;
uint64_t fake_cuda_setup_calls(void) { return atomic_load(&setup_calls); }

/* Checks that the proxy does not call the driver. Kernels wait for the proxy, and another thread may hold the driver's
 * locks while it waits for kernels. */
static void check_thread(void) {
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  if (strcmp(name, "banyan-proxy") != 0) return;
  fprintf(stderr, "fake CUDA: a call by the thread that kernels wait for\n");
  abort();
}

CUresult fake_enter(bool setup) {
  check_thread();
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (setup) atomic_fetch_add(&setup_calls, 1);
  if (setup && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED && fake_is("capturing", fake_device()))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return CUDA_SUCCESS;
}

CUresult fake_enter_idle(void) {
  CUresult result = fake_enter(true);
  if (result == CUDA_SUCCESS && fake_queue_is_on()) fake_queue_settle();
  return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUstreamCaptureMode before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = current();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  *device = fake_device();
  return current() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  if (depth == STACK_MAX) abort();
  stack[depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context) {
  if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  *context = stack[--depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  depth = 0;
  if (context) stack[depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  fake_lock();
  retained[device]++;
  fake_unlock();
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  fake_lock();
  if (retained[device]-- == 0) abort();
  fake_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  fake_lock();
  *active = retained[device] > 0 || current() == context_of(device);
  fake_unlock();
  *flags = 0;
  return CUDA_SUCCESS;
}

/* The default of drivers. */
static atomic_size_t stack_bytes = 1024;
size_t fake_stack(void) { return atomic_load(&stack_bytes); }

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  if (limit != CU_LIMIT_STACK_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = fake_stack();
  return fake_enter(false);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  if (limit != CU_LIMIT_STACK_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  CUresult result = fake_enter_idle();
  if (result == CUDA_SUCCESS) atomic_store(&stack_bytes, value);
  return result;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

CUresult cuInit(unsigned flags) {
  if (flags) abort();
  static atomic_bool has_begun;
  if (!atomic_exchange(&has_begun, true)) fake_note("cuInit");
  return fake_is("init-fails", -1) ? CUDA_ERROR_UNKNOWN : device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDeviceGetCount(int *count) {
  *count = device_count();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  if (ordinal < 0 || ordinal >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device) {
  snprintf(name, (size_t)bytes, "Fake %d", fake_host_device(device));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
  memset(uuid, 0x5a, sizeof *uuid);
  uuid->bytes[15] = (char)fake_host_device(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  int compute = (int)fake_number("compute", 90);
  bool vmm = !fake_is("no-vmm", device);
  switch ((int)attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = compute / 10; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = compute % 10; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = (int)fake_number("sms", 16 + fake_host_device(device)); break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
  case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *value = compute >= 90; break;
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: *value = 1; break;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = CU_COMPUTEMODE_DEFAULT; break;
  case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: *value = !fake_is("no-pageable", device); break;
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = vmm; break;
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    *value = vmm && !fake_is("no-files", device);
    break;
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: *value = vmm && !fake_is("no-fabric", device); break;
  case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED: *value = fake_is("multicast", device); break;
  case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *value = 1; break;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  *can = device != peer && !fake_is("no-peer", device) && !fake_is("no-peer", peer);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer) {
  if (attribute != CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) return CUDA_ERROR_INVALID_VALUE;
  return cuDeviceCanAccessPeer(value, device, peer);
}

CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned flags) {
  int peer = (int)((char *)(void *)context - contexts), can = 0;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = fake_enter(true);
  if (result != CUDA_SUCCESS) return result;
  cuDeviceCanAccessPeer(&can, fake_device(), peer);
  return can ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

/* ---- errors, functions by name ----------------------------------------------------------------------------------- */

CUresult cuGetErrorName(CUresult result, const char **name) {
  *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char **text) {
  (void)result;
  *text = "a fake error";
  return CUDA_SUCCESS;
}

static int driver_version(void) { return (int)fake_number("version", CUDA_VERSION); }

EXPORTED CUresult cuDriverGetVersion(int *version) {
  *version = driver_version();
  return CUDA_SUCCESS;
}

static const struct {
  const char *name;
  int version;
  void (*function)(void);
} functions[] = {
#define BNY_CUDA_FUNCTION(name, version) {#name, version, (void (*)(void))name},
#define BNY_CUDA_OPTIONAL(name, version) {#name, version, (void (*)(void))name},
#define BNY_CUDA_PROGRAM(name, version) {#name, version, (void (*)(void))name},
#include "base/cuda_functions.def"
#undef BNY_CUDA_FUNCTION
#undef BNY_CUDA_OPTIONAL
#undef BNY_CUDA_PROGRAM
};

static CUresult look_up(const char *name, void **function, int version) {
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    if (strcmp(functions[i].name, name) != 0) continue;
    if (version < functions[i].version || driver_version() < functions[i].version || fake_is(name, -1)) break;
    memcpy(function, &functions[i].function, sizeof *function);
    return CUDA_SUCCESS;
  }
  *function = NULL;
  return CUDA_ERROR_NOT_FOUND;
}

EXPORTED CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult *outcome) {
  (void)flags;
  CUresult result = look_up(name, function, version);
  *outcome = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return CUDA_SUCCESS; /* as in real drivers, the result of a query shows the failure */
}
