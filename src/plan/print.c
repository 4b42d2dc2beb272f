/* SPDX-License-Identifier: Apache-2.0
 * Prints a plan as text, one line for each step. */
#include <string.h>

#include "plan/plan.h"
#include "base/status.h"

typedef struct page {
  char *text;
  size_t bytes, length;
} page;

/* Prints "tokens 0+4 heads 8+2" for tokens 0 to 3 of heads 8 and 9, or "bytes 128+64". */
static void print_slice(page *sheet, const bny_plan *plan, const bny_slice *slice) {
  if (bny_collective_has_rows(plan->collective))
    bny_append(sheet->text, sheet->bytes, &sheet->length, "tokens %d+%d heads %d+%d", slice->token0, slice->tokens,
               slice->head0, slice->heads);
  else
    bny_append(sheet->text, sheet->bytes, &sheet->length, "bytes %zu+%zu", slice->byte0, slice->bytes);
}

static void print_sources(page *sheet, const bny_plan *plan, const bny_step *step) {
  for (int32_t i = 0; i < step->count; i++) {
    const bny_source *source = &plan->sources[step->first + i];
    const char *separator = i ? "," : "";
    if (source->message < 0)
      bny_append(sheet->text, sheet->bytes, &sheet->length, "%s slot %d", separator, source->slot);
    else
      bny_append(sheet->text, sheet->bytes, &sheet->length, "%s rank %d slot %d", separator,
                 plan->messages[source->message].peer, plan->messages[source->message].slot);
  }
}

static void print_step(page *sheet, const bny_plan *plan, const bny_step *step) {
  char *text = sheet->text;
  switch (step->kind) {
  case BNY_STEP_COPY:
  case BNY_STEP_MERGE:
    bny_append(text, sheet->bytes, &sheet->length, step->kind == BNY_STEP_COPY ? "copy    " : "merge   ");
    print_slice(sheet, plan, &step->slice);
    bny_append(text, sheet->bytes, &sheet->length, " to slot %d (%zu bytes at %zu)", step->slot,
               plan->slots[step->slot].bytes, plan->slots[step->slot].offset);
    if (step->kind == BNY_STEP_MERGE) {
      bny_append(text, sheet->bytes, &sheet->length, " from");
      print_sources(sheet, plan, step);
    }
    break;
  case BNY_STEP_SEND:
    bny_append(text, sheet->bytes, &sheet->length, "send    slot %d to rank%s", step->slot, step->count > 1 ? "s" : "");
    for (int32_t i = 0; i < step->count; i++)
      bny_append(text, sheet->bytes, &sheet->length, "%s %d", i ? "," : "", plan->peers[step->first + i]);
    break;
  case BNY_STEP_WAIT:
    bny_append(text, sheet->bytes, &sheet->length, "wait    rank %d slot %d (", plan->messages[step->message].peer,
               plan->messages[step->message].slot);
    print_slice(sheet, plan, &plan->messages[step->message].what.slice);
    bny_append(text, sheet->bytes, &sheet->length, ", %zu bytes at %zu)", plan->messages[step->message].what.bytes,
               plan->messages[step->message].what.offset);
    break;
  case BNY_STEP_DELIVER:
    bny_append(text, sheet->bytes, &sheet->length, "deliver ");
    print_slice(sheet, plan, &step->slice);
    bny_append(text, sheet->bytes, &sheet->length, " from");
    print_sources(sheet, plan, step);
    break;
  }
  bny_append(text, sheet->bytes, &sheet->length, "\n");
}

size_t bny_plan_print_head(const bny_plan *plan, char *text, size_t bytes) {
  size_t length = 0;
  if (bytes > 0) text[0] = 0;
  bny_append(text, bytes, &length, "%s of rank %d of %d by %s", bny_collective_name(plan->collective), plan->rank,
             plan->nranks, plan->algorithm);
  if (plan->collective == BNY_COMBINE)
    bny_append(text, bytes, &length, ", %s wire%s", bny_wire_formats[plan->wire].name,
               plan->round_nodes ? ", every merge rounded" : "");
  bny_append(text, bytes, &length, ": %d slots, %zu bytes of outbox\n", plan->nslots, plan->outbox_bytes);
  return length;
}

size_t bny_plan_print(const bny_plan *plan, char *text, size_t bytes) {
  page sheet = {.text = text, .bytes = bytes, .length = bny_plan_print_head(plan, text, bytes)};
  for (int32_t step = 0; step < plan->nsteps; step++) {
    bny_append(text, bytes, &sheet.length, "%3d ", step);
    print_step(&sheet, plan, &plan->steps[step]);
  }
  return sheet.length;
}
