/* SPDX-License-Identifier: Apache-2.0
 * Binds local attention to memory and starts it, whole or in slices, on the host or on the device. */
#include "op/attend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "attention/queries.h"
#include "base/status.h"

banyan_partial bny_attention_rows(const bny_attention_desc *desc) {
  banyan_partial rows;
  banyan_partial_init(&rows, NULL, BANYAN_F32, NULL, BANYAN_F32, desc->heads, desc->value_dim);
  rows.values_kind = BANYAN_VALUES_NUMERATOR;
  rows.stats_kind = BANYAN_STATS_MAX_SUM;
  rows.base = BANYAN_BASE_2;
  return rows;
}

/* Values, m and d follow one another in memory. There is at least one row, so m and d are never the same address. On
 * the host, only the rows that runs compute touch memory, however large the upper bound is. */
static banyan_status make_rows(bny_attention *attention) {
  size_t rows = (size_t)(attention->tokens_max > 0 ? attention->tokens_max : 1) * (size_t)attention->desc.heads;
  size_t row_bytes = bny_wire_row_bytes(attention->is_exact ? BNY_WIRE_EXACT : BNY_WIRE_F32, attention->desc.value_dim);
  size_t values = rows * row_bytes, bytes = values + 2 * rows * sizeof(float);
  void *memory = NULL;
  if (attention->engine) {
    banyan_status status = bny_engine_memory(attention->engine, BNY_USE_ROWS, bytes, &memory);
    if (status != BANYAN_OK) return status;
  } else {
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      return bny_fail(BANYAN_ERR_MEMORY, "out of memory for %zu rows of attention: %s", rows, strerror(errno));
    attention->rows = memory;
    attention->rows_bytes = bytes;
  }
  attention->out = bny_attention_rows(&attention->desc);
  if (attention->is_exact) attention->out.values_dtype = BNY_EXACT_ROWS;
  attention->out.values = memory;
  attention->out.lse = (char *)memory + values;
  attention->out.sum = (float *)attention->out.lse + rows;
  return BANYAN_OK;
}

static banyan_status make_certificate(bny_attention *attention) {
  size_t rows = (size_t)(attention->tokens_max > 0 ? attention->tokens_max : 1) * (size_t)attention->desc.heads;
  size_t width = 2 * BNY_CERTIFICATE_VALUES + 3;
  float *memory = attention->certified = calloc(rows * width, sizeof(float));
  if (!memory) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for the certificate of %zu rows", rows);
  memory += rows * (BNY_CERTIFICATE_VALUES + 1);
  attention->certificate =
      (bny_certificate){memory, memory + rows * BNY_CERTIFICATE_VALUES, memory + rows * (BNY_CERTIFICATE_VALUES + 1)};
  return BANYAN_OK;
}

banyan_partial bny_attention_certificate(const bny_attention *attention) {
  banyan_partial rows = bny_attention_rows(&attention->desc);
  rows.values = attention->certificate.values;
  rows.values_token_stride = (int64_t)attention->desc.heads * BNY_CERTIFICATE_VALUES;
  rows.values_head_stride = BNY_CERTIFICATE_VALUES;
  rows.lse = attention->certificate.m;
  rows.sum = attention->certificate.d;
  return rows;
}

banyan_partial bny_attention_certified(const bny_attention *attention, int32_t heads) {
  banyan_partial rows;
  float *values = attention->certified, *m = attention->certificate.values;
  int64_t all = (m - values) / (BNY_CERTIFICATE_VALUES + 1);
  banyan_partial_init(&rows, values, BANYAN_F32, values + all * BNY_CERTIFICATE_VALUES, BANYAN_F32, heads,
                      BNY_CERTIFICATE_VALUES);
  return rows;
}

void bny_attention_write_errors(const bny_attention *attention, int64_t rows) {
  for (int64_t i = 0; attention->desc.prune.error && i < rows; i++)
    attention->desc.prune.error[i] =
        attention->certifies ? bny_prune_error_of(attention->certified + i * BNY_CERTIFICATE_VALUES) : 0;
}

banyan_status bny_attention_bind_lists(bny_attention *attention, int32_t tokens, int32_t sequences, bny_lists *tops,
                                       bny_lists *pages) {
  const bny_attention_desc *desc = &attention->desc;
  bny_page_lists *lists = &attention->lists;
  int32_t k = desc->prune.top_pages;
  size_t rows = (size_t)(tokens > 0 ? tokens : 1) * (size_t)desc->heads;
  size_t count = (size_t)(sequences > 0 ? sequences : 1) * (size_t)desc->kv_heads, all = count * (size_t)k;
  size_t bytes = (2 * rows + 2 * all + (all + count + 1) / 2) * sizeof(int64_t);
  banyan_status status = bny_top_pages_reserve(
      &attention->top, desc,
      &(bny_top_pages_most){tokens, sequences, bny_pool_threads(attention->pool), attention->is_exact});
  if (status != BANYAN_OK) return status;
  if (bytes != attention->lists_bytes) { /* the same bytes have the same layout */
    int64_t *memory = calloc(1, bytes);
    if (!memory) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for the best %d pages of %zu lists", k, count);
    free(lists->indices);
    lists->indices = memory;
    attention->lists_bytes = bytes;
  }
  int64_t *zeros = lists->indices + all; /* nothing writes there */
  attention->tops = (float *)(void *)(zeros + rows);
  lists->scores = attention->tops + 2 * rows;
  lists->pages = (int32_t *)(void *)(lists->scores + all);
  lists->own = lists->pages + all;
  lists->own_counts = lists->own + all;
  *tops = (bny_lists){.scores = attention->tops,
                      .indices = zeros,
                      .offers = 1,
                      .in_stride = 1,
                      .out_stride = 1,
                      .best_scores = attention->tops + rows};
  *pages = (bny_lists){.scores = lists->scores,
                       .indices = lists->indices,
                       .rows = lists->pages,
                       .offers = k,
                       .in_stride = k,
                       .out_stride = k,
                       .own = lists->own,
                       .own_counts = lists->own_counts};
  attention->merged_tops = attention->tops + rows;
  return BANYAN_OK;
}

/* Describes what follows the attention; `why_apart` as for bny_attention_make(). */
static void describe(bny_attention *attention, const char *why_apart, bool alone) {
  char then[BNY_ERROR_TEXT_BYTES] = "";
  if (!alone)
    snprintf(then, sizeof then, "%s%.400s",
             !why_apart ? "; its rows are sent from within it" : "; then a combine of its own",
             why_apart && why_apart[0] ? why_apart : "");
  if (!attention->engine) {
    snprintf(attention->text, sizeof attention->text, "attention on the host (%s)%s", attention->kernels->name, then);
    return;
  }
  const bny_decode_plan *plan = &attention->decode.plan;
  snprintf(attention->text, sizeof attention->text, "attention by %s: %u blocks in %u CTA groups%s", plan->kernel->name,
           plan->blocks, plan->division.teams, then);
}

/* Copies the caller's description. A sink counts once over all ranks, so all ranks but the first leave it out if
 * `combines`. */
static void keep(const banyan_comm *comm, bny_attention *attention, const bny_attention_desc *desc, bool combines) {
  attention->desc = *desc;
  attention->combines = combines;
  for (int32_t i = 0; desc->parts && i < desc->part_count; i++) attention->parts[i] = desc->parts[i];
  if (desc->parts) attention->desc.parts = attention->parts;
  if (combines && comm->rank > 0) attention->desc.sinks = NULL;
  if (!desc->stream) attention->desc.stream = comm->stream;
}

/* Starts the threads with the first attention. If their number is not explicit, fewer may start. One thread needs a
 * pool only for the memory of pruning. */
static banyan_status make_pool(banyan_comm *comm, bool prunes) {
  if (comm->pool || (comm->threads == 1 && !prunes)) return BANYAN_OK;
  if (comm->explicit_threads) return bny_pool_make(comm->threads, &comm->own_cpus, &comm->pool);
  banyan_status status = bny_pool_make_some(comm->threads, &comm->own_cpus, &comm->pool);
  if (status == BANYAN_OK) comm->threads = bny_pool_threads(comm->pool);
  return status;
}

banyan_status bny_attention_make(banyan_comm *comm, const bny_attention_desc *desc, const banyan_partial *out,
                                 int32_t tokens_max, bool is_exact, const char *why_apart, bny_attention **attention) {
  bool within = !out && !why_apart;
  if (comm->device.engine && desc->prunes)
    return bny_fail(BANYAN_ERR_UNSUPPORTED, "desc.prune is set, and devices read all pages: leave it 0");
  bny_attention *made = calloc(1, sizeof *made);
  if (!made) return bny_fail(BANYAN_ERR_MEMORY, "out of memory for an operation");
  made->engine = comm->device.engine;
  made->finish = comm->exec->kernels;
  made->kernels = bny_attention_kernels_beside(made->finish->name);
  keep(comm, made, desc, !out);
  made->tokens_max = tokens_max;
  made->is_exact = is_exact;
  made->over_ranks = !out && comm->nranks > 1 && desc->prune.top_pages > 0;
  made->lists.rank = comm->rank;
  banyan_status status = made->engine ? BANYAN_OK : make_pool(comm, desc->prunes);
  made->pool = comm->pool;
  if (status == BANYAN_OK && desc->prunes && !made->over_ranks)
    status = bny_attention_reserve(desc, is_exact, made->pool);
  if (status != BANYAN_OK) {
    bny_attention_free(made);
    return status;
  }
  if (out)
    made->out = *out;
  else if (!within)
    status = make_rows(made);
  made->certifies = !out && desc->is_lossy;
  if (status == BANYAN_OK && made->certifies) status = make_certificate(made);
  if (status == BANYAN_OK && made->engine)
    status = bny_decode_make(made->engine, &made->desc, within ? NULL : &made->out, &made->decode);
  if (status != BANYAN_OK) {
    bny_attention_free(made);
    return status;
  }
  describe(made, why_apart, out != NULL);
  *attention = made;
  return BANYAN_OK;
}

bool bny_attention_rebind(const banyan_comm *comm, bny_attention *attention, const bny_attention_desc *desc) {
  const bny_attention_desc *old = &attention->desc;
  if (attention->engine && (desc->batch != old->batch || desc->tokens != old->tokens)) return false;
  if (desc->tokens > attention->tokens_max || desc->heads != old->heads || desc->value_dim != old->value_dim ||
      desc->prunes != old->prunes)
    return false;
  bny_attention_desc mine = *desc;
  if (attention->combines && comm->rank > 0) mine.sinks = NULL;
  if (attention->engine && !bny_decode_rebind(&attention->decode, &mine)) return false;
  keep(comm, attention, desc, attention->combines);
  return true;
}

void bny_attention_set_valid(bny_attention *attention, const banyan_valid_rows *valid) {
  attention->decode.call.tokens = valid->tokens;
  attention->decode.call.token_mask = valid->token_mask;
}

bny_attention_desc bny_attention_of_tokens(const bny_attention_desc *given, int32_t tokens) {
  bny_attention_desc desc = *given;
  if (desc.tokens <= tokens) return desc;
  if (!desc.queries.query_start_loc) desc.batch = tokens;
  desc.tokens = tokens;
  return desc;
}

banyan_status bny_attention_start(bny_attention *attention, const bny_device_combine *combine, int32_t tokens) {
  if (attention->engine) return bny_decode_start(&attention->decode, combine, attention->desc.stream);
  bny_attention_desc desc = bny_attention_of_tokens(&attention->desc, tokens);
  if (attention->combines) desc.prune.error = NULL; /* bny_attention_write_errors() writes it, by row of the result */
  if (attention->over_ranks)
    return bny_top_pages_weigh(attention->top, attention->kernels, attention->finish, &desc, &attention->out,
                               &attention->certificate, attention->pool, attention->tops);
  return bny_attention_run(attention->kernels, attention->finish, &desc, &attention->out,
                           attention->certifies ? &attention->certificate : NULL, attention->pool);
}

banyan_status bny_attention_start_chosen(bny_attention *attention, int32_t tokens) {
  bny_attention_desc desc = bny_attention_of_tokens(&attention->desc, tokens);
  bny_chosen_mark(&desc);
  return bny_attention_start(attention, NULL, tokens);
}

void bny_attention_offer(bny_attention *attention) {
  bny_top_pages_offer(attention->top, attention->merged_tops, &attention->lists);
}

banyan_status bny_attention_read_chosen(bny_attention *attention) {
  return bny_top_pages_read(attention->top, &attention->lists, attention->pool);
}

int32_t bny_attention_sequences(const bny_attention *attention, int32_t tokens) {
  const bny_attention_desc *desc = &attention->desc;
  return desc->queries.query_start_loc || desc->tokens <= tokens ? desc->batch : tokens;
}

static banyan_status check(const bny_attention_desc *desc, bool is_exact) {
  bool is_list = desc->selects && bny_chosen_is_list(desc);
  banyan_status status = is_list ? bny_chosen_offer(desc) : BANYAN_OK;
  if (status == BANYAN_OK) status = bny_attention_check_fields(desc, true);
  if (status == BANYAN_OK && desc->selects && !is_list) status = bny_chosen_offer(desc);
  return status == BANYAN_OK && is_exact ? bny_attention_check_blocks(desc) : status;
}

banyan_status bny_attention_check(const bny_attention *attention, int32_t tokens) {
  bny_attention_desc desc = bny_attention_of_tokens(&attention->desc, tokens);
  banyan_status status = check(&desc, attention->is_exact);
  if (status != BANYAN_OK || attention->combines) return status;
  return bny_attention_check_scale(&desc, &attention->out);
}

banyan_status bny_attention_check_desc(const banyan_comm *comm, const bny_attention_desc *desc, int32_t tokens,
                                       bool is_exact) {
  bny_attention_desc run = bny_attention_of_tokens(desc, tokens);
  if (comm->rank > 0) run.sinks = NULL;
  return check(&run, is_exact);
}

/* Advances a part past the keys of the sequences before `first`. */
static void skip_keys(banyan_kv_part *part, int32_t first) {
  if (part->seq_lens) part->seq_lens += first;
  if (part->key_first) part->key_first += first;
  if (part->pages.last_len) part->pages.last_len += first;
  if (part->pages.indptr)
    part->pages.indptr += first;
  else if (part->pages.table)
    part->pages.table += first * part->pages.table_stride;
  if (part->pages.table) return;
  part->k = bny_attention_moved(part->k, first * part->k_batch_stride, part->dtype);
  part->v = bny_attention_moved(part->v, first * part->v_batch_stride, part->dtype);
  part->scales.k = bny_attention_moved(part->scales.k, first * part->scales.batch_stride, BANYAN_F32);
  part->scales.v = bny_attention_moved(part->scales.v, first * part->scales.batch_stride, BANYAN_F32);
}

banyan_status bny_attention_start_slice(const bny_attention *attention, int32_t first, int32_t count) {
  bny_attention_desc desc = attention->desc;
  banyan_kv_part parts[BNY_ATTENTION_PARTS_MAX];
  banyan_partial out = attention->out;
  bny_certificate certificate = attention->certificate;
  const bny_bounds bounds = bny_attention_bounds(&desc);
  int64_t row = (int64_t)first * desc.heads;
  desc.batch = desc.tokens = count;
  desc.prune.error = NULL; /* as above */
  if (desc.prune.read) desc.prune.read += row;
  if (desc.prune.page_reads && !desc.kv.pages.table) desc.prune.page_reads += (int64_t)first * desc.prune.batch_pages;
  if (desc.prune.bounds && !desc.kv.pages.table)
    desc.prune.bounds += (int64_t)first * desc.prune.batch_pages * desc.kv_heads * bny_bounds_floats(&bounds);
  if (attention->certifies)
    certificate =
        (bny_certificate){certificate.values + row * BNY_CERTIFICATE_VALUES, certificate.m + row, certificate.d + row};
  desc.q = bny_attention_moved(desc.q, first * desc.q_batch_stride, desc.q_dtype);
  desc.rope.q = bny_attention_moved(desc.rope.q, first * desc.rope.batch_stride, desc.q_dtype);
  skip_keys(&desc.kv, first);
  for (int32_t i = 0; desc.parts && i < desc.part_count; i++) {
    parts[i] = desc.parts[i];
    skip_keys(&parts[i], first);
  }
  if (desc.parts) desc.parts = parts;
  int64_t row_bytes = (int64_t)bny_wire_row_bytes(BNY_WIRE_EXACT, desc.value_dim);
  if (attention->is_exact)
    out.values = (char *)out.values + first * out.stats_token_stride * row_bytes;
  else
    out.values = bny_attention_moved(out.values, first * out.values_token_stride, out.values_dtype);
  out.lse = bny_attention_moved(out.lse, first * out.stats_token_stride, out.stats_dtype);
  out.sum = bny_attention_moved(out.sum, first * out.stats_token_stride, out.stats_dtype);
  return bny_attention_run(attention->kernels, attention->finish, &desc, &out,
                           attention->certifies ? &certificate : NULL, attention->pool);
}

void bny_attention_free(bny_attention *attention) {
  if (!attention) return;
  if (attention->rows) munmap(attention->rows, attention->rows_bytes);
  free(attention->certified);
  free(attention->lists.indices);
  bny_top_pages_free(attention->top);
  free(attention);
}
