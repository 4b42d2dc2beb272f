/* SPDX-License-Identifier: Apache-2.0
 * Loads the module that calls MPI, so that the tools do not link it. */
#include "tools/common/mpi.h"

#include <dlfcn.h>
#include <stddef.h>

#define MODULE "banyan-mpi-tools.so"

const tool_mpi *tool_mpi_load(tool_error *error) {
#ifdef BNY_MPI_MODULE_FOLDER
  /* In the build folder, LD_LIBRARY_PATH finds the module. Open MPI's modules need global symbols. */
  void *module = dlopen(MODULE, RTLD_NOW | RTLD_GLOBAL);
  if (module == NULL) module = dlopen(BNY_MPI_MODULE_FOLDER "/" MODULE, RTLD_NOW | RTLD_GLOBAL);
  const tool_mpi *mpi = module != NULL ? dlsym(module, "banyan_mpi_tool") : NULL;
  if (mpi == NULL) tool_error_set(error, "cannot load MPI: %s; --ranks N needs none", dlerror());
  return mpi;
#else
  tool_error_set(error, "built without MPI, or without shared libraries: use --ranks N, or build with both");
  return NULL;
#endif
}
