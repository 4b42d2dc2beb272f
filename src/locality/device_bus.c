/* SPDX-License-Identifier: Apache-2.0
 * Finds the PCI address of a device from its number, through the CUDA driver. */
#include "locality/locality.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda_library.h"

/* Functions of CUDA's driver. Their types have not changed since the first version. */
typedef struct driver {
  int (*init)(unsigned flags);
  int (*get)(int *device, int ordinal);
  int (*bus)(char *text, int bytes, int device);
} driver;

static const bny_cuda_function functions[] = {
    {"cuInit", 2000, offsetof(driver, init), true},
    {"cuDeviceGet", 2000, offsetof(driver, get), true},
    {"cuDeviceGetPCIBusId", 4010, offsetof(driver, bus), true},
};

/* A device that is chosen by context or local rank is known only once it is open. */
static bool ordinal_of(const char *device, int *ordinal) {
  char *end;
  if (strncmp(device, "cuda:", 5) != 0 || device[5] < '0' || device[5] > '9') return false;
  long number = strtol(device + 5, &end, 10);
  *ordinal = (int)number;
  return !*end && number <= INT16_MAX;
}

bool bny_locality_device_bus(const char *device, const char *path, char bus_id[BNY_TOPO_BUS_BYTES], char *why,
                             size_t bytes) {
  void *library = NULL;
  int version = 0, ordinal = 0, number = 0;
  char text[BNY_CUDA_LIBRARY_TEXT_BYTES] = "", name[32] = "";
  driver cuda;
  if (!ordinal_of(device, &ordinal)) {
    snprintf(why, bytes, "the locality of device %.20s is known by its number alone, as cuda:2", device);
    return false;
  }
  if (!bny_cuda_library_open(path, &library, &version, text) ||
      !bny_cuda_library_find(library, version, functions, sizeof functions / sizeof *functions, &cuda, text)) {
    snprintf(why, bytes, "%.100s", text);
    if (library) dlclose(library);
    return false;
  }
  bool known = cuda.init(0) == 0 && cuda.get(&number, ordinal) == 0 && cuda.bus(name, sizeof name, number) == 0 &&
               bny_topo_bus_normalise(name, bus_id);
  if (!known) snprintf(why, bytes, "the driver does not give the bus id of %.20s", device);
  dlclose(library);
  return known;
}
