/* SPDX-License-Identifier: Apache-2.0
 * Memory of the caller that a device cannot reach is reported before anything is launched. Memory that it can reach is
 * accepted. */
#include "tests/device/device_util.h"
#include "tests/support/attention_oracle.h"
#include "tests/support/world.h"

enum { HEADS = 2, DIM = 64, BYTES = 4096 };

/* The kinds of memory of a rank: of its device, of another device, pinned, and pageable. */
typedef struct memories {
  bny_device *device, *other;
  void *local, *others;
  bny_device_words words;
  _Alignas(16) float plain[BYTES / sizeof(float)];
} memories;

static bool make_memories(world_rank *self, memories *made) {
  return world_ok(self, open_fake(0, &made->device), "open") && world_ok(self, open_fake(1, &made->other), "open") &&
         world_ok(self, made->device->ops->local_make(made->device, BYTES, &made->local), "memory") &&
         world_ok(self, made->other->ops->local_make(made->other, BYTES, &made->others), "memory") &&
         world_ok(self, made->device->ops->words_make(made->device, BYTES / sizeof(uint64_t), &made->words),
                  "pinned memory");
}

static void free_memories(memories *made) {
  made->device->ops->words_free(made->device, &made->words);
  made->device->ops->local_free(made->device, made->local);
  made->other->ops->local_free(made->other, made->others);
  made->device->ops->close(made->device);
  made->other->ops->close(made->other);
}

static void expect(world_rank *self, banyan_status status, banyan_op **op, const char *says) {
  if (says)
    world_gets(self, status, BANYAN_ERR_ARGUMENT, says);
  else
    world_ok(self, status, "init");
  if (status == BANYAN_OK) banyan_op_free(*op);
}

/* says: NULL if it is fine. */
static void combine(world_rank *self, const banyan_partial *in, const banyan_partial *out, const char *says) {
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = HEADS, .value_dim = DIM};
  banyan_op *op = NULL;
  expect(self, banyan_combine_init(self->comm, &desc, in, out, &op), &op, says);
}

static banyan_partial rows(void *values, void *lse) {
  banyan_partial made;
  banyan_partial_init(&made, values, BANYAN_F32, lse, BANYAN_F32, HEADS, DIM);
  return made;
}

static void check_combines(world_rank *self, const memories *memories, bool peers) {
  float *local = memories->local, *plain = (float *)(uintptr_t)memories->plain;
  void *pinned = memories->words.device;
  const char *no_peer = "memory of device 1, which the communicator's device 0 (Fake 0) cannot reach";
  banyan_partial good = rows(local, local + 512), wanted = rows(local + 600, pinned);
  combine(self, &good, &wanted, NULL);
  static const char *const says[] = {"in.values is plain host memory", "in.lse is plain", "in.sum is plain",
                                     "out.values is plain", "out.lse is plain"};
  for (int i = 0; i < 5; i++) {
    banyan_partial in = good, out = wanted;
    void **const at[] = {&in.values, &in.lse, &in.sum, &out.values, &out.lse};
    if (i == 2) in.stats_kind = BANYAN_STATS_MAX_SUM;
    *at[i] = plain;
    combine(self, &in, &out, says[i]);
  }
  banyan_partial bad = rows(memories->others, local);
  combine(self, &bad, &wanted, peers ? NULL : no_peer);
}

static void check_others(world_rank *self, const memories *memories) {
  float *local = memories->local, *plain = (float *)(uintptr_t)memories->plain;
  size_t counts[1] = {64};
  banyan_op *op = NULL;
  expect(self, banyan_allgather_init(self->comm, plain, local, counts, &op), &op, "mine is plain");
  expect(self, banyan_allgather_init(self->comm, local, plain, counts, &op), &op, "all is plain");
  expect(self, banyan_shift_init(self->comm, plain, local, 64, 0, &op), &op, "send is plain");
  expect(self, banyan_shift_init(self->comm, local, plain, 64, 0, &op), &op, "receive is plain");
  expect(self, banyan_broadcast_init(self->comm, plain, 64, 0, &op), &op, "data is plain");
  expect(self, banyan_broadcast_init(self->comm, plain, 0, 0, &op), &op, NULL); /* its memory is not accessed */
  banyan_attention_desc desc = attention_desc_of(1, HEADS, HEADS, 1, DIM, DIM, BANYAN_BF16, BANYAN_BF16, local, local,
                                                 local, (const int32_t *)(void *)plain);
  desc.keys_max = 1;
  banyan_combine_desc both = {.size = sizeof both, .tokens = 1, .heads = HEADS, .value_dim = DIM};
  banyan_partial out = rows(local, NULL);
  expect(self, banyan_attention_init(self->comm, &desc, &out, &op), &op, "seq_lens is plain");
  expect(self, banyan_attention_combine_init(self->comm, &desc, &both, &out, &op), &op, "seq_lens is plain");
  desc.kv.seq_lens = (const int32_t *)(void *)local;
  desc.kv.k = plain;
  expect(self, banyan_attention_init(self->comm, &desc, &out, &op), &op, "k is plain");
  desc.kv.k = local;
  out.values = plain;
  expect(self, banyan_attention_init(self->comm, &desc, &out, &op), &op, "out.values is plain");
  expect(self, banyan_attention_combine_init(self->comm, &desc, &both, &out, &op), &op, "out.values is plain");
  out.values = local;
  expect(self, banyan_attention_init(self->comm, &desc, &out, &op), &op, NULL);
}

static void try_all(world_rank *self) {
  memories *memories = calloc(1, sizeof *memories);
  if (!make_memories(self, memories)) return;
  check_combines(self, memories, *(bool *)self->argument);
  check_others(self, memories);
  world_ok(self, banyan_comm_status(self->comm), "status"); /* the communicator is still usable */
  free_memories(memories);
  free(memories);
}

TEST_LOOP(what_is_not_reached_is_named, 2) {
  bool peers = _i;
  WORLD_RUN(try_all, .nranks = 1, .on = &world_emulated, .words = peers ? "no-pageable" : "no-pageable,no-peer",
            .argument = &peers);
}

/* The driver is queried once per allocation, so a freed allocation is not noticed. */
static void ask_again(world_rank *self) {
  memories *memories = calloc(1, sizeof *memories);
  if (!make_memories(self, memories)) return;
  float *local = memories->local;
  banyan_partial in = rows(local, local + 512), out = rows(local + 600, NULL), elsewhere = rows(local + 700, NULL);
  combine(self, &in, &out, NULL);
  memories->device->ops->local_free(memories->device, local);
  memories->local = NULL;
  combine(self, &in, &elsewhere, NULL);
  free_memories(memories);
  free(memories);
}

TEST(drivers_are_asked_once) { WORLD_RUN(ask_again, .nranks = 1, .on = &world_emulated, .words = "no-pageable"); }

/* Devices that share the machine's page tables accept all memory. */
static void use_plain(world_rank *self) {
  memories *memories = calloc(1, sizeof *memories);
  if (!make_memories(self, memories)) return;
  banyan_partial in = rows(memories->plain, memories->plain + 512), out = rows(memories->plain + 600, NULL);
  combine(self, &in, &out, NULL);
  free_memories(memories);
  free(memories);
}

TEST(plain_memory_that_is_reached) { WORLD_RUN(use_plain, .nranks = 1, .on = &world_emulated, .words = ""); }

int main(void) { return world_main(suite_of("device_reach", 30)); }
