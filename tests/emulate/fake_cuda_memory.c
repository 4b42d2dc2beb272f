/* SPDX-License-Identifier: Apache-2.0
 * The memory of the fake CUDA driver. It consists of memory files, mapped at the addresses of its devices. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/emulate/fake_cuda_parts.h"

/* The contents of a handle. Importers open the file through /proc. */
typedef struct ticket {
  uint32_t magic;
  int pid, file;
} ticket;

enum { TICKET_MAGIC = 0x7469636b };

static void *pointer_of(CUdeviceptr address) { return (void *)(uintptr_t)address; }

/* Makes a file whose name holds the number of its device. */
static int make_file(int host_device, size_t bytes) {
  char name[32];
  snprintf(name, sizeof name, "fake-cuda-%d", host_device);
  int file = memfd_create(name, MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)bytes) == 0) return file;
  close(file);
  return -1;
}

static int host_device_of(int file) {
  char path[32], name[64] = "";
  int host_device = -1;
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  if (readlink(path, name, sizeof name - 1) < 0 || sscanf(name, "/memfd:fake-cuda-%d", &host_device) != 1) return -1;
  return host_device;
}

void fake_fill(void *to, unsigned char value, size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), large = (size_t)1 << 20;
  bool whole = bytes >= large && (uintptr_t)to % page == 0 && bytes % page == 0;
  if (value == 0 && whole && madvise(to, bytes, MADV_REMOVE) == 0) return;
  memset(to, value, bytes);
}

void fake_spoil(void *memory, size_t bytes) {
  const size_t some = (size_t)8 << 20;
  memset(memory, 0xcd, bytes < some ? bytes : some);
  if (bytes > some) memset((char *)memory + bytes - some, 0xcd, some);
}

static size_t bytes_of(int file) {
  struct stat facts;
  return fstat(file, &facts) == 0 ? (size_t)facts.st_size : 0;
}

static int open_ticket(const void *handle) {
  ticket said;
  char path[64];
  memcpy(&said, handle, sizeof said);
  if (said.magic != TICKET_MAGIC) return -1;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", said.pid, said.file);
  return open(path, O_RDWR | O_CLOEXEC);
}

/* Returns whether the current device may use memory of the node's device `host_device`. */
static bool may_access(int host_device) {
  int here = fake_device(), there = host_device - fake_host_device(0), can = 0;
  if (host_device == fake_host_device(here)) return true;
  if (there < 0) return !fake_is("no-peer", here);
  cuDeviceCanAccessPeer(&can, here, there);
  return can;
}

/* Maps a file. Writes through a mapping that loses writes do not reach the file. */
static void *map_file(int file, size_t bytes, void *at, bool imported) {
  bool lost = imported && fake_is("lost-writes", fake_device());
  void *mapped =
      mmap(at, bytes, PROT_READ | PROT_WRITE, (lost ? MAP_PRIVATE : MAP_SHARED) | (at ? MAP_FIXED : 0), file, 0);
  return mapped == MAP_FAILED ? NULL : mapped;
}

/* Checks that no queued work uses memory that is unmapped. Drivers need not wait for such work unless they free the
 * memory. Work that still uses it faults, which ends all work of the process on the device. */
static void check_unused(object_kind kind, void *address) {
  fake_lock();
  const object *found = fake_find(kind, address);
  const void *seen = found ? found->seen : NULL;
  size_t bytes = found ? found->bytes : 0;
  fake_unlock();
  if (kind == ALLOCATION || kind == PHYSICAL || !fake_queue_is_on() || !fake_queue_uses(seen, bytes)) return;
  fprintf(stderr, "fake CUDA: memory is unmapped that a running copy or kernel uses\n");
  abort();
}

static CUresult drop(object_kind kind, void *address, bool unmap) {
  check_unused(kind, address);
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  object *found = fake_find(kind, address);
  size_t bytes = found ? found->bytes : 0;
  bool removed = fake_remove(kind, address);
  fake_unlock();
  if (removed && unmap) munmap(address, bytes);
  return removed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void add(object_kind kind, void *address, size_t bytes, int file) {
  fake_lock();
  fake_add(kind, address, bytes)->file = file;
  fake_unlock();
}

/* ---- the older allocator ----------------------------------------------------------------------------------------- */

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  if (fake_is("full", fake_device())) return CUDA_ERROR_OUT_OF_MEMORY;
  int file = make_file(fake_host_device(fake_device()), bytes);
  void *mapped = file < 0 ? NULL : map_file(file, bytes, NULL, false);
  if (!mapped) return CUDA_ERROR_OUT_OF_MEMORY;
  fake_spoil(mapped, bytes);
  add(ALLOCATION, mapped, bytes, file);
  *address = (CUdeviceptr)(uintptr_t)mapped;
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr address) { return drop(ALLOCATION, pointer_of(address), true); }

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address) {
  CUresult result = fake_enter(true);
  if (result != CUDA_SUCCESS) return result;
  if (fake_is("no-ipc", fake_device())) return CUDA_ERROR_NOT_SUPPORTED;
  fake_lock();
  const object *found = fake_find(ALLOCATION, pointer_of(address));
  ticket said = {TICKET_MAGIC, getpid(), found ? found->file : -1};
  fake_unlock();
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &said, sizeof said);
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags) {
  ticket said;
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  memcpy(&said, &handle, sizeof said);
  if (said.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; /* handles are for other processes only */
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  int file = fake_is("import-fails", fake_device()) ? -1 : open_ticket(&handle);
  if (file < 0) return CUDA_ERROR_INVALID_VALUE;
  size_t bytes = bytes_of(file);
  void *mapped = may_access(host_device_of(file)) ? map_file(file, bytes, NULL, true) : NULL;
  if (!mapped) {
    close(file);
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  add(OPENED, mapped, bytes, file);
  *address = (CUdeviceptr)(uintptr_t)mapped;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) { return drop(OPENED, pointer_of(address), true); }

/* ---- virtual memory management ----------------------------------------------------------------------------------- */

static bool can_share(CUmemAllocationHandleType types, int device) {
  if (types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return !fake_is("no-files", device);
  return types == CU_MEM_HANDLE_TYPE_FABRIC && !fake_is("no-fabric", device);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *wanted,
                                       CUmemAllocationGranularity_flags option) {
  (void)wanted, (void)option;
  *bytes = FAKE_ARENA_UNIT;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *wanted,
                     unsigned long long flags) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  int device = wanted->location.id;
  if (flags || bytes == 0 || bytes % FAKE_ARENA_UNIT || wanted->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (wanted->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC && fake_is("refuses-fabric", device)) {
    fake_note("refused");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (fake_is("no-vmm", device) || !can_share(wanted->requestedHandleTypes, device)) return CUDA_ERROR_NOT_SUPPORTED;
  int file = fake_is("full", device) ? -1 : make_file(fake_host_device(device), bytes);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  fake_lock();
  object *made = fake_add(PHYSICAL, NULL, bytes);
  made->file = file;
  made->device = fake_host_device(device);
  *handle = (CUmemGenericAllocationHandle)(uintptr_t)made->address;
  fake_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return drop(PHYSICAL, pointer_of(handle), false); }

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
  CUresult result = fake_enter(true);
  if (result != CUDA_SUCCESS) return result;
  if (alignment || wanted || flags) return CUDA_ERROR_INVALID_VALUE;
  void *mapped = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  add(RESERVED, mapped, bytes, -1);
  *address = (CUdeviceptr)(uintptr_t)mapped;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  fake_lock();
  const object *found = fake_find(RESERVED, pointer_of(address));
  bool fits = found && found->bytes == bytes && !fake_find(MAPPED, pointer_of(address));
  fake_unlock();
  return fits ? drop(RESERVED, pointer_of(address), true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  if (offset || flags) return CUDA_ERROR_INVALID_VALUE;
  fake_lock();
  const object *physical = fake_find(PHYSICAL, pointer_of(handle)), *place = fake_find(RESERVED, pointer_of(address));
  result =
      physical && place && physical->bytes == bytes && place->bytes == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS && !map_file(physical->file, bytes, pointer_of(address), physical->imported))
    result = CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    if (!physical->imported) fake_spoil(pointer_of(address), bytes);
    mprotect(pointer_of(address), bytes, PROT_NONE);
    object *mapped = fake_add(MAPPED, pointer_of(address), bytes);
    mapped->device = physical->device, mapped->imported = physical->imported;
  }
  fake_unlock();
  return result;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  object *mapped = fake_find(MAPPED, pointer_of(address));
  if (!mapped || mapped->bytes != bytes || count != 1 || access->location.id != fake_device()) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (!may_access(mapped->device)) {
    result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  } else {
    mprotect(pointer_of(address), bytes, PROT_READ | PROT_WRITE);
    mapped->access = true;
  }
  fake_unlock();
  return result;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  CUresult result = drop(MAPPED, pointer_of(address), false);
  if (result != CUDA_SUCCESS) return result;
  void *hidden =
      mmap(pointer_of(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return hidden == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *handle, CUmemGenericAllocationHandle memory, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  CUresult result = fake_enter(true);
  if (result != CUDA_SUCCESS) return result;
  fake_lock();
  const object *physical = fake_find(PHYSICAL, pointer_of(memory));
  int file = physical ? physical->file : -1;
  fake_unlock();
  if (file < 0 || flags) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
    memcpy(handle, &copy, sizeof copy);
    return copy >= 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  }
  ticket said = {TICKET_MAGIC, getpid(), file};
  memset(handle, 0, sizeof(CUmemFabricHandle));
  memcpy(handle, &said, sizeof said);
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *memory, void *handle,
                                        CUmemAllocationHandleType type) {
  CUresult result = fake_enter(true);
  if (result != CUDA_SUCCESS) return result;
  if (fake_is("import-fails", fake_device())) return CUDA_ERROR_INVALID_VALUE;
  bool by_file = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int file = by_file ? fcntl((int)(uintptr_t)handle, F_DUPFD_CLOEXEC, 0) : open_ticket(handle);
  if (file < 0 || host_device_of(file) < 0) return CUDA_ERROR_INVALID_VALUE;
  fake_lock();
  object *made = fake_add(PHYSICAL, NULL, bytes_of(file));
  made->file = file;
  made->device = host_device_of(file);
  made->imported = true;
  *memory = (CUmemGenericAllocationHandle)(uintptr_t)made->address;
  fake_unlock();
  return CUDA_SUCCESS;
}

/* ---- host memory ------------------------------------------------------------------------------------------------- */

CUresult cuMemHostAlloc(void **host, size_t bytes, unsigned flags) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  if (!(flags & CU_MEMHOSTALLOC_DEVICEMAP)) return CUDA_ERROR_INVALID_VALUE;
  void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  add(PINNED, mapped, bytes, -1);
  *host = mapped;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *host) { return drop(PINNED, host, true); }

/* Maps the same memory at another address. Private memory becomes shared; no other thread may write there meanwhile. */
static void *map_again(void *host, size_t bytes) {
  void *again = mremap(host, 0, bytes, MREMAP_MAYMOVE);
  if (again != MAP_FAILED) return again;
  int file = make_file(fake_host_device(fake_device()), bytes);
  again = file < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (again == MAP_FAILED) return NULL;
  memcpy(again, host, bytes);
  if (mmap(host, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) abort();
  close(file);
  return again;
}

CUresult cuMemHostRegister(void *host, size_t bytes, unsigned flags) {
  CUresult result = fake_enter_idle();
  if (result != CUDA_SUCCESS) return result;
  if (!(flags & CU_MEMHOSTREGISTER_DEVICEMAP)) return CUDA_ERROR_INVALID_VALUE;
  if (fake_is("no-host", fake_device())) return CUDA_ERROR_NOT_PERMITTED;
  void *again = fake_is("moved", fake_device()) ? map_again(host, bytes) : host;
  if (!again) return CUDA_ERROR_OUT_OF_MEMORY;
  fake_lock();
  fake_add(REGISTERED, host, bytes)->seen = again;
  fake_unlock();
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *host) {
  fake_lock();
  const object *found = fake_find(REGISTERED, host);
  void *again = found && found->seen != host ? found->seen : NULL;
  size_t bytes = found ? found->bytes : 0;
  fake_unlock();
  CUresult result = drop(REGISTERED, host, false);
  if (result == CUDA_SUCCESS && again) munmap(again, bytes);
  return result;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *host, unsigned flags) {
  fake_lock();
  const object *found = fake_find(PINNED, host);
  if (!found) found = fake_find(REGISTERED, host);
  void *seen = found ? found->seen : NULL;
  fake_unlock();
  if (!found || flags) return CUDA_ERROR_INVALID_VALUE;
  *address = (CUdeviceptr)(uintptr_t)seen;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *names, void **values, CUdeviceptr address) {
  fake_lock();
  const object *found = fake_covering(pointer_of(address), 1);
  bool host = found && (found->kind == PINNED || found->kind == REGISTERED);
  unsigned type = !found ? 0 : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
  CUdeviceptr first = found ? (CUdeviceptr)(uintptr_t)found->address : 0;
  size_t bytes = found ? found->bytes : 0;
  int ordinal = !found ? -2 : found->kind == MAPPED ? found->device - fake_host_device(0) : found->device;
  fake_unlock();
  for (unsigned i = 0; i < count; i++) {
    unsigned managed = 0;
    if (names[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) memcpy(values[i], &type, sizeof type);
    if (names[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED) memcpy(values[i], &managed, sizeof managed);
    if (names[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) memcpy(values[i], &ordinal, sizeof ordinal);
    if (names[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) memcpy(values[i], &first, sizeof first);
    if (names[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE) memcpy(values[i], &bytes, sizeof bytes);
  }
  return CUDA_SUCCESS;
}
