/* SPDX-License-Identifier: Apache-2.0
 * Imports hwloc's bandwidth matrices, and adds links between NUMA nodes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/topo/import/hwloc.h"
#include "topo/model/speed.h"

enum { MOST_OBJECTS = 1024 };

/* An iterator over the words in all children of one name. */
typedef struct words {
  const bny_topo_xml *xml;
  const char *name, *at;
  int32_t element; /* element whose text contains `at`; -1 at the end */
} words;

static words words_of(const bny_topo_xml *xml, int32_t element, const char *name) {
  words w = {.xml = xml, .name = name, .at = "", .element = bny_topo_xml_child(xml, element, name)};
  if (w.element >= 0) w.at = bny_topo_xml_text(xml, w.element);
  return w;
}

static bool next_word(words *w, char *word, size_t bytes) {
  while (w->element >= 0) {
    w->at += strspn(w->at, " \t\r\n");
    size_t length = strcspn(w->at, " \t\r\n");
    if (length > 0) {
      snprintf(word, bytes, "%.*s", (int)(length < bytes ? length : bytes - 1), w->at);
      w->at += length;
      return true;
    }
    do {
      w->element = bny_topo_xml_next(w->xml, w->element);
    } while (w->element >= 0 && !bny_topo_xml_is(w->xml, w->element, w->name));
    w->at = w->element < 0 ? "" : bny_topo_xml_text(w->xml, w->element);
  }
  return false;
}

/* Builds the sorted index of objects by gp_index, which distances refer to. */
static bool list_objects(const bny_topo_hwloc *h, bny_topo_names *objects) {
  for (int32_t e = 1; e < bny_topo_xml_count(h->xml); e++) {
    const char *number = bny_topo_xml_is(h->xml, e, "object") ? bny_topo_xml_attribute(h->xml, e, "gp_index") : NULL;
    if (number != NULL) bny_topo_names_add(objects, 0, number, e);
  }
  const bny_topo_name *twice = bny_topo_names_sort(objects);
  if (objects->out_of_memory) return false;
  return twice == NULL ||
         bny_topo_fail(h->error, bny_topo_xml_line(h->xml, twice->value), "gp_index %.30s appears twice", twice->key);
}

/* Returns the node of an object. The node of an OSDev is that of its PCI device, unless the OSDev is a partition. */
static int32_t node_of_object(const bny_topo_hwloc *h, int32_t element) {
  if (h->at[element].node < 0 && strcmp(bny_topo_hwloc_type(h, element), "OSDev") == 0)
    element = bny_topo_xml_parent(h->xml, element);
  return h->at[element].node;
}

/* Derives the number of links: hwloc assumes 25 GB/s per link, and 20 for Pascal. */
static bool add_nvlink(bny_topo_hwloc *h, int32_t a, int32_t b, int64_t megabytes_per_s) {
  const bny_topo_node *gpu = &h->topo->nodes[h->topo->nodes[a].kind == BNY_TOPO_GPU ? a : b];
  int32_t compute = gpu->compute < 0 && gpu->model != NULL ? BNY_TOPO_COMPUTE_NEWEST : gpu->compute;
  int64_t one = compute >= 60 && compute < 70 ? 20000 : 25000;
  int64_t count = megabytes_per_s >= one ? megabytes_per_s / one : 1;
  return bny_topo_join(h->topo, BNY_TOPO_LINK_NVLINK, a, b, (int32_t)count,
                       (double)count * bny_topo_speed_nvlink(compute), BNY_TOPO_FILE) >= 0;
}

static bool add_xgmi(bny_topo_hwloc *h, int32_t a, int32_t b, int64_t megabytes_per_s) {
  return bny_topo_join(h->topo, BNY_TOPO_LINK_XGMI, a, b, 1, (double)megabytes_per_s / 1000, BNY_TOPO_FILE) >= 0;
}

/* Reads "OSDev:802", or "802" if all are of one type. */
static bool read_ends(bny_topo_hwloc *h, int32_t matrix, const bny_topo_names *objects, int32_t *nodes, int64_t count) {
  words w = words_of(h->xml, matrix, "indexes");
  char word[64];
  int64_t found = 0;
  while (next_word(&w, word, sizeof word)) {
    char *colon = strchr(word, ':');
    int32_t object = bny_topo_names_find(objects, 0, colon == NULL ? word : colon + 1);
    if (object < 0)
      return bny_topo_fail(h->error, bny_topo_xml_line(h->xml, w.element), "<indexes>: there is no object %.60s", word);
    if (found < count) nodes[found] = node_of_object(h, object);
    found++;
  }
  return found == count || bny_topo_fail(h->error, bny_topo_xml_line(h->xml, matrix), "has %lld of %lld indexes",
                                         (long long)found, (long long)count);
}

static bool read_values(bny_topo_hwloc *h, int32_t matrix, int64_t *values, int64_t count) {
  words w = words_of(h->xml, matrix, "u64values");
  char word[64];
  int64_t found = 0;
  while (next_word(&w, word, sizeof word)) {
    char *end;
    errno = 0;
    long long value = strtoll(word, &end, 10);
    if (*end != '\0' || errno != 0 || value < 0 || value > 1000000000)
      return bny_topo_fail(h->error, bny_topo_xml_line(h->xml, w.element), "<u64values>: %.30s must be 0 to 1e9 MB/s",
                           word);
    if (found < count) values[found] = value;
    found++;
  }
  return found == count || bny_topo_fail(h->error, bny_topo_xml_line(h->xml, matrix), "has %lld of %lld values",
                                         (long long)found, (long long)count);
}

static bool are_linked(const bny_topo *topo, int32_t a, int32_t b, bny_topo_link_kind kind) {
  for (int32_t l = bny_topo_first_link(topo, a); l >= 0; l = bny_topo_next_link(topo, a, l))
    if (topo->links[l].kind == kind && bny_topo_other_end(topo, a, l) == b) return true;
  return false;
}

/* Notes that the two ends of a link have different values. An end with value 0 does not list the link. */
static bool note_ends(bny_topo_hwloc *h, int32_t a, int64_t there, int32_t b, int64_t back) {
  int32_t low = there < back ? a : b, high = there < back ? b : a;
  int64_t less = there < back ? there : back, more = there < back ? back : there;
  const char *name = h->topo->nodes[high].name;
  char text[160];
  if (h->topo->nodes[low].kind != BNY_TOPO_GPU) low = high; /* only a GPU keeps a list of links */
  snprintf(text, sizeof text, "%lld MB/s from it to %.60s, and %lld back: the lower number counts", (long long)less,
           name, (long long)more);
  bool one_sided = less == 0 && h->topo->nodes[high].kind == BNY_TOPO_GPU && low != high;
  return bny_topo_add_sign(h->topo, one_sided ? BNY_TOPO_NOTE_ONE_SIDED : BNY_TOPO_NOTE_DIFFERS, low,
                           one_sided ? name : text);
}

/* A link appears in both directions, and once for each pair of partitions that share it. If one end is down, the slower
 * value counts. */
static bool take_matrix(bny_topo_hwloc *h, int32_t matrix, const bny_topo_names *objects, bool xgmi) {
  int64_t count = 0;
  if (!bny_topo_xml_integer(h->xml, matrix, "nbobjs", 0, MOST_OBJECTS, &count, h->error)) return false;
  size_t n = (size_t)count;
  int32_t *nodes = malloc((n + 1) * sizeof *nodes);
  int64_t *values = malloc((n * n + 1) * sizeof *values);
  bool good = nodes != NULL && values != NULL;
  good = good && read_ends(h, matrix, objects, nodes, count) && read_values(h, matrix, values, count * count);
  for (size_t a = 0; good && a < n; a++) {
    for (size_t b = a + 1; good && b < n; b++) {
      int64_t there = values[a * n + b], back = values[b * n + a];
      int64_t value = there == 0 || (back != 0 && back < there) ? back : there;
      bool gpu = nodes[a] >= 0 && nodes[b] >= 0 &&
                 (h->topo->nodes[nodes[a]].kind == BNY_TOPO_GPU || h->topo->nodes[nodes[b]].kind == BNY_TOPO_GPU);
      int32_t from = gpu ? bny_topo_device(h->topo, nodes[a]) : -1, to = gpu ? bny_topo_device(h->topo, nodes[b]) : -1;
      bool parts = gpu && (from != nodes[a] || to != nodes[b]);
      bool again = parts && are_linked(h->topo, from, to, xgmi ? BNY_TOPO_LINK_XGMI : BNY_TOPO_LINK_NVLINK);
      if (!gpu || value == 0 || from == to || again) continue;
      good = (xgmi ? add_xgmi(h, from, to, value) : add_nvlink(h, from, to, value)) &&
             (there == back || note_ends(h, from, there, to, back));
    }
  }
  free(nodes);
  free(values);
  return good;
}

bool bny_topo_hwloc_nvlinks(bny_topo_hwloc *h) {
  bny_topo_names objects = {0};
  bool good = list_objects(h, &objects), nvlink_seen = false, xgmi_seen = false;
  for (int32_t e = bny_topo_xml_first(h->xml, 0); good && e >= 0; e = bny_topo_xml_next(h->xml, e)) {
    bool matrix = bny_topo_xml_is(h->xml, e, "distances2") || bny_topo_xml_is(h->xml, e, "distances2hetero");
    const char *name = matrix ? bny_topo_xml_attribute(h->xml, e, "name") : NULL;
    bool nvlink = name != NULL && strcmp(name, "NVLinkBandwidth") == 0;
    bool xgmi = name != NULL && strcmp(name, "XGMIBandwidth") == 0;
    if ((nvlink && nvlink_seen) || (xgmi && xgmi_seen))
      good = bny_topo_fail(h->error, bny_topo_xml_line(h->xml, e), "the second matrix called %s", name);
    else if (nvlink || xgmi)
      good = take_matrix(h, e, &objects, xgmi);
    nvlink_seen = nvlink_seen || nvlink;
    xgmi_seen = xgmi_seen || xgmi;
  }
  bny_topo_names_free(&objects);
  return good;
}

/* ---- NUMA nodes -------------------------------------------------------------------------------------------------- */

static int32_t info_number(const bny_topo_hwloc *h, int32_t element, const char *name) {
  const char *text = bny_topo_hwloc_info(h, element, name);
  return text == NULL || strlen(text) > 6 ? -1 : (int32_t)atoi(text);
}

/* Returns the speed for the processor of the first package, because hwloc has latencies but no bandwidth. */
static double speed_between(const bny_topo_hwloc *h) {
  const char *arch = NULL;
  for (int32_t e = 1; e < bny_topo_xml_count(h->xml); e++) {
    const char *type = bny_topo_hwloc_type(h, e);
    if (strcmp(type, "Machine") == 0) {
      arch = bny_topo_hwloc_info(h, e, "Architecture");
      arch = arch != NULL ? arch : bny_topo_hwloc_info(h, 0, "Architecture");
    } else if (strcmp(type, "Package") == 0 || strcmp(type, "Socket") == 0) {
      return bny_topo_speed_cpu(arch, bny_topo_hwloc_info(h, e, "CPUVendor"), info_number(h, e, "CPUFamilyNumber"),
                                info_number(h, e, "CPUModelNumber"));
    }
  }
  return bny_topo_speed_cpu(arch, NULL, -1, -1);
}

bool bny_topo_hwloc_join_numas(bny_topo_hwloc *h) {
  double speed = speed_between(h);
  return bny_topo_join_numas(h->topo, &speed);
}
