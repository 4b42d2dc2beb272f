/* SPDX-License-Identifier: Apache-2.0
 * One rank of tests/faults/soak. For each line on its standard input
 *
 *     ROUND PORT SEED OPERATIONS DEADLINE_MS FAULT VICTIM
 *
 * it joins the others in a new communicator of all ranks and runs this many operations of mixed kinds and sizes. Each
 * result is checked, and the fault happens in the middle. If a call fails, it shrinks to the surviving ranks and
 * continues with them for a while. It prints one line of JSON with the results and the resources that this process
 * holds. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "banyan.h"
#include "tests/support/self.h"
#include "tests/support/clock.h"
#include "base/hash.h"

enum { RANKS_MAX = 16, ROWS_MAX = 128, DIM_MAX = 128, BYTES_MAX = 1 << 20, AFTERWARDS = 30, SHAPES = 40 };
static const int64_t meeting_ns = 30000000000;

typedef struct round {
  long number, operations, deadline_ms;
  int port;
  uint64_t seed;
  char fault[24];
  int victim;
} round_of_faults;

/* A communicator, and the original ranks of its members. */
typedef struct group {
  banyan_comm *comm;
  int32_t rank, nranks;
  int32_t members[RANKS_MAX];
} group;

typedef struct memory {
  float values[ROWS_MAX * DIM_MAX], lse[ROWS_MAX], out[ROWS_MAX * DIM_MAX], out_lse[ROWS_MAX];
  unsigned char mine[BYTES_MAX], all[BYTES_MAX * 4];
} memory;

static int32_t origin;    /* number of this process among all ranks */
static uint64_t bytes_in; /* passed to operations by this rank */
static char wrong[256];   /* the first wrong result */

/* ---- numbers that every rank can derive -------------------------------------------------------------------------- */

static double unit(uint64_t a, uint64_t b) { return (double)(bny_hash_add(bny_hash_of(a), b) >> 40) / (1 << 23) - 1; }

static uint64_t seed_of(uint64_t operation, int32_t rank) {
  return bny_hash_add(bny_hash_of(operation), (uint64_t)rank + 1);
}

static void note_wrong(const char *what, uint64_t operation, double got, double wanted) {
  if (!wrong[0])
    snprintf(wrong, sizeof wrong, "%s (operation %llx): %g, not %g", what, (unsigned long long)operation, got, wanted);
}

/* ---- combines ---------------------------------------------------------------------------------------------------- */

/* Few shapes, so that some calls repeat a shape and some have a new one. */
static banyan_combine_desc shape_of(uint64_t operation, int32_t nranks) {
  static const int32_t dims[] = {16, 64, 128};
  static const banyan_dtype wires[] = {BANYAN_F32, BANYAN_F32, BANYAN_F32, BANYAN_F16, BANYAN_BF16};
  uint64_t shape = bny_hash_add(bny_hash_of(operation), 7) % SHAPES, word = bny_hash_add(bny_hash_of(shape), 1);
  banyan_combine_desc desc = {.size = sizeof desc,
                              .tokens = 1 + (int32_t)(word % 4),
                              .heads = 1 + (int32_t)(word >> 8) % 32,
                              .value_dim = dims[(word >> 16) % 3],
                              .wire = wires[(word >> 20) % 5],
                              .scatter = (banyan_scatter)((word >> 24) % 4),
                              .order = (banyan_order)((word >> 28) % 2)};
  if (desc.heads < 1) desc.heads = 1;
  if (desc.scatter == BANYAN_SCATTER_ROOT) desc.root = (int32_t)(word >> 32 & 0xffff) % nranks;
  return desc;
}

static double reference(const group *group, uint64_t operation, int32_t row, int32_t k, int32_t value_dim) {
  double sum = 0, weighted = 0;
  for (int32_t i = 0; i < group->nranks; i++) {
    uint64_t seed = seed_of(operation, group->members[i]);
    double weight = exp(3 * unit(seed, (uint64_t)row));
    sum += weight;
    weighted += weight * unit(seed, 1000 + (uint64_t)(row * value_dim + k));
  }
  return weighted / sum;
}

static void check_combine(const group *group, uint64_t operation, const banyan_combine_desc *desc,
                          const memory *memory) {
  int32_t first = 0, tokens = desc->tokens, heads = desc->heads, token0 = 0, head0 = 0;
  if (desc->scatter == BANYAN_SCATTER_ROOT && desc->root != group->rank) return;
  if (desc->scatter == BANYAN_SCATTER_HEADS) banyan_split(desc->heads, group->nranks, group->rank, &head0, &heads);
  if (desc->scatter == BANYAN_SCATTER_TOKENS) banyan_split(desc->tokens, group->nranks, group->rank, &token0, &tokens);
  double bound = desc->wire == BANYAN_F32 ? 2e-5 : desc->wire == BANYAN_F16 ? 4e-3 : 4e-2;
  for (int32_t i = first; i < tokens * heads; i++) {
    int32_t row = (token0 + i / heads) * desc->heads + head0 + i % heads, k = (row * 37 + 5) % desc->value_dim;
    double wanted = reference(group, operation, row, k, desc->value_dim),
           got = (double)memory->out[i * desc->value_dim + k];
    if (!(fabs(got - wanted) <= bound)) note_wrong("combine", operation, got, wanted);
  }
}

static banyan_status run_combine(const group *group, memory *memory, const banyan_combine_desc *desc, bool persistent,
                                 uint64_t operation, bool lie) {
  banyan_partial in, out;
  banyan_combine_desc told = *desc;
  uint64_t seed = seed_of(operation, origin);
  int32_t rows = desc->tokens * desc->heads, heads = desc->heads, ignored;
  if (desc->scatter == BANYAN_SCATTER_HEADS) banyan_split(desc->heads, group->nranks, group->rank, &ignored, &heads);
  for (int32_t i = 0; i < rows; i++) memory->lse[i] = (float)(3 * unit(seed, (uint64_t)i));
  for (int32_t i = 0; i < rows * desc->value_dim; i++) memory->values[i] = (float)unit(seed, 1000 + (uint64_t)i);
  if (lie) told.heads = desc->heads > 1 ? desc->heads - 1 : 2;
  banyan_partial_init(&in, memory->values, BANYAN_F32, memory->lse, BANYAN_F32, told.heads, desc->value_dim);
  banyan_partial_init(&out, memory->out, BANYAN_F32, memory->out_lse, BANYAN_F32, lie ? told.heads : heads,
                      desc->value_dim);
  bytes_in += (uint64_t)rows * ((uint64_t)desc->value_dim + 2) * sizeof(float);
  const banyan_partial *to = desc->scatter == BANYAN_SCATTER_ROOT && desc->root != group->rank ? NULL : &out;
  if (!persistent) return banyan_combine(group->comm, &told, &in, to);
  banyan_op *op = NULL;
  banyan_status status = banyan_combine_init(group->comm, &told, &in, to, &op);
  for (int i = 0; i < 3 && status == BANYAN_OK; i++) {
    status = banyan_start(op);
    if (status == BANYAN_OK) status = banyan_wait(op);
  }
  banyan_op_free(op);
  return status;
}

static banyan_status combine(const group *group, memory *memory, uint64_t operation, bool lie) {
  banyan_combine_desc desc = shape_of(operation, group->nranks);
  banyan_status status =
      run_combine(group, memory, &desc, bny_hash_add(bny_hash_of(operation), 3) % 8 == 0, operation, lie);
  if (status == BANYAN_OK) check_combine(group, operation, &desc, memory);
  return status;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void fill(unsigned char *bytes, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) bytes[i] = (unsigned char)(seed + i * 7 + i / 251);
}

static void check_bytes(const unsigned char *bytes, size_t count, uint64_t seed, const char *what, uint64_t operation) {
  for (size_t i = 0; i < count; i++)
    if (bytes[i] != (unsigned char)(seed + i * 7 + i / 251)) {
      note_wrong(what, operation, bytes[i], (unsigned char)(seed + i * 7 + i / 251));
      return;
    }
}

/* Mostly small sizes; one in sixteen is up to a megabyte. */
static size_t bytes_of(uint64_t operation) {
  uint64_t word = bny_hash_add(bny_hash_of(operation), 11) % 48;
  return word < 3 ? (size_t)BYTES_MAX >> word : 1 + word * word * 8;
}

static banyan_status move_bytes(const group *group, memory *memory, uint64_t operation) {
  size_t bytes = bytes_of(operation), counts[RANKS_MAX] = {0};
  int32_t n = group->nranks, root = (int32_t)(bny_hash_add(bny_hash_of(operation), 13) % (uint64_t)n),
          before = (group->rank + n - 1) % n;
  banyan_status status;
  if (bytes * (size_t)n > sizeof memory->all) bytes = sizeof memory->all / (size_t)n;
  fill(memory->mine, bytes, seed_of(operation, origin));
  bytes_in += bytes;
  switch (bny_hash_add(bny_hash_of(operation), 17) % 4) {
  case 0:
    for (int32_t i = 0; i < n; i++) counts[i] = bytes;
    status = banyan_allgather(group->comm, memory->mine, memory->all, counts);
    for (int32_t i = 0; i < n && status == BANYAN_OK; i++)
      check_bytes(memory->all + (size_t)i * bytes, bytes, seed_of(operation, group->members[i]), "gather", operation);
    return status;
  case 1:
    status = banyan_shift(group->comm, memory->mine, memory->all, bytes, 1);
    if (status == BANYAN_OK)
      check_bytes(memory->all, bytes, seed_of(operation, group->members[before]), "shift", operation);
    return status;
  case 2:
    status = banyan_broadcast(group->comm, memory->mine, bytes, root);
    if (status == BANYAN_OK)
      check_bytes(memory->mine, bytes, seed_of(operation, group->members[root]), "broadcast", operation);
    return status;
  default: return banyan_barrier(group->comm);
  }
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static void *kill_soon(void *argument) {
  sleep_s((double)(uintptr_t)argument * 1e-3);
  raise(SIGKILL);
  return NULL;
}

static void *abort_soon(void *argument) {
  sleep_s(0.001);
  banyan_comm_abort(argument, "the soak aborts");
  return NULL;
}

/* Commits the victim's fault. *lie becomes true if its next operation shall differ from the others. */
static void misbehave(group *group, const round_of_faults *round, pthread_t *thread, bool *lie) {
  const char *fault = round->fault;
  if (strcmp(fault, "kill") == 0 && pthread_create(thread, NULL, kill_soon, (void *)(uintptr_t)(round->seed % 4)) == 0)
    return;
  if (strcmp(fault, "abort") == 0) pthread_create(thread, NULL, abort_soon, group->comm);
  if (strcmp(fault, "stop") == 0) raise(SIGSTOP);
  if (strcmp(fault, "leave") == 0) {
    banyan_comm_destroy(group->comm);
    group->comm = NULL;
  }
  *lie = strcmp(fault, "mismatch") == 0;
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

static banyan_status meet(const round_of_faults *round, group *group) {
  char port[16];
  banyan_env *env = NULL;
  banyan_bootstrap bootstrap;
  snprintf(port, sizeof port, "%d", round->port);
  setenv("MASTER_PORT", port, 1);
  banyan_status status = banyan_env_create(meeting_ns, &env, &bootstrap);
  if (status != BANYAN_OK) return status;
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = round->deadline_ms * 1000000};
  status = banyan_comm_create(&bootstrap, &config, &group->comm);
  banyan_env_destroy(env);
  if (status != BANYAN_OK) return status;
  group->rank = banyan_comm_rank(group->comm);
  group->nranks = banyan_comm_nranks(group->comm);
  for (int32_t i = 0; i < group->nranks; i++) group->members[i] = i;
  return status;
}

static banyan_status operate(const group *group, memory *memory, uint64_t operation, bool lie) {
  return lie || bny_hash_add(bny_hash_of(operation), 5) % 4 ? combine(group, memory, operation, lie)
                                                            : move_bytes(group, memory, operation);
}

/* The fault comes in the middle. The loop then continues until the fault is noticed. */
static banyan_status work(group *group, memory *memory, const round_of_faults *round, long *done) {
  bool is_victim = round->victim == origin, lie = false, started = false;
  bool endless = strcmp(round->fault, "none") != 0 && strcmp(round->fault, "blip") != 0;
  banyan_status status = BANYAN_OK;
  pthread_t thread;
  for (long i = 0; status == BANYAN_OK && (endless || i < round->operations); i++) {
    if (i == round->operations / 2) {
      if (origin == 0) printf("{\"round\": %ld, \"stage\": \"middle\"}\n", round->number), fflush(stdout);
      if (is_victim) misbehave(group, round, &thread, &lie);
      started = is_victim && (strcmp(round->fault, "abort") == 0 || strcmp(round->fault, "kill") == 0);
      if (!group->comm) return BANYAN_OK;
    }
    status = operate(group, memory, bny_hash_add(bny_hash_of(round->seed), (uint64_t)i), lie);
    *done += status == BANYAN_OK;
  }
  if (started) pthread_join(thread, NULL);
  return status == BANYAN_OK ? banyan_barrier(group->comm) : status;
}

/* Shrinks a failed group to its surviving ranks, and runs operations with them. */
static banyan_status go_on(group *group, memory *memory, uint64_t seed, long *done) {
  int32_t members[RANKS_MAX];
  banyan_comm *left = NULL;
  banyan_comm_abort(group->comm, "going on without those who failed");
  banyan_status status = banyan_comm_shrink(group->comm, members, &left);
  if (status != BANYAN_OK) return status;
  banyan_comm_destroy(group->comm);
  group->comm = left;
  group->rank = banyan_comm_rank(left);
  group->nranks = banyan_comm_nranks(left);
  for (int32_t i = 0; i < group->nranks; i++) group->members[i] = group->members[members[i]];
  for (int i = 0; i < AFTERWARDS && status == BANYAN_OK; i++, *done += status == BANYAN_OK)
    status = operate(group, memory, bny_hash_add(bny_hash_of(seed), 100000 + (uint64_t)i), false);
  return status == BANYAN_OK ? banyan_barrier(left) : status;
}

static long resident_kib(void) {
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (file && fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
  if (file) fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void say_text(const char *name, const char *text) {
  printf(", \"%s\": \"", name);
  for (; *text; text++) putchar(*text == '"' || *text == '\\' || (unsigned char)*text < 32 ? ' ' : *text);
  putchar('"');
}

static void play(const round_of_faults *round, memory *memory) {
  group group = {0};
  double waited_before = self_waited_s();
  long done = 0, afterwards = 0;
  const char *stage = "meet";
  banyan_status status = meet(round, &group), shrunk = BANYAN_OK;
  char text[512] = "", shrunk_text[512] = "";
  bool met = status == BANYAN_OK;
  if (met) stage = "work", status = work(&group, memory, round, &done);
  if (status != BANYAN_OK) snprintf(text, sizeof text, "%s", banyan_last_error());
  if (met && status != BANYAN_OK && group.comm) shrunk = go_on(&group, memory, round->seed, &afterwards);
  if (shrunk != BANYAN_OK) snprintf(shrunk_text, sizeof shrunk_text, "%s", banyan_last_error());
  banyan_comm_destroy(group.comm);
  printf(
      "{\"round\": %ld, \"stage\": \"%s\", \"status\": \"%s\", \"left\": %d, \"shrunk\": \"%s\", \"done\": %ld, "
      "\"afterwards\": %ld, \"bytes\": %llu, \"resident_kib\": %ld, \"files\": %d, \"threads\": %d, \"waited_s\": %.3f",
      round->number, stage, banyan_status_string(status), group.nranks, banyan_status_string(shrunk), done, afterwards,
      (unsigned long long)bytes_in, resident_kib(), self_count("/proc/self/fd") - 1, self_count("/proc/self/task"),
      self_waited_s() - waited_before);
  say_text("text", text);
  say_text("shrunk_text", shrunk_text);
  say_text("wrong", wrong);
  puts("}");
  fflush(stdout);
  wrong[0] = 0;
  bytes_in = 0;
}

int main(void) {
  char line[256];
  round_of_faults round;
  memory *memory = calloc(1, sizeof *memory);
  if (!memory || !getenv("RANK")) {
    fprintf(stderr, "usage: started by tests/faults/soak\n");
    return 2;
  }
  origin = atoi(getenv("RANK"));
  memset(memory, 1, sizeof *memory); /* touches all pages now, so that later growth is the library's */
  while (fgets(line, sizeof line, stdin)) {
    unsigned long long seed;
    if (sscanf(line, "%ld %d %llu %ld %ld %23s %d", &round.number, &round.port, &seed, &round.operations,
               &round.deadline_ms, round.fault, &round.victim) != 7)
      return 2;
    round.seed = seed;
    play(&round, memory);
  }
  free(memory);
  return 0;
}
