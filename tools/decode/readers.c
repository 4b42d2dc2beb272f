/* SPDX-License-Identifier: Apache-2.0
 * Threads that read memory at full speed, with which attention is compared. */
#include "tools/decode/decode.h"

#include <pthread.h>

#include "tools/common/read_all.h"

typedef struct reader {
  pthread_t thread;
  decode_readers *all;
  const uint64_t *words;
  size_t count;
  int64_t begin_ns, end_ns; /* times of the last run */
  uint64_t sum;             /* keeps the compiler from removing the reads */
} reader;

/* Each thread waits for the next run and not for other threads, so any thread that has started can be ended. */
struct decode_readers {
  pthread_mutex_t lock;
  pthread_cond_t begun, done;
  int64_t run;
  int32_t count, started, working;
  bool leaving;
  reader each[];
};

/* Records begin and end per thread, because a thread that shares its core may begin long after another. */
static void read_part(reader *self) {
  self->begin_ns = tool_now_ns();
  self->sum += read_all(self->words, self->count);
  self->end_ns = tool_now_ns();
}

static void *run_reader(void *argument) {
  reader *self = argument;
  decode_readers *all = self->all;
  pthread_mutex_lock(&all->lock);
  for (int64_t last = 0;; last = all->run) {
    while (all->run == last && !all->leaving) pthread_cond_wait(&all->begun, &all->lock);
    if (all->leaving) break;
    pthread_mutex_unlock(&all->lock);
    read_part(self);
    pthread_mutex_lock(&all->lock);
    if (--all->working == 0) pthread_cond_signal(&all->done);
  }
  pthread_mutex_unlock(&all->lock);
  return NULL;
}

decode_readers *decode_readers_start(int32_t count, const void *memory, size_t bytes, tool_error *error) {
  size_t lines = bytes / 64;
  decode_readers *all = tool_take(sizeof *all + (size_t)count * sizeof all->each[0]);
  all->count = count;
  pthread_mutex_init(&all->lock, NULL);
  pthread_cond_init(&all->begun, NULL);
  pthread_cond_init(&all->done, NULL);
  for (int32_t i = 0; i < count; i++) {
    size_t first = lines * (size_t)i / (size_t)count, end = lines * ((size_t)i + 1) / (size_t)count;
    all->each[i] = (reader){.all = all, .words = (const uint64_t *)memory + 8 * first, .count = 8 * (end - first)};
  }
  for (int32_t i = 1; i < count; i++) {
    if (pthread_create(&all->each[i].thread, NULL, run_reader, &all->each[i]) != 0) {
      tool_error_set(error, "%d threads that read cannot be started", count);
      decode_readers_end(all);
      return NULL;
    }
    all->started++;
  }
  return all;
}

double decode_readers_run_us(decode_readers *all) {
  pthread_mutex_lock(&all->lock);
  all->run++;
  all->working = all->started;
  pthread_cond_broadcast(&all->begun);
  pthread_mutex_unlock(&all->lock);
  read_part(&all->each[0]);
  pthread_mutex_lock(&all->lock);
  while (all->working > 0) pthread_cond_wait(&all->done, &all->lock);
  pthread_mutex_unlock(&all->lock);
  int64_t begin = all->each[0].begin_ns, end = all->each[0].end_ns;
  for (int32_t i = 1; i < all->count; i++) {
    begin = all->each[i].begin_ns < begin ? all->each[i].begin_ns : begin;
    end = all->each[i].end_ns > end ? all->each[i].end_ns : end;
  }
  return (double)(end - begin) * 1e-3;
}

void decode_readers_end(decode_readers *all) {
  if (all == NULL) return;
  pthread_mutex_lock(&all->lock);
  all->leaving = true;
  pthread_cond_broadcast(&all->begun);
  pthread_mutex_unlock(&all->lock);
  for (int32_t i = 1; i <= all->started; i++) pthread_join(all->each[i].thread, NULL);
  pthread_cond_destroy(&all->done);
  pthread_cond_destroy(&all->begun);
  pthread_mutex_destroy(&all->lock);
}
