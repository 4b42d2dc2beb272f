/* SPDX-License-Identifier: Apache-2.0
 * Puts the calling thread into the usual floating-point mode, and back into the caller's. */
#include "base/float_control.h"

/* Within a public call of a thread whose own mode is another: that mode. */
static _Thread_local bny_float_mode of_caller;

bny_float_mode bny_float_enter_other(uint64_t control) {
  bny_float_mode outer = of_caller;
  of_caller = (bny_float_mode){true, outer.is_other, control, outer.control};
  bny_float_control_set(BNY_FLOAT_USUAL);
  return of_caller;
}

void bny_float_leave_other(const bny_float_mode *mode) {
  of_caller = (bny_float_mode){mode->is_nested, false, mode->outer, 0};
  bny_float_control_set(mode->control);
}

void bny_float_lend(void) {
  if (of_caller.is_other) bny_float_control_set(of_caller.control);
}

void bny_float_take_back(void) {
  if ((bny_float_control() & BNY_FLOAT_BITS) != BNY_FLOAT_USUAL) bny_float_control_set(BNY_FLOAT_USUAL);
}
