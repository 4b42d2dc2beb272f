/* SPDX-License-Identifier: Apache-2.0
 * The part of NVML that the probe uses, and the state of the NVML probe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/model/model.h"

/* Declarations of NVIDIA's management library, written from its public documentation. The library is part of the
 * driver, which a build machine need not have, so the probe loads it at run time. The numbers are part of its ABI. */

typedef int bny_nvml_return;
enum {
  BNY_NVML_SUCCESS = 0,
  BNY_NVML_INVALID_ARGUMENT = 2,
  BNY_NVML_NOT_SUPPORTED = 3,
  BNY_NVML_DRIVER_NOT_LOADED = 9,
  BNY_NVML_GPU_IS_LOST = 15,
  BNY_NVML_UNKNOWN = 999
};

typedef struct bny_nvml_device_opaque *bny_nvml_device;

typedef struct bny_nvml_pci {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id; /* device_id: vendor in the low half */
  char bus_id[32];
} bny_nvml_pci;
_Static_assert(sizeof(bny_nvml_pci) == 68, "nvmlPciInfo_t");

enum { BNY_NVML_REMOTE_GPU = 0, BNY_NVML_REMOTE_CPU = 1, BNY_NVML_REMOTE_SWITCH = 2, BNY_NVML_REMOTE_UNKNOWN = 255 };
enum { BNY_NVML_LINKS_MAX = 36 }; /* per GPU: 18 so far */

enum {
  BNY_NVML_FIELD_NVLINK_SPEED_0 = 84, /* to 89: links 0 to 5; raw MB/s, as the next two */
  BNY_NVML_FIELD_NVLINK_SPEED_COMMON = 90,
  BNY_NVML_FIELD_NVLINK_SPEED = 164, /* scope: the link; of newer GPUs */
  BNY_NVML_FIELD_C2C_COUNT = 170,
  BNY_NVML_FIELD_C2C_STATUS = 171, /* scope: the link */
  BNY_NVML_FIELD_C2C_SPEED = 172   /* scope: the link; MB/s */
};

enum { BNY_NVML_VALUE_DOUBLE, BNY_NVML_VALUE_UINT, BNY_NVML_VALUE_ULONG, BNY_NVML_VALUE_ULONGLONG };

typedef struct bny_nvml_field {
  unsigned id, scope;
  long long timestamp, latency_us;
  unsigned value_type;
  bny_nvml_return status; /* status of this field */
  union {
    double floating;
    unsigned int number;
    unsigned long number_long;
    unsigned long long number_longer;
  } value;
} bny_nvml_field;
_Static_assert(sizeof(bny_nvml_field) == 40 || sizeof(long) != 8, "nvmlFieldValue_t");

enum { BNY_NVML_P2P_READ = 0, BNY_NVML_P2P_NVLINK = 2 };
enum { BNY_NVML_P2P_OK = 0, BNY_NVML_P2P_NOT_SUPPORTED = 5, BNY_NVML_P2P_UNKNOWN = 6 };

enum {
  BNY_NVML_FABRIC_NOT_SUPPORTED,
  BNY_NVML_FABRIC_NOT_STARTED,
  BNY_NVML_FABRIC_IN_PROGRESS,
  BNY_NVML_FABRIC_COMPLETED
};

/* Version 2, for nvmlDeviceGetGpuFabricInfoV. */
typedef struct bny_nvml_fabric {
  unsigned version;
  unsigned char uuid[16];
  bny_nvml_return status; /* valid if state is completed */
  unsigned clique;
  unsigned char state;
  unsigned health;
} bny_nvml_fabric;
#define BNY_NVML_FABRIC_VERSION ((unsigned)sizeof(bny_nvml_fabric) | 2u << 24)
_Static_assert(sizeof(bny_nvml_fabric) == 36 && offsetof(bny_nvml_fabric, state) == 28, "nvmlGpuFabricInfo_v2_t");

enum { BNY_NVML_SCOPE_NODE = 0 };
enum { BNY_NVML_TEXT_BYTES = 96 };

/* The loaded library. */
typedef struct bny_nvml {
  void *library;
  bny_nvml_return (*init)(void);
  bny_nvml_return (*shutdown)(void);
  const char *(*error_string)(bny_nvml_return status);
  bny_nvml_return (*count)(unsigned *count);
  bny_nvml_return (*handle)(unsigned index, bny_nvml_device *device);
  bny_nvml_return (*pci)(bny_nvml_device device, bny_nvml_pci *pci);
  bny_nvml_return (*name)(bny_nvml_device device, char *name, unsigned bytes);
  bny_nvml_return (*uuid)(bny_nvml_device device, char *uuid, unsigned bytes);
  bny_nvml_return (*compute)(bny_nvml_device device, int *major, int *minor);
  bny_nvml_return (*generation_most)(bny_nvml_device device, unsigned *generation);
  bny_nvml_return (*width_most)(bny_nvml_device device, unsigned *lanes);
  bny_nvml_return (*generation)(bny_nvml_device device, unsigned *generation);
  bny_nvml_return (*width)(bny_nvml_device device, unsigned *lanes);
  bny_nvml_return (*memory_affinity)(bny_nvml_device device, unsigned words, unsigned long *nodes, unsigned scope);
  bny_nvml_return (*link_state)(bny_nvml_device device, unsigned link, unsigned *state);
  bny_nvml_return (*link_remote)(bny_nvml_device device, unsigned link, bny_nvml_pci *pci);
  bny_nvml_return (*link_remote_type)(bny_nvml_device device, unsigned link, unsigned *type);
  bny_nvml_return (*fields)(bny_nvml_device device, int count, bny_nvml_field *fields);
  bny_nvml_return (*p2p)(bny_nvml_device a, bny_nvml_device b, unsigned capability, unsigned *status);
  bny_nvml_return (*fabric)(bny_nvml_device device, bny_nvml_fabric *fabric); /* NULL before release 535 */
} bny_nvml;

typedef enum bny_nvml_loading {
  BNY_NVML_LOADED,
  BNY_NVML_NO_LIBRARY, /* or its driver is not loaded */
  BNY_NVML_UNUSABLE
} bny_nvml_loading;

/* Loads and initialises the library. Any result other than LOADED sets `text` to the reason and leaves nothing open. */
bny_nvml_loading bny_nvml_open(const char *path, bny_nvml *nvml, char *text, size_t text_bytes);
void bny_nvml_close(bny_nvml *nvml);

const char *bny_nvml_error(const bny_nvml *nvml, bny_nvml_return status); /* never NULL */

/* Reads a field as a number. Returns false if the driver does not report it. */
bool bny_nvml_field_read(const bny_nvml *nvml, bny_nvml_device device, unsigned id, unsigned scope, double *value);

/* Returns false if the driver does not report fabrics. */
bool bny_nvml_fabric_read(const bny_nvml *nvml, bny_nvml_device device, bny_nvml_fabric *fabric);

/* The NVML probe has two parts: GPUs and their location (probe_nvml.c), and their NVLinks (nvml_link.c). */

/* All links of a GPU to one other node. */
typedef struct bny_nvml_way {
  int32_t to; /* node */
  int32_t up, down;
  double megabytes; /* sum of raw MB/s of links that are up; 0 if the driver does not report it */
} bny_nvml_way;

typedef struct bny_nvml_gpu {
  bny_nvml_device device;
  unsigned number; /* NVML's number */
  char bus_id[BNY_TOPO_BUS_BYTES];
  int32_t node, compute;  /* compute: -1 unknown */
  int32_t domain;         /* node of the NVLink domain that it has joined; -1 none */
  bool fabric_failed;     /* it belongs to a fabric, but has not joined it */
  int32_t down_somewhere; /* links that are down, with unknown target */
  int32_t nways;
  bny_nvml_way ways[BNY_NVML_LINKS_MAX];
} bny_nvml_gpu;

enum { BNY_NVML_SWITCHES_MAX = 64 };

typedef struct bny_nvml_machine {
  const bny_nvml *nvml;
  bny_topo *topo;
  int32_t host;
  bny_nvml_gpu *gpus;
  int32_t ngpus;
  struct {
    char bus_id[BNY_TOPO_BUS_BYTES]; /* "" hidden */
    int32_t node;
  } switches[BNY_NVML_SWITCHES_MAX];
  int32_t nswitches;
  int32_t links, links_down, links_unseen, links_refused; /* for the report; unseen: up, target unknown */
} bny_nvml_machine;

/* Finds and adds the NVLinks of all GPUs. The GPUs must be in the model. Sets topo->out_of_memory if out of memory. */
void bny_nvml_links(bny_nvml_machine *machine);
