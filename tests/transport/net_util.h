/* SPDX-License-Identifier: Apache-2.0
 * Helpers for tests that use UCX directly. */
#pragma once

#include "tests/support/world.h"
#include "transport/ucx/library.h"

/* Prints the reason; the test is then skipped. */
static inline bool net_is_absent(void) {
  bny_ucx ucx;
  if (bny_ucx_load(&ucx) == BANYAN_OK) return !world_has_network();
  printf("skipped: %s\n", banyan_last_error());
  return true;
}
