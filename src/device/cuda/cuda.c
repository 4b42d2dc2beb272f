/* SPDX-License-Identifier: Apache-2.0
 * Chooses and opens a CUDA device, and finds its facts. It retains the primary context and creates none of its own, so
 * memory and streams of the CUDA runtime and of frameworks work here. */
#include "device/cuda/entry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/cuda.h"
#include "base/status.h"

/* ---- memory of its own ------------------------------------------------------------------------------------------- */

static banyan_status local_make(bny_device *device, size_t bytes, void **address) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  CUdeviceptr made = 0;
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS) result = self->driver.cuMemAlloc(&made, bytes);
  bny_cuda_leave(self, &scope);
  if (result == CUDA_SUCCESS) *address = (void *)(uintptr_t)made;
  return bny_cuda_check(&self->driver, result, "%zu bytes of CUDA device %d", bytes, device->facts.ordinal);
}

static void local_free(bny_device *device, void *address) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (!address) return;
  if (bny_cuda_enter_setup(self, &scope) == CUDA_SUCCESS) self->driver.cuMemFree(bny_cuda_address(address));
  bny_cuda_leave(self, &scope);
}

/* ---- words of the host ------------------------------------------------------------------------------------------- */

static banyan_status words_make(bny_device *device, size_t count, bny_device_words *words) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  void *host = NULL;
  CUdeviceptr address = 0;
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS)
    result = self->driver.cuMemHostAlloc(&host, count * sizeof(uint64_t),
                                         CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    result = self->driver.cuMemHostGetDevicePointer(&address, host, 0);
    if (result != CUDA_SUCCESS) self->driver.cuMemFreeHost(host);
  }
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS) return bny_cuda_check(&self->driver, result, "%zu words of pinned memory", count);
  memset(host, 0, count * sizeof(uint64_t));
  *words = (bny_device_words){.host = host, .device = (void *)(uintptr_t)address, .count = count};
  return BANYAN_OK;
}

static void words_free(bny_device *device, bny_device_words *words) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (words->host) {
    if (bny_cuda_enter_setup(self, &scope) == CUDA_SUCCESS) self->driver.cuMemFreeHost(words->host);
    bny_cuda_leave(self, &scope);
  }
  *words = (bny_device_words){0};
}

/* Returns whether this device can map the other's memory. Drivers do not report whether it is mapped. */
static bool reaches_device(const bny_cuda_device *self, int ordinal) {
  CUdevice peer;
  int access = 0;
  if (ordinal == self->device.facts.ordinal) return true;
  return self->driver.cuDeviceGet(&peer, ordinal) == CUDA_SUCCESS &&
         self->driver.cuDeviceCanAccessPeer(&access, self->handle, peer) == CUDA_SUCCESS && access;
}

static banyan_status cuda_pointer(bny_device *device, const void *pointer, bny_pointer_facts *facts) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  unsigned type = 0, managed = 0;
  int ordinal = -1;
  CUdeviceptr first = 0;
  size_t bytes = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void *values[] = {&type, &managed, &ordinal, &first, &bytes};
  bny_cuda_scope scope;
  CUresult result = bny_cuda_enter(self, &scope);
  if (result == CUDA_SUCCESS)
    result =
        self->driver.cuPointerGetAttributes(sizeof names / sizeof names[0], names, values, bny_cuda_address(pointer));
  bny_cuda_leave(self, &scope);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE)
    return bny_cuda_check(&self->driver, result, "which device owns a pointer");
  bny_pointer_facts found = {.kind = BNY_POINTER_UNKNOWN, .ordinal = -1, .reached = self->pageable};
  if (result == CUDA_SUCCESS && type) {
    found.kind = managed ? BNY_POINTER_MANAGED : type == CU_MEMORYTYPE_DEVICE ? BNY_POINTER_DEVICE : BNY_POINTER_HOST;
    if (found.kind == BNY_POINTER_DEVICE) found.ordinal = ordinal;
    found.same = found.ordinal == device->facts.ordinal;
    found.reached = found.kind != BNY_POINTER_DEVICE || reaches_device(self, ordinal);
    found.first = (uintptr_t)first;
    found.bytes = bytes;
  }
  *facts = found;
  return BANYAN_OK;
}

/* ---- hot --------------------------------------------------------------------------------------------------------- */

static banyan_status cuda_copy(bny_device *device, void *to, const void *from, size_t bytes, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (bytes == 0) return BANYAN_OK;
  CUresult result = bny_cuda_enter(self, &scope);
  if (result == CUDA_SUCCESS)
    result = self->driver.cuMemcpyAsync(bny_cuda_address(to), bny_cuda_address(from), bytes, stream);
  bny_cuda_leave(self, &scope);
  return bny_cuda_check(&self->driver, result, "copy of %zu bytes on CUDA device %d", bytes, device->facts.ordinal);
}

static banyan_status cuda_zero(bny_device *device, void *to, size_t bytes, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (bytes == 0) return BANYAN_OK;
  CUresult result = bny_cuda_enter(self, &scope);
  if (result == CUDA_SUCCESS) result = self->driver.cuMemsetD8Async(bny_cuda_address(to), 0, bytes, stream);
  bny_cuda_leave(self, &scope);
  return bny_cuda_check(&self->driver, result, "zeros for %zu bytes on CUDA device %d", bytes, device->facts.ordinal);
}

/* ---- streams of our own ------------------------------------------------------------------------------------------ */

static banyan_status stream_make(bny_device *device, void **stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  CUstream made = NULL;
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS) result = self->driver.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
  bny_cuda_leave(self, &scope);
  if (result == CUDA_SUCCESS) *stream = made;
  return bny_cuda_check(&self->driver, result, "a stream on CUDA device %d", device->facts.ordinal);
}

static void stream_free(bny_device *device, void *stream) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (!stream) return;
  if (bny_cuda_enter_setup(self, &scope) == CUDA_SUCCESS) self->driver.cuStreamDestroy(stream);
  bny_cuda_leave(self, &scope);
}

/* Drivers treat this query as a call that invalidates captures. */
static banyan_status stream_query(bny_device *device, void *stream, bool *done) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS) result = self->driver.cuStreamQuery(stream);
  bny_cuda_leave(self, &scope);
  *done = result == CUDA_SUCCESS;
  if (result == CUDA_ERROR_NOT_READY) return BANYAN_OK;
  return bny_cuda_check(&self->driver, result, "a stream of CUDA device %d", device->facts.ordinal);
}

static banyan_status stream_use(bny_device *device, uint64_t *word, void *stream, bool *used) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  CUresult result = bny_cuda_enter_setup(self, &scope);
  if (result == CUDA_SUCCESS) result = self->driver.cuStreamIsCapturing(stream, &capture);
  const bool is_free = result == CUDA_SUCCESS && capture == CU_STREAM_CAPTURE_STATUS_NONE;
  if (is_free) result = self->driver.cuMemsetD8Async(bny_cuda_address(word), 0, sizeof *word, stream);
  bny_cuda_leave(self, &scope);
  *used = is_free && result == CUDA_SUCCESS;
  return bny_cuda_check(&self->driver, result, "the first work of a stream on CUDA device %d", device->facts.ordinal);
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

static banyan_status choose_by_context(const bny_cuda_driver *driver, CUcontext *current, int32_t *ordinal) {
  CUdevice device = 0;
  CUresult result = driver->cuCtxGetCurrent(current);
  if (result == CUDA_SUCCESS && !*current)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "no CUDA device is current on this thread; call cudaSetDevice first, or name a device");
  if (result == CUDA_SUCCESS) result = driver->cuCtxGetDevice(&device);
  if (result != CUDA_SUCCESS) return bny_cuda_check(driver, result, "the current CUDA context");
  *ordinal = device; /* a CUdevice is the ordinal */
  return BANYAN_OK;
}

static banyan_status choose_by_local_rank(int count, int32_t *ordinal) {
  const char *text = getenv("LOCAL_RANK");
  if (!text || !*text)
    return bny_fail(BANYAN_ERR_ARGUMENT,
                    "LOCAL_RANK is not set; start ranks by a launcher that sets it (torchrun does), "
                    "or name a device");
  char *end;
  errno = 0;
  long rank = strtol(text, &end, 10);
  if (errno || *end || rank < 0 || rank > INT32_MAX)
    return bny_fail(BANYAN_ERR_ARGUMENT, "LOCAL_RANK is \"%.40s\"; it takes a whole number from 0", text);
  if (count == 1) rank = 0; /* the launcher shows each process only its own device */
  if (rank >= count)
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "LOCAL_RANK is %ld, and this process sees %d CUDA devices; start fewer ranks here, or name a device for "
        "each",
        rank, count);
  *ordinal = (int32_t)rank;
  return BANYAN_OK;
}

static banyan_status choose(const bny_cuda_driver *driver, const bny_device_choice *choice, CUcontext *current,
                            int32_t *ordinal) {
  int count = 0;
  CUresult result = driver->cuDeviceGetCount(&count);
  if (result != CUDA_SUCCESS) return bny_cuda_check(driver, result, "cuDeviceGetCount");
  if (count < 1)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "this process sees no CUDA device (CUDA_VISIBLE_DEVICES may hide them)");
  switch (choice->by) {
  case BNY_DEVICE_BY_CONTEXT: return choose_by_context(driver, current, ordinal);
  case BNY_DEVICE_BY_LOCAL_RANK: return choose_by_local_rank(count, ordinal);
  case BNY_DEVICE_BY_ORDINAL:
    if (choice->ordinal < 0 || choice->ordinal >= count)
      return bny_fail(BANYAN_ERR_ARGUMENT, "CUDA device %d was asked for; this process sees %d, numbered from 0",
                      choice->ordinal, count);
    *ordinal = choice->ordinal;
    return BANYAN_OK;
  }
  return bny_fail(BANYAN_ERR_ARGUMENT, "a device is chosen by ordinal, by context or by LOCAL_RANK, not by %d",
                  (int)choice->by);
}

/* Graphs support early launches from this version on. */
static const int32_t early_launch_driver = 12030;

/* ---- facts ------------------------------------------------------------------------------------------------------- */

/* Returns an attribute, or 0 if the driver does not know it: the device then lacks the feature. */
static int32_t attribute(const bny_cuda_device *self, CUdevice_attribute name) {
  int value = 0;
  return self->driver.cuDeviceGetAttribute(&value, name, self->handle) == CUDA_SUCCESS ? value : 0;
}

static banyan_status read_facts(bny_cuda_device *self, int32_t ordinal) {
  bny_device_facts *facts = &self->device.facts;
  CUuuid uuid;
  CUresult result = self->driver.cuDeviceGet(&self->handle, ordinal);
  if (result == CUDA_SUCCESS) result = self->driver.cuDeviceGetName(facts->name, sizeof facts->name, self->handle);
  if (result == CUDA_SUCCESS) result = self->driver.cuDeviceGetUuid(&uuid, self->handle);
  if (result != CUDA_SUCCESS) return bny_cuda_check(&self->driver, result, "CUDA device %d", ordinal);
  memcpy(facts->uuid, uuid.bytes, sizeof facts->uuid);
  facts->ordinal = ordinal;
  facts->driver = self->driver.version;
  facts->compute = 10 * attribute(self, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) +
                   attribute(self, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  facts->sm_count = attribute(self, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  facts->shared_bytes_max = attribute(self, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  bool extended = self->driver.cuLaunchKernelEx != NULL;
  facts->clusters = extended && attribute(self, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
  facts->early_launch = extended && facts->compute >= 90 && facts->driver >= early_launch_driver;
  facts->multicast = attribute(self, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
  self->vmm = attribute(self, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  self->files = self->vmm && attribute(self, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  self->fabric = self->vmm && attribute(self, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  self->pageable = attribute(self, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
  self->rdma = attribute(self, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
  if (facts->compute < 80)
    return bny_fail(BANYAN_ERR_UNSUPPORTED,
                    "CUDA device %d (%s) has compute capability %d.%d; banyan needs 8.0 or newer", ordinal, facts->name,
                    facts->compute / 10, facts->compute % 10);
  if (!attribute(self, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING))
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "CUDA device %d (%s) has no unified addresses", ordinal, facts->name);
  return BANYAN_OK;
}

/* Returns the ordinal of a device by its UUID, or -1 if this process does not see it. Processes number devices
 * differently. */
static int32_t find_device(const bny_cuda_device *self, const unsigned char *wanted) {
  int count = 0;
  CUdevice device;
  CUuuid uuid;
  if (self->driver.cuDeviceGetCount(&count) != CUDA_SUCCESS) return -1;
  for (int i = 0; i < count; i++)
    if (self->driver.cuDeviceGet(&device, i) == CUDA_SUCCESS &&
        self->driver.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS &&
        memcmp(uuid.bytes, wanted, sizeof uuid.bytes) == 0)
      return i;
  return -1;
}

static banyan_status cuda_link(bny_device *device, const unsigned char *uuid, bny_device_link *link) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  if (memcmp(uuid, device->facts.uuid, BNY_DEVICE_UUID_BYTES) == 0) {
    *link = (bny_device_link){.same = true, .visible = true, .access = true, .atomics = true, .lines_whole = true};
    return BANYAN_OK;
  }
  bny_device_link found = {0};
  int32_t ordinal = find_device(self, uuid);
  int access = 0, atomics = 0;
  CUdevice peer;
  if (ordinal >= 0) {
    CUresult result = self->driver.cuDeviceGet(&peer, ordinal);
    if (result == CUDA_SUCCESS) result = self->driver.cuDeviceCanAccessPeer(&access, self->handle, peer);
    if (result != CUDA_SUCCESS)
      return bny_cuda_check(&self->driver, result, "peer access of CUDA device %d to device %d", device->facts.ordinal,
                            ordinal);
    if (self->driver.cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, self->handle,
                                             peer) != CUDA_SUCCESS)
      atomics = 0;
    found.visible = true;
    found.access = access;
    found.atomics = access && atomics;
    /* Links with atomic operations are NVLink, which does not split an aligned line. PCIe may split it. */
    found.lines_whole = found.atomics;
  }
  *link = found;
  return BANYAN_OK;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void cuda_close(bny_device *device) {
  if (device) bny_cuda_drop((bny_cuda_device *)device);
}

static const bny_device_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .link = cuda_link,
    .memory_make = bny_cuda_memory_make,
    .memory_export = bny_cuda_memory_export,
    .memory_import = bny_cuda_memory_import,
    .memory_free = bny_cuda_memory_free,
    .local_make = local_make,
    .local_free = local_free,
    .host_register = bny_cuda_host_register,
    .host_unregister = bny_cuda_host_unregister,
    .words_make = words_make,
    .words_free = words_free,
    .pointer = cuda_pointer,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .stream_make = stream_make,
    .stream_free = stream_free,
    .stream_query = stream_query,
    .stream_use = stream_use,
    .module_load = bny_cuda_module_load,
    .module_unload = bny_cuda_module_unload,
    .kernel_find = bny_cuda_kernel_find,
    .kernel_residency = bny_cuda_kernel_residency,
    .kernel_clusters = bny_cuda_kernel_clusters,
    .launch = bny_cuda_launch,
};

/* Retains the primary context. `current` is the context that selected the device, or NULL. Any other context is an
 * error. */
static banyan_status retain(bny_cuda_device *self, CUcontext current) {
  int32_t ordinal = self->device.facts.ordinal;
  unsigned flags = 0;
  int active = 0;
  CUresult result = self->driver.cuDevicePrimaryCtxGetState(self->handle, &flags, &active);
  if (result != CUDA_SUCCESS) return bny_cuda_check(&self->driver, result, "the state of CUDA device %d", ordinal);
  if (!current || active) { /* if it is not active, the caller's context must be another one */
    result = self->driver.cuDevicePrimaryCtxRetain(&self->context, self->handle);
    if (result != CUDA_SUCCESS) return bny_cuda_check(&self->driver, result, "opening CUDA device %d", ordinal);
    if (!current || current == self->context) return BANYAN_OK;
    self->driver.cuDevicePrimaryCtxRelease(self->handle);
  }
  return bny_fail(
      BANYAN_ERR_UNSUPPORTED,
      "the current context of CUDA device %d is not its primary one, which the CUDA runtime and frameworks use; "
      "banyan works in that one only",
      ordinal);
}

banyan_status bny_cuda_open(const bny_device_choice *choice, bny_device **device) {
  bny_cuda_device *self = calloc(1, sizeof *self);
  if (!self) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a device");
  self->device.ops = &cuda_ops;
  atomic_init(&self->users, 1);
  CUcontext current = NULL;
  int32_t ordinal = 0;
  banyan_status status = bny_cuda_driver_load(choice->library, &self->driver);
  if (status != BANYAN_OK) goto free_self;
  status = choose(&self->driver, choice, &current, &ordinal);
  if (status == BANYAN_OK) status = read_facts(self, ordinal);
  if (status == BANYAN_OK) status = retain(self, current);
  if (status != BANYAN_OK) goto unload;
  self->device.facts.memory_kinds = bny_cuda_memory_try(&self->device);
  *device = &self->device;
  return BANYAN_OK;
unload:
  bny_cuda_driver_unload(&self->driver);
free_self:
  free(self);
  return status;
}
