/* SPDX-License-Identifier: Apache-2.0 Exports arenas to peers, and imports theirs. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cuda/memory.h"
#include "base/status.h"
#include "transport/memory_file.h"

_Static_assert(sizeof(CUmemFabricHandle) <= BNY_DEVICE_HANDLE_BYTES, "a fabric handle has room in an offer");

/* ---- from the owner ---------------------------------------------------------------------------------------------- */

static banyan_status export_virtual(bny_cuda_device *self, bny_cuda_memory *memory, bny_device_handle *handle,
                                    int *file) {
  CUmemFabricHandle fabric;
  int fd = -1;
  bool by_file = memory->memory.kind == BNY_MEMORY_FILE;
  CUresult result = self->driver.cuMemExportToShareableHandle(by_file ? (void *)&fd : (void *)&fabric, memory->physical,
                                                              bny_cuda_handle_type(memory->memory.kind), 0);
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "exporting an arena of CUDA device %d by %s",
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
  banyan_status status = bny_cuda_enter_setup(self, &scope);
  if (status != BANYAN_OK) return status;
  if (memory->kind == BNY_MEMORY_FILE || memory->kind == BNY_MEMORY_FABRIC) {
    status = export_virtual(self, made, &exported, &fd);
  } else if (memory->kind == BNY_MEMORY_IPC) {
    CUresult result = self->driver.cuIpcGetMemHandle(&made->exported->handle, made->exported->address);
    if (result != CUDA_SUCCESS)
      status = bny_cuda_fail(&self->driver, result, "an IPC handle of CUDA device %d", memory->device->facts.ordinal);
  }
  bny_cuda_leave(self, &scope);
  if (status != BANYAN_OK) return status;
  if (made->file >= 0) {
    fd = made->file;
    made->file = -1;
  }
  *handle = exported;
  *file = fd;
  return BANYAN_OK;
}

/* ---- for the peer ------------------------------------------------------------------------------------------------ */

static banyan_status import_virtual(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  CUmemFabricHandle fabric;
  memcpy(&fabric, offer->handle.bytes, sizeof fabric);
  void *handle = offer->kind == BNY_MEMORY_FILE ? (void *)(uintptr_t)offer->file : &fabric;
  CUresult result =
      self->driver.cuMemImportFromShareableHandle(&memory->physical, handle, bny_cuda_handle_type(offer->kind));
  if (result != CUDA_SUCCESS)
    return bny_cuda_fail(&self->driver, result, "importing a peer's arena into CUDA device %d by %s",
                         self->device.facts.ordinal, bny_memory_kind_name(offer->kind));
  memory->has_physical = true;
  return bny_cuda_memory_map(self, memory);
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

/* Makes the memory's address in this process valid for this device. */
static banyan_status import_neighbour(bny_cuda_device *self, bny_cuda_export *exported, bny_cuda_memory *memory) {
  if (!join_export(exported)) {
    munmap(exported, BNY_CUDA_EXPORT_BYTES);
    return bny_fail(BANYAN_ERR_PEER, "a rank of this process has freed its arena already");
  }
  memory->exported = exported;
  memory->memory.address = (void *)(uintptr_t)exported->address;
  if (exported->device->context == self->context) return BANYAN_OK;
  /* The access stays enabled, because others may rely on it. */
  CUresult result = self->driver.cuCtxEnablePeerAccess(exported->device->context, 0);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    return bny_cuda_fail(&self->driver, result, "peer access of CUDA device %d to device %d",
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
    return bny_cuda_fail(&self->driver, result, "opening a peer's IPC handle on CUDA device %d",
                         self->device.facts.ordinal);
  memory->opened = true;
  memory->memory.address = (void *)(uintptr_t)address;
  return BANYAN_OK;
}

static banyan_status import_host(bny_cuda_device *self, const bny_device_offer *offer, bny_cuda_memory *memory) {
  banyan_status status = bny_memory_file_map(offer->file, offer->bytes, &memory->host);
  return status == BANYAN_OK ? bny_cuda_memory_register(self, memory) : status;
}

banyan_status bny_cuda_memory_import(bny_device *device, const bny_device_offer *offer, bny_device_memory **memory) {
  bny_cuda_device *self = (bny_cuda_device *)device;
  bny_cuda_memory *made = NULL;
  bny_cuda_scope scope;
  banyan_status status = bny_cuda_memory_new(self, offer->kind, true, &made);
  if (status != BANYAN_OK) return status;
  made->memory.bytes = offer->bytes;
  status = bny_cuda_enter_setup(self, &scope);
  if (status == BANYAN_OK) {
    if (offer->kind == BNY_MEMORY_FILE || offer->kind == BNY_MEMORY_FABRIC) status = import_virtual(self, offer, made);
    if (offer->kind == BNY_MEMORY_IPC) status = import_older(self, offer, made);
    if (offer->kind == BNY_MEMORY_HOST) status = import_host(self, offer, made);
    bny_cuda_leave(self, &scope);
  }
  if (status != BANYAN_OK) {
    bny_cuda_memory_free(&made->memory);
    return status;
  }
  *memory = &made->memory;
  return BANYAN_OK;
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
    /* A device that is full now may have room later; if not, making an arena reports it. */
    if (status == BANYAN_OK || status == BANYAN_ERR_MEMORY) kinds |= 1u << kind;
  }
  return kinds;
}
