/* SPDX-License-Identifier: Apache-2.0
 * Lines on stderr, as many as BANYAN_LOG asks for. Never on a hot path. */
#ifndef BNY_LOG_H
#define BNY_LOG_H

#include <stdbool.h>

typedef enum bny_log_level { BNY_LOG_ERROR, BNY_LOG_WARN, BNY_LOG_INFO, BNY_LOG_DEBUG } bny_log_level;

void bny_log(bny_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
