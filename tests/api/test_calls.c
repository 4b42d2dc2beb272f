/* SPDX-License-Identifier: Apache-2.0
 * The rules that all calls share: NULLs and wrong arguments, from the table in calls.def, give an error whose text
 * names the argument, leaves out-parameters unchanged, and keeps the communicator usable. tests/tree/check-symbols
 * compares the table with the header. */
#include "tests/support/attention_oracle.h"
#include "tests/support/lone.h"
#include "tests/support/world.h"

enum { TOKENS = 2, HEADS = 3, DIM = 4, ROWS = TOKENS * HEADS, BEST = 6, PROCESSES = 4 };

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
  banyan_valid_rows valid;
  banyan_partial in, out;
  banyan_attention_desc attention;
  banyan_op_info info, info_unset;
  const void *mine, *addends;
  void *all, *sum;
  float in_values[ROWS * DIM], in_lse[ROWS], out_values[2 * ROWS * DIM], out_lse[ROWS], keys[DIM];
  uint16_t in_heads[ROWS * DIM], out_heads[2 * ROWS * DIM];
  int64_t indices[TOKENS * BEST], best[TOKENS * BEST];
  int32_t lengths[TOKENS], positions[2 * BEST];
  _Alignas(16) char bytes[16];
  char text[2000];
  size_t count, too_many;
  int32_t number;
  int64_t number64;
  banyan_ownership ownership;
  banyan_queries queries;
  banyan_page_move move;
} fixture;

/* A row of calls.def. With `op`, the call makes its operation. */
typedef struct call {
  const char *function, *named; /* NULL: the call succeeds */
  banyan_status (*rejected)(fixture *the, banyan_op **op);
  bool (*gives)(fixture *the);
  bool has_op;
} call;

/* A library built without libsodium lacks this bootstrap. */
static bool is_rejected(banyan_status status) {
  return status == BANYAN_ERR_ARGUMENT || status == BANYAN_ERR_UNSUPPORTED;
}

/* One function per row, numbered by its line. */
#define PASTE(a, b) a##b
#define NAME(prefix, line) PASTE(prefix, line)
#define CASE static banyan_status NAME(rejected_, __LINE__)(fixture * the, banyan_op * *op)
#define REJECTED(name, text, ...) \
  CASE { return (void)the, (void)op, name(__VA_ARGS__); }
#define BOTH(name, text, ...) \
  CASE { return (void)the, op ? name##_init(__VA_ARGS__, op) : name(__VA_ARGS__); }
#define CALL(name, ...)                                             \
  static banyan_status usual_##name(fixture *the, banyan_op **op) { \
    return op ? name##_init(__VA_ARGS__, op) : name(__VA_ARGS__);   \
  }                                                                 \
  CASE { return (void)op, name##_init(__VA_ARGS__, NULL); }
#define FIELD(name, text, ...)    \
  CASE {                          \
    __VA_ARGS__;                  \
    return usual_##name(the, op); \
  }
#define CONTENT FIELD
#define GIVES(name, ...) \
  static bool NAME(gives_, __LINE__)(fixture * the) { return (void)the, (__VA_ARGS__); }
#include "calls.def"
#undef REJECTED
#undef BOTH
#undef CALL
#undef FIELD
#undef CONTENT
#undef GIVES

static const call calls[] = {
#define REJECTED(name, text, ...) {#name, text, NAME(rejected_, __LINE__), NULL, false},
#define BOTH(name, text, ...) {#name, text, NAME(rejected_, __LINE__), NULL, true},
#define CALL(name, ...) {#name "_init", "op", NAME(rejected_, __LINE__), NULL, false},
#define FIELD BOTH
#define CONTENT REJECTED
#define GIVES(name, ...) {#name, NULL, NULL, NAME(gives_, __LINE__), false},
#include "calls.def"
};
enum { CALLS = sizeof calls / sizeof calls[0] };

/* The usual calls, which succeed. */
static banyan_status (*const usual[])(fixture *the, banyan_op **op) = {
#undef REJECTED
#undef BOTH
#undef CALL
#undef GIVES
#define REJECTED(...)
#define BOTH(...)
#define CALL(name, ...) usual_##name,
#define GIVES(...)
#include "calls.def"
};

static void make_good(fixture *the) {
  *the = (fixture){.count = 4, .too_many = SIZE_MAX, .number = 7, .info = {.size = sizeof(banyan_op_info)}};
  the->ownership = (banyan_ownership){sizeof the->ownership, BANYAN_OWNERSHIP_BLOCKS, 1, 1, 0, NULL};
  ck_assert_int_eq(banyan_threads_create(1, &the->group), BANYAN_OK);
  ck_assert_int_eq(banyan_threads_bootstrap(the->group, 0, &the->bootstrap), BANYAN_OK);
  the->comm = lone_comm(NULL);
  ck_assert_int_eq(banyan_barrier_init(the->comm, &the->op), BANYAN_OK);
  the->desc = (banyan_combine_desc){.size = sizeof the->desc, .tokens = TOKENS, .heads = HEADS, .value_dim = DIM};
  banyan_partial_init(&the->in, the->in_values, BANYAN_F32, the->in_lse, BANYAN_F32, HEADS, DIM);
  banyan_partial_init(&the->out, the->out_values, BANYAN_F32, the->out_lse, BANYAN_F32, HEADS, DIM);
  the->heads =
      (banyan_heads_desc){sizeof the->heads, .tokens = TOKENS, .heads = HEADS, .dim = DIM, .dtype = BANYAN_F16};
  the->mine = the->in_heads, the->all = the->out_heads;
  the->sums = (banyan_allreduce_desc){.size = sizeof the->sums, .tokens = TOKENS, .dim = DIM, .dtype = BANYAN_F32};
  the->addends = the->in_values, the->sum = the->out_values;
  the->selection = (banyan_select_desc){.size = sizeof the->selection, .tokens = TOKENS, .k = BEST, .offers = BEST};
  the->selection.scores = the->in_values, the->selection.indices = the->indices;
  the->selection.best_scores = the->out_values, the->selection.best_indices = the->best;
  for (int i = 0; i < TOKENS * BEST; i++) the->indices[i] = i;
  the->valid.size = sizeof the->valid;
  the->attention = attention_desc_of(TOKENS, HEADS, 1, 0, DIM, DIM, BANYAN_F32, BANYAN_F32, the->in_values, the->keys,
                                     the->keys, the->lengths);
}

static void check_good(fixture *the, const char *function) {
  ck_assert_msg(!the->group_out && !the->env_out && !the->comm_out && !the->op_out && the->bootstrap.rank == 0,
                "%s wrote an out-parameter", function);
  ck_assert_msg(banyan_comm_status(the->comm) == BANYAN_OK, "%s: %s", function, banyan_comm_error(the->comm));
  for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
    ck_assert_msg(usual[i](the, NULL) == BANYAN_OK, "call %zu after %s: %s", i, function, banyan_last_error());
  banyan_op_free(the->op);
  banyan_comm_destroy(the->comm);
  banyan_threads_destroy(the->group);
}

static void check_rejected(const call *call, fixture *the, banyan_op **op) {
  banyan_status status = call->rejected(the, op);
  ck_assert_msg(status == BANYAN_ERR_ARGUMENT, "%s, %s: got %s (%s)", call->function, call->named,
                banyan_status_string(status), banyan_last_error());
  ck_assert_msg(strstr(banyan_last_error(), call->named), "%s: the text does not name %s: %s", call->function,
                call->named, banyan_last_error());
}

TEST_LOOP(wrong_calls, PROCESSES) {
  for (int row = _i; row < CALLS; row += PROCESSES) {
    const call *call = &calls[row];
    fixture the, good;
    make_good(&the);
    good = the;
    if (call->gives)
      ck_assert_msg(call->gives(&the), "%s, row %d of calls.def: not what it should give (%s)", call->function, row,
                    banyan_last_error());
    else
      check_rejected(call, &the, NULL);
    if (call->has_op) check_rejected(call, &the, &the.op_out);
    good.group_out = the.group_out, good.env_out = the.env_out, good.comm_out = the.comm_out;
    good.op_out = the.op_out, good.bootstrap = the.bootstrap;
    the = good; /* undoes what the row has changed */
    check_good(&the, call->function);
  }
}

int main(void) { return world_main(suite_of("calls", 0)); }
