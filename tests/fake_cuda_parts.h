/* SPDX-License-Identifier: Apache-2.0
 * What the files of the fake CUDA driver share. */
#ifndef BNY_TESTS_FAKE_CUDA_PARTS_H
#define BNY_TESTS_FAKE_CUDA_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#define EXPORTED __attribute__((visibility("default")))

enum { FAKE_DEVICES_MAX = 16, FAKE_ARENA_UNIT = 1 << 16 };

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
  int device;        /* that it is of; of PHYSICAL and MAPPED the number among all of the host */
  void *address;
  void *seen;        /* by devices; not the same of REGISTERED, if FAKE_CUDA has the word `moved` */
  size_t bytes;
  int file;          /* -1: none */
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
int fake_device(void);                      /* of the current context; -1: none */
int fake_host_device(int device);           /* its number among all of the host */

/* What every call begins with; it fails without a context. `setup`: it allocates, frees or waits. */
CUresult fake_enter(bool setup);

/* The same for calls that drivers may have wait until the context's kernels have ended, and in which they keep others from
 * launching any meanwhile. Who makes one while a kernel waits for what is yet to be launched waits for ever: here 20 s, and then
 * the process is ended. Does so where there are queues. */
CUresult fake_enter_idle(void);

/* What a thread of the context has for its stack. */
size_t fake_stack(void);

void fake_lock(void);
void fake_unlock(void);

/* Under the lock. */
object *fake_add(object_kind kind, void *address, size_t bytes);
object *fake_find(object_kind kind, const void *address);
bool fake_remove(object_kind kind, const void *address); /* closes its file */
object *fake_covering(const void *address, size_t bytes); /* memory that a device sees */

#ifdef FAKE_CUDA_KERNELS
/* fake_cuda_kernels.cc: kernels of the library by name, NULL if there is none; and launches of them. */
struct fake_cuda_launch;
const void *fake_kernel_find(const char *name);
bool fake_kernel_is(const void *function);
void fake_kernel_launch(const void *function, void *stream, bool captured, const struct fake_cuda_launch *launch);

/* What was said of a kernel: it is loaded; it asks for all of an SM's shared memory. */
enum { FAKE_KERNEL_LOADED = 1, FAKE_KERNEL_SHARES = 2 };
void fake_kernel_note(const void *function, unsigned what);
unsigned fake_kernel_noted(const void *function);

/* fake_cuda_queue.cc: the word `live`. Captured work goes into its graph. */
bool fake_queue_is_on(void);
bool fake_queue_is_broken(void); /* a kernel has failed: nothing runs any more */
bool fake_queue_is_busy(const void *stream);
void fake_queue_settle(void);    /* until nothing is left in any of them; nothing is put there meanwhile */
bool fake_queue_uses(const void *address, size_t bytes); /* what is in them was told of it */
bool fake_queue_is_capturing(const void *stream);
void fake_queue_copy(const void *stream, void *to, const void *from, size_t bytes);
void fake_queue_fill(const void *stream, void *to, unsigned char value, size_t bytes);
#endif

#ifdef __cplusplus
}
#endif

#endif
