/* SPDX-License-Identifier: Apache-2.0
 * A numeric check of the energy view of attention (docs/numbers.md). The gradient of F(source) = log sum_i exp(q.k_i +
 * source.v_i) at source = 0 is softmax(q.k) v. F comes from the library's own statistics, as attention of the longer
 * query [q, source] over the longer keys [k, v] at scale 1. The right side is the library's attention output. */
#include "tests/support/attention_oracle.h"
#include "tests/support/generator.h"
#include "tests/support/world.h"

enum { HEADS = 6, KV_HEADS = 2, HEAD_DIM = 24, VALUE_DIM = 10, WIDE = HEAD_DIM + VALUE_DIM, KEYS = 700 };

/* Sixth-order difference: f'(0) = sum_s weight[s] (f(s h) - f(-s h)) / h, s = 1, 2, 3. The error is h^6 / 140 times the
 * seventh derivative. At this h, it is about as large as the rounding of F. */
enum { POINTS = 6, ROWS = VALUE_DIM * POINTS };

static const double weights[POINTS / 2] = {3.0 / 4, -3.0 / 20, 1.0 / 60};
static const double step = 0.125;

/* Values lie in [-1, 1]. Rounding adds 1e-7 to F and less than 1e-6 to the gradient. */
static const double bound = 3e-6;

typedef struct input {
  float q[HEADS][HEAD_DIM];
  float wide_q[ROWS][HEADS][WIDE];    /* [q, source] for every component of the source and every point */
  float wide_k[KV_HEADS][KEYS][WIDE]; /* [k, v] */
} input;

static float offset(int32_t point) { /* +h, -h, +2h, -2h, +3h, -3h */
  return (float)(step * (point / 2 + 1) * (point % 2 ? -1 : 1));
}

static input *input_make(uint64_t seed) {
  input *in = world_take(sizeof *in);
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  float *all[] = {&in->q[0][0], &in->wide_k[0][0][0]};
  size_t counts[] = {sizeof in->q / sizeof(float), sizeof in->wide_k / sizeof(float)};
  for (int which = 0; which < 2; which++) {
    for (size_t i = 0; i < counts[which]; i++) {
      all[which][i] = (float)((double)(int32_t)(random_next(&state) >> 32) * 0x1p-31); /* -1 to 1 */
    }
  }
  for (int32_t row = 0; row < ROWS; row++) {
    for (int32_t h = 0; h < HEADS; h++) {
      memcpy(in->wide_q[row][h], in->q[h], sizeof in->q[h]);
      in->wide_q[row][h][HEAD_DIM + row / POINTS] = offset(row % POINTS);
    }
  }
  return in;
}

/* The state of one rank for its own keys, and after combine() for all keys. F is held as m and d; the output as m, d
 * and n. */
typedef struct answer {
  float energy_m[ROWS][HEADS], energy_d[ROWS][HEADS];
  float n[HEADS][VALUE_DIM], m[HEADS], d[HEADS];
} answer;

/* Maxima, denominators and numerators in base 2, where maxima are integers and lose nothing. */
static banyan_partial partial_of(float *values, int32_t value_dim, float *m, float *d) {
  banyan_partial partial;
  banyan_partial_init(&partial, values, BANYAN_F32, m, BANYAN_F32, HEADS, value_dim);
  partial.values_kind = BANYAN_VALUES_NUMERATOR;
  partial.stats_kind = BANYAN_STATS_MAX_SUM;
  partial.base = BANYAN_BASE_2;
  partial.sum = d;
  return partial;
}

/* Computes the energies and the attention of keys [first, first + keys). */
static banyan_status attend(const input *in, int32_t first, int32_t keys, answer *out) {
  int32_t seq_lens[ROWS];
  for (int32_t row = 0; row < ROWS; row++) seq_lens[row] = keys;
  const float *k = in->wide_k[0][first], *v = k + HEAD_DIM;
  banyan_attention_desc desc = attention_desc_of(ROWS, HEADS, KV_HEADS, KEYS, WIDE, VALUE_DIM, BANYAN_F32, BANYAN_F32,
                                                 in->wide_q, k, v, seq_lens);
  desc.scale = 1;
  desc.kv.v_token_stride = WIDE, desc.kv.v_head_stride = KEYS * WIDE;
  desc.kv.k_batch_stride = desc.kv.v_batch_stride = 0; /* all rows have the same keys */
  /* One call computes all energies, as a batch of rows over the same keys. Their values are not needed. */
  float *unused = malloc((size_t)ROWS * HEADS * VALUE_DIM * sizeof *unused);
  if (!unused) return BANYAN_ERR_MEMORY;
  banyan_partial energy = partial_of(unused, VALUE_DIM, out->energy_m[0], out->energy_d[0]);
  banyan_status status = banyan_attention(&desc, &energy);
  free(unused);
  if (status != BANYAN_OK) return status;
  banyan_partial attention = partial_of(out->n[0], VALUE_DIM, out->m, out->d);
  desc.batch = 1;
  desc.head_dim = HEAD_DIM;
  desc.q = in->q;
  desc.q_batch_stride = HEADS * HEAD_DIM;
  desc.q_head_stride = HEAD_DIM;
  return banyan_attention(&desc, &attention);
}

/* Merges over all ranks. Energies need no values, so only max and denominator are reduced. */
static banyan_status combine(banyan_comm *comm, answer *mine) {
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = ROWS, .heads = HEADS};
  banyan_partial energy = partial_of(NULL, 0, mine->energy_m[0], mine->energy_d[0]);
  banyan_status status = banyan_combine(comm, &desc, &energy, &energy);
  if (status != BANYAN_OK) return status;
  banyan_partial attention = partial_of(mine->n[0], VALUE_DIM, mine->m, mine->d);
  desc.tokens = 1;
  desc.value_dim = VALUE_DIM;
  return banyan_combine(comm, &desc, &attention, &attention);
}

/* The log of the sum represented by m and d. */
static double energy_of(float m, float d) { return ((double)m + log2((double)d)) * log(2); }

/* Compares each component of the gradient with the attention output, and F(0) with F at the points around it. */
static void check_gradient(const answer *a, const char *what) {
  for (int32_t h = 0; h < HEADS; h++) {
    double f0 = energy_of(a->m[h], a->d[h]);
    ck_assert_msg(isfinite(f0), "%s: head %d: F(0) is %g", what, h, f0);
    for (int32_t j = 0; j < VALUE_DIM; j++) {
      double gradient = 0;
      for (int32_t s = 0; s < POINTS / 2; s++) {
        int32_t row = j * POINTS + 2 * s;
        double ahead = energy_of(a->energy_m[row][h], a->energy_d[row][h]);
        double behind = energy_of(a->energy_m[row + 1][h], a->energy_d[row + 1][h]);
        gradient += weights[s] * (ahead - behind) / step;
        /* F is convex. */
        ck_assert_msg(ahead + behind >= 2 * f0 - 1e-6, "%s: head %d: F(%d h) + F(-%d h) is below 2 F(0) by %g", what, h,
                      s + 1, s + 1, 2 * f0 - ahead - behind);
      }
      double output = (double)a->n[h][j] / (double)a->d[h];
      ck_assert_msg(fabs(gradient - output) <= bound,
                    "%s: head %d, value %d: gradient %.9g, attention %.9g, off by %.3g", what, h, j, gradient, output,
                    gradient - output);
    }
  }
}

TEST_LOOP(one_shard, 5) {
  input *in = input_make((uint64_t)_i);
  answer *a = world_take(sizeof *a);
  ck_assert_msg(attend(in, 0, KEYS, a) == BANYAN_OK, "%s", banyan_last_error());
  check_gradient(a, "one shard");
}

/* ---- the same over ranks ----------------------------------------------------------------------------------------- */

typedef struct task {
  const input *in;
  const int32_t *ends; /* the last key of each rank */
  answer *answers;
} task;

static void attend_and_combine(world_rank *self) {
  const task *task = self->argument;
  answer *mine = &task->answers[self->rank];
  int32_t first = self->rank ? task->ends[self->rank - 1] : 0;
  if (world_ok(self, attend(task->in, first, task->ends[self->rank] - first, mine), "attention"))
    world_ok(self, combine(self->comm, mine), "combine");
}

TEST_LOOP(shards, 3) {
  static const int32_t ends[][4] = {{175, 350, 525, KEYS}, {1, 1, 600, KEYS}, {0, 0, 0, KEYS}};
  task task = {input_make((uint64_t)_i + 10), ends[_i], world_take(4 * sizeof *task.answers)};
  WORLD_RUN(attend_and_combine, .nranks = 4, .argument = &task);
  for (int32_t r = 0; r < 4; r++) {
    check_gradient(&task.answers[r], "four shards");
    ck_assert_msg(memcmp(&task.answers[r], task.answers, sizeof(answer)) == 0, "rank %d differs from rank 0", r);
  }
}

int main(void) { return world_main(suite_of("energy", 60)); }
