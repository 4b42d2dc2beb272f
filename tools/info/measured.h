/* SPDX-License-Identifier: Apache-2.0
 * Prints the file of BANYAN_DEVICE_TUNE for banyan-info selection. */
#ifndef INFO_MEASURED_H
#define INFO_MEASURED_H

#include <jansson.h>
#include <stdio.h>

json_t *info_measured_gather(void); /* NULL: no file is named, or there is none yet */
void info_measured_print(const json_t *facts, FILE *stream);

#endif
