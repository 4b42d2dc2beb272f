/* SPDX-License-Identifier: Apache-2.0
 * Imports the links in NCCL's XML. A link between two GPUs appears below both, and becomes one link. Its target is a
 * GPU, a switch or the CPU (0x068001, POWER). A switch has class 0x0680 and no element of its own. A bus id of
 * fffffff:ffff:ff means that a virtual machine hides the switch, or that it is outside the host. NCCL writes several
 * hosts into one file only if one NVLink domain joins them. All hosts then share the one switch without a bus id. */
#include "tools/topo/import/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "topo/model/speed.h"

enum { MOST_IN_ONE = 4096 };

typedef struct found_link {
  bny_topo_link link;
  int32_t element;
  char target[BNY_TOPO_BUS_BYTES]; /* bus id of a switch, until `to` is known */
  bool merged;                     /* merged into the link of the other end */
} found_link;

typedef struct reading {
  const bny_topo_xml *xml;
  bny_topo *topo;
  const int32_t *node_of;
  const bny_topo_names *buses;
  bny_topo_error *error;
  found_link *links;
  int32_t count, capacity;
  int32_t looked_at[2]; /* <gpu> for which `repeated` holds; links to devices, and C2C */
  bool repeated[2];
} reading;

static const char hidden[] = "hidden";

static bool fail_link(const reading *r, int32_t element, const char *what) {
  const char *target = bny_topo_xml_attribute(r->xml, element, "target");
  return bny_topo_fail(r->error, bny_topo_xml_line(r->xml, element), "<%.20s target=\"%.40s\">: %s",
                       bny_topo_xml_name(r->xml, element), target == NULL ? "" : target, what);
}

static found_link *next_link(reading *r) {
  if (!bny_topo_grow(&r->links, r->count, &r->capacity, sizeof *r->links)) return NULL;
  r->links[r->count] = (found_link){0};
  return &r->links[r->count++];
}

static int32_t cpu_of(const bny_topo *topo, int32_t gpu) {
  static const bny_topo_kind kinds[] = {BNY_TOPO_NUMA, BNY_TOPO_PACKAGE, BNY_TOPO_HOST};
  int32_t cpu = -1;
  for (size_t i = 0; cpu < 0 && i < sizeof kinds / sizeof kinds[0]; i++) cpu = bny_topo_ancestor(topo, gpu, kinds[i]);
  return cpu;
}

static bool take_c2c(reading *r, int32_t element, int32_t gpu) {
  int64_t count = 1, megabytes = 0;
  int32_t numa = cpu_of(r->topo, gpu);
  if (!bny_topo_xml_integer(r->xml, element, "count", 1, MOST_IN_ONE, &count, r->error) ||
      !bny_topo_xml_integer(r->xml, element, "bw", 0, 100000000, &megabytes, r->error))
    return false;
  return bny_topo_join(r->topo, BNY_TOPO_LINK_C2C, gpu, numa, (int32_t)count, (double)megabytes * (double)count / 1000,
                       BNY_TOPO_FILE) >= 0;
}

/* Notes a link to a GPU that is not in the file. That GPU is lost, or was hidden from the process that wrote the
 * file. */
static bool note_lost(reading *r, found_link *found, int32_t host, const char *bus_id) {
  bool known = false;
  found->merged = true;
  for (int32_t m = 0; m < r->topo->nnotes && !known; m++) {
    const bny_topo_note *note = &r->topo->notes[m];
    known = note->kind == BNY_TOPO_NOTE_LOST && note->node == host && strcmp(note->text, bus_id) == 0;
  }
  return known || bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_LOST, host, bus_id);
}

/* The target is on the GPU's own host. Sets link->to, or ->target if it is a switch without an element. */
static bool find_target(reading *r, found_link *found) {
  const char *target = bny_topo_xml_attribute(r->xml, found->element, "target");
  const char *class = bny_topo_xml_attribute(r->xml, found->element, "tclass");
  if (target == NULL) return fail_link(r, found->element, "has no target");
  if (class != NULL && strcmp(class, "0x068001") == 0) {
    found->link.to = cpu_of(r->topo, found->link.from);
    return true;
  }
  char bus_id[BNY_TOPO_BUS_BYTES];
  if (strncasecmp(target, "fffffff", 7) == 0) {
    snprintf(found->target, sizeof found->target, "%s", hidden);
    return true;
  }
  if (!bny_topo_bus_normalise(target, bus_id)) return fail_link(r, found->element, "not a bus id such as 0000:1b:00.0");
  int32_t host = bny_topo_ancestor(r->topo, found->link.from, BNY_TOPO_HOST);
  int32_t element = bny_topo_names_find(r->buses, host, bus_id);
  if (element >= 0) {
    found->link.to = r->node_of[element];
    found->merged = bny_topo_device(r->topo, found->link.to) != found->link.to; /* the device lists the link too */
    return true;
  }
  if (class == NULL || strncmp(class, "0x0680", 6) != 0) return note_lost(r, found, host, bus_id);
  memcpy(found->target, bus_id, sizeof bus_id);
  return true;
}

static bool is_link(const bny_topo_xml *xml, int32_t element) {
  return bny_topo_xml_is(xml, element, "nvlink") || bny_topo_xml_is(xml, element, "xgmi") ||
         bny_topo_xml_is(xml, element, "c2c");
}

/* Sums the links of a kind (C2C or to devices) that a <gpu> lists. */
static int64_t links_listed(const bny_topo_xml *xml, int32_t gpu, bool c2c) {
  int64_t sum = 0;
  for (int32_t e = bny_topo_xml_first(xml, gpu); e >= 0; e = bny_topo_xml_next(xml, e)) {
    const char *count = bny_topo_xml_attribute(xml, e, "count");
    if (is_link(xml, e) && bny_topo_xml_is(xml, e, "c2c") == c2c) sum += count == NULL ? 1 : atoi(count);
  }
  return sum;
}

/* Returns whether an earlier partition of the same device lists links of this kind. All partitions share the links of
 * their device, so a partition that lists others is noted. */
static bool is_repeated(reading *r, int32_t gpu, bool c2c) {
  int32_t node = r->node_of[bny_topo_xml_parent(r->xml, gpu)]; /* a partition that is a function of its device */
  if (bny_topo_device(r->topo, node) != node) return true;
  if (r->looked_at[c2c] != gpu) {
    r->looked_at[c2c] = gpu;
    int64_t before = 0, own = links_listed(r->xml, gpu, c2c);
    int32_t e = bny_topo_xml_first(r->xml, bny_topo_xml_parent(r->xml, gpu));
    for (; e >= 0 && e < gpu && before == 0; e = bny_topo_xml_next(r->xml, e))
      before = bny_topo_xml_is(r->xml, e, "gpu") ? links_listed(r->xml, e, c2c) : 0;
    r->repeated[c2c] = before > 0;
    if (before > 0 && before != own)
      bny_topo_add_note(r->topo, r->node_of[gpu],
                        "it lists %lld links, and a partition of the same GPU lists %lld, "
                        "which count for both",
                        (long long)own, (long long)before);
  }
  return r->repeated[c2c];
}

/* An element with count 0 means that links are down, as does a missing element. */
static bool take_link(reading *r, int32_t element, int32_t gpu, bny_topo_link_kind kind) {
  int64_t count = 1;
  if (!bny_topo_xml_integer(r->xml, element, "count", 0, MOST_IN_ONE, &count, r->error)) return false;
  if (count == 0) return true;
  found_link *found = next_link(r);
  if (found == NULL) return false;
  int32_t compute = r->topo->nodes[gpu].compute;
  double one = kind == BNY_TOPO_LINK_XGMI ? bny_topo_speed_xgmi(compute) : bny_topo_speed_nvlink(compute);
  found->element = element;
  found->link = (bny_topo_link){.kind = kind,
                                .from = gpu,
                                .to = -1,
                                .count = (int32_t)count,
                                .source = BNY_TOPO_FILE,
                                .gbytes_per_s = one * (double)count};
  return find_target(r, found);
}

/* Adds a node for each switch that only links mention, in the order of bus ids. */
static bool add_switches(reading *r) {
  bny_topo_names switches = {0};
  int32_t hosts = bny_topo_count(r->topo, BNY_TOPO_HOST);
  for (int32_t i = 0; i < r->count; i++) {
    if (r->links[i].target[0] != '\0') {
      bool outside = hosts > 1 && strcmp(r->links[i].target, hidden) == 0;
      int32_t host = outside ? -1 : bny_topo_ancestor(r->topo, r->links[i].link.from, BNY_TOPO_HOST);
      bny_topo_names_add(&switches, host, r->links[i].target, (int32_t)i);
    }
  }
  bny_topo_names_sort(&switches);
  bool added = !switches.out_of_memory;
  int32_t number = 0, last = -1;
  for (int32_t s = 0; added && s < switches.count; s++) {
    const bny_topo_name *here = &switches.entries[s], *before = s == 0 ? NULL : here - 1;
    bool same_host = before != NULL && before->scope == here->scope;
    if (!same_host || strcmp(before->key, here->key) != 0) {
      char name[32];
      number = same_host ? number + 1 : 0;
      snprintf(name, sizeof name, "nvswitch%d", (int)number);
      bool is_hidden = strcmp(here->key, hidden) == 0;
      bny_topo_node node = bny_topo_node_of(BNY_TOPO_SWITCH, here->scope, number, name, BNY_TOPO_FILE);
      node.model = !is_hidden ? NULL : here->scope < 0 ? "NVLink domain" : "hidden by the virtual machine";
      node.vendor = "NVIDIA", node.bus_id = is_hidden ? NULL : here->key;
      last = bny_topo_add_node(r->topo, &node);
      added = last >= 0;
    }
    r->links[here->value].link.to = last;
  }
  bny_topo_names_free(&switches);
  return added;
}

static int by_pair(const void *a_void, const void *b_void) {
  const found_link *const *a = a_void, *const *b = b_void;
  const bny_topo_link *x = &(*a)->link, *y = &(*b)->link;
  bool back = x->from > x->to, other_back = y->from > y->to;
  int32_t keys[2][4] = {{back ? x->to : x->from, back ? x->from : x->to, (int32_t)x->kind, (*a)->element},
                        {other_back ? y->to : y->from, other_back ? y->from : y->to, (int32_t)y->kind, (*b)->element}};
  return bny_topo_order(keys[0], keys[1], 4);
}

/* Notes the GPU that does not list a link of another GPU to it. */
static bool note_one_sided(const reading *r, const found_link *found, size_t listed) {
  const bny_topo_link *link = &found->link;
  char text[80];
  if (listed > 1 || r->topo->nodes[link->to].kind != BNY_TOPO_GPU || link->from == link->to) return true;
  snprintf(text, sizeof text, "%.60s", r->topo->nodes[link->from].name);
  return bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_ONE_SIDED, link->to, text);
}

/* Notes a GPU that lists fewer links to another GPU than that GPU lists in return. */
static bool note_fewer(const reading *r, const found_link *low, const found_link *high) {
  char text[160];
  snprintf(text, sizeof text, "it lists %d link%s to %.60s, which lists %d to it: the lower number counts",
           (int)low->link.count, low->link.count == 1 ? "" : "s", r->topo->nodes[high->link.from].name,
           (int)high->link.count);
  return bny_topo_add_sign(r->topo, BNY_TOPO_NOTE_DIFFERS, low->link.from, text);
}

/* Merges the entries of both ends of a link. The smaller count is kept, because a link that is down at one end is
 * down. */
static bool merge_ends(reading *r) {
  found_link **sorted = malloc(((size_t)r->count + 1) * sizeof(found_link *));
  if (sorted == NULL) return false;
  size_t count = 0;
  for (int32_t i = 0; i < r->count; i++) {
    sorted[count] = &r->links[i];
    count += !r->links[i].merged;
  }
  qsort(sorted, count, sizeof *sorted, by_pair);
  bool good = true;
  size_t first = 0; /* first link between these two nodes */
  for (size_t i = 1; good && i <= count; i++) {
    if (i == count) {
      good = note_one_sided(r, sorted[first], i - first);
      break;
    }
    bny_topo_link *kept = &sorted[first]->link, *other = &sorted[i]->link;
    bool straight = kept->from == other->from && kept->to == other->to;
    bool mirrored = kept->from == other->to && kept->to == other->from;
    if (kept->kind != other->kind || !(straight || mirrored)) {
      good = note_one_sided(r, sorted[first], i - first);
      first = i;
      continue;
    }
    sorted[i]->merged = true;
    if (straight && kept->to == cpu_of(r->topo, kept->from)) {
      /* POWER CPUs have one address per link. */
      kept->count += other->count;
      kept->gbytes_per_s += other->gbytes_per_s;
    } else if (straight || i - first > 1) {
      good = fail_link(r, sorted[i]->element, "appears twice below one <gpu>");
    } else if (other->count != kept->count) {
      bool less = other->count < kept->count;
      good = note_fewer(r, sorted[less ? i : first], sorted[less ? first : i]);
      if (less) kept->count = other->count, kept->gbytes_per_s = other->gbytes_per_s;
    }
  }
  free(sorted);
  return good;
}

/* If a GPU has more links than its generation allows, the file lists the links to a switch once for each peer. In such
 * a host, the direct links are replaced by links to one switch, with the largest count to any peer. */
static bool mend_switched(reading *r) {
  size_t nodes = (size_t)r->topo->nnodes + 1;
  int32_t *sum = calloc(nodes, sizeof *sum), *most = calloc(nodes, sizeof *most),
          *middle = calloc(nodes, sizeof *middle);
  bool good = sum != NULL && most != NULL && middle != NULL;
  for (int32_t i = 0; good && i < r->count; i++) {
    const found_link *found = &r->links[i];
    int32_t ends[2] = {found->link.from, found->link.to};
    bool direct = found->link.kind == BNY_TOPO_LINK_NVLINK && !found->merged && ends[0] != ends[1] &&
                  r->topo->nodes[ends[1]].kind == BNY_TOPO_GPU;
    for (int end = 0; direct && end < 2; end++) {
      sum[ends[end]] += found->link.count;
      most[ends[end]] = found->link.count > most[ends[end]] ? found->link.count : most[ends[end]];
    }
  }
  int32_t gpus = r->topo->nnodes;
  for (int32_t n = 0; good && n < gpus; n++) {
    const bny_topo_node *gpu = &r->topo->nodes[n];
    int32_t host = bny_topo_ancestor(r->topo, n, BNY_TOPO_HOST), limit = bny_topo_nvlinks_most(gpu->compute);
    /* Newer generations may have more links. */
    if (gpu->kind != BNY_TOPO_GPU || gpu->compute >= 130 || sum[n] <= limit || middle[host] > 0) continue;
    bny_topo_node node = bny_topo_node_of(BNY_TOPO_SWITCH, host, 0, "nvswitch0", BNY_TOPO_ASSUMED);
    node.vendor = "NVIDIA";
    middle[host] = bny_topo_add_node(r->topo, &node);
    good =
        middle[host] > 0 &&
        bny_topo_add_note(r->topo, n,
                          "%.40s has %d NVLinks in the file, and such a GPU has %d at most: %d to a switch that joins "
                          "all GPUs are taken, because rows like those of nvidia-smi topo -m repeat them for each peer",
                          r->topo->nodes[n].name, (int)sum[n], (int)limit, (int)most[n]);
  }
  for (int32_t i = 0; good && i < r->count; i++) {
    found_link *found = &r->links[i];
    int32_t host = bny_topo_ancestor(r->topo, found->link.from, BNY_TOPO_HOST);
    found->merged = found->merged || (middle[host] > 0 && found->link.kind == BNY_TOPO_LINK_NVLINK &&
                                      r->topo->nodes[found->link.to].kind == BNY_TOPO_GPU);
  }
  for (int32_t n = 0; good && n < gpus; n++) {
    int32_t host = most[n] > 0 ? bny_topo_ancestor(r->topo, n, BNY_TOPO_HOST) : -1;
    int32_t limit = bny_topo_nvlinks_most(r->topo->nodes[n].compute), count = most[n] < limit ? most[n] : limit;
    good = host < 0 || middle[host] == 0 ||
           bny_topo_join(r->topo, BNY_TOPO_LINK_NVLINK, n, host < 0 ? -1 : middle[host], count,
                         count * bny_topo_speed_nvlink(r->topo->nodes[n].compute), BNY_TOPO_ASSUMED) >= 0;
  }
  free(sum);
  free(most);
  free(middle);
  return good;
}

/* Returns whether a <pci> lists a <pcilink> to a bus id. */
static bool lists_pcilink(const reading *r, int32_t pci, const char *bus_id) {
  char target[BNY_TOPO_BUS_BYTES];
  for (int32_t e = bny_topo_xml_first(r->xml, pci); e >= 0; e = bny_topo_xml_next(r->xml, e)) {
    const char *text = bny_topo_xml_is(r->xml, e, "pcilink") ? bny_topo_xml_attribute(r->xml, e, "target") : NULL;
    if (text != NULL && bny_topo_bus_normalise(text, target) && strcmp(target, bus_id) == 0) return true;
  }
  return false;
}

/* Links two PCI switches whose devices reach each other without passing the CPU. Like NCCL, it ignores an unknown
 * target. */
static bool take_pcilink(reading *r, int32_t element, int32_t pci) {
  const char *target = bny_topo_xml_attribute(r->xml, element, "target");
  char bus_id[BNY_TOPO_BUS_BYTES];
  if (target == NULL || !bny_topo_bus_normalise(target, bus_id))
    return fail_link(r, element, "not a bus id such as 0000:1b:00.0");
  int32_t there = bny_topo_names_find(r->buses, bny_topo_ancestor(r->topo, pci, BNY_TOPO_HOST), bus_id);
  int32_t to = there < 0 ? -1 : r->node_of[there];
  const bny_topo_node *own = &r->topo->nodes[pci];
  bool good = true, joins = to >= 0 && to != pci && own->kind == BNY_TOPO_PCI && r->topo->nodes[to].kind == own->kind;
  if (!joins)
    good =
        bny_topo_add_note(r->topo, pci, "its PCI link to %s is left out, because no other PCI switch is there", bus_id);
  else if (own->bus_id != NULL && !lists_pcilink(r, there, own->bus_id))
    good = bny_topo_add_note(r->topo, to, "it does not list the PCI link that %s lists to it", own->bus_id);
  if (!good) return false;
  if (!joins) return true;
  for (int32_t l = bny_topo_first_link(r->topo, pci); l >= 0; l = bny_topo_next_link(r->topo, pci, l))
    if (bny_topo_other_end(r->topo, pci, l) == to) return true; /* the other end lists it too */
  return bny_topo_join(r->topo, BNY_TOPO_LINK_PCI, pci, to, 0, 0, BNY_TOPO_FILE) >= 0;
}

bool bny_topo_nccl_links(const bny_topo_nccl *nccl) {
  const bny_topo_xml *xml = nccl->xml;
  bny_topo *topo = nccl->topo;
  const int32_t *node_of = nccl->node_of;
  reading r = {.xml = xml, .topo = topo, .node_of = node_of, .buses = &nccl->buses, .error = nccl->error};
  bool good = true;
  for (int32_t e = 1; good && e < bny_topo_xml_count(xml); e++) {
    int32_t parent = bny_topo_xml_parent(xml, e);
    if (bny_topo_xml_is(xml, e, "pcilink") && bny_topo_xml_is(xml, parent, "pci") && node_of[parent] >= 0) {
      good = take_pcilink(&r, e, node_of[parent]);
    } else if (is_link(xml, e) && (!bny_topo_xml_is(xml, parent, "gpu") || node_of[parent] < 0)) {
      good = fail_link(&r, e, "is outside of a <gpu>");
    } else if (is_link(xml, e) && !is_repeated(&r, parent, bny_topo_xml_is(xml, e, "c2c"))) {
      int32_t gpu = bny_topo_device(topo, node_of[parent]);
      bny_topo_link_kind kind = bny_topo_xml_is(xml, e, "xgmi") ? BNY_TOPO_LINK_XGMI : BNY_TOPO_LINK_NVLINK;
      good = bny_topo_xml_is(xml, e, "c2c") ? take_c2c(&r, e, gpu) : take_link(&r, e, gpu, kind);
    }
  }
  good = good && add_switches(&r) && merge_ends(&r) && mend_switched(&r);
  for (int32_t i = 0; good && i < r.count; i++)
    good = r.links[i].merged || bny_topo_add_link(topo, &r.links[i].link) >= 0;
  free(r.links);
  return good;
}
