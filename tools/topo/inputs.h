/* SPDX-License-Identifier: Apache-2.0
 * The inputs of one call: files, descriptions, "-" for standard input, and folders of files. */
#ifndef BNY_TOOLS_TOPO_INPUTS_H
#define BNY_TOOLS_TOPO_INPUTS_H

#include "tools/common/util.h"

typedef struct topo_inputs {
  char **names; /* a name that the caller gave, or FOLDER/FILE */
  int32_t count, capacity;
} topo_inputs;

/* Adds an input. A folder stands for its files in the order of their names, without hidden ones and folders in it.
 * Returns false and *error without memory, or if a folder cannot be read or has no file. */
bool topo_inputs_add(topo_inputs *inputs, const char *name, tool_error *error);

void topo_inputs_free(topo_inputs *inputs);

#endif
