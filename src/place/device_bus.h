/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BNY_PLACE_DEVICE_BUS_H
#define BNY_PLACE_DEVICE_BUS_H

#include <stdbool.h>
#include <stddef.h>

#include "topo/model/model.h"

/* The bus id of a device such as "cuda:2", as this process numbers devices. If it is not known, returns false with the
 * reason in `why`. No context is made. */
bool bny_place_device_bus(const char *device, const char *library, char bus_id[BNY_TOPO_BUS_BYTES], char *why,
                          size_t bytes);

#endif
