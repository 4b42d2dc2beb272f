/* SPDX-License-Identifier: Apache-2.0
 *
 * Combines on devices, measured when a communicator is made: the algorithms that prediction does not rule out, with
 * each protocol that the links carry, for some sizes of payload. Selection then uses these times (plan/measured.h), and
 * runs take the protocol and the number of blocks that were fastest (run.c). */
#ifndef BNY_EXEC_DEVICE_TUNE_H
#define BNY_EXEC_DEVICE_TUNE_H

#include "device/run.h"
#include "plan/measured.h"
#include "transport/transport.h"

/* Memory to measure with. Local; all ranks have theirs before any of them measures. */
typedef struct bny_device_tuner bny_device_tuner;
banyan_status bny_device_tuner_make(int32_t nranks, bny_device_tuner **tuner);
void bny_device_tuner_free(bny_device_tuner *tuner); /* NULL is allowed */

/* Collective; nothing else may be under way on the communicator. `like`: a combine of it, whose sizes, scatter and
 * order are ignored. All ranks get the same: each time is that of the slowest rank. */
banyan_status bny_device_tune(bny_device_tuner *tuner, bny_device_exec *exec, const bny_exchange *exchange,
                              const bny_request *like, bny_measured *measured);

#endif
