/* SPDX-License-Identifier: Apache-2.0
 * The fields that ranks compare: every field of a call takes part in each comparison of calls: shapes, the words
 * that ranks compare, the text that names a difference, and the hash of a request. The hash also covers the rows of
 * plan/link_cost.def. */
#include "op/operation.h"
#include "tests/support/lone.h"
#include "tests/support/suite.h"

/* Changes one bit of a field, whatever its type. */
#define FLIP(lvalue) ((lvalue) = (__typeof__(lvalue))((lvalue) ? 0 : 1))

static const bny_plan some_plan = {.algorithm = "oneshot", .hash = 7};
static bny_signal words[2][BNY_CALL_WORDS];

static bny_signal *words_of(bny_transport *transport, int32_t rank) {
  (void)transport;
  return words[rank];
}

static bny_transport_ops ops = {.call = words_of};

/* Rank 1 runs `theirs`, and rank 0 the usual call. Returns the text that rank 0 would print, or "" if it finds no
 * difference. */
static const char *difference_of(const bny_notice *theirs, int64_t their_tag) {
  static char text[256];
  bny_request usual = {.nranks = 2};
  bny_transport transport = {.ops = &ops, .rank = 1};
  bny_notice_publish(words[1], theirs, 1, their_tag);
  bny_notice ours = bny_notice_make(&usual, &some_plan, BNY_PHASE_RUN);
  bny_notice_publish(words[0], &ours, 1, BANYAN_TAG_NONE);
  transport.rank = 0;
  text[0] = 0;
  return bny_notice_difference(&transport, 1, &ours, 0, text, sizeof text) ? text : "";
}

static const char *difference(const bny_notice *theirs) { return difference_of(theirs, BANYAN_TAG_NONE); }

static void check_words(const bny_request *changed, const char *label) {
  bny_request usual = {.nranks = 2};
  bny_notice a = bny_notice_make(&usual, &some_plan, BNY_PHASE_RUN),
             b = bny_notice_make(changed, &some_plan, BNY_PHASE_RUN);
  bny_notice_set_tokens(&b, 0); /* a run with other tokens would be named before the tokens that a call plans for */
  ck_assert_msg(a.tag != b.tag, "calls of other %s have the same tag", label);
  const char *text = difference(&b);
  ck_assert_msg(strncmp(text, label, strlen(label)) == 0, "%s: \"%s\"", label, text);
}

static void check_hash(const bny_request *changed, const char *field) {
  bny_request usual = {.nranks = 2};
  ck_assert_msg(bny_request_hash(&usual, "ring") != bny_request_hash(changed, "ring"), "%s is not in the hash", field);
}

/* Changes a field of the call; the new value differs from 0. */
static void set(bny_call *call, int field) { memset((char *)call + bny_call_fields[field].offset, 1, 1); }

TEST(each_field_is_in_words_and_hash) {
  bny_request usual = {.nranks = 2}, changed;
  bny_notice same = bny_notice_make(&usual, &some_plan, BNY_PHASE_RUN);
  ck_assert_str_eq(difference(&same), "");
  for (int i = 0; i < BNY_CALL_COMPARED; i++) {
    if (bny_call_fields[i].is_of_run) continue;
    changed = usual;
    set(&changed.call, i);
    check_words(&changed, bny_call_fields[i].label);
    check_hash(&changed, bny_call_fields[i].label);
  }
#define CHANGED(field, check, name) \
  changed = usual;                  \
  FLIP(changed.field);              \
  check(&changed, name);
#define BOX(field, label)            \
  CHANGED(field, check_words, label) \
  CHANGED(field, check_hash, label)
  BOX(token0, "first token of the part")
  BOX(tokens, "tokens of the part")
  BOX(head0, "first head of the part")
  BOX(heads, "heads of the part")
  CHANGED(nranks, check_hash, "nranks")
  CHANGED(outbox_bytes, check_hash, "outbox_bytes")
  CHANGED(slots_max, check_hash, "slots_max")
#define BNY_COST(field) CHANGED(cost.field, check_hash, #field)
#include "plan/link_cost.def"
#undef CHANGED
#undef BOX
}

TEST(other_facts_are_in_words_and_hash) {
  size_t counts[2] = {3, 4};
  bny_levels levels = {.hash = 5};
  bny_request usual = {.nranks = 2}, changed = usual;
  changed.call.counts = counts;
  check_hash(&changed, "counts");
  bny_notice call = bny_notice_make(&changed, &some_plan, BNY_PHASE_RUN);
  ck_assert_ptr_nonnull(strstr(difference(&call), "counts"));
  changed = usual;
  changed.levels = &levels;
  check_hash(&changed, "levels");
  ck_assert_uint_ne(bny_request_hash(&usual, "ring"), bny_request_hash(&usual, "rings"));
  call = bny_notice_make(&usual, &some_plan, BNY_PHASE_AGREE);
  ck_assert_ptr_nonnull(strstr(difference(&call), "phase"));
  bny_plan other = {.algorithm = "one", .hash = 7};
  call = bny_notice_make(&usual, &other, BNY_PHASE_RUN);
  ck_assert_str_eq(difference(&call), "algorithm one there, oneshot here");
  other = (bny_plan){.algorithm = "oneshot", .hash = 8};
  call = bny_notice_make(&usual, &other, BNY_PHASE_RUN);
  ck_assert_ptr_nonnull(strstr(difference(&call), "plan"));
}

/* A tag tells apart what no other field does. If the shapes differ too, both are named. */
TEST(other_tags_are_named) {
  bny_request usual = {.nranks = 2}, odd = {.nranks = 2, .call.all_heads = 3};
  bny_notice same = bny_notice_make(&usual, &some_plan, BNY_PHASE_RUN);
  bny_notice other = bny_notice_make(&odd, &some_plan, BNY_PHASE_RUN);
  ck_assert_str_eq(difference_of(&same, 0), "tag 0 there, no tag here");
  ck_assert_str_eq(difference_of(&same, INT64_C(1) << 40), "tag 1099511627776 there, no tag here");
  ck_assert_str_eq(difference_of(&other, 5), "tag 5 there, no tag here; heads 3 there, 0 here");
}

/* After the first difference, both ranks ran the call once more, and rank 1 has entered another call. */
TEST(the_earliest_run_with_other_tokens_is_named) {
  static const uint64_t starts[] = {1, 65533, UINT64_C(1) << 32};
  for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
    bny_transport transport = {.ops = &ops};
    bny_request usual = {.nranks = 2}, later = {.nranks = 2, .call.all_heads = 3};
    bny_notice call = bny_notice_make(&usual, &some_plan, BNY_PHASE_RUN);
    memset(words, 0, sizeof words);
    for (uint64_t run = 0; run < 5; run++) {
      for (transport.rank = 0; transport.rank < 2; transport.rank++) {
        bny_notice_set_tokens(&call, transport.rank == 1 && run > 2 ? 20 + (int32_t)run : 7);
        bny_notice_publish(words[transport.rank], &call, starts[i] + run, BANYAN_TAG_NONE);
      }
    }
    call = bny_notice_make(&later, &some_plan, BNY_PHASE_RUN);
    bny_notice_publish(words[1], &call, starts[i] + 5, BANYAN_TAG_NONE);
    transport.rank = 0;
    call = bny_notice_make(&usual, &some_plan, BNY_PHASE_RUN);
    char text[256] = "";
    ck_assert(bny_notice_difference(&transport, 1, &call, 0, text, sizeof text));
    ck_assert_str_eq(text, "tokens 23 there, 7 here");
  }
}

/* The list covers the whole struct except for the fields that the comparison handles separately. */
TEST(each_field_is_compared) {
  size_t counts[2] = {3, 4}, same[2] = {3, 4}, more[2] = {3, 5}, listed = 0;
  bny_call usual = {.counts = counts}, changed = usual;
  ck_assert(bny_call_equal(&usual, &changed, 2));
  for (int i = 0; i < BNY_CALL_FIELDS; i++) {
    changed = usual;
    set(&changed, i);
    listed += bny_call_fields[i].bytes;
    ck_assert_msg(bny_call_equal(&usual, &changed, 2) == bny_call_fields[i].is_of_run, "field %d", i);
  }
  listed += sizeof usual.counts + sizeof usual.algorithm;
  ck_assert_uint_le(sizeof usual - listed, 2 * _Alignof(bny_call) - 1); /* padding */
  changed = usual;
  changed.algorithm[0] = 'r';
  ck_assert(!bny_call_equal(&usual, &changed, 2));
  changed = usual;
  changed.counts = same;
  ck_assert(bny_call_equal(&usual, &changed, 2));
  changed.counts = more;
  ck_assert(!bny_call_equal(&usual, &changed, 2));
  changed.counts = NULL;
  ck_assert(!bny_call_equal(&usual, &changed, 2));
}

/* Callers leave padding unset, and a store to a field may change the padding. */
TEST(a_repeated_call_is_recognised_by_its_fields) {
  const banyan_combine_desc usual = {.size = sizeof usual, .tokens = 1, .heads = 1, .value_dim = 1};
  float values[2] = {1, 0}, lse = 0;
  banyan_partial in, out;
  banyan_comm *comm = lone_comm(NULL);
  banyan_partial_init(&in, &values[0], BANYAN_F32, &lse, BANYAN_F32, 1, 1);
  banyan_partial_init(&out, &values[1], BANYAN_F32, NULL, BANYAN_F32, 1, 1);
  ck_assert(banyan_combine(comm, &usual, &in, &out) == BANYAN_OK);
  banyan_combine_desc again = usual;
  size_t end = offsetof(banyan_combine_desc, order) + sizeof again.order, padding = sizeof again - end;
  padding -= sizeof again.algorithm + sizeof again.stream + sizeof again.valid;
  memset((char *)&again + end, 0xa5, padding);
  ck_assert_ptr_nonnull(bny_op_repeated(comm, &again, &in, &out));
  again.heads = 2;
  ck_assert_ptr_null(bny_op_repeated(comm, &again, &in, &out));
  banyan_comm_destroy(comm);
}

int main(void) { return suite_main(suite_of("call fields", 0)); }
