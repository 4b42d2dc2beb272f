/* SPDX-License-Identifier: Apache-2.0
 * The driver is loaded when asked, so that this program runs without one, and never linked. Its functions are those of
 * CUDA's driver API, of which all versions have these. */
#include "tools/info/cuda.h"

#include <dlfcn.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

typedef struct driver {
  int (*init)(unsigned flags);
  int (*version)(int *version);
  int (*count)(int *count);
  int (*get)(int *device, int ordinal);
  int (*name)(char *name, int bytes, int device);
  int (*memory)(size_t *bytes, int device);
  int (*error)(int result, const char **text);
} driver;

/* The address of a function into `function`, which points to a pointer to it: ISO C converts none to the other. */
static bool find(void *library, const char *name, void *function) {
  void *address = dlsym(library, name);
  memcpy(function, &address, sizeof address);
  return address != NULL;
}

static bool load(void *library, driver *functions) {
  return find(library, "cuInit", &functions->init) && find(library, "cuDriverGetVersion", &functions->version) &&
         find(library, "cuDeviceGetCount", &functions->count) && find(library, "cuDeviceGet", &functions->get) &&
         find(library, "cuDeviceGetName", &functions->name) &&
         find(library, "cuDeviceTotalMem_v2", &functions->memory) &&
         find(library, "cuGetErrorString", &functions->error);
}

static json_t *answer(const char *version, json_t *devices, const char *text) {
  return json_pack("{s:s?, s:o, s:s}", "driver", version, "devices", devices, "text", text);
}

static json_t *devices_of(const driver *functions, int count) {
  json_t *devices = json_array();
  for (int i = 0; i < count; i++) {
    char name[128] = "unknown";
    size_t bytes = 0;
    int device;
    if (functions->get(&device, i) == 0 && functions->name(name, sizeof name, device) == 0) {
      functions->memory(&bytes, device);
    }
    json_array_append_new(devices, json_pack("{s:s, s:I}", "name", name, "bytes", (json_int_t)bytes));
  }
  return devices;
}

static json_t *ask(const driver *functions) {
  int number = 0, count = 0;
  char version[32], text[256];
  functions->version(&number);
  snprintf(version, sizeof version, "%d.%d", number / 1000, number % 1000 / 10);
  int result = functions->init(0);
  if (result == 0) {
    result = functions->count(&count);
  }
  if (result != 0) {
    const char *why = NULL;
    functions->error(result, &why);
    snprintf(text, sizeof text, "driver for %s, but: %s", version, why != NULL ? why : "unknown error");
    return answer(version, json_array(), text);
  }
  snprintf(text, sizeof text, "driver for %s, %d device%s", version, count, count == 1 ? "" : "s");
  return answer(version, devices_of(functions, count), text);
}

json_t *info_cuda(void) {
  driver functions;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    return answer(NULL, json_array(), "no driver: libcuda.so.1 is not there");
  }
  json_t *found = load(library, &functions)
                      ? ask(&functions)
                      : answer(NULL, json_array(), "libcuda.so.1 lacks functions of the driver API");
  dlclose(library);
  return found;
}
