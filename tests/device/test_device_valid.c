/* SPDX-License-Identifier: Apache-2.0
 * Tests runs in which ranks have different numbers of tokens, or one has wrong starts. Kernels read both, and no rank
 * waits for long. The tests cover combines, combines within a user's kernel, all-gathers of heads, and attention with a
 * combine, by each algorithm, over the fake driver. */
#include "cuda/program.h"
#include "tests/device/device_util.h"
#include "tests/emulate/user_kernel.h"
#include "tests/support/attend.h"

enum { RANKS_MAX = 5, MOST = 12, HEADS = 3, DIM = 64, ROWS = MOST * HEADS };

typedef enum kind { COMBINE, WITHIN, GATHER, ATTENTION, KINDS } kind;
static const char *const kind_names[] = {"combine", "within a kernel", "gather", "attention"};

/* The rows of all ranks are zeros with weight 1. */
typedef struct memory {
  float in[ROWS * DIM], in_lse[ROWS], out[RANKS_MAX * ROWS * DIM], out_lse[ROWS];
  int32_t tokens, starts[MOST + 1], lengths[MOST];
} memory;

typedef struct problem {
  kind kind;
  const char *algorithm;
  int32_t odd;                     /* the rank that differs */
  bool decreases, passes, has_nan; /* how its starts are wrong; else it has another number of tokens */
  attend *attend;
  memory memories[RANKS_MAX];
} problem;

/* Sets 8 tokens in sequences of one. The odd rank has 5 tokens, or wrong starts. */
static void set(const problem *problem, int32_t rank, int32_t *tokens, int32_t *starts, int32_t most) {
  *tokens = rank == problem->odd && !problem->decreases && !problem->passes ? 5 : 8;
  for (int32_t i = 0; i <= most; i++) starts[i] = i < *tokens ? i : *tokens;
  if (rank != problem->odd) return;
  if (problem->decreases) starts[5] = 3;
  if (problem->passes) starts[most] = 9;
}

typedef struct rig {
  banyan_valid_rows valid;
  banyan_combine_desc desc;
  banyan_heads_desc heads;
  banyan_partial in, out;
  banyan_op *op;
  bny_device *device;
  bny_device_module *module;
} rig;

static banyan_status begin_within(world_rank *self, rig *rig, const memory *memory) {
  banyan_partial what = rig->in;
  bny_device_combine combine;
  bny_device_kernel kernel;
  what.values = what.lse = NULL;
  if (!world_ok(self, open_fake(self->rank, &rig->device), "open") ||
      !world_ok(self, rig->device->ops->module_load(rig->device, "emulated", 9, &rig->module), "image") ||
      !world_ok(self, rig->device->ops->kernel_find(rig->module, "user_kernel", &kernel), "kernel") ||
      !world_ok(self, banyan_device_combine_init(self->comm, &rig->desc, &rig->op), "device init") ||
      !world_ok(self, banyan_op_device(rig->op, &what, &rig->out, 2, &combine, sizeof combine), "device"))
    return BANYAN_ERR_STATE;
  user_kernel_rows rows = {memory->in, memory->in_lse, NULL, MOST, HEADS, DIM, (uint32_t)self->rank * 3, 0};
  void *arguments[] = {&rows, &combine};
  bny_device_launch launch = {
      .kernel = &kernel, .grid = {2, 1, 1}, .block = {32 * USER_KERNEL_WARPS, 1, 1}, .arguments = arguments};
  return rig->device->ops->launch(rig->device, &launch, self->stream);
}

static banyan_status begin_attention(world_rank *self, problem *problem, rig *rig) {
  attend_call call;
  attend *of = problem->attend;
  attend_call_of(of, self, &call);
  set(problem, self->rank, of->ranks[self->rank].tokens, of->loc + (of->shape.batch + 2) * self->rank, of->shape.batch);
  call.queries.query_start_loc = of->loc + (of->shape.batch + 2) * self->rank;
  call.combine.algorithm = problem->algorithm;
  banyan_status status = banyan_attention_combine_init(self->comm, &call.desc, &call.combine, &call.out, &rig->op);
  return status == BANYAN_OK ? banyan_start(rig->op) : status;
}

static banyan_status begin(world_rank *self, problem *problem, rig *rig) {
  memory *memory = &problem->memories[self->rank];
  set(problem, self->rank, &memory->tokens, memory->starts, MOST);
  for (int32_t i = 0; i < MOST; i++) memory->lengths[i] = 7;
  for (int32_t i = 0; self->rank == problem->odd && problem->has_nan && i < ROWS; i++) memory->in_lse[i] = NAN;
  const bool has_starts = problem->decreases || problem->passes;
  rig->valid = (banyan_valid_rows){.size = sizeof rig->valid,
                                   .tokens = &memory->tokens,
                                   .batch = has_starts ? MOST : 0,
                                   .seq_lens = has_starts ? memory->lengths : NULL,
                                   .query_start_loc = has_starts ? memory->starts : NULL};
  banyan_partial_init(&rig->in, memory->in, BANYAN_F32, memory->in_lse, BANYAN_F32, HEADS, DIM);
  banyan_partial_init(&rig->out, memory->out, BANYAN_F32, memory->out_lse, BANYAN_F32, HEADS, DIM);
  rig->desc = (banyan_combine_desc){.size = sizeof rig->desc,
                                    .tokens = MOST,
                                    .heads = HEADS,
                                    .value_dim = DIM,
                                    .algorithm = problem->algorithm,
                                    .stream = self->stream,
                                    .valid = &rig->valid};
  rig->heads = (banyan_heads_desc){.size = sizeof rig->heads,
                                   .tokens = MOST,
                                   .heads = self->nranks,
                                   .dim = DIM,
                                   .dtype = BANYAN_F32,
                                   .stream = self->stream,
                                   .valid = &rig->valid};
  if (problem->kind == WITHIN) return begin_within(self, rig, memory);
  if (problem->kind == ATTENTION) return begin_attention(self, problem, rig);
  if (problem->kind == GATHER) return banyan_allgather_heads(self->comm, &rig->heads, memory->in, memory->out);
  banyan_status status = banyan_combine_init(self->comm, &rig->desc, &rig->in, &rig->out, &rig->op);
  return status == BANYAN_OK ? banyan_start(rig->op) : status;
}

/* If a rank's kernel has ended before, only the hosts exchange the failure, with fewer details. */
static void check(world_rank *self, const problem *problem) {
  banyan_status status = banyan_comm_status(self->comm);
  const char *text = banyan_comm_error(self->comm);
  bool right, is_odd = self->rank == problem->odd;
  if (!problem->decreases && !problem->passes) {
    bool numbers = strstr(text, "tokens") && (strstr(text, "5") || strstr(text, "8"));
    right = status == BANYAN_ERR_MISMATCH && (numbers || strstr(text, "is in another call than rank"));
  } else {
    char says[40], who[40];
    const int32_t last = problem->kind == ATTENTION ? problem->attend->shape.batch : MOST;
    snprintf(says, sizeof says, "query_start_loc[%d]", problem->decreases ? 5 : last);
    snprintf(who, sizeof who, "rank %d failed", problem->odd);
    const char *numbers = problem->decreases ? "is 3, less than 4" : "is 9 of 8";
    right = status == BANYAN_ERR_ARGUMENT &&
            ((strstr(text, says) && (!is_odd || strstr(text, numbers))) || (strstr(text, who) && !is_odd));
  }
  world_check(self, right, "%s by %s: %s: %s", kind_names[problem->kind], problem->algorithm,
              banyan_status_string(status), text);
}

static void go_wrong(world_rank *self) {
  problem *problem = self->argument;
  rig rig = {.op = NULL};
  bool good = world_ok(self, begin(self, problem, &rig), "begin") && world_finish(self);
  banyan_comm_status(self->comm); /* a rank whose kernel has found the failure reports it to the others */
  if (world_meet(self) && good) check(self, problem);
  world_meet(self);
  banyan_op_free(rig.op);
  if (rig.module) rig.device->ops->module_unload(rig.module);
  if (rig.device) rig.device->ops->close(rig.device);
}

static attend *attention_for(int32_t nranks) {
  const problem_shape shape = {
      .batch = MOST, .heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 64, .dtype = BANYAN_BF16, .keys_max = 8};
  attend *made = attend_make_plain(nranks, 3, &shape);
  made->several = made->has_tokens = true;
  attend_fill(made);
  for (int32_t r = 0; r < nranks; r++)
    memcpy(made->ranks[r].lengths, made->ranks[r].shard.lens, MOST * sizeof(int32_t));
  made->loc = world_take((size_t)(nranks * (MOST + 2)) * sizeof(int32_t)); /* per rank */
  return made;
}

static void run(problem what, int32_t nranks) {
  problem *made = world_take(sizeof *made);
  *made = what;
  if (made->kind == ATTENTION) made->attend = attention_for(nranks);
  WORLD_RUN(go_wrong, .nranks = nranks, .on = &world_emulated, .argument = made);
}

static const char *const algorithms[] = {"oneshot", "twoshot", "recursive", "ring"};

/* Attention's kernel sends its rows by oneshot, and by ring another launch does. */
static const char *algorithm_of(int index, kind kind) {
  return kind == COMBINE ? algorithms[index % 4] : kind == ATTENTION && index % 2 ? "ring" : "oneshot";
}

TEST_LOOP(other_numbers_are_a_mismatch, 4 * KINDS) {
  kind kind = (enum kind)(_i / 4);
  run((problem){.kind = kind, .algorithm = algorithm_of(_i, kind), .odd = 1 + _i / 2 % 2}, 3 + _i / 2 % 2);
}

/* Even with NaN the error names the starts, because they may be the reason why such a row is read. */
TEST_LOOP(wrong_starts_end_the_run, 8 * KINDS) {
  kind kind = (enum kind)(_i / 8);
  if (kind == GATHER) return; /* an all-gather has no starts */
  run((problem){.kind = kind,
                .algorithm = algorithm_of(_i / 2, kind),
                .odd = 1,
                .decreases = _i % 2,
                .passes = !(_i % 2),
                .has_nan = kind == COMBINE && _i / 4 % 2},
      2 + _i / 4 % 2);
}

int main(void) { return world_main(suite_of("device valid rows", 120)); }
