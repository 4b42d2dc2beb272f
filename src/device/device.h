/* SPDX-License-Identifier: Apache-2.0
 *
 * The vendor table: what banyan needs of an accelerator, in plain C. A vendor is one row in device.c and its files;
 * nothing above this header knows its types. Streams are the vendor's own (a CUstream or cudaStream_t), passed as void
 * *; NULL is the vendor's default stream.
 *
 * Memory of the caller is read and written where it lies and never shared with peers; only memory made here is.
 *
 * Every call leaves the thread's current context as it found it. Calls marked "hot" are ordered on the stream given,
 * return at once, allocate nothing, synchronise nothing and may be captured in a graph. All others are for set-up and
 * may take milliseconds. One thread at a time may use a device for set-up; hot calls are as thread-safe as the
 * vendor's. */
#ifndef BNY_DEVICE_H
#define BNY_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan.h"

enum { BNY_DEVICE_UUID_BYTES = 16, BNY_DEVICE_HANDLE_BYTES = 64, BNY_DEVICE_NAME_BYTES = 64 };

typedef struct bny_device_ops bny_device_ops;

/* ---- a device ---------------------------------------------------------------------------------------------------- */

/* How arenas are made and mapped by peers, best first. */
typedef enum bny_memory_kind {
  BNY_MEMORY_FILE,   /* device memory exported as a file descriptor: ranks of one node */
  BNY_MEMORY_FABRIC, /* device memory exported as a handle that is valid in a whole NVLink domain */
  BNY_MEMORY_IPC,    /* device memory by the older handles of processes; by its address within a process */
  BNY_MEMORY_HOST,   /* host memory that every device reads and writes: slower, but between any devices */
  BNY_MEMORY_KINDS
} bny_memory_kind;

static inline const char *bny_memory_kind_name(bny_memory_kind kind) {
  switch (kind) {
  case BNY_MEMORY_FILE: return "memory files";
  case BNY_MEMORY_FABRIC: return "fabric handles";
  case BNY_MEMORY_IPC: return "IPC handles";
  case BNY_MEMORY_HOST: return "host memory";
  case BNY_MEMORY_KINDS: break;
  }
  return "memory of no kind";
}

typedef struct bny_device_facts {
  char name[BNY_DEVICE_NAME_BYTES];
  unsigned char uuid[BNY_DEVICE_UUID_BYTES]; /* the same in all processes, however they number it */
  int32_t ordinal;                           /* in this process */
  int32_t compute;                           /* 90 is 9.0 */
  int32_t driver;                            /* 12040 is 12.4 */
  int32_t sm_count;
  int32_t shared_bytes_max; /* limit for a block that asks for it */
  int32_t cache_bytes;      /* second level */
  bool clusters;            /* blocks form clusters, with distributed shared memory */
  bool early_launch;        /* programmatic dependent launch */
  bool multicast;           /* it is behind NVLink switches that can store to many devices at once */
  uint32_t memory_kinds;    /* bit per bny_memory_kind: made and exported once when the device was
                             * opened */
} bny_device_facts;

typedef struct bny_device {
  const bny_device_ops *ops;
  bny_device_facts facts;
} bny_device;

typedef enum bny_device_by {
  BNY_DEVICE_BY_ORDINAL = 1,
  BNY_DEVICE_BY_CONTEXT,   /* the calling thread's current context */
  BNY_DEVICE_BY_LOCAL_RANK /* the variable LOCAL_RANK; device 0 where a process sees only one */
} bny_device_by;

typedef struct bny_device_choice {
  bny_device_by by;
  int32_t ordinal;     /* for BNY_DEVICE_BY_ORDINAL */
  const char *library; /* the driver's file; NULL: as the system finds it. For tests */
} bny_device_choice;

/* `vendor` is "cuda". BANYAN_ERR_UNSUPPORTED, with what is missing, in a build or on a machine without it. */
banyan_status bny_device_open(const char *vendor, const bny_device_choice *choice, bny_device **device);

/* Opens a device by the name that communicators are given. "cuda": that of the calling thread's current context;
 * "cuda:2": that ordinal; "cuda:local": by LOCAL_RANK. `library` as in a choice. */
banyan_status bny_device_open_named(const char *name, const char *library, bny_device **device);

/* Waits until all on the stream is done; BANYAN_ERR_TIMEOUT at the deadline, by bny_deadline_now(). */
banyan_status bny_device_wait(bny_device *device, void *stream, int64_t deadline_ns);

/* The link between this device and one known by its UUID, as this process sees it. */
typedef struct bny_device_link {
  bool same;        /* one and the same device */
  bool visible;     /* to this process; if not, the rest is unknown: a mapping must be tried */
  bool access;      /* this device can read and write that one's memory */
  bool atomics;     /* and do atomic operations on it: NVLink, not PCIe */
  bool lines_whole; /* 128-byte aligned stores of a warp arrive whole and in order of their bytes; false if unknown */
} bny_device_link;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* An arena, or a peer's arena as this device sees it. */
typedef struct bny_device_memory {
  bny_device *device;
  bny_memory_kind kind;
  void *address; /* for this device */
  size_t bytes;  /* at least what was asked for */
  bool imported;
} bny_device_memory;

typedef struct bny_device_handle {
  unsigned char bytes[BNY_DEVICE_HANDLE_BYTES];
} bny_device_handle;

/* The export of an owner to a peer. */
typedef struct bny_device_offer {
  bny_memory_kind kind;
  size_t bytes;             /* size of the memory, as its owner has it */
  bny_device_handle handle; /* zero if a descriptor is enough */
  int file;                 /* -1 if the handle is enough; remains the caller's */
  bool same_process;
} bny_device_offer;

/* Host words that the device can write and the host reads at any time: errors, progress. */
typedef struct bny_device_words {
  _Atomic uint64_t *host;
  void *device;
  size_t count;
} bny_device_words;

typedef enum bny_pointer_kind {
  BNY_POINTER_UNKNOWN, /* plain host memory, which a device may or may not see */
  BNY_POINTER_HOST,    /* pinned or registered */
  BNY_POINTER_DEVICE,
  BNY_POINTER_MANAGED
} bny_pointer_kind;

typedef struct bny_pointer_facts {
  bny_pointer_kind kind;
  int32_t ordinal; /* the device that owns it; -1: none */
  bool same;       /* it is the device that was asked */
  bool reached;    /* kernels of the device that was asked may use it, by what its driver reports */
  uintptr_t first; /* what holds for it holds for memory from here on, */
  size_t bytes;    /* for this many bytes; 0: unknown */
} bny_pointer_facts;

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct bny_device_module bny_device_module;

/* A kernel of a loaded module: valid as long as the module. */
typedef struct bny_device_kernel {
  void *function;
  int32_t registers, shared_bytes, local_bytes, threads_max;
} bny_device_kernel;

typedef struct bny_device_launch {
  const bny_device_kernel *kernel;
  uint32_t grid[3], block[3];
  uint32_t cluster[3];   /* 0: none */
  uint32_t shared_bytes; /* dynamic */
  bool early;            /* may begin while the kernel before it on the stream still runs */
  void **arguments;      /* a pointer to each parameter; read before the call returns */
} bny_device_launch;

/* ---- the table --------------------------------------------------------------------------------------------------- */

struct bny_device_ops {
  const char *name;
  void (*close)(bny_device *device);
  /* Makes the device current on this thread from now on, for what other libraries do there. */
  banyan_status (*attach)(bny_device *device);
  banyan_status (*link)(bny_device *device, const unsigned char *uuid, bny_device_link *link);

  /* Arenas: a fresh one may hold anything. memory_export may be called once; *file is -1 or the caller's to close. The
   * memory behind an arena lives until its owner and all who imported it have freed theirs. Free only what no kernel
   * and no copy uses any more. */
  banyan_status (*memory_make)(bny_device *device, bny_memory_kind kind, size_t bytes, bny_device_memory **memory);
  banyan_status (*memory_export)(bny_device_memory *memory, bny_device_handle *handle, int *file);
  banyan_status (*memory_import)(bny_device *device, const bny_device_offer *offer, bny_device_memory **memory);
  void (*memory_free)(bny_device_memory *memory); /* NULL is allowed */

  /* Device memory for this rank alone; it may hold anything. */
  banyan_status (*local_make)(bny_device *device, size_t bytes, void **address);
  void (*local_free)(bny_device *device, void *address); /* NULL is allowed */

  /* Host memory for kernels to read and write: whole pages that nothing else uses, and only until it is unregistered.
   * Free only what no kernel uses any more. Children of forks do not have it meanwhile. */
  banyan_status (*host_register)(bny_device *device, void *host, size_t bytes, void **address);
  void (*host_unregister)(bny_device *device, void *host, size_t bytes);

  banyan_status (*words_make)(bny_device *device, size_t count, bny_device_words *words); /* zero at first */
  void (*words_free)(bny_device *device, bny_device_words *words);
  banyan_status (*pointer)(bny_device *device, const void *pointer, bny_pointer_facts *facts); /* hot */

  /* Hot. Addresses of devices or of pinned memory. */
  banyan_status (*copy)(bny_device *device, void *to, const void *from, size_t bytes, void *stream);
  banyan_status (*zero)(bny_device *device, void *to, size_t bytes, void *stream);

  banyan_status (*stream_make)(bny_device *device, void **stream); /* ordered with no other */
  void (*stream_free)(bny_device *device, void *stream);           /* what is on it still runs to its end */
  banyan_status (*stream_query)(bny_device *device, void *stream, bool *done);

  /* An image is a fat binary that lives as long as its module. NULL: that of this build. */
  banyan_status (*module_load)(bny_device *device, const void *image, size_t bytes, bny_device_module **module);
  void (*module_unload)(bny_device_module *module); /* NULL is allowed */
  /* Loads the kernel now, not at its first launch. It may use all of shared_bytes_max. */
  banyan_status (*kernel_find)(bny_device_module *module, const char *name, bny_device_kernel *kernel);
  /* Returns how many blocks are resident at once on one SM. A kernel whose blocks wait for one another may have no
   * more. */
  banyan_status (*kernel_residency)(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                    uint32_t shared_bytes, int32_t *blocks);
  /* Returns how many clusters of `cluster` blocks are resident at once on the device; 0: unknown. This does not follow
   * from the number of SMs. */
  banyan_status (*kernel_clusters)(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                   uint32_t shared_bytes, uint32_t cluster, int32_t *clusters);
  banyan_status (*launch)(bny_device *device, const bny_device_launch *launch, void *stream); /* hot */
};

#endif
