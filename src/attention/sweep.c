/* SPDX-License-Identifier: Apache-2.0
 * Attends to keys in a mapped file. The file may be larger than memory, so each key is read once for all rows of the
 * call, in the order of keys: leaf by leaf, and each leaf for all sequences, which may share it. Leaves have a fixed
 * length, and are added to a row in this order, so bits depend neither on threads nor on the read-ahead.
 *
 * The kernel reads what MADV_WILLNEED names while threads attend to earlier keys. MADV_COLD lets it drop keys that have
 * been read first, if memory is short. Neither changes the contents of memory. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "attention/job.h"

enum {
  LEAF_KEYS = 2048,  /* a multiple of the blocks of kernels and of the exact order */
  COLD = 20,         /* MADV_COLD and MADV_POPULATE_READ, which older C libraries lack */
  POPULATE_READ = 22 /* fails where a load would end the process: past the end of a file, or if a device fails */
};
_Static_assert(LEAF_KEYS % BNY_ATTENTION_BLOCK == 0 && LEAF_KEYS % BNY_ATTENTION_EXACT_KEYS == 0,
               "leaves are whole blocks");

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

/* Returns the keys of a part that any query of the sequence sees. */
static bny_attention_sight seen_of(const banyan_attention_desc *desc, int32_t part, int32_t sequence) {
  bny_query_range queries = bny_attention_queries(desc, sequence);
  int32_t keys = bny_attention_keys(bny_attention_part(desc, part), sequence), first = 0;
  if (queries.count == 0) return (bny_attention_sight){0};
  if (!bny_attention_hides_keys(desc)) return (bny_attention_sight){.end = keys};
  for (int32_t i = 0; i < part; i++) first += bny_attention_keys(&desc->parts[i], sequence);
  bny_attention_sight seen = bny_attention_sight_of(desc, sequence, queries.first);
  for (int32_t i = 1; desc->queries->tree_mask && i < queries.count; i++)
    seen.tree_bits |= bny_attention_sight_of(desc, sequence, queries.first + i).tree_bits;
  if (!desc->queries->tree_mask) {
    seen.end = bny_attention_sight_of(desc, sequence, queries.first + queries.count - 1).end;
    seen.tree_first = seen.end;
  }
  return bny_attention_part_sight(seen, first, keys);
}

/* Returns the first key from `key` on that some query sees or, with `sees` false, that none sees; `end` without one. */
static int64_t next_key(const bny_leaf *leaf, int64_t key, bool sees) {
  for (; key < leaf->end; key++)
    if ((bny_attention_sees(&leaf->seen, (int32_t)key) && (!leaf->mask || leaf->mask[key])) == sees) break;
  return key;
}

static int32_t longest_of(const banyan_attention_desc *desc, int32_t part) {
  int32_t longest = 0;
  for (int32_t b = 0; b < desc->batch; b++) {
    int32_t keys = bny_attention_keys(bny_attention_part(desc, part), b);
    longest = keys > longest ? keys : longest;
  }
  return longest;
}

/* Advances to the next leaf with keys that a query sees. */
static void next_leaf(const banyan_attention_desc *desc, bny_leaf *at) {
  for (at->sequence++;; at->sequence++) {
    if (at->sequence >= desc->batch) {
      at->sequence = 0;
      at->first += LEAF_KEYS;
    }
    while (at->part < bny_attention_parts(desc) &&
           (bny_attention_part(desc, at->part)->read_ahead_bytes == 0 || at->first >= longest_of(desc, at->part))) {
      at->part++;
      at->first = 0;
    }
    at->end = 0;
    if (at->part == bny_attention_parts(desc)) return;
    int32_t keys = bny_attention_keys(bny_attention_part(desc, at->part), at->sequence), before = 0;
    if (at->first >= keys) continue;
    const uint8_t *mask = bny_attention_mask(desc, at->sequence);
    for (int32_t i = 0; i < at->part; i++) before += bny_attention_keys(&desc->parts[i], at->sequence);
    at->mask = mask ? mask + before : NULL;
    at->seen = seen_of(desc, at->part, at->sequence);
    at->end = keys - at->first < LEAF_KEYS ? keys : (int32_t)(at->first + LEAF_KEYS);
    if (next_key(at, at->first, true) < at->end) return;
  }
}

/* ---- advice ------------------------------------------------------------------------------------------------------ */

/* Adjacent memory, which is advised in one call. */
typedef struct stretch {
  uintptr_t first, end;
  int advice, error;
  uintptr_t page;
} stretch;

/* EINVAL means that the system does not know the advice, or that memory may not be read. This tells them apart by
 * memory that can be read. */
static bool is_known(int advice, uintptr_t page) {
  static const char readable = 0;
  return madvise((void *)((uintptr_t)&readable / page * page), 1, advice) == 0;
}

static void flush(stretch *s) {
  uintptr_t first = s->first / s->page * s->page;
  if (s->end > s->first && madvise((void *)first, s->end - first, s->advice) != 0) {
    s->error = errno;
    if (errno == EINVAL) s->error = is_known(s->advice, s->page) ? EACCES : 0;
  }
  s->first = s->end = 0;
}

/* Only adjacent pages are joined, because others may be hidden from all queries. */
static void extend(stretch *s, uintptr_t first, uintptr_t end) {
  if (first / s->page > (s->end - 1) / s->page + 1 || (end - 1) / s->page + 1 < s->first / s->page) flush(s);
  if (s->end == 0) s->first = first;
  s->first = first < s->first ? first : s->first;
  s->end = end > s->end ? end : s->end;
}

/* The rows of a tensor: of k, of v, or of their scales. */
typedef struct tensor {
  const void *base;
  int64_t batch_stride, head_stride, token_stride, row_bytes, element_bytes;
} tensor;

static int advise_tensor(const banyan_attention_desc *desc, const bny_leaf *leaf, const tensor *t, int advice) {
  const banyan_kv_part *part = bny_attention_part(desc, leaf->part);
  const int32_t *pages = bny_attention_pages(part, leaf->sequence);
  stretch s = {.advice = advice, .page = (uintptr_t)sysconf(_SC_PAGESIZE)};
  for (int64_t key = leaf->first, count; (key = next_key(leaf, key, true)) < leaf->end; key += count) {
    int64_t within = pages ? key % part->pages.keys : key,
            outer = pages ? pages[key / part->pages.keys] : leaf->sequence;
    count = next_key(leaf, key, false) - key;
    if (pages && part->pages.keys - within < count) count = part->pages.keys - within;
    for (int32_t h = 0; h < desc->kv_heads; h++) {
      int64_t at = outer * t->batch_stride + h * t->head_stride + within * t->token_stride;
      int64_t last = at + (count - 1) * t->token_stride, low = last < at ? last : at, high = last < at ? at : last;
      extend(&s, (uintptr_t)t->base + (uintptr_t)(low * t->element_bytes),
             (uintptr_t)t->base + (uintptr_t)(high * t->element_bytes + t->row_bytes));
    }
  }
  flush(&s);
  return s.error;
}

/* Returns 0, or the errno with which the advice failed. Reading is then only slower, except after POPULATE_READ. */
static int advise(const banyan_attention_desc *desc, const bny_leaf *leaf, int advice) {
  const banyan_kv_part *part = bny_attention_part(desc, leaf->part);
  const banyan_kv_scales *scales = &part->scales;
  const int64_t bytes = (int64_t)bny_dtype_bytes(part->dtype), single = (int64_t)sizeof(float);
  bool is_plain = part->rows == BANYAN_KV_ROWS_PLAIN, is_scaled = scales->token_stride != 0;
  const tensor all[] = {
      {part->k, part->k_batch_stride, part->k_head_stride, part->k_token_stride,
       is_plain ? desc->head_dim * bytes : BNY_FLASHMLA_BYTES, bytes},
      {is_plain && part->v != part->k ? part->v : NULL, part->v_batch_stride, part->v_head_stride, part->v_token_stride,
       bny_attention_value_dim(desc) * bytes, bytes},
      {is_scaled ? scales->k : NULL, scales->batch_stride, scales->head_stride, scales->token_stride, single, single},
      {is_scaled ? scales->v : NULL, scales->batch_stride, scales->head_stride, scales->token_stride, single, single}};
  int error = 0;
  for (size_t i = 0; i < sizeof all / sizeof all[0] && error == 0; i++)
    if (all[i].base) error = advise_tensor(desc, leaf, &all[i], advice);
  return error;
}

static int64_t leaf_bytes(const banyan_attention_desc *desc, const bny_leaf *leaf) {
  return (leaf->end - leaf->first) * desc->kv_heads * (int64_t)bny_attention_key_bytes(desc);
}

static void read_ahead(bny_sweep *sweep) {
  const banyan_attention_desc *desc = sweep->job->desc;
  while (sweep->ahead.end > 0 && sweep->ahead_bytes < bny_attention_part(desc, sweep->ahead.part)->read_ahead_bytes) {
    advise(desc, &sweep->ahead, MADV_WILLNEED);
    sweep->ahead_bytes += leaf_bytes(desc, &sweep->ahead);
    next_leaf(desc, &sweep->ahead);
  }
}

/* ---- the sweep --------------------------------------------------------------------------------------------------- */

static bool reads_ahead(const banyan_attention_desc *desc) {
  for (int32_t i = 0; i < bny_attention_parts(desc); i++)
    if (bny_attention_part(desc, i)->read_ahead_bytes > 0) return true;
  return false;
}

banyan_status bny_sweep_begin(bny_job *job, bny_sweep *sweep) {
  const banyan_attention_desc *desc = job->desc;
  int64_t blocks = 0;
  *sweep = (bny_sweep){.job = job, .at = {.sequence = -1}};
  if (!reads_ahead(desc)) return BANYAN_OK;
  for (int32_t b = 0; b < desc->batch; b++) blocks += (int64_t)bny_job_chunks(job, b) * desc->kv_heads;
  job->kept_first = malloc((size_t)(desc->batch + 1) * sizeof *job->kept_first);
  job->kept = aligned_alloc(64, (size_t)(blocks + 1) * job->sums_bytes);
  if (!job->kept_first || !job->kept) {
    free(job->kept_first);
    free(job->kept);
    return bny_fail(BANYAN_ERR_MEMORY, "banyan_attention: out of memory for %" PRId64 " rows of a mapped file",
                    blocks * BNY_ATTENTION_HEADS_MAX);
  }
  int64_t first = 0;
  for (int32_t b = 0; b < desc->batch; b++) {
    job->kept_first[b] = first;
    first += (int64_t)bny_job_chunks(job, b) * desc->kv_heads;
  }
  next_leaf(desc, &sweep->at);
  sweep->ahead = sweep->at;
  read_ahead(sweep);
  return BANYAN_OK;
}

static void run_leaf(void *context, int32_t place) {
  bny_sweep *sweep = context;
  const bny_job *job = sweep->job;
  int32_t b = sweep->at.sequence, chunks = bny_job_chunks(job, b);
  bny_key_run run = {sweep->at.part, (int32_t)sweep->at.first, sweep->at.end};
  if (place == 0) read_ahead(sweep);
  for (;;) {
    int64_t number = atomic_fetch_add_explicit(&sweep->next, 1, memory_order_relaxed);
    if (number >= (int64_t)chunks * job->desc->kv_heads) return;
    bny_row_block block = {b, (int32_t)(number / chunks), (int32_t)(number % chunks)};
    bny_row_task rows;
    bny_job_set_rows(job, &block, &rows);
    bny_job_add_keys(job, &rows, &run, bny_job_kept(job, &block));
  }
}

static void write_all(bny_job *job) {
  for (bny_row_block at = {0, 0, 0}; at.sequence < job->desc->batch; at.sequence++)
    for (at.kv_head = 0; at.kv_head < job->desc->kv_heads; at.kv_head++)
      for (at.chunk = 0; at.chunk < bny_job_chunks(job, at.sequence); at.chunk++) {
        bny_row_task rows;
        bny_job_set_rows(job, &at, &rows);
        bny_job_write(job, &rows, bny_job_kept(job, &at));
      }
}

/* Makes sure that the keys of the leaf are in memory, or reports why they cannot be read. A load alone would end the
 * process. */
static banyan_status load(const bny_sweep *sweep) {
  const banyan_attention_desc *desc = sweep->job->desc;
  const bny_leaf *leaf = &sweep->at;
  int error = advise(desc, leaf, POPULATE_READ);
  if (error == 0) return BANYAN_OK;
  char part[32] = "";
  if (desc->parts) snprintf(part, sizeof part, " of parts[%d]", leaf->part);
  return bny_fail(
      BANYAN_ERR_SYSTEM,
      "banyan_attention: keys %" PRId64
      " to %d of sequence %d%s cannot be read (%s): is their file as long as its mapping, and its device well?",
      leaf->first, leaf->end - 1, leaf->sequence, part, strerror(error));
}

banyan_status bny_sweep_run(bny_sweep *sweep, bny_pool *pool) {
  bny_job *job = sweep->job;
  banyan_status status = BANYAN_OK;
  if (!job->kept) return BANYAN_OK;
  while (sweep->at.end > 0 && (status = load(sweep)) == BANYAN_OK) {
    atomic_store(&sweep->next, 0);
    bny_pool_run(pool, run_leaf, sweep);
    advise(job->desc, &sweep->at, COLD);
    sweep->ahead_bytes -= leaf_bytes(job->desc, &sweep->at);
    next_leaf(job->desc, &sweep->at);
  }
  if (status == BANYAN_OK) write_all(job);
  free(job->kept_first);
  free(job->kept);
  return status;
}
