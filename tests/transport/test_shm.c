/* SPDX-License-Identifier: Apache-2.0
 * Ranks that are processes: the collectives over shared memory, and that nothing of it is left behind. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/sheet.h"
#include "tests/support/suite.h"
#include "tests/support/world.h"

enum { ATTEMPTS = 64, MOODS = 2 };

static const int32_t nranks_of[] = {1, 2, 3, 5};

/* ---- combine ----------------------------------------------------------------------------------------------------- */

typedef struct attempt {
  banyan_combine_desc desc;
  sheet in[5], out[5];
  void *reference;
} attempt;

typedef struct task {
  int32_t nranks, nattempts;
  attempt attempts[ATTEMPTS];
} task;

static void add_attempt(task *task, sheet_pool *pool, world_random *random, const char *algorithm,
                        banyan_scatter scatter) {
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F16, BANYAN_BF16};
  attempt *made = &task->attempts[task->nattempts++];
  int32_t tokens = 1 + random_below(random, 4), heads = 1 + random_below(random, 12),
          value_dim = random_below(random, 80);
  sheet_mood mood = (sheet_mood)random_below(random, SHEET_MOODS);
  made->desc = (banyan_combine_desc){.size = sizeof made->desc,
                                     .tokens = tokens,
                                     .heads = heads,
                                     .value_dim = value_dim,
                                     .wire = wires[random_below(random, 3)],
                                     .scatter = scatter,
                                     .root = random_below(random, task->nranks),
                                     .order = (banyan_order)random_below(random, 2),
                                     .algorithm = algorithm};
  for (int32_t r = 0; r < task->nranks; r++) {
    const sheet_part part = sheet_part_of(&made->desc, task->nranks, r);
    made->in[r] = sheet_input(pool, random, mood, r, task->nranks, tokens, heads, value_dim);
    made->out[r] = sheet_output(pool, random, mood, part.tokens, part.heads, value_dim);
  }
  made->reference = sheet_merge(pool, made->in, task->nranks);
}

static void combine_all(world_rank *self) {
  const task *task = self->argument;
  for (int32_t i = 0; i < task->nattempts; i++) {
    const attempt *attempt = &task->attempts[i];
    const sheet *out = &attempt->out[self->rank];
    banyan_status status = banyan_combine(self->comm, &attempt->desc, &attempt->in[self->rank].partial,
                                          out->tokens && out->heads ? &out->partial : NULL);
    if (!world_ok(self, status, "combine")) return;
  }
}

static void check_attempt(const task *task, int32_t index) {
  const attempt *attempt = &task->attempts[index];
  const banyan_combine_desc *desc = &attempt->desc;
  sheet_bounds bounds = {task->nranks, task->nranks + 3, desc->wire};
  for (int32_t r = 0; r < task->nranks; r++) {
    const sheet_part part = sheet_part_of(desc, task->nranks, r);
    char why[256];
    ck_assert_msg(sheet_matches(&attempt->out[r], attempt->reference, desc->heads, part.token0, part.head0, &bounds,
                                why, sizeof why) &&
                      (snprintf(why, sizeof why, "wrote beside its rows"), sheet_gaps_are_untouched(&attempt->out[r])),
                  "%d processes, rank %d, attempt %d, algorithm %s, scatter %d: %s", task->nranks, r, index,
                  desc->algorithm ? desc->algorithm : "chosen", desc->scatter, why);
  }
}

TEST_LOOP(processes_combine, 8) {
  static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "tree", "ring", NULL};
  sheet_pool pool = {.shared = true};
  world_random random = {world_seed() * 50 + (uint64_t)_i};
  task *task = calloc(1, sizeof *task);
  task->nranks = nranks_of[_i / 2];
  for (int a = 0; a < 6; a++)
    for (int scatter = BANYAN_SCATTER_NONE; scatter <= BANYAN_SCATTER_TOKENS; scatter++)
      for (int again = 0; again < 2; again++) add_attempt(task, &pool, &random, algorithms[a], (banyan_scatter)scatter);
  WORLD_RUN(combine_all, .nranks = task->nranks, .processes = true, .argument = task,
            .arena_bytes = _i % 2 ? 64 << 10 : 0);
  for (int32_t i = 0; i < task->nattempts; i++) check_attempt(task, i);
  sheet_pool_free(&pool);
  free(task);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static bool all_are(const unsigned char *memory, size_t bytes, int value) {
  for (size_t i = 0; i < bytes; i++)
    if (memory[i] != (unsigned char)value) return false;
  return true;
}

static bool move_bytes(world_rank *self, size_t bytes, int round) {
  size_t counts[WORLD_RANKS_MAX], total = 0;
  for (int32_t i = 0; i < self->nranks; i++) total += counts[i] = bytes * (size_t)((i + round) % 3);
  unsigned char *mine = malloc(3 * bytes + 1), *all = malloc(total + 1), *other = malloc(bytes + 1);
  memset(mine, round + self->rank, 3 * bytes + 1);
  bool good = world_ok(self, banyan_allgather(self->comm, mine, all, counts), "gather");
  const unsigned char *at = all;
  for (int32_t i = 0; i < self->nranks && good; at += counts[i], i++)
    good = world_check(self, all_are(at, counts[i], round + i), "gather of %zu bytes is wrong", counts[i]);
  int32_t from = (self->rank + 2 * self->nranks - round % 3) % self->nranks, root = round % self->nranks;
  good = good && world_ok(self, banyan_shift(self->comm, mine, other, bytes, round % 3), "shift") &&
         world_check(self, all_are(other, bytes, round + from), "shift of %zu bytes is wrong", bytes) &&
         world_ok(self, banyan_broadcast(self->comm, mine, bytes, root), "broadcast") &&
         world_check(self, all_are(mine, bytes, round + root), "broadcast of %zu bytes is wrong", bytes) &&
         world_ok(self, banyan_barrier(self->comm), "barrier");
  free(mine);
  free(all);
  free(other);
  return good;
}

static void move_all_bytes(world_rank *self) {
  static const size_t sizes[] = {0, 1, 63, 1000, 50001, 300000};
  for (int round = 0; round < 30; round++)
    if (!move_bytes(self, sizes[round % 6], round)) return;
}

TEST_LOOP(processes_move_bytes, 8) {
  WORLD_RUN(move_all_bytes, .nranks = nranks_of[_i / 2], .processes = true, .arena_bytes = _i % 2 ? 64 << 10 : 0);
}

/* ---- nothing left ------------------------------------------------------------------------------------------------ */

static int count_entries(const char *path, const char *part_of_name) {
  DIR *directory = opendir(path);
  int count = 0;
  if (!directory) return 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
    count += strstr(entry->d_name, part_of_name) != NULL;
  closedir(directory);
  return count;
}

/* Mappings of memory files of the library. */
static int count_mappings(void) {
  FILE *maps = fopen("/proc/self/maps", "re");
  char line[512];
  int count = 0;
  if (!maps) return 0;
  while (fgets(line, sizeof line, maps)) count += strstr(line, "banyan") && strstr(line, "memfd");
  fclose(maps);
  return count;
}

static void come_and_go(world_rank *self) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 10000000000, .arena_bytes = 256 << 10};
  int files = count_entries("/proc/self/fd", "");
  for (int round = 0; round < 20; round++) {
    if (!world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) return;
    if (round == 0 && !world_check(self, self->nranks == 1 || count_mappings() > 0, "the test sees no shared memory"))
      return;
    if (!world_ok(self, banyan_barrier(self->comm), "barrier") || !move_bytes(self, 777, round)) return;
    banyan_comm_destroy(self->comm);
    self->comm = NULL;
  }
  int now = count_entries("/proc/self/fd", ""), mappings = count_mappings();
  world_check(self, now == files && mappings == 0, "%d files were open, and %d are; %d mappings are left", files, now,
              mappings);
}

TEST_LOOP(nothing_is_left_behind, 4) {
  WORLD_RUN(come_and_go, .nranks = nranks_of[_i], .processes = true, .bare = true);
  ck_assert_int_eq(count_entries("/dev/shm", "banyan"), 0);
}

/* One rank gives up amid the making: the others get the error, and nothing stays. */
static void fail_to_create(world_rank *self) {
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = 1000000000};
  if (self->rank == 1) config.algorithm = "ring";
  int files = count_entries("/proc/self/fd", "");
  for (int round = 0; round < 3; round++) {
    banyan_status status = banyan_comm_create(&self->bootstrap, &config, &self->comm);
    if (!world_check(self, status == BANYAN_ERR_MISMATCH, "create gave %d: %s", status, banyan_last_error())) return;
  }
  int now = count_entries("/proc/self/fd", "");
  world_check(self, now == files && count_mappings() == 0, "%d files were open, and %d are", files, now);
}

TEST(nothing_is_left_of_a_failure) { WORLD_RUN(fail_to_create, .nranks = 3, .processes = true, .bare = true); }

int main(void) { return world_main(suite_of("shm", 120)); }
