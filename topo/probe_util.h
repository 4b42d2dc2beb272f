/* SPDX-License-Identifier: Apache-2.0
 *
 * What probes share: looking at files of one line, and the words of reports. Files of sysfs may hold anything, be
 * absent or refuse to be read; nothing of that is an error here. */
#ifndef BNY_TOPO_PROBE_UTIL_H
#define BNY_TOPO_PROBE_UTIL_H

#include "topo/probe.h"

enum { BNY_TOPO_PROBE_PATH = 4096, BNY_TOPO_PROBE_NAME = 64 };

/* The first line of a regular file, without blanks at its ends; at most bytes - 1 of it. False if there is no such file
 * or it cannot be read: then text is "". The path is worded by format. */
bool bny_topo_probe_line(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The whole number, decimal or 0x..., that such a line is; `otherwise` if it is none in [least, most]. */
int64_t bny_topo_probe_number(int64_t least, int64_t most, int64_t otherwise, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

bool bny_topo_probe_exists(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Names in a directory but those that begin with a dot or are BNY_TOPO_PROBE_NAME bytes and longer; short names first,
 * then by their bytes. Free `names`. Count is 0 if there is no such directory. */
typedef struct bny_topo_probe_list {
  char (*names)[BNY_TOPO_PROBE_NAME];
  int32_t count;
} bny_topo_probe_list;

bny_topo_probe_list bny_topo_probe_names(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The last part of where a link leads that is a bus id: of ".../0000:1b:00.0/virtio2" it is "0000:1b:00.0". */
bool bny_topo_probe_bus_of(char bus_id[BNY_TOPO_BUS_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The first host of the model; one of this name (or "host0" for NULL) is added if there is none. -1 without memory. */
int32_t bny_topo_probe_host(bny_topo *topo, const char *name);

/* The link of a node upwards: of `kind` between it and its parent; added without any speed if there is none. -1 without
 * memory. */
int32_t bny_topo_probe_upwards(bny_topo *topo, int32_t node, bny_topo_link_kind kind);

void bny_topo_probe_say(bny_topo_probe_report *report, bny_topo_outcome outcome, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends to the text, as far as there is room. */
void bny_topo_probe_more(bny_topo_probe_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Appends "2 packages", "1 GPU" or "no NIC", after ", " if there is text before it. */
void bny_topo_probe_count(bny_topo_probe_report *report, int32_t count, const char *one, const char *many);

#endif
