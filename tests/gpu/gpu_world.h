/* SPDX-License-Identifier: Apache-2.0
 * Tests of a GPU alone: ranks of world_gpu that use streams, graphs and memory of the device themselves. Tests of
 * behaviour run there too, see tests/support/world.h. */
#ifndef BNY_TESTS_GPU_WORLD_H
#define BNY_TESTS_GPU_WORLD_H

#include "tests/support/world.h"
#include "tools/common/gpu.h"

/* Notes a failure unless ok. Returns ok. */
static inline bool gpu_ok(world_rank *self, bool ok, const tool_error *error) {
  return ok || world_check(self, false, "%s", error->text);
}

/* Says why a test (or part `index` of it) is not run here. */
#define gpu_skip(test, index, ...) (printf("SKIP %s %d ", test, index), printf(__VA_ARGS__), puts(""), fflush(stdout))

/* A case that CK_RUN_CASE may name; each of its tests has 150 s. */
static inline void gpu_add_case(struct Suite *suite, struct TCase *made) {
  tcase_set_timeout(made, 150);
  suite_add_tcase(suite, made);
}

/* Runs the suite; 77 where there is no GPU. */
static inline int gpu_main(struct Suite *suite) { return world_is_here(&world_gpu) ? world_main(suite) : 77; }

#endif
