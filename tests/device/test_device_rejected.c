/* SPDX-License-Identifier: Apache-2.0
 * Tests how peers learn of a call that one rank rejects, on devices of the fake driver. */
#include "tests/support/world.h"

enum { HEADS = 2, VALUE_DIM = 8, AT_ONCE_S = 60, WRONG_CALLS = 4 };

/* Makes a valid call, or one with mistake `wrong` from 1 on. */
static banyan_status make_within(world_rank *self, int wrong, banyan_op **op) {
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = HEADS, .value_dim = VALUE_DIM};
  if (wrong == 2) desc.algorithm = "ring";
  if (wrong == 3) desc.heads = -1;
  return banyan_device_combine_init(self->comm, wrong == 4 ? NULL : &desc, wrong == 1 ? NULL : op);
}

static const char *const named[1 + WRONG_CALLS] = {"", "op is NULL", "\"ring\"", "heads", "must not be NULL"};

static void reject_within(world_rank *self) {
  banyan_op *op = NULL;
  for (int wrong = 1; wrong <= WRONG_CALLS; wrong++) {
    bool is_wrong = self->rank == 1;
    double since_s = world_now_s();
    banyan_status status = make_within(self, is_wrong ? wrong : 0, &op);
    if (!world_check(self,
                     status == (is_wrong ? BANYAN_ERR_ARGUMENT : BANYAN_ERR_PEER) &&
                         strstr(banyan_last_error(), named[wrong]) &&
                         (is_wrong || strstr(banyan_last_error(), "rank 1 rejected")),
                     "call %d: %s: %s", wrong, banyan_status_string(status), banyan_last_error()) ||
        !world_check(self, world_now_s() - since_s < AT_ONCE_S, "call %d: returned after %.1f s", wrong,
                     world_now_s() - since_s))
      return;
    /* Consecutive rejections share a text. */
    if (!world_ok(self, make_within(self, 0, &op), "the call as it should be")) return;
    banyan_op_free(op);
  }
  world_ok(self, banyan_comm_status(self->comm), "the communicator");
}

/* Peers learn of arguments that banyan_device_combine_init() itself rejects, and the communicator remains usable. */
TEST(combines_within_a_kernel) {
  if (world_is_here(&world_emulated)) WORLD_RUN(reject_within, .nranks = 3, .on = &world_emulated);
}

static banyan_status combine(world_rank *self, const float *in_values, float *out_values, bool wrong) {
  static float lse[HEADS];
  banyan_combine_desc desc = {.size = sizeof desc, .tokens = 1, .heads = HEADS, .value_dim = VALUE_DIM};
  banyan_partial in, out;
  banyan_partial_init(&in, (float *)in_values, BANYAN_F32, lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&out, out_values, BANYAN_F32, NULL, BANYAN_F32, HEADS, VALUE_DIM);
  if (wrong) in.base = (banyan_base)0;
  return banyan_combine(self->comm, &desc, &in, &out);
}

/* Rank 1 rejects a blocking call of a known shape. Kernels of its peers wait, until it aborts as banyan.h says. */
static void reject_a_run(world_rank *self) {
  float in[HEADS * VALUE_DIM] = {1}, out[HEADS * VALUE_DIM];
  if (!world_ok(self, combine(self, in, out, false), "combine") || !world_finish(self)) return;
  banyan_status status = combine(self, in, out, self->rank == 1);
  world_check(self, status == (self->rank == 1 ? BANYAN_ERR_ARGUMENT : BANYAN_OK), "%s", banyan_status_string(status));
  world_check(self, banyan_comm_status(self->comm) == BANYAN_OK, "a rejected call has ended the communicator");
  if (!world_meet(self)) return;
  if (self->rank == 1) banyan_comm_abort(self->comm, "rejected");
  if (!world_finish(self)) return;
  world_fails(self, BANYAN_ERR_ABORTED, 1, "");
  world_meet(self);
}

TEST(runs_that_one_rank_rejects) {
  if (world_is_here(&world_emulated)) WORLD_RUN(reject_a_run, .nranks = 2, .on = &world_emulated);
}

int main(void) { return world_main(suite_of("device_rejected", WORLD_GUARD_S)); }
