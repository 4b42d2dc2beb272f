/* SPDX-License-Identifier: Apache-2.0
 * A table of paths between devices as `nvidia-smi topo -m` prints it, before it becomes a model. */
#ifndef BNY_TOPO_MATRIX_H
#define BNY_TOPO_MATRIX_H

#include "topo/model/text.h"

enum { BNY_TOPO_MATRIX_MAX = 320 };

typedef struct bny_topo_matrix_cell {
  bny_topo_path path;
  int32_t links;       /* NVLinks */
  bool known, differs; /* differs: each half has another */
} bny_topo_matrix_cell;

typedef struct bny_topo_matrix_device {
  bny_topo_span name, system_name, cpus; /* empty: unknown */
  int32_t gpu;                           /* its number; -1: NIC */
  int32_t numa;                          /* -1: unknown */
  int line;                              /* line of its row; 0: no row */
} bny_topo_matrix_device;

/* Two devices that have different cells for each other, or NVLinks though one is a NIC. */
typedef struct bny_topo_matrix_difference {
  int a, b;
  bny_topo_matrix_cell there, back; /* in a's row, in b's row */
} bny_topo_matrix_difference;

typedef struct bny_topo_matrix {
  bny_topo_matrix_device devices[BNY_TOPO_MATRIX_MAX];
  int ndevices, ncolumns;                                               /* columns are the first ncolumns devices */
  int ntails;                                                           /* affinity columns */
  bny_topo_matrix_cell cells[BNY_TOPO_MATRIX_MAX][BNY_TOPO_MATRIX_MAX]; /* the same both ways */
  bny_topo_matrix_difference *differences;
  int32_t ndifferences, differences_capacity;
} bny_topo_matrix;

/* Adds a host with nodes and links whose paths match the matrix. What no machine can have becomes a note, and the
 * nearer path is taken. Returns false and *error without memory. */
bool bny_topo_matrix_model(const bny_topo_matrix *matrix, bny_topo *topo);

#endif
