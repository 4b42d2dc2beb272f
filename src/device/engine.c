/* SPDX-License-Identifier: Apache-2.0
 * The engine: loads kernels and programs, connects arenas, launches kernels, and reports their faults. */
#include "device/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/decode_plan.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/status.h"

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static banyan_status read_image(const char *path, void **image, size_t *bytes) {
  FILE *file = bny_file_read(path);
  long size = -1;
  if (file && fseek(file, 0, SEEK_END) == 0) size = ftell(file);
  char *read = size > 0 ? malloc((size_t)size) : NULL;
  if (read && (fseek(file, 0, SEEK_SET) != 0 || fread(read, 1, (size_t)size, file) != (size_t)size)) {
    free(read);
    read = NULL;
  }
  int reason = errno;
  if (file) fclose(file);
  if (!read) return bny_fail_errno(BANYAN_ERR_ARGUMENT, reason, "CUDA kernels cannot be read from %.200s", path);
  *image = read;
  *bytes = (size_t)size;
  return BANYAN_OK;
}

static banyan_status load_image(bny_engine *engine, const char *path) {
  const bny_device_ops *ops = engine->device->ops;
  size_t bytes = 0;
  banyan_status status = path ? read_image(path, &engine->image, &bytes) : BANYAN_OK;
  if (status == BANYAN_OK) status = ops->module_load(engine->device, engine->image, bytes, &engine->module);
  return status;
}

static const char *const kernel_names[BNY_ENGINE_KERNELS] = {
#define BNY_CUDA_KERNEL(name, ...) #name,
#include "cuda/kernels.def"
#undef BNY_CUDA_KERNEL
};

static banyan_status load_kernel(bny_engine *engine, const char *name, bny_engine_kernel *kernel) {
  const bny_device_ops *ops = engine->device->ops;
  bny_engine_kernel found;
  banyan_status status = ops->kernel_find(engine->module, name, &found.kernel);
  if (status == BANYAN_OK)
    status = ops->kernel_residency(engine->device, &found.kernel, BNY_BLOCK_THREADS_MAX, 0, &found.blocks_per_sm);
  if (status == BANYAN_OK && found.blocks_per_sm < 1)
    status =
        bny_fail(BANYAN_ERR_UNSUPPORTED, "kernel %s does not fit on device %d", name, engine->device->facts.ordinal);
  if (status == BANYAN_OK) *kernel = found;
  return status;
}

/* Divides the SMs among the ranks that share the device, so that the blocks of all ranks are resident at once. */
static void divide_sms(bny_engine *engine, int32_t ranks_per_device) {
  engine->sms = engine->sms_all > ranks_per_device ? engine->sms_all / ranks_per_device : 1;
}

banyan_status bny_engine_find(bny_engine *engine, const char *name, bny_engine_kernel *kernel) {
  for (int i = 0; i < BNY_ENGINE_KERNELS; i++) {
    if (strcmp(kernel_names[i], name) != 0) continue;
    *kernel = engine->kernels[i];
    return BANYAN_OK;
  }
  return load_kernel(engine, name, kernel);
}

static banyan_status load_kernels(bny_engine *engine) {
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < BNY_ENGINE_KERNELS && status == BANYAN_OK; i++)
    status = load_kernel(engine, kernel_names[i], &engine->kernels[i]);
  return status;
}

static banyan_status load_decode_kernels(bny_engine *engine) {
  const bny_device_facts *facts = &engine->device->facts;
  banyan_status status = BANYAN_OK;
  for (int i = 0; i < BNY_ENGINE_DECODE_KERNELS && status == BANYAN_OK; i++) {
    const bny_decode_kernel *row = &bny_decode_kernels[i];
    if (bny_decode_kernel_runs(row, facts->compute, facts->shared_bytes_max))
      status = engine->device->ops->kernel_find(engine->module, row->name, &engine->decode_kernels[i]);
  }
  return status;
}

const bny_device_kernel *bny_engine_decode_kernel(const bny_engine *engine, ptrdiff_t index) {
  return engine->decode_kernels[index].function ? &engine->decode_kernels[index] : NULL;
}

/* ---- memory of the device ---------------------------------------------------------------------------------------- */

enum { COUNTERS = 512 - BNY_DEVICE_WORDS, STAGING_WORDS = 4096, PROGRAM_ALIGNMENT = 256 };
enum { PROGRAMS_BYTES = 1 << 20, WORK_BYTES = 1 << 16 };

/* Returns memory with so many free bytes, from the list or added to it. */
static banyan_status find_room(bny_engine *engine, bny_engine_use use, size_t bytes, bny_engine_room **room) {
  const size_t least = use == BNY_USE_PROGRAMS ? PROGRAMS_BYTES : WORK_BYTES;
  for (*room = engine->rooms; *room; *room = (*room)->next)
    if ((*room)->use == use && (*room)->bytes - (*room)->used >= bytes) return BANYAN_OK;
  bny_engine_room *made = malloc(sizeof *made);
  if (!made)
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for %s",
                    use == BNY_USE_PROGRAMS ? "programs" : "kernels to work in");
  *made = (bny_engine_room){.bytes = bytes > least ? bytes : least, .use = use, .next = engine->rooms};
  void *address = NULL;
  banyan_status status = engine->device->ops->local_make(engine->device, made->bytes, &address);
  if (status != BANYAN_OK) {
    free(made);
    return status;
  }
  made->address = address;
  *room = engine->rooms = made;
  return BANYAN_OK;
}

int32_t bny_engine_take_counter(bny_engine *engine) {
  return engine->counters < COUNTERS ? BNY_DEVICE_WORDS + engine->counters++ : 0;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

banyan_status bny_engine_make(bny_device *device, const bny_engine_config *config, bny_engine **engine) {
  bny_engine *made = calloc(1, sizeof *made);
  if (!made) {
    device->ops->close(device);
    return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a device");
  }
  made->device = device;
  made->sms_all = device->facts.sm_count;
  if (config->sm_limit > 0 && config->sm_limit < made->sms_all) made->sms_all = config->sm_limit;
  made->blocks_max = config->blocks_max;
  divide_sms(made, 1);
  bny_engine_room *room = NULL;
  banyan_status status = load_image(made, config->image);
  if (status == BANYAN_OK) status = load_kernels(made);
  if (status == BANYAN_OK) status = load_decode_kernels(made);
  if (status == BANYAN_OK) status = device->ops->words_make(device, BNY_DEVICE_WORDS + COUNTERS, &made->words);
  if (status == BANYAN_OK) status = device->ops->words_make(device, STAGING_WORDS, &made->staging);
  if (status == BANYAN_OK) status = find_room(made, BNY_USE_PROGRAMS, PROGRAM_ALIGNMENT, &room);
  if (status == BANYAN_OK) {
    made->spare = (uint64_t *)(void *)room->address;
    room->used = PROGRAM_ALIGNMENT;
  }
  if (status == BANYAN_OK) status = device->ops->stream_make(device, &made->stream);
  if (status != BANYAN_OK) {
    bny_engine_free(made);
    return status;
  }
  *engine = made;
  return BANYAN_OK;
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

/* Copies data to device memory, and waits until the copy has ended. */
static banyan_status device_write(bny_engine *engine, void *to, const void *from, size_t bytes, int64_t deadline_ns) {
  bny_device *device = engine->device;
  const size_t room = engine->staging.count * sizeof(uint64_t);
  banyan_status status = BANYAN_OK;
  for (size_t at = 0; at < bytes && status == BANYAN_OK; at += room) {
    size_t some = bytes - at < room ? bytes - at : room;
    memcpy((void *)(uintptr_t)engine->staging.host, (const char *)from + at, some);
    status = device->ops->copy(device, (char *)to + at, engine->staging.device, some, engine->stream);
    if (status == BANYAN_OK) status = bny_device_wait(device, engine->stream, deadline_ns);
  }
  if (status == BANYAN_ERR_TIMEOUT) engine->stuck = true;
  return status;
}

banyan_status bny_engine_connect(bny_engine *engine, const bny_exchange *exchange, const bny_arenas_config *config,
                                 int64_t timeout_ns) {
  int32_t nranks = exchange->bootstrap->nranks;
  if (nranks > BNY_DEVICE_RANKS_MAX)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "%d ranks: %d devices at most may be in one communicator", nranks,
                    BNY_DEVICE_RANKS_MAX);
  banyan_status status = bny_arenas_make(engine->device, exchange, config, &engine->arenas);
  if (status != BANYAN_OK) return status;
  const bny_arenas *arenas = engine->arenas;
  divide_sms(engine, arenas->ranks_per_device);
  engine->group = (bny_device_group){.rank = arenas->rank,
                                     .nranks = nranks,
                                     .shares_device = arenas->ranks_per_device > 1,
                                     .has_aliases = bny_arenas_have_aliases(arenas)};
  for (int32_t i = 0; i < nranks; i++) engine->group.arenas[i] = arenas->memories[i]->address;
  bny_arena_head head = {.timeout_ns = (uint64_t)timeout_ns, .words = engine->words.device};
  return device_write(engine, engine->group.arenas[arenas->rank], &head, offsetof(bny_arena_head, waiting),
                      exchange->deadline_ns);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static const int64_t load_timeout_ns = (int64_t)10 * 1000 * 1000 * 1000;
static const int64_t settle_timeout_ns = (int64_t)2 * 1000 * 1000 * 1000;

banyan_status bny_engine_load(bny_engine *engine, uint64_t key, const bny_program *program, void **address) {
  for (const bny_engine_program *at = engine->programs; at; at = at->next) {
    if (at->key != key) continue;
    *address = at->address;
    return BANYAN_OK;
  }
  size_t bytes = ((size_t)program->bytes + PROGRAM_ALIGNMENT - 1) / PROGRAM_ALIGNMENT * PROGRAM_ALIGNMENT;
  bny_engine_room *room;
  banyan_status status = find_room(engine, BNY_USE_PROGRAMS, bytes, &room);
  if (status != BANYAN_OK) return status;
  void *place = room->address + room->used;
  status = device_write(engine, place, program, program->bytes, bny_deadline_now() + load_timeout_ns);
  if (status != BANYAN_OK) return status;
  bny_engine_program *made = malloc(sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for a program");
  *made = (bny_engine_program){.key = key, .address = place, .next = engine->programs};
  room->used += bytes;
  engine->programs = made;
  *address = place;
  return BANYAN_OK;
}

banyan_status bny_engine_memory(bny_engine *engine, bny_engine_use use, size_t bytes, void **address) {
  bny_device *device = engine->device;
  const bny_engine_room *latest = engine->rooms;
  bny_engine_room *room;
  banyan_status status = find_room(engine, use, bytes, &room);
  if (status != BANYAN_OK) return status;
  if (use == BNY_USE_COUNTERS && engine->rooms != latest) {
    status = device->ops->zero(device, room->address, room->bytes, engine->stream);
    if (status == BANYAN_OK) status = bny_device_wait(device, engine->stream, bny_deadline_now() + load_timeout_ns);
  }
  if (status == BANYAN_ERR_TIMEOUT) engine->stuck = true;
  if (status == BANYAN_OK)
    *address = room->address;
  else
    room->bytes = 0; /* so that later calls do not use this memory */
  return status;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

void bny_engine_use_stream(bny_engine *engine, void *stream) {
  if (!engine->group.shares_device) return;
  for (int32_t i = 0; i < engine->nstreams && i < BNY_ENGINE_STREAMS; i++)
    if (engine->streams[i] == stream) return;
  bool used = false;
  if (engine->device->ops->stream_use(engine->device, engine->spare, stream, &used) != BANYAN_OK || !used) return;
  engine->streams[engine->nstreams % BNY_ENGINE_STREAMS] = stream;
  engine->nstreams = engine->nstreams < 2 * BNY_ENGINE_STREAMS - 1 ? engine->nstreams + 1 : BNY_ENGINE_STREAMS;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

banyan_status bny_engine_start(bny_engine *engine, const bny_engine_launch *launch, void *stream) {
  /* The driver copies what these point to. */
  void *arguments[] = {&engine->group, (void *)(uintptr_t)launch->what, (void *)(uintptr_t)launch->call};
  bny_device_launch asked = {
      .kernel = &launch->kernel->kernel,
      .grid = {(uint32_t)launch->blocks, 1, 1},
      .block = {(uint32_t)launch->threads, 1, 1},
      .shared_bytes = launch->shared_bytes,
      .early = !engine->group.shares_device,
      .arguments = arguments,
  };
  return engine->device->ops->launch(engine->device, &asked, stream);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

bny_device_fault bny_engine_fault(const bny_engine *engine) {
  uint64_t word = atomic_load_explicit(&engine->words.host[BNY_DEVICE_WORD_FAULT], memory_order_acquire);
  return bny_device_fault_unpack(word);
}

bool bny_engine_fault_position(const bny_engine *engine, uint32_t *place, int32_t *id) {
  uint64_t word = atomic_load_explicit(&engine->words.host[BNY_DEVICE_WORD_POSITION], memory_order_acquire);
  if (word == 0) return false;
  *place = (uint32_t)(word >> 32) - 1;
  *id = (int32_t)(uint32_t)word;
  return true;
}

void bny_engine_abort(bny_engine *engine, banyan_status status, int32_t culprit) {
  uint64_t none = 0, word = bny_device_fault_pack((int32_t)status, culprit, engine->group.rank, 0);
  if (!atomic_compare_exchange_strong(&engine->words.host[BNY_DEVICE_WORD_ABORT], &none, word)) return;
  /* This rank's kernels see the word. It is also copied to peers, because this rank may have no running kernel. */
  const char *from = (const char *)engine->words.device + BNY_DEVICE_WORD_ABORT * sizeof word;
  for (int32_t i = 0; i < engine->group.nranks; i++)
    engine->device->ops->copy(engine->device, engine->group.arenas[i] + offsetof(bny_arena_head, abort), from,
                              sizeof word, engine->stream);
}

/* Waits for copies into arenas that the host has put on the stream, for instance by an abort. Drivers do not wait for
 * them when they unmap memory. The device would then fault, which ends all work of the process on it. */
static void settle(bny_engine *engine) {
  if (!engine->stream || !engine->arenas) return;
  if (!engine->stuck &&
      bny_device_wait(engine->device, engine->stream, bny_deadline_now() + settle_timeout_ns) == BANYAN_ERR_TIMEOUT)
    engine->stuck = true;
  if (engine->stuck) engine->arenas->stuck = true;
}

void bny_engine_disconnect(bny_engine *engine) {
  settle(engine);
  bny_arenas_free(engine->arenas);
  engine->arenas = NULL;
  engine->group = (bny_device_group){0};
}

banyan_status bny_engine_fail_data(bny_exec *exec, const bny_engine *engine, const bny_device_fault *fault,
                                   int32_t rank) {
  uint32_t token;
  int32_t head;
  char where[64] = "a row";
  if (rank == exec->transport->rank && bny_engine_fault_position(engine, &token, &head))
    snprintf(where, sizeof where, "token %" PRIu32 ", head %" PRId32, token, head);
  if (fault->detail & BNY_DEVICE_DETAIL_DOUBLED && bny_engine_fault_position(engine, &token, &head))
    return bny_exec_fail(exec, BANYAN_ERR_DATA, rank, BNY_EXEC_TWICE,
                         (int64_t)atomic_load(&engine->words.host[BNY_DEVICE_WORD_INDEX]), (int32_t)token, head,
                         (int32_t)(fault->detail & ~(uint32_t)BNY_DEVICE_DETAIL_DOUBLED), rank);
  if (fault->detail & BNY_DEVICE_DETAIL_RESULT) return bny_exec_fail_result(exec, rank, where);
  return bny_exec_fail(exec, BANYAN_ERR_DATA, rank, "rank %d " BNY_EXEC_NO_ROW ", in %s", rank, where);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

void bny_engine_clear(bny_engine *engine) {
  bny_device *device = engine->device;
  settle(engine);
  for (bny_engine_program *at = engine->programs, *next; at; at = next) {
    next = at->next;
    free(at);
  }
  for (bny_engine_room *at = engine->rooms, *next; at; at = next) {
    next = at->next;
    if (!engine->stuck) device->ops->local_free(device, at->address);
    free(at);
  }
  engine->programs = NULL;
  engine->rooms = NULL;
}

void bny_engine_free(bny_engine *engine) {
  if (!engine) return;
  bny_device *device = engine->device;
  bny_engine_clear(engine);
  bny_arenas_free(engine->arenas);
  device->ops->stream_free(device, engine->stream);
  if (!engine->stuck) device->ops->words_free(device, &engine->staging);
  device->ops->words_free(device, &engine->words);
  device->ops->module_unload(engine->module);
  free(engine->image);
  device->ops->close(device);
  free(engine);
}

/* ---- reach: host memory passed to a device is the most frequent mistake, and in a kernel a fault that leaves the
 * whole context unusable */
static bool is_known(const bny_engine *engine, uintptr_t address) {
  for (int i = 0; i < BNY_ENGINE_KNOWN; i++)
    if (address - engine->known[i].first < engine->known[i].bytes) return true;
  return false;
}

static banyan_status reject(const bny_engine *engine, const char *what, const bny_pointer_facts *facts) {
  const bny_device_facts *own = &engine->device->facts;
  if (facts->kind == BNY_POINTER_DEVICE)
    return bny_fail(
        BANYAN_ERR_ARGUMENT,
        "%s is memory of device %d, which the communicator's device %d (%s) cannot reach: there is no peer access "
        "between them",
        what, facts->ordinal, own->ordinal, own->name);
  return bny_fail(BANYAN_ERR_ARGUMENT,
                  "%s is plain host memory, which the communicator's device %d (%s) cannot reach: give memory of the "
                  "device (cudaMalloc), managed memory, or host memory that is pinned or registered (cudaMallocHost, "
                  "cudaHostRegister)",
                  what, own->ordinal, own->name);
}

banyan_status bny_engine_reach_by_host(bny_engine *engine, const char *what, const void *pointer) {
  bny_pointer_facts facts;
  if (!pointer) return BANYAN_OK;
  banyan_status status = engine->device->ops->pointer(engine->device, pointer, &facts);
  if (status != BANYAN_OK || facts.kind != BNY_POINTER_DEVICE) return status;
  return bny_fail(
      BANYAN_ERR_ARGUMENT,
      "%s is memory of device %d. On devices of several nodes this collective moves host memory: give that, "
      "and call when your copies to it are complete",
      what, facts.ordinal);
}

banyan_status bny_engine_reach(bny_engine *engine, const char *what, const void *pointer) {
  bny_pointer_facts facts;
  if (!pointer || is_known(engine, (uintptr_t)pointer)) return BANYAN_OK;
  banyan_status status = engine->device->ops->pointer(engine->device, pointer, &facts);
  if (status != BANYAN_OK) return status;
  if (!facts.reached) return reject(engine, what, &facts);
  if (facts.bytes == 0) return BANYAN_OK;
  engine->known[engine->known_next] = (bny_engine_known){facts.first, facts.bytes};
  engine->known_next = (engine->known_next + 1) % BNY_ENGINE_KNOWN;
  return BANYAN_OK;
}
