/* SPDX-License-Identifier: Apache-2.0
 * banyan-perf --replay: runs a combine again whose inputs the ranks have written to the files of BANYAN_DUMP. */
#include <errno.h>
#include <string.h>

#include "tools/perf/perf.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 32 };

/* The file of one rank, see src/op/dump.c. */
typedef struct replay {
  int32_t rank, nranks, status;
  banyan_combine_desc desc;
  char algorithm[NAME_BYTES];
  banyan_partial in, out;
  int in_scales, has_out, out_scales;
  uint8_t *mask;
} replay;

static void name_file(const char *pattern, int32_t rank, char path[PATH_BYTES]) {
  size_t length = 0;
  bool has_rank = false;
  for (const char *at = pattern; *at && length < PATH_BYTES - NAME_BYTES; at++) {
    bool is_rank = at[0] == '%' && at[1] == 'r', is_percent = at[0] == '%' && at[1] == '%';
    if (is_rank)
      length += (size_t)snprintf(path + length, NAME_BYTES, "%d", rank);
    else
      path[length++] = *at;
    at += is_rank || is_percent;
    has_rank |= is_rank;
  }
  path[length] = 0;
  if (!has_rank) snprintf(path + length, NAME_BYTES, ".%d", rank);
}

static bool read_partial(FILE *file, const char *name, banyan_partial *p, int *has_stats, int *scales) {
  char word[8], values[NAME_BYTES], stats[NAME_BYTES];
  int values_kind, stats_kind, base;
  *p = (banyan_partial)BANYAN_PARTIAL_INIT;
  if (fscanf(file, "%7s %31s %d %31s %d %d %u %lf %d %d\n", word, values, &values_kind, stats, &stats_kind, &base,
             &p->empty, &p->empty_below, has_stats, scales) != 10 ||
      strcmp(word, name) != 0 || !bny_dtype_parse(values, &p->values_dtype) || !bny_dtype_parse(stats, &p->stats_dtype))
    return false;
  p->values_kind = (banyan_values)values_kind;
  p->stats_kind = (banyan_stats)stats_kind;
  p->base = (banyan_base)base;
  return true;
}

static bool read_head(FILE *file, replay *r) {
  char wire[NAME_BYTES], scatter[NAME_BYTES], order[NAME_BYTES];
  int has_in;
  banyan_combine_desc *desc = &r->desc;
  *desc = (banyan_combine_desc)BANYAN_COMBINE_DESC_INIT;
  if (fscanf(file, "banyan dump 1\nrank %d %d\nstatus %d\ncall %d %d %d %31s %31s %31s %d %31s\n", &r->rank, &r->nranks,
             &r->status, &desc->tokens, &desc->heads, &desc->value_dim, wire, scatter, order, &desc->root,
             r->algorithm) != 11 ||
      !bny_dtype_parse(wire, &desc->wire) || !bny_scatter_parse(scatter, &desc->scatter) ||
      !bny_order_parse(order, &desc->order) || !read_partial(file, "in", &r->in, &has_in, &r->in_scales) ||
      !read_partial(file, "out", &r->out, &r->has_out, &r->out_scales) || fgets(wire, sizeof wire, file) == NULL ||
      strcmp(wire, "data\n") != 0)
    return false;
  if (strcmp(r->algorithm, "-") != 0) desc->algorithm = r->algorithm;
  int64_t rows = (int64_t)desc->tokens * desc->heads;
  return r->rank >= 0 && r->rank < r->nranks && desc->tokens >= 0 && desc->heads >= 0 && desc->value_dim >= 0 &&
         desc->value_dim <= 65536 && rows <= INT32_MAX;
}

static size_t bytes_of(banyan_dtype dtype) {
  return dtype == BANYAN_F32 ? 4 : dtype == BANYAN_F16 || dtype == BANYAN_BF16 ? 2 : dtype != 0 ? 1 : 0;
}

/* Gives a partial contiguous memory, which lives as long as the process; `file`: what it holds. NULL: zeros. */
static bool place(replay *r, banyan_partial *p, int scales, FILE *file) {
  size_t heads = (size_t)r->desc.heads, rows = (size_t)r->desc.tokens * heads, dim = (size_t)r->desc.value_dim;
  size_t values = rows * dim * bytes_of(p->values_dtype), stats = rows * bytes_of(p->stats_dtype);
  float *scale = tool_new(heads, sizeof *scale);
  bool pair = p->stats_kind == BANYAN_STATS_MAX_SUM;
  p->values_token_stride = (int64_t)(heads * dim);
  p->values_head_stride = (int64_t)dim;
  p->stats_token_stride = (int64_t)heads;
  p->stats_head_stride = 1;
  p->values = tool_new(values, 1);
  p->lse = tool_new(stats, 1);
  p->sum = pair ? tool_new(stats, 1) : NULL;
  for (size_t h = 0; h < heads; h++) scale[h] = 1;
  if (scales) p->values_scale = scale;
  p->values_scale_stride = scales == 2;
  size_t count = scales == 2 ? heads : (size_t)(scales == 1);
  return file == NULL || rows == 0 ||
         (fread(p->values, 1, values, file) == values && fread(p->lse, 1, stats, file) == stats &&
          (!pair || fread(p->sum, 1, stats, file) == stats) && fread(scale, sizeof *scale, count, file) == count);
}

static bool read_file(const char *pattern, int32_t rank, bool whole, replay *r, tool_error *error) {
  char path[PATH_BYTES];
  name_file(pattern, rank, path);
  FILE *file = fopen(path, "re");
  if (file == NULL) return tool_error_set(error, "--replay: %s: %s", path, strerror(errno));
  bool good = read_head(file, r) && r->rank == rank;
  if (good && whole) {
    size_t tokens = (size_t)r->desc.tokens;
    r->mask = tool_new(tokens, 1);
    good = (tokens == 0 || r->desc.heads == 0 || fread(r->mask, 1, tokens, file) == tokens) &&
           place(r, &r->in, r->in_scales, file) && fgetc(file) == EOF && place(r, &r->out, r->out_scales, NULL);
  }
  fclose(file);
  return good || tool_error_set(error, "--replay: %s is no whole file of BANYAN_DUMP of rank %d", path, rank);
}

bool perf_replay_ranks(const char *pattern, int32_t *nranks, tool_error *error) {
  replay r = {.rank = 0};
  if (!read_file(pattern, 0, false, &r, error)) return false;
  *nranks = r.nranks;
  return true;
}

bool perf_replay(const char *pattern, const tool_world *world, bool *same, tool_error *error) {
  replay r = {.rank = 0};
  bool ok = read_file(pattern, world->rank, true, &r, error);
  if (ok && r.nranks != world->nranks)
    ok = tool_error_set(error, "--replay: the combine was one of %d ranks; here are %d", r.nranks, world->nranks);
  if (!tool_world_agree(world, ok, error)) return false;
  banyan_valid_rows valid = BANYAN_VALID_ROWS_INIT;
  valid.token_mask = r.mask;
  for (int32_t t = 0; t < r.desc.tokens; t++)
    if (!r.mask[t]) r.desc.valid = &valid;
  if (!r.has_out) r.out.lse = NULL;
  banyan_status status = banyan_combine(world->comm, &r.desc, &r.in, r.out.values_dtype != 0 ? &r.out : NULL);
  *same = (int32_t)status == r.status;
  printf("rank %d of %d: %d tokens x %d heads of %d values: %s%s%s%s%s\n", world->rank, world->nranks, r.desc.tokens,
         r.desc.heads, r.desc.value_dim, banyan_status_string(status), status != BANYAN_OK ? ": " : "",
         status != BANYAN_OK ? banyan_last_error() : "", *same ? "" : "; it was ",
         *same ? "" : banyan_status_string((banyan_status)r.status));
  return tool_flush(stdout) || tool_error_stdout(error);
}
