/* SPDX-License-Identifier: Apache-2.0
 * Attention by several threads of a rank has the bits of one thread also where every thread has a part, and in any
 * floating-point mode; communicators and their threads. tests/attention/test_laws.c has random problems. */
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "attention.h"
#include "base/float_control.h"
#include "base/quota.h"
#include "comm/comm.h"
#include "attention/call.h"
#include "op.h"
#include "tests/api/attention_local.h"
#include "tests/support/flush.h"
#include "tests/support/lone.h"
#include "tests/support/space.h"

static result run_with(const banyan_attention_desc *desc, bny_pool *pool) {
  return run_by(bny_attention_kernels_find(getenv("BANYAN_KERNELS")), desc, pool);
}

static void check_same_bits(const result *a, const result *b, int32_t threads) {
  ck_assert_msg(memcmp(a->values, b->values, a->values_bytes) == 0 && memcmp(a->lse, b->lse, a->lse_bytes) == 0,
                "%d threads give other bits than one", threads);
}

/* The error names the first invalid row, whichever thread finds one first. */
TEST(first_lost_row_is_named) {
  enum { HEADS = 6 };
  drawn p;
  bny_pool *pool = NULL;
  drawn_plain(&p, 9, 1, HEADS, HEADS, 1, 1, BANYAN_F32, BANYAN_F32, (int32_t[]){1}, 1);
  float q[HEADS] = {1, 1, 1e6f, 1e6f, 1, 1e6f}, values[HEADS];
  uint16_t lse[HEADS];
  p.desc.q = q;
  p.desc.q_head_stride = 1;
  p.desc.scale = 1;
  float keys[HEADS] = {1, 1, 1, 1, 1, 1};
  p.desc.kv.k = keys;
  p.desc.kv.k_head_stride = 1;
  banyan_partial out;
  banyan_partial_init(&out, values, BANYAN_F32, lse, BANYAN_F16, HEADS, 1);
  ck_assert_int_eq(bny_pool_make(3, NULL, &pool), BANYAN_OK);
  for (int i = 0; i < 50; i++) {
    ASSERT_FAILS(attend_by(bny_attention_kernels_find(getenv("BANYAN_KERNELS")), &p.desc, &out, pool), BANYAN_ERR_DATA,
                 "token 0, head 2;");
  }
  bny_pool_free(pool);
  drawn_free(&p);
}

typedef struct call {
  const banyan_attention_desc *desc;
  const banyan_partial *out;
  banyan_status status;
} call;

static void *run_call(void *argument) {
  call *one = argument;
  one->status = banyan_attention(one->desc, one->out);
  return NULL;
}

/* ---- by all threads ---------------------------------------------------------------------------------------------- */

/* The current run: it continues once `meeting_wanted` threads have begun a part. */
static _Atomic int32_t meeting_number, meeting_wanted, meeting_came;
static _Thread_local int32_t meeting_last;

static void meet_and_run(const bny_attention_task *task, int32_t first, int32_t last, bny_attention_sums *sums) {
  int32_t number = atomic_load(&meeting_number);
  if (meeting_last != number) {
    meeting_last = number;
    atomic_fetch_add(&meeting_came, 1);
    for (int i = 0; i < 10000 && atomic_load(&meeting_came) < atomic_load(&meeting_wanted); i++) usleep(1000);
  }
  bny_attention_kernels_find(getenv("BANYAN_KERNELS"))->run(task, first, last, sums);
}

/* Every thread of the pool runs at least one part. */
static result run_by_all(const banyan_attention_desc *desc, bny_pool *pool) {
  bny_attention_kernels kernels = *bny_attention_kernels_find(getenv("BANYAN_KERNELS"));
  kernels.run = meet_and_run;
  atomic_store(&meeting_came, 0);
  atomic_store(&meeting_wanted, bny_pool_threads(pool));
  atomic_fetch_add(&meeting_number, 1);
  result r = run_by(&kernels, desc, pool);
  ck_assert_int_eq(atomic_load(&meeting_came), bny_pool_threads(pool));
  return r;
}

static void check_by_all(const banyan_attention_desc *desc, bny_pool *pool, int runs) {
  result alone = run_with(desc, NULL);
  for (int i = 0; i < runs; i++) {
    result many = run_by_all(desc, pool);
    check_same_bits(&alone, &many, bny_pool_threads(pool));
    result_free(&many);
  }
  result_free(&alone);
}

static bny_pool *make_pool(int32_t threads) {
  bny_pool *pool = NULL;
  ck_assert_int_eq(bny_pool_make(threads, NULL, &pool), BANYAN_OK);
  return pool;
}

TEST_LOOP(one_row_is_for_all_threads, 3) {
  static const int32_t threads[] = {2, 4, 64};
  drawn p;
  drawn_plain(&p, 11, 1, 8, 1, 16, 16, BANYAN_F32, BANYAN_F16, (int32_t[]){64 * 512}, 1);
  bny_pool *pool = make_pool(threads[_i]);
  check_by_all(&p.desc, pool, 2);
  bny_pool_free(pool);
  drawn_free(&p);
}

/* The caller changes its rounding mode and flushing of denormals after the threads have started. Values are
 * denormal. */
TEST_LOOP(same_bits_in_any_float_mode, 2) {
  enum { KEYS = 9000 };
  drawn p;
  drawn_plain(&p, 12, 1, 8, 1, 16, 16, BANYAN_F32, BANYAN_F32, (int32_t[]){KEYS}, 1);
  float *values = p.memory[0][1].data;
  for (int64_t i = 0; i < (KEYS - 1) * p.desc.kv.v_token_stride + 16; i++) values[i] *= 1e-39f;
  bny_pool *pool = make_pool(_i ? 4 : 2);
  uint64_t usual = bny_float_control();
  check_by_all(&p.desc, pool, 20);
  bny_float_control_set(usual | FLOAT_FLUSH);
  check_by_all(&p.desc, pool, 20);
  bny_float_control_set(usual);
  ck_assert_int_eq(fesetround(FE_UPWARD), 0);
  check_by_all(&p.desc, pool, 20);
  ck_assert_int_eq(fesetround(FE_TONEAREST), 0);
  check_by_all(&p.desc, pool, 20);
  bny_pool_free(pool);
  drawn_free(&p);
}

/* ---- the stack --------------------------------------------------------------------------------------------------- */

/* Runs on the stack size that banyan_attention.h promises to be enough. The guard page behind it catches overflows. */
static void run_on_promised_stack(const banyan_attention_desc *desc) {
  enum { PROMISED = 768 << 10 };
  pthread_attr_t attributes;
  pthread_t thread;
  banyan_partial out;
  result r = result_make(desc, &out);
  call one = {.desc = desc, .out = &out, .status = BANYAN_ERR_ARGUMENT};
  ck_assert_int_eq(pthread_attr_init(&attributes), 0);
  ck_assert_int_eq(pthread_attr_setstacksize(&attributes, PROMISED), 0);
  ck_assert_int_eq(pthread_create(&thread, &attributes, run_call, &one), 0);
  ck_assert_int_eq(pthread_join(thread, NULL), 0);
  ck_assert_int_eq(one.status, BANYAN_OK);
  pthread_attr_destroy(&attributes);
  result_free(&r);
}

/* Sequences long enough to use all levels of sums; their pages share the keys of the cache. */
TEST_LOOP(stack_is_as_promised, 6) {
  enum { KEYS = 600, LONG = 40000, HEADS = 16, PAGE_KEYS = 100 };
  static int32_t table[LONG];
  static const int32_t page_keys[] = {1, PAGE_KEYS}, length = LONG;
  if (IS_SANITIZED) return; /* frames are larger */
  drawn p;
  drawn_plain(&p, (uint64_t)_i + 90, 1, HEADS, 1, 576, 512, BANYAN_F32, (banyan_dtype)(BANYAN_F32 + _i),
              (int32_t[]){KEYS}, 1);
  p.desc.kv.pages.table = table;
  p.desc.kv.seq_lens = &length;
  for (int i = 0; i < 2; i++) {
    p.desc.kv.pages.keys = page_keys[i];
    p.desc.kv.pages.count = KEYS / page_keys[i];
    p.desc.kv.pages.table_stride = LONG / page_keys[i];
    p.desc.kv.k_batch_stride = page_keys[i] * p.desc.kv.k_token_stride;
    p.desc.kv.v_batch_stride = page_keys[i] * p.desc.kv.v_token_stride;
    for (int32_t at = 0; at < LONG; at++) table[at] = at % p.desc.kv.pages.count;
    run_on_promised_stack(&p.desc);
  }
  drawn_free(&p);
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

static result run_in_comm(const banyan_attention_desc *desc, banyan_comm *comm) {
  banyan_partial out;
  banyan_op *op = NULL;
  result r = result_make(desc, &out);
  ck_assert_msg(banyan_attention_init(comm, desc, &out, &op) == BANYAN_OK, "%s", banyan_last_error());
  ck_assert_int_eq(start_and_wait(op), BANYAN_OK);
  banyan_op_free(op);
  return r;
}

/* The default is one thread per core of the binding, limited by a CPU quota. */
static int usual_threads(void) {
  cpu_set_t cores; /* tests assume at most 1024 cores */
  bny_quota quotas[BNY_QUOTAS];
  ck_assert_int_eq(sched_getaffinity(0, sizeof cores, &cores), 0);
  bny_quotas_find("", quotas);
  int count = CPU_COUNT(&cores);
  if (quotas[0].group && quotas[0].cpus < count) count = quotas[0].cpus > 1 ? (int)quotas[0].cpus : 1;
  return count;
}

TEST(communicators_have_threads) {
  drawn p;
  drawn_plain(&p, 3, 2, 8, 2, 32, 32, BANYAN_F32, BANYAN_BF16, (int32_t[]){5000, 77}, 1);
  result alone = run_with(&p.desc, NULL);
  int usual = usual_threads();
  for (int64_t threads = 0; threads < 5; threads++) {
    banyan_comm_config config = BANYAN_COMM_CONFIG_INIT;
    config.threads = threads;
    banyan_comm *comm = lone_comm(&config);
    char text[1024], expected[32];
    banyan_comm_describe(comm, text, sizeof text);
    int count = threads ? (int)threads : usual;
    snprintf(expected, sizeof expected, " %d thread%s for attention", count, count == 1 ? "" : "s");
    ck_assert_msg(strstr(text, expected) != NULL, "%s", text);
    result r = run_in_comm(&p.desc, comm);
    check_same_bits(&alone, &r, (int32_t)threads);
    result_free(&r);
    banyan_comm_destroy(comm);
  }
  result_free(&alone);
  drawn_free(&p);
}

static bool write_file(const char *folder, const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "r+"); /* does not create the file */
  bool written = file && fputs(text, file) >= 0;
  return file && fclose(file) == 0 && written;
}

/* Moves this process to a new group with a quota of one CPU, in cgroup v1 or v2. */
static bool enter_quota(char *folder, size_t bytes) {
  char pid[32];
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  for (int v1 = 0; v1 < 2; v1++) {
    snprintf(folder, bytes, "/sys/fs/cgroup/%sbanyan-test-%s", v1 ? "cpu/" : "", pid);
    if (mkdir(folder, 0755) != 0) continue;
    if ((v1 ? write_file(folder, "cpu.cfs_quota_us", "100000") : write_file(folder, "cpu.max", "100000 100000")) &&
        write_file(folder, "cgroup.procs", pid))
      return true;
    rmdir(folder);
  }
  return false;
}

static long group_count(const char *folder, const char *name) {
  char path[256], line[128];
  long count = -1;
  snprintf(path, sizeof path, "%s/cpu.stat", folder);
  FILE *file = fopen(path, "r");
  while (file && count < 0 && fgets(line, sizeof line, file))
    if (strncmp(line, name, strlen(name)) == 0) count = atol(line + strlen(name));
  if (file) fclose(file);
  return count;
}

/* With one thread per core, the kernel would throttle them in every period. */
TEST(threads_stay_within_a_quota) {
  enum { PERIODS = 8, RUNS_MOST = 100000 };
  char folder[128], text[1024], pid[32];
  if (usual_threads() < 2 || !enter_quota(folder, sizeof folder)) {
    printf("left out: there is one core, or no control group can be made here\n");
    return;
  }
  drawn p;
  drawn_plain(&p, 3, 2, 8, 2, 32, 32, BANYAN_F32, BANYAN_BF16, (int32_t[]){5000, 4000}, 1);
  banyan_comm *comm = lone_comm(NULL);
  banyan_comm_describe(comm, text, sizeof text);
  for (int i = 0; i < RUNS_MOST && group_count(folder, "nr_periods ") < PERIODS; i++) {
    result r = run_in_comm(&p.desc, comm);
    result_free(&r);
  }
  long periods = group_count(folder, "nr_periods "), throttled = group_count(folder, "nr_throttled ");
  banyan_comm_destroy(comm);
  drawn_free(&p);
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  ck_assert(write_file(folder, "../cgroup.procs", pid));
  for (int i = 0; i < 1000 && rmdir(folder) != 0; i++) usleep(1000); /* ended threads leave the group with a delay */
  ck_assert_int_ne(access(folder, F_OK), 0);
  ck_assert_msg(2 * throttled < periods, "stopped in %ld of %ld periods", throttled, periods);
  ck_assert_msg(strstr(text, " 1 thread for attention (a CPU quota allows 1)") != NULL, "%s", text);
}

/* An explicit number of threads is kept, or the first attention fails. */
TEST(threads_that_cannot_be_started) {
  enum { MANY = 64, LEFT_BYTES = 9 << 20 };
  if (IS_SANITIZED) return; /* a sanitizer maps more memory than any limit */
  drawn p;
  drawn_plain(&p, 3, 2, 8, 2, 32, 32, BANYAN_F32, BANYAN_BF16, (int32_t[]){5000, 77}, 1);
  result alone = run_with(&p.desc, NULL), room;
  for (int32_t said = MANY; said >= 0; said -= MANY) {
    banyan_comm_config config = BANYAN_COMM_CONFIG_INIT;
    config.threads = said;
    banyan_comm *comm = lone_comm(&config);
    comm->threads = MANY; /* this machine may have fewer cores */
    struct rlimit before = space_limit(LEFT_BYTES);
    if (said) {
      banyan_partial out;
      banyan_op *op = NULL;
      room = result_make(&p.desc, &out);
      ck_assert_int_eq(banyan_attention_init(comm, &p.desc, &out, &op), BANYAN_ERR_SYSTEM);
    } else {
      room = run_in_comm(&p.desc, comm);
      check_same_bits(&alone, &room, comm->threads);
      ck_assert_int_lt(comm->threads, MANY);
    }
    setrlimit(RLIMIT_AS, &before);
    result_free(&room);
    banyan_comm_destroy(comm);
  }
  result_free(&alone);
  drawn_free(&p);
}

typedef struct caller {
  pthread_t thread;
  drawn *p;
  const result *expected;
} caller;

static void *run_caller(void *argument) {
  caller *self = argument;
  banyan_comm_config config = BANYAN_COMM_CONFIG_INIT;
  config.threads = 3;
  banyan_comm *comm = lone_comm(&config);
  for (int i = 0; i < 10; i++) {
    result r = run_in_comm(&self->p->desc, comm);
    check_same_bits(self->expected, &r, 3);
    result_free(&r);
  }
  banyan_comm_destroy(comm);
  return NULL;
}

TEST(communicators_side_by_side) {
  enum { CALLERS = 3 };
  drawn p;
  drawn_plain(&p, 4, 1, 4, 1, 16, 16, BANYAN_F32, BANYAN_F32, (int32_t[]){9000}, 1);
  result expected = run_with(&p.desc, NULL);
  caller callers[CALLERS];
  for (int i = 0; i < CALLERS; i++) {
    callers[i] = (caller){.p = &p, .expected = &expected};
    ck_assert_int_eq(pthread_create(&callers[i].thread, NULL, run_caller, &callers[i]), 0);
  }
  for (int i = 0; i < CALLERS; i++) pthread_join(callers[i].thread, NULL);
  result_free(&expected);
  drawn_free(&p);
}

int main(void) { return suite_main(suite_of("attention_threads", 300)); }
