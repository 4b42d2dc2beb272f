/* SPDX-License-Identifier: Apache-2.0
 * Gather, shift, broadcast and barrier over ranks that are threads: odd sizes, zero sizes, sizes beyond the arena. */
#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/world.h"
#include "tests/support/suite.h"

enum { RANKS = 17, GUARD = 32 };

static const size_t sizes[] = {0, 1, 7, 64, 1001, 70000};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* Byte `index` of what `rank` sends in `round`. */
static unsigned char byte_of(int32_t rank, int round, size_t index) {
  return (unsigned char)((size_t)rank * 37 + (size_t)round * 11 + index * 3 + (index >> 8));
}

static unsigned char *take(size_t bytes) {
  unsigned char *memory = malloc(bytes + GUARD);
  if (!memory) abort();
  memset(memory, 0x5A, bytes + GUARD);
  return memory;
}

static void fill(unsigned char *memory, size_t bytes, int32_t rank, int round) {
  for (size_t i = 0; i < bytes; i++) memory[i] = byte_of(rank, round, i);
}

static bool holds(world_rank *self, const unsigned char *memory, size_t bytes, int32_t rank, int round,
                  const char *what) {
  for (size_t i = 0; i < bytes; i++)
    if (!world_check(self, memory[i] == byte_of(rank, round, i), "%s of %zu bytes: byte %zu from rank %d is %d, not %d",
                     what, bytes, i, rank, memory[i], byte_of(rank, round, i)))
      return false;
  return true;
}

static bool guarded(world_rank *self, const unsigned char *memory, size_t bytes, const char *what) {
  for (size_t i = bytes; i < bytes + GUARD; i++)
    if (!world_check(self, memory[i] == 0x5A, "%s of %zu bytes wrote beyond its end", what, bytes)) return false;
  return true;
}

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* Counts of a round, the same on every rank: uneven, with zeros; in some rounds one rank alone has all, or none has
 * any. */
static size_t choose_counts(int round, int32_t nranks, size_t *counts) {
  world_random random = {world_seed() * 77 + (uint64_t)round};
  size_t total = 0;
  for (int32_t i = 0; i < nranks; i++) {
    counts[i] = random_one_in(&random, 3) ? 0 : (size_t)random_below(&random, round % 5 == 4 ? 30000 : 300);
    if (round % 7 == 3) counts[i] = i == nranks / 2 ? 12345 : 0;
    if (round == 5) counts[i] = 0;
    total += counts[i];
  }
  return total;
}

static void gather_rounds(world_rank *self) {
  for (int round = 0; round < 24; round++) {
    size_t counts[RANKS], total = choose_counts(round, self->nranks, counts), before = 0;
    for (int32_t i = 0; i < self->rank; i++) before += counts[i];
    unsigned char *mine = take(counts[self->rank]), *all = take(total);
    bool in_place = round % 2;
    unsigned char *from = in_place ? all + before : mine;
    fill(from, counts[self->rank], self->rank, round);
    bool good = world_ok(self, banyan_allgather(self->comm, from, all, counts), "gather");
    const unsigned char *at = all;
    for (int32_t r = 0; r < self->nranks && good; at += counts[r], r++)
      good = holds(self, at, counts[r], r, round, "gather");
    good = good && guarded(self, all, total, "gather");
    free(mine);
    free(all);
    if (!good) return;
  }
}

/* ---- shift ------------------------------------------------------------------------------------------------------- */

static void shift_rounds(world_rank *self) {
  for (int32_t distance = -self->nranks - 1; distance <= self->nranks + 1; distance++) {
    for (int s = 0; s < SIZES; s++) {
      size_t bytes = sizes[s];
      int32_t sender = (self->rank - distance) % self->nranks;
      if (sender < 0) sender += self->nranks;
      unsigned char *send = take(bytes), *receive = take(bytes);
      fill(send, bytes, self->rank, s + distance);
      bool good = world_ok(self, banyan_shift(self->comm, send, receive, bytes, distance), "shift") &&
                  holds(self, receive, bytes, sender, s + distance, "shift") &&
                  guarded(self, receive, bytes, "shift") &&
                  holds(self, send, bytes, self->rank, s + distance, "what was sent by shift");
      free(send);
      free(receive);
      if (!good) return;
    }
  }
}

/* ---- broadcast --------------------------------------------------------------------------------------------------- */

static void broadcast_rounds(world_rank *self) {
  for (int32_t root = 0; root < self->nranks; root++) {
    for (int s = 0; s < SIZES; s++) {
      size_t bytes = sizes[s];
      unsigned char *data = take(bytes);
      if (self->rank == root) fill(data, bytes, root, s);
      bool good = world_ok(self, banyan_broadcast(self->comm, data, bytes, root), "broadcast") &&
                  holds(self, data, bytes, root, s, "broadcast") && guarded(self, data, bytes, "broadcast");
      free(data);
      if (!good) return;
    }
  }
}

/* ---- barrier ----------------------------------------------------------------------------------------------------- */

/* Nobody leaves round i before all have come to it; and all have, once anybody left. */
static void barrier_rounds(world_rank *self) {
  atomic_int *came = self->argument;
  world_random random = {world_seed() * 5 + (uint64_t)self->rank};
  for (int round = 0; round < 60; round++) {
    if (random_one_in(&random, 8)) world_sleep_ms(random_below(&random, 3));
    atomic_fetch_add_explicit(&came[round], 1, memory_order_relaxed);
    if (!world_ok(self, banyan_barrier(self->comm), "barrier")) return;
    int number = atomic_load_explicit(&came[round], memory_order_relaxed);
    if (!world_check(self, number == self->nranks, "barrier %d let a rank go when %d had come", round, number)) return;
  }
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static const int32_t counts_of_ranks[] = {1, 2, 3, 4, 5, 7, 8, 17};
static const size_t arenas[] = {1 << 20, 64 << 10};

static world_setup setup_of(int index) {
  return (world_setup){.nranks = counts_of_ranks[index / 2], .arena_bytes = arenas[index % 2]};
}

TEST_LOOP(gathers, 16) {
  world_setup setup = setup_of(_i);
  world_run(&setup, gather_rounds);
}

TEST_LOOP(shifts, 16) {
  world_setup setup = setup_of(_i);
  world_run(&setup, shift_rounds);
}

TEST_LOOP(broadcasts, 16) {
  world_setup setup = setup_of(_i);
  world_run(&setup, broadcast_rounds);
}

TEST_RANGE(meets_at_barriers, 1, RANKS + 1) {
  atomic_int came[60] = {0};
  WORLD_RUN(barrier_rounds, .nranks = _i, .argument = came);
}

int main(void) { return world_main(suite_of("world_bytes", 300)); }
