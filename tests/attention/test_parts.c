/* SPDX-License-Identifier: Apache-2.0
 * Keys in several memories: invalid lists. test_laws.c splits keys of random problems into parts. */
#include "tests/api/attention_local.h"

static void good(banyan_status status) {
  ck_assert_msg(status == BANYAN_OK, "%s: %s", banyan_status_string(status), banyan_last_error());
}

/* ---- invalid lists ----------------------------------------------------------------------------------------------- */

typedef struct two_parts {
  problem halves[2];
  banyan_kv_part parts[2];
  banyan_attention_desc desc;
  int32_t first[2], sum[1];
} two_parts;

static banyan_status attend_to_two(two_parts *t) {
  banyan_partial out;
  result r = result_make(&t->desc, &out);
  banyan_status status = banyan_attention(&t->desc, &out);
  result_free(&r);
  for (int p = 0; p < 2; p++) problem_free(&t->halves[p]);
  return status;
}

/* Fills it in place, because the description points into it. */
static void two_parts_make(two_parts *t) {
  static const int32_t lens[2] = {10, 7};
  *t = (two_parts){.first = {0, 10}, .sum = {17}};
  random_state = 5;
  for (int p = 0; p < 2; p++) {
    problem_make(&t->halves[p], 1, 2, 1, 16, 0, BANYAN_F32, p ? BANYAN_F16 : BANYAN_F32, &lens[p], 1);
    t->parts[p] = t->halves[p].desc.kv, t->parts[p].key_first = &t->first[p];
  }
  t->desc = t->halves[0].desc;
  attention_clear_keys(&t->desc);
  t->desc.parts = t->parts, t->desc.part_count = 2, t->desc.kv.seq_lens = t->sum;
}

/* The statements spoil `t`, and attention fails with this text. */
#define REJECTED(status, text, ...)                                                            \
  do {                                                                                         \
    two_parts t;                                                                               \
    two_parts_make(&t);                                                                        \
    __VA_ARGS__;                                                                               \
    ck_assert_int_eq(attend_to_two(&t), status);                                               \
    ck_assert_msg(strstr(banyan_last_error(), text), "%s, not %s", banyan_last_error(), text); \
  } while (0)

TEST(lists_that_are_wrong_are_rejected) {
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1]: kv_dtype is 0", t.parts[1].dtype = (banyan_dtype)0);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1].key_first[0] is 9, which overlaps: the parts before end at key 10",
           t.first[1] = 9);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1].key_first[0] is 11, which leaves a gap", t.first[1] = 11);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[0].key_first[0] is 7, which leaves a gap", t.first[0] = 7, t.first[1] = 0);
  REJECTED(BANYAN_ERR_ARGUMENT, "seq_lens[0] is 16, and the parts have 17 keys", t.sum[0] = 16);
  REJECTED(BANYAN_ERR_ARGUMENT, "part_count is 0, must be 1 to 8", t.desc.part_count = 0);
  REJECTED(BANYAN_ERR_ARGUMENT, "part_count is 9, must be 1 to 8", t.desc.part_count = 9);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1]: k is NULL", t.parts[1].k = NULL);
  REJECTED(BANYAN_ERR_ARGUMENT, "k is set next to parts", t.desc.kv.k = t.parts[0].k);
  REJECTED(BANYAN_ERR_ARGUMENT, "v_token_stride is set next to parts", t.desc.kv.v_token_stride = 16);
  REJECTED(BANYAN_ERR_ARGUMENT, "kv_dtype is set next to parts", t.desc.kv.dtype = BANYAN_F16);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[0]: seq_lens is NULL", t.parts[0].seq_lens = NULL);
  REJECTED(BANYAN_ERR_UNSUPPORTED, "prune is set next to parts", t.desc.prune.epsilon = 0.5f);
  REJECTED(BANYAN_ERR_ARGUMENT, "parts[1]: k_token_stride is 1", t.parts[1].k_token_stride = 1);
  two_parts t;
  two_parts_make(&t);
  good(attend_to_two(&t));
}

int main(void) { return suite_main(suite_of("parts of keys", 60)); }
