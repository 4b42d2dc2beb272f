/* SPDX-License-Identifier: Apache-2.0
 * Arenas from the driver's virtual memory management, its older allocator, or host memory. The free function undoes the
 * steps in reverse order, from any intermediate state. */
#include "device/cuda/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "transport/memory_file.h"
#include "base/status.h"

enum { BNY_CUDA_EXPORT_BYTES = 4096 };

/* The export of BNY_MEMORY_IPC: a page of a memory file. Other processes read the handle. Handles do not work in the
 * owner's process, so its ranks use the address itself and are counted. The memory stays until the last of them has
 * left, and no rank can join after that. */
typedef struct bny_cuda_export {
  CUipcMemHandle handle;
  bny_cuda_device *device; /* this field and the next two are valid only in the owner's process */
  CUdeviceptr address;
  _Atomic uint32_t users;
} bny_cuda_export;

typedef struct bny_cuda_memory {
  bny_device_memory memory; /* first */
  CUmemGenericAllocationHandle physical;
  bool has_physical, reserved, mapped; /* BNY_MEMORY_FILE, BNY_MEMORY_FABRIC */
  bool opened;                         /* an IPC handle */
  CUdeviceptr allocated;               /* for BNY_MEMORY_IPC, before it is exported */
  bny_cuda_export *exported;           /* mapped; counted */
  void *host;                          /* BNY_MEMORY_HOST, mapped */
  bool registered;
  int file; /* to export; -1: none, or already exported */
} bny_cuda_memory;

/* The older allocator places several allocations in blocks of 2 MiB, and an IPC handle opens the whole block. Arenas
 * take whole blocks, so that peers see nothing else. */
static const size_t ipc_block_bytes = (size_t)2 << 20;

static banyan_status enter(bny_cuda_device *self, bny_cuda_scope *scope) {
  return bny_cuda_check(&self->driver, bny_cuda_enter_setup(self, scope), "CUDA device %d", self->device.facts.ordinal);
}

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* ---- virtual memory management ----------------------------------------------------------------------------------- */

static CUmemAllocationHandleType handle_type(bny_memory_kind kind) {
  return kind == BNY_MEMORY_FABRIC ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/* Maps memory->physical at a new address, for this device to read and write. */
static banyan_status memory_map(bny_cuda_device *self, bny_cuda_memory *memory) {
  CUdeviceptr address = 0;
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = self->handle},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  size_t bytes = memory->memory.bytes;
  CUresult result = self->driver.cuMemAddressReserve(&address, bytes, 0, 0, 0);
  if (result != CUDA_SUCCESS) return bny_cuda_check(&self->driver, result, "addresses for %zu bytes of arena", bytes);
  memory->memory.address = (void *)(uintptr_t)address;
  memory->reserved = true;
  result = self->driver.cuMemMap(address, bytes, 0, memory->physical, 0);
  if (result != CUDA_SUCCESS) return bny_cuda_check(&self->driver, result, "mapping %zu bytes of arena", bytes);
  memory->mapped = true;
  result = self->driver.cuMemSetAccess(address, bytes, &access, 1);
  return bny_cuda_check(&self->driver, result, "access of CUDA device %d to %zu bytes of arena",
                        self->device.facts.ordinal, bytes);
}

static banyan_status make_virtual(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  CUmemAllocationProp wanted = {
      .type = CU_MEM_ALLOCATION_TYPE_PINNED,
      .requestedHandleTypes = handle_type(memory->memory.kind),
      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = self->handle},
      .allocFlags.gpuDirectRDMACapable = self->rdma,
  };
  size_t unit = 0;
  CUresult result = self->driver.cuMemGetAllocationGranularity(&unit, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (result == CUDA_SUCCESS && unit == 0) result = CUDA_ERROR_UNKNOWN;
  if (result != CUDA_SUCCESS) return bny_cuda_check(&self->driver, result, "the granularity of arenas");
  const size_t bytes = round_up(offer->bytes, unit);
  result = self->driver.cuMemCreate(&memory->physical, bytes, &wanted, 0);
  if (result != CUDA_SUCCESS)
    return bny_cuda_check(&self->driver, result, "%zu bytes of CUDA device %d for an arena to share by %s", bytes,
                          self->device.facts.ordinal, bny_memory_kind_name(memory->memory.kind));
  memory->has_physical = true;
  memory->memory.bytes = bytes;
  return memory_map(self, memory);
}

/* ---- the older allocator ----------------------------------------------------------------------------------------- */

static banyan_status make_older(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  const size_t bytes = round_up(offer->bytes, ipc_block_bytes);
  CUresult result = self->driver.cuMemAlloc(&memory->allocated, bytes);
  if (result != CUDA_SUCCESS)
    return bny_cuda_check(&self->driver, result, "%zu bytes of CUDA device %d for an arena", bytes,
                          self->device.facts.ordinal);
  memory->memory.bytes = bytes;
  memory->memory.address = (void *)(uintptr_t)memory->allocated;
  banyan_status status = bny_memory_file_make(BNY_CUDA_EXPORT_BYTES, &memory->file);
  void *page;
  if (status == BANYAN_OK) status = bny_memory_file_map(memory->file, BNY_CUDA_EXPORT_BYTES, &page);
  if (status != BANYAN_OK) return status;
  memory->exported = page;
  memory->exported->device = self;
  memory->exported->address = memory->allocated;
  memory->allocated = 0; /* the last user frees it */
  bny_cuda_hold(self);
  atomic_init(&memory->exported->users, 1);
  return BANYAN_OK;
}

static void free_older(bny_cuda_device *self, CUdeviceptr address) {
  bny_cuda_scope scope;
  if (bny_cuda_enter_setup(self, &scope) == CUDA_SUCCESS) self->driver.cuMemFree(address);
  bny_cuda_leave(self, &scope);
}

static void leave_export(bny_cuda_export *exported) {
  bny_cuda_device *owner = exported->device;
  if (atomic_fetch_sub_explicit(&exported->users, 1, memory_order_acq_rel) == 1) {
    free_older(owner, exported->address);
    bny_cuda_drop(owner);
  }
  munmap(exported, BNY_CUDA_EXPORT_BYTES);
}

/* ---- host memory ------------------------------------------------------------------------------------------------- */

/* Called with the device's context current. */
static banyan_status register_host(bny_cuda_device *self, void *host, size_t bytes, void **address) {
  CUdeviceptr found = 0;
  CUresult result =
      self->driver.cuMemHostRegister(host, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    result = self->driver.cuMemHostGetDevicePointer(&found, host, 0);
    if (result != CUDA_SUCCESS) self->driver.cuMemHostUnregister(host);
  }
  if (result != CUDA_SUCCESS)
    return bny_cuda_check(&self->driver, result, "registering %zu bytes of host memory for CUDA device %d", bytes,
                          self->device.facts.ordinal);
  *address = (void *)(uintptr_t)found;
  return BANYAN_OK;
}

/* Registers the host memory with the device. */
static banyan_status memory_register(bny_cuda_device *self, bny_cuda_memory *memory) {
  banyan_status status = register_host(self, memory->host, memory->memory.bytes, &memory->memory.address);
  memory->registered = status == BANYAN_OK;
  return status;
}

/* Children must not inherit the pages. After a fork, the first process that writes a private page gets a copy. If that
 * is the parent, its device keeps the old page. Linux avoids this for pinned pages, but Linux 5.4 does not. */
banyan_status bny_cuda_host_register(bny_device *device, void *host, size_t bytes, void **address) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (madvise(host, bytes, MADV_DONTFORK) != 0)
    return bny_fail_errno(BANYAN_ERR_SYSTEM, errno, "cannot keep %zu bytes of host memory from children of forks",
                          bytes);
  banyan_status status = enter(self, &scope);
  if (status == BANYAN_OK) status = register_host(self, host, bytes, address);
  bny_cuda_leave(self, &scope);
  if (status != BANYAN_OK) madvise(host, bytes, MADV_DOFORK);
  return status;
}

void bny_cuda_host_unregister(bny_device *device, void *host, size_t bytes) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_scope scope;
  if (bny_cuda_enter_setup(self, &scope) == CUDA_SUCCESS) self->driver.cuMemHostUnregister(host);
  bny_cuda_leave(self, &scope);
  madvise(host, bytes, MADV_DOFORK);
}

static banyan_status make_host(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  const size_t bytes = round_up(offer->bytes, (size_t)sysconf(_SC_PAGESIZE));
  banyan_status status = bny_memory_file_make(bytes, &memory->file);
  if (status == BANYAN_OK) status = bny_memory_file_map(memory->file, bytes, &memory->host);
  if (status != BANYAN_OK) return status;
  memory->memory.bytes = bytes;
  return memory_register(self, memory);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* Called with the device's context current. */
static void undo(bny_cuda_device *self, bny_cuda_memory *memory) {
  CUdeviceptr address = bny_cuda_address(memory->memory.address);
  size_t bytes = memory->memory.bytes;
  if (memory->registered) self->driver.cuMemHostUnregister(memory->host);
  if (memory->opened) self->driver.cuIpcCloseMemHandle(address);
  if (memory->mapped) self->driver.cuMemUnmap(address, bytes);
  if (memory->reserved) self->driver.cuMemAddressFree(address, bytes);
  if (memory->has_physical) self->driver.cuMemRelease(memory->physical);
  if (memory->allocated) self->driver.cuMemFree(memory->allocated);
}

void bny_cuda_memory_free(bny_device_memory *memory) {
  if (!memory) return;
  bny_cuda_memory *made = (bny_cuda_memory *)memory;
  bny_cuda_device *self = (bny_cuda_device *)memory->device;
  bny_cuda_scope scope;
  if (bny_cuda_enter_setup(self, &scope) == CUDA_SUCCESS) undo(self, made);
  bny_cuda_leave(self, &scope);
  if (made->host) munmap(made->host, memory->bytes);
  if (made->exported) leave_export(made->exported);
  if (made->file >= 0) close(made->file);
  free(made);
  bny_cuda_drop(self);
}

_Static_assert(sizeof(CUmemFabricHandle) <= BNY_DEVICE_HANDLE_BYTES, "a fabric handle has room in an offer");

/* ---- from the owner ---------------------------------------------------------------------------------------------- */

static banyan_status export_virtual(bny_cuda_device *self, bny_cuda_memory *memory, bny_device_handle *handle,
                                    int *file) {
  CUmemFabricHandle fabric;
  int fd = -1;
  bool by_file = memory->memory.kind == BNY_MEMORY_FILE;
  CUresult result = self->driver.cuMemExportToShareableHandle(by_file ? (void *)&fd : (void *)&fabric, memory->physical,
                                                              handle_type(memory->memory.kind), 0);
  if (result != CUDA_SUCCESS)
    return bny_cuda_check(&self->driver, result, "exporting an arena of CUDA device %d by %s",
                          self->device.facts.ordinal, bny_memory_kind_name(memory->memory.kind));
  if (!by_file) memcpy(handle->bytes, &fabric, sizeof fabric);
  *file = fd;
  return BANYAN_OK;
}

banyan_status bny_cuda_memory_export(bny_device_memory *memory, bny_device_handle *handle, int *file) {
  bny_cuda_device *self = (bny_cuda_device *)memory->device;
  bny_cuda_memory *made = (bny_cuda_memory *)memory;
  bny_device_handle exported = {{0}};
  bny_cuda_scope scope;
  int fd = -1;
  banyan_status status = enter(self, &scope);
  if (status == BANYAN_OK && made->has_physical) status = export_virtual(self, made, &exported, &fd);
  if (status == BANYAN_OK && memory->kind == BNY_MEMORY_IPC && handle)
    status =
        bny_cuda_check(&self->driver, self->driver.cuIpcGetMemHandle(&made->exported->handle, made->exported->address),
                       "an IPC handle of CUDA device %d", memory->device->facts.ordinal);
  bny_cuda_leave(self, &scope);
  if (status != BANYAN_OK) return status;
  if (made->file >= 0) {
    fd = made->file;
    made->file = -1;
  }
  if (handle) *handle = exported;
  *file = fd;
  return BANYAN_OK;
}

/* ---- for the peer ------------------------------------------------------------------------------------------------ */

static banyan_status import_virtual(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  CUmemFabricHandle fabric;
  memcpy(&fabric, offer->handle.bytes, sizeof fabric);
  void *handle = offer->kind == BNY_MEMORY_FILE ? (void *)(uintptr_t)offer->file : &fabric;
  CUresult result = self->driver.cuMemImportFromShareableHandle(&memory->physical, handle, handle_type(offer->kind));
  if (result != CUDA_SUCCESS)
    return bny_cuda_check(&self->driver, result, "importing a peer's arena into CUDA device %d by %s",
                          self->device.facts.ordinal, bny_memory_kind_name(offer->kind));
  memory->has_physical = true;
  return memory_map(self, memory);
}

/* Joins the users unless all have left. */
static bool join_export(bny_cuda_export *exported) {
  uint32_t users = atomic_load_explicit(&exported->users, memory_order_relaxed);
  while (users > 0)
    if (atomic_compare_exchange_weak_explicit(&exported->users, &users, users + 1, memory_order_acq_rel,
                                              memory_order_relaxed))
      return true;
  return false;
}

/* Makes the owner's address valid for this device. */
static banyan_status import_neighbour(bny_cuda_device *self, bny_cuda_export *exported, bny_cuda_memory *memory) {
  if (!join_export(exported)) {
    munmap(exported, BNY_CUDA_EXPORT_BYTES);
    return bny_fail(BANYAN_ERR_PEER, "a rank of this process has freed its arena already");
  }
  memory->exported = exported;
  memory->memory.address = (void *)(uintptr_t)exported->address;
  if (exported->device->context == self->context) return BANYAN_OK;
  /* Access stays enabled, because others may rely on it. */
  CUresult result = self->driver.cuCtxEnablePeerAccess(exported->device->context, 0);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    return bny_cuda_check(&self->driver, result, "peer access of CUDA device %d to device %d",
                          self->device.facts.ordinal, exported->device->device.facts.ordinal);
  return BANYAN_OK;
}

static banyan_status import_older(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  void *page;
  banyan_status status = bny_memory_file_map(offer->file, BNY_CUDA_EXPORT_BYTES, &page);
  if (status != BANYAN_OK) return status;
  bny_cuda_export *exported = page;
  if (offer->same_process) return import_neighbour(self, exported, memory);
  CUipcMemHandle handle = exported->handle;
  munmap(exported, BNY_CUDA_EXPORT_BYTES);
  CUdeviceptr address = 0;
  CUresult result = self->driver.cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != CUDA_SUCCESS)
    return bny_cuda_check(&self->driver, result, "opening a peer's IPC handle on CUDA device %d",
                          self->device.facts.ordinal);
  memory->opened = true;
  memory->memory.address = (void *)(uintptr_t)address;
  return BANYAN_OK;
}

static banyan_status import_host(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  banyan_status status = bny_memory_file_map(offer->file, offer->bytes, &memory->host);
  return status == BANYAN_OK ? memory_register(self, memory) : status;
}

/* ---- either ------------------------------------------------------------------------------------------------------ */

/* Makes memory of an offer's kind and size, or imports what is offered. */
static banyan_status obtain(bny_cuda_device *self, const bny_device_offer *offer, bool imports,
                            bny_device_memory **memory) {
  static banyan_status (*const steps[2][BNY_MEMORY_KINDS])(bny_cuda_device *, const bny_device_offer *,
                                                           bny_cuda_memory *) = {
      {make_virtual, make_virtual, make_older, make_host}, {import_virtual, import_virtual, import_older, import_host}};
  bny_cuda_memory *made = calloc(1, sizeof *made);
  bny_cuda_scope scope;
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an arena");
  made->memory =
      (bny_device_memory){.device = &self->device, .kind = offer->kind, .bytes = offer->bytes, .imported = imports};
  made->file = -1;
  bny_cuda_hold(self);
  banyan_status status = enter(self, &scope);
  if (status == BANYAN_OK) status = steps[imports][offer->kind](self, offer, made);
  bny_cuda_leave(self, &scope);
  if (status == BANYAN_OK)
    *memory = &made->memory;
  else
    bny_cuda_memory_free(&made->memory);
  return status;
}

banyan_status bny_cuda_memory_make(bny_device *device, bny_memory_kind kind, size_t bytes, bny_device_memory **memory) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  if ((kind == BNY_MEMORY_FILE && !self->files) || (kind == BNY_MEMORY_FABRIC && !self->fabric))
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "CUDA device %d does not share memory by %s", device->facts.ordinal,
                    bny_memory_kind_name(kind));
  return obtain(self, &(bny_device_offer){.kind = kind, .bytes = bytes}, false, memory);
}

banyan_status bny_cuda_memory_import(bny_device *device, const bny_device_offer *offer, bny_device_memory **memory) {
  return obtain((bny_cuda_device *)device, offer, true, memory);
}

/* ---- what works -------------------------------------------------------------------------------------------------- */

uint32_t bny_cuda_memory_try(bny_device *device) {
  uint32_t kinds = 0;
  for (int kind = 0; kind < BNY_MEMORY_KINDS; kind++) {
    bny_device_memory *memory = NULL;
    bny_device_handle handle;
    int file = -1;
    banyan_status status = bny_cuda_memory_make(device, (bny_memory_kind)kind, 1, &memory);
    if (status == BANYAN_OK) status = bny_cuda_memory_export(memory, &handle, &file);
    if (file >= 0) close(file);
    bny_cuda_memory_free(memory);
    /* A device without free memory now may have some later. If not, making an arena reports it. */
    if (status == BANYAN_OK || status == BANYAN_ERR_MEMORY) kinds |= 1u << kind;
  }
  return kinds;
}
