/* SPDX-License-Identifier: Apache-2.0
 * The interface to an accelerator, in plain C. A vendor is named in device.c and has its own files; no code above this
 * header knows its types. Streams are the vendor's own (CUstream or cudaStream_t), passed as void *. NULL is
 * the vendor's default stream.
 *
 * The caller's memory is read and written in place, and never shared with peers. Only memory made here is shared.
 *
 * Every call leaves the thread's current context as it found it. Calls marked "hot" are ordered on the given stream and
 * return at once. They allocate nothing, synchronise nothing, and may be captured in a graph. All other calls are for
 * set-up and may take milliseconds. One thread at a time may use a device for set-up; hot calls are as thread-safe as
 * the vendor's. */
#pragma once

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
  BNY_MEMORY_FILE,   /* device memory exported as a file descriptor, for ranks of one node */
  BNY_MEMORY_FABRIC, /* device memory exported as a handle that is valid in a whole NVLink domain */
  BNY_MEMORY_IPC,    /* device memory exported as a legacy IPC handle; ranks of one process use its address */
  BNY_MEMORY_HOST,   /* host memory that all devices map: slower, but it works between any devices */
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
  unsigned char uuid[BNY_DEVICE_UUID_BYTES]; /* the same in all processes, unlike the ordinal */
  int32_t ordinal;                           /* the device's number in this process */
  int32_t compute;                           /* 90 is 9.0 */
  int32_t driver;                            /* 12040 is 12.4 */
  int32_t sm_count;
  int32_t shared_bytes_max; /* limit of a block that requests it */
  bool clusters;            /* blocks form clusters, with distributed shared memory */
  bool early_launch;        /* programmatic dependent launch */
  bool multicast;           /* NVLink switches can store to many devices at once */
  uint32_t memory_kinds;    /* one bit per bny_memory_kind that was made and exported successfully at open */
} bny_device_facts;

typedef struct bny_device {
  const bny_device_ops *ops;
  bny_device_facts facts;
} bny_device;

typedef enum bny_device_by {
  BNY_DEVICE_BY_ORDINAL = 1,
  BNY_DEVICE_BY_CONTEXT,   /* the calling thread's current context */
  BNY_DEVICE_BY_LOCAL_RANK /* the variable LOCAL_RANK; device 0 if the process sees only one */
} bny_device_by;

typedef struct bny_device_choice {
  bny_device_by by;
  int32_t ordinal;     /* for BNY_DEVICE_BY_ORDINAL */
  const char *library; /* path of the driver's library, for tests; NULL: the system finds it */
} bny_device_choice;

/* `vendor` is "cuda". Returns BANYAN_ERR_UNSUPPORTED, with a text of what is missing, if the build or the machine lacks
 * it. */
banyan_status bny_device_open(const char *vendor, const bny_device_choice *choice, bny_device **device);

/* Opens a device by the name in a communicator's options. "cuda" is the device of the calling thread's current context,
 * "cuda:2" an ordinal, and "cuda:local" the device of LOCAL_RANK. `library` is that of bny_device_choice. */
banyan_status bny_device_open_named(const char *name, const char *library, bny_device **device);

/* Waits until all work on the stream has ended. Returns BANYAN_ERR_TIMEOUT at the deadline, which is a time of
 * bny_deadline_now(). */
banyan_status bny_device_wait(bny_device *device, void *stream, int64_t deadline_ns);

/* The link between this device and the device with a UUID, as this process sees it. */
typedef struct bny_device_link {
  bool same;        /* both are the same device */
  bool visible;     /* this process sees the other device; if not, the rest is unknown and a mapping must be tried */
  bool access;      /* this device can read and write the other's memory */
  bool atomics;     /* this device can do atomic operations on it: NVLink, not PCIe */
  bool lines_whole; /* aligned 128-byte stores of a warp arrive in one piece, in the order of their bytes; false if
                     * unknown */
} bny_device_link;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* An arena, or a peer's arena as this device sees it. */
typedef struct bny_device_memory {
  bny_device *device;
  bny_memory_kind kind;
  void *address; /* an address of this device */
  size_t bytes;  /* at least the requested size */
  bool imported;
} bny_device_memory;

typedef struct bny_device_handle {
  unsigned char bytes[BNY_DEVICE_HANDLE_BYTES];
} bny_device_handle;

/* The export of an owner to a peer. */
typedef struct bny_device_offer {
  bny_memory_kind kind;
  size_t bytes;             /* size of the owner's memory */
  bny_device_handle handle; /* zero if a descriptor is enough */
  int file;                 /* -1 if the handle is enough; the caller owns it */
  bool same_process;
} bny_device_offer;

/* Host words that the device can write and the host reads at any time: errors, progress. */
typedef struct bny_device_words {
  _Atomic uint64_t *host;
  void *device;
  size_t count;
} bny_device_words;

typedef enum bny_pointer_kind {
  BNY_POINTER_UNKNOWN, /* pageable host memory, which a device may or may not reach */
  BNY_POINTER_HOST,    /* pinned or registered */
  BNY_POINTER_DEVICE,
  BNY_POINTER_MANAGED
} bny_pointer_kind;

typedef struct bny_pointer_facts {
  bny_pointer_kind kind;
  int32_t ordinal; /* ordinal of the device that owns it; -1: none */
  bool same;       /* the owner is the queried device */
  bool reached;    /* kernels of the queried device may use it, as its driver reports */
  uintptr_t first; /* the facts hold for memory from this address on, */
  size_t bytes;    /* for this many bytes; 0: unknown */
} bny_pointer_facts;

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

typedef struct bny_device_module bny_device_module;

/* A kernel of a loaded module. It is valid as long as the module. */
typedef struct bny_device_kernel {
  void *function;
  int32_t shared_bytes, local_bytes;
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
  banyan_status (*link)(bny_device *device, const unsigned char *uuid, bny_device_link *link);

  /* Arenas. The contents of a new arena are undefined. memory_export may be called once; the caller closes *file unless
   * it is -1. A handle of NULL exports to ranks of this process alone. The memory lives until its owner and all
   * importers have freed it. Free an arena only after all kernels and copies that use it have ended. */
  banyan_status (*memory_make)(bny_device *device, bny_memory_kind kind, size_t bytes, bny_device_memory **memory);
  banyan_status (*memory_export)(bny_device_memory *memory, bny_device_handle *handle, int *file);
  banyan_status (*memory_import)(bny_device *device, const bny_device_offer *offer, bny_device_memory **memory);
  void (*memory_free)(bny_device_memory *memory); /* NULL is allowed */

  /* Device memory for this rank alone, with undefined contents. */
  banyan_status (*local_make)(bny_device *device, size_t bytes, void **address);
  void (*local_free)(bny_device *device, void *address); /* NULL is allowed */

  /* Host memory that kernels read and write until it is unregistered. It consists of whole pages that nothing else
   * uses. Unregister it only after all kernels that use it have ended. Forked children do not inherit it meanwhile. */
  banyan_status (*host_register)(bny_device *device, void *host, size_t bytes, void **address);
  void (*host_unregister)(bny_device *device, void *host, size_t bytes);

  banyan_status (*words_make)(bny_device *device, size_t count, bny_device_words *words); /* zero at first */
  void (*words_free)(bny_device *device, bny_device_words *words);
  banyan_status (*pointer)(bny_device *device, const void *pointer, bny_pointer_facts *facts); /* hot */

  /* Hot. Addresses are in device memory or pinned host memory. */
  banyan_status (*copy)(bny_device *device, void *to, const void *from, size_t bytes, void *stream);
  banyan_status (*zero)(bny_device *device, void *to, size_t bytes, void *stream);

  banyan_status (*stream_make)(bny_device *device, void **stream); /* not ordered with any other stream */
  void (*stream_free)(bny_device *device, void *stream);           /* work on the stream still completes */
  banyan_status (*stream_query)(bny_device *device, void *stream, bool *done);
  /* Zeroes a word on the stream, unless that is being captured. *used says whether the stream got this work. */
  banyan_status (*stream_use)(bny_device *device, uint64_t *word, void *stream, bool *used);

  /* An image is a fat binary that lives as long as its module. NULL selects the image of this build. */
  banyan_status (*module_load)(bny_device *device, const void *image, size_t bytes, bny_device_module **module);
  void (*module_unload)(bny_device_module *module); /* NULL is allowed */
  /* Loads the kernel now and not at its first launch. The kernel may use all of shared_bytes_max. */
  banyan_status (*kernel_find)(bny_device_module *module, const char *name, bny_device_kernel *kernel);
  /* Returns how many blocks are resident at once on one SM. A kernel whose blocks wait for each other may not exceed
   * it. */
  banyan_status (*kernel_residency)(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                    uint32_t shared_bytes, int32_t *blocks);
  /* Returns how many clusters of `cluster` blocks are resident at once on the device; 0: unknown. This does not follow
   * from the number of SMs. */
  banyan_status (*kernel_clusters)(bny_device *device, const bny_device_kernel *kernel, uint32_t block_threads,
                                   uint32_t shared_bytes, uint32_t cluster, int32_t *clusters);
  banyan_status (*launch)(bny_device *device, const bny_device_launch *launch, void *stream); /* hot */
};
