/* SPDX-License-Identifier: Apache-2.0
 * The edges of all delivered boxes cut the call into a grid of cells, and each box is a block of cells. Each delivery
 * marks its cells. If the same rank has marked a cell, it is delivered twice. If another rank has, it must hold the
 * same expression. The work is proportional to the delivered cells, not to pairs of deliveries. */
#include "tools/prove/prove.h"

#include <stdlib.h>

typedef struct axis {
  int64_t *edges; /* ascending, distinct */
  int64_t count;
} axis;

typedef struct range {
  int64_t begin, end;
} range;

typedef struct mark {
  int64_t first, last; /* index of a delivery + 1; 0: none */
} mark;

/* Rows extend over two axes, tokens and heads; bytes over the first only. */
static range extent(const bny_request *request, const bny_slice *slice, bool second) {
  if (!bny_call_has_rows(&request->call))
    return second ? (range){0, 1} : (range){(int64_t)slice->byte0, (int64_t)(slice->byte0 + slice->bytes)};
  return second ? (range){slice->head0, (int64_t)slice->head0 + slice->heads}
                : (range){slice->token0, (int64_t)slice->token0 + slice->tokens};
}

static const bny_slice *slice_of(const bny_plan *const *plans, const bny_delivery *one) {
  return &plans[one->rank]->steps[one->step].slice;
}

static int ascending(const void *a, const void *b) {
  int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
  return left < right ? -1 : left > right;
}

static axis axis_make(const bny_request *request, const bny_plan *const *plans, const bny_delivery *deliveries,
                      int64_t count, bool second) {
  axis made = {tool_new(2 * (size_t)count, sizeof *made.edges), 0};
  for (int64_t i = 0; i < count; i++) {
    range along = extent(request, slice_of(plans, &deliveries[i]), second);
    made.edges[2 * i] = along.begin;
    made.edges[2 * i + 1] = along.end;
  }
  qsort(made.edges, (size_t)(2 * count), sizeof *made.edges, ascending);
  for (int64_t i = 0; i < 2 * count; i++)
    if (made.count == 0 || made.edges[made.count - 1] != made.edges[i]) made.edges[made.count++] = made.edges[i];
  return made;
}

static int64_t edge_find(const axis *within, int64_t edge) {
  const int64_t *found = bsearch(&edge, within->edges, (size_t)within->count, sizeof edge, ascending);
  return found ? found - within->edges : 0; /* always found: all edges are listed */
}

static range cells_of(const axis *within, range along) {
  return (range){edge_find(within, along.begin), edge_find(within, along.end)};
}

static banyan_status mark_all(const bny_request *request, const bny_plan *const *plans, const bny_delivery *deliveries,
                              int64_t count, const axis axes[2], mark *marks) {
  for (int64_t i = 0; i < count; i++) {
    const bny_delivery *one = &deliveries[i];
    const bny_slice *slice = slice_of(plans, one);
    range down = cells_of(&axes[0], extent(request, slice, false));
    range over = cells_of(&axes[1], extent(request, slice, true));
    for (int64_t row = down.begin; row < down.end; row++)
      for (int64_t column = over.begin; column < over.end; column++) {
        mark *cell = &marks[row * axes[1].count + column];
        const bny_delivery *first = cell->first ? &deliveries[cell->first - 1] : one;
        const bny_delivery *last = cell->last ? &deliveries[cell->last - 1] : NULL;
        if (last && last->rank == one->rank)
          return bny_plan_fail(plans[one->rank], one->step, "it delivers again what step %d delivers", last->step);
        if (first->value != one->value)
          return bny_plan_fail(plans[one->rank], one->step, "it delivers another expression than rank %d, step %d",
                               first->rank, first->step);
        if (!cell->first) cell->first = i + 1;
        cell->last = i + 1;
      }
  }
  return BANYAN_OK;
}

banyan_status bny_deliveries_check(const bny_request *request, const bny_plan *const *plans,
                                   const bny_delivery *deliveries, int64_t count) {
  axis axes[2] = {axis_make(request, plans, deliveries, count, false),
                  axis_make(request, plans, deliveries, count, true)};
  mark *marks = tool_new((size_t)(axes[0].count * axes[1].count), sizeof *marks);
  return mark_all(request, plans, deliveries, count, axes, marks);
}
