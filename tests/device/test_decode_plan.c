/* SPDX-License-Identifier: Apache-2.0
 * Tests plans of decode calls, and the division of work that kernels derive from them. All of it is arithmetic. */
#include <limits.h>

#include "cuda/program.h"
#include "device/decode_plan.h"
#include "tests/support/random.h"
#include "tests/support/status.h"

static const bny_decode_machine h100 = {.compute = 90, .sm_count = 132, .shared_bytes_max = 232448, .clusters = true};
static const bny_decode_machine a100 = {.compute = 80, .sm_count = 108, .shared_bytes_max = 166912};
static const bny_decode_machine b200 = {.compute = 100, .sm_count = 148, .shared_bytes_max = 232448, .clusters = true};
static const bny_decode_machine small = {.compute = 89, .sm_count = 46, .shared_bytes_max = 101376};

static bny_decode_request request_of(int32_t batch, int32_t heads, int32_t kv_heads, int32_t dim, int32_t keys) {
  bny_decode_request made = {.batch = batch,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .head_dim = dim,
                             .value_dim = dim,
                             .dtype = BANYAN_BF16,
                             .keys_max = keys};
  return made;
}

static bny_decode_request latent_request(int32_t batch, int32_t heads, int32_t keys) {
  bny_decode_request made = request_of(batch, heads, 1, 576, keys);
  made.value_dim = 512;
  made.values_in_keys = true;
  return made;
}

static bny_decode_plan plan_of(const bny_decode_request *request, const bny_decode_machine *machine,
                               int32_t sm_blocks) {
  const bny_decode_kernel *kernel;
  bny_decode_plan plan;
  bny_decode_residency residency = {.sm_blocks = sm_blocks};
  ck_assert_int_eq(bny_decode_kernel_choose(request, machine, &kernel), BANYAN_OK);
  ck_assert_int_eq(bny_decode_plan_make(request, machine, kernel, &residency, &plan), BANYAN_OK);
  return plan;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* The table of docs/design.md: which head_dims have a kernel, and how many heads of MLA a kernel takes at a time; 0:
 * none. */
TEST(devices_run_what_the_table_says) {
  static const struct {
    int32_t compute, shared_bytes, latent_most;
    bool wide;
  } rows[] = {
      {80, 163 << 10, 32, true},  {86, 99 << 10, 16, false},  {89, 99 << 10, 16, false},  {90, 227 << 10, 64, true},
      {100, 227 << 10, 32, true}, {103, 227 << 10, 32, true}, {120, 99 << 10, 16, false},
  };
  static const int32_t dims[] = {64, 96, 128, 192, 256};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    bool runs[257] = {false};
    int32_t latent = 0;
    for (const bny_decode_kernel *one = bny_decode_kernels; one->name; one++) {
      if (!bny_decode_kernel_runs(one, rows[i].compute, rows[i].shared_bytes)) continue;
      if (!one->values_in_keys)
        runs[one->head_dim] = true;
      else if (one->rows > latent)
        latent = one->rows;
    }
    for (size_t k = 0; k < sizeof dims / sizeof dims[0]; k++)
      ck_assert_msg(runs[dims[k]] == (dims[k] <= 128 || rows[i].wide), "%d: head_dim %d", rows[i].compute, dims[k]);
    ck_assert_msg(latent == rows[i].latent_most, "%d: %d heads", rows[i].compute, latent);
  }
}

/* Lean kernels are chosen if they serve the request, else general ones, by the rows of q that share keys. */
TEST(kernels_are_chosen) {
  enum { LEAN = BNY_ROWS_lean, GENERAL = BNY_ROWS_general, E4M3 = BNY_ROWS_e4m3, FLASHMLA = BNY_ROWS_flashmla };
  static const struct {
    const bny_decode_machine *machine;
    int32_t dim, heads;
    const char *name; /* kernel name after "bny_decode_"; NULL: none */
    int kv, tokens;
  } cases[] = {
      {&h100, 64, 8, "64_lean", .kv = LEAN},
      {&h100, 96, 8, "96_lean", .kv = LEAN},
      {&h100, 128, 8, "128_lean", .kv = LEAN},
      {&h100, 192, 8, "192_lean", .kv = LEAN},
      {&h100, 256, 8, "256_lean", .kv = LEAN},
      {&a100, 128, 8, "128_lean", .kv = LEAN},
      {&small, 128, 8, "128_lean", .kv = LEAN},
      {&h100, 576, 16, "latent16_lean", .kv = LEAN},
      {&h100, 576, 17, "latent32_lean", .kv = LEAN},
      {&h100, 576, 32, "latent32_lean", .kv = LEAN},
      {&h100, 576, 33, "latent64_wgmma", .kv = LEAN},
      {&h100, 576, 128, "latent64_wgmma", .kv = LEAN},
      {&a100, 576, 8, "latent16_lean", .kv = LEAN},
      {&a100, 576, 128, "latent32_lean", .kv = LEAN},
      {&b200, 576, 128, "latent32_lean", .kv = LEAN},
      {&h100, 128, 8, "128_general", .kv = GENERAL, .tokens = 1},
      {&b200, 96, 8, "96_general", .kv = GENERAL, .tokens = 4},
      {&small, 64, 8, "64_general", .kv = GENERAL, .tokens = 16},
      {&a100, 576, 16, "latent16_general", .kv = GENERAL, .tokens = 1},
      {&h100, 576, 16, "latent32_general", .kv = GENERAL, .tokens = 2},
      {&h100, 128, 8, "128_e4m3", .kv = E4M3, .tokens = 1},
      {&h100, 96, 8, NULL, .kv = E4M3, .tokens = 1},
      {&h100, 576, 128, "latent16_e4m3", .kv = E4M3, .tokens = 1},
      {&b200, 576, 128, "latent16_flashmla", .kv = FLASHMLA, .tokens = 4},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bny_decode_request request = cases[i].dim == 576 ? latent_request(1, cases[i].heads, 1000)
                                                     : request_of(1, cases[i].heads, 1, cases[i].dim, 1000);
    const bny_decode_kernel *kernel;
    request.kv = (bny_decode_rows)cases[i].kv;
    request.tokens = cases[i].tokens;
    banyan_status status = bny_decode_kernel_choose(&request, cases[i].machine, &kernel);
    ck_assert_int_eq(status, cases[i].name ? BANYAN_OK : BANYAN_ERR_UNSUPPORTED);
    request.dtype = BANYAN_F16; /* the same kernels serve it, except that FlashMLA's rows are for bf16 */
    bool f16 = cases[i].name && cases[i].kv != FLASHMLA;
    const bny_decode_kernel *also = NULL;
    status = bny_decode_kernel_choose(&request, cases[i].machine, &also);
    ck_assert_int_eq(status, f16 ? BANYAN_OK : BANYAN_ERR_UNSUPPORTED);
    ck_assert(!f16 || also == kernel);
    if (cases[i].name)
      ck_assert_str_eq(kernel->name + strlen("bny_decode_"), cases[i].name);
    else
      ck_assert_ptr_nonnull(strstr(banyan_last_error(), "rows of BANYAN_E4M3"));
  }
}

/* More tokens make more items and therefore more work. */
TEST(tokens_are_planned_for) {
  bny_decode_request one = request_of(2, 16, 1, 128, 256), many = one;
  one.kv = many.kv = BNY_ROWS_general;
  one.tokens = 2;
  many.tokens = 32;
  bny_decode_plan short_plan = plan_of(&one, &a100, 2), long_plan = plan_of(&many, &a100, 2);
  ck_assert_int_eq(short_plan.row_tiles, 1);
  ck_assert_int_eq(long_plan.row_tiles, 16);
  ck_assert_uint_gt(long_plan.blocks, 4 * short_plan.blocks);
  many.tokens = 0;
  ck_assert_int_eq(plan_of(&many, &a100, 2).row_tiles, 1);
}

TEST(kernels_are_rejected) {
  const bny_decode_kernel *kernel = NULL;
  bny_decode_request odd = request_of(1, 8, 1, 80, 1000), wide = request_of(1, 8, 1, 256, 1000);
  bny_decode_request single = request_of(1, 8, 1, 128, 1000), heads = request_of(1, 8, 3, 128, 1000);
  bny_decode_request many = request_of(1 << 22, 1, 1, 128, 1);
  single.dtype = BANYAN_F32;
  ASSERT_FAILS(bny_decode_kernel_choose(&odd, &h100, &kernel), BANYAN_ERR_UNSUPPORTED, "head_dim 80");
  ck_assert_int_eq(bny_decode_kernel_choose(&wide, &small, &kernel), BANYAN_ERR_UNSUPPORTED);
  ck_assert_int_eq(bny_decode_kernel_choose(&single, &h100, &kernel), BANYAN_ERR_UNSUPPORTED);
  ck_assert_int_eq(bny_decode_kernel_choose(&heads, &h100, &kernel), BANYAN_ERR_ARGUMENT);
  /* The detail of a fault in the last sequence would be mistaken for a fault of pages or starts. */
  ASSERT_FAILS(bny_decode_kernel_choose(&many, &h100, &kernel), BANYAN_ERR_UNSUPPORTED, "4194304");
  ck_assert_ptr_null(kernel);
  many.batch--;
  ck_assert_int_eq(bny_decode_kernel_choose(&many, &h100, &kernel), BANYAN_OK);
  bny_device_fault last =
      bny_device_fault_unpack(bny_device_fault_pack(BANYAN_ERR_ARGUMENT, 0, 0, (uint32_t)many.batch));
  ck_assert_uint_eq(last.detail & (BNY_DEVICE_DETAIL_PAGE | BNY_DEVICE_DETAIL_START), 0);
}

/* ---- division ---------------------------------------------------------------------------------------------------- */

/* Checks that every key tile of every item belongs to one CTA group, that splits are adjacent, that slots are not
 * shared, and that shares are equal. */
static void check_division(const bny_decode_division *division, const uint32_t *key_tiles, uint32_t items,
                           const char *text) {
  uint64_t total = 0;
  for (uint32_t i = 0; i < items; i++) total += key_tiles[i] + division->item_cost;
  ck_assert_msg(total < UINT32_MAX, "%s", text);
  const uint32_t team_units = bny_decode_team_units(division, (uint32_t)total);
  char *slot_taken = calloc(2 * (size_t)division->teams, 1);
  uint32_t *done = calloc(division->teams, sizeof *done), start = 0;
  for (uint32_t i = 0; i < items; i++) {
    uint32_t covered = 0, owners = 0, first_team = start / team_units;
    for (uint32_t team = first_team;
         team < division->teams && (team == first_team || team * team_units < start + key_tiles[i]); team++) {
      bny_decode_piece piece = bny_decode_piece_of(start, key_tiles[i], team, team_units);
      if (!bny_decode_piece_is_mine(&piece, start, key_tiles[i], team, team_units)) continue;
      owners++;
      ck_assert_msg(piece.first == covered, "%s: item %u: a gap before team %u", text, i, team);
      ck_assert_msg(piece.first_team == first_team && team <= piece.last_team, "%s: item %u", text, i);
      covered = piece.end;
      done[team] += piece.end - piece.first;
      if (piece.first_team == piece.last_team) continue;
      uint32_t slot = bny_decode_slot(team, piece.first_team);
      ck_assert_msg(slot < 2 * division->teams && !slot_taken[slot], "%s: item %u: slot %u of team %u", text, i, slot,
                    team);
      slot_taken[slot] = 1;
    }
    bny_decode_piece any = bny_decode_piece_of(start, key_tiles[i], first_team, team_units);
    ck_assert_msg(covered == key_tiles[i] && owners == any.last_team - any.first_team + 1,
                  "%s: item %u of %u key_tiles: %u by %u", text, i, key_tiles[i], covered, owners);
    start += key_tiles[i] + division->item_cost;
  }
  for (uint32_t team = 0; team < division->teams; team++)
    ck_assert_msg(done[team] <= team_units, "%s: team %u has too much", text, team);
  free(slot_taken);
  free(done);
}

TEST(all_is_done_once) {
  for (int round = 0; round < 2000; round++) {
    uint32_t key_tiles[64], items = (uint32_t)random_int(1, 64);
    int longest = random_int(0, 3) ? random_int(0, 100) : random_int(0, 5000);
    bny_decode_division division = {.teams = (uint32_t)random_int(1, 150),
                                    .team_units_min = (uint32_t)random_int(1, 40),
                                    .item_cost = (uint32_t)random_int(1, 12),
                                    .fan_in = 16};
    for (uint32_t i = 0; i < items; i++) key_tiles[i] = random_int(0, 4) ? (uint32_t)random_int(0, longest) : 0;
    char text[80];
    snprintf(text, sizeof text, "round %d: %u items, %u teams", round, items, division.teams);
    check_division(&division, key_tiles, items, text);
  }
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

TEST(few_heads_fill_the_device) {
  static const int32_t kv_heads[] = {1, 2, 8};
  for (int i = 0; i < 3; i++) {
    bny_decode_request request = request_of(1, 8 * kv_heads[i], kv_heads[i], 128, 131072);
    bny_decode_plan plan = plan_of(&request, &h100, 3);
    ck_assert_uint_ge(plan.blocks, 3 * 128);
    ck_assert_uint_le(plan.blocks, 3 * 132);
    ck_assert_uint_eq(plan.cluster, 8);
    ck_assert_uint_eq(plan.blocks, plan.division.teams * plan.cluster);
    plan = plan_of(&request, &a100, 2);
    ck_assert_uint_eq(plan.blocks, 2 * 108);
    ck_assert_uint_eq(plan.cluster, 1);
  }
}

TEST(large_batches_need_no_clusters) {
  bny_decode_request request = request_of(64, 32, 8, 128, 32768);
  bny_decode_plan plan = plan_of(&request, &h100, 3);
  ck_assert_uint_eq(plan.cluster, 1);
  ck_assert_uint_eq(plan.blocks, 396);
  ck_assert_uint_eq(plan.scratch_bytes, 2 * 396 * 16 * 130 * 4);
  ck_assert_uint_eq(plan.counters, 3 * 396);
}

TEST(short_ones_take_few_blocks) {
  bny_decode_request request = request_of(1, 8, 1, 128, 64);
  ck_assert_uint_eq(plan_of(&request, &h100, 3).blocks, 1);
  request.keys_max = 0;
  ck_assert_uint_eq(plan_of(&request, &h100, 3).blocks, 1);
  request.batch = 0;
  ck_assert_uint_eq(plan_of(&request, &h100, 3).blocks, 1);
}

TEST(clusters_that_fit_are_taken) {
  bny_decode_request request = request_of(1, 8, 1, 128, 131072);
  const bny_decode_kernel *kernel;
  bny_decode_plan plan;
  bny_decode_residency residency = {.sm_blocks = 3, .clusters = {396, 198, 98, 45}};
  ck_assert_int_eq(bny_decode_kernel_choose(&request, &h100, &kernel), BANYAN_OK);
  ck_assert_int_eq(bny_decode_plan_make(&request, &h100, kernel, &residency, &plan), BANYAN_OK);
  ck_assert_uint_eq(plan.division.teams, 45);
}

TEST(too_much_is_rejected) {
  bny_decode_request request = request_of(4096, 128, 128, 128, INT_MAX);
  const bny_decode_kernel *kernel;
  bny_decode_plan plan;
  bny_decode_residency residency = {.sm_blocks = 3};
  ck_assert_int_eq(bny_decode_kernel_choose(&request, &h100, &kernel), BANYAN_OK);
  ck_assert_int_eq(bny_decode_plan_make(&request, &h100, kernel, &residency, &plan), BANYAN_ERR_UNSUPPORTED);
}

/* Divides plans, with sequences of the maximum length and shorter ones. */
TEST(plans_divide) {
  for (int round = 0; round < 300; round++) {
    int32_t kv_heads = random_int(1, 4), group = random_int(1, 40), keys = 1 << random_int(4, 15);
    bny_decode_request request = random_int(0, 3) ? request_of(random_int(1, 12), kv_heads * group, kv_heads, 128, keys)
                                                  : latent_request(random_int(1, 12), group, keys);
    bny_decode_plan plan = plan_of(&request, random_int(0, 1) ? &h100 : &a100, random_int(1, 3));
    uint32_t items = (uint32_t)(request.batch * request.kv_heads * plan.row_tiles);
    uint32_t *key_tiles = malloc(items * sizeof *key_tiles);
    bool full = random_int(0, 1);
    for (uint32_t i = 0; i < items; i++) key_tiles[i] = bny_decode_key_tiles(full ? keys : random_int(0, keys));
    check_division(&plan.division, key_tiles, items, "a plan");
    free(key_tiles);
  }
}

/* The statement spoils a good call, which is then rejected with this text. */
#define REJECT(text, spoil)                                     \
  do {                                                          \
    bny_decode_call call = good;                                \
    spoil;                                                      \
    ck_assert_str_eq(bny_decode_call_check(&call, plan), text); \
  } while (0)

static _Alignas(16) char memory[64];
static const int32_t lengths[2] = {1, 2};
static const bny_decode_cache cache = {memory, 4096, 256, 2048};

TEST(calls_are_checked) {
  bny_decode_request request = request_of(2, 8, 2, 128, 1000), latent = latent_request(1, 8, 1000);
  const bny_decode_plan whole = plan_of(&request, &h100, 3), latent_plan = plan_of(&latent, &h100, 2), *plan = &whole;
  bny_decode_call good = {.batch = 2,
                          .kv_heads = 2,
                          .group = 4,
                          .row_tiles = 1,
                          .q = memory,
                          .q_batch_stride = 2048,
                          .q_head_stride = 256,
                          .k = cache,
                          .v = cache,
                          .page_shift = BNY_DECODE_WHOLE,
                          .pages = 2,
                          .seq_lens = lengths};
  ck_assert_ptr_null(bny_decode_call_check(&good, plan));
  REJECT("rows of k are not 16-byte aligned", call.k.token_stride = 250);
  REJECT("rows of q are not 16-byte aligned", call.q = memory + 8);
  REJECT("pages without a page_table", call.page_shift = 4);
  REJECT("pages is out of range", call.pages = 1);
  REJECT("group is not that of the plan", call.group = 17);
  good.v.base = memory + 16;
  ck_assert_ptr_null(bny_decode_call_check(&good, plan));
  plan = &latent_plan;
  REJECT("v is not the first columns of k", (void)0);
}

TEST(general_calls_are_checked) {
  bny_decode_request request = request_of(2, 8, 2, 128, 1000);
  request.kv = BNY_ROWS_general;
  request.tokens = 6;
  const bny_decode_plan general = plan_of(&request, &h100, 2), *const plan = &general;
  bny_decode_call good = {.batch = 2,
                          .kv_heads = 2,
                          .group = 4,
                          .row_tiles = general.row_tiles,
                          .q = memory,
                          .k = cache,
                          .v = cache,
                          .pages = 2,
                          .general = {.last_page_len = lengths, .nope_bytes = 192, .q_rope = memory}};
  bny_decode_divide_pages(&good.general, 3);
  ck_assert_ptr_null(bny_decode_call_check(&good, plan));
  REJECT("rope_dim is not a multiple of 8", call.general.nope_bytes = 190);
  REJECT("rows of q_rope are not 16-byte aligned", call.general.q_rope_head_stride = 8);
  REJECT("q, k, v or seq_lens is NULL", call.general.last_page_len = NULL);
  REJECT("page_keys is not positive", call.general.page_keys = 0);
}

int main(void) { return suite_main(suite_of("decode_plan", 0)); }
