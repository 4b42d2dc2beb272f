/* SPDX-License-Identifier: Apache-2.0
 * A table of paths between devices, as `nvidia-smi topo -m` prints it, on its way into a model. */
#ifndef BNY_TOPO_MATRIX_H
#define BNY_TOPO_MATRIX_H

#include "topo/text.h"

enum { BNY_TOPO_MATRIX_MAX = 320 };

typedef struct bny_topo_matrix_cell {
  bny_topo_path path;
  int32_t links; /* NVLinks */
  bool known;
} bny_topo_matrix_cell;

typedef struct bny_topo_matrix_device {
  bny_topo_span name, system_name, cpus; /* without bytes: not said */
  int32_t gpu;                           /* its number; -1: a NIC */
  int32_t numa;                          /* -1 not said */
  int line;                              /* of its row; 0: it has none */
} bny_topo_matrix_device;

typedef struct bny_topo_matrix {
  bny_topo_matrix_device devices[BNY_TOPO_MATRIX_MAX];
  int ndevices, ncolumns; /* columns are the first devices */
  int ntails;             /* columns of affinity */
  bny_topo_matrix_cell cells[BNY_TOPO_MATRIX_MAX][BNY_TOPO_MATRIX_MAX];
} bny_topo_matrix;

/* Nodes and links such that the paths between them are those of the matrix; false and *error if no machine has such. */
bool bny_topo_matrix_model(const bny_topo_matrix *matrix, bny_topo *topo, bny_topo_error *error);

#endif
