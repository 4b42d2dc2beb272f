/* SPDX-License-Identifier: Apache-2.0
 * Calls that fail with a status and a text, and runs of operations. */
#pragma once

#include "banyan.h"
#include "tests/support/suite.h"

/* Fails the test unless the call has this status and its error contains the text. */
#define ASSERT_FAILS(call, status, text)                                                                \
  do {                                                                                                  \
    const banyan_status got_ = (call);                                                                  \
    const char *const says_ = (text);                                                                   \
    ck_assert_msg(got_ == (status) && strstr(banyan_last_error(), says_), "%s, which lacks \"%s\": %s", \
                  banyan_status_string(got_), says_, banyan_last_error());                              \
  } while (0)

static inline banyan_status start_and_wait(banyan_op *op) {
  const banyan_status status = banyan_start(op);
  return status == BANYAN_OK ? banyan_wait(op) : status;
}
