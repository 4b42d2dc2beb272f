/* SPDX-License-Identifier: Apache-2.0
 * The end of main() of a program of tests. */
#ifndef BNY_TESTS_SUITE_H
#define BNY_TESTS_SUITE_H

#include <check.h>
#include <stdlib.h>

/* Runs and frees the suite, and returns what main() returns. */
static inline int suite_main(Suite *suite) {
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
