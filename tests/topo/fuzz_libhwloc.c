/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives libhwloc XML that passed the bounds of topo/import/xml.c. It crashes on some, so topo/import/hwloc.c reads XML
 * instead (docs/topology.md). `tests/topo/fuzz 60 libhwloc` builds and runs this. */
#include <hwloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "topo/import/xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  bny_topo_error error;
  bny_topo_xml *xml = bny_topo_xml_parse((const char *)data, bytes, &error);
  hwloc_topology_t machine;
  if (xml == NULL || !bny_topo_xml_is(xml, 0, "topology") || hwloc_topology_init(&machine) != 0) {
    bny_topo_xml_free(xml);
    return 0;
  }
  char *text = malloc(bytes + 1);
  if (text != NULL) {
    memcpy(text, data, bytes);
    text[bytes] = '\0';
  }
  hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (text != NULL && hwloc_topology_set_xmlbuffer(machine, text, (int)strlen(text) + 1) == 0)
    hwloc_topology_load(machine);
  hwloc_topology_destroy(machine);
  bny_topo_xml_free(xml);
  free(text);
  return 0;
}
