/* SPDX-License-Identifier: Apache-2.0
 * As much of Check as suites of kernels use, for another architecture: tests run one after another in one process,
 * which ends at the first failure. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*SFun)(void);
typedef struct TTest {
  const char *name;
  void (*fn)(int index);
  const char *file;
  int line;
} TTest;
typedef struct Suite {
  const char *name;
  int count, first[64], end[64];
  const TTest *tests[64];
} Suite, TCase, SRunner;

static Suite only_suite;

#define CK_ATTRIBUTE_UNUSED __attribute__((unused))
enum { CK_ENV };

static inline Suite *suite_create(const char *name) { return only_suite.name = name, &only_suite; }
static inline TCase *tcase_create(const char *name) { return (void)name, &only_suite; }
static inline void suite_add_tcase(Suite *suite, TCase *tests) { (void)suite, (void)tests; }
static inline void tcase_set_timeout(TCase *tests, double seconds) { (void)tests, (void)seconds; }
static inline void tcase_add_checked_fixture(TCase *tests, SFun begin, SFun end) {
  (void)tests, (void)begin, (void)end;
}
static inline void tcase_add_loop_test(TCase *tests, const TTest *test, int first, int end) {
  const int last = tests->count - 1;
  const bool follows = last >= 0 && tests->tests[last] == test && tests->end[last] == first;
  if (!follows) tests->tests[tests->count] = test, tests->first[tests->count++] = first;
  tests->end[tests->count - 1] = end;
}
static inline SRunner *srunner_create(Suite *suite) { return suite; }
static inline int srunner_ntests_failed(const SRunner *runner) { return (void)runner, 0; }
static inline void srunner_free(SRunner *runner) { (void)runner; }
static inline void srunner_run_all(SRunner *runner, int how) {
  (void)how;
  for (int t = 0; t < runner->count; t++)
    for (int i = runner->first[t]; i < runner->end[t]; i++) runner->tests[t]->fn(i);
  printf("%s: %d tests passed\n", runner->name, runner->count);
}

static inline void _mark_point(const char *file, int line) { (void)file, (void)line; }

#define ck_abort_msg(...) (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), puts(""), exit(1))
#define ck_assert_msg(holds, ...) ((holds) ? (void)0 : ck_abort_msg(__VA_ARGS__))
#define ck_assert(holds) ck_assert_msg(holds, "%s", #holds)
#define ck_assert_int_eq(a, b) ck_assert((a) == (b))
#define ck_assert_ptr_ne(a, b) ck_assert((a) != (b))
