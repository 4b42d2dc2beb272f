/* SPDX-License-Identifier: Apache-2.0
 * Programs built against other versions of the library: shorter and longer structs in every call that takes one. */
#include "tests/support/attention_oracle.h"
#include "tests/support/lone.h"
#include "base/sized.h"

enum { TOKENS = 2, HEADS = 2, DIM = 4, ROWS = TOKENS * HEADS, KEYS = 4, BEYOND = 24 };

/* A struct of a newer program: the known fields, followed by unknown ones. */
#define LONGER(type)              \
  struct {                        \
    type known;                   \
    unsigned char beyond[BEYOND]; \
  }

static float values[ROWS * DIM], lse[ROWS], merged[ROWS * DIM];
static float q[ROWS * DIM], cache[2 * KEYS * HEADS * DIM];

static banyan_comm *comm;

static void make_comm(void) {
  comm = lone_comm(NULL);
  for (int i = 0; i < ROWS * DIM; i++) values[i] = (float)i;
}

static void destroy_comm(void) { banyan_comm_destroy(comm); }

static void good(banyan_status status) { ck_assert_msg(status == BANYAN_OK, "%s", banyan_last_error()); }

static void rejected(banyan_status status, const char *first, const char *second) {
  ck_assert_int_eq(status, BANYAN_ERR_ARGUMENT);
  ck_assert_msg(strstr(banyan_last_error(), first) && strstr(banyan_last_error(), second), "%s, %s: %s", first, second,
                banyan_last_error());
}

/* ---- the rule ---------------------------------------------------------------------------------------------------- */

typedef struct thing {
  size_t size;
  int64_t first, later;
} thing;

static const bny_sized thing_type = {"thing", 16, sizeof(thing)};

TEST(structs_become_ours) {
  thing room, given = {sizeof given, 1, 2};
  ck_assert_ptr_eq(bny_sized_read(&thing_type, "it", &given, &room), &given);
  given.size = 16; /* an older program, whose struct lacks the last field */
  const thing *found = bny_sized_read(&thing_type, "it", &given, &room);
  ck_assert_ptr_eq(found, &room);
  ck_assert(found->size == sizeof *found && found->first == 1 && found->later == 0);
  LONGER(thing) longer = {.known = {sizeof longer, 3, 4}};
  found = bny_sized_read(&thing_type, "it", &longer, &room);
  ck_assert_ptr_eq(found, &room);
  ck_assert(found->size == sizeof *found && found->first == 3 && found->later == 4);
}

TEST(sizes_are_rejected) {
  static const size_t none[] = {0, 1, 8, 15, 17, 23, 1025, SIZE_MAX};
  thing room;
  LONGER(thing) given = {.known = {sizeof given, 1, 2}};
  for (int i = 0; i < BEYOND; i++) {
    given.beyond[i] = 1;
    ck_assert_ptr_null(bny_sized_read(&thing_type, "it", &given, &room));
    rejected(BANYAN_ERR_ARGUMENT, "it has", "built for a newer version");
    given.beyond[i] = 0;
  }
  for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
    given.known.size = none[i];
    ck_assert_ptr_null(bny_sized_read(&thing_type, "it", &given, &room));
    rejected(BANYAN_ERR_ARGUMENT, "it.size is", "sizeof(thing), here 24");
  }
}

TEST(answers_fit) {
  const thing made = {sizeof made, 5, 6};
  LONGER(thing) out;
  for (size_t size = 16; size <= sizeof out; size += 8) {
    memset(&out, 0xaa, sizeof out);
    out.known.size = size;
    good(bny_sized_write(&thing_type, "it", &made, &out));
    ck_assert(out.known.size == size && out.known.first == 5);
    if (size >= sizeof made) ck_assert_int_eq(out.known.later, 6);
    for (size_t i = sizeof made; i < sizeof out; i++)
      ck_assert_uint_eq(((unsigned char *)&out)[i], i < size ? 0 : 0xaa);
    if (size < sizeof made) ck_assert_int_eq((uint8_t)out.known.later, 0xaa);
  }
}

/* The struct sizes at publication, which must remain valid for ever. */
TEST(first_forms_stay) {
  ck_assert_uint_eq(offsetof(banyan_bootstrap, allgather), 24);
  ck_assert_uint_eq(offsetof(banyan_comm_config, device), 32);
  ck_assert_uint_eq(offsetof(banyan_comm_config, first_timeout_ns), 40);
  ck_assert_uint_eq(offsetof(banyan_partial, empty_below), 88);
  ck_assert_uint_eq(offsetof(banyan_combine_desc, stream), 48);
  ck_assert_uint_eq(offsetof(banyan_heads_desc, valid), 72);
  ck_assert_uint_eq(offsetof(banyan_allreduce_desc, valid), 64);
  ck_assert_uint_eq(offsetof(banyan_select_desc, valid), 112);
  ck_assert_uint_eq(offsetof(banyan_op_info, bytes_between_nodes), 64);
  const bny_sized *const all[] = {&bny_sized_bootstrap,      &bny_sized_comm_config,    &bny_sized_partial,
                                  &bny_sized_combine_desc,   &bny_sized_attention_desc, &bny_sized_op_info,
                                  &bny_sized_valid,          &bny_sized_heads_desc,     &bny_sized_queries,
                                  &bny_sized_allreduce_desc, &bny_sized_select_desc};
  static const size_t first[] = {32, 40, 96, 56, 392, 72, 56, 80, 64, 72, 120},
                      now[] = {32, 56, 112, 64, 400, 88, 56, 80, 96, 80, 120};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    ck_assert_uint_eq(all[i]->first_bytes, first[i]);
    ck_assert_uint_eq(all[i]->bytes, now[i]);
  }
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

typedef LONGER(banyan_combine_desc) longer_desc;
typedef LONGER(banyan_partial) longer_partial;

static void make_longer(longer_desc *desc, longer_partial *in, longer_partial *out) {
  *desc = (longer_desc){.known = {.size = sizeof *desc, .tokens = TOKENS, .heads = HEADS, .value_dim = DIM}};
  *in = *out = (longer_partial){0};
  banyan_partial_init(&in->known, values, BANYAN_F32, lse, BANYAN_F32, HEADS, DIM);
  banyan_partial_init(&out->known, merged, BANYAN_F32, NULL, BANYAN_F32, HEADS, DIM);
  in->known.size = out->known.size = sizeof *in;
}

TEST(combines) {
  longer_desc desc;
  longer_partial in, out;
  make_longer(&desc, &in, &out);
  banyan_op *op = NULL;
  good(banyan_combine(comm, &desc.known, &in.known, &out.known));
  ck_assert_mem_eq(merged, values, sizeof merged);
  memset(merged, 0, sizeof merged);
  good(banyan_combine_init(comm, &desc.known, &in.known, &out.known, &op));
  memset(&in, 0xff, sizeof in), memset(&out, 0xff, sizeof out); /* init has copied both, so this has no effect */
  good(start_and_wait(op));
  ck_assert_mem_eq(merged, values, sizeof merged);
  LONGER(banyan_op_info) info;
  memset(&info, 0xff, sizeof info);
  info.known.size = sizeof info;
  good(banyan_op_query(op, &info.known));
  ck_assert(info.known.size == sizeof info && info.known.algorithm && info.beyond[0] == 0 &&
            info.beyond[BEYOND - 1] == 0);
  banyan_op_free(op);
}

TEST(combines_of_tomorrow) {
  longer_desc desc;
  longer_partial in, out;
  make_longer(&desc, &in, &out);
  unsigned char *const beyond[] = {desc.beyond, in.beyond, out.beyond};
  static const char *const names[] = {"desc has", "in has", "out has"};
  for (int i = 0; i < 3; i++) {
    beyond[i][BEYOND - 1] = 1;
    rejected(banyan_combine(comm, &desc.known, &in.known, &out.known), names[i], "newer version");
    beyond[i][BEYOND - 1] = 0;
  }
  good(banyan_combine(comm, &desc.known, &in.known, &out.known));
}

/* The attention description of a version before `pages`, and of a later version. */
TEST(attention_of_any_version) {
  static const int32_t lengths[TOKENS] = {KEYS, KEYS - 1}, table[TOKENS] = {0, 1};
  LONGER(banyan_attention_desc)
  desc = {.known = attention_desc_of(TOKENS, HEADS, HEADS, KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, q, cache, cache,
                                     lengths)};
  desc.known.kv.pages = (banyan_pages){.table = table, .table_stride = 1, .keys = KEYS};
  banyan_combine_desc combine = {.size = sizeof combine, .tokens = TOKENS, .heads = HEADS, .value_dim = DIM};
  banyan_partial out;
  banyan_partial_init(&out, merged, BANYAN_F32, NULL, BANYAN_F32, HEADS, DIM);
  static const size_t sizes[] = {sizeof(banyan_attention_desc), sizeof desc};
  for (int i = 0; i < 2; i++) {
    banyan_op *op = NULL;
    desc.known.size = sizes[i];
    desc.known.kv.pages.count = 2;
    good(banyan_attention(&desc.known, &out));
    good(banyan_attention_combine(comm, &desc.known, &combine, &out));
    good(banyan_attention_init(comm, &desc.known, &out, &op));
    good(start_and_wait(op));
    banyan_op_free(op);
    desc.known.kv.pages.count = 1;
    rejected(banyan_attention(&desc.known, &out), "page_table[1][0] is 1", "pages is 1");
  }
  desc.beyond[3] = 1;
  rejected(banyan_attention(&desc.known, &out), "desc has", "newer version");
  rejected(banyan_attention_combine(comm, &desc.known, &combine, &out), "desc has", "newer version");
  desc.known.size = 160;
  rejected(banyan_attention(&desc.known, &out), "desc.size is 160", "sizeof(banyan_attention_desc), here 400");
}

/* Queries of a program without patterns: memory after its struct is neither read nor written. */
TEST(queries_of_any_version) {
  static const int32_t lengths[TOKENS] = {KEYS, KEYS}, first[TOKENS] = {0, 1};
  LONGER(banyan_queries) queries = {.known = {.tokens = TOKENS, .query_start = first}};
  banyan_ownership rule = BANYAN_OWNERSHIP_INIT;
  rule.kind = BANYAN_OWNERSHIP_BLOCKS, rule.nranks = 2;
  banyan_attention_desc desc =
      attention_desc_of(TOKENS, HEADS, HEADS, KEYS, DIM, DIM, BANYAN_F32, BANYAN_F32, q, cache, cache, lengths);
  desc.kv.k_batch_stride = desc.kv.v_batch_stride = 0, desc.queries = &queries.known;
  banyan_partial out;
  banyan_partial_init(&out, merged, BANYAN_F32, NULL, BANYAN_F32, HEADS, DIM);
  int32_t start;
  for (int i = 0; i < 3; i++) {
    static const size_t sizes[] = {64, sizeof(banyan_queries), sizeof queries};
    banyan_op *op = NULL;
    queries.known.size = sizes[i];
    queries.known.key_pattern_len = i == 0 ? -1 : 0;
    good(banyan_ownership_queries(&rule, 1, &queries.known, &start));
    ck_assert(queries.known.key_pattern_len == (i == 0 ? -1 : 0) && queries.known.key_stride == 2);
    good(banyan_attention(&desc, &out));
    good(banyan_attention_init(comm, &desc, &out, &op));
    good(start_and_wait(op));
    banyan_op_free(op);
  }
  queries.beyond[3] = 1;
  rejected(banyan_attention(&desc, &out), "queries has", "newer version");
  rejected(banyan_ownership_queries(&rule, 1, &queries.known, &start), "queries has", "newer version");
}

TEST(communicators_of_any_version) {
  banyan_threads *group;
  LONGER(banyan_bootstrap) bootstrap = {0};
  LONGER(banyan_comm_config) config = {.known = {.size = sizeof config, .timeout_ns = 1000000000}};
  banyan_comm *made = NULL;
  good(banyan_threads_create(1, &group));
  good(banyan_threads_bootstrap(group, 0, &bootstrap.known));
  bootstrap.known.size = sizeof bootstrap;
  bootstrap.beyond[0] = 1;
  rejected(banyan_comm_create(&bootstrap.known, &config.known, &made), "bootstrap has", "newer version");
  bootstrap.beyond[0] = 0;
  config.beyond[1] = 1;
  rejected(banyan_comm_create(&bootstrap.known, &config.known, &made), "config has", "newer version");
  config.beyond[1] = 0;
  good(banyan_comm_create(&bootstrap.known, &config.known, &made));
  good(banyan_barrier(made));
  banyan_comm_destroy(made);
  banyan_threads_destroy(group);
}

int main(void) { return suite_main(suite_with("sized", 0, make_comm, destroy_comm)); }
