/* SPDX-License-Identifier: Apache-2.0
 * The rules that all calls share: NULLs and wrong arguments, from the table in calls.def, give an error whose text
 * names the argument, leaves out-parameters unchanged, and keeps the communicator usable. tests/tree/check-symbols
 * compares the table with the header. */
#include "tests/support/attention_oracle.h"
#include "tests/support/lone.h"
#include "tests/support/world.h"

enum { TOKENS = 2, HEADS = 3, VALUE_DIM = 4, ROWS = TOKENS * HEADS };

/* Arguments of a valid call; *_out are never written. */
typedef struct fixture {
  banyan_threads *group, *group_out;
  banyan_env *env_out;
  banyan_bootstrap bootstrap;
  banyan_comm *comm, *comm_out;
  banyan_op *op, *op_out;
  banyan_combine_desc desc;
  banyan_heads_desc heads;
  banyan_allreduce_desc sums;
  banyan_select_desc selection;
  banyan_partial in, out;
  banyan_attention_desc attention;
  banyan_op_info info, info_unset;
  float in_values[ROWS * VALUE_DIM], in_lse[ROWS], out_values[ROWS * VALUE_DIM], keys[VALUE_DIM];
  int32_t lengths[TOKENS];
  _Alignas(16) char bytes[16];
  char text[2000];
  size_t count, too_many;
  int32_t number;
  int64_t number64;
  banyan_ownership ownership;
  banyan_queries queries;
  banyan_page_move move;
} fixture;

typedef struct call {
  const char *function, *named; /* NULL: the call succeeds */
  banyan_status (*rejected)(fixture *the);
  bool (*gives)(fixture *the);
} call;

/* A library built without libsodium lacks this bootstrap. */
static bool is_rejected(banyan_status status) {
  return status == BANYAN_ERR_ARGUMENT || status == BANYAN_ERR_UNSUPPORTED;
}

/* One function per row, numbered by its line. */
#define PASTE(a, b) a##b
#define NAME(prefix, line) PASTE(prefix, line)
#define REJECTED(name, text, ...) \
  static banyan_status NAME(rejected_, __LINE__)(fixture * the) { return (void)the, name(__VA_ARGS__); }
#define GIVES(name, ...) \
  static bool NAME(gives_, __LINE__)(fixture * the) { return (void)the, (__VA_ARGS__); }
#include "calls.def"
#undef REJECTED
#undef GIVES

static const call calls[] = {
#define REJECTED(name, text, ...) {#name, text, NAME(rejected_, __LINE__), NULL},
#define GIVES(name, ...) {#name, NULL, NULL, NAME(gives_, __LINE__)},
#include "calls.def"
#undef REJECTED
#undef GIVES
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static void make_good(fixture *the) {
  *the = (fixture){.count = 4, .too_many = SIZE_MAX, .number = 7, .info = {.size = sizeof(banyan_op_info)}};
  the->ownership = (banyan_ownership){sizeof the->ownership, BANYAN_OWNERSHIP_BLOCKS, 1, 1, 0, NULL};
  ck_assert_int_eq(banyan_threads_create(1, &the->group), BANYAN_OK);
  ck_assert_int_eq(banyan_threads_bootstrap(the->group, 0, &the->bootstrap), BANYAN_OK);
  the->comm = lone_comm(NULL);
  ck_assert_int_eq(banyan_barrier_init(the->comm, &the->op), BANYAN_OK);
  the->desc = (banyan_combine_desc){.size = sizeof the->desc, .tokens = TOKENS, .heads = HEADS, .value_dim = VALUE_DIM};
  banyan_partial_init(&the->in, the->in_values, BANYAN_F32, the->in_lse, BANYAN_F32, HEADS, VALUE_DIM);
  banyan_partial_init(&the->out, the->out_values, BANYAN_F32, NULL, BANYAN_F32, HEADS, VALUE_DIM);
  the->heads = (banyan_heads_desc){.size = sizeof the->heads, .tokens = 1, .heads = 2, .dim = 2, .dtype = BANYAN_F16};
  the->sums = (banyan_allreduce_desc){.size = sizeof the->sums, .tokens = 1, .dim = 2, .dtype = BANYAN_F32};
  the->selection = (banyan_select_desc){.size = sizeof the->selection, .tokens = 1, .k = 1};
  the->selection.own = &the->number;
  the->attention = attention_desc_of(TOKENS, HEADS, 1, 0, VALUE_DIM, VALUE_DIM, BANYAN_F32, BANYAN_F32, the->in_values,
                                     the->keys, the->keys, the->lengths);
}

static void check_good(fixture *the, const char *function) {
  ck_assert_msg(!the->group_out && !the->env_out && !the->comm_out && !the->op_out && the->bootstrap.rank == 0,
                "%s wrote an out-parameter", function);
  ck_assert_msg(banyan_comm_status(the->comm) == BANYAN_OK, "%s: %s", function, banyan_comm_error(the->comm));
  ck_assert_msg(banyan_combine(the->comm, &the->desc, &the->in, &the->out) == BANYAN_OK, "after %s: %s", function,
                banyan_last_error());
  ck_assert_msg(banyan_attention_combine(the->comm, &the->attention, &the->desc, &the->out) == BANYAN_OK,
                "after %s: %s", function, banyan_last_error());
  banyan_op_free(the->op);
  banyan_comm_destroy(the->comm);
  banyan_threads_destroy(the->group);
}

TEST_LOOP(wrong_calls, CALLS) {
  const call *call = &calls[_i];
  fixture the;
  make_good(&the);
  if (call->gives) {
    ck_assert_msg(call->gives(&the), "%s, row %d of calls.def: not what it should give (%s)", call->function, _i,
                  banyan_last_error());
  } else {
    banyan_status status = call->rejected(&the);
    ck_assert_msg(status == BANYAN_ERR_ARGUMENT, "%s, %s: got %s (%s)", call->function, call->named,
                  banyan_status_string(status), banyan_last_error());
    ck_assert_msg(strstr(banyan_last_error(), call->named), "%s: the text does not name %s: %s", call->function,
                  call->named, banyan_last_error());
  }
  check_good(&the, call->function);
}

int main(void) { return world_main(suite_of("calls", 0)); }
