/* SPDX-License-Identifier: Apache-2.0
 * A bounded list of findings, and the labels used in their texts. The files that look for findings share it. */
#ifndef BNY_TOPO_FINDINGS_H
#define BNY_TOPO_FINDINGS_H

#include "topo/derive/derive.h"

enum { BNY_TOPO_LABEL_BYTES = 120 };

#define BNY_TOPO_ALIKE 0.95 /* a speed below this fraction of another counts as slower */

/* Findings of one kind. Those beyond a limit are only counted. */
typedef struct bny_topo_finder {
  bny_topo_derivation *d;
  const char *what; /* describes the kind, for the line that counts the rest */
  int32_t found;
  bool no_memory;
} bny_topo_finder;

void bny_topo_find(bny_topo_finder *s, bny_topo_severity severity, int32_t node, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool bny_topo_find_end(bny_topo_finder *s); /* false without memory */

/* Writes "host3 GPU2", or "GPU2" if there is only one host. A port is labelled by its NIC. Returns `text`. */
const char *bny_topo_find_label(const bny_topo_derivation *d, int32_t node, char text[BNY_TOPO_LABEL_BYTES]);
const char *bny_topo_members_word(const bny_topo_derivation *d); /* "GPU", "rank" */
const char *bny_topo_plural(int32_t count);                      /* "", "s" */

/* Hosts that share one finding, which is reported once: "host3", or "host3 and 7 other hosts". */
typedef struct bny_topo_hosts_alike {
  int32_t count, first;
} bny_topo_hosts_alike;

void bny_topo_hosts_note(bny_topo_hosts_alike *hosts, int32_t host);
const char *bny_topo_hosts_label(const bny_topo_derivation *d, const bny_topo_hosts_alike *hosts,
                                 char text[BNY_TOPO_LABEL_BYTES]);

/* findings_nics.c: speeds, ports, places and cables of NICs. */
bool bny_topo_find_nics(bny_topo_derivation *d);

#endif
