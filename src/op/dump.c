/* SPDX-License-Identifier: Apache-2.0
 * Writes the file of BANYAN_DUMP: the shape and inputs of a combine that failed for bad data or a mismatch, for
 * banyan-perf --replay. Lines of text describe the shape. They are followed without gaps by a validity byte for each
 * token, the rows' values, lse (or m), d, and scales of heads, if the caller has them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "op/valid.h"
#include "op/operation.h"

static void print_partial(FILE *file, const char *name, const banyan_partial *p) {
  fprintf(file, "%s %s %d %s %d %d %u %.17g %d %d\n", name, bny_dtype_name(p->values_dtype), (int)p->values_kind,
          bny_dtype_name(p->stats_dtype), (int)p->stats_kind, (int)p->base, p->empty, p->empty_below, p->lse != NULL,
          p->values_scale == NULL  ? 0
          : p->values_scale_stride ? 2
                                   : 1);
}

/* Writes one array of [tokens][heads] items of `bytes` bytes. Masked rows are written as zeros, because they are never
 * read. */
static void write_rows(FILE *file, const void *array, int64_t token_bytes, int64_t head_bytes, size_t bytes,
                       const bny_box *box, const uint8_t *mask) {
  for (int32_t t = 0; t < box->tokens; t++)
    for (int32_t h = 0; h < box->heads; h++)
      if (mask[t])
        fwrite((const char *)array + t * token_bytes + h * head_bytes, 1, bytes, file);
      else
        for (size_t i = 0; i < bytes; i++) putc(0, file);
}

static void write_input(FILE *file, const banyan_partial *in, const bny_box *box, const uint8_t *mask) {
  int64_t value = (int64_t)bny_dtype_bytes(in->values_dtype), stat = (int64_t)bny_dtype_bytes(in->stats_dtype);
  fwrite(mask, 1, (size_t)box->tokens, file);
  write_rows(file, in->values, in->values_token_stride * value, in->values_head_stride * value,
             (size_t)(value * box->value_dim), box, mask);
  const void *stats[2] = {in->lse, in->stats_kind == BANYAN_STATS_MAX_SUM ? in->sum : NULL};
  for (int i = 0; i < 2; i++)
    if (stats[i])
      write_rows(file, stats[i], in->stats_token_stride * stat, in->stats_head_stride * stat, (size_t)stat, box, mask);
  for (int32_t h = 0; in->values_scale && h < (in->values_scale_stride ? box->heads : 1); h++)
    fwrite(&in->values_scale[h * in->values_scale_stride], sizeof *in->values_scale, 1, file);
}

static void write_all(FILE *file, const banyan_comm *comm, const bny_call *key, const bny_op_memory *memory,
                      const bny_box *box, banyan_status status, const uint8_t *mask) {
  static const banyan_partial none = {0};
  const char *wire = key->order == BANYAN_ORDER_EXACT ? "unset" : bny_wire_formats[key->wire].name;
  fprintf(file, "banyan dump 1\nrank %d %d\nstatus %d\ncall %d %d %d %s %s %s %d %s\n", comm->rank, comm->nranks,
          (int)status, box->tokens, box->heads, box->value_dim, wire, bny_scatter_name(key->scatter),
          bny_order_name(key->order), key->root, key->algorithm[0] ? key->algorithm : "-");
  print_partial(file, "in", memory->in);
  print_partial(file, "out", memory->out ? memory->out : &none);
  fprintf(file, "data\n");
  if (!bny_box_is_empty(box)) write_input(file, memory->in, box, mask);
}

void bny_op_dump(const banyan_comm *comm, const bny_call *key, const bny_op_memory *memory, banyan_status status) {
  if (!comm->dump || (status != BANYAN_ERR_DATA && status != BANYAN_ERR_MISMATCH)) return;
  bool known = key->collective == BNY_COMBINE && memory->in && bny_dtype_bytes(memory->in->values_dtype) > 0;
  if (!known || comm->device.engine) return;
  char path[1024] = "", why[BNY_ERROR_TEXT_BYTES];
  snprintf(why, sizeof why, "%s", banyan_last_error());
  bny_box box = {memory->tokens, key->all_heads, key->value_dim};
  /* The tokens of an operation that could not be made may not be set yet. */
  if (memory->valid && memory->valid->tokens &&
      bny_valid_count(memory->valid, key->all_tokens, &box.tokens) != BANYAN_OK)
    box.tokens = memory->tokens;
  uint8_t *mask = malloc((size_t)box.tokens + 1);
  if (mask) memset(mask, 1, (size_t)box.tokens + 1);
  bool read =
      mask && (!bny_valid_selects(memory->valid) || bny_valid_read(memory->valid, box.tokens, mask) == BANYAN_OK);
  int fd =
      read && bny_log_path(comm->dump, comm->rank, path, sizeof path) ? bny_file_open(path, 0, BNY_FILE_REGULAR) : -1;
  FILE *file = fd >= 0 && ftruncate(fd, 0) == 0 ? fdopen(fd, "w") : NULL;
  bny_file_guard guard;
  bny_file_guard_begin(&guard);
  if (file) write_all(file, comm, key, memory, &box, status, mask);
  bool good = file && !ferror(file);
  if (file) good = fclose(file) == 0 && good;
  bny_file_guard_end(&guard);
  if (!file && fd >= 0) close(fd);
  free(mask);
  if (good)
    bny_log(BNY_LOG_INFO, "the input of the failed combine is in %s: banyan-perf --replay runs it again", path);
  else
    bny_log(BNY_LOG_WARN, "the input of the failed combine cannot be written to %s: %s", path[0] ? path : comm->dump,
            bny_file_error(errno));
  bny_fail(status, "%s", why);
}
