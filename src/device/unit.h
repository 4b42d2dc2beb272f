/* SPDX-License-Identifier: Apache-2.0
 * How rows and bytes are divided into units for a device, and which protocol carries them: for program.c. */
#ifndef BNY_DEVICE_UNIT_H
#define BNY_DEVICE_UNIT_H

#include "device/program.h"

/* A slice in units. Bytes are `heads` of one token. */
typedef struct bny_unit_box {
  int32_t token0, tokens, head0, heads;
} bny_unit_box;

/* Names such as "LL16". */
const char *bny_unit_protocol_name(int32_t protocol);
bool bny_unit_protocol_serves(int32_t protocol, const bny_device_settings *settings);

int32_t bny_unit_protocol(const bny_request *request, const bny_device_settings *settings);
banyan_status bny_unit_shape_make(const bny_request *request, int32_t protocol, bool whole_rows, bny_unit_shape *shape);
bny_unit_box bny_unit_box_of(const bny_unit_shape *shape, const bny_slice *slice);
uint64_t bny_unit_box_units(const bny_unit_shape *shape, const bny_unit_box *box);

#endif
