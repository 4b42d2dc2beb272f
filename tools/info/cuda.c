/* SPDX-License-Identifier: Apache-2.0
 * CUDA's driver, its version and its devices. The program runs without one. */
#include "tools/info/cuda.h"

#include <dlfcn.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/cuda_library.h"

typedef struct driver {
  int (*init)(unsigned flags);
  int (*count)(int *count);
  int (*get)(int *device, int ordinal);
  int (*name)(char *name, int bytes, int device);
  int (*memory)(size_t *bytes, int device);
  int (*error)(int result, const char **text);
} driver;

static const bny_cuda_function functions[] = {
    {"cuInit", 2000, offsetof(driver, init), true},
    {"cuDeviceGetCount", 2000, offsetof(driver, count), true},
    {"cuDeviceGet", 2000, offsetof(driver, get), true},
    {"cuDeviceGetName", 2000, offsetof(driver, name), true},
    {"cuDeviceTotalMem", 3020, offsetof(driver, memory), true},
    {"cuGetErrorString", 6000, offsetof(driver, error), true},
};

static json_t *answer(const char *version, json_t *devices, const char *text) {
  return json_pack("{s:s?, s:o, s:s}", "driver", version, "devices", devices, "text", text);
}

static json_t *devices_of(const driver *found, int count) {
  json_t *devices = json_array();
  for (int i = 0; i < count; i++) {
    char name[128] = "unknown";
    size_t bytes = 0;
    int device;
    if (found->get(&device, i) == 0 && found->name(name, sizeof name, device) == 0) found->memory(&bytes, device);
    json_array_append_new(devices, json_pack("{s:s, s:I}", "name", name, "bytes", (json_int_t)bytes));
  }
  return devices;
}

static json_t *ask(const driver *found, int number) {
  int count = 0;
  char version[32], text[256];
  snprintf(version, sizeof version, "%d.%d", number / 1000, number % 1000 / 10);
  int result = found->init(0);
  if (result == 0) result = found->count(&count);
  if (result != 0) {
    const char *why = NULL;
    found->error(result, &why);
    snprintf(text, sizeof text, "driver for %s, but: %s", version, why != NULL ? why : "unknown error");
    return answer(version, json_array(), text);
  }
  snprintf(text, sizeof text, "driver for %s, %d device%s", version, count, count == 1 ? "" : "s");
  return answer(version, devices_of(found, count), text);
}

json_t *info_cuda(void) {
  driver found;
  char text[BNY_CUDA_LIBRARY_TEXT_BYTES];
  void *library = NULL;
  int version = 0;
  if (!bny_cuda_library_open(NULL, &library, &version, text)) return answer(NULL, json_array(), text);
  const size_t count = sizeof functions / sizeof functions[0];
  json_t *says = bny_cuda_library_find(library, version, functions, count, &found, text)
                     ? ask(&found, version)
                     : answer(NULL, json_array(), text);
  dlclose(library);
  return says;
}
