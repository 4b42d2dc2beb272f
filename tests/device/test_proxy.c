/* SPDX-License-Identifier: Apache-2.0
 * Tests the host's side of combines on devices of several nodes with concurrent threads, and under the thread
 * sanitizer. The sanitizer cannot follow emulated kernels. Here a device is a thread that runs programs in plain C like
 * the interpreter's kernel. */
#include <pthread.h>

#include "cuda/program.h"
#include "tests/device/device_util.h"
#include "tests/support/world.h"

enum { RANKS = 3, QUEUE = 1024, HEADS_MAX = 12, VALUE_DIM = 5 };

/* ---- a device ---------------------------------------------------------------------------------------------------- */

typedef struct job {
  bny_device_group group;
  const bny_program *program;
  bny_device_call call;
} job;

/* Jobs [done, made) are in its queue. */
typedef struct device {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  pthread_t thread;
  bool begun, ends;
  int made, done;
  job jobs[QUEUE];
} device;

static device devices[RANKS];

/* Returns a word of an arena or of a proxy's memory by its address. */
static _Atomic uint64_t *word_at(uint64_t address) { return (_Atomic uint64_t *)(uintptr_t)address; }

static uint64_t in_arena(const job *job, int32_t rank, size_t offset) {
  return (uint64_t)(uintptr_t)(job->group.arenas[rank] + offset);
}

static uint64_t in_proxy_words(const job *job, size_t offset) { return (uint64_t)(uintptr_t)job->group.proxy + offset; }

static bool is_aborted(const job *job) {
  const bny_arena_head *head = (const bny_arena_head *)(const void *)job->group.arenas[job->group.rank];
  return atomic_load(word_at(in_arena(job, job->group.rank, offsetof(bny_arena_head, abort)))) ||
         atomic_load((_Atomic uint64_t *)(void *)&head->words[BNY_DEVICE_WORD_ABORT]);
}

static bool await(const job *job, uint64_t address, uint64_t least) {
  while (atomic_load_explicit(word_at(address), memory_order_acquire) < least) {
    if (is_aborted(job)) return false;
    world_sleep_ms(0.01);
  }
  return true;
}

/* A row in transit: m, d and a numerator, all f32. m is 0, so that a merge is an addition. */
typedef struct row {
  float m, d, n[VALUE_DIM];
} row;

/* Reads or writes a row of the caller. */
static void move_row(const job *job, int32_t token, int32_t head, row *row, bool reads) {
  const banyan_partial *partial = reads ? &job->call.in : &job->call.out;
  if (!reads) token -= job->call.out_token0, head -= job->call.out_head0;
  float *values = (float *)partial->values + token * partial->values_token_stride + head * partial->values_head_stride;
  int64_t stat = token * partial->stats_token_stride + head * partial->stats_head_stride;
  float *m = (float *)partial->lse + stat, *d = (float *)partial->sum + stat;
  if (reads)
    row->m = *m, row->d = *d, memcpy(row->n, values, sizeof row->n);
  else
    *m = row->m, *d = row->d, memcpy(values, row->n, sizeof row->n);
}

/* The addresses of a row's words and of its signal. */
typedef struct words {
  float *m, *d, *n;
  uint64_t signal;
} words;

static words find_words(const job *job, const bny_program_endpoint *place, int32_t token, int32_t head, uint64_t epoch,
                        bool reads) {
  const bny_unit_shape *shape = &job->program->shape;
  int half = (int)(epoch & 1);
  int64_t number = (int64_t)(token - place->token0) * place->heads + head - place->head0;
  uint64_t step = (uint64_t)number * sizeof(uint64_t);
  if (place->message[half]) {
    char *message = (char *)(uintptr_t)place->message[half];
    return (words){(float *)(void *)message + number, (float *)(void *)(message + place->d) + number,
                   (float *)(void *)(message + place->n) + number * VALUE_DIM,
                   place->signals[half] + (reads ? 0 : step)};
  }
  int32_t rank = reads ? job->group.rank : place->peer;
  float *unit = (float *)(void *)(job->group.arenas[rank] + job->group.shape.inbox[BNY_PROTOCOL_SIMPLE][half] +
                                  place->offset + (uint64_t)number * shape->unit_bytes);
  uint64_t signals = in_arena(job, rank, job->group.shape.signals[half]) + place->signal * sizeof(uint64_t);
  return (words){unit, unit + 1, unit + 4, signals + step};
}

static bool gather_row(const job *job, const bny_program_step *step, const bny_program_endpoint *places, int32_t token,
                       int32_t head, uint64_t epoch, row *row) {
  if (step->kind == BNY_PROGRAM_COPY) move_row(job, token, head, row, true);
  for (int32_t i = 0; i < step->nsources; i++) {
    words from = find_words(job, &places[step->sources + i], token, head, epoch, true);
    if (!await(job, from.signal, epoch)) return false;
    row->d += *from.d;
    for (int j = 0; j < VALUE_DIM; j++) row->n[j] += from.n[j];
  }
  return true;
}

static bool run_step(const job *job, const bny_program_step *step, const bny_program_endpoint *places, uint64_t epoch) {
  for (int32_t i = 0; i < step->tokens * step->heads; i++) {
    int32_t token = step->token0 + i / step->heads, head = step->head0 + i % step->heads;
    row row = {0};
    if (!gather_row(job, step, places, token, head, epoch, &row)) return false;
    if (step->kind == BNY_PROGRAM_DELIVER) move_row(job, token, head, &row, false);
    for (int32_t d = 0; d < step->ndestinations; d++) {
      words to = find_words(job, &places[step->destinations + d], token, head, epoch, false);
      *to.m = row.m, *to.d = row.d, memcpy(to.n, row.n, sizeof row.n);
      atomic_store_explicit(word_at(to.signal), epoch, memory_order_release);
    }
  }
  return true;
}

static bool begin_run(const job *job, uint64_t epoch) {
  int32_t own = job->group.rank;
  size_t begun = offsetof(bny_arena_head, begun);
  for (int32_t i = 0; i < job->group.nranks; i++)
    if (i != own && !await(job, in_arena(job, own, begun + (size_t)i * sizeof epoch), epoch - 1)) return false;
  if (!await(job, in_proxy_words(job, offsetof(bny_proxy_words, taken)), epoch - 1)) return false;
  atomic_store_explicit(word_at(in_proxy_words(job, offsetof(bny_proxy_words, label))), job->program->label,
                        memory_order_relaxed);
  atomic_store_explicit(word_at(in_proxy_words(job, offsetof(bny_proxy_words, begun))), epoch, memory_order_release);
  for (int32_t i = 0; i < job->group.nranks; i++)
    atomic_store_explicit(word_at(in_arena(job, i, begun + (size_t)own * sizeof epoch)), epoch, memory_order_release);
  return true;
}

static void run_job(const job *job) {
  _Atomic uint64_t *tickets = word_at(in_arena(job, job->group.rank, offsetof(bny_arena_head, tickets)));
  uint64_t epoch = atomic_load(tickets) + 1;
  const bny_program *program = job->program;
  const bny_program_step *steps = (const bny_program_step *)(const void *)(program + 1);
  const bny_program_endpoint *places = (const bny_program_endpoint *)(const void *)(steps + program->nsteps);
  atomic_store(tickets, epoch);
  if (!begin_run(job, epoch)) return;
  for (int32_t i = 0; i < program->nsteps; i++)
    if (!run_step(job, &steps[i], places, epoch)) return;
  atomic_store_explicit(word_at(in_proxy_words(job, offsetof(bny_proxy_words, ended))), epoch, memory_order_release);
}

static void *run_device(void *argument) {
  device *self = argument;
  pthread_mutex_lock(&self->mutex);
  while (!self->ends || self->done < self->made) {
    if (self->done == self->made) {
      pthread_cond_wait(&self->changed, &self->mutex);
      continue;
    }
    const job *next = &self->jobs[self->done];
    pthread_mutex_unlock(&self->mutex);
    run_job(next);
    pthread_mutex_lock(&self->mutex);
    self->done++;
    pthread_cond_broadcast(&self->changed);
  }
  pthread_mutex_unlock(&self->mutex);
  return NULL;
}

static void launch(const fake_cuda_launch *launch) {
  device *self = &devices[launch->device];
  pthread_mutex_lock(&self->mutex);
  if (self->made == QUEUE) abort();
  job *made = &self->jobs[self->made++];
  memcpy(&made->group, launch->arguments[0], sizeof made->group);
  memcpy(&made->program, launch->arguments[1], sizeof made->program);
  memcpy(&made->call, launch->arguments[2], sizeof made->call);
  if (!self->begun) self->begun = pthread_create(&self->thread, NULL, run_device, self) == 0;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->mutex);
}

/* Waits until the device has no work. */
static void finish(device *self) {
  pthread_mutex_lock(&self->mutex);
  while (self->done < self->made) pthread_cond_wait(&self->changed, &self->mutex);
  pthread_mutex_unlock(&self->mutex);
}

static void end_device(device *self) {
  pthread_mutex_lock(&self->mutex);
  self->ends = true;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->mutex);
  if (self->begun) pthread_join(self->thread, NULL);
}

/* ---- a world ----------------------------------------------------------------------------------------------------- */

static void begin(void) {
  static const fake_cuda_image image = {FAKE_CUDA_MAGIC, {{"*", launch}}}; /* only bny_interpret_simple_32 is
                                                                            * launched */
  setenv("FAKE_CUDA", "devices=3,no-fabric", 1);
  setenv("BANYAN_CUDA_LIBRARY", fake_cuda_path(), 1);
  world_be_nodes("a,a,b");
  fake_cuda_set_image(&image, sizeof image);
  for (int i = 0; i < RANKS; i++) {
    pthread_mutex_init(&devices[i].mutex, NULL);
    pthread_cond_init(&devices[i].changed, NULL);
  }
}

typedef struct rows {
  float m[HEADS_MAX], d[HEADS_MAX], n[HEADS_MAX * VALUE_DIM];
} rows;

static banyan_partial partial_of(rows *rows, int32_t heads) {
  banyan_partial made;
  banyan_partial_init(&made, rows->n, BANYAN_F32, rows->m, BANYAN_F32, heads, VALUE_DIM);
  made.values_kind = BANYAN_VALUES_NUMERATOR;
  made.stats_kind = BANYAN_STATS_MAX_SUM;
  made.base = BANYAN_BASE_2;
  made.sum = rows->d;
  return made;
}

static banyan_status combine(world_rank *self, int32_t heads, rows *in, rows *out) {
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = heads, .value_dim = VALUE_DIM};
  banyan_partial from = partial_of(in, heads), to = partial_of(out, heads);
  return banyan_combine(self->comm, &desc, &from, &to);
}

static void live(world_rank *self) {
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", self->rank);
  banyan_comm_config config = {
      .size = sizeof config, .arena_bytes = 256 << 10, .device = name, .timeout_ns = WORLD_GUARD_NS};
  void (*body)(world_rank * self) = *(void (**)(world_rank *))self->argument;
  if (world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create")) body(self);
  finish(&devices[self->rank]);
  end_device(&devices[self->rank]);
  world_meet(self);
}

static void run(void (*body)(world_rank *self)) {
  begin();
  world_run(&(world_setup){.nranks = RANKS, .bare = true, .argument = &body}, live);
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

enum { RUNS = 150 };

/* Plans new shapes while the proxies run others. */
static void combine_many(world_rank *self) {
  static rows in[RANKS], out[RANKS][RUNS];
  rows *mine = &in[self->rank], *got = out[self->rank];
  for (int i = 0; i < HEADS_MAX; i++) mine->m[i] = 0, mine->d[i] = 1;
  for (int i = 0; i < HEADS_MAX * VALUE_DIM; i++) mine->n[i] = (float)(self->rank * 100 + i);
  for (int i = 0; i < RUNS; i++) {
    if (!world_ok(self, combine(self, 1 + i * 7 / 5 % HEADS_MAX, mine, &got[i]), "combine")) return;
    world_ok(self, banyan_comm_status(self->comm), "status");
    if (i % 20 == 0) world_ok(self, banyan_barrier(self->comm), "barrier");
  }
  finish(&devices[self->rank]);
  for (int i = 0; i < RUNS; i++)
    for (int j = 0; j < (1 + i * 7 / 5 % HEADS_MAX) * VALUE_DIM; j++)
      if (!world_check(self, got[i].n[j] == (float)(300 + 3 * j) && got[i].d[j / VALUE_DIM] == 3, "run %d: %g", i,
                       (double)got[i].n[j]))
        return;
  world_meet(self);
}

TEST(plans_are_made_beside_runs) { run(combine_many); }

static void *abort_soon(void *comm) {
  world_sleep_ms(20);
  banyan_comm_abort(comm, "another thread");
  return NULL;
}

/* Aborts while proxies, devices and callers all run. */
static void abort_many(world_rank *self) {
  static rows in[RANKS], out[RANKS];
  pthread_t thread;
  rows *mine = &in[self->rank];
  for (int i = 0; i < HEADS_MAX; i++) mine->d[i] = 1;
  if (!world_ok(self, combine(self, 3, mine, &out[self->rank]), "combine") || !world_meet(self)) return;
  if (self->rank == 1 && pthread_create(&thread, NULL, abort_soon, self->comm) != 0) return;
  double until = world_now_s() + WORLD_GUARD_S;
  banyan_status status = BANYAN_OK;
  for (int i = 0; status == BANYAN_OK && world_now_s() < until; i++) {
    if (i < RUNS && self->rank != 2) status = combine(self, 3, mine, &out[self->rank]);
    if (status == BANYAN_OK) status = banyan_comm_status(self->comm);
    world_sleep_ms(0.1);
  }
  if (self->rank == 1) pthread_join(thread, NULL);
  world_check(self, status == BANYAN_ERR_ABORTED && banyan_comm_failed_rank(self->comm) == 1, "status %d: %s", status,
              banyan_comm_error(self->comm));
  world_meet(self);
}

TEST(aborts_from_any_thread) { run(abort_many); }

int main(void) {
  if (!world_has_network()) return 77;
  return world_main(suite_of("proxy", 60));
}
