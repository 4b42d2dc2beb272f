/* SPDX-License-Identifier: Apache-2.0
 * Hooks of attention_loop.h for kernels that read rows in the order of their columns, so that a form is just a type.
 * The including file defines ATTENTION_FORMS and the other hooks. */
#pragma once

#include "attention_loop.h"

static const float *attention_columns(banyan_dtype form, const float *row, int32_t count, float *to) {
  (void)form;
  (void)count;
  (void)to;
  return row;
}

static void attention_pack(const bny_attention_task *task, banyan_dtype form, attention_work *work, int32_t h) {
  (void)task;
  (void)form;
  (void)work;
  (void)h;
}
