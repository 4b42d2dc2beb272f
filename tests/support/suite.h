/* SPDX-License-Identifier: Apache-2.0
 * Lets the tests of a program register themselves, and provides the end of its main(). Only this header includes the
 * parts of the C library that nearly all tests use. */
#pragma once

#include <check.h>
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/sanitized.h"

/* Check notes each assertion that holds, so that it can say after which one a test crashed. A test that asserts in a
 * loop would spend most of its time with that, so only the first ones are noted. */
static inline void suite_mark(const char *file, int line) {
  static __thread int left = 2000;
  if (left > 0) left--, _mark_point(file, line);
}
#define _mark_point(file, line) suite_mark(file, line)

typedef struct suite_test {
  const TTest *test;
  int first, end;
  const char *case_name; /* NULL: that of the suite */
  struct suite_test *next;
} suite_test;

/* The tests of this file, in the order of its lines. */
static suite_test *suite_tests;

static inline void suite_add(suite_test *self, const TTest *test, int first, int end) {
  suite_test **place = &suite_tests;
  while (*place != NULL && (*place)->test->line <= test->line) place = &(*place)->next;
  self->test = test;
  self->first = first;
  self->end = end;
  self->next = *place;
  *place = self;
}

/* TEST(name) { ... } runs once. The other forms run once for each _i from `first`, or 0, up to but not including
 * `last`. TEST_IN puts the test into a case, which CK_RUN_CASE may name. */
#define TEST_RANGE_IN(its_case, name, first, last)               \
  static void name(int _i);                                      \
  __attribute__((constructor)) static void name##_add(void) {    \
    static const TTest test = {#name, name, __FILE__, __LINE__}; \
    static suite_test self;                                      \
    self.case_name = its_case;                                   \
    suite_add(&self, &test, first, last);                        \
  }                                                              \
  static void name(int _i CK_ATTRIBUTE_UNUSED)
#define TEST_IN(its_case, name, count) TEST_RANGE_IN(its_case, name, 0, count)
#define TEST_RANGE(name, first, last) TEST_RANGE_IN(NULL, name, first, last)
#define TEST_LOOP(name, count) TEST_RANGE(name, 0, count)
#define TEST(name) TEST_RANGE(name, 0, 1)

/* A loop of many random cases. A build with a sanitizer runs every third case. */
#define TEST_RANDOM(name, count)                    \
  static void name##_case(int _i);                  \
  TEST_LOOP(name, count) {                          \
    if (!sanitizer_leaves_out(_i)) name##_case(_i); \
  }                                                 \
  static void name##_case(int _i CK_ATTRIBUTE_UNUSED)

enum { SUITE_CASES = 16 };

/* Tests are dealt to this many processes, and this one runs every such test from number suite_share on. */
static int suite_share, suite_shares = 1;

/* Deals the tests to processes that run side by side, for tests that wait, or take long. main() calls it
 * before it makes the suite. One process runs all tests if CK_RUN_CASE selects some, or if they may not fork. */
static inline void suite_deal(int processes) {
  const char *forks = getenv("CK_FORK");
  if (getenv("CK_RUN_CASE") != NULL || (forks != NULL && strcmp(forks, "no") == 0)) return;
  suite_shares = IS_SANITIZED && processes > 2 ? 2 : processes; /* ranks are slow to start then */
  for (int i = 1; i < suite_shares && suite_share == 0; i++) {
    pid_t pid = fork();
    if (pid < 0) exit(EXIT_FAILURE);
    if (pid == 0) suite_share = i;
  }
}

/* Makes the suite of all tests of this file, with one case per name. If timeout_s is 0, Check's default limit of 4 s
 * applies. */
static inline Suite *suite_with(const char *name, double timeout_s, SFun set_up, SFun tear_down) {
  Suite *suite = suite_create(name);
  TCase *cases[SUITE_CASES];
  const char *names[SUITE_CASES];
  int count = 0, number = 0;
  for (const suite_test *t = suite_tests; t != NULL; t = t->next) {
    const char *case_name = t->case_name ? t->case_name : name;
    int i = 0;
    while (i < count && strcmp(names[i], case_name) != 0) i++;
    if (i == count) {
      names[count] = case_name;
      cases[count++] = tcase_create(case_name);
      if (timeout_s > 0) tcase_set_timeout(cases[i], timeout_s);
      if (set_up != NULL || tear_down != NULL) tcase_add_checked_fixture(cases[i], set_up, tear_down);
      suite_add_tcase(suite, cases[i]);
    }
    for (int at = t->first; at < t->end; at++)
      if (number++ % suite_shares == suite_share) tcase_add_loop_test(cases[i], t->test, at, at + 1);
  }
  if (count == 0) suite_add_tcase(suite, tcase_create(name));
  return suite;
}

static inline Suite *suite_of(const char *name, double timeout_s) { return suite_with(name, timeout_s, NULL, NULL); }

/* Runs and frees the suite. Returns the exit status of main(), which is that of all processes. */
static inline int suite_main(Suite *suite) {
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner), how;
  srunner_free(runner);
  for (int i = 1; i < suite_shares && suite_share == 0; i++) failed += wait(&how) < 0 || how != 0;
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
