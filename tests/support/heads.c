/* SPDX-License-Identifier: Apache-2.0
 * Random gathers of heads: their layouts, contents and expected results. */
#include "tests/support/heads.h"

enum { PATTERN = 0x5A, MARGIN = 48 };

static unsigned char byte_of(int32_t token, int32_t head, size_t index, int run) {
  uint32_t mixed =
      (uint32_t)token * 2654435761u + (uint32_t)head * 40503u + (uint32_t)index * 97u + (uint32_t)run * 193u;
  return (unsigned char)(mixed >> 9 ^ mixed);
}

/* Chooses a layout: contiguous, with gaps, heads before tokens, or reversed. */
static heads_layout choose(world_random *random, const heads_problem *of, int32_t heads) {
  int64_t element = (int64_t)of->element_bytes, dim = of->desc.dim, tokens = of->desc.tokens;
  int64_t row = dim + random_below(random, 3) * random_below(random, 9), token, head;
  heads_layout made = {.offset = (size_t)(element * random_below(random, 9))};
  switch (random_below(random, 4)) {
  case 0:
    made.token_stride = heads * dim * element;
    made.head_stride = dim * element;
    made.bytes = made.offset + (size_t)(tokens * heads * dim * element) + MARGIN;
    return made;
  case 1: /* heads before tokens */
    token = row;
    head = tokens * row + random_below(random, 40);
    break;
  default:
    head = row;
    token = heads * row + random_below(random, 40);
    break;
  }
  int64_t extent = (tokens > 0 ? tokens - 1 : 0) * token + (heads > 0 ? heads - 1 : 0) * head + dim;
  if (random_one_in(random, 6) && tokens > 0) {
    made.offset += (size_t)((tokens - 1) * token * element);
    token = -token;
  }
  if (random_one_in(random, 6) && heads > 0) {
    made.offset += (size_t)((heads - 1) * head * element);
    head = -head;
  }
  made.said = true;
  made.token_stride = token * element;
  made.head_stride = head * element;
  made.bytes = 16 * (size_t)element + (size_t)(extent * element) + MARGIN;
  return made;
}

static void choose_counts(world_random *random, heads_problem *made) {
  bool split = random_one_in(random, 3);
  made->desc.heads = split ? random_below(random, 20) : 0;
  for (int32_t i = 0; i < made->nranks; i++) {
    int32_t first;
    made->counts[i] = random_one_in(random, 4) ? 0 : 1 + random_below(random, 6);
    if (split)
      banyan_split(made->desc.heads, made->nranks, i, &first, &made->counts[i]);
    else
      made->desc.heads += made->counts[i];
  }
  made->desc.counts = split && random_one_in(random, 2) ? NULL : made->counts;
}

void heads_make(heads_problem *made, uint64_t seed, int32_t rank, int32_t nranks, int32_t tokens_most) {
  static const banyan_dtype dtypes[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16, BANYAN_E4M3, BANYAN_E5M2, BANYAN_I8};
  static const size_t sizes[] = {4, 2, 2, 1, 1, 1};
  static const int32_t dims[] = {1, 3, 16, 64, 80, 128};
  world_random random = seed;
  memset(made, 0, sizeof *made);
  made->rank = rank;
  made->nranks = nranks;
  made->desc.size = sizeof made->desc;
  made->desc.tokens = random_below(&random, tokens_most + 1);
  int32_t type = random_below(&random, 6);
  made->desc.dtype = dtypes[type];
  made->element_bytes = sizes[type];
  made->desc.dim = random_one_in(&random, 3) ? 1 + random_below(&random, 100) : dims[random_below(&random, 6)];
  made->row_bytes = (size_t)made->desc.dim * made->element_bytes;
  choose_counts(&random, made);
  for (int32_t i = 0; i < rank; i++) made->first += made->counts[i];
  made->number = made->counts[rank];
  world_random own = seed * 31 + (uint64_t)rank;
  made->all = choose(&own, made, made->desc.heads);
  made->in_place = random_one_in(&own, 3);
  made->mine = choose(&own, made, made->number);
  if (made->in_place) {
    made->mine = made->all;
    made->mine.said = true;
  }
  int64_t element = (int64_t)made->element_bytes;
  if (made->mine.said) {
    made->desc.mine_token_stride = made->mine.token_stride / element;
    made->desc.mine_head_stride = made->mine.head_stride / element;
  }
  if (made->all.said) {
    made->desc.all_token_stride = made->all.token_stride / element;
    made->desc.all_head_stride = made->all.head_stride / element;
  }
}

static void fill(const heads_layout *layout, unsigned char *memory, const heads_problem *of, int32_t tokens,
                 int32_t first, int32_t heads, int32_t head0, int run) {
  for (int32_t t = 0; t < tokens; t++)
    for (int32_t h = 0; h < heads; h++) {
      unsigned char *row =
          memory + (int64_t)layout->offset + t * layout->token_stride + (h + head0) * layout->head_stride;
      for (size_t i = 0; i < of->row_bytes; i++) row[i] = byte_of(t, first + h, i, run);
    }
}

void heads_fill(const heads_problem *of, int32_t tokens, int run, unsigned char *mine, unsigned char *all) {
  memset(all, PATTERN, of->all.bytes);
  if (of->in_place) {
    fill(&of->all, all, of, tokens, of->first, of->number, of->first, run);
    return;
  }
  memset(mine, PATTERN, of->mine.bytes);
  fill(&of->mine, mine, of, tokens, of->first, of->number, 0, run);
}

bool heads_hold(const heads_problem *of, int32_t tokens, int run, const unsigned char *all, char *why, size_t bytes) {
  unsigned char *expected = malloc(of->all.bytes);
  if (!expected) abort();
  memset(expected, PATTERN, of->all.bytes);
  fill(&of->all, expected, of, tokens, 0, of->desc.heads, 0, run);
  size_t i = 0;
  while (i < of->all.bytes && expected[i] == all[i]) i++;
  if (i < of->all.bytes)
    snprintf(why, bytes,
             "%d ranks, rank %d, run %d of %d tokens of %d, %d heads of %d, %zu bytes each: byte %zu of `all` is %d, "
             "not %d",
             of->nranks, of->rank, run, tokens, of->desc.tokens, of->desc.heads, of->desc.dim, of->element_bytes, i,
             all[i], expected[i]);
  free(expected);
  return i == of->all.bytes;
}

const void *heads_mine(const heads_problem *of, const unsigned char *mine, const unsigned char *all) {
  if (!of->in_place) return mine + of->mine.offset;
  return all + (int64_t)of->all.offset + of->first * of->all.head_stride;
}

void *heads_all(const heads_problem *of, unsigned char *all) { return all + of->all.offset; }
