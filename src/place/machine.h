/* SPDX-License-Identifier: Apache-2.0
 *
 * The identity of a machine, used to reject figures that were measured on another one. It stays the same over boots, in
 * containers, and for processes that may use only some CPUs. */
#ifndef BNY_PLACE_MACHINE_H
#define BNY_PLACE_MACHINE_H

#include <stdint.h>

typedef struct bny_machine {
  char cpu[128]; /* the model; "": unknown */
  int32_t packages, numa_nodes, cores;
  char gpus[1024]; /* PCI bus and model ids such as "0000:1b:00.0 10de:2330, 0000:43:00.0 10de:2330" */
  char nics[1024]; /* network adapters in the same form; names of interfaces differ from container to container */
} bny_machine;

/* Fills *machine from the files below `root`, which is "" except in tests. What cannot be read is "" or 0. */
void bny_machine_find(const char *root, bny_machine *machine);

#endif
