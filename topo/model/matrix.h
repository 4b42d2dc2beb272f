/* SPDX-License-Identifier: Apache-2.0
 * The table of paths between devices that `nvidia-smi topo -m` prints, before a model is built from it. */
#pragma once

#include "topo/model/text.h"

enum { BNY_TOPO_MATRIX_MAX = 320 };

typedef struct bny_topo_matrix_cell {
  bny_topo_path path;
  int32_t links;       /* NVLinks */
  bool known, differs; /* differs: the two halves of the table disagree */
} bny_topo_matrix_cell;

typedef struct bny_topo_matrix_device {
  bny_topo_span name, system_name, cpus; /* empty: unknown */
  int32_t gpu;                           /* number of the GPU; -1: NIC */
  int32_t numa;                          /* -1: unknown */
  int line;                              /* input line of its row, 1-based; 0: no row */
} bny_topo_matrix_device;

/* A pair of devices whose two cells differ, or that has NVLinks although one device is a NIC. */
typedef struct bny_topo_matrix_difference {
  int a, b;
  bny_topo_matrix_cell there, back; /* in a's row, in b's row */
} bny_topo_matrix_difference;

typedef struct bny_topo_matrix {
  bny_topo_matrix_device devices[BNY_TOPO_MATRIX_MAX];
  int ndevices, ncolumns;                                               /* the first ncolumns devices have a column */
  int ntails;                                                           /* affinity columns */
  bny_topo_matrix_cell cells[BNY_TOPO_MATRIX_MAX][BNY_TOPO_MATRIX_MAX]; /* symmetric */
  bny_topo_matrix_difference *differences;
  int32_t ndifferences, differences_capacity;
} bny_topo_matrix;

/* Adds a host with nodes and links whose paths match the matrix. If cells contradict each other, the nearer path is
 * used and a note is added. Returns false if out of memory. */
bool bny_topo_matrix_model(const bny_topo_matrix *matrix, bny_topo *topo);
