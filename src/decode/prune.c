/* SPDX-License-Identifier: Apache-2.0
 * Chooses the pages that a row block reads, and certifies what the others can hold. */
#include "decode/prune.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "decode/bounds.h"
#include "decode/decode.h"
#include "decode/queries.h"
#include "merge_math.h"
#include "base/status.h"

enum {
  ROWS = BNY_ATTENTION_HEADS_MAX,
  BINS = 2048,      /* scores by exponent and three bits of a float */
  LEAST_KEYS = 128, /* keys that are read at a time, at least */
  ZERO_BITS = 1002  /* epsilon 0: bny_attention_rescale() makes 0 of what is so far below */
};
static const double log2_e = 1.4426950408889634074;
static const double longest_value = 0x1p100; /* products with it neither overflow nor outlast ZERO_BITS */

/* A row block, and what is known of its pages. */
typedef struct block {
  const bny_attention_kernels *kernels;
  const banyan_attention_desc *desc;
  const bny_attention_task *task;
  int32_t sequence, kv_head, pages, page_keys;
  double factor;    /* from products to logits, log2 */
  double top[ROWS]; /* by row: the largest bound of a page's mass, log2 */
  float *weights;   /* [pages][rows]: bounds of masses relative to `top`; INFINITY: must be read */
  int32_t *order;   /* pages by falling score */
  int32_t *list;    /* pages of the keys that are read next */
  uint8_t *chosen;  /* [pages] */
  uint8_t *mask;    /* room for the mask of keys that are read next */
  int32_t forced;   /* pages that must be read: the first of `order` */
} block;

static int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static const float *bounds_of(const block *b, int32_t page) {
  return bny_bounds_at(b->desc, b->sequence, page, b->kv_head);
}

/* ---- bounds of pages --------------------------------------------------------------------------------------------- */

/* Queries with the sign of the scale, padded with zeros; for boxes the positive elements, which meet maxima, and then
 * the negative ones, which meet minima. */
typedef struct query_rows {
  float row[ROWS][2 * BNY_ATTENTION_HEAD_DIM_MAX];
  double length[ROWS];
} query_rows;

static void read_queries(const bny_attention_task *task, bool split, query_rows *to) {
  int32_t dim = task->head_dim, plain = dim - task->rope_dim;
  float q[BNY_ATTENTION_HEAD_DIM_MAX], sign = task->scale_log2 * task->k_scale < 0 ? -1 : 1;
  for (int32_t h = 0; h < task->heads; h++) {
    double sum = 0;
    bny_bounds_read(task->q[h], task->q_dtype, plain, 1, q);
    if (task->rope_dim > 0) bny_bounds_read(task->q_rope[h], task->q_dtype, task->rope_dim, 1, q + plain);
    for (int32_t i = 0; i < dim; i++) {
      float x = sign * q[i];
      to->row[h][i] = split && x < 0 ? 0 : x; /* NaN stays */
      to->row[h][dim + i] = split && x < 0 ? x : 0;
      sum += (double)x * (double)x;
    }
    to->length[h] = sqrt(sum) * (1 + 0x1p-40);
  }
}

/* How many keys of a page a row sees. */
static int32_t count_seen(const bny_attention_task *task, int32_t h, int32_t first, int32_t end) {
  int32_t low = task->sights ? larger(task->sights[h].first, first) : first, masked = 0;
  int32_t high = task->sights ? smaller(task->sights[h].end, end) : end;
  for (int32_t t = low; task->key_mask && t < high; t++) masked += !task->key_mask[t];
  return larger(high - low, 0) - masked;
}

/* Drafts of a tree keep their places only next to each other, so their pages are read. */
static bool has_drafts(const bny_attention_task *task, int32_t first, int32_t end) {
  for (int32_t h = 0; task->sights && h < task->heads; h++)
    if (task->sights[h].tree_bits && task->sights[h].tree_first < end && task->sights[h].tree_first > first - 64)
      return true;
  return false;
}

/* Bounds a logit, log2, from a bound `x` of the product times its factor. `most` bounds the sum of magnitudes of that:
 * the errors of the product here, and of attention's logits, *error, come on top. */
static inline double bound_logit(const bny_attention_task *task, double x, double most, double *error) {
  double cap = (double)task->soft_cap, dim = task->head_dim, t = x + most * (dim / 4 + 16) * 0x1p-24 + 0x1p-120;
  if (!(fabs(x) < 0x1p200) || !(most < 0x1p100)) return (double)INFINITY;
  if (cap > 0) t = cap * tanh(t / cap);
  *error = 0x1p-24 * (640 * log2_e + (dim + 8) * most + 8 * cap);
  return t + *error;
}

/* Returns at least 2^x for x <= 0: a chord of it, which is at most 6.2 % above. Nothing vanishes. */
static float power_above(double x) {
  if (!(x > -126)) return FLT_MIN;
  int32_t whole = (int32_t)x;
  whole -= x < whole;
  return (float)((1 + (x - whole)) * (1 + 0x1p-22)) * bny_float_of_bits((uint32_t)(whole + 127) << 23);
}

/* Bounds the mass of a page for each row by its box, log2. */
static void bound_by_box(const block *b, const query_rows *queries, int32_t page, const float *bounds, double *masses,
                         double *errors) {
  const bny_attention_task *task = b->task;
  int32_t first = page * b->page_keys, end = smaller(task->keys - first, b->page_keys) + first;
  float dots[ROWS];
  b->kernels->dots(queries->row[0], 2 * BNY_ATTENTION_HEAD_DIM_MAX, task->heads, bounds + BNY_BOUNDS_HEAD,
                   2 * task->head_dim, dots);
  for (int32_t h = 0; h < task->heads; h++) {
    int32_t keys = count_seen(task, h, first, end);
    masses[h] = -(double)INFINITY;
    if (keys > 0)
      masses[h] = bound_logit(task, b->factor * (double)dots[h],
                              b->factor * queries->length[h] * (double)bounds[BNY_BOUNDS_REACH], &errors[h]) +
                  (keys == 1 ? 0 : log2((double)keys));
  }
}

/* The same by the codes of its keys, each of which has its own bound. */
static void bound_by_codes(const block *b, const query_rows *queries, int32_t page, const float *bounds, double *masses,
                           double *errors) {
  const bny_attention_task *task = b->task;
  int32_t first = page * b->page_keys, end = smaller(task->keys - first, b->page_keys) + first;
  bool is_hidden = task->sights || task->key_mask;
  double sums[ROWS] = {0}, lost[ROWS], none = -(double)INFINITY;
  float dots[ROWS];
  for (int32_t h = 0; h < task->heads; h++) masses[h] = none, lost[h] = b->factor * queries->length[h];
  for (int32_t t = first; t < end; t++) {
    const float *row = bounds + BNY_BOUNDS_HEAD + (int64_t)(t - first) * bny_bounds_row(task->head_dim);
    double scale = b->factor * (double)row[0];
    b->kernels->code_dots(queries->row[0], 2 * BNY_ATTENTION_HEAD_DIM_MAX, task->heads, (const int8_t *)(row + 2),
                          bny_bounds_codes(task->head_dim), dots);
    for (int32_t h = 0; h < task->heads; h++) {
      if (is_hidden && count_seen(task, h, t, t + 1) == 0) continue;
      double x = bound_logit(task, scale * (double)dots[h] + lost[h] * (double)row[1],
                             lost[h] * (double)bounds[BNY_BOUNDS_REACH], &errors[h]);
      /* The sum is relative to the largest bound so far. */
      if (x > masses[h]) {
        sums[h] = 1 + (sums[h] > 0 ? sums[h] * (double)power_above(masses[h] - x) : 0);
        masses[h] = x;
      } else {
        sums[h] += (double)power_above(x - masses[h]);
      }
    }
  }
  for (int32_t h = 0; h < task->heads; h++)
    if (sums[h] > 1 && masses[h] < (double)INFINITY) masses[h] += log2(sums[h]) + 0x1p-30;
}

/* Fills weights, with bounds at first, and top. */
static void weigh_pages(block *b, bny_pruned *pruned) {
  const bny_attention_task *task = b->task;
  query_rows queries;
  double masses[ROWS], errors[ROWS] = {0};
  int32_t heads = task->heads;
  memset(&queries, 0, sizeof queries);
  read_queries(task, !b->desc->prune.codes, &queries);
  b->factor = fabs(task->scale_log2 * task->k_scale);
  for (int32_t h = 0; h < heads; h++) b->top[h] = -INFINITY;
  for (int32_t page = 0; page < b->pages; page++) {
    const float *bounds = bounds_of(b, page);
    int32_t first = page * b->page_keys, end = smaller(task->keys - first, b->page_keys) + first;
    float *to = b->weights + (int64_t)page * heads;
    bool forced = !((double)bounds[BNY_BOUNDS_VALUE] * task->v_scale < longest_value) || has_drafts(task, first, end);
    (b->desc->prune.codes ? bound_by_codes : bound_by_box)(b, &queries, page, bounds, masses, errors);
    for (int32_t h = 0; h < heads; h++) {
      double bound = forced ? (double)INFINITY : masses[h];
      to[h] = (float)bound;
      if ((double)to[h] < bound) to[h] = nextafterf(to[h], INFINITY);
      if (to[h] < INFINITY) b->top[h] = fmax(b->top[h], (double)to[h]);
      pruned->error[h] = fmax(pruned->error[h], errors[h]);
    }
  }
}

/* Makes weights of the bounds, and sorts pages by the largest weight that they have for a row. */
static void sort_pages(block *b) {
  int32_t start[BINS + 1] = {0}, heads = b->task->heads;
  for (int pass = 0; pass < 2; pass++) {
    for (int32_t page = 0; page < b->pages; page++) {
      float *weights = b->weights + (int64_t)page * heads, score = 0;
      for (int32_t h = 0; h < heads; h++) {
        if (pass == 0 && weights[h] < INFINITY)
          weights[h] = weights[h] == -INFINITY ? 0 : power_above((double)weights[h] - b->top[h]);
        score = weights[h] > score ? weights[h] : score;
      }
      uint32_t bin = BINS - 1 - (bny_bits_of_float(score) >> 20);
      if (pass == 0)
        start[bin + 1]++;
      else
        b->order[start[bin]++] = page;
      if (pass == 0 && score == INFINITY) b->forced++;
    }
    for (int32_t i = 0; pass == 0 && i < BINS; i++) start[i + 1] += start[i];
  }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Returns how many keys of the `count` pages of the list are below `key`. */
static int32_t listed_below(const block *b, int32_t count, int32_t key) {
  int32_t page = key / b->page_keys, low = 0, high = count;
  while (low < high) {
    int32_t middle = low + (high - low) / 2;
    if (b->list[middle] < page)
      low = middle + 1;
    else
      high = middle;
  }
  return low * b->page_keys + (low < count && b->list[low] == page ? key % b->page_keys : 0);
}

/* Sums pages [from, to) of the order, as a sequence of their own in which they follow one another. */
static void read_pages(block *b, int32_t from, int32_t to, bny_attention_sums *sums) {
  const bny_attention_task *task = b->task;
  bny_attention_task some = *task;
  bny_attention_sight sights[ROWS];
  int32_t count = 0;
  memset(b->chosen, 0, (size_t)b->pages);
  for (int32_t i = from; i < to; i++) b->chosen[b->order[i]] = 1;
  for (int32_t page = 0; page < b->pages; page++)
    if (b->chosen[page]) b->list[count++] = page;
  some.keys = listed_below(b, count, task->keys);
  for (int32_t h = 0; task->sights && h < task->heads; h++) {
    const bny_attention_sight *sight = &task->sights[h];
    sights[h] = (bny_attention_sight){.first = listed_below(b, count, sight->first),
                                      .end = smaller(listed_below(b, count, sight->end), some.keys),
                                      .tree_bits = from == 0 ? sight->tree_bits : 0};
    sights[h].first = smaller(sights[h].first, sights[h].end);
    sights[h].tree_first = larger(smaller(listed_below(b, count, sight->tree_first), some.keys), sights[h].end);
  }
  if (task->sights) some.sights = sights;
  for (int32_t i = 0; task->key_mask && i < count; i++) {
    int32_t first = b->list[i] * b->page_keys;
    memcpy(b->mask + (int64_t)i * b->page_keys, task->key_mask + first,
           (size_t)smaller(b->page_keys, task->keys - first));
  }
  if (task->key_mask) some.key_mask = b->mask;
  some.pages = b->list;
  some.page_keys = b->page_keys;
  if (!task->pages) {
    some.k_page_stride = b->page_keys * task->k_token_stride;
    some.v_page_stride = b->page_keys * task->v_token_stride;
    some.scale_page_stride = b->page_keys * task->scale_token_stride;
  }
  for (int32_t i = 0; task->pages && i < count; i++) b->list[i] = task->pages[b->list[i]];
  b->kernels->run(&some, 0, some.keys, sums);
}

/* The mass that a row has read, its sink included, log2. */
static double mass_of(const bny_attention_sums *sums, int32_t h, const double *sinks) {
  double mass = sums->d[h] > 0 ? sums->m[h] + log2(sums->d[h]) : -INFINITY, sink = sinks ? sinks[h] : -INFINITY;
  double top = fmax(mass, sink);
  return isinf(top) ? top : top + log2(exp2(mass - top) + exp2(sink - top)) - 0x1p-40;
}

/* Moves *end down over pages that may be left out: `rest` has what those behind it weigh, by row. */
static void leave_out(const block *b, const double *budget, int32_t done, double *rest, int32_t *end) {
  int32_t heads = b->task->heads;
  for (; *end > larger(done, b->forced); --*end) {
    const float *weights = b->weights + (int64_t)b->order[*end - 1] * heads;
    for (int32_t h = 0; h < heads; h++)
      if (!(rest[h] + (double)weights[h] <= budget[h])) return;
    for (int32_t h = 0; h < heads; h++) rest[h] += (double)weights[h];
  }
}

/* Reads pages by falling weight until the rest cannot hold more than epsilon. Returns how many were read. */
static int32_t read_by_weight(block *b, const double *sinks, const bny_pruned *pruned, bny_attention_sums *sums) {
  double rest[ROWS] = {0}, budget[ROWS], epsilon = (double)b->desc->prune.epsilon * (1 - 0x1p-20);
  int32_t end = b->pages, done = 0, least = larger(LEAST_KEYS / b->page_keys, 1);
  bny_attention_sums more;
  read_pages(b, 0, 0, sums);
  for (;;) {
    for (int32_t h = 0; h < b->task->heads; h++)
      budget[h] = epsilon * exp2(mass_of(sums, h, sinks) - pruned->error[h] - b->top[h]);
    for (int32_t h = 0; h < b->task->heads; h++)
      if (b->top[h] == -INFINITY) budget[h] = 0;
    leave_out(b, budget, done, rest, &end);
    if (end == done) return done;
    /* Each page that is read only adds to the mass, so as many as are needed now are the most that ever will be. */
    int32_t count = done == 0 ? larger(least, b->forced) : larger(least, (end - done) / 2);
    count = smaller(count, end - done);
    read_pages(b, done, done + count, &more);
    bny_attention_merge(b->task, sums, &more);
    done += count;
  }
}

/* ---- what was left out ------------------------------------------------------------------------------------------- */

static void note_rest(const block *b, int32_t done, bny_pruned *pruned) {
  double mass[ROWS] = {0}, moment[ROWS] = {0};
  int32_t heads = b->task->heads;
  for (int32_t i = done; i < b->pages; i++) {
    const float *weights = b->weights + (int64_t)b->order[i] * heads;
    double length = (double)bounds_of(b, b->order[i])[BNY_BOUNDS_VALUE] * b->task->v_scale;
    for (int32_t h = 0; h < heads; h++) mass[h] += (double)weights[h], moment[h] += (double)weights[h] * length;
  }
  for (int32_t h = 0; h < heads; h++) {
    pruned->mass[h] = mass[h] > 0 ? log2(mass[h]) + b->top[h] + 0x1p-30 : -INFINITY;
    pruned->moment[h] = moment[h] > 0 ? log2(moment[h]) + b->top[h] + 0x1p-30 : -INFINITY;
  }
}

/* Finds segments that are so far below a key of the row that their sums become 0 when they are merged with it. */
static void find_zeros(block *b, int32_t segment_keys, const bny_attention_sums *some, bny_pruned *pruned) {
  int32_t heads = b->task->heads, kept = b->pages;
  uint64_t needed = 0;
  int32_t segments = (b->task->keys - 1) / segment_keys + 1;
  for (int32_t page = 0; page < b->pages; page++) {
    const float *bounds = b->weights + (int64_t)page * heads;
    bool is_zero = true;
    for (int32_t h = 0; h < heads; h++)
      is_zero = is_zero && (bounds[h] == -INFINITY || (double)bounds[h] < some->m[h] - ZERO_BITS);
    if (is_zero) continue;
    int32_t first = page * b->page_keys, last = smaller(b->task->keys - first, b->page_keys) + first - 1;
    for (int32_t s = first / segment_keys; s <= last / segment_keys; s++) needed |= UINT64_C(1) << s;
  }
  pruned->segments = ~needed & (segments < 64 ? (UINT64_C(1) << segments) - 1 : UINT64_MAX);
  for (int32_t page = 0; page < b->pages && pruned->segments; page++) {
    int32_t first = page * b->page_keys, last = smaller(b->task->keys - first, b->page_keys) + first - 1;
    bool is_read = false;
    for (int32_t s = first / segment_keys; s <= last / segment_keys; s++)
      is_read = is_read || !(pruned->segments >> s & 1);
    kept -= !is_read;
  }
  pruned->read = (float)kept / (float)b->pages;
}

/* With epsilon 0: reads the page of the largest bound of each row, to know a key that counts. */
static void prune_zeros(block *b, int32_t segment_keys, bny_attention_sums *some, bny_pruned *pruned) {
  int32_t best[ROWS] = {0}, heads = b->task->heads, count = 0;
  for (int32_t page = 0; page < b->pages; page++)
    for (int32_t h = 0; h < heads; h++)
      if (b->weights[(int64_t)page * heads + h] > b->weights[(int64_t)best[h] * heads + h]) best[h] = page;
  memset(b->chosen, 0, (size_t)b->pages);
  for (int32_t h = 0; h < heads; h++)
    if (!b->chosen[best[h]]) b->chosen[best[h]] = 1, b->order[count++] = best[h];
  read_pages(b, 0, count, some);
  find_zeros(b, segment_keys, some, pruned);
}

bool bny_prune_sum(const bny_attention_kernels *kernels, const banyan_attention_desc *desc, int32_t sequence,
                   int32_t kv_head, const bny_attention_task *task, const double *sinks, int32_t segment_keys,
                   bny_attention_sums *sums, bny_pruned *pruned) {
  *pruned = (bny_pruned){.read = task->keys > 0};
  for (int32_t h = 0; h < task->heads; h++) pruned->mass[h] = pruned->moment[h] = -INFINITY;
  block b = {.kernels = kernels, .desc = desc, .task = task, .sequence = sequence, .kv_head = kv_head};
  b.page_keys = bny_bounds_keys(desc);
  if (task->keys == 0) return false;
  b.pages = (task->keys - 1) / b.page_keys + 1;
  size_t pages = (size_t)b.pages;
  b.weights = malloc(pages * ((size_t)task->heads * sizeof *b.weights + 2 * sizeof *b.order + 1) +
                     (task->key_mask ? pages * (size_t)b.page_keys : 0));
  if (!b.weights) return false;
  b.order = (int32_t *)(void *)(b.weights + pages * (size_t)task->heads);
  b.list = b.order + pages;
  b.chosen = (uint8_t *)(b.list + pages);
  b.mask = b.chosen + pages;
  bool is_lossy = bny_prune_is_lossy(desc);
  weigh_pages(&b, pruned);
  if (!is_lossy) {
    prune_zeros(&b, segment_keys, sums, pruned);
  } else {
    sort_pages(&b);
    int32_t done = smaller(larger(desc->prune.top_pages, b.forced), b.pages);
    if (desc->prune.top_pages > 0)
      read_pages(&b, 0, done, sums);
    else
      done = read_by_weight(&b, sinks, pruned, sums);
    note_rest(&b, done, pruned);
    pruned->read = (float)done / (float)b.pages;
  }
  free(b.weights);
  return is_lossy;
}

/* ---- the certificate --------------------------------------------------------------------------------------------- */

/* Let K be the mass that was read, S and M the bounds of mass and moment of the rest. With the true rest, of mass s and
 * numerator r, |o - o_exact| = |o s - r| / (K + s) <= (|o| S + M) / K, because |r| is at most the moment. */
double bny_prune_error(const bny_pruned *pruned, int32_t index, float m, float d, const float *n, int32_t value_dim) {
  double kept = (double)m + log2((double)d) - pruned->error[index], sum = 0;
  if (pruned->mass[index] == -INFINITY) return 0;
  if (!(d > 0)) return INFINITY;
  for (int32_t i = 0; i < value_dim; i++) sum += (double)n[i] * (double)n[i];
  double error = exp2(pruned->mass[index] - kept) * (sqrt(sum) / (double)d) + exp2(pruned->moment[index] - kept);
  return error * (1 + 0x1p-20);
}

void bny_prune_certify(const bny_pruned *pruned, int32_t index, float m, float d, const float *n, int32_t value_dim,
                       const bny_certificate *to, int64_t row) {
  double sum = 0, kept = d > 0 ? (double)m + log2((double)d) - pruned->error[index] : -INFINITY;
  for (int32_t i = 0; i < value_dim; i++) sum += (double)n[i] * (double)n[i];
  double logs[BNY_CERTIFICATE_VALUES] = {pruned->mass[index], sum > 0 ? (double)m + log2(sum) / 2 : -INFINITY,
                                         pruned->moment[index]};
  double top = fmax(fmax(kept, logs[0]), fmax(logs[1], logs[2]));
  bool is_empty = !(kept > -INFINITY || logs[0] > -INFINITY) || !isfinite(top);
  to->m[row] = is_empty ? -INFINITY : (float)ceil(top);
  /* A mass too small for f32 makes the error infinite: see bny_prune_error_of(). */
  to->d[row] = is_empty ? 0 : fmaxf((float)(exp2(kept - ceil(top)) * (1 - 0x1p-20)), FLT_MIN);
  for (int32_t i = 0; i < BNY_CERTIFICATE_VALUES; i++)
    to->values[row * BNY_CERTIFICATE_VALUES + i] =
        is_empty || logs[i] == -INFINITY ? 0 : (float)(exp2(logs[i] - ceil(top)) * (1 + 0x1p-20)) + FLT_MIN;
}

float bny_prune_error_of(const float *values) {
  if (values[0] == 0) return 0;
  double error = ((double)values[0] * (double)values[1] + (double)values[2]) * (1 + 0x1p-16);
  return error < 0x1p90 ? (float)error : INFINITY;
}
