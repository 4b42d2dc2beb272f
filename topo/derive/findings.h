/* SPDX-License-Identifier: Apache-2.0
 * The files that look for findings share this: the list, the labels of nodes, and comparison with siblings. */
#ifndef BNY_TOPO_FINDINGS_H
#define BNY_TOPO_FINDINGS_H

#include "topo/derive/derive.h"

enum { BNY_TOPO_LABEL_BYTES = 120, BNY_TOPO_FACTS_MAX = 32 };

#define BNY_TOPO_ALIKE 0.95 /* a speed below this fraction of another counts as slower */

/* A fact and the nodes that it holds for. What to do depends on the maker of the nodes, too. */
typedef struct bny_topo_fact {
  char *text;
  const char *advice;
  int32_t *nodes;
  int32_t count, capacity;
} bny_topo_fact;

/* The search for the findings of one check. Nodes with the same fact become one finding. */
typedef struct bny_topo_finder {
  bny_topo_derivation *d;
  const bny_topo_finding_kind *kind;
  bny_topo_fact facts[BNY_TOPO_FACTS_MAX];
  int32_t nfacts;
  int32_t more; /* facts beyond the limit, which are only counted */
  bool no_memory;
} bny_topo_finder;

/* Adds a fact about a node; -1: the whole model. The text follows the node's label and a colon. */
void bny_topo_find(bny_topo_finder *s, int32_t node, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Writes "host3 GPU2", or "GPU2" if there is only one host. A port is labelled by its NIC. Returns `text`. */
const char *bny_topo_find_label(const bny_topo_derivation *d, int32_t node, char text[BNY_TOPO_LABEL_BYTES]);
const char *bny_topo_members_word(const bny_topo_derivation *d);             /* "GPU", "rank" */
const char *bny_topo_plural(int32_t count);                                  /* "", "s" */
const char *bny_topo_links_word(const bny_topo_derivation *d, int32_t node); /* "NVLink", "xGMI link" */

bool bny_topo_is_amd(const bny_topo_derivation *d, int32_t gpu); /* or its host's GPUs, if it does not say */

/* A GPU that is sold on one kind of board, by its PCI device id or name. NULL: another. */
typedef struct bny_topo_board {
  const char *model;
  int32_t links; /* of each GPU, to the others */
  int32_t gpus;  /* of the board; 0: there are boards with fewer */
} bny_topo_board;

const bny_topo_board *bny_topo_board_of(const char *model);

bool bny_topo_is_rdma(const char *nic);                /* by its name: a socket has no RDMA */
bool bny_topo_same_stem(const char *a, const char *b); /* "mlx5_0" and "mlx5_11": equal up to the first digit */

/* Returns the most frequent value, the greatest of several, and in *times how often it occurs. Sorts the values. */
double bny_topo_usual(double *values, int32_t count, int32_t *times);

/* Returns the next note of that kind from index *at on, and moves *at behind it; NULL after the last. */
const bny_topo_note *bny_topo_find_note(const bny_topo *topo, bny_topo_note_kind kind, int32_t *at);
bool bny_topo_is_found(const bny_topo_derivation *d, const char *id, int32_t node); /* by a row above */
bool bny_topo_is_noted(const bny_topo *topo, bny_topo_note_kind kind, int32_t node);

/* A function for each row of findings.def. */
#define BNY_TOPO_FINDING(id, severity, function, meaning, advice) void bny_topo_find_##function(bny_topo_finder *s);
#define BNY_TOPO_FINDING_OF_TOOL(id, severity, meaning, advice)
#include "topo/derive/findings.def"
#undef BNY_TOPO_FINDING
#undef BNY_TOPO_FINDING_OF_TOOL

#endif
