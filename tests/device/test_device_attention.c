/* SPDX-License-Identifier: Apache-2.0
 * Tests attention on devices over the fake driver: the keys that each kernel reads, which shapes are sent from within
 * the kernel, the number of blocks, the driver's calls, and how one rank's rejection reaches all ranks.
 * tests/api/test_attend.c tests its results. */
#include "comm/comm.h"
#include "device/decode_plan.h"
#include "tests/device/device_util.h"
#include "tests/support/attend.h"

enum { PROBLEMS = 5 };

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct many {
  bool is_long; /* long sequences, for the largest grids */
  attend *problems[PROBLEMS];
} many;

static void many_make(many *made, int32_t nranks, uint64_t seed) {
  for (int i = 0; i < PROBLEMS; i++) {
    made->problems[i] = attend_make_plain(nranks, seed + (uint64_t)i, NULL);
    made->problems[i]->combine.algorithm = i == 3 ? "ring" : "oneshot";
    attend_fill(made->problems[i]);
  }
}

static void attend_to_all(world_rank *self) {
  const many *many = self->argument;
  banyan_op *ops[PROBLEMS] = {NULL};
  attend_call calls[PROBLEMS];
  bool good = true;
  for (int i = 0; i < PROBLEMS && good; i++) {
    good = attend_ready(self, many->problems[i], 0, &calls[i]);
    banyan_attention_desc *desc = &calls[i].desc;
    if (many->is_long && !desc->kv.pages.table) desc->keys_max = 1 << 17;
    good = good && world_ok(self, attend_init(self, many->problems[i], &calls[i], &ops[i]), "init");
  }
  uint64_t before = FAKE_CUDA(fake_cuda_setup_calls)();
  good = world_meet(self) && good;
  for (int i = 0; i < PROBLEMS && good; i++) good = world_ok(self, banyan_start(ops[i]), "start");
  uint64_t calls_made = FAKE_CUDA(fake_cuda_setup_calls)() - before;
  world_check(self, self->nranks > 1 || calls_made == 0, "%llu calls that allocate or wait",
              (unsigned long long)calls_made);
  good = good && world_finish(self) && world_ok(self, banyan_comm_status(self->comm), "status");
  for (int i = 0; i < PROBLEMS && good; i++) good = attend_holds(self, many->problems[i], 0);
  for (int i = 0; i < PROBLEMS; i++) banyan_op_free(ops[i]);
}

/* ---- kernels alone ----------------------------------------------------------------------------------------------- */

/* Runs the kernel twice, to count the bytes that it copies from keys and then from values. Each key is read once, or
 * once for each 64 heads of MLA. */
static void attend_alone(world_rank *self) {
  attend *of = self->argument;
  const attend_rank *rank = of->ranks;
  const problem_shape *shape = &of->shape;
  attend_call call;
  banyan_op *op = NULL;
  if (!attend_ready(self, of, 0, &call) || !world_ok(self, attend_init(self, of, &call, &op), "init")) return;
  const banyan_attention_desc *desc = &call.desc;
  const int64_t pages = desc->kv.pages.table ? desc->kv.pages.count : desc->batch;
  int64_t keys = 0;
  const int32_t times = shape->latent ? (shape->heads + 63) / 64 : shape->kv_heads;
  for (int32_t b = 0; b < desc->batch; b++) keys += rank->lengths[b] * times;
  for (int v = 0; v < (shape->latent ? 1 : 2); v++) {
    const int64_t wanted = 2 * keys * (v ? shape->value_dim : shape->head_dim);
    FAKE_CUDA(fake_cuda_watch_copies)
    (v ? desc->kv.v : desc->kv.k, (size_t)(2 * pages * (v ? desc->kv.v_batch_stride : desc->kv.k_batch_stride)));
    if (!world_ok(self, banyan_start(op), "start") || !world_finish(self)) break;
    const int64_t copied = (int64_t)FAKE_CUDA(fake_cuda_watch_copies)(NULL, 0);
    world_check(self, copied == wanted, "%lld bytes of %s were read, not %lld: %s", (long long)copied,
                v ? "values" : "keys", (long long)wanted, attend_text(of));
  }
  attend_holds(self, of, 0);
  banyan_op_free(op);
}

static void run_shape(const problem_shape *shape, uint64_t seed, float cap, const char *words) {
  attend *of = attend_make_plain(1, seed, shape);
  of->alone = true;
  of->keys_bound = 1 << 12;
  of->cap = cap;
  attend_fill(of);
  WORLD_RUN(attend_alone, .nranks = 1, .on = &world_emulated, .argument = of, .words = words);
}

static void run_alone(int32_t group, int32_t head_dim, int number, const char *words) {
  static const int32_t pages[] = {0, 16, 64, 1}, lengths[2][3] = {{150, 0, 65}, {700, 0, 65}};
  const int32_t *own = lengths[head_dim == 576 && group % 48 == 16]; /* many pieces of a row, and tiles of a block */
  const problem_shape shape = {.batch = 3,
                               .heads = head_dim == 576 ? group : 2 * group,
                               .kv_heads = head_dim == 576 ? 1 : 2,
                               .head_dim = head_dim,
                               .value_dim = head_dim == 576 ? 512 : head_dim,
                               .latent = head_dim == 576,
                               .dtype = number % 2 ? BANYAN_F16 : BANYAN_BF16,
                               .one_sign = true,
                               .page_keys = pages[number / 2 % 4],
                               .keys_max = own[0],
                               .lengths = own};
  run_shape(&shape, 300 + (uint64_t)number, 0, words);
}

/* Each kernel, by the heads of a KV head and head_dim, for both types. Devices of compute capability 8.0 have neither
 * clusters nor warpgroups. */
TEST_IN("kernels", keys_are_read_once, 30) {
  static const int32_t kernels[8][2] = {{3, 64},  {4, 96},   {16, 128}, {2, 192},
                                        {5, 256}, {16, 576}, {32, 576}, {64, 576}};
  if (!world_is_here(&world_emulated)) return;
  const int kernel = _i / 2 / 2, dtype = _i % 2, clusters = _i / 2 % 2;
  run_alone(kernels[kernel][0], kernels[kernel][1], 2 * (kernel + clusters) + dtype,
            clusters || kernel == 7 ? "sms=3" : "compute=80,sms=3");
}

/* Warps of a block share the lengths of more than 32 sequences, and sum several lines of 32 of more than 1,024. Only
 * general kernels cap logits. Weights of more than 64 latent heads have one term of 16 bits, so the bound of
 * attend_holds() is that of its rounding. */
TEST_LOOP(many_sequences_or_heads, 6) {
  static const int32_t lengths[] = {150, 0, 65};
  if (!world_is_here(&world_emulated)) return;
  problem_shape shape = {.batch = _i / 2 ? 1100 : 70,
                         .heads = 1,
                         .kv_heads = 1,
                         .head_dim = 64,
                         .value_dim = 64,
                         .dtype = BANYAN_BF16,
                         .keys_max = _i / 2 ? 3 : 100};
  if (_i >= 4) {
    shape.batch = 3, shape.heads = 72, shape.head_dim = 576, shape.value_dim = 512, shape.latent = true;
    shape.dtype = _i % 2 ? BANYAN_F16 : BANYAN_BF16, shape.keys_max = 150, shape.lengths = lengths;
  }
  run_shape(&shape, 320 + (uint64_t)_i, _i < 4 && _i % 2 ? 5 : 0, "sms=3");
}

/* ---- each kernel of a GPU ---------------------------------------------------------------------------------------- */

typedef struct by_kernel {
  const bny_decode_kernel *kernel;
  int index;
  attend *of;
} by_kernel;

/* Only runs that request a GPU use one. */
static int count_kernels(void) {
  const char *wanted = getenv("CK_RUN_CASE");
  int count = 0;
  while (wanted && strcmp(wanted, world_gpu.name) == 0 && bny_decode_kernels[count].name) count++;
  return 2 * count;
}

static void attend_by_kernel(world_rank *self) {
  const by_kernel *what = self->argument;
  const bny_device_facts *facts = &self->comm->device.engine->device->facts;
  banyan_op_info info = {.size = sizeof info};
  attend_call call;
  banyan_op *op = NULL;
  if (!bny_decode_kernel_runs(what->kernel, facts->compute, facts->shared_bytes_max)) {
    printf("SKIP each_kernel_is_right %d this device has no %s\n", what->index, what->kernel->name);
    fflush(stdout);
    return;
  }
  bool good = attend_ready(self, what->of, 0, &call) && world_put(self) &&
              world_ok(self, attend_init(self, what->of, &call, &op), attend_text(what->of)) &&
              world_ok(self, banyan_op_query(op, &info), "query") &&
              world_check(self, strstr(info.reason, what->kernel->name), "%s, not %s", info.reason, what->kernel->name);
  if (good && world_ok(self, banyan_start(op), "start") && world_finish(self) &&
      world_ok(self, banyan_comm_status(self->comm), "status"))
    attend_holds(self, what->of, 0);
  banyan_op_free(op);
}

/* Each kernel computes a small problem of as many heads as it takes at a time, in bf16 and in f16. */
TEST_IN("gpu", each_kernel_is_right, count_kernels()) {
  static const int32_t lengths[] = {150, 0, 65};
  const bny_decode_kernel *kernel = &bny_decode_kernels[_i / 2];
  world_anew();
  const problem_shape shape = {.batch = 3,
                               .heads = kernel->values_in_keys ? kernel->rows : 8,
                               .kv_heads = kernel->values_in_keys ? 1 : 2,
                               .head_dim = kernel->head_dim,
                               .value_dim = kernel->value_dim,
                               .latent = kernel->values_in_keys,
                               .dtype = _i % 2 && kernel->kv != BNY_ROWS_flashmla ? BANYAN_F16 : BANYAN_BF16,
                               .page_keys = _i / 2 % 2 ? 16 : 0,
                               .keys_max = 150,
                               .lengths = lengths};
  by_kernel what = {kernel, _i, attend_make_plain(1, 400 + (uint64_t)_i, &shape)};
  what.of->alone = true;
  what.of->form = kernel->kv == BNY_ROWS_e4m3       ? ATTEND_E4M3
                  : kernel->kv == BNY_ROWS_flashmla ? ATTEND_FLASHMLA
                                                    : ATTEND_PLAIN;
  if (kernel->kv == BNY_ROWS_general) what.of->cap = 5;
  attend_fill(what.of);
  WORLD_RUN(attend_by_kernel, .nranks = 1, .on = &world_gpu, .argument = &what);
}

/* ---- rows sent from within the kernel, or why not ---------------------------------------------------------------- */

typedef struct served {
  const char *arena_kib; /* NULL: the default */
  int32_t heads, kv_heads, head_dim, value_dim, batch;
  const char *algorithm, *says;
} served;

/* Only makes the operation, which accesses no memory, so none is allocated. */
static void describe_served(world_rank *self) {
  const served *what = self->argument;
  static uint16_t cache[1];
  banyan_attention_desc desc =
      attention_desc_of(what->batch, what->heads, what->kv_heads, 1000, what->head_dim, what->head_dim, BANYAN_BF16,
                        BANYAN_BF16, cache, cache, cache, (const int32_t *)(const void *)cache);
  desc.value_dim = what->value_dim, desc.keys_max = 1000;
  banyan_combine_desc combine = {.size = sizeof combine,
                                 .tokens = what->batch,
                                 .heads = what->heads,
                                 .value_dim = what->value_dim,
                                 .scatter = BANYAN_SCATTER_HEADS,
                                 .algorithm = what->algorithm};
  banyan_partial out;
  banyan_op *op = NULL;
  char text[4096];
  banyan_partial_init(&out, cache, BANYAN_BF16, NULL, BANYAN_F32, what->heads / self->nranks, what->value_dim);
  banyan_comm_config config = world_config(self);
  if (!what->arena_kib) unsetenv("BANYAN_ARENA_KIB");
  if (!world_meet(self) || !world_ok(self, banyan_comm_create(&self->bootstrap, &config, &self->comm), "create"))
    return;
  if (world_ok(self, banyan_attention_combine_init(self->comm, &desc, &combine, &out, &op), "init")) {
    banyan_op_describe(op, text, sizeof text);
    world_check(self, strstr(text, what->says) != NULL, "%s", text);
  }
  banyan_op_free(op);
}

/* The default arena serves the shapes of servers: MLA with 128 heads at batch 64, and GQA with 32 heads at batch
 * 256. */
TEST_LOOP(shapes_in_service_are_fused, 4) {
  static const char *const within = "its rows are sent from within it";
  const served all[] = {
      {NULL, 128, 1, 576, 512, 64, NULL, within},
      {NULL, 32, 8, 128, 128, 256, NULL, within},
      {"16384", 128, 1, 576, 512, 64, NULL,
       "because attention's kernel cannot send its rows: the LL16 inbox in arenas of 16777216 bytes is too small; "
       "raise "
       "arena_bytes"},
      {"16384", 32, 8, 128, 128, 4, "ring",
       "because attention's kernel cannot send its rows: the algorithm asked for is another"},
  };
  served what = all[_i];
  if (what.arena_kib) setenv("BANYAN_ARENA_KIB", what.arena_kib, 1);
  /* Without an arena size in the setup, the backend uses its own default. */
  WORLD_RUN(describe_served, .nranks = 2, .on = &world_emulated, .bare = true, .argument = &what);
}

/* ---- SMs, launches, ranks ---------------------------------------------------------------------------------------- */

TEST(few_multiprocessors) {
  many many = {.is_long = true};
  setenv("BANYAN_DEVICE_SMS", "2", 1);
  many_make(&many, 2, 77);
  WORLD_RUN(attend_to_all, .nranks = 2, .on = &world_emulated, .argument = &many);
  uint32_t most = FAKE_CUDA(fake_cuda_most_blocks)();
  ck_assert_msg(most >= 2 && most <= 2 * 2048 / 128, "%u blocks, of which the smallest have 128 threads", most);
}

/* Kernels launch early unless ranks share a device. */
TEST_LOOP(early_launches, 2) {
  const int32_t nranks = 1 + _i;
  many many = {.is_long = false};
  many_make(&many, nranks, 81);
  WORLD_RUN(attend_to_all, .nranks = nranks, .on = &world_emulated, .one_device = true, .argument = &many);
  ck_assert_int_eq(FAKE_CUDA(fake_cuda_early_launches)() > 0, _i == 0);
}

/* The blocks of all ranks that share a device are resident at once. */
TEST(shared_multiprocessors) {
  many many = {.is_long = true};
  many_make(&many, 3, 79);
  WORLD_RUN(attend_to_all, .nranks = 3, .on = &world_emulated, .one_device = true, .words = "sms=12",
            .argument = &many);
  uint32_t most = FAKE_CUDA(fake_cuda_most_blocks)();
  ck_assert_msg(most >= 4 && most <= 12 / 3 * 2048 / 128, "%u blocks, of which the smallest have 128 threads", most);
}

/* The kernel of one rank cannot use its memory. All ranks get the error and can continue. */
static void reject_one(world_rank *self) {
  attend *of = self->argument;
  attend_call call;
  banyan_op *op = NULL;
  if (!attend_ready(self, of, 0, &call)) return;
  const void *q = call.desc.q;
  if (self->rank == 1) call.desc.q = (const char *)q + 2;
  for (int i = 0; i < 3; i++) {
    banyan_status status = i == 0 ? attend_init(self, of, &call, &op)
                                  : banyan_attention_combine(self->comm, &call.desc, &call.combine, &call.out);
    world_gets(self, status, BANYAN_ERR_UNSUPPORTED, "rows of q are not 16-byte aligned");
    world_gets(self, status, BANYAN_ERR_UNSUPPORTED, "rank 1: ");
  }
  call.desc.q = q;
  if (world_ok(self, banyan_attention_combine(self->comm, &call.desc, &call.combine, &call.out), "afterwards") &&
      world_finish(self) && world_ok(self, banyan_comm_status(self->comm), "status"))
    attend_holds(self, of, 0);
}

TEST(rejections_of_one_rank) {
  attend *of = attend_make_plain(3, 90, NULL);
  attend_fill(of);
  WORLD_RUN(reject_one, .nranks = 3, .on = &world_emulated, .argument = of);
}

int main(void) { return world_main(suite_of("device_attention", 60)); }
