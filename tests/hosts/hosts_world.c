/* SPDX-License-Identifier: Apache-2.0
 * A rank on one of several nodes: joins the others as the environment sets, and combines. Every rank derives all inputs
 * from one seed, and so knows the results. Arguments: "bootstrap" (ends after the allgathers), "more" (adds messages
 * that are sent in parts, and one to a sleeping rank), and the seconds that ranks have to meet. */
#include "comm/comm.h"
#include "tests/support/sheet.h"
#include "tests/support/world.h"

static const char *const algorithms[] = {NULL, "oneshot", "twoshot", "recursive", "tree", "ring"};
static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_BF16};
static const struct {
  int32_t tokens, heads, value_dim;
} shapes[] = {{1, 1, 128}, {3, 17, 64}, {6, 24, 128}}, large = {40, 64, 128};

enum {
  ALGORITHMS = sizeof algorithms / sizeof *algorithms,
  SHAPES = sizeof shapes / sizeof *shapes,
  GATHER_BYTES = 3000
};

static int32_t rank, nranks;

static void end_by(const char *what, const char *why) {
  fprintf(stderr, "rank %d of %d: %s: %s\n", rank, nranks, what, why);
  exit(1);
}

static void need(banyan_status status, const char *what) {
  if (status) end_by(what, banyan_last_error());
}

/* ---- bootstrap --------------------------------------------------------------------------------------------------- */

static void gather(const banyan_bootstrap *bootstrap, size_t bytes) {
  unsigned char *mine = malloc(bytes + 1), *all = malloc((size_t)nranks * bytes + 1);
  for (size_t i = 0; i < bytes; i++) mine[i] = (unsigned char)((size_t)rank * 31 + i);
  need((banyan_status)bootstrap->allgather(bootstrap->context, mine, all, bytes, 30000000000), "allgather");
  for (size_t i = 0; i < (size_t)nranks * bytes; i++)
    if (all[i] != (unsigned char)(i / bytes * 31 + i % bytes)) end_by("allgather", "wrong bytes");
  free(all);
  free(mine);
}

/* ---- combines ---------------------------------------------------------------------------------------------------- */

typedef struct group {
  sheet in[WORLD_RANKS_MAX];
  oracle_row *reference;
} group;

static const char *describe(const banyan_combine_desc *desc) {
  static char text[160];
  snprintf(text, sizeof text, "%d x %d x %d, algorithm %s, scatter %d, order %d, wire %d", desc->tokens, desc->heads,
           desc->value_dim, desc->algorithm ? desc->algorithm : "chosen", desc->scatter, desc->order, desc->wire);
  return text;
}

static void combine(banyan_comm *comm, const group *of, const banyan_combine_desc *desc, world_random *random) {
  const sheet_part part = sheet_part_of(desc, nranks, rank);
  sheet out = sheet_output(random, SHEET_PLAIN, part.tokens, part.heads, desc->value_dim);
  char why[256];
  need(banyan_combine(comm, desc, &of->in[rank].partial, part.tokens && part.heads ? &out.partial : NULL),
       describe(desc));
  if (!sheet_matches(&out, of->reference, desc->heads, part.token0, part.head0, desc->wire, nranks + 3, why,
                     sizeof why))
    end_by(describe(desc), why);
  if (!sheet_gaps_are_untouched(&out)) end_by(describe(desc), "wrote beside its rows");
}

/* Runs every scatter, wire and order with the first algorithms of the list. Returns the number of runs. */
static int combine_all(banyan_comm *comm, int32_t tokens, int32_t heads, int32_t value_dim, size_t nalgorithms) {
  world_random random = random_seed() * 1000 + (uint64_t)heads;
  world_random own = (uint64_t)rank + 1;
  group made;
  int count = 0;
  for (int32_t r = 0; r < nranks; r++)
    made.in[r] = sheet_input(&random, SHEET_PLAIN, r, nranks, tokens, heads, value_dim);
  made.reference = sheet_merge(made.in, nranks);
  for (size_t i = 0; i < nalgorithms * 16; i++) {
    const banyan_combine_desc desc = {.size = sizeof desc,
                                      .tokens = tokens,
                                      .heads = heads,
                                      .value_dim = value_dim,
                                      .wire = wires[i / 8 % 2],
                                      .scatter = (banyan_scatter)(i / 2 % 4),
                                      .root = (int32_t)(i % (size_t)nranks),
                                      .order = (banyan_order)(i % 2),
                                      .algorithm = algorithms[i / 16]};
    combine(comm, &made, &desc, &own);
    count++;
  }
  return count;
}

/* ---- a late rank ------------------------------------------------------------------------------------------------- */

static int compare_times(const void *a, const void *b) {
  double difference = *(const double *)a - *(const double *)b;
  return (difference > 0) - (difference < 0);
}

/* Rank 1 comes when rank 0 has slept for 0.1 s and would sleep up to three more, because sleeps double from 50 us on.
 * Rank 1 then makes no progress for some time, so nothing else wakes rank 0. */
static void come_late(banyan_comm *comm) {
  enum { TIMES = 5, LATE_MS = 500, AWAY_MS = 500, SOON_MS = 400, IN_TIME_MS = 650 };
  double times[TIMES];
  unsigned char word = 0;
  comm->exec->sleep_ns = 1000000000;
  need(banyan_broadcast(comm, &word, 1, 1), "broadcast");
  for (int i = 0; i < TIMES; i++) {
    need(banyan_barrier(comm), "barrier");
    double begun = world_now_s();
    if (rank == 1) world_sleep_ms(LATE_MS);
    need(banyan_broadcast(comm, &word, 1, 1), "broadcast");
    times[i] = (world_now_s() - begun) * 1e3;
    if (rank == 1) world_sleep_ms(AWAY_MS);
  }
  qsort(times, TIMES, sizeof *times, compare_times);
  if (rank == 0)
    printf("a rank that slept woke %s: a message sent after %d ms was there after %.1f ms (p50), %.1f at most\n",
           times[TIMES / 2] > SOON_MS && times[TIMES / 2] < IN_TIME_MS ? "in time" : "by itself", LATE_MS,
           times[TIMES / 2], times[TIMES - 1]);
}

int main(int argc, char **argv) {
  banyan_env *env;
  banyan_bootstrap bootstrap;
  banyan_comm *comm;
  char text[512];
  int count = 0;
  int64_t seconds = argc > 2 ? atoi(argv[2]) : 20;
  need(banyan_env_create(seconds * 1000000000, &env, &bootstrap), "bootstrap");
  rank = bootstrap.rank;
  nranks = bootstrap.nranks;
  for (size_t bytes = 1; bytes <= GATHER_BYTES; bytes = bytes * 4 + 3) gather(&bootstrap, bytes);
  if (argc > 1 && strcmp(argv[1], "bootstrap") == 0) {
    banyan_env_destroy(env);
    if (rank == 0) printf("%d ranks have met\n", nranks);
    return 0;
  }
  if (nranks > WORLD_RANKS_MAX) end_by("world", "too many ranks");
  need(banyan_comm_create(&bootstrap, NULL, &comm), "communicator");
  banyan_env_destroy(env);
  for (int i = 0; i < SHAPES; i++)
    count += combine_all(comm, shapes[i].tokens, shapes[i].heads, shapes[i].value_dim, ALGORITHMS);
  if (argc > 1 && strcmp(argv[1], "more") == 0) {
    count += combine_all(comm, large.tokens, large.heads, large.value_dim, 1);
    come_late(comm);
  }
  need(banyan_barrier(comm), "barrier");
  banyan_comm_describe(comm, text, sizeof text);
  banyan_comm_destroy(comm);
  if (rank == 0) printf("%d combines are right: %s\n", count, text);
  return 0;
}
