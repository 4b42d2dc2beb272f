/* SPDX-License-Identifier: Apache-2.0
 * Declarations that the files of the fake CUDA driver share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/* The functions are visible to programs that are linked with the driver. */
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

enum { FAKE_DEVICES_MAX = 72, FAKE_ARENA_UNIT = 1 << 16 };

typedef enum object_kind {
  ALLOCATION, /* cuMemAlloc */
  PINNED,     /* cuMemHostAlloc */
  REGISTERED, /* cuMemHostRegister */
  OPENED,     /* an IPC handle */
  PHYSICAL,   /* a part of a device's memory */
  RESERVED,   /* addresses */
  MAPPED,     /* a physical part at an address */
  STREAM,
  MODULE,
  OBJECT_KINDS
} object_kind;

typedef struct object {
  object_kind kind;
  int device; /* its device; PHYSICAL and MAPPED: the device's number on the node */
  void *address;
  void *seen; /* address for devices; it differs for REGISTERED, if FAKE_CUDA has the word `moved` */
  size_t bytes;
  int file; /* -1: none */
  bool imported;
  bool access;       /* MAPPED */
  bool capturing;    /* STREAM */
  const void *image; /* MODULE */
  struct object *next;
} object;

#ifdef __cplusplus
extern "C" {
#endif

/* fake_cuda.c */
bool fake_is(const char *word, int device); /* FAKE_CUDA has the word, for this device */
long fake_number(const char *word, long otherwise);
int fake_device(void);            /* device of the current context; -1: none */
int fake_host_device(int device); /* the device's number on the node */

/* Adds a line to the file of FAKE_CUDA_NOTES. */
void fake_note(const char *what);

/* Called at the begin of every call. Fails without a context. `setup`: the call allocates, frees or waits. */
CUresult fake_enter(bool setup);

/* Called at the begin of a call in which a driver may wait for the end of the context's kernels, and block other
 * launches meanwhile. Such a call never ends if a kernel waits for a later launch. With the word `live`, it waits at
 * most 20 s and then ends the process. Without it, it does not wait. */
CUresult fake_enter_idle(void);

/* Returns the stack bytes of each thread of the context. */
size_t fake_stack(void);

/* Sets bytes. Pages of zeros are returned to the system, because arenas are large and seldom used completely. */
void fake_fill(void *to, unsigned char value, size_t bytes);

/* Fills both ends of new memory with arbitrary bytes. */
void fake_spoil(void *memory, size_t bytes);

void fake_lock(void);
void fake_unlock(void);

/* Callers of these hold the lock. */
object *fake_add(object_kind kind, void *address, size_t bytes);
object *fake_find(object_kind kind, const void *address);
void fake_each_import(void (*visit)(void *context, void *memory, size_t bytes), void *context); /* peers' memory */
bool fake_remove(object_kind kind, const void *address);                                        /* closes its file */
object *fake_covering(const void *address, size_t bytes); /* memory that a device can access */

/* fake_cuda_kernels.cc: finds kernels of the library by name, NULL if there is none, and launches them. */
struct fake_cuda_launch;
const void *fake_kernel_find(const char *name);
bool fake_kernel_is(const void *function);
void fake_kernel_launch(const void *function, void *stream, bool captured, const struct fake_cuda_launch *launch);

/* The recorded facts of a kernel: it is loaded, and it requests all of an SM's shared memory. */
enum { FAKE_KERNEL_LOADED = 1, FAKE_KERNEL_SHARES = 2 };
void fake_kernel_forget(const void *stream); /* forgets what the stream has captured */
void fake_kernel_note(const void *function, unsigned what);
unsigned fake_kernel_noted(const void *function);

/* fake_cuda_queue.cc: the queues of the word `live`. Work on a captured stream goes into its graph. */
bool fake_queue_is_on(void);
bool fake_queue_is_broken(void); /* a kernel has failed: nothing runs any more */
bool fake_queue_is_busy(const void *stream);
void fake_queue_settle(void); /* waits until all queues are empty, and keeps others from adding work */
bool fake_queue_uses(const void *address, size_t bytes); /* queued work uses the address */
bool fake_queue_is_capturing(const void *stream);
void fake_queue_copy(const void *stream, void *to, const void *from, size_t bytes);
void fake_queue_fill(const void *stream, void *to, unsigned char value, size_t bytes);

#ifdef __cplusplus
}
#endif
