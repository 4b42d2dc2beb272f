/* SPDX-License-Identifier: Apache-2.0
 * All-gathers of heads over random shapes, layouts and token counts, as blocking calls and operations on every backend.
 * Also tests shared plans and the bytes sent. */
#include "tests/support/lone.h"
#include "tests/support/world.h"

enum {
  SHAPES = 12,
  SHAPES_ON_DEVICES = 2,
  RUNS = 6,
  RUNS_ON_DEVICES = 4,
  TOKENS_MOST = 40,
  PATTERN = 0x5A,
  MARGIN = 48
};

/* ---- problems ---------------------------------------------------------------------------------------------------- */

/* The layout of a tensor [tokens][heads][dim] in `bytes` of memory. Strides are in bytes. */
typedef struct layout {
  size_t bytes, offset;
  int64_t token_stride, head_stride;
  bool said; /* strides are explicit; otherwise it is contiguous, and the call's strides are 0 */
} layout;

typedef struct problem {
  banyan_heads_desc desc; /* without `valid` and `stream` */
  int32_t counts[WORLD_RANKS_MAX];
  int32_t rank, nranks;
  int32_t first, number; /* heads of this rank */
  size_t element_bytes, row_bytes;
  layout mine, all;
  bool in_place; /* `mine` is a part of `all` */
} problem;

static unsigned char byte_of(int32_t token, int32_t head, size_t index, int run) {
  uint32_t mixed =
      (uint32_t)token * 2654435761u + (uint32_t)head * 40503u + (uint32_t)index * 97u + (uint32_t)run * 193u;
  return (unsigned char)(mixed >> 9 ^ mixed);
}

/* Chooses a layout: contiguous, with gaps, heads before tokens, or reversed. */
static layout choose(world_random *random, const problem *of, int32_t heads) {
  int64_t element = (int64_t)of->element_bytes, dim = of->desc.dim, tokens = of->desc.tokens;
  int64_t row = dim + random_below(random, 3) * random_below(random, 9), token, head;
  layout made = {.offset = (size_t)(element * random_below(random, 9))};
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

static void choose_counts(world_random *random, problem *made) {
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

/* Makes the problem of `rank`. Ranks with the same seed get one shape, and their own layouts. */
static void make(problem *made, uint64_t seed, int32_t rank, int32_t nranks, int32_t tokens_most) {
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

static void fill(const layout *in, unsigned char *memory, const problem *of, int32_t tokens, int32_t first,
                 int32_t heads, int32_t head0, int run) {
  for (int32_t t = 0; t < tokens; t++)
    for (int32_t h = 0; h < heads; h++) {
      unsigned char *row = memory + (int64_t)in->offset + t * in->token_stride + (h + head0) * in->head_stride;
      for (size_t i = 0; i < of->row_bytes; i++) row[i] = byte_of(t, first + h, i, run);
    }
}

/* Fills both memories for a run: `mine` with this rank's heads of `tokens`, and everything else with a pattern. */
static void fill_both(const problem *of, int32_t tokens, int run, unsigned char *mine, unsigned char *all) {
  memset(all, PATTERN, of->all.bytes);
  if (of->in_place) {
    fill(&of->all, all, of, tokens, of->first, of->number, of->first, run);
    return;
  }
  memset(mine, PATTERN, of->mine.bytes);
  fill(&of->mine, mine, of, tokens, of->first, of->number, 0, run);
}

/* Returns true if `all` holds the heads of all ranks for `tokens`, and the pattern elsewhere. Otherwise writes why. */
static bool holds(const problem *of, int32_t tokens, int run, const unsigned char *all, char *why, size_t bytes) {
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

/* The arguments of a call for memories at these addresses. */
static const void *mine_of(const problem *of, const unsigned char *mine, const unsigned char *all) {
  if (!of->in_place) return mine + of->mine.offset;
  return all + (int64_t)of->all.offset + of->first * of->all.head_stride;
}

static void *all_of(const problem *of, unsigned char *all) { return all + of->all.offset; }

/* ---- runs -------------------------------------------------------------------------------------------------------- */

typedef struct memory {
  unsigned char *mine, *all;
  int32_t *tokens;
} memory;

static bool check(world_rank *self, const problem *of, int run, const memory *at, const char *what) {
  char why[300] = "";
  return world_ok(self, banyan_comm_status(self->comm), "status") &&
         world_check(self, holds(of, *at->tokens, run, at->all, why, sizeof why), "%s: %s", what, why);
}

/* Bytes are sent for the tokens of the run only: the ranks together send each row at least once to every other rank. */
static bool sent_is_right(world_rank *self, const problem *problem, const banyan_op *op, int32_t tokens) {
  banyan_op_info info = {.size = sizeof info};
  if (self->on->is_device) return true;
  if (!world_ok(self, banyan_op_query(op, &info), "query")) return false;
  size_t whole = (size_t)tokens * (size_t)problem->desc.heads * problem->row_bytes;
  if (strcmp(info.algorithm, "oneshot") != 0)
    return world_check(self, info.bytes_sent <= whole * (size_t)self->nranks, "%s sent %llu bytes for %d tokens",
                       info.algorithm, (unsigned long long)info.bytes_sent, tokens);
  size_t expected =
      (size_t)tokens * (size_t)problem->number * problem->row_bytes * (size_t)(self->nranks > 1 ? self->nranks - 1 : 0);
  return world_check(self, info.bytes_sent == expected, "it sent %llu bytes for %d tokens, not %zu",
                     (unsigned long long)info.bytes_sent, tokens, expected);
}

/* Calls, each with its own number of tokens, the same on all ranks; or runs of one operation, which serves every number
 * and on devices is captured in a graph. Memory of a call without tokens may be NULL. */
static bool gather_often(world_rank *self, problem *of, world_random *random, const memory *at, bool keeps) {
  banyan_valid_rows valid = world_valid(self, (banyan_valid_rows){.size = sizeof valid, .tokens = at->tokens});
  const bool is_device = self->on->is_device;
  const int32_t most = of->desc.tokens;
  banyan_op *op = NULL;
  bool good = true;
  for (int run = 0; run < (is_device ? RUNS_ON_DEVICES : RUNS) && good; run++) {
    const bool counts = keeps || run % 2, is_zero = run % 2 && (keeps ? run == 1 : random_one_in(random, 4));
    int32_t tokens = *at->tokens = !counts || run == 0 ? most : is_zero ? 0 : random_below(random, most + 1);
    const bool has_none = !keeps && !tokens && !is_device;
    const void *mine = has_none ? NULL : world_at(self, mine_of(of, at->mine, at->all));
    void *all = has_none ? NULL : world_at(self, all_of(of, at->all));
    of->desc.valid = counts ? &valid : NULL;
    fill_both(of, tokens, run, at->mine, at->all);
    if (keeps && run == 0) {
      good = world_ok(self, banyan_allgather_heads_init(self->comm, &of->desc, mine, all, &op), "init");
      valid = (banyan_valid_rows){0}; /* init has read it */
      good = good && world_record(self, &op, 1);
    }
    good = good && (keeps ? world_replay(self)
                          : world_put(self) &&
                                world_ok(self, banyan_allgather_heads(self->comm, &of->desc, mine, all), "call") &&
                                world_finish(self));
    good = good && check(self, of, run, at, keeps ? "operation" : "call") &&
           (!keeps || sent_is_right(self, of, op, tokens));
  }
  banyan_op_free(op);
  return good;
}

static void gather_all(world_rank *self) {
  uint64_t salt = *(const uint64_t *)self->argument;
  world_random random = random_seed() * 7919 + salt;
  bool good = true;
  for (int shape = 0; shape < (self->on->is_device ? SHAPES_ON_DEVICES : SHAPES) && good; shape++) {
    problem problem;
    make(&problem, random_next(&random), self->rank, self->nranks, self->on->is_device ? TOKENS_MOST / 4 : TOKENS_MOST);
    if (salt % 3 < 2) world_vary(self, (int32_t)salt + 1 + (1 + (int32_t)salt / 2) * shape);
    problem.desc.stream = self->stream;
    memory at = {world_take(problem.mine.bytes), world_take(problem.all.bytes), world_take(sizeof(int32_t))};
    good = gather_often(self, &problem, &random, &at, false) && gather_often(self, &problem, &random, &at, true);
  }
}

/* Small arenas split calls into parts. */
TEST_EVERYWHERE(ranks_gather, 27) {
  if (on == &world_staged) return; /* the staged backend keeps heads in host memory */
  uint64_t salt = (uint64_t)_i;
  if (on == &world_emulated) setenv("BANYAN_ARENA_KIB", "1024", 0); /* a small arena is faster to clear */
  WORLD_RUN(gather_all, .nranks = world_ranks(on, 1 + _i % 9), .on = on, .argument = &salt,
            .arena_bytes = _i % 3 == 2 ? 64 << 10 : 0,
            .words = on == &world_emulated && _i % 3 == 1 ? "no-vmm,no-ipc" : NULL);
}

TEST_LOOP(levels_gather, 3) {
  static const char *const levels[] = {"2", "4", "2,4"};
  uint64_t salt = 300 + (uint64_t)_i;
  setenv("BANYAN_LEVELS", levels[_i], 1);
  WORLD_RUN(gather_all, .nranks = 8, .argument = &salt);
}

/* Nodes with equal and unequal numbers of ranks, also with the ranks of a node not adjacent. */
TEST_LOOP(nodes_of_many_shapes, 10) {
  static const struct {
    const char *nodes;
    int32_t nranks;
  } layouts[] = {{"a,a,b,b", 4}, {"a,b", 2}, {"a,a,a,b", 4}, {"a,b,a,c,b", 5}, {"a,a,b,b,c,c,d", 7}};
  uint64_t salt = 400 + (uint64_t)_i;
  if (!world_is_here(&world_nodes)) return;
  WORLD_RUN(gather_all, .nranks = layouts[_i / 2].nranks, .on = &world_nodes, .nodes = layouts[_i / 2].nodes,
            .argument = &salt, .arena_bytes = _i % 2 ? 64 << 10 : 0);
}

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

enum { TOKENS = 3, HEADS = 4, DIM = 8 };

/* Tensors in different columns of one matrix do not overlap. */
TEST(columns_beside_each_other) {
  banyan_comm *comm = lone_comm(NULL);
  static uint16_t whole[2 * TOKENS * HEADS * DIM];
  banyan_heads_desc desc = {.size = sizeof desc, .tokens = TOKENS, .heads = HEADS, .dim = DIM, .dtype = BANYAN_F16};
  desc.all_token_stride = desc.mine_token_stride = 2 * HEADS * DIM;
  desc.all_head_stride = desc.mine_head_stride = DIM;
  for (int i = 0; i < 2 * TOKENS * HEADS * DIM; i++) whole[i] = (uint16_t)i;
  ck_assert_msg(banyan_allgather_heads(comm, &desc, whole + HEADS * DIM, whole) == BANYAN_OK, "%s",
                banyan_last_error());
  for (int t = 0; t < TOKENS; t++)
    ck_assert_mem_eq(whole + 2 * t * HEADS * DIM, whole + (2 * t + 1) * HEADS * DIM, HEADS * DIM * sizeof *whole);
  ck_assert_int_eq(banyan_allgather_heads(comm, &desc, whole + HEADS * DIM - 1, whole), BANYAN_ERR_ARGUMENT);
  banyan_comm_destroy(comm);
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

TEST_RANKS(classes_share_plans, 1, .nranks = 3) {
  enum { MOST = 300, CALLS = 600 };
  world_random random = random_seed();
  uint16_t *mine = calloc(MOST * HEADS, DIM * sizeof *mine), *all = calloc(MOST * HEADS, DIM * sizeof *all);
  if (!mine || !all) abort();
  int before = world_plans_made(self);
  for (int i = 0; i < CALLS; i++) {
    banyan_heads_desc desc = {.size = sizeof desc, .heads = HEADS, .dim = DIM, .dtype = BANYAN_F16};
    desc.tokens = 1 + random_below(&random, MOST);
    if (!world_ok(self, banyan_allgather_heads(self->comm, &desc, mine, all), "call")) break;
  }
  int plans = world_plans_made(self) - before;
  world_check(self, plans > 0 && plans <= 10, "%d calls made %d plans", CALLS, plans);
  free(mine);
  free(all);
}

int main(void) { return world_main(suite_of("heads", 120)); }
