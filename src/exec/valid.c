/* SPDX-License-Identifier: Apache-2.0
 * Encodes and finishes boxes in which some rows are masked, one range of valid rows after another. */
#include "exec/run.h"

#include <math.h>
#include <string.h>

/* The box at (token, head) of a view. */
static bny_wire_view view_at(const bny_wire_view *view, bny_wire wire, int32_t value_dim, int32_t token, int32_t head) {
  int64_t row = token * view->token_stride + head;
  bny_wire_view moved = *view;
  moved.m += row;
  moved.d += row;
  moved.n = (char *)view->n + (size_t)row * bny_wire_row_bytes(wire, value_dim);
  return moved;
}

static void write_empty(const bny_box *box, bny_wire wire, const bny_wire_view *to) {
  size_t row_bytes = bny_wire_row_bytes(wire, box->value_dim);
  for (int32_t t = 0; t < box->tokens; t++) {
    int64_t row = t * to->token_stride;
    for (int32_t h = 0; h < box->heads; h++) {
      to->m[row + h] = -INFINITY;
      to->d[row + h] = 0;
    }
    if (row_bytes) memset((char *)to->n + (size_t)row * row_bytes, 0, (size_t)box->heads * row_bytes);
  }
}

int64_t bny_valid_encode(const bny_kernels *kernels, const bny_box *box, const banyan_partial *in, int32_t token0,
                         int32_t head0, bny_wire wire, const uint8_t *valid, const bny_wire_view *to) {
  for (int32_t first = 0, end; first < box->tokens; first = end) {
    for (end = first + 1; end < box->tokens && !valid[end] == !valid[first];) end++;
    bny_box part = {end - first, box->heads, box->value_dim};
    bny_wire_view there = view_at(to, wire, box->value_dim, first, 0);
    if (!valid[first]) {
      write_empty(&part, wire, &there);
      continue;
    }
    int64_t bad = kernels->encode(&part, in, token0 + first, head0, wire, &there);
    if (bad >= 0) return (int64_t)first * box->heads + bad;
  }
  return -1;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* A merge of rows that are not all empty has d > 0. */
static bool is_empty(const bny_valid_merge *merge, int32_t token, int32_t head) {
  for (int i = 0; i < merge->count; i++) {
    const bny_wire_view *source = &merge->sources[i];
    if (source->d[token * source->token_stride + head] != 0) return false;
  }
  return true;
}

/* Returns how many rows from `head` on are all empty or all not empty; *empty is set accordingly. */
static int32_t count_alike(const bny_valid_merge *merge, const bny_box *box, int32_t token, int32_t head, bool *empty) {
  int32_t end = head + 1;
  *empty = is_empty(merge, token, head);
  while (end < box->heads && is_empty(merge, token, end) == *empty) end++;
  return end - head;
}

/* Returns how many tokens from `token` on have no empty row; 0 if it has one. */
static int32_t count_full(const bny_valid_merge *merge, const bny_box *box, int32_t token) {
  int32_t end = token;
  bool empty = false;
  while (end < box->tokens && count_alike(merge, box, end, 0, &empty) == box->heads && !empty) end++;
  return end - token;
}

static int64_t finish_at(const bny_valid_merge *merge, const bny_box *part, int32_t token, int32_t head, int32_t token0,
                         int32_t head0) {
  bny_wire_view sources[BNY_MERGE_SOURCES_MAX];
  for (int i = 0; i < merge->count; i++)
    sources[i] = view_at(&merge->sources[i], merge->wire, part->value_dim, token, head);
  return merge->kernels->merge_finish(part, merge->wire, merge->count, sources, merge->round_nodes, merge->out,
                                      token0 + token, head0 + head);
}

int64_t bny_valid_finish(const bny_valid_merge *merge, const bny_box *box, int32_t token0, int32_t head0) {
  int64_t unfit = -1;
  for (int32_t token = 0; token < box->tokens;) {
    int32_t full = count_full(merge, box, token), heads = box->heads;
    for (int32_t head = 0; head < box->heads; head += heads) {
      bool empty = false;
      heads = full ? box->heads : count_alike(merge, box, token, head, &empty);
      if (empty) continue;
      bny_box part = {full ? full : 1, heads, box->value_dim};
      int64_t row = finish_at(merge, &part, token, head, token0, head0);
      if (row >= 0 && unfit < 0) unfit = (token + row / heads) * box->heads + head + row % heads;
    }
    token += full ? full : 1;
  }
  return unfit;
}
