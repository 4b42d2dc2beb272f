/* SPDX-License-Identifier: Apache-2.0
 * The names of values that a caller chooses, as they are printed, typed and written to files. kernels/formats.def has
 * those of value types, and plan/algorithms/algorithms.def those of algorithms. Everything is inline because programs
 * that link the shared library use the tables too. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "banyan.h"

typedef enum bny_collective {
  BNY_COMBINE,
  BNY_ALLGATHER,       /* ranges of bytes of the concatenated result */
  BNY_ALLGATHER_HEADS, /* boxes of rows: rank r's input is its heads of all tokens */
  BNY_SHIFT,           /* rank r's input is bytes [r * bytes, (r + 1) * bytes) of a virtual concatenation */
  BNY_BROADCAST,       /* bytes [0, bytes) */
  BNY_ALLREDUCE,       /* boxes of values: sums of [tokens][columns], where a column counts as a head */
  BNY_SELECT,          /* boxes of rows: a row is a list of `dim` pairs, the best of all ranks */
  BNY_BARRIER          /* slices are empty */
} bny_collective;

enum { BNY_COLLECTIVES = BNY_BARRIER + 1 };

/* A table of names ends with a row whose text is NULL. */
typedef struct bny_name {
  const char *text;
  int value;
} bny_name;

/* The name of a value, or "?" if the table has none. */
static inline const char *bny_name_of(const bny_name *names, int value) {
  while (names->text && names->value != value) names++;
  return names->text ? names->text : "?";
}

static inline bool bny_name_find(const bny_name *names, const char *text, int *value) {
  while (names->text && strcmp(names->text, text) != 0) names++;
  if (names->text) *value = names->value;
  return names->text != NULL;
}

/* Declares the table bny_THING_names, its reader bny_THING_name() and its parser bny_THING_parse(). */
#define BNY_NAMES(type, thing, ...)                                                                                 \
  static const bny_name bny_##thing##_names[] = {__VA_ARGS__, {NULL, 0}};                                           \
  static inline const char *bny_##thing##_name(type value) { return bny_name_of(bny_##thing##_names, (int)value); } \
  static inline bool bny_##thing##_parse(const char *text, type *value) {                                           \
    int found;                                                                                                      \
    if (!bny_name_find(bny_##thing##_names, text, &found)) return false;                                            \
    *value = (type)found;                                                                                           \
    return true;                                                                                                    \
  }

/* BANYAN_PASS: attention over ranks moves partials of queries, or keys. */
typedef enum bny_pass_form { BNY_PASS_AUTO, BNY_PASS_QUERIES, BNY_PASS_KEYS } bny_pass_form;

BNY_NAMES(bny_pass_form, pass_form, {"auto", BNY_PASS_AUTO}, {"queries", BNY_PASS_QUERIES}, {"keys", BNY_PASS_KEYS})
BNY_NAMES(bny_collective, collective, {"combine", BNY_COMBINE}, {"allgather", BNY_ALLGATHER},
          {"allgather-heads", BNY_ALLGATHER_HEADS}, {"shift", BNY_SHIFT}, {"broadcast", BNY_BROADCAST},
          {"allreduce", BNY_ALLREDUCE}, {"select", BNY_SELECT}, {"barrier", BNY_BARRIER})
BNY_NAMES(banyan_dtype, dtype, {"unset", 0}, {"f32", BANYAN_F32}, {"f16", BANYAN_F16}, {"bf16", BANYAN_BF16},
          {"e4m3", BANYAN_E4M3}, {"e5m2", BANYAN_E5M2}, {"i8", BANYAN_I8})
BNY_NAMES(banyan_scatter, scatter, {"none", BANYAN_SCATTER_NONE}, {"root", BANYAN_SCATTER_ROOT},
          {"heads", BANYAN_SCATTER_HEADS}, {"tokens", BANYAN_SCATTER_TOKENS})
BNY_NAMES(banyan_order, order, {"plan", BANYAN_ORDER_PLAN}, {"canonical", BANYAN_ORDER_CANONICAL},
          {"exact", BANYAN_ORDER_EXACT})
