/* SPDX-License-Identifier: Apache-2.0
 * Communicators with the calling thread as the only rank. */
#pragma once

#include "banyan.h"
#include "tests/support/status.h"

static inline banyan_status lone_create(const banyan_comm_config *config, banyan_comm **comm) {
  banyan_threads *group;
  banyan_bootstrap bootstrap;
  ck_assert_int_eq(banyan_threads_create(1, &group), BANYAN_OK);
  ck_assert_int_eq(banyan_threads_bootstrap(group, 0, &bootstrap), BANYAN_OK);
  banyan_status status = banyan_comm_create(&bootstrap, config, comm);
  banyan_threads_destroy(group);
  return status;
}

static inline banyan_comm *lone_comm(const banyan_comm_config *config) {
  banyan_comm *comm = NULL;
  ck_assert_msg(lone_create(config, &comm) == BANYAN_OK, "%s", banyan_last_error());
  return comm;
}
