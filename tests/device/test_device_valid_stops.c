/* SPDX-License-Identifier: Apache-2.0
 * Tests many runs on devices with changing numbers of tokens, while one rank after another is stopped for a moment and
 * continued. The runs are launched combines, combines within a user's kernel, and attention with its combine. Ranks are
 * processes with emulated devices of the fake driver. TEST_CALLS sets the number of runs. */
#include "cuda/program.h"
#include "merge_math.h"
#include "tests/device/device_util.h"
#include "tests/emulate/user_kernel.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/world.h"

enum { CALLS = 300, CALLS_SLOWLY = 48, MOST = 5, DIM = 64, KEYS = 8, SLOTS = 12, KINDS = 4 };

/* The memory of one run. Consecutive runs on the stream have different slots. The values of a rank are its number + 1.
 * In combines they have lse 0; in attention, all keys that a rank has of a sequence are equal. */
typedef struct slot {
  float in[MOST * DIM], lse[MOST], out[MOST * DIM], out_lse[MOST];
  int32_t tokens, lengths[MOST];
  uint8_t mask[MOST];
  int kind;
  banyan_op *ops[KINDS];
} slot;

typedef struct rig {
  world_rank *world;
  bny_device *device;
  bny_device_module *module;
  bny_device_kernel kernel;
  void *stream;
  uint16_t *q, *k, *v;
  slot slots[SLOTS];
} rig;

enum { LAUNCHED, BLOCKING, WITHIN, ATTENTION };

static bool lives(const slot *slot, int32_t token) { return slot->mask[token] && slot->lengths[token] > 0; }

/* Devices that share no memory cannot combine within a kernel. */
static bool spans_nodes(void) { return getenv("BANYAN_NODE") != NULL; }

static void draw(rig *rig, slot *slot, world_random *all, uint64_t call) {
  world_random own = (random_seed() * 1000000 + call) * 64 + (uint64_t)rig->world->rank;
  slot->kind = random_below(all, KINDS);
  if (slot->kind == WITHIN && spans_nodes()) slot->kind = ATTENTION;
  slot->tokens = random_below(all, MOST + 1);
  for (int32_t t = 0; t < MOST; t++) {
    slot->lengths[t] = random_below(&own, KEYS + 1);
    slot->mask[t] = !random_one_in(&own, 4);
    slot->lse[t] = t < slot->tokens && lives(slot, t) ? 0 : NAN;
    if (t >= slot->tokens && slot->kind == ATTENTION) slot->lengths[t] = -1;
    for (int32_t i = 0; i < DIM; i++) slot->in[t * DIM + i] = (float)rig->world->rank + 1;
  }
  for (int32_t i = 0; i < MOST * DIM; i++) slot->out[i] = -7;
}

/* Returns how many keys of a token rank `rank` has in a call, the same on all ranks. */
static int32_t keys_of(int32_t rank, uint64_t call, int32_t token) {
  world_random own = (random_seed() * 1000000 + call) * 64 + (uint64_t)rank;
  int32_t length = 0;
  bool mask = false;
  for (int32_t t = 0; t <= token; t++) {
    length = random_below(&own, KEYS + 1);
    mask = !random_one_in(&own, 4);
  }
  return mask ? length : 0;
}

static bool holds(rig *rig, const slot *slot, uint64_t call) {
  for (int32_t t = 0; t < MOST; t++) {
    double sum = 0, count = 0;
    for (int32_t r = 0; r < rig->world->nranks; r++) {
      const int32_t keys = keys_of(r, call, t), weight = slot->kind == ATTENTION ? keys : keys > 0;
      sum += weight * (r + 1.0);
      count += weight;
    }
    const double expected = t >= slot->tokens ? -7 : count > 0 ? sum / count : 0;
    for (int32_t i = 0; i < DIM; i++)
      if (fabs((double)slot->out[t * DIM + i] - expected) > 1e-4)
        return world_check(rig->world, false, "call %llu of kind %d, %d tokens: token %d is %g, not %g",
                           (unsigned long long)call, slot->kind, slot->tokens, t, (double)slot->out[t * DIM + i],
                           expected);
  }
  return true;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static banyan_combine_desc desc_of(const rig *rig, const banyan_valid_rows *valid) {
  return (banyan_combine_desc){.size = sizeof(banyan_combine_desc),
                               .tokens = MOST,
                               .heads = 1,
                               .value_dim = DIM,
                               .stream = rig->stream,
                               .valid = valid};
}

static banyan_valid_rows valid_of(const slot *slot, bool has_lengths) {
  return (banyan_valid_rows){.size = sizeof(banyan_valid_rows),
                             .tokens = &slot->tokens,
                             .batch = has_lengths ? MOST : 0,
                             .seq_lens = has_lengths ? slot->lengths : NULL,
                             .token_mask = slot->mask};
}

static void describe(slot *slot, banyan_partial *in, banyan_partial *out) {
  banyan_partial_init(in, slot->in, BANYAN_F32, slot->lse, BANYAN_F32, 1, DIM);
  banyan_partial_init(out, slot->out, BANYAN_F32, slot->out_lse, BANYAN_F32, 1, DIM);
}

static bool make_ops(rig *rig, slot *slot) {
  banyan_valid_rows valid = valid_of(slot, true), tokens = valid_of(slot, false);
  banyan_combine_desc desc = desc_of(rig, &valid), after = desc_of(rig, &tokens);
  banyan_attention_desc attention =
      attention_desc_of(MOST, 1, 1, 0, DIM, DIM, BANYAN_BF16, BANYAN_BF16, rig->q, rig->k, rig->v, slot->lengths);
  banyan_partial in, out;
  attention.keys_max = KEYS, attention.stream = rig->stream;
  describe(slot, &in, &out);
  banyan_comm *comm = rig->world->comm;
  return world_ok(rig->world, banyan_combine_init(comm, &desc, &in, &out, &slot->ops[LAUNCHED]), "combine") &&
         (spans_nodes() ||
          world_ok(rig->world, banyan_device_combine_init(comm, &desc, &slot->ops[WITHIN]), "device combine")) &&
         world_ok(rig->world, banyan_attention_combine_init(comm, &attention, &after, &out, &slot->ops[ATTENTION]),
                  "attention");
}

static uint16_t *rows_of(int32_t rows, float value) {
  uint16_t *made = aligned_alloc(64, (size_t)rows * DIM * sizeof *made);
  for (int32_t i = 0; i < rows * DIM; i++) made[i] = bny_bf16_of_float(value);
  return made;
}

static bool make(rig *rig) {
  world_rank *world = rig->world;
  char name[16];
  snprintf(name, sizeof name, "cuda:%d", world->rank);
  banyan_comm_config config = {.size = sizeof config, .timeout_ns = WORLD_GUARD_NS, .device = name};
  rig->q = rows_of(MOST, 1);
  rig->k = rows_of(KEYS, 0);
  rig->v = rows_of(KEYS, (float)world->rank + 1);
  bool good = world_ok(world, open_fake(world->rank, &rig->device), "open") &&
              world_ok(world, rig->device->ops->stream_make(rig->device, &rig->stream), "stream") &&
              world_ok(world, rig->device->ops->module_load(rig->device, "emulated", 9, &rig->module), "image") &&
              world_ok(world, rig->device->ops->kernel_find(rig->module, "user_kernel", &rig->kernel), "kernel") &&
              world_ok(world, banyan_comm_create(&world->bootstrap, &config, &world->comm), "create");
  for (int i = 0; i < SLOTS && good; i++) good = make_ops(rig, &rig->slots[i]);
  return good;
}

static void unmake(rig *rig) {
  for (int i = 0; i < SLOTS; i++)
    for (int kind = 0; kind < KINDS; kind++) banyan_op_free(rig->slots[i].ops[kind]);
  banyan_comm_destroy(rig->world->comm);
  rig->world->comm = NULL;
  rig->device->ops->module_unload(rig->module);
  rig->device->ops->stream_free(rig->device, rig->stream);
  rig->device->ops->close(rig->device);
  free(rig->q);
  free(rig->k);
  free(rig->v);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool launch(rig *rig, slot *slot) {
  banyan_partial in, out;
  bny_device_combine combine;
  describe(slot, &in, &out);
  if (!world_ok(rig->world, banyan_op_device(slot->ops[WITHIN], &in, &out, 1, &combine, sizeof combine), "device"))
    return false;
  user_kernel_rows rows = {slot->in, slot->lse, NULL, MOST, 1, DIM, 0, (uint32_t)slot->tokens % 2};
  void *arguments[] = {&rows, &combine};
  bny_device_launch launch = {
      .kernel = &rig->kernel, .grid = {1, 1, 1}, .block = {32 * USER_KERNEL_WARPS, 1, 1}, .arguments = arguments};
  return world_ok(rig->world, rig->device->ops->launch(rig->device, &launch, rig->stream), "launch");
}

static bool start(rig *rig, slot *slot) {
  if (slot->kind == WITHIN) return launch(rig, slot);
  if (slot->kind != BLOCKING) return world_ok(rig->world, banyan_start(slot->ops[slot->kind]), "start");
  banyan_valid_rows valid = valid_of(slot, true);
  valid.tokens = NULL;
  banyan_combine_desc desc = desc_of(rig, &valid);
  desc.tokens = slot->tokens;
  banyan_partial in, out;
  describe(slot, &in, &out);
  valid.batch = slot->tokens;
  return world_ok(rig->world, banyan_combine(rig->world->comm, &desc, &in, &out), "combine");
}

static uint64_t calls(void) {
  const char *text = getenv("TEST_CALLS");
  return text ? strtoull(text, NULL, 10) : world_is_sanitized() ? CALLS_SLOWLY : CALLS;
}

static void call_while_stopped(world_rank *self) {
  world_random all = random_seed(); /* the same on all ranks */
  rig *made = calloc(1, sizeof *made);
  made->world = self;
  bool good = make(made);
  for (uint64_t first = 0; first < calls() && good; first += SLOTS) {
    for (uint64_t i = 0; i < SLOTS && good; i++) {
      draw(made, &made->slots[i], &all, first + i);
      good = start(made, &made->slots[i]);
    }
    good = good &&
           world_ok(self, bny_device_wait(made->device, made->stream, (int64_t)(world_now_s() * 1e9) + WORLD_GUARD_NS),
                    "wait");
    good = good && world_ok(self, banyan_comm_status(self->comm), "status");
    for (uint64_t i = 0; i < SLOTS && good; i++) good = holds(made, &made->slots[i], first + i);
  }
  world_meet(self);
  world_signal(self->world, WORLD_DONE);
  unmake(made);
  free(made);
}

static void run(int32_t ranks, const char *nodes) {
  char words[96];
  snprintf(words, sizeof words, "devices=4,sms=2,live,moved,no-fabric,step-ns=20,seed=%llu",
           (unsigned long long)random_seed());
  world_be_nodes(nodes);
  setenv("FAKE_CUDA", words, 1);
  setenv("BANYAN_CUDA_LIBRARY", fake_cuda_path(), 1);
  setenv("BANYAN_ARENA_KIB", "4096", 1);
  fake_cuda_set_image("emulated", 8);
  int32_t *nranks = world_share(sizeof *nranks);
  *nranks = ranks;
  world_setup setup = {
      .nranks = *nranks, .processes = true, .bare = true, .argument = nranks, .conduct = world_stop_in_turn};
  world_run(&setup, call_while_stopped);
  world_unshare(nranks, sizeof *nranks);
}

TEST_LOOP(a_rank_is_stopped_and_goes_on, 2) { run(2 + _i, NULL); }

#ifdef HAVE_UCX
TEST(also_between_nodes) {
  if (world_has_network()) run(3, "a,a,b");
}
#endif

int main(void) { return world_main(suite_of("device valid rows stops", WORLD_GUARD_S + (int)(calls() / 10))); }
