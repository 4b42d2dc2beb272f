/* SPDX-License-Identifier: Apache-2.0
 *
 * The device side of a communicator: arenas that all ranks share, kernels, programs in device memory, and launches,
 * which are hot calls (device.h). Kernels report the outcome of a launch later, in words of host memory.
 *
 * Once runs have begun, nothing is loaded or freed: a driver may wait for a running kernel with its locks held, while
 * that kernel waits for another rank's. */
#ifndef BNY_DEVICE_ENGINE_H
#define BNY_DEVICE_ENGINE_H

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
  void *address; /* in a room */
  struct bny_engine_program *next;
} bny_engine_program;

typedef struct bny_engine_room {
  unsigned char *address;
  size_t bytes, used;
  struct bny_engine_room *next;
} bny_engine_room;

/* Device memory for kernels to work in: its purpose. */
typedef enum bny_engine_use {
  BNY_USE_COUNTERS, /* all zero at first; each user leaves them zero */
  BNY_USE_SCRATCH,  /* within a kernel */
  BNY_USE_ROWS      /* from a kernel to the next */
} bny_engine_use;

typedef struct bny_engine_workspace {
  void *address;
  size_t bytes;
  bny_engine_use use;
  struct bny_engine_workspace *next;
} bny_engine_workspace;

/* The numbers of kernels: combines and programs that kernels/cuda/kernels.def lists, and those of
 * decode_kernels.def. */
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

/* Memory of callers that kernels are known to reach, so that the driver is asked only once. */
enum { BNY_ENGINE_KNOWN = 16 };
typedef struct bny_engine_known {
  uintptr_t first;
  size_t bytes;
} bny_engine_known;

typedef struct bny_engine {
  bny_device *device; /* owned */
  bny_arenas *arenas;
  bny_device_module *module;
  void *image;        /* owned; NULL: that of the build */
  int32_t sms_all;    /* SMs that launches of all ranks of the device may use */
  int32_t sms;        /* and those of this one */
  int32_t blocks_max; /* limit for a combine; 0: what suits the device */
  bny_device_words words;
  void *stream;             /* for what the host writes to arenas */
  bny_device_words staging; /* data on its way to the device's memory */
  bool stuck;               /* a copy has not ended, so its memory is not freed */
  bny_engine_kernel kernels[BNY_ENGINE_KERNELS];
  bny_device_group group; /* its shape is set by the code that divides the arenas */
  bny_engine_program *programs;
  bny_engine_room *rooms;
  bny_device_kernel decode_kernels[BNY_ENGINE_DECODE_KERNELS];
  bny_decode_copy decode_copy;
  bool one_term; /* weights have one term */
  bny_engine_workspace *workspaces;
  bny_engine_known known[BNY_ENGINE_KNOWN];
  int32_t known_next;
} bny_engine;

typedef struct bny_engine_config {
  const char *image;    /* file with kernels; NULL: those of the build */
  int32_t sm_limit;     /* 0: none */
  int32_t blocks_max;   /* limit for a combine: BANYAN_DEVICE_BLOCKS */
  bny_decode_copy copy; /* how decode kernels copy */
  bool one_term;        /* their weights have one term */
  bool in_turn;         /* no early launches */
} bny_engine_config;

/* Local. Loads the kernels. The engine owns the device, on failure as well. */
banyan_status bny_engine_make(bny_device *device, const bny_engine_config *config, bny_engine **engine);

/* Collective. Connects the arenas of all ranks. timeout_ns: of every run, from when a warp first has to wait. */
banyan_status bny_engine_connect(bny_engine *engine, const bny_exchange *exchange, const bny_arenas_config *config,
                                 int64_t timeout_ns);

/* Local. Leaves the arenas, so that others can be connected. */
void bny_engine_disconnect(bny_engine *engine);

/* Local. Nothing is launched after it. Frees device memory. Drivers wait for this until kernels have ended, if
 * necessary by an abort. What is only unmapped comes after that. */
void bny_engine_clear(bny_engine *engine);

/* Local; NULL is allowed. Everything launched has ended. */
void bny_engine_free(bny_engine *engine);

/* Puts a program into the device's memory, unless one of this key is there. It stays as long as the engine: graphs that
 * were captured may use it. */
banyan_status bny_engine_load(bny_engine *engine, uint64_t key, const bny_program *program, void **address);

/* Returns device memory of at least this size, the same for all users of one purpose, who run one after another. It
 * lives as long as the engine. */
banyan_status bny_engine_memory(bny_engine *engine, bny_engine_use use, size_t bytes, void **address);

/* Returns a decode kernel, by its place in bny_decode_kernels[]; it was loaded when the engine was made. NULL: none for
 * this device. */
const bny_device_kernel *bny_engine_decode_kernel(const bny_engine *engine, ptrdiff_t index);

/* Finds a kernel of the image by its name: loaded when the engine was made, or now. */
banyan_status bny_engine_find(bny_engine *engine, const char *name, bny_engine_kernel *kernel);

typedef struct bny_engine_launch {
  const bny_engine_kernel *kernel;
  int32_t blocks, threads;
  const void *what; /* the kernel's second parameter: a bny_oneshot, or the address of a program */
  const bny_device_call *call;
} bny_engine_launch;

/* BANYAN_ERR_ARGUMENT, with a text, if kernels cannot reach the caller's memory, which is called `what` ("in.values").
 * NULL is accepted. Only that address is checked. Hot: costs a few comparisons if the driver has answered for the same
 * allocation before. */
banyan_status bny_engine_reach(bny_engine *engine, const char *what, const void *pointer);

/* Launches. Hot. */
banyan_status bny_engine_start(bny_engine *engine, const bny_engine_launch *launch, void *stream);

/* Returns the first failure that kernels have reported; status BANYAN_OK: none. Any thread, costs one load. */
bny_device_fault bny_engine_fault(const bny_engine *engine);

/* After a wrong page of this rank's kernels: returns its place in the table of its sequence, and its id. */
bool bny_engine_fault_position(const bny_engine *engine, uint32_t *place, int32_t *id);

/* Turns a fault of kernels with BANYAN_ERR_DATA into the failure of an executor, in which the culprit is `rank`:
 * statistics that it gave, or a row of its result that its type cannot hold. */
banyan_status bny_engine_fail_data(bny_exec *exec, const bny_engine *engine, const bny_device_fault *fault,
                                   int32_t rank);

/* Ends what runs and will run, on the devices of all ranks. Any thread, does not wait. */
void bny_engine_abort(bny_engine *engine, banyan_status status, int32_t culprit);

#endif
