/* SPDX-License-Identifier: Apache-2.0
 * The device side of a communicator: shared arenas, kernels, programs in device memory, and launches. Launches are hot
 * calls (device.h). Kernels report the outcome of a launch later, in words of host memory.
 *
 * Nothing is loaded or freed once runs have begun. A driver may hold its locks while it waits for a running kernel, and
 * that kernel may wait for another rank's kernel. */
#pragma once

#include "cuda/program.h"
#include "device/decode_plan.h"
#include "device/arena.h"
#include "exec/exec.h"

typedef struct bny_engine_kernel {
  bny_device_kernel kernel;
  int32_t blocks_per_sm; /* blocks of BNY_BLOCK_THREADS_MAX threads that are resident at once */
} bny_engine_kernel;

typedef struct bny_engine_program {
  uint64_t key;
  void *address; /* address in device memory */
  struct bny_engine_program *next;
} bny_engine_program;

/* The purpose of device memory. */
typedef enum bny_engine_use {
  BNY_USE_PROGRAMS, /* for programs, one after another */
  BNY_USE_COUNTERS, /* zero at first; each kernel leaves them zero */
  BNY_USE_SCRATCH,  /* valid within a kernel */
  BNY_USE_ROWS      /* valid from one kernel to the next */
} bny_engine_use;

typedef struct bny_engine_room {
  unsigned char *address;
  size_t bytes, used; /* used: by programs */
  bny_engine_use use;
  struct bny_engine_room *next;
} bny_engine_room;

/* The counts of kernels: those of kernels/cuda/kernels.def, and those of decode_kernels.def. */
enum {
  BNY_ENGINE_KERNELS = 0
#define BNY_CUDA_KERNEL(...) +1
#include "cuda/kernels.def"
#undef BNY_CUDA_KERNEL
  ,
  BNY_ENGINE_DECODE_KERNELS = 0
#define BNY_DECODE_KERNEL(...) +1
#include "cuda/decode_kernels.def"
#undef BNY_DECODE_KERNEL
};

/* How many of the caller's allocations are remembered as reachable, so that the driver is queried only once for
 * each. */
enum { BNY_ENGINE_KNOWN = 16 };
typedef struct bny_engine_known {
  uintptr_t first;
  size_t bytes;
} bny_engine_known;

enum { BNY_ENGINE_STREAMS = 16 };

typedef struct bny_engine {
  bny_device *device; /* owned */
  bny_arenas *arenas;
  bny_device_module *module;
  void *image;              /* owned; NULL: the image of the build */
  int32_t sms_all;          /* SMs that launches of all ranks of the device may use */
  int32_t sms;              /* SMs that launches of this rank may use */
  int32_t blocks_max;       /* most blocks of a combine; 0: chosen for the device */
  bny_device_words words;   /* BNY_DEVICE_WORDS, then counters of operations */
  int32_t counters;         /* how many have been taken */
  void *stream;             /* for the host's writes to arenas */
  bny_device_words staging; /* pinned buffer for copies to device memory */
  bool stuck;               /* a copy has not ended, so its memory is not freed */
  bny_engine_kernel kernels[BNY_ENGINE_KERNELS];
  bny_device_group group; /* bny_device_exec_make() sets its shape */
  bny_engine_program *programs;
  bny_engine_room *rooms;
  bny_device_kernel decode_kernels[BNY_ENGINE_DECODE_KERNELS];
  bny_engine_known known[BNY_ENGINE_KNOWN];
  int32_t known_next;
  void *streams[BNY_ENGINE_STREAMS]; /* those that have had work */
  int32_t nstreams;                  /* how many there have been; later ones replace the first */
  uint64_t *spare;                   /* a word that nobody reads */
} bny_engine;

typedef struct bny_engine_config {
  const char *image;  /* file with kernels; NULL: the kernels of the build */
  int32_t sm_limit;   /* most SMs of a launch; 0: no limit */
  int32_t blocks_max; /* most blocks of a combine: BANYAN_DEVICE_BLOCKS */
} bny_engine_config;

/* Returns the number of a word that counts for one operation, 0 at first; 0: none is left. They are not given back,
 * because a graph may replay the operation. */
int32_t bny_engine_take_counter(bny_engine *engine);

/* Local. Loads the kernels. The engine owns the device, on failure as well. */
banyan_status bny_engine_make(bny_device *device, const bny_engine_config *config, bny_engine **engine);

/* Collective. Connects the arenas of all ranks. timeout_ns limits every run, counted from a warp's first wait. */
banyan_status bny_engine_connect(bny_engine *engine, const bny_exchange *exchange, const bny_arenas_config *config,
                                 int64_t timeout_ns);

/* Local. Gives a stream some work before the ranks agree on a call that it will run. A driver may finish making a
 * stream at its first work. If that is a run, and kernels of other ranks on the same device wait for it, the driver may
 * wait for them. No device has confirmed this. A blocking call of a known shape agrees on nothing. A stream that it is
 * the first to use gets its work only then, when runs of other ranks may already wait. The next call tries again for a
 * stream that is being captured. Failures are left to the run. */
void bny_engine_use_stream(bny_engine *engine, void *stream);

/* Local. Releases the arenas, so that others can be connected. */
void bny_engine_disconnect(bny_engine *engine);

/* Local. Frees device memory; nothing may be launched after it. The driver waits until kernels have ended, if necessary
 * after an abort. Memory that is only unmapped may be released after this call. */
void bny_engine_clear(bny_engine *engine);

/* Local; NULL is allowed. All launches must have ended. */
void bny_engine_free(bny_engine *engine);

/* Copies a program to device memory, unless it holds one with this key. The program lives as long as the engine,
 * because captured graphs may use it. */
banyan_status bny_engine_load(bny_engine *engine, uint64_t key, const bny_program *program, void **address);

/* Returns device memory of at least this size. All users of one purpose share it, because they run one after another.
 * It lives as long as the engine. */
banyan_status bny_engine_memory(bny_engine *engine, bny_engine_use use, size_t bytes, void **address);

/* Returns the decode kernel with an index in bny_decode_kernels[], loaded when the engine was made. Returns NULL if the
 * device has none. */
const bny_device_kernel *bny_engine_decode_kernel(const bny_engine *engine, ptrdiff_t index);

/* Finds a kernel of the image by name. Loads it unless it was loaded when the engine was made. */
banyan_status bny_engine_find(bny_engine *engine, const char *name, bny_engine_kernel *kernel);

typedef struct bny_engine_launch {
  const bny_engine_kernel *kernel;
  int32_t blocks, threads;
  uint32_t shared_bytes; /* dynamic */
  const void *what;      /* the kernel's second parameter: a bny_oneshot, or the address of a program */
  const bny_device_call *call;
} bny_engine_launch;

/* Returns BANYAN_ERR_ARGUMENT, with a text, if kernels cannot reach the caller's memory. `what` names it ("in.values").
 * NULL is accepted. Only the given address is checked. Hot: an allocation that was checked before costs a few
 * comparisons. */
banyan_status bny_engine_reach(bny_engine *engine, const char *what, const void *pointer);

/* Returns BANYAN_ERR_ARGUMENT, with a text, if the memory is that of a device, which the host cannot read. */
banyan_status bny_engine_reach_by_host(bny_engine *engine, const char *what, const void *pointer);

/* Hot. Launches a kernel. */
banyan_status bny_engine_start(bny_engine *engine, const bny_engine_launch *launch, void *stream);

/* Returns the first failure that kernels have reported; status BANYAN_OK means none. Any thread may call it. It costs
 * one load. */
bny_device_fault bny_engine_fault(const bny_engine *engine);

/* Returns the position of this rank's fault: two numbers, as bny_device_fault defines them. Returns false if there is
 * none. */
bool bny_engine_fault_position(const bny_engine *engine, uint32_t *place, int32_t *id);

/* Turns a kernel fault with BANYAN_ERR_DATA into the failure of an executor, with culprit `rank`. The cause is bad
 * statistics of that rank, a row of its result that its type cannot hold, or an index that is offered twice. */
banyan_status bny_engine_fail_data(bny_exec *exec, const bny_engine *engine, const bny_device_fault *fault,
                                   int32_t rank);

/* Ends the current and all later runs on the devices of all ranks. Any thread may call it. It does not wait. */
void bny_engine_abort(bny_engine *engine, banyan_status status, int32_t culprit);
