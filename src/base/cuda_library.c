/* SPDX-License-Identifier: Apache-2.0
 * Opens libcuda.so.1 and looks up functions in the versions that the caller asks for. */
#include "base/cuda_library.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Types and numbers of the driver's ABI: 0 is success in both enumerations. */
typedef int (*version_function)(int *version);
typedef int (*look_up_function)(const char *name, void **function, int version, uint64_t flags, int *outcome);
enum { LEGACY_STREAM = 1 };

/* ISO C does not convert a pointer to an object into one to a function. */
static bool address_of(void *library, const char *name, void *function) {
  void *address = dlsym(library, name);
  memcpy(function, &address, sizeof address);
  return address != NULL;
}

static bool fail(char *text, const char *what, const char *path, const char *rest) {
  snprintf(text, BNY_CUDA_LIBRARY_TEXT_BYTES, "%s%.300s%s", what, path, rest);
  return false;
}

bool bny_cuda_library_open(const char *path, void **library, int *version, char text[BNY_CUDA_LIBRARY_TEXT_BYTES]) {
  version_function get_version;
  if (!path) path = "libcuda.so.1";
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!opened) {
    const char *reason = dlerror();
    if (reason && !strstr(reason, "No such file")) return fail(text, "CUDA's driver cannot be loaded: ", reason, "");
    return fail(text, "", path, " is not there: no NVIDIA driver on this machine (or in this container)");
  }
  bool found = address_of(opened, "cuDriverGetVersion", &get_version);
  if (found && get_version(version) == 0) {
    *library = opened;
    return true;
  }
  dlclose(opened);
  if (!found) return fail(text, "", path, " has no cuDriverGetVersion: not CUDA's driver");
  return fail(text, "cuDriverGetVersion failed: CUDA's driver does not work", "", "");
}

/* Drivers since CUDA 12 look functions up by version. Older ones have them under names, the newest with the suffix
 * _v2. */
static void *find(void *library, look_up_function look_up, const char *name, int version) {
  void *function = NULL;
  int outcome = 0;
  char newest[64];
  if (look_up) return look_up(name, &function, version, LEGACY_STREAM, &outcome) == 0 && outcome == 0 ? function : NULL;
  snprintf(newest, sizeof newest, "%s_v2", name);
  function = dlsym(library, newest);
  return function ? function : dlsym(library, name);
}

bool bny_cuda_library_find(void *library, int version, const bny_cuda_function *functions, size_t count,
                           void *functions_of, char text[BNY_CUDA_LIBRARY_TEXT_BYTES]) {
  look_up_function look_up = NULL;
  if (!address_of(library, "cuGetProcAddress_v2", &look_up) && version >= 12000)
    return fail(text, "the NVIDIA driver has no cuGetProcAddress_v2: not CUDA's driver", "", "");
  for (size_t i = 0; i < count; i++) {
    void *function = find(library, look_up, functions[i].name, functions[i].version);
    if (!function && functions[i].needed) {
      snprintf(text, BNY_CUDA_LIBRARY_TEXT_BYTES, "the NVIDIA driver (CUDA %d.%d) has no %s", version / 1000,
               version % 1000 / 10, functions[i].name);
      return false;
    }
    memcpy((char *)functions_of + functions[i].offset, &function, sizeof function);
  }
  return true;
}
